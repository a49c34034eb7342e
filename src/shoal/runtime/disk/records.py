"""The record of a checkpoint: what only the host knows of a run in progress, as JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.ops import scores
from shoal.runtime.disk.json_files import read_number
from shoal.runtime.disk.metrics_file import Mark
from shoal.runtime.trainer import History, Numbers, Seconds


def to_record(
    history: History, mark: Mark, identity: Mapping[str, Any], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a run.

    Args:
      history: of the run.
      mark: the end of the rows of `metrics.jsonl`.
      identity: the settings that a resumed run cannot change.
      machine: on what exactness depends beside them.
    """
    updates, evaluation = history.updates, None
    if history.evaluated == updates:
        evaluation = {name: x.tolist() for name, x in history.evaluations[-1][1].items()}
    return {
        "updates": updates,
        "logged": history.logged,
        "logged_seconds": history.logged_seconds,
        "seconds": history.seconds._asdict(),
        "metrics": mark._asdict(),
        "evaluation": evaluation,
        "iqm": None if evaluation is None else iqm_of(history.evaluations[-1][1]),
        "identity": identity,
        "machine": machine,
    }


def iqm_of(metrics: Numbers) -> float:
    """Return the interquartile mean of an evaluation's scores over seeds; minus infinity where one is not finite."""
    values = np.asarray(metrics["score"], np.float64)
    return float(scores.iqm(values)) if np.isfinite(values).all() else -math.inf


def mark_of(record: Mapping[str, Any]) -> Mark:
    """Return the end of the rows of `metrics.jsonl` that a record holds."""
    return Mark(**record["metrics"])


def to_history(
    record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], frozen: Sequence[int] = ()
) -> History:
    """Make the history of a run again.

    Args:
      record: of a checkpoint.
      rows: of `metrics.jsonl`, up to the mark of the record.
      frozen: members that are trained no further.
    """
    return History(
        updates=record["updates"],
        logged=record["logged"],
        logged_seconds=record["logged_seconds"],
        evaluations=evaluations_of(rows),
        seconds=Seconds(**record["seconds"]),
        frozen=list(frozen),
    )


def evaluations_of(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, Numbers]]:
    """Return (updates, metrics) of each evaluation in the rows of `metrics.jsonl`; a metric has one number per seed."""
    grouped: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "evaluation":
            grouped.setdefault(row["updates"], []).append(row)
    names = {"kind", "step", "updates", "seed"}
    return [
        (
            updates,
            {
                name: np.asarray([read_number(row[name]) for row in group], np.float32)
                for name in group[0]
                if name not in names
            },
        )
        for updates, group in sorted(grouped.items())
    ]
