"""The page about networks names what there is."""

import dataclasses
import importlib
import inspect
import re
from pathlib import Path

import pytest

from shoal.nets.torso_choice import KINDS
from shoal.nets.torso_config import TorsoConfig

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"


@pytest.mark.parametrize(
    "name",
    [
        "cnn",
        "composition",
        "ensembles",
        "gradients",
        "headed",
        "heads",
        "inputs",
        "noisy",
        "q_heads",
        "residual",
        "targets",
        "value_heads",
    ],
)
def test_the_page_names_every_module_and_helper(name):
    module, page = importlib.import_module(f"shoal.nets.{name}"), PAGE.read_text()
    public = [
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", "") == module.__name__ and key not in OWN
    ]
    assert [key for key in public if not re.search(rf"`{key}\b", page)] == []
    assert any(inspect.isclass(getattr(module, key)) or callable(getattr(module, key)) for key in public)


# Parts of others, and what only these files call.
OWN = {"Dense", "LayerNorm", "LayerStyle", "head_for", "Cost", "leading_shape"}
OWN |= {"Head", "HeadStyle", "PlainStyle", "Combined", "Composable", "Core"}
OWN |= {"is_noisy", "apply_module", "keys_for", "concatenate_features", "factorised_noise", "dueling"}


def test_the_table_of_torsos_has_every_kind_and_that_of_their_layers_every_setting():
    page = PAGE.read_text()
    names = [
        *KINDS,
        "module:Name",
        *(x.name for x in dataclasses.fields(TorsoConfig) if x.name.startswith("encoder_")),
    ]
    assert [name for name in (*names, "channels_first") if f"\n| `{name}` |" not in page] == []
