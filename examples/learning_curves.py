"""Draws the learning curves of several runs as one picture, a PNG, PDF or SVG.

    python examples/learning_curves.py curves.png runs/CartPole-v1 runs/Pendulum-v1 ...
    python examples/learning_curves.py rates.pdf runs/CartPole-v1-lr1e-4 runs/CartPole-v1-lr1e-3 --log-steps

One panel for each environment: the interquartile mean of the evaluations over the seeds, its 95% bootstrap interval
where there are five seeds or more, and each seed. Runs of one environment share its panel, with the settings in which
they differ. A run that has not finished, or a seed that failed, is drawn to its end, and a sentence says so.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.reports import figures, records
from shoal.reports.plots import iqm_and_interval
from shoal.reports.run_record import RunRecord

COLUMNS = 3


def read_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs that have evaluations; a sentence for each that has none, or does not reach its end with all seeds."""
    found = []
    for path in paths:
        run = records.read(path)
        if not isinstance(run, RunRecord):
            raise ShoalError(f"{path} is a {run.kind}; give a run of it, such as {path}/runs/000")
        failed, steps = int(run.scores().failed.sum()), run.evaluations()[0]
        if not len(steps):
            print(f"{path} is left out: it has no evaluation yet.")
            continue
        if not run.has_ended:
            print(f"{path} has not finished: its curve ends at {steps[-1]:,} steps.")
        if failed:
            print(f"{path}: {failed} of {run.num_members} seeds failed; their curves end before the others.")
        found.append(run)
    return found


def labels_of(runs: Sequence[RunRecord]) -> list[str]:
    """What differs between the runs of a panel: settings, else names, else directories."""
    settings = [dict(run.settings) for run in runs]
    names = dict.fromkeys(name for own in settings for name in own)
    differing = [name for name in names if any(own.get(name) != settings[0].get(name) for own in settings)]
    texts = [", ".join(f"{name} {own[name]}" for name in differing if name in own) for own in settings]
    for labels in ([text or "preset" for text in texts], [run.name for run in runs]):
        if len(set(labels)) == len(runs) and all(labels):
            return labels
    return [run.path.resolve().name for run in runs]


def draw(axes: Any, run: RunRecord, colour: str, label: str, *, log_steps: bool) -> None:
    """One curve; without a label of its own, the parts of the picture are labelled."""
    steps, returns = run.evaluations()
    if log_steps:  # the evaluation before training has no logarithm
        steps, returns = steps[steps > 0], returns[steps > 0]
    marker = "o" if len(steps) <= figures.FEW_POINTS else None
    centre, low, high = iqm_and_interval(returns)
    name = label or "interquartile mean of the seeds"
    axes.plot(steps, centre, color=colour, linewidth=1.8, marker=marker, markersize=4, label=name)
    seeds = axes.plot(steps, returns, color=colour, alpha=0.3, linewidth=0.6)
    if np.isfinite(low).any():
        axes.fill_between(
            steps, low, high, color=colour, alpha=0.25, linewidth=0, label="" if label else "95% interval"
        )
    if not label:
        seeds[0].set_label("one seed")


def style(axes: Any, title: str, *, log_steps: bool) -> None:
    """Give a panel its title and its axes."""
    figures.set_title(axes, title)
    figures.style(axes)
    axes.margins(x=0.02)
    if log_steps:
        figures.set_log_ticks(axes.xaxis, lambda x: figures.format_steps(x, 0))
    else:
        axes.locator_params(axis="x", nbins=4)
        axes.xaxis.set_major_formatter(figures.format_steps)
    axes.tick_params(labelsize=8)


def main() -> None:
    """Writes the picture of the runs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="the file that is written")
    parser.add_argument("runs", nargs="+", type=Path, help="run directories")
    parser.add_argument(
        "--log-steps", action="store_true", help="a logarithmic axis, for what is learned early"
    )
    arguments = parser.parse_args()
    try:
        found = read_runs(arguments.runs)
    except ShoalError as error:
        parser.error(str(error))
    panels: dict[str, list[RunRecord]] = {}
    for run in found:
        panels.setdefault(run.environment, []).append(run)
    if not panels:
        parser.error("no run has an evaluation")
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = figures.new_figure(*((3.3 * columns, 2.5 * rows + 0.3) if len(panels) > 1 else (6, 4)))
    entries: dict[str, Any] = {}
    for place, (environment, runs) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, place + 1)
        labels = labels_of(runs) if len(runs) > 1 else [""]
        for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
            colour = figures.PALETTE[number % len(figures.PALETTE)]
            draw(axes, run, colour, label, log_steps=arguments.log_steps)
        style(axes, environment, log_steps=arguments.log_steps)
        if place + columns >= len(panels):
            axes.set_xlabel("environment steps of each seed", fontsize=9)
        if place % columns == 0:
            axes.set_ylabel("return of an evaluation episode", fontsize=9)
        handles, texts = axes.get_legend_handles_labels()
        if len(runs) > 1 and len(panels) > 1:  # colours mean something else in each panel
            axes.legend(handles, map(figures.cut, texts), frameon=False, fontsize=7)
        else:
            entries |= dict(zip(texts, handles, strict=True))
    figures.add_legend(figure, [*entries.values()], [*entries])
    figures.save(figure, arguments.picture)


if __name__ == "__main__":
    main()
