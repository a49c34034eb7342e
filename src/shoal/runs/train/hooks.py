"""The interfaces of training to its listeners, and to hooks between two pieces of it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.signals import Phase
from shoal.engine.run import Run
from shoal.records.history import History, Numbers


class Listener(Protocol):
    """A receiver of a run's progress; a text that it returns is the reason to end the run there."""

    def on_training(
        self, updates: int, metrics: Numbers, seconds: float, steps_per_second: float
    ) -> str | None:
        """Receive the metrics of a chunk of updates."""
        ...

    def on_evaluation(self, updates: int, metrics: Numbers) -> str | None:
        """Receive the metrics of an evaluation."""
        ...


class Supervisor:
    """Hooks between two pieces of training, for checkpoints and signals; they may end the run by an exception.

    These let a run continue to its end.
    """

    def begins(self, phase: Phase) -> None:
        """Note the phase that begins."""

    def next_stop(self, updates: int) -> int | None:
        """Return the number of updates, above `updates`, after which a piece must end; None for any."""

    def between_pieces(self, population: Run, history: History) -> None:
        """Act on a population that has been logged and evaluated as far as it goes."""

    def handle_faults(self, population: Run, history: History, members: Sequence[int]) -> Run:
        """Return the population to continue with after numbers of some members were not finite, or raise an error."""
        update = int(np.asarray(population.fault)[members[0]])
        raise ShoalError(f"something was not finite in update {update} of member {members[0]}.")

    def wants_to_stop(self) -> bool:
        """Report whether an evaluation should be interrupted; `between_pieces` is called next."""
        return False

    def note_fault(self, member: int, sentence: str) -> None:
        """Show which numbers were not finite in an evaluation of a member."""
