"""Calls of modules, and methods of the distributions that they return, as one compiled program each."""

import importlib
import inspect
import pkgutil

import pytest
from compiled_methods import DISTRIBUTIONS, compiled, replace
from flax import nnx

from shoal import nets

FILES = [importlib.import_module(found.name) for found in pkgutil.walk_packages(nets.__path__, "shoal.nets.")]
MODULES = {
    kind
    for file in FILES
    for kind in vars(file).values()
    if inspect.isclass(kind) and issubclass(kind, nnx.Module) and kind.__module__ == file.__name__
}
CALLS = compiled(MODULES, lambda name: name == "__call__")


@pytest.fixture
def eager():
    """For a test that patches what a call reads while it is traced: a compiled call is traced once."""


@pytest.fixture(autouse=True)
def compiled_calls(request, monkeypatch):
    """Compiles each call as a whole."""
    replace(request, monkeypatch, CALLS | DISTRIBUTIONS)
