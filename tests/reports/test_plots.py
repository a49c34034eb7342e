"""Learning curves: the picture that is written, and the numbers that are drawn in it."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from scipy import stats

from shoal.base.errors import ShoalError
from shoal.reports import figures, plots

STEPS = np.arange(5) * 128_000
RETURNS = np.random.default_rng(0).normal(size=(5, 8)) + np.arange(5)[:, None] * 10


def drawn(steps, returns, **more):
    axes = Figure().add_subplot()
    plots._plot_curve(axes, np.asarray(steps), np.asarray(returns, float), **more)
    return axes


def line(axes, label):
    return next(line for line in axes.lines if line.get_label().startswith(label)).get_ydata()


def test_the_thick_line_is_the_interquartile_mean():
    axes = drawn(STEPS, RETURNS)
    np.testing.assert_allclose(
        line(axes, "interquartile mean of 8 seeds"), stats.trim_mean(RETURNS, 0.25, axis=1), rtol=1e-6
    )
    seeds = np.array([line.get_ydata() for line in axes.lines if len(line.get_ydata()) == 5])
    for seed in RETURNS.T:
        assert any(np.array_equal(seed, shown) for shown in seeds)
    (band,) = axes.collections
    edges = band.get_paths()[0].vertices[:, 1]
    assert RETURNS[0].min() <= edges.min() and edges.max() <= RETURNS[-1].max()
    assert edges.max() > line(axes, "interquartile")[-1]
    assert axes.get_xlabel() == "environment steps of each seed"
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == [
        "interquartile mean of 8 seeds",
        "95% interval",
        "one seed",
    ]


def test_points_without_returns_are_left_out():
    returns = RETURNS.copy()
    returns[1, 3] = np.nan
    returns[2] = np.nan
    curve = line(drawn(STEPS, returns), "interquartile")
    assert curve[1] == pytest.approx(stats.trim_mean(np.delete(RETURNS[1], 3), 0.25), rel=0.2)
    assert np.isnan(curve[2]) and np.isfinite(np.delete(curve, 2)).all()


def test_seeds_that_failed_end_and_are_the_worst():
    """Three of eight fail, at different points, so that the mean ends with the third; two of the others are equal."""
    returns = RETURNS.copy()
    returns[:, 1] = returns[:, 0]
    returns[2:, 3] = np.nan
    returns[3:, 6] = np.nan
    returns[4:, 7] = np.nan
    axes = drawn(STEPS, returns, failed=[3, 6, 7])
    expected = stats.trim_mean(np.where(np.isnan(returns), -1e9, returns), 0.25, axis=1)
    assert expected[4] < -1e6  # of three, two are cut
    expected[4] = np.nan
    np.testing.assert_allclose(line(axes, "interquartile mean of 8 seeds"), expected, rtol=1e-6)
    (marked,) = [x for x in axes.lines if x.get_label() == "failed: 3 of 8 seeds"]
    ends = [[128_000, returns[1, 3]], [256_000, returns[2, 6]], [384_000, returns[3, 7]]]
    np.testing.assert_allclose(marked.get_xydata(), ends)


def test_where_all_seeds_failed_there_is_no_mean():
    returns = np.where(STEPS[:, None] < 300_000, RETURNS[:, :3], np.nan)
    axes = drawn(STEPS, returns, failed=[0, 1, 2])
    labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert labels == ["failed: 3 of 3 seeds", "one seed"]
    axes = drawn(STEPS, returns[:, :1], failed=[0])
    np.testing.assert_allclose(line(axes, "one seed"), returns[:, 0], rtol=1e-6)


def test_one_seed_has_no_band():
    axes = drawn(STEPS, RETURNS[:, :1])
    np.testing.assert_allclose(line(axes, "one seed"), RETURNS[:, 0], rtol=1e-6)
    assert len(axes.lines) == 1 and not axes.collections


@pytest.mark.full
@pytest.mark.parametrize("points", [1, 2, 5])
@pytest.mark.parametrize("seeds", [1, 8])
def test_a_picture_is_written(tmp_path, points, seeds):
    path = tmp_path / "curve.png"
    plots.plot_learning_curve(path, STEPS[:points], RETURNS[:points, :seeds], "CartPole-v1, ppo")
    image = imread(path)
    assert image.shape[:2] == (630, 1050)
    assert any(
        to_hex(pixel) == figures.COLOUR for pixel in np.unique(image.reshape(-1, image.shape[-1]), axis=0)
    )


@pytest.mark.full
def test_episodes_of_a_trial_by_their_index(tmp_path, monkeypatch):
    shown = {}
    monkeypatch.setattr(figures, "save", lambda figure, path: shown.update(axes=figure.axes[0]))
    curves = {"memory of the trial": RETURNS, "cleared with each episode": RETURNS[:, :1] - 5}
    plots.plot_by_episode(tmp_path / "trial.png", curves, "held-out rulesets")
    monkeypatch.undo()
    axes = shown["axes"]
    middle = line(axes, "memory of the trial")
    np.testing.assert_allclose(middle, stats.trim_mean(RETURNS, 0.25, axis=1), rtol=1e-6)
    np.testing.assert_allclose(line(axes, "cleared"), RETURNS[:, 0] - 5, rtol=1e-6)
    np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [1, 2, 3, 4, 5])
    assert len(axes.collections) == 1  # one seed has no band
    plots.plot_by_episode(tmp_path / "trial.png", curves, "held-out rulesets")
    pixels = np.unique(imread(tmp_path / "trial.png").reshape(-1, 4), axis=0)
    assert {figures.COLOURS[0], figures.COLOURS[1]} <= {to_hex(pixel) for pixel in pixels}


def test_an_unwritable_path_is_one_sentence(tmp_path):
    with pytest.raises(ShoalError, match=r"curve\.png cannot be written: No such file or directory\.$"):
        plots.plot_learning_curve(tmp_path / "missing" / "curve.png", STEPS, RETURNS, "x")


@pytest.mark.full
def test_nothing_global_is_touched(tmp_path):
    code = f"""
import sys
from shoal.reports import plots
assert "matplotlib" not in sys.modules
plots.plot_learning_curve({str(tmp_path / "a.png")!r}, [0, 1], [[0.0], [1.0]], "x")
print("matplotlib.pyplot" in sys.modules)
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "False\n"


@pytest.mark.full
def test_ticks_are_short():
    ticks = [figures.format_steps(x, 0) for x in (0, 500, 25_000, 1_500_000, 2e9)]
    assert ticks == ["0", "500", "25k", "1.5M", "2B"]
