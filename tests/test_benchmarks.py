"""The benchmark of the operations leaves none out and can be run; scripted policies reach what they should."""

import ast
import importlib.util
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import scipy.optimize

from shoal import envs
from shoal.engine.population import member_layout as populations
from shoal.ops import policy_losses
from shoal.xla import machine

ROOT = Path(__file__).parents[1]


def load(name):
    """A module of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def operations():
    """benchmarks/operations.py."""
    return load("operations")


def defined() -> set[str]:
    """All public functions and methods in the source of `shoal.ops`, as `module.function`."""
    found = set()
    for path in (ROOT / "src" / "shoal" / "ops").rglob("[!_]*.py"):
        if path.stem == "foreign":  # adapts what another package computes
            continue
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


@pytest.mark.full
def test_every_case_can_be_traced_and_is_held_against_as_large_a_result(operations):
    for case in operations.cases(scale=64):
        assert case.elements > 0
        ours, plain = (jax.eval_shape(f, *case.arguments) for f in (case.function, case.plain))
        shapes = [[(x.shape, x.dtype) for x in jax.tree.leaves(tree)] for tree in (ours, plain)]
        assert shapes[0] == shapes[1], case.name


@pytest.mark.full
def test_a_new_function_cannot_be_forgotten(operations, monkeypatch):
    def new_loss(never_heard_of):
        return never_heard_of

    new_loss.__module__ = policy_losses.__name__
    monkeypatch.setattr(policy_losses, "new_loss", new_loss, raising=False)
    assert "policy_losses.new_loss" in operations.names()
    with pytest.raises(KeyError, match="never_heard_of"):
        list(operations.cases(scale=64))


def test_a_peer_with_the_same_backend_has_what_shoal_sets():
    protocol = load("protocol")
    layout = populations.lay_out(jax.devices()[:1], 1, 1)
    assert layout.compiler_options == protocol.COMPILER_OPTIONS
    assert f"--xla_backend_extra_options={machine._ONE_KERNEL_FLAG}" == protocol.BACKEND_FLAGS
    assert protocol.ROWS_WORTH_THREADS == machine.ROWS_WORTH_A_DEVICE


# Mean returns of each agent under random actions in mpe2 1.1.1 itself, with their standard errors (3,000 episodes, of
# SpeakerListener 6,000); and what the scripted policies at least reach.
RANDOM_IN_MPE2 = {
    "mpe/Spread-v0": ([-26.25] * 3, [0.14] * 3),
    "mpe/SpeakerListener-v0": ([-39.47] * 2, [0.42] * 2),
    "mpe/Tag-v0": ([4.66] * 3 + [-16.38], [0.21] * 3 + [0.37]),
}
SCRIPTED = {"mpe/Spread-v0": -7.3, "mpe/SpeakerListener-v0": -8.5, "mpe/Tag-v0": 15.0}


@pytest.mark.full
@pytest.mark.parametrize("name", RANDOM_IN_MPE2)
def test_random_policies_reach_what_they_do_in_mpe2_and_scripted_ones_more(name):
    scripted = load("scripted")
    env, key = envs.make(name), jax.random.key(0)
    by_agent = np.asarray(scripted.returns(env, scripted.random, key, 1024)[0], np.float64)
    mean, error = map(np.asarray, RANDOM_IN_MPE2[name])
    own_error = by_agent.std(0) / np.sqrt(len(by_agent))
    assert (np.abs(by_agent.mean(0) - mean) < 4 * np.hypot(error, own_error)).all()
    reached = scripted.returns(env, scripted.SCRIPTED[name], key, 1024)[0]
    assert np.asarray(reached).mean() > SCRIPTED[name]


@pytest.mark.full
@pytest.mark.parametrize("agents", [3, 7])
def test_an_assignment_gives_each_agent_its_own_landmark(agents):
    """The best one for few agents; for many a greedy one."""
    scripted, rng = load("scripted"), np.random.default_rng(0)
    for _ in range(5):
        distance = rng.random((agents, agents)).astype(np.float32)
        chosen = np.asarray(scripted.assignment(jax.numpy.asarray(distance)))
        assert sorted(chosen) == list(range(agents))
        best = scipy.optimize.linear_sum_assignment(distance**2)[1]
        ways = [(distance[np.arange(agents), order] ** 2).sum() for order in (chosen, best)]
        assert ways[0] == pytest.approx(ways[1]) if agents == 3 else ways[0] < 3 * ways[1] + 1
