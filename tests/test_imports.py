"""Who may import whom, read from the sources; and what is not imported before it is needed."""

import ast
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shoal

ROOT = Path(shoal.__file__).parent

# A room is a module or package directly under shoal; it may import itself and the rooms named here.
FOR_ALL = {
    *("trees", "arguments", "errors", "files", "hardware", "imports", "interruption", "needs", "settings"),
    "user_code",
}
EVERYTHING = {
    *(
        "algos",
        "api",
        "arguments",
        "envs",
        "errors",
        "evolving",
        "experiment",
        "files",
        "imports",
        "interruption",
        "loading",
        "needs",
        "nets",
        "ops",
        "pairings",
        "device_choices",
        "presets",
        "resuming",
        "runtime",
        "settings",
        "spaces",
        "streams",
        "sweeps",
    ),
    *("trained", "training", "trees", "types", "user_code", "variants", "xla"),
}
# What trains runs, and what is done with them; each is imported by few.
RUNS = {"api", "evolving", "pairings", "resuming", "sweeps", "trained", "training"}
MAY_IMPORT = {
    "errors": set(),
    "spaces": set(),
    "ops": set(),
    "xla": set(),
    "arguments": {"errors"},
    "trees": {"errors"},
    "files": {"errors"},
    "hardware": set(),
    "imports": {"errors", "user_code"},
    "interruption": set(),
    "needs": {"errors"},
    "settings": {"errors", "needs", "trees"},
    "user_code": {"errors"},
    "types": {"spaces"} | FOR_ALL,
    "streams": {"types"} | FOR_ALL,
    "presets": FOR_ALL,
    "nets": {"ops", "streams", "types", "spaces", "xla"} | FOR_ALL,
    "envs": {"ops", "types", "spaces", "xla"} | FOR_ALL,
    "algos": {"ops", "nets", "streams", "types", "spaces", "xla"} | FOR_ALL,
    "runtime": {"envs", "ops", "streams", "types", "spaces", "xla"} | FOR_ALL,
    "variants": {"runtime"} | FOR_ALL,
    "experiment": EVERYTHING - RUNS - {"experiment", "loading", "device_choices"},
    "device_choices": {"experiment", "runtime"} | FOR_ALL,
    "loading": EVERYTHING - RUNS - {"loading", "device_choices"},
    "trained": EVERYTHING - RUNS - {"device_choices"},
    "pairings": EVERYTHING - RUNS - {"device_choices"},
    "resuming": EVERYTHING - RUNS - {"loading", "device_choices"},
    "evolving": {"experiment", "runtime"} | FOR_ALL,
    "training": EVERYTHING - {"api", "sweeps", "pairings", "training"},
    "sweeps": EVERYTHING - {"api", "pairings", "sweeps"},
    "api": EVERYTHING,
    "cli": {"api"} | FOR_ALL,
    "": {"api"} | FOR_ALL,  # shoal/__init__.py
}
# Modules of a room that keep to fewer: those that work on plain values, and start no device.
PLAIN_SWEEPS = {
    f"sweeps/{name}.py": {"arguments", "errors", "files", "ops"}
    for name in ("distributions", "space", "results")
}
HEAVY = ("jax", "flax", "optax", "orbax", "numpy", "matplotlib")


def room_of(path: Path) -> str:
    first = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported_modules(source: str, package: list[str]) -> set[str]:
    """Absolute names of all that a source imports, inside functions too; `package` resolves dots."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def rooms_imported(source: str, package: list[str]) -> set[str]:
    shoals = [name.split(".") for name in imported_modules(source, package)]
    known = set(MAY_IMPORT) - {""}
    return {
        parts[1] if len(parts) > 1 and parts[1] in known else "" for parts in shoals if parts[0] == "shoal"
    }


SOURCES = sorted(ROOT.rglob("*.py"))


def test_every_room_has_its_arrows():
    assert {room_of(path) for path in SOURCES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path):
    room = room_of(path)
    package = ["shoal", *path.relative_to(ROOT).parent.parts]
    allowed = PLAIN_SWEEPS.get(str(path.relative_to(ROOT)), MAY_IMPORT[room])
    forbidden = rooms_imported(path.read_text(), package) - allowed - {room}
    assert not forbidden, f"shoal.{room} may not import {', '.join(f'shoal.{name}' for name in forbidden)}"


@pytest.mark.parametrize(
    ("source", "package", "rooms"),
    [
        ("import shoal.runtime.run", ["shoal", "algos"], {"runtime"}),
        ("from shoal import envs, ops", ["shoal", "algos"], {"envs", "ops"}),
        ("from shoal.envs.base import Wrapper", ["shoal", "algos"], {"envs"}),
        ("from ..runtime import loop", ["shoal", "algos"], {"runtime"}),
        ("from .. import runtime", ["shoal", "envs"], {"runtime"}),
        ("from ...nets.mlp import MLP", ["shoal", "envs", "classic"], {"nets"}),
        ("from .base import Wrapper", ["shoal", "envs"], {"envs"}),
        ("def f():\n    import shoal.api", ["shoal", "ops"], {"api"}),
        ("import shoal\nimport jax", ["shoal", "ops"], {""}),
        ("from shoal import train", ["shoal", "cli"], {""}),
        ("import numpy, shoalish", ["shoal", "ops"], set()),
    ],
)
def test_the_reader_sees_every_form_of_import(source, package, rooms):
    assert rooms_imported(source, package) == rooms


@pytest.mark.parametrize("module", ["shoal", "shoal.cli", "shoal.errors", "shoal.interruption"])
def test_importing_shoal_is_light(module):
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize("path", PLAIN_SWEEPS)
def test_a_search_space_needs_no_jax(path):
    module = f"shoal.{path.removesuffix('.py').replace('/', '.')}"
    code = f"import sys, {module}; print('jax' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


def test_help_answers_within_a_second():
    command = shutil.which("shoal", path=str(Path(sys.executable).parent))
    cli = pytest.importorskip("shoal.cli")
    if command is None or not hasattr(cli, "main"):
        pytest.skip("there is no command line yet")

    def answer() -> float:
        start = time.perf_counter()
        output = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
        assert "train" in output.stdout
        return time.perf_counter() - start

    assert min(answer() for _ in range(3)) < 1.0
