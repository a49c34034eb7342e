"""Listeners: objects of a user that are called where a run starts, at log points and evaluations, and at its end."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.base.errors import ShoalError
from shoal.records.members import Members

METHODS = ("on_start", "on_training", "on_evaluation", "on_end")


class StartedRun(NamedTuple):
    """The argument of `on_start`: a run that is about to train."""

    path: Path  # its directory
    config: Mapping[str, Any]  # the content of `config.json`
    members: Members  # each with its `seed`, `label` and `settings`, in the order of all arrays
    step: int  # the environment steps that each member has made: 0, unless the run was resumed


def check_listeners(listeners: object) -> tuple[object, ...]:
    """Require that each object has one of a listener's methods.

    Raises:
      ShoalError: one has none, or is a class.
    """
    if not isinstance(listeners, Sequence) or isinstance(listeners, str):
        raise ShoalError(
            f"listeners is a {type(listeners).__name__}, not a list of objects; give one such as [MyLogger()]."
        )
    for index, listener in enumerate(listeners):
        name = f"listeners[{index}]"
        if isinstance(listener, type):
            raise ShoalError(f"{name} is the class {listener.__name__}; give an object of it.")
        if not any(callable(getattr(listener, method, None)) for method in METHODS):
            raise ShoalError(
                f"{name}, a {type(listener).__name__}, has none of the methods {', '.join(METHODS)}; give an object "
                "with one of them."
            )
    return tuple(listeners)


class Listeners:
    """Calls the listeners of a run in their order.

    Attributes:
      error: of the first call that failed; nobody is called after it.
    """

    def __init__(self, listeners: Sequence[object] = ()):
        self._listeners = listeners
        self.error: BaseException | None = None

    def tell(self, method: str, *arguments: object) -> str:
        """Call a method of each listener that has it; return the first one's reason to stop the run, "" for none."""
        reason = ""
        for listener in self._listeners:
            if self.error is None and callable(function := getattr(listener, method, None)):
                try:
                    answer = function(*arguments)
                    reason = reason or _reason(type(listener).__name__, method, answer)
                except (Exception, SystemExit) as error:
                    self.error = error
        return reason

    def raise_error(self) -> None:
        """Raise the error of the call that failed, if one did, with the traceback that it had there."""
        if self.error is not None:
            raise self.error


def _reason(name: str, method: str, answer: object) -> str:
    """Return the text by which a listener stops a run, with the listener's name; "" for none."""
    if method == "on_end":  # there is nothing left to stop
        return ""
    if not isinstance(answer, str | None):
        raise ShoalError(
            f"{name}.{method} returns a {type(answer).__name__}; it must return None, or a text, which stops the run."
        )
    return f"{name}: {answer}" if answer else ""
