"""Packages of environments: they are imported when the first of theirs is used."""

import contextlib
import functools
import io
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from shoal.base.errors import ShoalError
from shoal.base.imports import import_package
from shoal.base.user_errors import describe_error
from shoal.config.arguments import short_repr
from shoal.envs.suites.families import FAMILIES, closest_environment


@functools.cache
def import_suite(prefix: str, module: str = "") -> Any:
    """Import a module of a family's package, by default the package itself.

    Raises:
      ShoalError: the package, or one that it needs, is not installed, or it is older than the adapter knows.
    """
    family, needed_by = FAMILIES[prefix], f"names that begin with {prefix!r} need"
    with undisturbed():
        return import_package(
            needed_by, family.distribution, prefix.rstrip("/"), family.oldest, module or family.package
        )


def unknown_name(prefix: str, name: str, known: Iterable[str]) -> ShoalError:
    """Make the error for a name that a package does not have, with the nearest one, or with all."""
    names = list(known)
    best = closest_environment(prefix + name, [prefix + x for x in names])
    there_are = f"there are {', '.join(names)}, and module:Name for a class of your own"
    hint = f"did you mean {best!r}?" if best else there_are
    return ShoalError(f"there is no environment {prefix + name!r}; {hint}")


def classes_of(maker: Any, package: str) -> list[str]:
    """Return the names of a package's classes among a class and those that it inherits from; none of a function."""
    return [x.__name__ for x in getattr(maker, "__mro__", ()) if x.__module__.startswith(f"{package}.")]


def is_one_of(world: Any, package: str, classes: Iterable[str]) -> bool:
    """Report whether an object is of one of a package's classes, or of a class that inherits from one."""
    return not set(classes).isdisjoint(classes_of(type(world), package))


def cannot_be_made(name: str, arguments: Iterable[tuple[str, Any]], error: Exception) -> ShoalError:
    """Make the error for an object that its package does not make with these arguments."""
    given = ", ".join(f"{parameter}={short_repr(value)}" for parameter, value in arguments) or "its defaults"
    return ShoalError(f"{name} cannot be made with {given}: {describe_error(error)}")


class ConventionError(ShoalError):
    """The functions of an object, which its package's own objects have, failed; the error itself is its `__cause__`."""


@contextlib.contextmanager
def first_steps(name: str, arguments: Iterable[tuple[str, Any]]) -> Iterator[None]:
    """Say of an object of a package that fails in its first steps which arguments it was made with."""
    try:
        yield
    except ConventionError as error:
        if not arguments or not isinstance(error.__cause__, Exception):
            raise
        raise cannot_be_made(name, arguments, error.__cause__) from error.__cause__


@contextlib.contextmanager
def by_convention(world: Any) -> Iterator[None]:
    """Turn an error in the functions of an object, which its package's own objects do not make, into a sentence.

    Warnings are not shown: in Brax's positional physics old names warn.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ShoalError:
        raise
    except Exception as error:
        kind = type(world).__name__
        raise ConventionError(
            f"{kind} cannot be adapted, since its functions are not those of the convention: {describe_error(error)}"
        ) from error


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Run a package's code outside of any trace, without its warnings and its output.

    JaxMARL's import prints, and replaces both standard streams by those that the process began with.
    """
    names = ("stdout", "stderr", "__stdout__", "__stderr__")
    streams = {name: getattr(sys, name) for name in names}
    sink = io.StringIO()
    with jax.ensure_compile_time_eval(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for name in ("stdout", "__stdout__"):
                setattr(sys, name, sink)
            yield
        finally:
            for name, stream in streams.items():
                setattr(sys, name, stream)
