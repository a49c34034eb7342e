"""The layers of the packages, read from the sources; and what is not imported before it is needed."""

import importlib.util
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent
ROOT = Path(__file__).parents[1]
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["shoal"]["layers"]
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
# The compiled program knows nothing of files, threads and clocks.
OF_THE_HOST = {"os", "threading", "time", "pathlib", "subprocess", "signal"}
HEAVY = ("jax", "flax", "optax", "orbax", "numpy", "matplotlib")
WITHOUT_JAX = ("shoal.search.distributions", "shoal.search.space", "shoal.search.ranking")
SOURCES = sorted(SOURCE.rglob("*.py"))


@pytest.fixture(scope="module")
def structure():
    """benchmarks/structure.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("structure", ROOT / "benchmarks" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_has_a_layer(structure):
    assert {structure.package_of(path) for path in SOURCES} == set(LAYER_OF)
    assert len(LAYER_OF) == sum(map(len, LAYERS))


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import shoal.runs.train.drive", ["runs"]),
        ("from shoal import envs, ops, cli", ["cli"]),
        ("from ..engine import loop", ["engine"]),
        ("def f():\n    import shoal.search", ["search"]),
        ("import shoal\nimport jax", [""]),
        ("from .base import Wrapper\nfrom shoal.base.errors import ShoalError", []),
        ("from ..nets.mlp import MLP", ["nets"]),
    ],
)
def test_an_import_the_wrong_way_is_seen(structure, source, wrong):
    others = set(structure.packages_imported(source, ["shoal", "envs"])) - {"envs"}
    assert structure.upward("envs", others) == wrong


def test_files_that_import_each_other_are_seen(structure):
    arrows = {("a", "b"), ("b", "c"), ("c", "b"), ("c", "d"), ("d", "d2")}
    assert structure.circles(arrows) == ["b", "c"]


def test_what_is_imported_for_types_alone_makes_no_circle(structure):
    source = "if TYPE_CHECKING:\n    from shoal.a import A\ndef f():\n    from shoal.b import B"
    assert list(structure.modules_imported(source, ["shoal"], for_types=False)) == ["shoal.b.B"]
    assert set(structure.modules_imported(source, ["shoal"])) == {"shoal.a.A", "shoal.b.B"}


def test_what_is_above_its_limit_is_found(structure):
    assert structure.above_limits({"a": 3, "b": 2, "c": 9}, {"a": 2, "b": 2}) == [("a", 3, 2)]


def test_the_compiled_program_imports_nothing_of_the_host(structure):
    for path in (SOURCE / "engine").rglob("*.py"):
        parents = ["shoal", *path.relative_to(SOURCE).parent.parts]
        modules = structure.modules_imported(path.read_text(), parents)
        assert not {module.split(".")[0] for module in modules} & OF_THE_HOST, path


@pytest.mark.full
def test_the_structure_keeps_to_its_limits():
    """A number that is above its limit is made smaller again, or the limit changes with a reason."""
    output = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "structure.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.returncode == 0, output.stdout


def imported_of(modules, names):
    """Which of some names are among `sys.modules` after an import of modules, in a process of its own."""
    code = (
        f"import sys, {', '.join(modules)}; print([name for name in {tuple(names)} if name in sys.modules])"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_importing_shoal_is_light():
    assert imported_of(["shoal", "shoal.cli", "shoal.base.errors", "shoal.base.signals"], HEAVY) == "[]"


def test_a_search_space_needs_no_jax():
    assert imported_of(WITHOUT_JAX, ["jax"]) == "[]"


def test_help_answers_within_a_second():
    command = shutil.which("shoal", path=str(Path(sys.executable).parent))
    if command is None:
        pytest.skip("the command is not installed")

    def answer() -> float:
        start = time.perf_counter()
        output = subprocess.run([command, "--help"], capture_output=True, text=True, check=True)
        assert "train" in output.stdout
        return time.perf_counter() - start

    assert min(answer() for _ in range(3)) < 1.0
