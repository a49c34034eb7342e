"""Gymnax-like worlds of several actors: a world of this folder, and jaxagents' hunts from its checkout."""

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import two_actors
from killed_runs import assert_killed_run_ends_the_same
from two_actors import Params, ResetsWithin, TwoActors, TwoAngles

import shoal
from shoal.base.errors import ShoalError
from shoal.cli import main
from shoal.config import struct
from shoal.envs import describing, make
from shoal.envs.registry import adapted
from shoal.types.spaces import Box, Discrete

KEY = jax.random.key(0)
NAME = "gymnax/two_actors:TwoActors"
GIVEN = {"params": "two_actors:Params", "actions": 3}
needs_gymnax = pytest.mark.skipif(
    importlib.util.find_spec("gymnax") is None, reason="gymnax is not installed"
)


WORLD = TwoActors()


def two(params=None, world=None, **given):
    made = WORLD if world is None else world()
    return make(made, params=Params() if params is None else params, **({"actions": 3} | given))


def test_its_one_observation_is_shown_to_all_and_each_is_paid_for_its_own_action():
    env, world = two(), TwoActors()
    assert (env.num_agents, env.roles, env.action_space) == (2, (0, 1), Discrete(3))
    assert env.observation_space == Box(-np.inf, np.inf, (4,))
    state, timestep = env.reset(KEY)
    observation, own = world.reset_env(KEY, Params())
    np.testing.assert_array_equal(timestep.observation, np.repeat(observation, 2, axis=0))
    for right in ([1, 1], [1, 0], [0, 1]):
        actions = (state.right + jnp.arange(2) + 1 - jnp.asarray(right)) % 3
        state, timestep = env.step(state, actions, KEY)
        observation, own, rewards, _, _ = world.step_env(KEY, own, actions, Params())
        np.testing.assert_array_equal(timestep.observation, np.repeat(observation, 2, axis=0))
        np.testing.assert_array_equal(timestep.reward, right)
        np.testing.assert_array_equal(timestep.info["right"], right)
        assert rewards.tolist() == right and set(timestep.info) == {"right", "truncated"}


@pytest.mark.parametrize(
    ("params", "given", "last", "discount"),
    [
        ({"steps": 1}, {}, True, 1.0),
        ({"steps": 1}, {"limit_terminates": True}, True, 0.0),
        ({"end": 1.0}, {}, True, 0.0),
        ({"end": 0.0}, {}, False, 1.0),
    ],
)
def test_the_flag_ends_and_its_limit_truncates_unless_it_is_said_to_terminate(params, given, last, discount):
    env = two(Params(**params), **given)
    timestep = env.step(env.reset(KEY)[0], jnp.zeros(2, jnp.int32), KEY)[1]
    assert bool(timestep.last) == last and timestep.discount.tolist() == [discount] * 2


def test_a_termination_that_info_names_wins_over_the_limit():
    class Named(TwoActors):
        def step_env(self, *arguments):
            *made, flag, info = super().step_env(*arguments)
            return *made, flag, info | {"terminated": jnp.asarray(True)}

    env = two(Params(steps=1), Named)
    assert env.step(env.reset(KEY)[0], jnp.zeros(2, jnp.int32), KEY)[1].terminated.all()


def test_params_are_data_so_that_worlds_with_others_stack():
    stacked = jax.tree.map(
        lambda *x: jnp.stack(x), *[struct.as_arrays(two(Params(pay=x))) for x in (1.0, 3.0)]
    )

    def paid(env):
        state, _ = env.reset(KEY)
        return env.step(state, state.right + jnp.arange(2) * 2, KEY)[1].reward[0]

    assert jax.vmap(paid)(stacked).tolist() == [1.0, 3.0]
    assert shoal.envs.Batch([two(Params(pay=1.0)), two(Params(pay=3.0))], 4).num_envs == 4


@pytest.mark.parametrize(
    ("bounds", "shape", "own"),
    [((-1.0, 1.0), (1,), (2,)), ((-1.0, (1.0, 2.0)), (2,), (2, 2)), (((-1.0,), (1.0,)), (1,), (2, 1))],
)
def test_actions_between_bounds_have_the_shape_that_the_world_takes(bounds, shape, own):
    class Shown(TwoActors):
        def step_env(self, key, state, actions, params):
            assert actions.shape == own and actions.dtype == jnp.float32
            return super().step_env(key, state, jnp.zeros(2, jnp.int32), params)

    env = two(world=Shown, actions=None, low=bounds[0], high=bounds[1])
    assert env.action_space.shape == shape
    jax.eval_shape(lambda key: env.step(env.reset(key)[0], jnp.zeros((2, *shape)), key), KEY)


def test_one_actor_has_no_axis():
    class Alone(TwoActors):
        def __init__(self):
            self.n_actors = 1

        def step_env(self, key, state, actions, params):
            assert actions.shape == (1,)
            shown, after, _, flag, info = super().step_env(key, state, jnp.zeros(2, jnp.int32), params)
            return shown, after, actions == state.right, flag, info | {"right": actions}

    env = two(world=Alone)
    timestep = env.step(env.reset(KEY)[0], jnp.int32(0), KEY)[1]
    assert env.num_agents == 1 and timestep.observation.shape == (4,) and timestep.reward.shape == ()
    assert timestep.info["right"].shape == ()


class Holds:
    """As jaxagents' TruncationWrapper: the actors are those of the world inside, its functions are its own."""

    def __init__(self):
        self._env = TwoActors()

    def reset_env(self, key, params):
        return self._env.reset_env(key, params)

    def step_env(self, key, state, actions, params):
        *made, flag, info = self._env.step_env(key, state, actions, params)
        return *made, jnp.asarray(True), info | {"terminated": flag, "truncated": True}


def test_a_wrapper_with_inner_functions_of_its_own_is_stepped():
    env = two(world=Holds)
    timestep = env.step(env.reset(KEY)[0], jnp.zeros(2, jnp.int32), KEY)[1]
    assert env.num_agents == 2 and timestep.truncated


def test_a_world_that_resets_within_its_only_step_says_what_is_lost():
    env = two(Params(steps=2), ResetsWithin, max_episode_steps=5)
    assert env.max_steps == 5 and two().caution == ""
    assert "true last observation is lost" in env.env.caution
    state, _ = env.reset(KEY)
    for is_last in (False, True):
        state, timestep = env.step(state, jnp.zeros(2, jnp.int32), KEY)
        assert bool(timestep.last) == is_last


class Declares(TwoActors):
    """A world with spaces and parameters of its own."""

    default_params = Params(pay=2.0)

    def action_space(self, params):
        return importlib.import_module("gymnax.environments.spaces").Discrete(3)


@needs_gymnax
def test_declared_spaces_and_parameters_are_used_as_an_object_too():
    for env in (make(Declares()), adapted(Declares()), adapted((Declares(), Params(pay=2.0)))):
        assert env.action_space == Discrete(3) and env.params.pay == 2.0


def returning(**changes):
    """A class whose step returns other rewards or another flag."""

    def step_env(self, *arguments):
        shown, after, rewards, flag, info = TwoActors.step_env(self, *arguments)
        return shown, after, changes.get("rewards", rewards), changes.get("flag", flag), info

    return type("Other", (TwoActors,), {"step_env": step_env})


@pytest.mark.parametrize(
    ("world", "given", "sentence"),
    [
        (TwoActors, {"actions": None}, "TwoActors has no action_space; give actions=4 for whole numbers from 0 to 3"),
        (TwoActors, {"params": None}, "TwoActors has no default_params; give params, which its functions take"),
        (TwoActors, {"low": -1.0, "high": 1.0}, "actions=3, low=-1.0, high=1.0; give actions, or both bounds"),
        (TwoActors, {"actions": None, "low": -1.0}, "actions=None, low=-1.0, high=None; give actions, or both bounds"),
        (TwoActors, {"actions": None, "low": (0.0, 1.0), "high": (1.0, 2.0, 3.0)}, "have different lengths"),
        (TwoActors, {"actions": 0}, "TwoActors: actions=0 is out of bounds"),
        (TwoActors, {"actions": 2.5}, "TwoActors: actions=2.5 is not a whole number"),
        (TwoActors, {"stepz": 3}, "TwoActors has no parameter 'stepz'; did you mean 'steps'"),
        (TwoActors, {"pay": "much"}, "TwoActors: pay='much' is not a number"),
        (TwoActors, {"params": "two_actors:Parms"}, "two_actors has no 'Parms'; did you mean 'Params'"),
        (TwoActors, {"params": Params(pay=np.inf)}, "pay.*=inf is out of bounds"),
        (TwoActors, {"team_return": 3}, "team_return=3 is "),
        (returning(rewards=jnp.zeros(3)), {}, r"Other returns rewards of shape \(3,\); \(2,\) would be right"),
        (returning(flag=jnp.zeros(2)), {}, r"Other returns a flag of shape \(2,\); \(\) would be right"),
        (type("Zero", (ResetsWithin,), {"n_actors": 0}), {}, "Zero: n_actors=0 is not a whole number of 1 or more"),
        (type("NoHash", (TwoActors,), {"__hash__": None}), {}, "NoHash has no hash; a dataclass has one"),
        (type("Bare", (), {"n_actors": 2}), {}, "Bare cannot be adapted, since .*has no attribute 'reset'"),
        (type("Passes", (), {"n_actors": 2, "__getattr__": lambda self, x: getattr(TwoActors(), x)}), {},
         "Passes is a wrapper; give the environment without it"),
    ],
)  # fmt: skip
def test_what_is_wrong_or_missing_is_one_sentence(world, given, sentence):
    with pytest.raises(ShoalError, match=sentence):
        make(world(), **({"params": Params(), "actions": 3} | given))


@needs_gymnax
def test_a_name_has_the_fields_of_params_and_is_written_down_with_all_of_them():
    env = make(NAME, **GIVEN, pay=2, max_episode_steps=4)
    assert env.max_steps == 4 and env.env.params.pay == 2.0
    written = describing.description_to_json(describing.describe_named(NAME, GIVEN | {"pay": 2.0}))
    assert written["parameters"].items() >= {"params": "two_actors:Params", "pay": 2.0, "steps": 8}.items()
    rebuilt, again = describing.rebuild(written, {"steps": 5})
    assert (rebuilt.params.pay, int(rebuilt.params.steps)) == (2.0, 5) and again.parameters["steps"] == 5
    paid = jax.vmap(lambda x: make(NAME, **GIVEN, pay=x).params.pay)(jnp.asarray([1.0, 2.0]))
    assert paid.tolist() == [1.0, 2.0]


@needs_gymnax
def test_the_command_line_says_what_a_name_needs(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "two_actors", two_actors)
    for words, sentence in [
        ([NAME, "params=two_actors:Params"], "has no action_space; give actions=4"),
        ([NAME, "actions=3"], "has no default_params; give params"),
        ([NAME, "params=no_such:Params", "actions=3"], "there is no module 'no_such'"),
        (["gymnax/no_such_checkout:World", "actions=3"], "there is no module 'no_such_checkout'"),
    ]:
        assert main(["train", *words, "--total-steps", "10"]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["envs", NAME, "params=two_actors:Params", "actions=3", "pay=2"]) == 0
    assert "Discrete(n=3)" in (page := capsys.readouterr().out) and "fields" not in page


@pytest.mark.full
@pytest.mark.parametrize(
    "env",
    [
        two(),
        two(Params(end=0.2), TwoAngles, actions=None, low=-3.0, high=3.0),
        two(Params(end=0.3), limit_terminates=True),
    ],
)
@pytest.mark.slow
def test_the_checker_finds_nothing(env):
    ignored = ["truncation"] if env.limit_terminates else []
    assert shoal.check(env, keys=4, steps=32, ignore=ignored) == []
    assert list(describing.describe(env).gaps) == ["class"]


@pytest.mark.slow
def test_each_actor_learns_its_own_action(tmp_path):
    sizes = {"num_envs": 8, "num_steps": 32, "num_evals": 5, "eval_episodes": 20, "parameters": "agent"}
    shoal.train(two(), total_steps=150_000, seeds=5, run_dir=tmp_path / "run", progress=False, **sizes)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert min(summary["absolute"]["returns"]) > 15.9  # of 16: eight steps of two


@needs_gymnax
@pytest.mark.slow
def test_a_run_that_is_killed_and_resumed_ends_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    assert_killed_run_ends_the_same(tmp_path, f"{NAME} params=two_actors:Params actions=3", "--agent-id")


@pytest.fixture
def hunts(monkeypatch):
    """jaxagents' module of the hunt for two, from its checkout."""
    if not (checkout := os.environ.get("JAXAGENTS_CHECKOUT")):
        pytest.skip("JAXAGENTS_CHECKOUT names no checkout of amavrits/jax-agents")
    monkeypatch.syspath_prepend(Path(checkout, "benchmarks", "marl", "hunting_2_players"))
    return importlib.import_module("hunting_env")


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "given"),
    [("HuntingDiscrete", {"actions": 4}), ("HuntingContinuous", {"low": -np.pi, "high": np.pi})],
)
def test_steps_of_jaxagents_hunt_are_its_own(hunts, name, given):
    world = getattr(hunts, name)()
    params = hunts.EnvParams(prey_velocity=3.0, predator_velocity=1.0, max_time=0.3)
    env = make(world, params=params, **given)
    steps, worlds = 500, 20

    def both(carry, key):
        (state, own), (act_key, step_key, reset_key) = carry, jax.random.split(key, 3)
        action = jax.vmap(env.action_space.sample)(jax.random.split(act_key, 2))
        after, timestep = env.step(state, action, step_key)
        made = world.step_env(step_key, own, action.reshape(2), params)
        caught = made[1].distance <= params.predator_radius
        first, own_first = env.reset(reset_key)[0], world.reset_env(reset_key, params)[1]
        following = jax.tree.map(lambda x, y: jnp.where(timestep.last, x, y), first, after)
        own = jax.tree.map(lambda x, y: jnp.where(made[3], x, y), own_first, made[1])
        return (following, own), (timestep, made[0], made[2], made[3], made[4]["truncated"], caught)

    def rollout(key):
        starts = env.reset(key)[0], world.reset_env(key, params)[1]
        return jax.lax.scan(both, starts, jax.random.split(key, steps))[1]

    timestep, shown, rewards, flag, cut, caught = jax.jit(jax.vmap(rollout))(jax.random.split(KEY, worlds))
    assert shown.shape == (worlds, steps, 1, 7) and env.observation_space.shape == (7,)
    np.testing.assert_array_equal(timestep.observation, np.repeat(shown, 2, axis=2))
    np.testing.assert_array_equal(timestep.reward, rewards)
    np.testing.assert_array_equal(timestep.last, flag)
    np.testing.assert_array_equal(timestep.truncated, cut)
    np.testing.assert_array_equal(timestep.terminated, caught & ~cut)
    assert timestep.truncated.sum() > 50 and timestep.terminated.sum() > 50
