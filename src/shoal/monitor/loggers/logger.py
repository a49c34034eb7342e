"""The interface of loggers, which follow the files of a run in a process of their own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Series(NamedTuple):
    """One line of numbers of a run: of a member, of a setting's members, or of all members together."""

    name: str  # unique in the run: "seed 3", "slow, seed 3", "slow"; "all" for all members; "" where there is only one
    kind: str  # "member", "setting" or "all"
    seed: int | None = None  # of a member
    label: str = ""  # of a member's setting, or the setting
    settings: Mapping[str, object] = {}  # the settings in which it differs from other series of the run

    @property
    def is_main(self) -> bool:
        """Whether it is the one to show where a run has one line only."""
        return self.kind == "all" or not self.name


class LoggedRun(NamedTuple):
    """A run that is logged."""

    path: Path  # its directory
    config: Mapping[str, Any]  # the content of `config.json`
    series: tuple[Series, ...]  # all that `add_scalars` may be given, the main one among them
    process: int | None = None  # the number of the process that trains; None where it has ended
    names: Mapping[
        str, object
    ] = {}  # settings under further names, such as `env_id` and `exp_name` of CleanRL


class Logger:
    """Receives the numbers and files of a run; a base class, of which `add_scalars` must be overridden.

    An object belongs to one run in one process, which trains nothing; an error of any method ends the logging, and
    not the run. It is made with the words of `--logger-args NAME.key=value` as keyword arguments, as texts.

    Attributes:
      note: a text is shown, once.
      stop: a text asks the run to stop; the run records it.
      settle_seconds: how long after it was given a row is certainly stored, if the process were killed.
    """

    note: str | None = None
    stop: str | None = None
    settle_seconds: float = 0.0

    def check(self) -> None:
        """Require what logging needs, such as a package and a key, without using a network.

        Raises:
          ShoalError: something is missing; the sentence names it and what would help. A new run does not begin then.
        """

    def open(self, run: LoggedRun, state: Any) -> str:
        """Begin, or continue where an earlier process of the same run ended.

        Args:
          state: what `flush` returned last in that process; None for a run that was not logged before.
        Returns:
          where the numbers can be seen: a URL, a path, "offline"; "" for nothing to show.
        """
        return ""

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Receive numbers of one series at one point of the run; those that are not finite are NaN.

        Args:
          step: environment steps of each member.
          numbers: by names such as "train/episode_return" and "evaluation/return_mean".
          time: seconds since the epoch at which they were written; NaN of runs that did not write it.
        """
        raise NotImplementedError

    def add_file(self, kind: str, path: Path, step: int) -> None:
        """Receive a file of the run: of kind "config", "policy", "film" (a GIF) or "picture" (a PNG)."""

    def flush(self) -> object:
        """Store what was received, and return the state to continue from, as JSON; called every few seconds."""
        return None

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """End, after the last row.

        Args:
          summary: the content of `summary.json` of a run that finished; None of one that was interrupted or crashed,
            and may be resumed.
        """
