"""Calls of modules, and methods of the distributions that they return, as one compiled program each."""

import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_methods import DISTRIBUTIONS, compiled, replace
from flax import nnx

from shoal import nets
from shoal.nets import initialisers

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


def by_numpy(key, shapes):
    """Orthogonal kernels from NumPy's QR, uniform too, which compile nothing; where the key is traced, Shoal's own."""
    if isinstance(key, jax.core.Tracer):
        return OWN_KERNELS(key, shapes)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    kernels = []
    for shape in shapes:
        q, r = np.linalg.qr(rng.normal(size=initialisers._sides(shape)))
        q = q * np.sign(np.diagonal(r))
        kernels.append(jnp.asarray((q if shape[0] == len(q) else q.T).reshape(shape), jnp.float32))
    return kernels


OWN_KERNELS = initialisers._orthogonals


@pytest.fixture
def own_kernels():
    """For a test of the initialisers themselves, or one that compares what is built inside and outside of `jit`."""


@pytest.fixture(autouse=True)
def kernels_by_numpy(request, monkeypatch):
    """Spares the compilation of the initialiser, one program for each new shape."""
    if "own_kernels" not in request.fixturenames:
        monkeypatch.setattr(initialisers, "_orthogonals", by_numpy)
