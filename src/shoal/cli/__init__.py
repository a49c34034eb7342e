"""The command line: `shoal COMMAND ...`. Imports nothing heavy, so that its help is fast."""

import atexit
import contextlib
import gc
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

from shoal.base import imports, signals
from shoal.base.errors import ResumableError, SavingError, ShoalError, UserCodeError, nearest
from shoal.base.terminal import harmless
from shoal.base.user_errors import describe_error, is_callback_error, user_code_error
from shoal.cli import output

GARBAGE_THRESHOLD = 100_000  # new objects; imports and traces make millions that stay, and 700 costs a tenth
STARTED = time.perf_counter()  # imports after this line count as a run's `seconds.import`

# One module per command, imported when it is called; each has `main(arguments) -> exit status`.
COMMANDS = {
    "train": ("ENV", "train an agent with several seeds at once"),
    "resume": ("RUN", "resume a run from its newest checkpoint"),
    "checkpoints": ("RUN", "list the checkpoints of a run, and verify them"),
    "eval": ("RUN", "evaluate the policies of a run"),
    "export": ("RUN FILE", "write a policy as ONNX, for other programs"),
    "sweep": ("ENV", "train many settings at once, and rank them"),
    "tune": ("ENV", "train settings that Optuna proposes, batch by batch"),
    "pbt": ("ENV", "train a population that exchanges its settings"),
    "rollout": ("ENV", "step many environments by random actions or a policy"),
    "check": ("ENV", "look for mistakes in an environment"),
    "grid": ("COMMAND", "draw rulesets for grid worlds, or show them"),
    "envs": ("[ENV]", "list the environments, or the parameters of one"),
    "runs": ("[DIR]", "list runs, sweeps and studies"),
    "compare": ("RUN RUN", "compare the scores of runs and sweeps"),
    "report": ("RUN", "write a page about runs and sweeps"),
    "log": ("RUN", "send the numbers of a run to loggers"),
}

# Commands that save when they are interrupted; the others end as Python does.
SAVING_COMMANDS = ("train", "resume", "sweep", "tune", "pbt")

HELP = """usage: shoal COMMAND ...

Reinforcement learning as one compiled JAX program.

commands:
{commands}

`shoal COMMAND --help` describes the options of a command; `shoal --version` prints the version, and with --verbose
those of other packages and the devices.
An environment of your own has the name module:Name; parameters follow it as name=value:
  shoal train CartPole-v1 gravity=3.7 --seeds 3 --learning-rate 1e-3
  shoal check my_package.my_module:MyEnv
"""


DEFECT = "shoal: this is an error of Shoal itself; please report it, with the command and all of the above."

# The name of the thread of `envs/checking/check_time`, left behind by a part too slow.
CHECK_THREAD = "shoal check"

# JAX logs the traceback of a callback that fails; the error is reported like any error of the user's code.
CALLBACK_LOGGERS = ("jax._src.callback", "jax._src.debugging")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
      the exit status: 0, or 1 for a check that found something, 2 for bad input and for a user's code that fails,
      75 if interrupted and resumable, 130 if interrupted without saving. An error of Shoal's own is raised unchanged,
      so that the process ends with 1.
    """
    own_process = arguments is None
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if own_process:
        output.protect_streams()
        gc.set_threshold(GARBAGE_THRESHOLD)
    for name in CALLBACK_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # In a process that is not Shoal's own, signals belong to its program.
    saves = own_process and arguments and arguments[0] in SAVING_COMMANDS
    with signals.handle(command_line=True) if saves else contextlib.nullcontext():  # before any heavy import
        try:
            command, words = _command(arguments)
            try:
                status = command(words)
            except SystemExit as end:  # after the page of --help
                if end.code or not own_process:
                    raise
                status = 0
            output.require_printed()
            if own_process and any(thread.name == CHECK_THREAD for thread in threading.enumerate()):
                atexit.register(_exit_immediately, status)  # it still compiles, and would abort the process
            return status
        except (ResumableError, signals.Interrupted) as end:
            # At once: threads that still compile would be waited for.
            if own_process and isinstance(end, signals.Interrupted):
                signals.end_process(signals.RESUMABLE, f"shoal: {end}")
            signals.say(f"shoal: {end}")
            return signals.RESUMABLE
        except KeyboardInterrupt:
            signals.say("shoal: interrupted.")
            return signals.INTERRUPTED
        except BrokenPipeError:  # the reader has closed the pipe, and the process is not only Shoal's
            output.drop(sys.stdout.fileno())
            return 0
        except (Exception, SystemExit) as error:
            return _report(error, own_process)


def _report(error: BaseException, own_process: bool) -> int:
    """Report an error of the user's in one sentence, with the frames of the user's code, and return the exit status.

    An error of Shoal's own is raised unchanged.
    """
    reported = error if isinstance(error, ShoalError) else user_code_error(error)
    if reported is None:
        if isinstance(error, Exception):
            error.add_note(DEFECT)
        raise error
    if isinstance(error, SavingError):  # what was trained is reported all the same
        _import_command("train").print_summary(error.run)
    print(harmless(f"shoal: {reported}"), file=sys.stderr)
    if isinstance(reported, UserCodeError) and reported.frames:
        print(reported.frames, file=sys.stderr)
    if own_process and is_callback_error(reported.__cause__ or error):
        atexit.register(_exit_immediately, 2)
    return 2


def _exit_immediately(status: int) -> None:
    """End the process before JAX waits for its callbacks, which would show the traceback of one that failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _command(arguments: list[str]) -> tuple[Callable[[list[str]], int], list[str]]:
    """Return the function of a command, and the words that it is given.

    Raises:
      ShoalError: there is no such command.
    """
    if arguments[:1] == ["help"] and arguments[1:2] != []:  # `shoal help train`, as other programs accept it
        arguments = [*arguments[1:], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return _print_help, []
    name, *rest = arguments
    if name in ("--version", "-V"):
        return _print_version, rest
    if name not in COMMANDS:
        raise ShoalError(
            f"there is no command {name!r}; there are {', '.join(COMMANDS)}{nearest(name, COMMANDS)}."
        )
    imports.find_user_modules()  # a console script has its own folder on the path, and not the user's
    return _import_command(name).main, rest


def list_commands(commands: Mapping[str, tuple[str, str]]) -> str:
    """Format a line for each command: its name, its first word, and what it does."""
    width = max(len(f"{name} {what}") for name, (what, _) in commands.items()) + 2
    return "\n".join(f"  {f'{name} {what}':<{width}}{text}" for name, (what, text) in commands.items())


def _print_help(_: list[str]) -> int:
    print(HELP.format(commands=list_commands(COMMANDS)), end="")
    return 0


def _print_version(words: list[str]) -> int:
    print(f"shoal {importlib.import_module('shoal').__version__}")
    if words == ["--verbose"]:
        for name, text in importlib.import_module("shoal.xla.facts").describe_machine().items():
            print(f"{name:<12}{text}")
    elif words:
        raise ShoalError(f"shoal --version has no option {words[0]!r}; --verbose adds versions and devices.")
    return 0


def _import_command(name: str) -> ModuleType:
    """Import the module of a command.

    Raises:
      ShoalError: JAX cannot be imported with the environment's settings of it.
    """
    try:
        return importlib.import_module(f"shoal.cli.{name}")
    except Exception as error:
        # JAX reads them when it is imported, and its errors do not always name the variable.
        variables = [x for x in sorted(os.environ) if x.startswith("JAX_")]
        if "jax" in sys.modules or not variables:
            raise
        named = [x for x in variables if x.lower() in str(error)] or variables
        values = ", ".join(f"{x}={os.environ[x]}" for x in named)
        raise ShoalError(f"JAX cannot be imported with {values}: {describe_error(error)}.") from error
