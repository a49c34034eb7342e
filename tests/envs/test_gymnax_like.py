"""gymnax's and Craftax's environments: equal to the packages' own `step_env`, and what Shoal adds to them."""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from killed_runs import assert_killed_run_ends_the_same
from random_play import played

import shoal
from shoal.base.errors import ShoalError
from shoal.base.installation import install_command
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.envs import Batch, make, parameters_of
from shoal.envs.base import can_render, render
from shoal.envs.gymnax_like.gymnax_adapter import GYMNAX, OBSERVES_TIME, limit_name, observes_time
from shoal.envs.registry import adapted
from shoal.envs.suites import packages
from shoal.envs.suites.families import FAMILIES
from shoal.envs.wrappers import TimeLimit

QUICKEST = (
    "Breakout-MinAtar",
    "DeepSea-bsuite",
    "FrozenLake-misc",
    "MetaMaze-misc",
    "Pendulum-v1",
)  # to compile
needs_gymnax = pytest.mark.skipif(
    importlib.util.find_spec("gymnax") is None, reason="gymnax is not installed"
)
needs_craftax = pytest.mark.skipif(
    importlib.util.find_spec("craftax") is None, reason="Craftax is not installed"
)
pytestmark = [
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the packages' own code
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

CATCH = "gymnax/Catch-bsuite"
CLASSIC = "craftax/Craftax-Classic-Symbolic-v1"
DOWNLOADS = ("MNISTBandit-bsuite",)
WITHOUT_DOWNLOADS = [x for x in FAMILIES["gymnax/"].names if x not in DOWNLOADS]
NUM_ENVS = 8
STEPS = 100  # of each environment: 8 x 100 steps of 25 names are 20,000


def inner(env):
    """The adapter's environment, without the time limit, and the limit."""
    return (env.env, env.max_steps) if isinstance(env, TimeLimit) else (env, None)


def own_params(env):
    """The package's parameters of an environment, with the package's own limit where Shoal had moved it."""
    made, limit = inner(env)
    return made.params if limit is None else made.params.replace(**{limit_name(made.params): limit})


def both(env, num_envs, steps, choose=None):
    """Play an environment, and let the package's own object make each step from the same state.

    The environment's parameters are traced arrays, as in a training. Returns the time-steps and the package's results,
    [T, N, ...]. Episodes begin again at their first state.
    """
    made, limit = inner(env)
    world, params = made.world, own_params(env)

    def one(env, state, start, key):
        action_key, step_key = jax.random.split(key)
        action = env.action_space.sample(action_key) if choose is None else choose(action_key)
        after, timestep = env.step(state, action, step_key)
        own_state = state if limit is None else state.env
        observation, own_after, reward, done, _ = world.step_env(step_key, own_state, action, params)
        is_cut = world.is_truncated(own_after, params) if hasattr(world, "is_truncated") else False
        own = Own(observation, own_after, reward, jnp.asarray(done), jnp.asarray(is_cut))
        following = jax.tree.map(lambda x, y: jnp.where(timestep.last, x, y), start, after)
        return following, (timestep, own, after if limit is None else after.env)

    @jax.jit
    def run(env, key):
        starts, _ = jax.vmap(env.reset)(jax.random.split(key, num_envs))

        def body(states, key):
            return jax.vmap(functools.partial(one, env))(states, starts, jax.random.split(key, num_envs))

        return jax.lax.scan(body, starts, jax.random.split(key, steps))[1]

    return jax.tree.map(as_numbers, run(struct.as_arrays(env), jax.random.key(3)))


class Own(NamedTuple):
    """What a package's own `step_env` returns, and whether its own limit has passed."""

    observation: jax.Array
    state: object
    reward: jax.Array
    done: jax.Array
    is_cut: jax.Array


def as_numbers(x):
    """An array of NumPy's, of a key its data."""
    return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def compare(env, num_envs=NUM_ENVS, steps=STEPS, choose=None):
    """Assert that the steps of an environment are the package's own; return the time-steps."""
    timesteps, own, states = both(env, num_envs, steps, choose)
    made, limit = inner(env)
    np.testing.assert_allclose(timesteps.observation, own.observation, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(timesteps.reward, own.reward, rtol=1e-5, atol=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), states, own.state)
    np.testing.assert_array_equal(timesteps.last, own.done | own.is_cut)
    np.testing.assert_array_equal(timesteps.discount, np.where(timesteps.terminated, 0, 1))
    if hasattr(made.world, "is_truncated"):  # gymnax tells the ends apart
        np.testing.assert_array_equal(timesteps.terminated, own.done)
    elif limit:
        np.testing.assert_array_equal(timesteps.truncated, own.done & ~is_over(own.state))
        assert (own.state.timestep[timesteps.truncated] == limit).all()
    return timesteps


def is_over(state):
    """Whether a Craftax player is dead, as it is at the end of a state's health or, in Classic, in lava."""
    is_dead = state.player_health <= 0
    if state.map.ndim == 4:  # Classic has one floor
        lava = importlib.import_module("craftax.craftax_classic.constants").BlockType.LAVA.value
        row, column = np.moveaxis(state.player_position, -1, 0)
        time, env = np.indices(row.shape)
        is_dead = is_dead | (state.map[time, env, row, column] == lava)
    return is_dead


@pytest.mark.full
@needs_gymnax
def test_steps_of_catch_are_those_of_gymnax_and_end_by_its_rules_or_a_limit():
    timesteps = compare(make(CATCH, max_episode_steps=7), steps=30)
    assert timesteps.truncated.any() and not timesteps.terminated.any()  # the ball needs 9 steps
    timesteps = compare(make(CATCH), steps=30)
    assert timesteps.terminated.any() and not timesteps.truncated.any()
    assert (
        make(CATCH).max_steps == 1000 and inner(make(CATCH))[0].params.max_steps_in_episode == LARGEST_INDEX
    )


@pytest.mark.full
@needs_gymnax
def test_a_batch_truncates_at_the_limit_and_shows_the_final_observation():
    _, _, timesteps = played(make(CATCH, max_episode_steps=7), 3, 16)
    np.testing.assert_array_equal(np.flatnonzero(timesteps.last[:, 0]), [7, 15])
    assert timesteps.truncated[7].all() and (timesteps.discount[7] == 1).all()
    balls = timesteps.observation[7].reshape(3, 10, 5)[:, 7].sum(-1)
    np.testing.assert_array_equal(balls, 1)  # has fallen seven rows
    assert timesteps.first[8].all()


@pytest.mark.parametrize(
    "name",
    [*(f"gymnax/{x}" for x in WITHOUT_DOWNLOADS), *(f"craftax/{x}" for x in FAMILIES["craftax/"].names)],
)
@pytest.mark.quick("gymnax/Asterix-MinAtar", "gymnax/Catch-bsuite", "gymnax/Pong-misc")
@pytest.mark.rare(
    "craftax/Craftax-Classic-Pixels-v1",
    "craftax/Craftax-Pixels-v1",
    "craftax/Craftax-Symbolic-v1",
    "craftax/Craftax-Classic-Symbolic-v1",
)
def test_reset_and_step_have_equal_types_where_a_training_traces_the_parameters(name):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    env = make(name)
    started = jax.eval_shape(lambda env, key: env.reset(key), struct.as_arrays(env), jax.random.key(0))
    action, key = env.action_space.sample(jax.random.key(0)), jax.random.key(0)
    stepped = jax.eval_shape(
        lambda env, state: env.step(state, action, key), struct.as_arrays(env), started[0]
    )
    assert jax.tree.structure(started) == jax.tree.structure(stepped)
    for x, y in zip(jax.tree.leaves(started), jax.tree.leaves(stepped), strict=True):
        assert (x.shape, x.dtype, x.weak_type) == (y.shape, y.dtype, y.weak_type)
        assert not x.weak_type


@needs_gymnax
def test_parameters_are_data_and_a_changed_one_changes_the_step():
    name, key = "gymnax/MountainCar-v0", jax.random.key(1)
    state, _ = make(name).reset(key)
    gravities = jnp.asarray([0.0025, 0.005, 0.01])

    def velocity(gravity):
        return make(name, gravity=gravity).step(state, jnp.int32(1), key)[1].observation[1]

    velocities = jax.jit(jax.vmap(velocity))(gravities)
    assert len(np.unique(velocities)) == 3
    alone = [velocity(float(gravity)) for gravity in gravities]
    np.testing.assert_allclose(velocities, alone, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(make(name, max_speed=0.2).observation_space.high[1], 0.2)
    assert Batch([make(name, gravity=x) for x in (0.0025, 0.005)], 4).num_envs == 4


@needs_gymnax
def test_parameters_of_the_class_and_of_the_package_have_its_defaults():
    known = parameters_of("gymnax/CartPole-v1")
    assert known["gravity"].default == 9.8 and known["max_episode_steps"].default == 500
    assert "max_steps_in_episode" not in known  # it is `max_episode_steps`
    assert make(CATCH, rows=6, columns=4).observation_space.shape == (6, 4)
    assert make("gymnax/DeepSea-bsuite", size=12).max_steps == 12  # gymnax's limit of this size
    with pytest.raises(ShoalError, match="has no parameter 'row'"):
        make(CATCH, row=3)


@pytest.mark.full
@needs_gymnax
def test_an_object_of_gymnax_is_adapted_with_its_limit():
    import gymnax

    world, params = gymnax.make("Catch-bsuite")
    env = adapted((world, params.replace(max_steps_in_episode=5)))
    assert env.max_steps == 5 and env.env.world is world
    assert adapted(world).max_steps == 1000
    assert shoal.check((world, params), keys=2, steps=12) == []
    sizes = {"num_envs": 4, "num_steps": 8, "num_minibatches": 1, "update_epochs": 1, "hidden_sizes": (4,)}
    trained = shoal.make_train((world, params), total_steps=64, num_evals=2, eval_episodes=2, **sizes)
    assert callable(trained)


@needs_gymnax
def test_an_unknown_name_and_a_wrong_value_are_one_sentence():
    cartpole = "gymnax/CartPole-v1"
    for name, given, sentence in [
        ("gymnax/Catch-bsuit", {}, "no environment 'gymnax/Catch-bsuit'; did you mean 'gymnax/Catch-bsuite'"),
        ("gymnax/xyz", {}, "no environment 'gymnax/xyz'; there are .*Acrobot-v1.*, and module:Name"),
        (cartpole, {"gravity": np.inf}, "gravity=inf is out of bounds: it must be finite"),
        (cartpole, {"gravity": 1e300}, "gravity=1e.300 is out of bounds: .*, and it must be finite"),
        (cartpole, {"length": 10**400}, "length=inf is out of bounds"),
        ("gymnax/Asterix-MinAtar", {"ramp_interval": 2**31}, "ramp_interval=2147483648: .* out of bounds"),
        ("gymnax/MetaMaze-misc", {"max_steps_in_episode": 0}, "in_episode=0 is out of bounds"),
        ("gymnax/BernoulliBandit-misc", {"max_steps_in_episode": -1.5}, "=-1.5 is out of bounds"),
    ]:
        with pytest.raises(ShoalError, match=sentence):
            make(name, **given)


def broken(name):
    """A class that differs from gymnax's convention, made when gymnax is there."""
    cartpole = importlib.import_module("gymnax.environments.classic_control.cartpole").CartPole
    members = {
        "NoParameters": {"default_params": None},
        "SixResults": {"step_env": lambda self, *arguments: (*cartpole.step_env(self, *arguments), 1)},
    }
    return type(name, (cartpole,), members[name])


@needs_gymnax
@pytest.mark.parametrize("name", ["NoParameters", "SixResults"])
def test_a_class_that_differs_from_the_convention_is_one_sentence(name, monkeypatch):
    monkeypatch.setattr(sys.modules["random_play"], name, broken(name), raising=False)
    with pytest.raises(
        ShoalError, match=f"{name} cannot be adapted, since its functions are not those of the"
    ):
        jax.eval_shape(make(f"gymnax/random_play:{name}").reset, jax.random.key(0))


@needs_gymnax
def test_a_limit_that_is_no_number_of_steps_is_one_sentence():
    world, params = importlib.import_module("gymnax").make("Breakout-MinAtar")
    for limit in (0, np.nan, np.inf, 2.5, "7"):
        with pytest.raises(ShoalError, match=r"MinBreakout: max_steps_in_episode=.* is not a whole"):
            adapted((world, params.replace(max_steps_in_episode=limit)))


@needs_gymnax
def test_a_stack_of_environments_has_observations_without_bounds():
    stack = jax.vmap(lambda x: make("gymnax/MountainCar-v0", gravity=x))(jnp.asarray([0.002, 0.003]))
    assert np.isinf(stack.observation_space.high).all() and stack.observation_space.shape == (2,)


@needs_gymnax
def test_parameters_may_be_arrays_on_which_the_spaces_depend(monkeypatch):
    catch = importlib.import_module("gymnax.environments.bsuite.catch")
    box = importlib.import_module("gymnax.environments.spaces").Box
    goal = dataclasses.field(default_factory=lambda: jnp.asarray([1, 2]))
    params = type("Params", (catch.EnvParams,), {"__annotations__": {"goal": Any}, "goal": goal})
    params = importlib.import_module("flax.struct").dataclass(params)
    members = {
        "default_params": property(lambda self: params()),
        "observation_space": lambda self, params: box(0, jnp.max(params.goal), (10, 5), jnp.float32),
    }
    monkeypatch.setattr(sys.modules[__name__], "Far", type("Far", (catch.Catch,), members), raising=False)
    env = make(f"gymnax/{__name__}:Far")
    assert (env.observation_space.high == 2).all() and env.env.params.goal.shape == (2,)
    for goal, high in [(jnp.asarray([1.5, 2.5]), 2.5), (jnp.float32(0.5), np.inf)]:
        assert (adapted((env.env.world, params(goal=goal))).observation_space.high == high).all()


@needs_gymnax
def test_a_class_of_ones_own_has_a_name():
    env = make("gymnax/gymnax.environments.bsuite.catch:Catch", rows=5)
    assert env.max_steps == 1000 and env.observation_space.shape == (5, 5)


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        (None, "need gymnax, which is not installed; `{}` installs it"),
        ("0.0.9", "need gymnax 1.0.1 or newer, and 0.0.9 is installed; `{}` installs a newer"),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_or_too_old_is_one_sentence(monkeypatch, version, sentence):
    def installed(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    packages.import_suite.cache_clear()
    GYMNAX.constructor_of.cache_clear()
    with pytest.raises(ShoalError) as error:
        make(CATCH)
    assert sentence.format(install_command("gymnax")) in str(error.value)


@pytest.mark.full
@needs_craftax
def test_classes_of_craftax_that_reset_themselves_are_refused():
    make_world = packages.import_suite("craftax/", "craftax.craftax_env").make_craftax_env_from_name
    with pytest.raises(
        ShoalError, match="CraftaxClassicSymbolicEnv begins new episodes itself; give one that does"
    ):
        adapted(make_world("Craftax-Classic-Symbolic-v1", auto_reset=True))


@needs_gymnax
@pytest.mark.full
@pytest.mark.parametrize("name", WITHOUT_DOWNLOADS)
@pytest.mark.rare(*(x for x in WITHOUT_DOWNLOADS if x not in QUICKEST))
def test_steps_are_those_of_gymnax(name):
    env = make("gymnax/" + name)
    compare(env)
    made, limit = inner(env)
    if observes_time(made.world):
        assert limit is None
    else:
        assert compare(make("gymnax/" + name, max_episode_steps=6), steps=20).last.any()


@needs_gymnax
@pytest.mark.full
@pytest.mark.parametrize("name", OBSERVES_TIME)
def test_tasks_that_observe_the_time_keep_their_limit_which_truncates(name):
    (full_name,) = [x for x in FAMILIES["gymnax/"].names if x.startswith(name)]
    assert parameters_of("gymnax/" + full_name)["max_episode_steps"].default is None
    timesteps = compare(make("gymnax/" + full_name, max_steps_in_episode=9), 2, 18)
    assert timesteps.truncated[8].all() and not timesteps.terminated[8].any()


@needs_craftax
@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES["craftax/"].names)
@pytest.mark.rare(*(x for x in FAMILIES["craftax/"].names if x != "Craftax-Classic-Symbolic-v1"))
@pytest.mark.rare("Craftax-Classic-Symbolic-v1")
def test_steps_are_those_of_craftax_and_its_limit_truncates(name):
    num_envs, steps = (2, 30) if "Pixels" in name else (4, 100)
    timesteps = compare(make("craftax/" + name, max_episode_steps=steps // 3), num_envs, steps)
    assert timesteps.truncated.any() and (timesteps.discount[timesteps.truncated] == 1).all()
    assert make("craftax/" + name).max_steps == (10_000 if "Classic" in name else 100_000)


@needs_craftax
@pytest.mark.full
def test_death_terminates_and_achievements_are_those_of_the_state():
    env = make(CLASSIC)
    state, timestep = env.reset(jax.random.key(0))
    assert not any(np.asarray(x) for x in timestep.info.values()) and len(timestep.info) == 22
    step = jax.jit(env.step)
    reached = state.env.achievements.at[jnp.asarray([0, 5])].set(True)
    state = state._replace(env=state.env.replace(achievements=reached))
    state, timestep = step(state, jnp.int32(0), jax.random.key(1))
    enum = importlib.import_module("craftax.craftax_classic.constants").Achievement
    assert not timestep.last
    shown = {name.name: float(timestep.info[f"achievements/{name.name.lower()}"]) for name in enum}
    assert shown == {name.name: float(state.env.achievements[name.value]) for name in enum}
    assert shown[enum(0).name] == shown[enum(5).name] == 1
    dying = state._replace(env=state.env.replace(player_health=jnp.int32(-100)))
    _, timestep = step(dying, jnp.int32(0), jax.random.key(2))
    assert (
        timestep.terminated
        and timestep.discount == 0
        and timestep.info[f"achievements/{enum(0).name.lower()}"]
    )


@pytest.mark.full
@pytest.mark.parametrize("name", [CATCH, "gymnax/Breakout-MinAtar", "gymnax/CartPole-v1", CLASSIC])
@pytest.mark.rare("gymnax/CartPole-v1", CLASSIC)
def test_a_state_is_drawn(name):
    pytest.importorskip(name.split("/")[0])
    env = make(name)
    state, _ = env.reset(jax.random.key(0))
    assert can_render(env)
    picture = render(env, state)
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[-1] == 3 and picture.std() > 0


@needs_gymnax
@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_the_same(tmp_path):
    assert_killed_run_ends_the_same(tmp_path, CATCH)
