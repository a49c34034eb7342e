"""The oracle that warns while it is imported."""

import warnings
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def rlax() -> ModuleType:
    """rlax; what it stands on uses parts of JAX that are deprecated, which is none of our business."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import rlax
    return rlax
