"""What the pictures of a sweep show: the values that are drawn, and files that can be read."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread
from scipy import stats

from shoal.base.errors import ShoalError
from shoal.records.run_config import RunConfig
from shoal.reports import figures
from shoal.search import search_report, sweep_plots
from shoal.search.ranking import Importance, MemberResult, rank
from shoal.search.space import from_tables, label_of

SPACE = from_tables(
    {
        "grid": {"surrogate": ["clip", "penalty"], "hidden_sizes": [[64, 64], [256]]},
        "random": {"learning_rate": "log:1e-5:1e-2", "kl_coef": "log:0.1:10"},
        "where": {"kl_coef": {"surrogate": "penalty"}},
    }
)
GRID = from_tables({"grid": {"gamma": [0.99, 0.9], "ent_coef": [0.0, 0.01, 0.1]}})


def ranked_points(space, samples=1, seeds=5):
    generator = np.random.default_rng(0)
    return rank(
        [
            MemberResult(label_of(index, point), point, seed, {"absolute": generator.normal()}, 1000)
            for index, point in enumerate(space.points(samples))
            for seed in range(seeds)
        ]
    )


@pytest.fixture
def shown(monkeypatch):
    """The figures that are saved, instead of their files."""
    saved = []
    monkeypatch.setattr(figures, "save", lambda figure, path: saved.append(figure))
    return saved


def line(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def test_scores_over_each_setting(shown):
    ranked = ranked_points(SPACE, samples=6)
    sweep_plots.plot_settings("a.png", sweep_plots.ScoredSettings(ranked, SPACE, "title"))
    panels = [axes for axes in shown[0].axes if axes.get_visible()]
    assert [axes.get_xlabel() for axes in panels] == list(SPACE.names)
    rate = panels[2]
    x, y = line(rate, "one setting, 95% interval").get_data()
    np.testing.assert_allclose(
        x, [SPACE.to_unit("learning_rate", r.settings["learning_rate"]) for r in ranked]
    )
    np.testing.assert_allclose(y, [r.score for r in ranked])
    np.testing.assert_allclose(
        [path.vertices[:, 1] for path in rate.collections[0].get_paths()], [r.interval for r in ranked]
    )
    assert line(rate, "best score").get_data()[1] == [ranked[0].score]
    assert [text.get_text() for text in rate.get_xticklabels()] == ["1e-05", "0.0001", "0.001", "0.01"]
    np.testing.assert_allclose(rate.get_xticks(), [0, 1 / 3, 2 / 3, 1])
    clip, penalty = line(panels[0], "median of the settings there").get_ydata()
    assert clip == np.median([r.score for r in ranked if r.settings["surrogate"] == "clip"])
    assert penalty == np.median([r.score for r in ranked if r.settings["surrogate"] == "penalty"])
    assert len(line(panels[3], "one setting, 95% interval").get_xdata()) == 12  # where it is active


def test_settings_without_a_score_are_left_out(shown):
    failed = [MemberResult("9", {"gamma": 0.9, "ent_coef": 0.0}, 0, {"at_rung": 5.0}, 10)]
    members = [MemberResult("0", {"gamma": 0.99, "ent_coef": 0.1}, 0, {"absolute": 1.0}, 100, rung=1)]
    sweep_plots.plot_settings("a.png", sweep_plots.ScoredSettings(rank([*members, *failed]), GRID, "title"))
    assert len(line(shown[0].axes[0], "one setting").get_xdata()) == 1  # of one seed, without an interval
    nothing = rank([MemberResult("0", {"gamma": 0.99, "ent_coef": 0.1}, 0, {}, 100, failure="not finite")])
    sweep_plots.plot_settings("a.png", sweep_plots.ScoredSettings(nothing, GRID, "title"))
    sweep_plots.plot_pairs("a.png", sweep_plots.ScoredSettings(nothing, GRID, "title"))
    sweep_plots.plot_parallel("a.png", sweep_plots.ScoredSettings(nothing, GRID, "title"))


def test_settings_of_a_list_are_drawn_at_their_values(shown):
    """One setting of a value is at its tick; several are around it, at different places."""
    space = from_tables({"grid": {"learning_rate": [0.0001, 0.001, 0.01]}})
    sweep_plots.plot_settings(
        "a.png", sweep_plots.ScoredSettings(ranked_points(space, seeds=1), space, "title")
    )
    (axes,) = shown[0].axes
    (points,) = (x.get_xdata() for x in axes.lines if x.get_label() == "one setting")
    np.testing.assert_array_equal(np.sort(points), axes.get_xticks())
    ranked = ranked_points(GRID)
    places = sweep_plots._places(ranked, GRID, "gamma")
    for value in GRID.axis("gamma"):
        at = places[[x.settings["gamma"] == value for x in ranked]]
        assert np.mean(at) == pytest.approx(GRID.to_unit("gamma", value)) and len(set(at)) == 3


SEARCH = from_tables({"grid": {"gamma": [0.9, 0.99, 0.999]}, "random": {"learning_rate": "log:1e-5:1e-2"}})


def failing_members():
    """Members of two settings of each gamma: two that tie, a seed that failed, a setting that failed whole, NaN."""
    scores = [[5.0, 9.0], [7.0, 7.0], [7.0, 7.0], [2.0, None], [None, None], [np.nan, 8.0]]
    return [
        MemberResult(
            label_of(index, point),
            point,
            seed,
            {} if score is None else {"absolute": score},
            1000,
            failure="a number was not finite" if score is None else "",
        )
        for (index, point), row in zip(enumerate(SEARCH.points(2)), scores, strict=True)
        for seed, score in enumerate(row)
    ]


def rows_of_evaluations(members):
    """What `metrics.jsonl` has of the members, of each at two points; null where it had failed, and before that 3."""
    return [
        {"kind": "evaluation", "label": x.label, "seed": x.seed, "step": step}
        | {"return_mean": 3.0 if step == 500 else x.scores.get("absolute")}
        for step in (500, 1000)
        for x in members[::-1]
    ]


@pytest.fixture
def drawn(shown, tmp_path, monkeypatch):
    """The files and the figures, by name, of a search with members that failed."""
    members, saved = failing_members(), {}
    run = SimpleNamespace(path=tmp_path, group=SimpleNamespace(candidates=members))
    rows = SimpleNamespace(load_metrics=lambda: rows_of_evaluations(members))
    monkeypatch.setattr(search_report.RunDirectory, "open", lambda path: rows)
    monkeypatch.setattr(search_report.Report, "_write_winner", lambda *_: ("", ""))
    monkeypatch.setattr(search_report.Report, "_run_of", lambda *_: "")
    monkeypatch.setattr(figures, "save", lambda figure, path: saved.update({path.name: figure}))
    base = SimpleNamespace(environment_name="CartPole-v1", algorithm="ppo", run=RunConfig())
    report = search_report.Report(SimpleNamespace(path=tmp_path), SEARCH, base, "absolute")
    summary = report.finish(members, [run], [])
    with open(tmp_path / "members.csv", newline="") as file:
        return summary, list(csv.DictReader(file)), saved


def scores_of(table):
    """The score of each setting by the table of members alone; a seed that failed has the worst score of all."""
    worst = min(float(row["absolute"]) for row in table if row["absolute"])
    found = {}
    for row in table:
        found.setdefault(row["label"], []).append(float(row["absolute"] or "nan"))
    filled = {label: np.nan_to_num(x, nan=worst) for label, x in found.items() if np.isfinite(x).any()}
    return {label: stats.trim_mean(x, 0.25) for label, x in filled.items()}


def test_pictures_have_the_scores_of_the_files(drawn):
    summary, table, saved = drawn
    scores = scores_of(table)
    assert list(scores.values()) != [] and len(scores) == 5  # the sixth setting failed whole
    listed = {x["label"]: x["absolute"]["iqm"] for x in summary["members"]}
    assert {label: x for label, x in listed.items() if np.isfinite(x)} == scores
    assert list(listed)[-1] not in scores
    assert summary["best"]["score"]["iqm"] == max(scores.values())
    rates = {row["label"]: float(row["learning_rate"]) for row in table}
    wanted = sorted((SEARCH.to_unit("learning_rate", rates[label]), x) for label, x in scores.items())
    panel = next(x for x in saved["settings.png"].axes if x.get_xlabel() == "learning_rate")
    points = zip(*line(panel, "one setting").get_data(), strict=True)
    np.testing.assert_allclose(sorted(points), wanted)
    scatter = saved["pairs.png"].axes[0].collections[0]
    np.testing.assert_allclose(np.sort(scatter.get_array()), np.sort(list(scores.values())))
    lines = [x.get_ydata() for x in saved["parallel.png"].axes[0].lines if len(x.get_ydata()) == 3]
    assert len(lines) == len(scores) + 1  # the best once more
    order = np.array([scores[label] for label in list(listed)[:5]])
    low, high = np.quantile(order, 0.1), order.max()
    heights = [x[-1] for x in lines[:-1]][::-1]
    np.testing.assert_allclose(heights, np.clip((order - low) / (high - low), 0, 1))


def test_the_pictures_of_importance_and_of_curves_have_the_numbers_of_the_files(drawn):
    summary, table, saved = drawn
    scores = scores_of(table)
    gammas = {row["label"]: row["gamma"] for row in table}
    failures = {x["label"]: len(x["failed"]) for x in summary["members"]}
    order = sorted(scores, key=lambda label: (-scores[label], failures[label]))
    keys = [(-scores[label], failures[label]) for label in order]
    places = stats.rankdata([sorted(set(keys)).index(key) for key in keys])
    groups = [[r for r, x in zip(places, order, strict=True) if gammas[x] == g] for g in set(gammas.values())]
    h, _ = stats.kruskal(*groups)
    axes = saved["importances.png"].axes[0]
    names = [x.get_text() for x in axes.get_yticklabels()]
    bar = axes.patches[names.index("gamma")]
    assert bar.get_width() == pytest.approx(np.clip((h - 2) / (5 - 3), 0, 1))
    texts = dict(zip(names, (x.get_text() for x in axes.texts), strict=True))
    assert texts["learning_rate"] == sweep_plots.NO_SHARE  # five points are one group
    axes = saved["curves.png"].axes[0]
    drawn_labels = [x.get_label() for x in axes.lines]
    assert len(drawn_labels) == 4 and set(drawn_labels) < set(scores)
    for label in drawn_labels:
        ends = [float(row["absolute"]) for row in table if row["label"] == label and row["absolute"]]
        x, y = line(axes, label).get_data()
        np.testing.assert_array_equal(x, [500, 1000])
        np.testing.assert_allclose(y, [3.0, stats.trim_mean(ends, 0.25)])


def test_a_heat_map_has_the_median_of_each_cell(shown):
    ranked = ranked_points(GRID)
    sweep_plots.plot_pairs("a.png", sweep_plots.ScoredSettings(ranked, GRID, "title"))
    (image,) = shown[0].axes[0].images
    scores = {(r.settings["ent_coef"], r.settings["gamma"]): r.score for r in ranked}
    wanted = [[scores[row, column] for column in (0.9, 0.99)] for row in (0.0, 0.01, 0.1)]
    np.testing.assert_allclose(image.get_array(), wanted)
    assert [text.get_text() for text in shown[0].axes[0].get_yticklabels()] == ["0", "0.01", "0.1"]


def test_parallel_coordinates_end_at_the_score(shown):
    ranked = ranked_points(SPACE, samples=4)
    sweep_plots.plot_parallel(
        "a.png", sweep_plots.ScoredSettings(ranked, SPACE, "title", names=["learning_rate", "kl_coef"])
    )
    lines = [x.get_ydata() for x in shown[0].axes[0].lines if len(x.get_ydata()) == 3]
    assert len(lines) == len(ranked) + 1  # the best is drawn once more, on top
    np.testing.assert_array_equal(lines[-1], lines[-2])
    order = [x[-1] for x in lines]
    assert order == sorted(order) and order[-1] == 1
    absent = sum("kl_coef" not in r.settings for r in ranked)
    assert sum(x[1] == sweep_plots.ABSENT for x in lines[:-1]) == absent > 0


def test_bars_of_importance_tell_chance_apart(shown):
    found = [
        Importance("gamma", 0.5, 0.001),
        Importance("ent_coef", 0.1, 0.4),
        Importance("x", float("nan"), float("nan")),
    ]
    sweep_plots.plot_importances("a.png", found, "title")
    axes = shown[0].axes[0]
    bars = axes.patches[:3]
    np.testing.assert_array_equal([bar.get_width() for bar in bars], [0.5, 0.1, np.nan])
    assert bars[0].get_facecolor() != bars[1].get_facecolor()
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["0.50", "0.10", "cannot be estimated: too few settings, or equal scores"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["gamma", "ent_coef", "x"]


def test_curves_of_the_best_and_the_worst(shown):
    steps, generator = np.arange(5) * 1000, np.random.default_rng(0)
    curves = {name: (steps, generator.normal(size=(5, 3))) for name in "abcd"}
    best, worst = ({name: curves[name] for name in names} for names in ("ab", "dc"))
    sweep_plots.plot_best_and_worst("a.png", best, worst, "title")
    for name, (_, returns) in curves.items():
        np.testing.assert_allclose(line(shown[0].axes[0], name).get_ydata(), returns.mean(axis=1))
    (legend,) = shown[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("distribution", "texts"),
    [
        ("log:2e-4:7e-4", ["0.0003", "0.00045", "0.0006"]),
        ("log:1e-3:1e-1", ["0.001", "0.01", "0.1"]),
        ("log:0.02:2", ["0.03", "0.1", "0.3", "1"]),
        ("one-minus-log:0.9:0.9999", ["0.9", "0.99", "0.999", "0.9999"]),
        ("one-minus-log:0.9:0.99", ["0.9", "0.97", "0.99"]),
        ("uniform:5:15", ["5", "7.5", "10", "12.5", "15"]),
        ("int:1:4", ["1", "2", "3", "4"]),
    ],
)
def test_ticks_suit_the_scale(distribution, texts):
    space = from_tables({"random": {"x": distribution}})
    ticks = sweep_plots.ticks_of(space, "x")
    assert [text for _, text in ticks] == texts
    assert all(-1e-9 <= place <= 1 + 1e-9 for place, _ in ticks)


def test_files_are_written(tmp_path):
    sweep_plots.plot_parallel(
        tmp_path / "a.png", sweep_plots.ScoredSettings(ranked_points(SPACE, 2), SPACE, "CartPole-v1, ppo")
    )
    assert imread(tmp_path / "a.png").shape[:2] == (660, 1230)
    with pytest.raises(ShoalError, match=r"a\.png cannot be written: No such file or directory\.$"):
        sweep_plots.plot_importances(tmp_path / "missing" / "a.png", [], "title")
