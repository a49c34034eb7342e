"""Every place that says a score of a run says the same: a seed that failed is the worst there is."""

import json
import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from shoal.base.numbers import format_number
from shoal.cli import compare as compare_command
from shoal.monitor import run_report as reports
from shoal.monitor.loggers.series import Aggregation, series_of
from shoal.records.directory import RunDirectory
from shoal.records.members import Variant, members_of
from shoal.records.summary import score_statistics, variant_scores
from shoal.reports import figures, learning_curves, page, plots, record_curves, records, runs_list
from shoal.runs.comparing import compare
from shoal.runs.train.results import TrainedRun

RETURNS = (4.0, 8.0, 8.0, 6.0, 6.0, 7.0, 9.0, 5.0)  # two and two tie
CASES = {"none": (), "one": (6,), "as many as are cut": (1, 2), "one more": (1, 2, 6), "whole": range(8)}


def numbers_in(text):
    return [float(x.replace(",", "")) for x in re.findall(r"-?(?:inf|[0-9][0-9,.]*[0-9]|[0-9])", text)]


class Places:
    """What each place says of a run: its score, NaN for none, and the interval, None for none."""

    def __init__(self, path):
        self.path, self.summary = path, RunDirectory(path).load_summary()
        self.config = json.loads((path / "config.json").read_text())
        self.record = records.read(path)

    def the_result_of_train(self):
        lines = reports.result_text(self.summary | FACTS, self.path).splitlines()
        (found,) = [x for x in lines if x.startswith("  best policies")] or [""]
        return self.numbers(found.partition("worst")[0])

    def the_run_in_python(self):
        run = TrainedRun(self.path, self.summary, (), [], None)
        return self.numbers(repr(run).partition("steps each: ")[2].partition(";")[0])

    def run_summary(self):
        part = self.summary["absolute"]
        return part["iqm"], part["interval"]

    def summary_json(self):
        part = json.loads((self.path / "summary.json").read_text(), parse_constant=pytest.fail)["absolute"]
        low, high = part["interval"] or (None, None)
        worst = -math.inf if len(self.summary["failed"]) < len(RETURNS) else math.nan
        ends = None if part["interval"] is None else [worst if low is None else low, high]
        return (worst if part["iqm"] is None else part["iqm"]), ends

    def shoal_runs(self):
        entry = runs_list.entry_of(self.path)
        text = runs_list._cells(entry)["score"].partition(" (")[0]
        assert f"({entry.failed} failed)" in runs_list.table([entry]) or not entry.failed
        return self.numbers(text)

    def shoal_compare(self):
        row = compare([self.path, self.path])["rows"][0]
        return row["iqm"]["value"], row["iqm"]["interval"]

    def shoal_compare_in_print(self):
        text = compare_command.table(compare([self.path, self.path]))
        line = next(x for x in text.splitlines() if x.startswith("  run  "))
        return self.numbers(re.sub(r" \(\d failed\)", "", line.partition("8  ")[2][: compare_command.CELL]))

    def a_page(self):
        return self.of_page(page.page_of({"run": self.record}, 0))

    def a_page_of_two(self):
        return self.of_page(page.page_of({"run": self.record, "other": self.record}, 0))

    def series_of_all(self):
        aggregation = Aggregation(self.record.members, series_of(self.config), {})
        *members, (series, numbers) = aggregation.absolute(self.summary)
        has_failed = [math.isnan(x["absolute/return_mean"]) for _, x in members]
        assert has_failed == self.record.scores().failed.tolist()
        assert series.kind == "all" and numbers.get("absolute/failed", 0) == len(self.summary["failed"])
        return numbers["absolute/return_mean"], ...

    def the_end_of_a_curve_on_a_page(self):
        _, values, failed = self.evaluations()
        found = learning_curves.by_setting(self.record.members, np.arange(3), values, failed)[""]
        curve = learning_curves.prepare(found)
        for with_lines in (False, True):
            axes = Figure().add_subplot()
            learning_curves._draw(axes, curve, 0, with_lines=with_lines)
            assert sum(line.get_marker() == "x" for line in axes.lines) == len(failed)  # each end is marked
        return curve.middle[-1], None if np.isnan(curve.low[-1]) else ...

    def the_end_of_a_curve_in_a_picture(self):
        steps, values, failed = self.evaluations()
        drawn = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(figures, "save", lambda figure, _: drawn.append(figure))
            plots.plot_learning_curve(self.path / "x.png", steps, values, "x", failed=failed)
        lines = {line.get_label(): line for line in drawn[0].axes[0].lines}
        marked = [line for label, line in lines.items() if label.startswith("failed")]
        assert sum(len(x.get_xdata()) for x in marked) == len(failed)  # each end is marked
        line = lines.get("interquartile mean of 8 seeds")
        end = math.nan if line is None else line.get_ydata()[-1]
        return (-math.inf if math.isnan(end) and line is not None else end), ...

    def evaluations(self):
        steps, values = self.record.evaluations()
        return steps, values, np.flatnonzero(self.record.scores().failed).tolist()

    @staticmethod
    def numbers(text):
        found = numbers_in(text.removeprefix("  best policies").replace("IQM", ""))
        return (found[0] if found else math.nan), found[1:3] or None

    def of_page(self, text):
        facts = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
        score, ends = facts.get("Score (IQM)", "nan"), facts.get("95% interval", "")
        return float(score), numbers_in(ends) or None


FACTS = {"steps_per_second": 1.0, "seconds": {"compile": 0.0, "train": 0.0, "evaluate": 0.0}}
PLACES = [name for name in vars(Places) if not name.startswith(("_", "numbers", "evaluations", "of_page"))]

# A run without a score is below any other in a comparison, and a logger is sent neither number.
NO_SCORE_IS_WORST = ("shoal_compare", "shoal_compare_in_print", "series_of_all")


@pytest.fixture
def places(write_run):
    def write(failed):
        summary = {"evaluation": {"episodes": 1, "return_mean": list(RETURNS)}}
        path = write_run("run", RETURNS, failed=failed, summary=summary)
        file = path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            if row["seed"] in failed and row["step"] == 200:  # from then on there are none
                row["return_mean"] = row["score"] = None
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if not failed:  # the fixture's own interval is made up
            content = json.loads((path / "summary.json").read_text())
            content["absolute"] = score_statistics(RETURNS)
            (path / "summary.json").write_text(json.dumps(content))
        return Places(path)

    return write


def assert_says(name, value, exact, interval):
    """A place has a number as it is, or as it is printed beside its interval, or without it."""
    printed = [float(format_number(exact, ends)) for ends in (None, interval)]
    assert any(np.isclose(value, x, rtol=1e-6, atol=0, equal_nan=True) for x in (exact, *printed)), (
        name, value, exact,
    )  # fmt: skip


@pytest.mark.quick("one more")
@pytest.mark.parametrize("case", CASES)
def test_all_places_agree(places, case):
    failed = CASES[case]
    found = places(failed)
    worst = [-1e9 if k in failed else x for k, x in enumerate(RETURNS)]
    iqm = stats.trim_mean(worst, 0.25)
    expected = math.nan if len(failed) == 8 else -math.inf if iqm < -1e6 else iqm
    score, interval = found.run_summary()
    np.testing.assert_equal(score, expected)
    if 0 < len(failed) < 3:
        assert interval[0] == -math.inf and math.isfinite(interval[1])
    for name in PLACES:
        value, ends = getattr(found, name)()
        if len(failed) == 8 and name in NO_SCORE_IS_WORST:
            value = math.nan if value == -math.inf else value
        assert_says(name, value, score, interval)
        if ends is not ...:
            assert (ends is None) == (interval is None), name
            for end, exact in zip(ends or (), interval or (), strict=True):
                assert_says(name, end, exact, interval)


def test_beside_other_settings_a_failed_seed_counts_as_the_worst_of_all(write_run):
    """In the summary, the list, the page and the curve's end alike; two settings tie, one fails whole."""
    labels, returns = ("a", "b", "c", "whole"), np.array([[5.0, 9.0], [5.0, 9.0], [3.0, 9.0], [9.0, 9.0]])
    failed = [("b", 1), ("whole", 0), ("whole", 1)]
    variants = [Variant(label, {"x": k}) for k, label in enumerate(labels)]
    members = members_of((0, 1), variants)
    places = [k for k, member in enumerate(members) if (member.label, member.seed) in failed]
    rows = variant_scores(members, returns.ravel(), returns.ravel(), places)
    assert [row["label"] for row in rows] == ["a", "c", "b", "whole"]  # b has 5 and, for its failed seed, 3
    assert [row["absolute"]["iqm"] for row in rows[:3]] == [7.0, 6.0, 4.0]
    part = score_statistics(returns.ravel(), places)
    entries = [{"label": label, "seed": seed, "update": 1, "last_policy_step": 0} for label, seed in failed]
    path = write_run(
        "run",
        (1.0, 2.0),
        config={"variants": [{"label": x.label, "settings": x.settings} for x in variants]},
        summary={"members": rows, "final": part, "absolute": part, "failed": entries, "seeds": [0, 1] * 4},
    )
    lines = []
    for step in (0, 200):
        for k, member in enumerate(members):
            value = None if step and k in places else float(returns.ravel()[k])
            row = {"kind": "evaluation", "step": step, "updates": step, "time": 1e9, "return_mean": value}
            lines.append(json.dumps(row | {"seed": member.seed, "label": member.label}) + "\n")
    (path / "metrics.jsonl").write_text("".join(lines))
    record = records.read(path)
    assert record.score == (7.0, None, "a", 0) and runs_list.entry_of(record.path).score == 7.0
    assert json.loads((path / "summary.json").read_text())["absolute"]["returns"].count(None) == 3
    for finished in (True, False):
        if not finished:
            (path / "summary.json").unlink()
        record = records.read(path)
        found = record_curves.evaluations_of(record)
        assert [x.name for x in found] == ["a", "c", "b", "whole"]
        ends = [learning_curves.prepare(x).middle[-1] for x in found]
        np.testing.assert_equal(ends, [7.0, 6.0, 4.0, math.nan])
        assert record.score[:1] == (7.0,)


def test_a_run_that_has_not_ended_counts_failures_too(write_run):
    last = {"step": 200, "returns": [4.0, None], "iqm": None, "interval": None}
    for content in ({"last_evaluation": last}, {}):
        progress = {"steps_per_seed": 200, "failed": [{"seed": 1}], **content}
        record = records.read(write_run(f"of {len(content)}", (4.0, 8.0), finished=False, progress=progress))
        assert record.score == (-math.inf, None, "", 1)
