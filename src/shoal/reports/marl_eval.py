"""Write the evaluations of compared runs in the JSON format of marl-eval.

    {environment: {task: {algorithm: {"seed_0": {"step_0": {"step_count": 0, "return": [x]}, ...,
                                                 "absolute_metrics": {"return": [x]}}}}}}

Every list has one number, the mean over the episodes of an evaluation. An environment is its own task, so that all
environments are tasks of one "shoal". All runs are read on a common grid of steps, since marl-eval counts steps by
their place. Source: Gorsane et al. 2022, "Towards a Standardised Performance Evaluation Protocol for Cooperative MARL";
the reader of id-marl-eval 0.0.4.
"""

from collections.abc import Sequence

import numpy as np

from shoal.base.errors import ShoalError
from shoal.records import curves
from shoal.reports.compare_inputs import ABSOLUTE, FINAL, ComparedRun
from shoal.reports.compare_rows import ComparedRow

SUITE = "shoal"  # the environment of the format, whose tasks are Shoal's environments
NO_NAMES = ","  # marl-eval refuses algorithms that have it in their names


def to_marl_eval(rows: Sequence[ComparedRow], metric: str) -> dict[str, object]:
    """Build the content of the file.

    Raises:
      ShoalError: marl-eval could not read it: a seed failed (it has no infinities), runs have different numbers of
        seeds, a run has no evaluations, or a name has a comma.
    """
    for row in rows:
        _check_row(row, len(rows[0].scores))
    name = "return" if metric in (ABSOLUTE, FINAL) else metric
    grids = [_shared_grid([row.entries[k] for row in rows]) for k in range(len(rows[0].entries))]
    count = min(map(len, grids))
    tasks = {
        entry.environment: {
            row.name: _algorithm(row.entries[place], _spread(grids[place], count), name) for row in rows
        }
        for place, entry in enumerate(rows[0].entries)
    }
    return {SUITE: tasks}


def _check_row(row: ComparedRow, seeds: int) -> None:
    if row.failures:
        raise ShoalError(f"of {row.name} {row.failures} failed, whose scores marl-eval's format cannot hold")
    if len(row.scores) != seeds:
        raise ShoalError(
            f"{row.name} has {len(row.scores)} seeds, and marl-eval needs as many as the first has, {seeds}"
        )
    if NO_NAMES in row.name:
        raise ShoalError(f"the name {row.name!r} has a comma, which marl-eval refuses; give NAME=RUN")
    for entry in row.entries:
        if not len(entry.steps):
            raise ShoalError(f"run {entry.path!r} has no evaluations during training, which marl-eval needs")


def _shared_grid(entries: Sequence[ComparedRun]) -> np.ndarray:
    """Return the points of the common grid at which all runs have an evaluation."""
    grid = curves.common_grid([entry.steps for entry in entries])
    tables = [curves.on_grid(grid, entry.steps, entry.curves) for entry in entries]
    return grid[np.all([np.isfinite(table).all(axis=1) for table in tables], axis=0)]


def _spread(grid: np.ndarray, count: int) -> np.ndarray:
    """Return so many points of a grid, the first and the last among them: all tasks must have equally many."""
    return grid[np.round(np.linspace(0, len(grid) - 1, count)).astype(int)]


def _algorithm(entry: ComparedRun, grid: np.ndarray, metric: str) -> dict[str, object]:
    """Return the seeds of one run, which all algorithms must name alike: they are counted from 0."""
    # A point of the grid may lie behind a run's end, and stands for its last step: see `curves.on_grid`.
    places = np.searchsorted(entry.steps, grid, side="right") - 1  # the last evaluation at or before a point
    table = entry.curves[places]
    return {
        f"seed_{column}": {
            f"step_{k}": {"step_count": int(min(step, entry.steps[-1])), metric: [float(table[k, column])]}
            for k, step in enumerate(grid)
        }
        | {"absolute_metrics": {metric: [float(score)]}}
        for column, score in enumerate(entry.scores)
    }
