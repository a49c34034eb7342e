"""Environments as a run writes them down, and made again from that."""

import dataclasses
import importlib
import json
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jaxtyping import Array, Float
from one_of_each import one_of_each

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs import (
    Flatten,
    FrameStack,
    Hide,
    RewardScale,
    TimeLimit,
    Trial,
    Wrapper,
    environments,
    make,
    parameter,
    registry,
)
from shoal.envs.classic.cartpole import CartPole
from shoal.envs.classic.pendulum import Pendulum
from shoal.envs.describing import (
    describe,
    describe_named,
    description_to_json,
    from_json,
    rebuild,
    to_json,
    trees_equal,
)
from shoal.envs.grid.rulesets.rulesets import NO_RULESET, Ruleset
from shoal.envs.grid.tasks.minigrid import Empty
from shoal.envs.grid.tasks.xland import XLand
from shoal.records.json_files import to_jsonable
from shoal.types import Environment
from shoal.types.spaces import Box, Discrete


class Holder:
    class Inner:
        pass


class Pair(NamedTuple):
    """Two arrays of different dtypes."""

    near: jax.Array
    kind: jax.Array


def double(x):
    return 2 * x


@envs.environment
class Fields:
    """A field of every kind that can be written down."""

    free: jax.Array = parameter(default=np.ones(2, np.float32))
    typed: Float[Array, "..."] = dataclasses.field(default_factory=lambda: np.zeros((2, 0), np.float32))
    pair: Pair = Pair(np.zeros(1, np.float32), np.zeros(1, np.uint8))
    anything: Any = ()
    world: Environment = CartPole()
    number: float = 1.0
    ceiling: float = parameter(default=math.inf, high=math.inf)
    limit: float = parameter(default=0.0, low=-math.inf)
    sizes: tuple = ((1, 2), ())
    label: str = "inf"
    rule: Any = dataclasses.field(default=double, metadata={"static": True})
    flag: bool = False
    some: int | None = None

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), envs.restart(jnp.zeros(1))

    def step(self, state, action, key):
        return (), envs.transition(jnp.zeros(1), 0.0)


@envs.environment
class Mine(Wrapper):
    """A wrapper of the user's own."""

    bonus: float = 0.0
    weights: jax.Array = parameter(default=np.ones(2, np.float32))


class Shifted(CartPole):
    """Its constructor does not take its fields."""

    def __init__(self, shift: float = 0.0):
        CartPole.__init__(self, gravity=9.0 + shift)


def through_a_file(environment):
    """The environment that is made of what a run writes of another; there are no gaps."""
    description = describe(environment)
    assert not description.gaps
    text = json.dumps(to_jsonable(description_to_json(description), not_finite=str), allow_nan=False)
    again, known = rebuild(json.loads(text), {})
    assert trees_equal(again, environment)
    assert description_to_json(known) == description_to_json(description)
    for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(environment), strict=True):
        if np.ndim(other):
            assert isinstance(one, np.ndarray)
            assert one.dtype == other.dtype
    return description


@pytest.mark.parametrize("name", environments())
@pytest.mark.quick(*one_of_each())
def test_every_registered_environment_is_found_by_its_name(name):
    """Of several names that make the class, the one that stands for its sizes."""
    for parameters in ({}, {"max_episode_steps": 7}, {"trial_episodes": 2}, {"max_episode_steps": None}):
        description = through_a_file(make(name, **parameters))
        assert description.name == name
        assert all(description.parameters[parameter] == x for parameter, x in parameters.items())
    stands_for = registry.registered_parameters(name)
    defaults = {p: x.default for p, x in envs.parameters_of(name).items() if p not in stands_for}
    assert trees_equal(dict(describe(make(name)).parameters), defaults)


TASK = Ruleset(np.array([1, 3, 2, 0, 0], np.uint8), np.zeros((2, 7), np.uint8), np.array([[3, 2]], np.uint8))


@pytest.mark.quick("FrameStack0")
@pytest.mark.parametrize(
    "environment",
    [
        CartPole(),
        CartPole(gravity=jnp.float32(5.1), pole_mass=np.float64(0.2), force=3),
        TimeLimit(CartPole(gravity=5.0), 300),
        FrameStack(make("CartPole-v1"), 4),
        Flatten(FrameStack(make("MiniGrid-Empty-5x5", observe_direction=True), 1)),
        RewardScale(TimeLimit(Pendulum(), 9), 2.0, jnp.float32(-1.5)),
        Hide(Pendulum(length=2.0), (2,)),
        Hide(make("CartPole-v1"), (1,)),
        Trial(TimeLimit(CartPole(), 5), 2),
        TimeLimit(Trial(CartPole(), 2), 5),
        TimeLimit(TimeLimit(CartPole(), 5), 9),
        TimeLimit(Empty(max_episode_steps=8), 5),
        Trial(TimeLimit(Empty(max_episode_steps=8), 5), 2),
        FrameStack(TimeLimit(Empty(max_episode_steps=8), 5), 2),
        XLand(ruleset=TASK),
        make("XLand-MiniGrid-R4-13x13", ruleset=jax.tree.map(jnp.asarray, TASK)),
        XLand(ruleset=Ruleset(*(np.stack([x] * 3) for x in TASK))),
        Mine(CartPole(), 2.0, jnp.arange(3)),
        TimeLimit(Mine(FrameStack(Mine(make("MountainCar-v0")), 2), weights=np.ones((2, 2), np.uint8)), 9),
        Fields(),
        Fields(
            free=jnp.asarray([[1, 2], [3, 4]], jnp.uint8),
            typed=np.zeros((0, 3), np.float32),
            pair=Pair(jnp.ones(2, bool), np.asarray([1.5], ml_dtypes.bfloat16)),
            anything=(NO_RULESET, jnp.int8(3), "text", None, Mine(CartPole())),
            world=Mine(CartPole(gravity=3.0)),
            number=np.float32(0.1),
            ceiling=math.inf,
            limit=-math.inf,
            sizes=[],
            label="nan",
            rule=np.float32,
            flag=True,
            some=3,
        ),
        Fields(free=np.asarray([0.1, -0.1], np.float16), anything=np.asarray(1.5, np.float16)),
    ],
    ids=lambda environment: type(environment).__name__,
)
def test_an_environment_is_the_same_again(environment):
    if isinstance(environment, Fields) and environment.sizes == []:
        environment = dataclasses.replace(environment, sizes=((), (1, (2,))))
    through_a_file(environment)


@envs.environment
class OwnLimit(CartPole):
    """Has a limit of its own, by the name of the wrapper's."""

    max_episode_steps: int = 20


def test_a_limit_that_is_the_environments_own_field_is_written():
    for limit, description in (
        (7, describe(OwnLimit(max_episode_steps=7))),
        (20, describe_named(f"{__name__}:OwnLimit", {})),
    ):
        assert description.parameters["max_episode_steps"] == limit


def test_a_wrapper_is_written_with_the_name_of_what_it_holds():
    stacked = description_to_json(describe(FrameStack(make("CartPole-v1", gravity=5.0), 4)))
    assert stacked["name"] == "shoal.envs.wrappers:FrameStack"
    assert stacked["parameters"]["frames"] == 4
    inner = stacked["parameters"]["env"]
    assert inner["name"] == "CartPole-v1"
    assert inner["parameters"]["gravity"] == 5.0
    assert inner["parameters"]["max_episode_steps"] == 500


def test_what_a_name_stands_for_is_not_written_nor_what_cannot_be(monkeypatch):
    monkeypatch.setattr("shoal.envs.registry._entries", dict(registry._entries))

    class Local:
        """No JSON has a word for one."""

    local = Local()
    registry.register("Stiff", CartPole, parameters={"gravity": 3.0}, max_episode_steps=9)
    assert "gravity" not in describe(make("Stiff")).parameters
    assert describe(make("Stiff")).name == "Stiff"
    assert describe_named("Stiff", {"gravity": 4.0}).parameters["gravity"] == 4.0

    def with_default(helper=local, gravity: float = 1.0, *, required, **others):
        return CartPole(gravity=gravity)

    registry.register("Helped", with_default)
    assert describe_named("Helped", {"required": 1}) == (
        "Helped",
        {"max_episode_steps": None, "trial_episodes": None, "gravity": 1.0, "required": 1},
        {},
    )
    gaps = describe_named("Helped", {"required": 1, "helper": Local()}).gaps
    assert gaps == {"helper": "a value of type Local cannot be written as JSON"}


def test_a_class_that_is_not_made_of_its_fields_is_told_so():
    description = describe(Shifted(1.0))
    assert description.name == f"{__name__}:Shifted"
    reason = "made from its own fields it is another environment"
    assert description.gaps == {"class": reason}
    with pytest.raises(
        ShoalError, match=f"cannot be made again, since {reason}; give the environment itself"
    ):
        rebuild(description_to_json(description), {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda x: x, "<lambda> cannot be imported by that name"),
        (jax.random.key(0), "an array of key<fry> cannot be written as JSON"),
        (np.ones(2, complex), "an array of complex128 cannot be written as JSON"),
        (np.zeros(50_001), "it is an array of 50,001 numbers, and a config holds at most 50,000"),
        (Box(0.0, 1.0), "a value of type Box cannot be written as JSON"),
        ({"a": 1}, "a value of type dict cannot be written as JSON"),
        ((1, {2}), "a value of type set cannot be written as JSON"),
    ],
)
def test_what_cannot_be_written_down_has_a_reason(value, reason):
    with pytest.raises(ShoalError) as error:
        to_json(value)
    assert reason in str(error.value)
    description = describe(Mine(Fields(anything=value) if not callable(value) else Fields(rule=value)))
    assert reason in description.gaps["env"]


def test_nothing_is_called_that_is_no_struct():
    """A file may name anything that can be imported."""
    for name in ("fractions:Fraction", "os:getcwd", f"{__name__}:double"):
        with pytest.raises(
            ShoalError, match=f"{name} is not a class of an environment, a struct or a NamedTuple"
        ):
            from_json({"name": name, "parameters": {}})


@pytest.mark.parametrize("value", [Pair, double, Holder.Inner])
def test_classes_and_functions_are_written_by_their_names(value):
    assert to_json(value) == {"imported": f"{__name__}:{value.__qualname__}"}
    assert from_json(to_json(value)) is value


def test_the_same_is_of_one_structure_with_equal_leaves():
    assert trees_equal(CartPole(gravity=1.0), CartPole(gravity=jnp.float32(1.0)))
    for one, other in (
        (CartPole(), CartPole(gravity=1.0)),
        (CartPole(), TimeLimit(CartPole(), 2)),
        (TimeLimit(CartPole(), 3), TimeLimit(CartPole(), 2)),
        (np.ones(2, np.uint8), np.ones(2, np.int32)),
        (np.ones(2), np.ones(3)),
        ("a", "b"),
        ("3", 3),
        (jax.random.key(0), 3),
    ):
        assert not trees_equal(one, other)


def object_of(package):
    """An object of a package of environments."""
    module = pytest.importorskip(package)
    if package == "brax":
        return importlib.import_module("brax.envs").get_environment("fast")
    return module.make({"gymnax": "Catch-bsuite", "jumanji": "Snake-v1", "jaxmarl": "MPE_simple_v3"}[package])


@pytest.mark.quick("gymnax")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the packages' own code
@pytest.mark.parametrize("package", ["brax", "gymnax", "jumanji", "jaxmarl"])
@pytest.mark.rare("brax", "jaxmarl")
def test_an_adapted_object_has_the_name_of_its_own_class(package):
    given = object_of(package)
    own = type(given[0] if isinstance(given, tuple) else given)
    mine = type("Mine", (own,), {"__module__": "my_module"})
    world = given[0] if isinstance(given, tuple) else given
    world.__class__ = mine
    description = describe(registry.adapted(given))
    assert description.name == f"{package}/my_module:Mine"
    with pytest.raises(
        ShoalError, match=r"my_module:Mine cannot be made again, since it is an object that was given"
    ):
        rebuild(description_to_json(description), {})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_wrapped_adapted_object_has_the_name_of_its_own_class():
    world = object_of("gymnax")[0]
    world.__class__ = type("Mine", (type(world),), {"__module__": "my_module"})
    inner = registry.adapted(world)
    for env, parameters in (
        (TimeLimit(inner, 7), {"max_episode_steps": 7}),
        (RewardScale(TimeLimit(inner, 7), 0.5), {"scale": 0.5}),
    ):
        description = describe(env)
        assert description.name == "gymnax/my_module:Mine" and list(description.gaps) == ["class"]
        assert parameters.items() <= description.parameters.items()


@pytest.mark.full
def test_an_environment_of_jaxmarl_that_a_name_made_has_that_name():
    pytest.importorskip("jaxmarl")
    env = make("jaxmarl/MPE_simple_spread_v3", num_agents=2, team_return="sum")
    description = describe(env)
    assert description.name == "jaxmarl/MPE_simple_spread_v3" and not description.gaps
    assert rebuild(description_to_json(description), {})[0] == env
