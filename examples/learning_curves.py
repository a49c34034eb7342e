"""Draws the learning curves of several runs as one picture.

    python examples/learning_curves.py curves.png runs/CartPole-v1 runs/Pendulum-v1 ...

One panel a run: the interquartile mean of the evaluations over the seeds, its 95% bootstrap interval, and each
seed. Everything is read from the runs' `metrics.jsonl` and `summary.json`.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from shoal.ops import scores

matplotlib.use("Agg")
from matplotlib import pyplot

COLOUR, COLUMNS = "#1f6fb4", 3


def curve_of(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps [points] and mean returns [points, seeds] of a run's evaluations."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found = {
        (line["step"], line["seed"]): line["return_mean"] for line in lines if line["kind"] == "evaluation"
    }
    steps = sorted({step for step, _ in found})
    seeds = sorted({seed for _, seed in found})
    return np.array(steps), np.array([[found[step, seed] for seed in seeds] for step in steps], np.float64)


def draw(axes: Any, run: Path) -> None:
    """One panel."""
    summary = json.loads((run / "summary.json").read_text())
    steps, returns = curve_of(run)
    low, high = np.transpose([scores.stratified_bootstrap_interval(row, scores.iqm) for row in returns])
    centre = [scores.iqm(row) for row in returns]
    axes.plot(steps, centre, color=COLOUR, linewidth=1.8, label="interquartile mean of the seeds")
    axes.fill_between(steps, low, high, color=COLOUR, alpha=0.25, linewidth=0, label="its 95% interval")
    seeds = axes.plot(steps, returns, color=COLOUR, alpha=0.3, linewidth=0.6)
    seeds[0].set_label("one seed")
    axes.set_title(summary["environment"], loc="left", fontsize=10, fontweight="bold")
    best = summary["absolute"]["iqm"]  # null where a return was not finite
    axes.annotate(
        f"best policies, IQM: {'-' if best is None else format(best, '.3g')}",
        (0.97, 0.06),
        xycoords="axes fraction",
        ha="right",
        fontsize=9,
    )
    axes.set_xlim(0, steps[-1])
    axes.xaxis.set_major_formatter(
        lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0"
    )
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def main(picture: str, *runs: str) -> None:
    """Writes the picture of the runs."""
    rows = math.ceil(len(runs) / COLUMNS)
    figure, grid = pyplot.subplots(
        rows, COLUMNS, figsize=(3.3 * COLUMNS, 2.5 * rows), layout="constrained", squeeze=False
    )
    for axes, run in zip(grid.flat, runs, strict=False):
        draw(axes, Path(run))
    for axes in grid.flat[len(runs) :]:
        axes.axis("off")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    if len(runs) < grid.size:  # the empty panel at the end holds the legend
        grid.flat[-1].legend(handles, labels, loc="center", frameon=False, fontsize=9)
    figure.supxlabel("environment steps of each seed", fontsize=9)
    figure.supylabel("return of an evaluation episode", fontsize=9)
    figure.savefig(picture, dpi=130)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
