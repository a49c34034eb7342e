"""The benchmark of the operations leaves none out, and every case can be run."""

import ast
import importlib.util
import sys
from pathlib import Path

import jax
import pytest

from shoal.ops import policy_losses
from shoal.runtime import machine, trainer
from shoal.runtime import population as populations

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def operations():
    """benchmarks/operations.py, which is no package's."""
    spec = importlib.util.spec_from_file_location("operations", ROOT / "benchmarks" / "operations.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def defined() -> set[str]:
    """All public functions and methods in the source of `shoal.ops`, as `module.function`."""
    found = set()
    for path in (ROOT / "src" / "shoal" / "ops").rglob("[!_]*.py"):
        module = path.relative_to(ROOT / "src" / "shoal" / "ops").with_suffix("").parts[0]
        for node in ast.parse(path.read_text()).body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            name = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
            for function in inside:
                if not isinstance(function, ast.FunctionDef):
                    continue
                properties = [ast.unparse(decorator) for decorator in function.decorator_list]
                if "property" not in properties and "_" not in (
                    function.name[0],
                    getattr(node, "name", "")[:1],
                ):
                    found.add(f"{name}.{function.name}")
    return found


def test_every_operation_has_a_case(operations):
    assert set(operations.names()) == defined()
    assert len(defined()) > 80


def test_every_case_can_be_traced_and_is_held_against_as_large_a_result(operations):
    for case in operations.cases(scale=64):
        assert case.elements > 0
        if not case.compiled:
            case.function(*case.arguments)
            continue
        ours, plain = (jax.eval_shape(f, *case.arguments) for f in (case.function, case.plain))
        shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (ours, plain)]
        assert shapes[0] == shapes[1], case.name


def test_a_new_function_cannot_be_forgotten(operations, monkeypatch):
    def new_loss(never_heard_of):
        return never_heard_of

    new_loss.__module__ = policy_losses.__name__
    monkeypatch.setattr(policy_losses, "new_loss", new_loss, raising=False)
    assert "policy_losses.new_loss" in operations.names()
    with pytest.raises(KeyError, match="never_heard_of"):
        list(operations.cases(scale=64))


def test_a_peer_with_the_same_backend_has_what_shoal_sets():
    spec = importlib.util.spec_from_file_location("protocol", ROOT / "benchmarks" / "protocol.py")
    protocol = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(protocol)
    layout = populations.lay_out(jax.devices()[:1], 1, 1)
    assert trainer.compiler_options(layout) == protocol.COMPILER_OPTIONS
    assert f"--xla_backend_extra_options={machine._ONE_KERNEL_FLAG}" == protocol.BACKEND_FLAGS
    assert protocol.ROWS_WORTH_THREADS == machine.ROWS_WORTH_A_DEVICE
