"""Draws the learning curves of several runs as one picture.

    python examples/learning_curves.py curves.png runs/CartPole-v1 runs/Pendulum-v1 ...
    python examples/learning_curves.py rates.png runs/CartPole-v1-lr1e-4 runs/CartPole-v1-lr1e-3 --log-steps

One panel for each environment: the interquartile mean of the evaluations over the seeds, its 95% bootstrap interval,
and each seed. Runs of one environment share its panel, with a legend of their names or of the settings in which they
differ from the preset. Everything is read from the runs' `metrics.jsonl` and `summary.json`.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from shoal.ops import scores

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS, COLUMNS = ("#1f6fb4", "#c8553d", "#4f8a3c", "#8a5fb0", "#b8860b", "#3c8c8c"), 3


def curve_of(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Environment steps [points] and mean returns [points, seeds] of a run's evaluations."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    found = {
        (line["step"], line["seed"]): line["return_mean"] for line in lines if line["kind"] == "evaluation"
    }
    steps = sorted({step for step, _ in found})
    seeds = sorted({seed for _, seed in found})
    return np.array(steps), np.array([[found[step, seed] for seed in seeds] for step in steps], np.float64)


def label_of(run: Path, summary: dict[str, Any]) -> str:
    """A run's name, or the settings that differ from its preset, or its directory's name."""
    settings = ", ".join(f"{name} {value}" for name, value in summary["settings"].items())
    return summary["name"] or settings or run.name


def draw(axes: Any, run: Path, colour: str, label: str) -> None:
    """One curve; without a label of its own, the parts of the picture are labelled."""
    steps, returns = curve_of(run)
    low, high = np.transpose([scores.stratified_bootstrap_interval(row, scores.iqm) for row in returns])
    centre = [scores.iqm(row) for row in returns]
    axes.plot(steps, centre, color=colour, linewidth=1.8, label=label or "interquartile mean of the seeds")
    band = axes.fill_between(steps, low, high, color=colour, alpha=0.25, linewidth=0)
    seeds = axes.plot(steps, returns, color=colour, alpha=0.3, linewidth=0.6)
    if not label:
        band.set_label("its 95% interval")
        seeds[0].set_label("one seed")


def style(axes: Any, title: str, *, log_steps: bool) -> None:
    """Give a panel its title and its axes."""
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    lines = [line.get_xdata() for line in axes.get_lines()]
    first = (
        min(line[1] for line in lines) if log_steps else 0
    )  # the evaluation before training has no logarithm
    axes.set_xscale("log" if log_steps else "linear")
    axes.set_xlim(first, max(line[-1] for line in lines))
    if not log_steps:
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
    axes.xaxis.set_major_formatter(
        lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0"
    )
    axes.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def main() -> None:
    """Writes the picture of the runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", help="the file that is written")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument(
        "--log-steps", action="store_true", help="a logarithmic axis, for what is learned early"
    )
    arguments = parser.parse_args()
    panels: dict[str, list[tuple[Path, dict]]] = {}
    for run in arguments.runs:
        summary = json.loads((run / "summary.json").read_text())
        panels.setdefault(summary["environment"], []).append((run, summary))
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (3.3 * columns, 2.5 * rows) if len(panels) > 1 else (6, 3.6)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes, (environment, runs) in zip(grid.flat, panels.items(), strict=False):
        for number, (run, summary) in enumerate(runs):
            label = label_of(run, summary) if len(runs) > 1 else ""
            draw(axes, run, COLOURS[number % len(COLOURS)], label)
        style(axes, environment, log_steps=arguments.log_steps)
        if len(runs) > 1:
            axes.legend(frameon=False, fontsize=8)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    alone = [axes for axes, runs in zip(grid.flat, panels.values(), strict=False) if len(runs) == 1]
    if alone:  # what the lines are, in the empty panel at the end if there is one
        place = grid.flat[-1] if len(panels) < grid.size else alone[-1]
        place.legend(
            *alone[0].get_legend_handles_labels(),
            loc="center" if place not in alone else "best",
            frameon=False,
            fontsize=9,
        )
    figure.supxlabel("environment steps of each seed", fontsize=9)
    figure.supylabel("return of an evaluation episode", fontsize=9)
    figure.savefig(arguments.picture, dpi=130)


if __name__ == "__main__":
    main()
