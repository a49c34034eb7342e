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
from shoal.envs.suites.families import FAMILIES, Family


@functools.cache
def import_suite(prefix: str, module: str = "") -> Any:
    """Import a module of a family's package, by default the package itself.

    Raises:
      ShoalError: the package, or one that it needs, is not installed, or it is older than the adapter knows, or it is
        on no index and there is no checkout.
    """
    family, needed_by = FAMILIES[prefix], f"names that begin with {prefix!r} need"
    with undisturbed(), from_checkout(needed_by, family):
        return import_package(
            needed_by, family.distribution, prefix.rstrip("/"), family.oldest, module or family.package
        )


@contextlib.contextmanager
def from_checkout(needed_by: str, family: Family) -> Iterator[None]:
    """Let a package that is on no index be imported from the checkout that an environment variable names.

    Raises:
      ShoalError: there is no checkout, or it cannot be imported.
    """
    if not family.repository:
        yield
        return
    if not family.is_installed:
        where = f"{family.variable}={family.checkout!r} has none" if family.checkout else "it is on no index"
        raise ShoalError(
            f"{needed_by} a checkout of {family.title}, and {where}; `{family.install}` makes one"
        )
    path = sys.path[:]
    try:
        # Only while it is imported, since a repository has folders such as `tests` and `docs` beside its package.
        sys.path[:0] = [family.checkout] if family.checkout else []
        yield
    except ShoalError:
        raise
    except Exception as error:
        raise ShoalError(
            f"{needed_by} {family.title}, whose import failed: {describe_error(error)}"
        ) from error
    finally:
        sys.path[:] = path


def classes_of(maker: object, package: str) -> list[str]:
    """Return the names of a package's classes among a class and those that it inherits from; none of a function."""
    return [x.__name__ for x in getattr(maker, "__mro__", ()) if x.__module__.startswith(f"{package}.")]


def is_one_of(world: object, package: str, classes: Iterable[str]) -> bool:
    """Report whether an object is of one of a package's classes, or of a class that inherits from one."""
    return not set(classes).isdisjoint(classes_of(type(world), package))


class ConventionError(ShoalError):
    """The functions of an object, which its package's own objects have, failed for a reason."""

    def __init__(self, world: object, reason: Exception):
        super().__init__(
            f"{type(world).__name__} cannot be adapted, since its functions are not those of the convention: "
            f"{describe_error(reason)}"
        )
        self.reason = reason


@contextlib.contextmanager
def by_convention(world: object) -> Iterator[None]:
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
        raise ConventionError(world, error) from error


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
