"""What the pictures of a sweep show: the values that are drawn, and files that can be read."""

import numpy as np
import pytest
from matplotlib.image import imread

from shoal.errors import ShoalError
from shoal.runtime.show import figures
from shoal.sweeps import sweep_plots
from shoal.sweeps.results import Importance, MemberResult, rank
from shoal.sweeps.space import from_tables, label_of

SPACE = from_tables(
    {
        "grid": {"surrogate": ["clip", "penalty"], "hidden_sizes": [[64, 64], [256]]},
        "random": {"learning_rate": "log:1e-5:1e-2", "kl_coef": "log:0.1:10"},
        "where": {"kl_coef": {"surrogate": "penalty"}},
    }
)
GRID = from_tables({"grid": {"gamma": [0.99, 0.9], "ent_coef": [0.0, 0.01, 0.1]}})


def ranked_points(space, samples=1, seeds=3):
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
    sweep_plots.plot_settings("a.png", ranked, SPACE, "title")
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
    assert line(rate, "best setting").get_data()[1] == [ranked[0].score]
    assert [text.get_text() for text in rate.get_xticklabels()] == ["1e-05", "0.0001", "0.001", "0.01"]
    np.testing.assert_allclose(rate.get_xticks(), [0, 1 / 3, 2 / 3, 1])
    clip, penalty = line(panels[0], "median of the settings there").get_ydata()
    assert clip == np.median([r.score for r in ranked if r.settings["surrogate"] == "clip"])
    assert penalty == np.median([r.score for r in ranked if r.settings["surrogate"] == "penalty"])
    assert len(line(panels[3], "one setting, 95% interval").get_xdata()) == 12  # where it is active


def test_settings_without_a_score_are_left_out(shown):
    failed = [MemberResult("9", {"gamma": 0.9, "ent_coef": 0.0}, 0, {"at_rung": 5.0}, 10)]
    members = [MemberResult("0", {"gamma": 0.99, "ent_coef": 0.1}, 0, {"absolute": 1.0}, 100, rung=1)]
    sweep_plots.plot_settings("a.png", rank([*members, *failed]), GRID, "title")
    assert len(line(shown[0].axes[0], "one setting, 95% interval").get_xdata()) == 1
    nothing = rank([MemberResult("0", {"gamma": 0.99, "ent_coef": 0.1}, 0, {}, 100, failure="not finite")])
    sweep_plots.plot_settings("a.png", nothing, GRID, "title")
    sweep_plots.plot_pairs("a.png", nothing, GRID, "title")
    sweep_plots.plot_parallel("a.png", nothing, GRID, "title")


def test_a_heat_map_has_the_median_of_each_cell(shown):
    ranked = ranked_points(GRID)
    sweep_plots.plot_pairs("a.png", ranked, GRID, "title")
    (image,) = shown[0].axes[0].images
    scores = {(r.settings["ent_coef"], r.settings["gamma"]): r.score for r in ranked}
    wanted = [[scores[row, column] for column in (0.9, 0.99)] for row in (0.0, 0.01, 0.1)]
    np.testing.assert_allclose(image.get_array(), wanted)
    assert [text.get_text() for text in shown[0].axes[0].get_yticklabels()] == ["0", "0.01", "0.1"]
    with pytest.raises(ValueError, match="two settings"):
        sweep_plots.plot_pairs("a.png", ranked, GRID, "title", names=["gamma"])


def test_parallel_coordinates_end_at_the_score(shown):
    ranked = ranked_points(SPACE, samples=4)
    sweep_plots.plot_parallel("a.png", ranked, SPACE, "title", names=["learning_rate", "kl_coef"])
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
        Importance("x", 0.0, float("nan")),
    ]
    sweep_plots.plot_importances("a.png", found, "title")
    axes = shown[0].axes[0]
    bars = axes.patches[:3]
    assert [bar.get_width() for bar in bars] == [0.5, 0.1, 0.0]
    assert len({bar.get_facecolor() for bar in bars}) == 2
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
    sweep_plots.plot_parallel(tmp_path / "a.png", ranked_points(SPACE, 2), SPACE, "CartPole-v1, ppo")
    assert imread(tmp_path / "a.png").shape[:2] == (660, 1230)
    with pytest.raises(ShoalError, match=r"a\.png cannot be written: No such file or directory\.$"):
        sweep_plots.plot_importances(tmp_path / "missing" / "a.png", [], "title")
