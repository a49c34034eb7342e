"""The record of a sweep, or of a study of `shoal tune`: what its directory holds, finished or not."""

import dataclasses
import datetime
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from shoal.base.files import report_os_errors
from shoal.records.directory import CONFIG, SUMMARY
from shoal.records.json_files import read_json, report_wrong_types
from shoal.records.lock import is_held
from shoal.records.search_files import CONFIRMATION, SWEEP
from shoal.reports.run_record import Described, RunRecord, RunState, Score, read_if, read_run, score_of


@dataclasses.dataclass(frozen=True)
class SweepRecord(Described):
    """A sweep, or a study of `shoal tune`, on disk, finished or not.

    Attributes:
      path: its directory.
      content: the content of `sweep.json`.
      summary: the content of `summary.json`; None where there is none yet.
    """

    content: Mapping[str, Any]
    summary: Mapping[str, Any] | None

    @property
    def kind(self) -> Literal["sweep", "study"]:
        """Whether `shoal tune` made it, a "study"."""
        return "study" if "storage" in self.content["asked"]["options"] else "sweep"

    @functools.cached_property
    def runs(self) -> list[RunRecord]:
        """The runs that exist so far.

        Raises:
          ShoalError: one is damaged.
        """
        paths = [self.path / run["path"] for run in self.content["runs"]]
        return [read_run(path) for path in paths if (path / CONFIG).is_file()]

    @functools.cached_property
    def confirmation(self) -> list[RunRecord]:
        """The runs of the best settings on new seeds, as far as they exist.

        Raises:
          ShoalError: one is damaged.
        """
        return [read_run(file.parent) for file in sorted(self.path.glob(f"{CONFIRMATION}/*/{CONFIG}"))]

    @property
    def num_members(self) -> int:
        """The number of members of the runs that exist so far, without the confirmation."""
        return sum(run.num_members for run in self.runs)

    @property
    def settings(self) -> Mapping[str, object]:
        """The settings of the best members; {} where none is known yet."""
        best = (self.summary or {}).get("best")
        return best["settings"] if best else {}

    @functools.cached_property
    def state(self) -> RunState:
        """Whether a process trains one of its runs, or how it ended; "failed" where no setting has a score."""
        runs = [*self.runs, *self.confirmation]
        if is_held(self.path) or any(run.state == "training" for run in runs):
            return "training"
        has_all = len(self.runs) == len(self.content["runs"])
        if self.summary is None or not has_all or any(run.state == "interrupted" for run in runs):
            return "interrupted"
        return "failed" if self.summary["best"] is None else "finished"

    @property
    def steps(self) -> int:
        """The most environment steps that a member has made."""
        return max((run.steps for run in self.runs), default=0)

    @functools.cached_property
    def date(self) -> datetime.datetime:
        """When the first run started, in UTC; of a sweep without any, when its plan was written."""
        if self.runs:
            return min(run.date for run in self.runs)
        with report_os_errors(f"{self.path / SWEEP} cannot be read"):
            return datetime.datetime.fromtimestamp((self.path / SWEEP).stat().st_mtime, datetime.UTC)

    @functools.cached_property
    def score(self) -> Score | None:
        """The score of the best setting: by its confirmation where there is one; None where there is none yet."""
        best = (self.summary or {}).get("best")
        if best:
            score = score_of(best["score"], best["label"], len(best["score"].get("failed", ())))
            # The seeds that chose a setting say more of it than it will reach again.
            return score if best.get("confirmed") else score._replace(interval=None)
        found = [run.score for run in self.runs if run.score is not None]
        return max(found, key=lambda score: score.iqm, default=None) if self.summary is None else None

    @property
    def _settings(self) -> Mapping[str, Any]:
        found: dict[str, Any] = self.content["asked"]["experiment"]
        return found


def read_sweep(path: Path) -> SweepRecord:
    """Read the record of a directory that holds a sweep or a study.

    Raises:
      ShoalError: a file is missing or damaged.
    """
    content = read_json(path / SWEEP)
    record = SweepRecord(path, content, read_if(path / SUMMARY))
    with report_wrong_types(str(path / SWEEP)):
        # As in `read_run`.
        _ = record.kind, record.environment, record.algorithm, record.name, record.tags, record.note
        _ = [(run["path"], run["labels"]) for run in content["runs"]]
    return record
