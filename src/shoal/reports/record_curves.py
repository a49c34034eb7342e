"""The evaluations of runs and sweeps that a report draws: all seeds of a run, or the best of several settings."""

from collections.abc import Iterable, Mapping

import numpy as np

from shoal.records.scores import rank_settings
from shoal.reports.learning_curves import MAX_SETTINGS, Evaluations, by_setting
from shoal.reports.run_record import RunRecord, scores_by_label
from shoal.reports.sweep_record import SweepRecord


def evaluations_of(record: RunRecord | SweepRecord, name: str = "") -> list[Evaluations]:
    """Read the evaluations that a record is drawn by: of all seeds, or of the best settings, the best first.

    The settings of a sweep that were trained again on new seeds are drawn with these alone.

    Args:
      name: of the record, beside others; then of several settings the best one alone is read. "" for a record alone.
    """
    labels = ranking(record)[: 1 if name else MAX_SETTINGS]
    runs = [record] if isinstance(record, RunRecord) else record.confirmation or record.runs
    found = [x for run in runs for x in _settings_of(run, set(labels)) if len(x.steps)]
    if isinstance(record, SweepRecord) and not found:
        found = [x for run in record.runs for x in _settings_of(run, set(labels)) if len(x.steps)]
    merged = _merged(found)
    ordered = [merged[label] for label in labels if label in merged]
    return [x._replace(name=": ".join(part for part in (name, x.name) if part)) for x in ordered]


def ranking(record: RunRecord | SweepRecord) -> list[str]:
    """Return the labels of all settings, the best first; of a run without several of them one that is empty."""
    summary = record.summary or {}
    runs = [record] if isinstance(record, RunRecord) else record.runs
    if isinstance(record, RunRecord) and not record.config.get("variants"):
        return [""]
    listed = [x["label"] for part in ("confirmed", "members") for x in summary.get(part, ())]
    return list(dict.fromkeys([*listed, *rank_settings(scores_by_label(runs))]))


def _settings_of(run: RunRecord, labels: set[str]) -> list[Evaluations]:
    """Return the evaluations of some settings of a run."""
    if not any(member.label in labels for member in run.members):
        return []
    steps, values = run.evaluations()
    failed = np.flatnonzero(run.scores().failed).tolist()
    found = by_setting(run.members, steps, values, failed, is_pbt=run.kind == "pbt")
    return [x for label, x in found.items() if label in labels]


def _merged(found: Iterable[Evaluations]) -> Mapping[str, Evaluations]:
    """Return the evaluations by setting; those of several runs are joined where they are at the same steps."""
    merged: dict[str, Evaluations] = {}
    for x in found:
        before = merged.get(x.name)
        if before is None:
            merged[x.name] = x
        elif np.array_equal(before.steps, x.steps):
            count = len(before.members)
            merged[x.name] = before._replace(
                values=np.concatenate([before.values, x.values], axis=1),
                members=before.members + x.members,
                failed=before.failed + tuple(k + count for k in x.failed),
            )
    return merged
