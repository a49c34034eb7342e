"""The record of a run: what its directory holds, finished or not."""

import contextlib
import dataclasses
import datetime
import functools
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.base.files import report_os_errors
from shoal.records import scores
from shoal.records.checkpoint_record import TIMES
from shoal.records.directory import CONFIG, PROGRESS, SUMMARY, RunDirectory, restore_scores
from shoal.records.history import with_last_scores
from shoal.records.json_files import read_json, read_number, report_wrong_types
from shoal.records.lock import is_held
from shoal.records.members import Members, members_of_config
from shoal.records.metrics_file import METRICS, row_at

RunState = Literal["training", "interrupted", "finished", "failed"]
RETURN = "return_mean"
FIRST = ("run", "kind", "step", "updates", "time", "seed", "label")  # columns of metrics before all others


class MemberScores(NamedTuple):
    """The scores of the members of a run, each [members].

    Attributes:
      values: minus infinity of a member that failed; NaN where there is none.
      failed: whether a member was not trained to the end, since a number was not finite.
    """

    values: np.ndarray
    failed: np.ndarray


class Score(NamedTuple):
    """The score of a run, or of its best setting.

    Attributes:
      iqm: the interquartile mean over seeds.
      interval: its 95% bootstrap interval; None where there are too few seeds.
      label: of the best setting, where there are several.
      failed: the number of its seeds that failed, each of which counts as minus infinity, or of several settings as the
        worst score of all.
    """

    iqm: float
    interval: tuple[float, float] | None = None
    label: str = ""
    failed: int = 0


@dataclasses.dataclass(frozen=True)
class Described:
    """What runs and sweeps have alike: a directory, and the names that their settings have for it; a base class."""

    path: Path

    @property
    def _settings(self) -> Mapping[str, Any]:
        """All settings, in the form of `config.json`."""
        raise NotImplementedError

    @property
    def environment(self) -> str:
        """The name of the environment."""
        return str(self._settings["environment"]["name"])

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self._settings["algorithm"]["name"])

    @property
    def name(self) -> str:
        """The name that the user gave; "" for none."""
        return str(self._settings["run"].get("name") or "")

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the user gave."""
        return tuple(self._settings["run"].get("tag") or ())

    @property
    def note(self) -> str:
        """The note that the user gave; "" for none."""
        return str(self._settings["run"].get("note") or "")

    @functools.cached_property
    def bytes(self) -> int:
        """The size of all files of the directory."""
        return directory_bytes(self.path)


@dataclasses.dataclass(frozen=True)
class RunRecord(Described):
    """A run on disk, finished or not.

    Attributes:
      path: its directory.
      config: the content of `config.json`.
      summary: the content of `summary.json`; None where the run has not finished.
      progress: the content of `progress.json`; None where there is none, as in a finished run.
      members: who member k is, by the order of all arrays of the run.
    """

    config: Mapping[str, Any]
    summary: Mapping[str, Any] | None
    progress: Mapping[str, Any] | None
    members: Members

    @property
    def kind(self) -> Literal["run", "pbt"]:
        """Whether the members exchange their settings, "pbt"."""
        return "pbt" if self._tuned else "run"

    @property
    def num_members(self) -> int:
        """The number of members."""
        return len(self.members)

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings that differ from those of the preset, or of the algorithm where there is none; those that
        population-based training changes are left out.
        """
        found = (self.summary or self.config).get("settings") or {}
        return {name: value for name, value in found.items() if name not in self._tuned}

    @functools.cached_property
    def state(self) -> RunState:
        """Whether a process trains the run ("training"), or how it ended.

        A run is "interrupted" that can be resumed, and "failed" where a number of every member was not finite.
        """
        if is_held(self.path):
            return "training"
        if not self.has_ended:
            return "interrupted"
        return "failed" if self._failed_members().all() else "finished"

    @functools.cached_property
    def steps(self) -> int:
        """The environment steps that each member has made."""
        # Of a run that was killed the rows go on behind what was last written about it.
        made = [x["steps_per_seed"] for x in (self.summary, self.progress) if x is not None]
        return max(map(int, made if self.has_ended else [*made, self._last_step]))

    @functools.cached_property
    def date(self) -> datetime.datetime:
        """When the run started, in UTC; of runs that did not write it, when their settings were written."""
        if started := (self.summary or {}).get("started_time"):
            return datetime.datetime.fromisoformat(started)
        row = row_at(self.path, 0)
        with report_os_errors(f"{self.path / CONFIG} cannot be read"):
            seconds = row.get("time") or (self.path / CONFIG).stat().st_mtime
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)

    def rows(self, kind: str = "") -> list[dict[str, Any]]:
        """Read the rows of `metrics.jsonl`, [] where there are none; an incomplete last line is ignored.

        Args:
          kind: of the rows that are read, "train", "evaluation" or "exchange"; all where it is empty.
        Raises:
          ShoalError: the file is damaged before its last line, or cannot be read.
        """
        return RunDirectory(self.path).load_metrics(kind) if (self.path / METRICS).exists() else []

    def evaluations(self, metric: str = RETURN) -> tuple[np.ndarray, np.ndarray]:
        """Read a metric of all evaluations during training.

        Returns:
          environment steps of each member, [P], ascending, and values, [P, members], NaN where there is none.
        Raises:
          ShoalError: the evaluations have no such metric, and the sentence has the nearest; or the file is damaged.
        """
        places = {(member.label, member.seed): k for k, member in enumerate(self.members)}
        table: dict[int, np.ndarray] = {}
        rows = self.rows("evaluation")
        with report_wrong_types(str(self.path / METRICS)):
            names = {name for row in rows for name in row} - {*FIRST, *TIMES}
            if rows and metric not in names:
                listing = f"shoal.metrics({str(self.path)!r})"
                hint = nearest(metric, names) or f"; {alternatives(metric, names, listing, 'it has')}"
                raise ShoalError(f"the evaluations of run {str(self.path)!r} have no metric {metric!r}{hint}")
            for row in rows:
                values = table.setdefault(row["step"], np.full(len(places), np.nan))
                values[places[row.get("label", ""), row["seed"]]] = read_number(row.get(metric))
            if table and max(table) == rows[-1]["step"]:  # which may be written in part only
                written = sum(row["step"] == rows[-1]["step"] for row in rows[-len(places) :])
                table = table if written == len(places) else {x: table[x] for x in table if x < max(table)}
        steps = sorted(table)
        values = np.stack([table[step] for step in steps]) if steps else np.empty((0, len(places)))
        return np.asarray(steps, np.int64), values

    def scores(self) -> MemberScores:
        """Return the score of each member: of its best policy, evaluated again; where there is no such evaluation, of
        its last policy; and of a run that has not finished, of its last evaluation.

        Raises:
          ShoalError: a file is damaged.
        """
        values, failed = self._final_returns(), self._failed_members()
        if values is None:
            table = self._returns[1]
            if self.config.get("halving"):  # members that were stopped have their last numbers
                table = with_last_scores(table, range(len(self.members)))
            elif len(table):
                failed |= np.isnan(table[-1])
            values = table[-1] if len(table) else np.full(len(self.members), np.nan)
        return MemberScores(np.where(failed, -np.inf, values), failed)

    @functools.cached_property
    def score(self) -> Score | None:
        """The mean return of the run over seeds, or that of its best setting; None where there is none."""
        found = self._score_so_far() if self._result is None else self._final_score(self._result)
        if found is None or math.isnan(found.iqm):
            return None
        # Members that copied each other are no sample of runs.
        return found._replace(interval=None) if self.kind == "pbt" else found

    @property
    def _settings(self) -> Mapping[str, Any]:
        return self.config

    @property
    def _tuned(self) -> set[str]:
        """The settings that population-based training changes."""
        return {x["name"] for x in self.config.get("evolution", {}).get("tuned", ())}

    @functools.cached_property
    def _returns(self) -> tuple[np.ndarray, np.ndarray]:
        return self.evaluations()

    @functools.cached_property
    def has_ended(self) -> bool:
        """Whether the summary is of all that was trained: a run that is being extended has the one of before."""
        if self.summary is None or self.progress is not None:
            return False
        run, made = self.config["run"], int(self.summary["steps_per_seed"])
        update = run.get("num_envs", 1) * run.get("num_steps", 1)
        is_complete = made >= run.get("total_steps", 0) // update * update
        has_stopped = "stopped" in self.summary or bool(self._failed_members().all())
        return (is_complete or has_stopped) and self._last_step <= made

    @functools.cached_property
    def _last_step(self) -> int:
        row = row_at(self.path, -1)
        return int(row["step"]) if row else 0

    @property
    def _result(self) -> Mapping[str, Any] | None:
        """The summary, if it is of all that was trained."""
        return self.summary if self.has_ended else None

    def _final_returns(self) -> np.ndarray | None:
        """Return the return of each member's policy at the end of the run, or None."""
        part = self._result and (self._result["absolute"] or self._result["final"])
        with report_wrong_types(str(self.path / SUMMARY)):
            return np.asarray([read_number(x) for x in part["returns"]], np.float64) if part else None

    def _failed_members(self) -> np.ndarray:
        """Report of each member whether a number of it was not finite, as far as the files say, [members]."""
        # A run that is made longer has both, and the summary of before.
        last = self.progress or self.summary
        failed = {(x.get("label", ""), x["seed"]) for x in (last or {}).get("failed", ())}
        return np.asarray([(member.label, member.seed) in failed for member in self.members], bool)

    def _final_score(self, summary: Mapping[str, Any]) -> Score | None:
        """Return the score that a summary has."""
        entry, label = summary, ""
        if self.config.get("variants"):  # sorted, the best first
            entry = summary["members"][0]
            label = entry["label"]
        part = entry["absolute"] or entry["final"]
        failed = self._failed_members()
        if not part or failed.all():
            return None
        return score_of(part, label, len(entry.get("failed", ())) if label else int(failed.sum()))

    def _score_so_far(self) -> Score | None:
        """Compute the score of the last evaluation of a run that has not finished."""
        values, failed = self.scores()
        if not len(self._returns[0]) or failed.all():
            return None
        if not self.config.get("variants"):
            # With an interval already, which takes a bootstrap.
            last = (self.progress or {}).get("last_evaluation")
            if last and last["step"] == self._returns[0][-1]:
                return score_of(last, failed=int(failed.sum()))
            return Score(float(scores.iqm(values)), scores.score_interval(values), failed=int(failed.sum()))
        label, best = next(iter(scores.rank_settings(scores_by_label([self])).items()))
        return Score(best.iqm, scores.score_interval(np.asarray(best.scores)), label, best.failures)


def read_run(path: Path) -> RunRecord:
    """Read the record of a directory that holds a run.

    Raises:
      ShoalError: a file is missing or damaged.
    """
    config = read_json(path / CONFIG)
    with report_wrong_types(str(path / CONFIG)):
        members = members_of_config(config)
        summary, progress = (
            found and restore_scores(found) for found in map(read_if, (path / SUMMARY, path / PROGRESS))
        )
        record = RunRecord(path, config, summary, progress, members)
        # What the files lack is said here, and not wherever it is asked for first.
        _ = record.kind, record.environment, record.algorithm, record.name, record.tags, record.note
        return record


def scores_by_label(runs: Iterable[RunRecord]) -> dict[str, list[float]]:
    """Return the scores of the seeds of each setting so far, NaN for one that failed."""
    found: dict[str, list[float]] = {}
    for run in runs:
        values, failed = run.scores()
        for member, value in zip(run.members, np.where(failed, np.nan, values).tolist(), strict=True):
            found.setdefault(member.label, []).append(value)
    return found


def directory_bytes(path: Path | str) -> int:
    """Return the size of all files in a directory and below it; those that vanish meanwhile are not counted."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                is_directory = entry.is_dir(follow_symlinks=False)
                total += (
                    directory_bytes(entry.path) if is_directory else entry.stat(follow_symlinks=False).st_size
                )
    return total


def read_if(path: Path) -> dict[str, Any] | None:
    """Read a JSON file; None where there is none, or where it was removed meanwhile."""
    try:
        return read_json(path) if path.exists() else None
    except ShoalError:
        if path.exists():
            raise
        return None


def score_of(part: Mapping[str, Any], label: str = "", failed: int = 0) -> Score:
    """Read an entry of a summary with an interquartile mean and an interval."""
    interval, seeds = part["interval"], part.get("returns") or part.get("seeds") or ()
    # In a file null is an end that is not finite.
    has_interval = interval is not None and None not in interval and len(seeds) >= scores.MIN_SEEDS
    ends = (float(interval[0]), float(interval[1])) if has_interval else None
    return Score(read_number(part["iqm"]), ends, label, failed)
