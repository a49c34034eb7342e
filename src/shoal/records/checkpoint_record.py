"""The record of a checkpoint: the host's state of a run in progress, as JSON."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import short_repr
from shoal.records import curves, scores
from shoal.records.checkpoints import Checkpoints
from shoal.records.episodes_file import read_episodes
from shoal.records.history import OPTIMISER_STEPS, History, Numbers, Seconds
from shoal.records.json_files import read_number
from shoal.records.metrics_file import Mark, by_updates
from shoal.records.pbt_lineage import exchanges_of

# Of rows of evaluations, which are no metrics.
TIMES = ("time", "train_seconds", "evaluation_steps_per_second")

Choice = Callable[[Mapping[int, Mapping[str, Any]]], int]


def to_record(
    history: History, mark: Mark, identity: Mapping[str, object], machine: Mapping[str, object]
) -> dict[str, object]:
    """Return the record of a run; `identity` are the settings that a resumed run cannot change."""
    updates, evaluation = history.updates, None
    # Only a checkpoint at an evaluation has a score of its own policies.
    if history.evaluated == updates:
        evaluation = {name: x.tolist() for name, x in history.evaluations[-1][1].items()}
    return {
        "updates": updates,
        "logged": history.logged,
        "logged_seconds": history.logged_seconds,
        "seconds": history.seconds._asdict(),
        "metrics": mark._asdict(),
        "evaluation": evaluation,
        "iqm": None if evaluation is None else iqm_of(history),
        "identity": identity,
        "machine": machine,
    }


def iqm_of(history: History) -> float:
    """Return the interquartile mean over members of the scores of their current policies, at an evaluation.

    A frozen member has minus infinity. Where another score is not finite, so is the mean.
    """
    table = np.array([metrics["score"] for _, metrics in history.evaluations], np.float64)
    values = curves.with_failures(table, history.frozen)[-1]
    return -math.inf if np.isnan(values).any() else float(scores.iqm(values))


def best_steps(iqms: Mapping[int, float]) -> int:
    """Return the steps of the evaluation with the highest interquartile mean, the first of equal ones."""
    return max(iqms, key=lambda steps: (iqms[steps], -steps))


def mark_of(record: Mapping[str, Any]) -> Mark:
    """Return the end of the rows of `metrics.jsonl` that a record holds."""
    return Mark(**record["metrics"])


def to_history(
    record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], frozen: Sequence[int] = ()
) -> History:
    """Make the history of a run again, from a checkpoint's record and the rows of `metrics.jsonl` up to its mark."""
    return History(
        updates=record["updates"],
        logged=record["logged"],
        logged_seconds=record["logged_seconds"],
        evaluations=evaluations_of(rows),
        seconds=Seconds(**record["seconds"]),
        frozen=list(frozen),
        exchanges=exchanges_of(rows),
        optimiser_steps=_optimiser_steps(rows),
    )


def evaluations_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Numbers]]:
    """Return (updates, metrics) of each evaluation in the rows of `metrics.jsonl`; metrics have a number per member."""
    names = {"kind", "step", "updates", "evaluation", "seed", "label", *TIMES}
    return [
        (
            updates,
            {
                name: np.asarray([read_number(row[name]) for row in group], np.float32)
                for name in group[0]
                if name not in names
            },
        )
        for updates, group in by_updates(rows, "evaluation")
    ]


def _optimiser_steps(rows: Sequence[Mapping[str, Any]]) -> np.ndarray | float:
    """Return the optimiser steps of each member at the last log point; 0 where they are not counted."""
    logged = [row for row in rows if row["kind"] == "train"]
    last = [row for row in logged if row["updates"] == logged[-1]["updates"]]
    counts = [read_number(row.get(OPTIMISER_STEPS, 0.0)) for row in last]
    return np.asarray(counts, np.float64) if counts else 0.0


def choose_checkpoint(checkpoints: Checkpoints, which: int | str | Choice, name: str = "checkpoint") -> int:
    """Return the environment steps of a checkpoint.

    Args:
      which: the steps; "last", the newest; "best", that of the evaluation with the highest interquartile mean over
        seeds; or a function that is given all records of sound checkpoints by steps and returns the steps of one. A
        record has the `episodes` of its evaluation too, where they are kept.
      name: of the setting that says so, for errors.
    Raises:
      ShoalError: there is none.
    """
    if isinstance(which, str) and which.isdecimal() and len(which) < 20:  # int() refuses thousands of digits
        which = int(which)
    if isinstance(which, int) and not isinstance(which, bool):
        checkpoints.info(which)  # raises where there is none
        return which
    found = {steps: info for steps in checkpoints.steps() if not (info := checkpoints.info(steps)).problem}
    if not found:
        raise ShoalError(f"run directory {str(checkpoints.run_path)!r} holds no checkpoint that is sound.")
    if callable(which):
        episodes = dict(read_episodes(checkpoints.run_path))
        of = {k: x.record | {"episodes": episodes.get(x.record["updates"], {})} for k, x in found.items()}
        chosen = which(of)
        if chosen not in found:
            raise ShoalError(f"{name}={which!r} returns {chosen!r}, which is not one of {sorted(found)}.")
        return chosen
    if which == "last":
        return max(found)
    if which != "best":
        raise ShoalError(
            f"{name}={short_repr(which)} is neither a number of environment steps nor best or last."
        )
    iqms = {steps: float(x) for steps, info in found.items() if (x := info.record.get("iqm")) is not None}
    if not iqms:
        raise ShoalError(
            f"no checkpoint of run {str(checkpoints.run_path)!r} was written at an evaluation, so that none is the "
            f"best; name one of {', '.join(map(str, sorted(found)))}."
        )
    return best_steps(iqms)
