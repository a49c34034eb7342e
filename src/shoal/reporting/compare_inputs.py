"""The scores of seeds and the curves that `shoal compare` reads, and the conditions for comparing two runs."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.base.files import find_obstacle
from shoal.disk.json_files import read_number, report_wrong_types
from shoal.envs import registry
from shoal.reporting.records import read
from shoal.reporting.run_record import RETURN, RunRecord
from shoal.reporting.sweep_record import SweepRecord

ABSOLUTE, FINAL = "absolute", "final"  # scores of a run besides the metrics of its evaluations
# Settings of a run that decide what its scores are of; the parameters of the evaluated environment do too.
EVALUATION_SETTINGS = ("score", "eval_mode", "eval_max_steps", "eval_consecutive", "eval_metrics")
MAX_DIFFERENCES = 3  # that one sentence lists


@dataclasses.dataclass(frozen=True)
class Entry:
    """The seeds of one setting of one run, or of the confirmation of a sweep.

    Attributes:
      path: of the run or the sweep, as it was named.
      scores: of each seed, [seeds]; minus infinity for one that failed.
      steps: of the evaluations during training, [P], ascending.
      curves: their values, [P, seeds]; NaN where there is none, and minus infinity after the end of a seed that failed.
      trained: the environment steps that each seed has made.
      evaluation: the settings that decide what the scores are of, by name.
      caveat: why its seeds tell nothing of how another such run would do, so that it has no interval; "" if they do.
      notes: sentences that qualify its scores.
    """

    path: str
    environment: str
    algorithm: str
    seeds: tuple[int, ...]
    scores: np.ndarray
    failed: np.ndarray
    steps: np.ndarray
    curves: np.ndarray
    trained: int
    evaluation: Mapping[str, Any]
    caveat: str = ""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """Seeds whose scores are yet to be read.

    Attributes:
      places: of the seeds among the members of the run.
      caveat, note: as of an `Entry`.
    """

    path: str
    run: RunRecord
    places: np.ndarray
    caveat: str = ""
    note: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether the summary is of all that was trained."""
        return self.run.summary is not None and self.run.progress is None


def read_sources(paths: Iterable[str | Path]) -> list[Source]:
    """Find the seeds that runs and sweeps are compared by.

    Args:
      paths: of runs and sweeps; PATH:LABEL is one setting of a run that trained several.
    Raises:
      ShoalError: there is no such run or label, or it cannot enter a comparison, and why.
    """
    return [_source(str(path)) for path in paths]


def _source(path: str) -> Source:
    directory, label = _with_label(path)
    record = read(directory)
    if isinstance(record, SweepRecord):
        return _source_of_sweep(path, record, label)
    labels = list(dict.fromkeys(member.label for member in record.members))
    if label and label not in labels:
        hint = (
            nearest(label, labels) or f"; {alternatives(label, labels, f'shoal eval {directory}', 'it has')}"
        )
        raise ShoalError(f"run {directory!r} has no setting {label!r}{hint if any(labels) else ''}")
    if not label and len(labels) > 1:
        raise ShoalError(
            f"run {directory!r} trains {len(labels)} settings, and the seeds of one are compared; name one, such as "
            f"{directory}:{labels[0]}"
        )
    caveat = ""
    if record.config.get("evolution"):
        caveat = "the members of population-based training copy each other, so that they are one run and not several"
    return Source(path, record, _places(record, label or labels[0]), caveat)


def _with_label(path: str) -> tuple[str, str]:
    """Split PATH:LABEL; a directory's own name may have colons."""
    directory, separator, label = path.rpartition(":")
    if separator and not Path(path).expanduser().exists() and Path(directory).expanduser().is_dir():
        return directory, label
    return path, ""


def _source_of_sweep(path: str, sweep: SweepRecord, label: str) -> Source:
    """Return the seeds of a sweep's best setting: those of its confirmation, or those that chose it."""
    best = (sweep.summary or {}).get("best") or {}
    if not label and not best:
        raise ShoalError(
            f"{sweep.kind} {path!r} has no best setting, since it has not ended or all its seeds failed; "
            "name the run of a setting instead"
        )
    with report_wrong_types(str(sweep.path)):
        label = label or best["label"]
    runs = [(run, True) for run in sweep.confirmation] + [(run, False) for run in sweep.runs]
    for run, is_confirmed in runs:
        places = _places(run, label)
        if places.size:
            unconfirmed = (
                f"{label} was chosen by the scores of these very seeds; --confirm-seeds trains it on new ones"
            )
            note = f"{path} enters by {label}" + ", trained again on new seeds" * is_confirmed
            return Source(path, run, places, "" if is_confirmed else unconfirmed, note)
    known = list(dict.fromkeys(member.label for run, _ in runs for member in run.members))
    raise ShoalError(f"{sweep.kind} {path!r} has no setting {label!r}{nearest(label, known) or '.'}")


def _places(run: RunRecord, label: str) -> np.ndarray:
    return np.array([k for k, member in enumerate(run.members) if member.label == label], int)


def chosen_metric(sources: Sequence[Source], metric: str) -> tuple[str, list[str]]:
    """Return the metric that all runs have: `metric`, or "final" where that is "absolute" and one lacks it.

    Returns:
      the metric, and sentences about a change of it.
    """
    without = [x.path for x in sources if _summarised(x, ABSOLUTE) is None]
    if metric != ABSOLUTE or not without:
        return metric, []
    names = ", ".join(dict.fromkeys(without))
    verb = "have" if len(set(without)) > 1 else "has"
    return FINAL, [
        f"{names} {verb} no absolute scores, so that all are compared by those of the last policies"
    ]


def _summarised(source: Source, part: str) -> Mapping[str, Any] | None:
    """Return the entry `absolute` or `final` of a summary; None where there is none."""
    return source.run.summary and source.run.summary.get(part) if source.has_ended else None


def read_entry(source: Source, metric: str) -> Entry:
    """Read the scores and the curves of a run's seeds.

    Args:
      metric: "absolute", "final", or the name of a metric, of which the last evaluation counts.
    Raises:
      ShoalError: the run was never evaluated, or its evaluations have no such metric; or a file is damaged.
    """
    run, places = source.run, source.places
    steps, table = run.evaluations(RETURN if metric in (ABSOLUTE, FINAL) else metric)
    summarised = _summarised(source, metric)
    if summarised is not None:
        with report_wrong_types(str(run.path)):
            scores = np.array([read_number(x) for x in summarised["returns"]], np.float64)[places]
    elif len(steps):
        scores = table[-1, places]
    else:
        raise ShoalError(
            f"run {source.path!r} has no evaluations{_why_none(run)}, and so no score {metric!r} to compare by"
        )
    failed = run.scores(RETURN).failed[places] | np.isnan(scores)
    return Entry(
        path=source.path,
        environment=run.environment,
        algorithm=run.algorithm,
        seeds=tuple(run.members[k].seed for k in places),
        scores=np.where(failed, -np.inf, scores),
        failed=failed,
        steps=steps.astype(np.float64),
        curves=_with_failures(table[:, places], failed),
        trained=run.steps,
        evaluation=_evaluation_of(run.config),
        caveat=source.caveat,
        notes=_notes_of(source),
    )


def _why_none(run: RunRecord) -> str:
    has_never = run.config["run"].get("eval_every") == "never"
    return " (eval_every='never')" if has_never else "" if run.summary else " yet"


def _with_failures(curves: np.ndarray, failed: np.ndarray) -> np.ndarray:
    """Return curves [P, seeds] in which seeds that failed have minus infinity after their last number."""
    filled = np.array(curves)
    for column in np.flatnonzero(failed):
        finite = np.flatnonzero(np.isfinite(filled[:, column]))
        filled[finite[-1] + 1 if finite.size else 0 :, column] = -np.inf
    return filled


def _notes_of(source: Source) -> tuple[str, ...]:
    run = source.run
    unfinished = f"{source.path} has not ended ({run.state}): its evaluations until step {run.steps:,} count"
    return tuple(note for note in (source.note, "" if source.has_ended else unfinished) if note)


def _evaluation_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides what the scores of a run are of: settings, and parameters of the evaluated environment."""
    with report_wrong_types("config.json"):
        settings = {name: config["run"][name] for name in EVALUATION_SETTINGS if name in config["run"]}
        parameters = {**config["environment"]["parameters"], **config.get("eval_env", {})}
    return settings | {f"env.{name}": value for name, value in parameters.items()}


def check_evaluated_alike(entries: Sequence[Entry]) -> None:
    """Require that entries of one environment have equal settings of evaluation, as far as each is known.

    Raises:
      ShoalError: two differ, and in what.
    """
    first: dict[str, Entry] = {}
    for entry in entries:
        reference = first.setdefault(entry.environment, entry)
        pairs = [(name, x, entry.evaluation.get(name, x)) for name, x in reference.evaluation.items()]
        differences = [f"{name}={x} and {y}" for name, x, y in pairs if x != y]
        if differences:
            more = len(differences) - MAX_DIFFERENCES
            listed = ", ".join(differences[:MAX_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")
            raise ShoalError(
                f"{reference.path} and {entry.path} are not evaluated alike: {listed}; --anyway (anyway=True) compares "
                "them all the same"
            )


def check_bounds(bounds: Mapping[str, Any], environments: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Read bounds of scores by environment: (low, high), such as the scores of random actions and of the best policy.

    Raises:
      ShoalError: an environment is not compared, or its bounds are not two finite numbers of which the first is lower.
    """
    read_bounds = {}
    for name, pair in bounds.items():
        if name not in environments:
            hint = nearest(name, environments) or f"; there are {', '.join(environments)}"
            raise ShoalError(f"bounds are given for {name!r}, of which there is no run{hint}")
        try:
            low, high = map(float, pair)
        except (TypeError, ValueError):
            low = high = math.nan
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ShoalError(
                f"bounds of {name}: {pair!r} are not a low and a higher finite number, such as {name}=0:500"
            )
        read_bounds[name] = (low, high)
    return read_bounds


def declared_bounds(name: str) -> tuple[float, float] | None:
    """Return the bounds that an environment declares; None where it declares none, or cannot be imported here."""
    try:
        declared = registry.score_bounds_of(name)
    except ShoalError:
        return None
    return None if declared is None else check_bounds({name: declared}, [name])[name]


def check_new_file(name: str, path: Path) -> Path:
    """Require that a file does not exist and can be made.

    Raises:
      ShoalError: it exists, or cannot be made.
    """
    if path.exists():
        raise ShoalError(f"{name}={str(path)!r} exists already; give a name that is free")
    if obstacle := find_obstacle(path):
        raise ShoalError(f"{name}={str(path)!r} cannot be written: {obstacle}")
    return path
