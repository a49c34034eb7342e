"""Methods of distributions as one compiled program each, and the oracle that warns while it is imported."""

import inspect
import warnings
from types import ModuleType

import jax
import pytest

from shoal.ops import distributions

# A method called eagerly compiles each of its dozens of operations by itself, which is most of these tests' time.
COMPILED = {
    (kind, name): jax.jit(method)
    for kind in (getattr(distributions, name) for name in distributions.__all__)
    if inspect.isclass(kind)
    for name, method in vars(kind).items()
    if inspect.isfunction(method) and not name.startswith("_")
}


@pytest.fixture(autouse=True)
def compiled_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles each method of a distribution as a whole, as every training program does."""
    for (kind, name), method in COMPILED.items():
        monkeypatch.setattr(kind, name, method)


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax; what it stands on uses parts of JAX that are deprecated, which is none of our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rlax
    return rlax
