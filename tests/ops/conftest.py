"""Methods of distributions as one compiled program each, and the oracle that warns while it is imported."""

import warnings
from types import ModuleType

import pytest
from compiled_methods import DISTRIBUTIONS, replace


@pytest.fixture
def eager() -> None:
    """For a test of what is said of numbers that are no arrays: in a compiled method they have no value yet."""


@pytest.fixture(autouse=True)
def compiled_methods(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles each method of a distribution as a whole."""
    replace(request, monkeypatch, DISTRIBUTIONS)


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax; what it stands on uses parts of JAX that are deprecated, which is none of our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rlax
    return rlax
