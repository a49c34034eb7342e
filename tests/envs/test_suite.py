"""A further convention through the base of all adapters: a class of this file whose functions have another shape."""

import inspect
import sys
import types

import jax
import jax.numpy as jnp
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.envs import describing, make, parameters_of
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.registry import adapted, check_count
from shoal.envs.suites.conversion import of_types
from shoal.envs.suites.families import FAMILIES, Family
from shoal.envs.suites.suite import Adapted, Suite, numbers_of, trace
from shoal.envs.wrappers import TimeLimit
from shoal.types.spaces import Box, Discrete

KEY = jax.random.key(0)


class Walk:
    """A walk on a line to `length`: `reset(seed)` is a state, and `step(state, move)` a dictionary."""

    horizon = 30
    moves = 2

    def __init__(self, length: int = 5, slip: float = 0.0):
        assert length > 0, "a line has a length"
        self.length, self.slip = length, slip

    def reset(self, seed):
        return {"at": 0, "seed": seed}

    def step(self, state, move):
        seed, key = jax.random.split(state["seed"])
        step = jnp.where(jax.random.uniform(key) < self.slip, 0, 2 * move - 1)
        at = jnp.clip(state["at"] + step, 0, self.length)
        is_there = at == self.length
        state = {"at": at, "seed": seed}
        return {
            "state": state,
            "see": at / self.length,
            "pay": is_there,
            "over": is_there,
            "note": {"at": at},
        }


@environment
class Walked(Adapted):
    """An environment of the walks."""

    world: object = static()

    @property
    def observation_space(self):
        return Box(0.0, 1.0, ())

    @property
    def action_space(self):
        return Discrete(self.world.moves)

    def reset(self, key):
        facts = facts_of(self.world)
        state = of_types(facts.state, self.world.reset(key))
        return state, restart(jnp.float32(0.0), info=facts.no_info())

    def step(self, state, action, key):
        made = self.world.step(state, action)
        return made["state"], transition(
            jnp.asarray(made["see"], jnp.float32),
            jnp.asarray(made["pay"], jnp.float32),
            terminated=made["over"],
            info=numbers_of(made["note"]),
        )


def facts_of(world):
    def play(key):
        made = world.step(world.reset(key), 0)
        return made["state"], made["see"], numbers_of(made["note"])

    return trace(world, play)


class Walks(Suite):
    """The names and objects of the walks."""

    interface = ("reset", "step", "moves")

    def makers(self):
        return {"short": Walk, "long": lambda length=50: Walk(length)}

    def limit(self, world, *params):
        return check_count(type(world).__name__, "horizon", world.horizon)

    def environment(self, world, *params):
        facts_of(world)
        return Walked(world)


def code_of(*objects):
    lines = [line.strip() for x in objects for line in inspect.getsource(x).splitlines()]
    return [line for line in lines if line and not line.startswith(('"""', "#"))]


@pytest.fixture
def walks(monkeypatch):
    """Register the package of the walks, `walks/`, which is this file's own classes."""
    package = types.ModuleType("walks")
    package.Walk, package.__version__ = Walk, "1"
    monkeypatch.setattr(Walk, "__module__", "walks")
    monkeypatch.setitem(sys.modules, "walks", package)
    family = Family("Walks", "walks", "jax", "0.1", "walks:SUITE", ("short", "long"), "walks/")
    monkeypatch.setitem(FAMILIES, "walks/", family)
    package.SUITE = Walks("walks/")
    return package.SUITE


def test_a_convention_costs_few_lines():
    assert len(code_of(Walked, facts_of, Walks)) < 150 / 2


def test_its_names_are_made_with_parameters_and_a_limit(walks):
    env = make("walks/short", length=3, slip=0.5)
    assert isinstance(env, TimeLimit) and env.max_steps == 30
    assert env == make("walks/short", slip=0.5, length=3) and env != make("walks/short", length=3)
    assert parameters_of("walks/short")["length"].default == 5
    assert make("walks/long", max_episode_steps=None).world.length == 50
    assert describing.describe_named("walks/short", {"length": 3}).parameters["length"] == 3


def test_it_is_stepped_as_it_is(walks):
    env, world = make("walks/short", slip=0.3), Walk(slip=0.3)
    state, own = env.reset(KEY)[0], world.reset(KEY)
    for action in [1, 0] + [1] * 12:
        state, timestep = jax.jit(env.step)(state, action, KEY)
        made = world.step(own, action)
        own = made["state"]
        assert timestep.observation == jnp.float32(made["see"]) and timestep.reward == made["pay"]
        assert timestep.info["at"] == made["note"]["at"] and timestep.terminated == made["over"]
        if made["over"]:
            return
    pytest.fail("the walk does not end")


@pytest.mark.slow
def test_it_is_checked_and_described_as_an_object(walks):
    env = adapted(Walk(slip=0.3))
    assert isinstance(env, TimeLimit) and isinstance(env.env, Walked)
    assert shoal.check(env, keys=2, steps=8) == []
    assert list(describing.describe(env).gaps) == ["class"]


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("shor", {}, "there is no environment 'walks/shor'; did you mean 'walks/short'?"),
        (
            "short",
            {"length": 0},
            "walks/short cannot be made with length=0: AssertionError: a line has a length",
        ),
        ("short", {"size": 1}, "walks/short has no parameter 'size'"),
        ("json:JSONDecoder", {}, "walks/json:JSONDecoder made a JSONDecoder, which has no `reset`"),
    ],
)
def test_its_errors_are_those_of_all_adapters(walks, name, parameters, sentence):
    with pytest.raises(ShoalError) as error:
        make(f"walks/{name}", **parameters)
    assert sentence in str(error.value)


def test_functions_of_another_shape_are_a_sentence(walks):
    broken = type("Broken", (Walk,), {"step": lambda self, state: state, "__module__": "walks"})
    with pytest.raises(
        ShoalError, match="Broken cannot be adapted, since its functions are not those of the"
    ):
        adapted(broken())
