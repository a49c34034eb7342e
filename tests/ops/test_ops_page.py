"""The page of operations names them all."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

from shoal import ops

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"


MODULES = [module.name for module in pkgutil.iter_modules(ops.__path__) if not module.name.startswith("_")]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_on_the_page(name):
    page, module = PAGE.read_text(), importlib.import_module(f"shoal.ops.{name}")
    assert f"`shoal.ops.{name}`" in page
    defined = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and f"{value.__module__}.".startswith(f"{module.__name__}.")
    ]
    assert defined and [key for key in defined if f"`{key}`" not in page] == []
