"""One rule for intervals, wherever they are printed or drawn: four members have none, and five have one."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.cli import compare as compare_command
from shoal.cli.eval import matrices, trial_lines
from shoal.cli.eval import table as eval_table
from shoal.monitor import run_report as reports
from shoal.records import summary as summaries
from shoal.records.members import Variant, members_of
from shoal.reports import figures, learning_curves, plots
from shoal.runs.comparing import compare
from shoal.runs.policies import cross_play
from shoal.search import search_report, sweep_plots
from shoal.search.ranking import MemberResult, rank, summarise
from shoal.search.space import from_tables

SOURCE = Path(shoal.__file__).parent
BRACKETS = re.compile(r"\[-?[0-9.]+, +-?[0-9.]+\]")
STEPS = [0, 10, 20]
SPACE = from_tables({"grid": {"gamma": [0.9, 0.99]}})


def values(count):
    return np.random.default_rng(0).normal(size=count)


def curves(count):
    return np.random.default_rng(0).normal(size=(3, count))


def ranked(count):
    members = [
        MemberResult(label, {"gamma": gamma}, seed, {"absolute": x + gamma}, 100)
        for label, gamma in (("0", 0.9), ("1", 0.99))
        for seed, x in enumerate(values(count))
    ]
    return rank(members)


def summary_of(count):
    score = summaries.score_statistics(values(count))
    return {
        **{"environment": "CartPole-v1", "algorithm": "ppo", "seeds": list(range(count)), "failed": []},
        **{"steps_per_seed": 100, "steps_per_second": 1.0, "evaluation": {"episodes": 1}},
        **{"seconds": {"compile": 0.0, "train": 0.0, "evaluate": 0.0}, "final": score, "absolute": score},
        "score": {
            "name": "x",
            **{part: score | {"values": score["returns"]} for part in ("absolute", "final")},
        },
    }


def by_episode(count):
    hows = ("mean", "median", "p20")
    return summaries.statistics_by_episode(
        [{f"info_return_of_episode_0_{how}": float(x) for how in hows} for x in values(count)]
    )


def evaluated(count):
    names = (
        "return_mean",
        "return_std",
        "return_min",
        "return_max",
        "length_mean",
        "terminated",
        "truncated",
    )
    metrics = {seed: dict.fromkeys(names, 1.0) | {"unfinished": 0.0} for seed in range(count)}
    further = {"environment": "x", "which": "best", "mode": "greedy", "episodes": 1, "max_steps": 9}
    return {
        "metrics": metrics,
        "failed": [],
        "by_episode": {},
        **further,
        **summaries.score_statistics(values(count)),
    }


def played(count):
    side = {"name": "x", "which": "best", "seeds": list(range(count)), "failed": [], "roles": [0]}
    returns = {0: cross_play._statistics(np.random.default_rng(0).normal(size=(count, count, 1)))}
    further = {"environment": "x", "mode": "greedy", "episodes": 1, "unfinished": 0.0, "max_steps": 9}
    return {"first": side, "second": side, "returns": returns, **further}


def compared(tmp_path, count):
    """A comparison of a run that is written by hand with itself."""
    path = tmp_path / f"of_{count}"
    path.mkdir()
    write_run(path, values(count))
    return [path, path]


def write_run(path, returns):
    seeds = range(len(returns))
    config = {
        "environment": {"name": "CartPole-v1", "parameters": {}},
        "algorithm": {"name": "ppo"},
        "run": {"seed": 0, "seeds": len(returns)},
    }
    rows = [
        {"kind": "evaluation", "step": step, "updates": step, "seed": k, "return_mean": returns[k] * step}
        for step in STEPS
        for k in seeds
    ]
    (path / "config.json").write_text(json.dumps(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = summary_of(len(returns)) | {"evaluation": {}}
    (path / "summary.json").write_text(json.dumps(summary))


TEXTS = {
    "result of a run": lambda count, _: reports.result_text(summary_of(count), "runs/x"),
    "best of a sweep": lambda count, _: "\n".join(search_report._setting_lines(summarise(ranked(count)))),
    "eval": lambda count, _: eval_table(evaluated(count)),
    "cross play": lambda count, _: matrices(played(count)),
    "eval of trials": lambda count, _: "\n".join(trial_lines(by_episode(count))),
    "comparison": lambda count, tmp_path: compare_command.table(
        compare(compared(tmp_path, count), target=0.0)
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_printed(name, tmp_path):
    assert not BRACKETS.search(TEXTS[name](4, tmp_path))
    five = TEXTS[name](5, tmp_path)
    assert BRACKETS.search(five) and ("too narrow" in five or name == "eval of trials")
    assert "too narrow" not in TEXTS[name](10, tmp_path)


ENTRIES = {
    "score of a run": lambda count: summaries.score_statistics(values(count))["interval"],
    "score of a variant": lambda count: summaries.variant_scores(
        members_of(range(count), [Variant("a", {})]), values(count), values(count)
    )[0]["absolute"]["interval"],
    "setting of a sweep": lambda count: ranked(count)[0].interval,
    "episode of a trial": lambda count: by_episode(count)["return"]["interval"][0],
    "cross play": lambda count: cross_play._statistics(np.random.default_rng(0).normal(size=(count, 6, 1)))[
        "interval"
    ],
    "cross play the other way": lambda count: cross_play._statistics(
        np.random.default_rng(0).normal(size=(6, count, 1))
    )["interval"],
}


@pytest.mark.parametrize("name", ENTRIES)
def test_saved(name):
    assert ENTRIES[name](4) is None and len(ENTRIES[name](5)) == 2


PICTURES = {
    "learning curve": lambda path, count, _: plots.plot_learning_curve(path, STEPS, curves(count), "x"),
    "episodes of trials": lambda path, count, _: plots.plot_by_episode(path, {"a": curves(count)}, "x"),
    "settings of a sweep": lambda path, count, _: sweep_plots.plot_settings(
        path, sweep_plots.ScoredSettings(ranked(count), SPACE, "x")
    ),
    "curves of a sweep": lambda path, count, _: sweep_plots.plot_best_and_worst(
        path, {"a": (STEPS, curves(count))}, {"b": (STEPS, curves(count))}, "x"
    ),
    "comparison": lambda path, count, tmp_path: compare(compared(tmp_path, count), plot=path),
}


@pytest.mark.parametrize("name", PICTURES)
def test_drawn(name, tmp_path, monkeypatch):
    """An interval is a collection of paths: a band, or a vertical line of each setting."""
    saved = []
    monkeypatch.setattr(figures, "save", lambda figure, path: saved.append(figure))
    for count in (4, 5):
        PICTURES[name](tmp_path / f"{count}.png", count, tmp_path)
    without, some = ([has_extent(x) for axes in figure.axes for x in axes.collections] for figure in saved)
    assert not any(without) and any(some)
    texts = [x.get_text() for axes in saved[0].axes for x in (axes.yaxis.label, *legend_of(axes))]
    assert not any("95%" in text for text in texts)


def legend_of(axes):
    return axes.get_legend().get_texts() if axes.get_legend() else []


def test_curves_of_pages():
    members = tuple("abcde")
    low = [
        learning_curves.prepare(
            learning_curves.Evaluations("a", np.asarray(STEPS), curves(count), members[:count])
        ).low
        for count in (4, 5)
    ]
    assert np.isnan(low[0]).all() and np.isfinite(low[1]).all()


def has_extent(collection):
    return any(np.ptp(path.vertices[:, 1]) > 0 for path in collection.get_paths())


def test_nothing_else_computes_an_interval():
    """What computes an interval whatever the number of seeds is called within `shoal.records` alone."""
    calls = re.compile(r"\b(stratified_bootstrap|crossed_bootstrap|percentile)_interval\b")
    found = [
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if calls.search(path.read_text())
    ]
    assert sorted(found) == ["records/comparisons.py", "records/scores.py"]
    pure = re.compile(r"\b(difference|improvement|survival|newcombe)_interval\b|\bprofile_band\b")
    users = [x for x in SOURCE.rglob("*.py") if pure.search(x.read_text()) and x.parent.name != "records"]
    assert sorted(x.name for x in users) == ["compare.py", "compare_plots.py"]
