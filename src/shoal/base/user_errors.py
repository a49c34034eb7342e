"""Errors inside a user's function as one sentence with the place, and the user's own frames.

Imports nothing heavy, so that every public function can use it.
"""

import functools
import inspect
import os
import re
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple, ParamSpec, TypeVar

from shoal.base.errors import ShoalError, UserCodeError

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

# Shoal and its dependencies: a frame in one of these is not the user's.
LIBRARIES = (
    "shoal",
    *("jax", "jaxlib", "flax", "optax", "chex", "etils", "treescope", "opt_einsum"),
    *("numpy", "scipy", "ml_dtypes", "matplotlib", "PIL", "rich", "typing_extensions", "typeguard"),
    *("jaxtyping", "beartype", "wadler_lindig", "distrax", "tensorflow_probability"),
)
CALLBACK = "Traceback (most recent call last)"  # in the message of a compiled program's error
PROGRAM_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
MAX_FRAMES = 20  # largest number of frames shown
MAX_CHARACTERS = 300  # of an error's own message

REMEDIES = {
    "TracerBoolConversionError": (
        "a Python condition (if, while, and, or, not) on a traced value; use jnp.where or jax.lax.cond"
    ),
    "TracerIntegerConversionError": (
        "a traced value as a Python index or count; index a jax.numpy array, or use jax.lax.fori_loop"
    ),
    "ConcretizationTypeError": "a traced value where Python needs a number; use jax.numpy, and x.astype",
    "TracerArrayConversionError": "a NumPy function of a traced value; use that of jax.numpy",
    "UnexpectedTracerError": (
        "a traced value was kept outside of what a function returns; return it as a part of the state"
    ),
    "NonConcreteBooleanIndexError": "an index by a traced mask; use jnp.where",
}


class Frame(NamedTuple):
    """A line of the user's code that was running."""

    function: str  # as the function is defined: `MyEnv.step`, `<module>`
    summary: traceback.FrameSummary


def reports_user_code(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Make a public function raise `UserCodeError` where the user's code fails inside it.

    An error of Shoal's own, with no frame of the user's below the function, passes unchanged, and so does a
    `ShoalError`, which is a sentence already. Frames above the function, such as the script that calls it, do
    not count.
    """

    @functools.wraps(function)
    def wrapper(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except ShoalError:
            raise
        except (Exception, SystemExit) as error:
            failure = user_code_error(error)
            if failure is None:
                raise
            raise failure from error

    return wrapper


def user_code_error(error: BaseException, action: str = "") -> UserCodeError | None:
    """Convert an error of a user's code to a sentence and the user's frames; None if no user's code took part.

    Args:
      action: what failed, instead of the name of the user's function.
    """
    frames = _callback_frames(error) or user_frames(error) or _wrong_call_frames(error)
    if not frames:
        return None
    project_frames = [frame for frame in frames if not _is_installed(frame.summary.filename)] or frames
    location = format_location(project_frames[-1].summary.filename, project_frames[-1].summary.lineno)
    sentence = f"{action or _failing_function(project_frames)} failed in {location}: {describe_error(error)}."
    return UserCodeError(sentence, format_frames(frame.summary for frame in frames))


def user_frames(error: BaseException) -> list[Frame]:
    """Return the user's frames of an error's traceback, innermost last."""
    traced = zip(
        traceback.walk_tb(error.__traceback__), traceback.extract_tb(error.__traceback__), strict=True
    )
    libraries = _library_paths()
    return [
        Frame(frame.f_code.co_qualname, summary)
        for (frame, _), summary in traced
        if _is_user_frame(summary, str(frame.f_globals.get("__name__", "")), libraries)
    ]


def describe_error(error: BaseException) -> str:
    """Describe an error in half a sentence: its type, and the first line of its message or what would be right."""
    kind, text = type(error).__name__, message_of(error)
    if is_callback_error(error):  # the callback's error comes last
        return shorten(text.strip().splitlines()[-1])
    if isinstance(error, ShoalError):
        return shorten(text)
    if kind in REMEDIES:
        return f"{kind}: {REMEDIES[kind]}"
    if isinstance(error, SystemExit):
        return f"SystemExit: {error.code}, which ends the process"
    lines = text.strip().splitlines()
    return shorten(f"{kind}: {lines[0]}" if lines else kind)


def format_location(filename: str, line: int | None) -> str:
    """Format a line of a file; a path inside the current directory is relative to it."""
    folder = os.path.join(os.getcwd(), "")
    return f"{filename.removeprefix(folder)}, line {line}"


def place_of(function: object) -> str:
    """Return the file and the line of the definition of a user's function; "" for one of a library."""
    frames = _definition(function) if isinstance(function, types.FunctionType | types.MethodType) else []
    return format_location(frames[0].summary.filename, frames[0].summary.lineno) if frames else ""


def _definition(function: types.FunctionType | types.MethodType) -> list[Frame]:
    """Return the line in which a function is defined, if it is the user's."""
    code = function.__code__
    summary = traceback.FrameSummary(code.co_filename, code.co_firstlineno, code.co_name)
    is_own = _is_user_frame(summary, str(function.__module__), _library_paths())
    return [Frame(function.__qualname__, summary)] if is_own else []


def format_frames(summaries: Iterator[traceback.FrameSummary]) -> str:
    """Format frames as Python shows them; of very many only the innermost."""
    return "".join(traceback.StackSummary.from_list(list(summaries)[-MAX_FRAMES:]).format()).rstrip("\n")


def message_of(error: BaseException) -> str:
    """Return the message of an error; empty where it has none that can be read."""
    try:
        return str(error)
    except Exception:  # the user's own class
        return ""


def _is_user_frame(summary: traceback.FrameSummary, module: str, libraries: tuple[str, ...]) -> bool:
    filename = summary.filename
    if filename.startswith("<"):  # no file: a prompt or a generated function
        generated = filename.startswith("<frozen ") or (
            summary.name.startswith("__") and module != "__main__"
        )
        return not generated and module.partition(".")[0] not in LIBRARIES
    standard = sysconfig.get_paths()["stdlib"] + os.sep
    if filename.startswith(standard) and not _is_installed(filename):
        return False
    return not filename.startswith(libraries)


def _is_installed(filename: str) -> bool:
    """Report whether a file belongs to an installed package, and not to the user's own folders."""
    return "site-packages" in filename or "dist-packages" in filename


def _library_paths() -> tuple[str, ...]:
    """Return the folders and files of the libraries that are loaded."""
    paths: list[str] = []
    for name in LIBRARIES:
        module = sys.modules.get(name)
        folders = getattr(module, "__path__", ())
        for folder in folders:
            paths.append(os.path.join(folder, ""))
        if not folders and (file := getattr(module, "__file__", None)):
            paths.append(file)
    return tuple(paths)


def _failing_function(frames: list[Frame]) -> str:
    """Return the innermost method among frames, such as `MyEnv.step`; the outermost function where there is none."""
    names = [without_enclosing(frame.function) for frame in frames]
    return next((name for name in reversed(names) if "." in name), names[0] or "a lambda")


def without_enclosing(function: str) -> str:
    """Shorten `make.<locals>.MyEnv.step.<locals>.<lambda>` to `MyEnv.step`: the class and its method."""
    parts = [part for part in function.split(".<locals>.") if not part.startswith("<")]
    first = max((i for i, part in enumerate(parts) if "." in part), default=0)
    return ".".join(parts[first:])


def is_callback_error(error: BaseException | None) -> bool:
    """Report whether an error is that of a compiled program in which a callback failed."""
    return error is not None and type(error).__name__ in PROGRAM_ERRORS and CALLBACK in message_of(error)


def _callback_frames(error: BaseException) -> list[Frame]:
    """Return the user's last frames from an error's message, if it holds the traceback of a callback that failed."""
    if not is_callback_error(error):
        return []
    libraries, frames = _library_paths(), []
    for file, line, function in reversed(
        re.findall(r'File "(.+?)", line (\d+), in (\S+)', message_of(error))
    ):
        summary = traceback.FrameSummary(file, int(line), function)
        if _is_user_frame(summary, "", libraries):
            frames.append(Frame(function, summary))
        elif frames:
            break  # frames that called the callback do not belong to it
    return frames[::-1]


def _wrong_call_frames(error: BaseException) -> list[Frame]:
    """Return the definition of a user's function that Shoal could not call, since it has the wrong parameters.

    The function is one of the values, or a method of one, that the frames of the call have.
    """
    match = re.match(r"([\w.<>]+)\(\) (?:takes|missing|got) ", message_of(error))
    if not isinstance(error, TypeError) or not match:
        return []
    name = match[1].rpartition(".")[2]
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for value in (value for frame in reversed(frames) for value in list(frame.f_locals.values())):
        for candidate in (value, inspect.getattr_static(value, name, None)):
            is_method = isinstance(candidate, types.MethodType | staticmethod | classmethod)
            function = candidate.__func__ if is_method else candidate
            is_it = isinstance(function, types.FunctionType) and function.__qualname__ == match[1]
            if is_it and (definition := _definition(function)):
                return definition
    return []


def shorten(text: str, length: int = MAX_CHARACTERS) -> str:
    """Shorten a text to one line of limited length, without a full stop."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= length else text[: length - 3] + "..."
