"""What users' functions return, compared with what they must: one wording, with the function's file and line.

A function is traced on shapes, or runs within a program that is being traced, so that nothing is computed.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar, cast

import jax

from shoal.base.errors import ShoalError
from shoal.base.user_errors import place_of, without_enclosing
from shoal.config.struct import named_leaves
from shoal.types import Learner, PyTree, TimeStep

T = TypeVar("T")


def named(function: object, name: str = "") -> str:
    """Name a user's function with its file and line, such as `Mine.value (mine.py, line 7)`; a library's without these.

    Args:
      name: to call it by, instead of its own name.
    """
    while isinstance(function, functools.partial):
        function = function.func
    # A method of Shoal's that calls a user's function, such as the holder's of a linen module, says which.
    function = getattr(getattr(function, "__self__", None), "users_function", function)
    # What jax.jit and functools.wraps return has the user's function within.
    function = inspect.unwrap(cast(Callable[..., object], function))
    if not hasattr(function, "__code__") and not inspect.isclass(function):
        function = type(function).__call__  # of an object that is called
    own = without_enclosing(getattr(function, "__qualname__", repr(function)))
    place = place_of(function)
    return f"{name or own} ({place})" if place else name or own


def described(x: object) -> str:
    """Describe what was returned in a few words: `float32[3, 2]`, `2 values`, `None`, `a dict`."""
    if hasattr(x, "dtype") and hasattr(x, "shape"):
        return f"{x.dtype}{list(x.shape)}"
    if type(x) is tuple:
        return f"{len(x)} values"
    kind = type(x).__name__
    return "None" if x is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def refuse(function: object, returned: str, right: str) -> NoReturn:
    """Raise the ShoalError of a function (or of the text that names one) that returns something wrong."""
    who = function if isinstance(function, str) else named(function)
    raise ShoalError(f"{who} returns {returned}; it must return {right}.")


def require_type(function: object, x: object, kind: type[T]) -> T:
    """Return what a function returned, if it is of a type of `shoal.types`."""
    if not isinstance(x, kind):
        refuse(function, described(x), f"a shoal.types.{kind.__name__}")
    return x


def require_tuple(function: object, x: object, *forms: str) -> tuple[PyTree, ...]:
    """Return what a function returned, if it is a tuple of one of the forms, such as "(memory, output)"."""
    lengths = [form.count(",") + 1 for form in forms]
    # Learner and TimeStep are tuples too, and one that is returned alone may have a right length.
    if not isinstance(x, tuple) or len(x) not in lengths or isinstance(x, Learner | TimeStep):
        refuse(function, described(x), " or ".join(forms))
    return x


def require_array(
    function: object,
    x: object,
    shape: tuple[int, ...],
    dtype: str = "float32",
    *,
    what: str = "",
    given: str = "",
    why: str = "",
) -> None:
    """Require an array of a shape and a dtype, "" for any.

    Args:
      what, given, why: words of the sentence: what the array holds, the arguments that it was returned for, and why it
        must be so.
    """
    if getattr(x, "shape", None) != shape or dtype not in ("", str(getattr(x, "dtype", None))):
        returned = f"{what and f'{what} of '}{described(x)}{given and f' for {given}'}"
        refuse(function, returned, f"{dtype or 'an array '}{list(shape)}{why and f', {why}'}")


def differences(
    before: PyTree, after: PyTree, describe: Callable[[PyTree], str] = described
) -> Iterator[tuple[str, str, str]]:
    """Yield the path and descriptions ("" if missing) of each leaf that differs, else of "structure" if that does."""
    old, new = ({path: describe(x) for path, x in named_leaves(tree).items()} for tree in (before, after))
    wrong = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    yield from ((path, old.get(path, ""), new.get(path, "")) for path in wrong)
    structure, other = jax.tree.structure(before), jax.tree.structure(after)
    if not wrong and structure != other:  # type: ignore[operator]
        yield "structure", str(structure), str(other)


def require_same(function: object, what: str, after: PyTree, before: PyTree) -> None:
    """Require that a function returns a tree of the structure, shapes and dtypes that it was given."""
    for path, old, new in differences(before, after):
        refuse(
            function,
            f"a {what} whose {path or 'value'!r} is {new or 'missing'}, and was given {old or 'none'}",
            f"a {what} of the same structure, shapes and dtypes",
        )
