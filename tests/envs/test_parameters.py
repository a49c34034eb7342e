"""Which values the parameters of an environment may have, however the environment is made."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, UInt8

import shoal
from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs import FrameStack, RewardScale, TimeLimit, Trial, environments, make, parameter, registry
from shoal.envs.classic.acrobot import Acrobot
from shoal.envs.classic.cartpole import CartPole
from shoal.envs.classic.mountain_car import MountainCar
from shoal.envs.classic.mountain_car_continuous import MountainCarContinuous
from shoal.envs.classic.pendulum import Pendulum
from shoal.envs.grid.tasks.minigrid import Empty
from shoal.envs.parameters import check_parameters, convert_to_declared
from shoal.envs.registry import bounds_of
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Environment
from shoal.types.spaces import Box, Discrete

CLASSIC = (Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum)
NAME = f"{__name__}:Winds"


class Pair(NamedTuple):
    """Two arrays, as a ruleset has three."""

    near: Float[Array, "..."]
    kind: UInt8[Array, "..."]


class World:
    """What all worlds here share; nothing happens in them."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), envs.restart(jnp.zeros(1))

    def step(self, state, action, key):
        return (), envs.transition(jnp.zeros(1), 0.0)


@envs.environment
class Winds(World):
    """Fields of all kinds."""

    speeds: jax.Array = parameter(default=np.ones(2, np.float32), low=0, high=10)
    shift: Float[Array, "..."] = dataclasses.field(default_factory=lambda: np.zeros(2, np.float32))
    pair: Pair = Pair(np.zeros(1, np.float32), np.zeros(1, np.uint8))
    plain: float = 1.0
    ceiling: float = parameter(default=math.inf, low=0, high=math.inf)
    sizes: tuple = (1, 2)
    count: int = parameter(default=1, low=1)
    label: str = "x"
    extra: Any = ()


@envs.environment
class Outer(World):
    """Holds a struct that is no wrapper's environment."""

    inner: Environment = Winds()


def refused(made: Any, sentence: str) -> None:
    with pytest.raises(ShoalError) as error:
        made()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cls", CLASSIC)
def test_no_number_of_a_classic_environment_may_be_what_it_cannot_be(cls):
    """Every field declares bounds; NaN and infinities are outside, 0 is where one divides by it."""
    bounds = bounds_of(f"{cls.__module__}:{cls.__qualname__}")
    for field in dataclasses.fields(cls):
        for value in (math.nan, math.inf, -math.inf, 1e300, jnp.nan * jnp.ones(3)):
            for env in (cls(**{field.name: value}), TimeLimit(cls(**{field.name: value}), 3)):
                refused(lambda env=env: check_parameters(env), f"{cls.__name__}: {field.name}=")
        if isinstance(field.default, int):
            continue  # of a number of actions 0.0 is no value
        zero = cls(**{field.name: 0.0})
        if str(bounds[field.name]) == "greater than 0":
            refused(lambda zero=zero: check_parameters(zero), f"{field.name}=0 is out of bounds")
        else:
            check_parameters(zero)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("gravity", math.nan, "CartPole-v1: gravity=nan is out of bounds: it must be finite."),
        ("gravity", np.float32("nan"), "gravity=nan is out of bounds"),
        ("gravity", 10**400, "gravity=inf is out of bounds"),
        ("gravity", 1e300, "in float32, in which everything is computed, it is inf, and it must be finite"),
        ("cart_mass", 0, "cart_mass=0 is out of bounds: it must be greater than 0."),
        ("cart_mass", np.array([1.0, -1.0]), "each number of it must be greater than 0."),
        ("gravity", np.bool_(True), "_ is not a number; give one such as 9.8."),
        ("max_episode_steps", 10**12, "is not a whole number of 1 or more, at most 2,147,483,647, nor None"),
    ],
)
def test_make_names_the_parameter_that_is_out_of_bounds(name, value, sentence):
    refused(lambda: make("CartPole-v1", **{name: value}), sentence)
    if name != "max_episode_steps":
        refused(
            lambda: make("CartPole-NoVelocity-v1", **{name: value}), sentence.removeprefix("CartPole-v1: ")
        )


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("speeds", [1.0, math.nan], "speeds=[1.0, nan] is out of bounds: each number of it must be at least 0 and"),
        ("speeds", [1, 11], "speeds=[1.0, 11.0] is out of bounds"),
        ("speeds", [[1, 2], [3]], "speeds=[[1, 2], [3]] is not an array of numbers"),
        ("speeds", "fast", "speeds='fast' is not an array; give one such as array("),
        ("shift", [0.0, math.inf], "shift=[0.0, inf] is out of bounds: each number of it must be finite."),
        ("pair", Pair(jnp.ones(1), jnp.ones(1)), ""),
        ("pair", Pair(jnp.nan * jnp.ones(1), jnp.ones(1)), "pair.near=[nan] is out of bounds"),
        ("ceiling", math.nan, "ceiling=nan is out of bounds: it must be at least 0."),
        ("ceiling", math.inf, ""),
        ("sizes", (1.0, math.inf), ""),
        ("sizes", (1.0, math.nan), "sizes[1]=nan is out of bounds"),
        ("count", True, "count=True is not a whole number; give one such as 1."),
        ("count", np.int64(3), ""),
        ("label", 3, "label=3 is not a text; give one such as 'x'."),
        ("extra", {"deep": [jnp.ones(2), math.nan]}, "extra['deep'][1]=nan is out of bounds"),
        ("extra", {"deep": [jnp.ones(2, bool), "text", jax.random.key(0)]}, ""),
        ("extra", RewardScale(CartPole(), math.nan), "RewardScale: scale=nan is out of bounds"),
    ],
)  # fmt: skip
def test_every_kind_of_field_is_checked(name, value, sentence):
    if not sentence:
        make(NAME, **{name: value})
        return
    refused(lambda: make(NAME, **{name: value}), sentence)


def test_an_environment_given_itself_is_checked_wherever_it_is_taken():
    """Inside wrappers, trials and structs as well; NaN in CartPole's gravity used to give the return 500."""
    policy = TrainedPolicy(None, None, CartPole(gravity=math.nan))
    for env in (
        CartPole(gravity=math.nan),
        CartPole(cart_mass=0.0),
        CartPole(gravity=True),
        CartPole(gravity="9.8"),
        TimeLimit(CartPole(), 0),
        TimeLimit(CartPole(), 2.5),
        TimeLimit(CartPole(), 10**12),
        FrameStack(CartPole(), 0),
        RewardScale(TimeLimit(CartPole(pole_mass=-1.0), 5), 2.0),
        Trial(CartPole(), 0),
        Empty(max_episode_steps=0),
        Outer(Winds(speeds=jnp.full(2, -1.0))),
    ):
        for take in (
            lambda env=env: shoal.train(env, total_steps=1),
            lambda env=env: shoal.evaluate(policy, env),
            lambda env=env: shoal.rollout(env),
            lambda env=env: shoal.check(env),
            lambda env=env: shoal.render(policy, "out.gif", env),
        ):
            with pytest.raises(ShoalError, match=r"is out of bounds|is not a number|is not a whole number"):
                take()
    refused(lambda: shoal.evaluate(policy), "CartPole: gravity=nan is out of bounds: it must be finite.")


def test_every_registered_environment_and_wrapper_lies_in_its_own_bounds():
    for name in environments():
        check_parameters(FrameStack(make(name, trial_episodes=2), 2))


def test_traced_values_are_not_read():
    @jax.vmap
    def velocity(gravity):
        env = make("MountainCar-v0", gravity=gravity)
        check_parameters(env)
        state, _ = env.reset(jax.random.key(0))
        return env.step(state, 2, jax.random.key(1))[1].observation[1]

    velocities = velocity(jnp.asarray([0.001, 0.002, jnp.nan]))
    assert velocities[0] != velocities[1]
    assert jnp.isnan(velocities[2])


def test_lists_become_what_is_declared():
    env = make(NAME, speeds=[1, 2], shift=[3, 4], pair=([1, 2], [3, 4]), sizes=[1, [2, 3]])
    assert env.speeds.dtype == env.shift.dtype == np.float32
    np.testing.assert_array_equal(env.shift, [3, 4])
    assert isinstance(env.pair, Pair)
    assert (env.pair.near.dtype, env.pair.kind.dtype) == (np.float32, np.uint8)
    assert env.sizes == (1, (2, 3))
    assert make(NAME, speeds=()).speeds.shape == (0,)
    for given, declared, dtype in (
        ([1, 2], jax.Array, np.int32),
        ([1.0, 2], jax.Array, np.float32),
        ([True, False], jax.Array, np.bool_),
        ([1, 2], Float[Array, "..."], np.float32),
        ([1, 2], jax.Array | None, np.int32),
    ):
        assert convert_to_declared("x", given, declared).dtype == dtype
    for given in ([0.5], [-1], [256]):
        refused(lambda given=given: convert_to_declared("x", given, UInt8[Array, "..."]), "x=[")


def test_a_function_takes_no_nan_either(monkeypatch):
    monkeypatch.setattr("shoal.envs.registry._entries", {})

    def ignoring(level: float = 1.0):
        return CartPole()

    registry.register("Ignoring", ignoring)
    refused(lambda: make("Ignoring", level=math.nan), "Ignoring: level=nan is out of bounds")
    assert make("Ignoring", level=math.inf) == CartPole()  # a function declares no bounds


def test_a_default_that_is_an_array_is_the_parameters_default():
    np.testing.assert_array_equal(envs.parameters_of(NAME)["speeds"].default, np.ones(2))
    np.testing.assert_array_equal(envs.parameters_of(NAME)["shift"].default, np.zeros(2))
