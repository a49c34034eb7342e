"""Classes whose methods are compiled as a whole, as every training program does.

A method called eagerly compiles each of its dozens of operations by itself, which is most of a small test's time.
"""

import inspect
from collections.abc import Callable, Iterable

import jax
import pytest

from shoal.ops import distributions

Methods = dict[tuple[type, str], Callable]


def compiled(kinds: Iterable[type], chosen: Callable[[str], bool]) -> Methods:
    """The methods of classes whose names are chosen, compiled, by class and name."""
    return {
        (kind, name): jax.jit(method)
        for kind in kinds
        for name, method in vars(kind).items()
        if inspect.isfunction(method) and chosen(name)
    }


# Another package's, which is no pytree, is compiled by what calls it.
KINDS = [getattr(distributions, name) for name in distributions.__all__ if name != "Foreign"]
DISTRIBUTIONS = compiled(
    filter(inspect.isclass, KINDS),
    lambda name: not name.startswith("_"),
)


def replace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, methods: Methods) -> None:
    """Replaces methods for one test, unless it uses the fixture `eager`."""
    if "eager" not in request.fixturenames:
        for (kind, name), method in methods.items():
            monkeypatch.setattr(kind, name, method)
