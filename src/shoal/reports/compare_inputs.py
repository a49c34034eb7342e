"""The scores of seeds and the curves that `shoal compare` reads, and the conditions for comparing two runs."""

import dataclasses
import math
import numbers
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.records import curves
from shoal.records.directory import CONFIG, SUMMARY
from shoal.records.json_files import read_number, report_wrong_types, to_jsonable
from shoal.records.members import ENVIRONMENT, places_by_label
from shoal.records.run_config import names_environment
from shoal.records.search_files import SWEEP
from shoal.reports.records import read
from shoal.reports.run_record import RETURN, RunRecord
from shoal.reports.sweep_record import SweepRecord, read_sweep

ABSOLUTE, FINAL = "absolute", "final"  # scores of a run besides the metrics of its evaluations
# Settings of a run that decide what its scores are of; the parameters of the evaluated environment do too.
EVALUATION_SETTINGS = ("score", "eval_mode", "eval_max_steps", "eval_consecutive", "eval_metrics")
MAX_DIFFERENCES = 3  # that one sentence lists


class ScoreBounds(NamedTuple):
    """The scores of an environment that normalisation makes 0 and 1."""

    low: float
    high: float

    def normalise(self, scores: np.ndarray) -> np.ndarray:
        """Scale scores so that the bounds become 0 and 1."""
        return (scores - self.low) / (self.high - self.low)

    def restore(self, score: float) -> float:
        """Return the score that `normalise` makes this."""
        return self.low + score * (self.high - self.low)


class DeclaredScale(NamedTuple):
    """What an environment declares of its scores: bounds, which are of these defaults of its parameters alone."""

    bounds: Sequence[float]
    defaults: Mapping[str, object]


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """The seeds of one setting of one run, or of the confirmation of a sweep.

    Attributes:
      path: of the run or the sweep, as it was named.
      origin: the directory of the run, and the places of the seeds among its members.
      scores: of each seed, [seeds]; minus infinity for one that failed.
      steps: of the evaluations during training, [P], ascending.
      curves: their values, [P, seeds]; NaN where there is none, and minus infinity after the end of a seed that failed.
      trained: the environment steps that each seed has made, or after which halving stopped it.
      evaluation: the settings that decide what the scores are of, by name.
      caveat: why its seeds tell nothing of how another such run would do, so that it has no interval; "" if they do.
      notes: sentences that qualify its scores.
    """

    path: str
    origin: tuple[Path, tuple[int, ...]]
    environment: str
    algorithm: str
    seeds: tuple[int, ...]
    scores: np.ndarray
    failed: np.ndarray
    steps: np.ndarray
    curves: np.ndarray
    trained: int
    evaluation: Mapping[str, object]
    caveat: str = ""
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Source:
    """Seeds whose scores are yet to be read.

    Attributes:
      places: of the seeds among the members of the run.
      caveat, note: as of an `ComparedRun`.
    """

    path: str
    run: RunRecord
    places: np.ndarray
    caveat: str = ""
    note: str = ""


def read_source(path: str) -> Source:
    """Find the seeds that a run or a sweep is compared by.

    Args:
      path: of a run or a sweep; PATH:LABEL is one setting of a run that trained several.
    Raises:
      ShoalError: there is no such run or label, or it cannot enter a comparison, and why.
    """
    directory, label = split_label(path)
    record = read(directory)
    if isinstance(record, SweepRecord):
        return _source_of_sweep(path, record, label)
    labels = list(dict.fromkeys(member.label for member in record.members))
    if label and label not in labels:
        hint = (
            nearest(label, labels)
            or f"; {alternatives(label, labels, f'shoal eval {shlex.quote(directory)}', 'it has')}"
        )
        raise ShoalError(f"run {directory!r} has no setting {label!r}{hint if any(labels) else ''}")
    if not label and len(labels) > 1:
        raise ShoalError(
            f"run {directory!r} trains {len(labels)} settings, and the seeds of one are compared; name one, such as "
            f"{shlex.quote(f'{directory}:{labels[0]}')}"
        )
    label = label or labels[0]
    caveat = _why_chosen(record, label)
    if record.config.get("evolution"):
        caveat = "the members of population-based training copy each other, so that they are one run and not several"
    return Source(path, record, _places(record, label), caveat)


def split_label(path: str) -> tuple[str, str]:
    """Split PATH:LABEL at the first colon after the name of a run or sweep; both names may have colons."""
    ends = [k for k, letter in enumerate(path) if letter == ":"]
    # A path that exists has no label, whatever colons it has.
    for end in () if os.path.exists(path) else ends:
        if any(os.path.isfile(os.path.join(path[:end], name)) for name in (CONFIG, SWEEP)):
            return path[:end], path[end + 1 :]
    return path, ""


def _why_chosen(run: RunRecord, label: str) -> str:
    """Return the caveat of the best setting of the sweep to which a run belongs; "" for any other."""
    path = run.path.resolve()
    for directory in path.parents:
        if (directory / SWEEP).is_file():
            with report_wrong_types(str(directory / SUMMARY)):
                sweep = read_sweep(directory)
                best = (sweep.summary or {}).get("best") or {"run": ""}
                is_best = directory / best["run"] == path and label in ("", best["label"])
            return _unconfirmed(sweep, label) if is_best else ""
    return ""


def _unconfirmed(sweep: SweepRecord, label: str) -> str:
    others = f"name {sweep.path}" if sweep.confirmation else "--confirm-seeds trains it on new ones"
    return f"{label or 'its setting'} was chosen by the scores of these very seeds; {others}"


def _source_of_sweep(path: str, sweep: SweepRecord, label: str) -> Source:
    """Return the seeds of a sweep's best setting: those of its confirmation, or those that chose it."""
    best = (sweep.summary or {}).get("best") or {}
    if not label and not best:
        raise ShoalError(
            f"{sweep.kind} {path!r} has no best setting, since it has not ended or all its seeds failed; "
            "name the run of a setting instead"
        )
    with report_wrong_types(str(sweep.path / SUMMARY)):
        is_best = label in ("", best.get("label"))
        label = label or best["label"]
    runs = [(run, True) for run in sweep.confirmation] + [(run, False) for run in sweep.runs]
    for run, is_confirmed in runs:
        places = _places(run, label)
        if places.size:
            note = f"{path} enters by {label}" + ", trained again on new seeds" * is_confirmed
            return Source(
                path, run, places, _unconfirmed(sweep, label) if is_best and not is_confirmed else "", note
            )
    known = list(dict.fromkeys(member.label for run, _ in runs for member in run.members))
    raise ShoalError(f"{sweep.kind} {path!r} has no setting {label!r}{nearest(label, known) or '.'}")


def _places(run: RunRecord, label: str) -> np.ndarray:
    return np.array(places_by_label(run.members).get(label, ()), int)


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


def _summarised(source: Source, part: str) -> np.ndarray | None:
    """Return the scores `absolute` or `final` of a summary; None where there are none, as after halving's stop."""
    run = source.run
    with report_wrong_types(str(run.path / SUMMARY)):
        found = run.summary and run.summary.get(part) if run.has_ended else None
        if not found:
            return None
        values = np.array([read_number(x) for x in found["returns"]], np.float64)[source.places]
    return None if run.config.get("halving") and np.isnan(values).all() else values


def read_entry(source: Source, metric: str) -> ComparedRun:
    """Read the scores and the curves of a run's seeds.

    A setting that halving stopped ends with its last evaluation.

    Args:
      metric: "absolute", "final", or the name of a metric, of which the last evaluation counts.
    Raises:
      ShoalError: the run was never evaluated, or its evaluations have no such metric; or a file is damaged.
    """
    run, places = source.run, source.places
    steps, table = run.evaluations(RETURN if metric in (ABSOLUTE, FINAL) else metric)
    with report_wrong_types(str(run.path / SUMMARY)):
        failed = run.scores().failed[places]
    table, end = table[:, places], _stop(run, table[:, places], failed)
    has_stopped, steps, table = end < len(steps), steps[:end], table[:end]
    scores = _summarised(source, metric)
    if scores is None and not len(steps):
        raise ShoalError(
            f"run {source.path!r} has no evaluations{_why_none(run)}, and so no score {metric!r} to compare by"
        )
    scores = table[-1] if scores is None else scores
    failed |= np.isnan(scores)
    return ComparedRun(
        path=source.path,
        origin=(run.path.resolve(), tuple(places.tolist())),
        environment=_evaluated_in(run.config)["name"],
        algorithm=run.algorithm,
        seeds=tuple(run.members[k].seed for k in places),
        scores=np.where(failed, -np.inf, scores),
        failed=failed,
        steps=steps.astype(np.float64),
        curves=curves.with_failures(table, np.flatnonzero(failed)),
        trained=int(steps[-1]) if has_stopped else run.steps,
        evaluation=_evaluation_of(run.config),
        caveat=source.caveat,
        notes=_notes_of(source, int(steps[-1]) if has_stopped else None),
    )


def _stop(run: RunRecord, table: np.ndarray, failed: np.ndarray) -> int:
    """Return the number of evaluations, [P, seeds], until halving stopped a setting; all where it did not."""
    finite = np.flatnonzero(np.isfinite(table[:, ~failed]).any(axis=1))
    return int(finite[-1]) + 1 if run.config.get("halving") and finite.size else len(table)


def _why_none(run: RunRecord) -> str:
    has_never = run.config["run"].get("eval_every") == "never"
    return " (eval_every='never')" if has_never else "" if run.summary else " yet"


def _notes_of(source: Source, stop: int | None) -> tuple[str, ...]:
    """Return sentences about a source; `stop` are the steps after which halving stopped it."""
    run, note = source.run, ""
    if stop is not None:
        note = f"{source.path} was stopped by halving after {stop:,} steps, and counts by its last evaluation"
    elif not run.has_ended:
        note = f"{source.path} has not ended ({run.state}): its evaluations until step {run.steps:,} count"
    return tuple(x for x in (source.note, note) if x)


def _evaluation_of(config: Mapping[str, Any]) -> dict[str, object]:
    """Return what decides what the scores of a run are of: settings, and parameters of the evaluated environment."""
    with report_wrong_types("config.json"):
        settings = {name: config["run"][name] for name in EVALUATION_SETTINGS if name in config["run"]}
        parameters = _evaluated_in(config)["parameters"]
    return settings | {f"{ENVIRONMENT}{name}": value for name, value in parameters.items()}


def _evaluated_in(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the environment whose scores a run has: that of its evaluations, which another name may make."""
    trained, elsewhere = config["environment"], config.get("eval_env", {})
    if names_environment(elsewhere):
        return elsewhere
    return {"name": trained["name"], "parameters": {**trained["parameters"], **elsewhere}}


def evaluation_differences(entries: Sequence[ComparedRun]) -> list[str]:
    """Return a sentence for each entry that is evaluated differently from the first of its environment."""
    first: dict[str, ComparedRun] = {}
    found = []
    for entry in entries:
        reference = first.setdefault(entry.environment, entry)
        # What an older run did not record cannot differ.
        pairs = [(name, x, entry.evaluation.get(name, x)) for name, x in reference.evaluation.items()]
        differences = [f"{name}={x} and {y}" for name, x, y in pairs if x != y]
        if differences:
            more = len(differences) - MAX_DIFFERENCES
            listed = ", ".join(differences[:MAX_DIFFERENCES]) + (f" and {more} more" if more > 0 else "")
            found.append(f"{reference.path} and {entry.path} are not evaluated alike: {listed}")
    return found


def is_finite_number(value: object) -> TypeGuard[float]:
    """Report whether a value is a finite number, also of NumPy; True and text are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def check_bounds(bounds: Mapping[str, object], environments: Sequence[str]) -> dict[str, ScoreBounds]:
    """Read bounds of scores by environment: (low, high), such as the scores of random actions and of the best policy.

    Raises:
      ShoalError: an environment is not compared, or its bounds are not two finite numbers of which the first is lower.
    """
    read_bounds = {}
    for name, pair in bounds.items():
        if name not in environments:
            hint = nearest(name, environments) or f"; there are {', '.join(environments)}"
            raise ShoalError(f"bounds are given for {name!r}, of which there is no run{hint}")
        ends = tuple(pair) if isinstance(pair, Iterable) else ()
        if len(ends) != 2 or not all(map(is_finite_number, ends)) or ends[0] >= ends[1]:
            raise ShoalError(
                f"bounds of {name}: {pair!r} are not a low and a higher finite number, such as {name}=0:500"
            )
        read_bounds[name] = ScoreBounds(float(ends[0]), float(ends[1]))
    return read_bounds


def changed_parameters(entry: ComparedRun, defaults: Mapping[str, object]) -> list[str]:
    """Return the parameters of the evaluated environment that differ from their defaults, as `gravity=3.7`."""
    return [
        f"{name}={entry.evaluation[ENVIRONMENT + name]}"
        for name, default in defaults.items()
        if ENVIRONMENT + name in entry.evaluation
        and entry.evaluation[ENVIRONMENT + name] != to_jsonable(default, not_finite=str)
    ]
