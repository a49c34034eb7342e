"""JaxDEM's environments, from the checkout that JAXDEM_CHECKOUT names, against their own steps."""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.envs.describing import describe
from shoal.envs.registry import adapted, make
from shoal.envs.suites import packages
from shoal.envs.suites.families import FAMILIES
from shoal.envs.wrappers import TimeLimit

FAMILY = FAMILIES["jaxdem/"]
KEY = jax.random.key(0)
# Their calls of `lidar_2d` and `lidar_3d` have an argument more than these take, in 5d9c13a; by module.
BROKEN = {"swarm_roller": "lidar_2d", "swarm_roller_3d": "lidar_3d", "swarm_stacking_3d": "lidar_3d"}
SMALL = {
    "multi_navigator": 4,
    "multi_roller": 4,
    "swarm_navigator": 4,
    "swarm_roller": 4,
    "swarm_stacking_3d": 4,
}
needs_checkout = [
    pytest.mark.full,
    pytest.mark.skipif(
        not FAMILY.is_installed or importlib.util.find_spec("h5py") is None,
        reason=f"there is no checkout of JaxDEM, or no h5py: {FAMILY.install}",
    ),
]


def with_marks(*cases):
    return [pytest.param(x, marks=needs_checkout) for x in cases]


@pytest.fixture(params=with_marks(*FAMILY.names))
def name(request, monkeypatch):
    """A name of JaxDEM's, whose calls of its own lidar are repaired where it makes none that work."""
    if request.param in BROKEN:
        repair(request.param, monkeypatch)
    return request.param


def repair(name, monkeypatch):
    FAMILY.adapter().makers()
    for module_name in {name, name.replace("_3d", "")}:
        if importlib.util.find_spec(f"jaxdem.rl.environments.{module_name}") is None:
            continue
        module = importlib.import_module(f"jaxdem.rl.environments.{module_name}")
        for function in ("lidar_2d", "lidar_3d", "cross_lidar_2d", "cross_lidar_3d"):
            if hasattr(module, function):
                monkeypatch.setattr(module, function, functools.partial(called, getattr(module, function)))


def called(function, *arguments, **keywords):
    """Call a function of JaxDEM's without the last argument, a number of agents that it took once."""
    return function(*arguments[:-1], **keywords)


@functools.cache
def own_class(name):
    return FAMILY.adapter().makers()[name]


def test_each_is_stepped_as_its_own_functions_do_to_its_end_and_from_the_next_start(name):
    sizes = {"N": SMALL[name]} if name in SMALL else {}
    env, own = make(f"jaxdem/{name}", max_steps=99, **sizes), own_class(name).Create(max_steps=99, **sizes)
    assert env.max_steps == 100
    one = own.max_num_agents == 1
    actions = jax.random.uniform(
        KEY, (300, own.max_num_agents, own.action_space_size), minval=-6.0, maxval=6.0
    )
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    advance = jax.jit(lambda own, action: own.step(own, action))
    observe = jax.jit(lambda own: (own.observation(own), own.reward(own), own.done(own)))
    ends = []
    for t in range(300):
        if t % 100 == 0:
            key = jax.random.fold_in(KEY, t)
            state, timestep = reset(key)
            own = own.reset(own, key)
            assert timestep.first
            same(timestep.observation, own.observation(own), one)
        state, timestep = step(state, actions[t, 0] if one else actions[t], KEY)
        own = advance(own, actions[t])
        observation, reward, done = observe(own)
        same(timestep.observation, observation, one)
        same(timestep.reward, reward, one)
        assert bool(timestep.last) == bool(done)
        assert not np.any(timestep.terminated)
        ends += [t] * bool(done)
    assert ends == [99, 199, 299]


def same(ours, theirs, is_one):
    """Compare within what compiling another program may round; one agent has no axis of agents."""
    theirs = theirs[0] if is_one else theirs
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.fixture(params=with_marks(""))
def navigator(request):
    return own_class("single_navigator")


@pytest.mark.parametrize("broken", with_marks(*BROKEN))
def test_what_fails_in_jaxdem_itself_is_a_sentence(broken):
    own = own_class(broken).Create()
    try:
        jax.eval_shape(own.reset, own, KEY)
    except TypeError as error:
        with pytest.raises(ShoalError, match="cannot be adapted, since its functions are not") as refusal:
            make(f"jaxdem/{broken}")
        assert str(error) in str(refusal.value)
    else:
        make(f"jaxdem/{broken}")


def test_frames_are_skipped_as_jaxdems_trainer_does(navigator):
    env = make("jaxdem/single_navigator", skip_frames=4, max_steps=12, min_box_size=4.0, max_box_size=4.0)
    last = make(
        "jaxdem/single_navigator",
        skip_frames=4,
        sum_rewards=False,
        max_steps=12,
        min_box_size=4.0,
        max_box_size=4.0,
    )
    own = navigator.Create(max_steps=12, min_box_size=4.0, max_box_size=4.0)
    assert env.max_steps == last.max_steps == 3  # the flag is set in the 13th step of the physics
    state, _ = env.reset(KEY)
    own, action, rewards = own.reset(own, KEY), jnp.asarray([3.0, -2.0]), []
    for _ in range(5):
        own = own.step(own, action[None])
        rewards.append(own.reward(own)[0])
    assert jnp.allclose(env.step(state, action, KEY)[1].reward, sum(rewards), atol=1e-6)
    _, timestep = last.step(last.reset(KEY)[0], action, KEY)
    assert jnp.allclose(timestep.reward, rewards[-1], atol=1e-6)
    assert jnp.allclose(timestep.observation, own.observation(own)[0], atol=1e-5)


def test_its_own_limit_terminates_where_that_is_asked_for(navigator):
    env = make("jaxdem/single_navigator", ends_terminate=True, max_steps=2)
    assert not isinstance(env, TimeLimit)
    state, _ = env.reset(KEY)
    flags = []
    for _ in range(3):
        state, timestep = env.step(state, jnp.zeros(2), KEY)
        flags.append(bool(timestep.terminated))
    assert flags == [False, False, True]


def test_floats_of_its_class_are_data(navigator):
    def pull(friction):
        env = make("jaxdem/single_navigator", friction=friction)
        state, _ = env.reset(KEY)
        for _ in range(3):
            state, timestep = env.step(state, jnp.ones(2), KEY)
        return timestep.observation

    rows = jax.vmap(pull)(jnp.asarray([0.2, 0.9]))
    assert jnp.allclose(rows[1], pull(0.9), atol=1e-6) and not jnp.allclose(rows[0], rows[1], atol=1e-6)
    trees = [jax.tree.structure(make("jaxdem/single_navigator", friction=x)) for x in (0.2, 0.9)]
    assert trees[0] == trees[1]


def test_objects_are_taken_alone_or_with_settings(navigator):
    world = navigator.Create(max_steps=9)
    env = adapted((world, {"low": (-1.0, -2.0), "high": 3.0, "skip_frames": 1}))
    assert env.max_steps == 5 and env.action_space.low.tolist() == [-1, -2]
    assert adapted(world).max_steps == 10
    listed = adapted((world, {"low": [-1, -2], "high": 3.0, "skip_frames": 1}))  # as a command reads it
    assert jax.tree.structure(listed) == jax.tree.structure(env)
    made = make(world, low=(-1.0, -2.0), high=3.0, skip_frames=1)
    assert jax.tree.structure(made) == jax.tree.structure(env) and made.max_steps == 5
    assert make(world, max_episode_steps=4).max_steps == 4
    assert not isinstance(make(world, max_episode_steps=None), TimeLimit)
    assert describe(adapted(world)).name == "jaxdem/jaxdem.rl.environments.single_navigator:SingleNavigator"
    with pytest.raises(
        ShoalError, match=r"JaxDEM's objects have no setting 'skip_frame', but low, .*skip_frames"
    ):
        adapted((world, {"skip_frame": 1}))
    with pytest.raises(ShoalError, match="no setting 'skip_frame'"):
        make(world, skip_frame=1)
    batch = jax.vmap(lambda _: world)(jnp.arange(3))
    with pytest.raises(ShoalError, match="SingleNavigator cannot be adapted"):
        adapted(batch)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"skip_frames": -1}, "JaxDEM: skip_frames=-1"),
        ({"low": 7.0}, "low=7.0, high=6.0 are no bounds of an action of 2"),
        ({"low": (1.0, 2.0, 3.0)}, "low=(1.0, 2.0, 3.0), high=6.0 are no bounds of an action of 2"),
        ({"frictoin": 1.0}, "did you mean 'friction'"),
        ({"dim": 5}, "dim=5"),
        ({"max_steps": -5}, "max_steps=-5 is not a whole number of 1 or more"),
    ],
)
def test_bad_parameters_are_sentences(navigator, parameters, sentence):
    with pytest.raises(ShoalError) as error:
        make("jaxdem/single_navigator", **parameters)
    assert sentence in str(error.value)


# Without a checkout.


@pytest.mark.parametrize("where", ["", "missing"])
def test_without_a_checkout_it_is_said_how_to_get_one(where, tmp_path, monkeypatch):
    folder = str(tmp_path) if where else ""
    monkeypatch.setenv("JAXDEM_CHECKOUT", folder)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    packages.import_suite.cache_clear()
    with pytest.raises(ShoalError) as error:
        packages.import_suite("jaxdem/")
    reason = f"JAXDEM_CHECKOUT={folder!r} has none" if folder else "it is on no index"
    assert str(error.value) == (
        f"names that begin with 'jaxdem/' need a checkout of JaxDEM, and {reason}; `git clone "
        'https://github.com/cdelv/JaxDEM && export JAXDEM_CHECKOUT="$PWD/JaxDEM"` makes one.'
    )
    assert not FAMILY.is_installed


def test_a_checkout_is_imported_from_its_folder_alone(tmp_path, monkeypatch):
    package = tmp_path / "walking"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("raise ValueError('it is old')")
    (package / "needy.py").write_text("import a_package_that_is_not_there")
    family = FAMILY._replace(title="Walking", package="walking", prefix="walking/")
    monkeypatch.setitem(FAMILIES, "walking/", family)
    monkeypatch.setenv("WALKING_CHECKOUT", str(tmp_path))
    assert family.is_installed and family.variable == "WALKING_CHECKOUT"
    before = list(sys.path)
    module = packages.import_suite("walking/")
    assert Path(module.__file__).parent == package and sys.path == before
    with pytest.raises(ShoalError, match="need Walking, whose import failed: ValueError: it is old"):
        packages.import_suite("walking/", "walking.broken")
    with pytest.raises(ShoalError, match="need a_package_that_is_not_there, which is not installed"):
        packages.import_suite("walking/", "walking.needy")
