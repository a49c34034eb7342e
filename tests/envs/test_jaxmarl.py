"""JaxMARL's environments: equal to JaxMARL's own `step_env`, step by step, and what Shoal adds to them."""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_play import played

import shoal
from shoal.base.errors import ShoalError
from shoal.base.installation import install_command
from shoal.engine.evaluation import add_timestep, start_episodes
from shoal.engine.players import RandomPlayer
from shoal.envs import Batch, describing, make, parameters_of
from shoal.envs.jaxmarl import agent_rows, endings, worlds
from shoal.envs.jaxmarl.jaxmarl_adapter import JAXMARL, JaxMARL
from shoal.envs.registry import adapted
from shoal.envs.suites import packages
from shoal.envs.suites.families import FAMILIES
from shoal.types import spec_of
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

needs_jaxmarl = pytest.mark.skipif(
    importlib.util.find_spec("jaxmarl") is None,
    reason=f"JaxMARL is not installed: {FAMILIES['jaxmarl/'].install}",
)

# JaxNav writes integers into an array of booleans.
pytestmark = pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning")

SPREAD = "jaxmarl/MPE_simple_spread_v3"
BATTLE = "jaxmarl/HeuristicEnemySMAX"
HARMLESS = {"scenario": "3m", "enemy_shoots": False}


@functools.cache
def compiled(env):
    """The steps of an environment and of JaxMARL's own object."""
    return jax.jit(env.step), jax.jit(env.world.step_env)


def play(env, steps, seed=0, choose=None):
    """Step an environment and JaxMARL's own object by the same actions and keys, until the episode ends.

    Yields the time-step and JaxMARL's own results after each step.
    """
    world, agents = env.world, env._team.names
    step, own_step = compiled(env)
    key = jax.random.key(seed)
    state, timestep = env.reset(key)
    own_observation, own_state = world.reset(key)
    check_observations(env, timestep, own_observation)
    for _ in range(steps):
        key, action_key, step_key = jax.random.split(key, 3)
        action = Batch(env, 1).sample_actions(jax.tree.map(lambda x: x[None], timestep), action_key)[0]
        action = action if choose is None else choose(own_state, action)
        rows = action if env.num_agents > 1 else action[None]
        own_actions = {agent: rows[i] for i, agent in enumerate(agents)}
        state, timestep = step(state, action, step_key)
        own_observation, own_state, rewards, dones, _ = own_step(step_key, own_state, own_actions)
        check_observations(env, timestep, own_observation)
        own_rewards = [float(x) for x in agent_rows.rows_of(rewards, agents)]
        np.testing.assert_allclose(np.atleast_1d(timestep.reward), own_rewards, rtol=1e-5, atol=1e-6)
        assert bool(timestep.last) == bool(dones["__all__"])
        yield timestep, own_state, dones
        if timestep.last:
            return


def check_observations(env, timestep, own):
    """Each agent's row is JaxMARL's observation, and zeros behind it."""
    shown = timestep.observation
    if env.global_state:
        np.testing.assert_allclose(shown["global_state"], own["world_state"], rtol=1e-5, atol=1e-6)
        shown = shown["observation"]
    rows = agent_rows.rows_of(own, env._team.names)
    for i, row in enumerate(rows):
        own_row = np.asarray(row)
        mine, rest = np.split(np.asarray(shown[i] if env.num_agents > 1 else shown), [len(own_row)])
        np.testing.assert_allclose(mine, own_row, rtol=1e-5, atol=1e-6)
        assert not rest.any()


WORLDS = {
    "spread": (SPREAD, {}),
    "one-agent": ("jaxmarl/MPE_simple_v3", {}),
    "speaker": ("jaxmarl/MPE_simple_speaker_listener_v4", {}),
    "tag": ("jaxmarl/MPE_simple_tag_v3", {}),
    "adversary": ("jaxmarl/MPE_simple_adversary_v3", {}),
    "push": ("jaxmarl/MPE_simple_push_v3", {}),
    "crypto": ("jaxmarl/MPE_simple_crypto_v3", {}),
    "reference": ("jaxmarl/MPE_simple_reference_v3", {}),
    "facmac": ("jaxmarl/MPE_simple_facmac_3a_v1", {}),
    "world-comm": ("jaxmarl/MPE_simple_world_comm_v3", {"action_type": "Discrete"}),
    "continuous": (SPREAD, {"action_type": "Continuous"}),
    "riddle": ("jaxmarl/switch_riddle", {"num_agents": 4}),
    "smax": ("jaxmarl/SMAX", {"scenario": "3m"}),
    "battle": (BATTLE, {"scenario": "3m", "global_state": True}),
    "stalkers": (BATTLE, {"scenario": "2s3z"}),
    "units-drawn": (BATTLE, {"scenario": "smacv2_5_units", "action_type": "continuous"}),
    "hanabi": ("jaxmarl/hanabi", {}),
    "overcooked": ("jaxmarl/overcooked", {"max_steps": 30}),
    "overcooked-v2": (
        "jaxmarl/overcooked_v2",
        {"max_steps": 30, "layout": "coord_ring", "random_agent_positions": True},
    ),
    "coins": ("jaxmarl/coin_game", {}),
    "navigation": ("jaxmarl/jaxnav", {"max_steps": 30}),
    "evaporating": ("jaxmarl/jaxnav", {"max_steps": 30, "num_agents": 4, "evaporating": True}),
    "storm": ("jaxmarl/storm_np", {"num_inner_steps": 30}),
}


@needs_jaxmarl
@pytest.mark.full
@pytest.mark.parametrize("family", WORLDS)
@pytest.mark.rare(*(set(WORLDS) - {"continuous", "riddle"}))
def test_steps_are_those_of_jaxmarl(family):
    name, parameters = WORLDS[family]
    *_, (timestep, _, _) = play(make(name, **parameters), 120)
    assert timestep.last


@needs_jaxmarl
@pytest.mark.slow
@pytest.mark.parametrize("family", WORLDS)
def test_the_checker_finds_nothing(family):
    name, parameters = WORLDS[family]
    # JaxMARL's MPE and Switch Riddle have no randomness in a step, and Coin Game's rewards are integers.
    rules = {finding.rule for finding in shoal.check(make(name, **parameters), keys=4, steps=32)}
    # STORM begins its next inner game in the step that ends one, which docs/jaxmarl.md says, and uses keys twice, as
    # FACMAC does for all prey and the world.
    assert rules <= {"storm": {"self-reset", "key-reused"}, "facmac": {"key-reused"}}.get(family, set())


@pytest.mark.full
@needs_jaxmarl
def test_a_batch_steps_and_resets_each_world():
    _, _, timesteps = played(make(SPREAD, max_steps=5), 3, 20)
    assert timesteps.observation.shape == (21, 3, 3, 18)
    assert timesteps.reward.shape == (21, 3, 3)
    # JaxMARL compares its counter before it counts, so that an episode has one step more than `max_steps`.
    np.testing.assert_array_equal(np.flatnonzero(timesteps.last[:, 0]), [6, 13, 20])
    np.testing.assert_array_equal(timesteps.first[1:], timesteps.last[:-1])
    assert timesteps.truncated[6].all() and not timesteps.terminated.any()


@needs_jaxmarl
@pytest.mark.full
def test_agents_of_different_kinds_have_roles_and_narrower_ones_are_padded():
    env = make("jaxmarl/MPE_simple_speaker_listener_v4")
    assert env.agents == ("speaker_0", "listener_0")
    assert env.roles == (0, 1)
    assert env.observation_space.shape == (11,) and env.action_space == Discrete(5)
    _, timestep = env.reset(jax.random.key(0))
    assert timestep.action_mask.tolist() == [[True] * 3 + [False] * 2, [True] * 5]
    assert make(SPREAD).roles == ()
    assert make("jaxmarl/MPE_simple_crypto_v3").roles == (0, 1, 2)  # alice and bob have equal spaces
    assert make("jaxmarl/MPE_simple_tag_v3").roles == (0, 0, 0, 1)


@needs_jaxmarl
def test_a_world_of_one_agent_has_no_axis_of_agents():
    env = make("jaxmarl/MPE_simple_v3")
    _, timestep = env.reset(jax.random.key(0))
    assert env.num_agents == 1 and timestep.observation.shape == (4,) and timestep.reward.shape == ()


@pytest.mark.full
@needs_jaxmarl
def test_box_actions_of_different_widths_are_refused():
    with pytest.raises(ShoalError, match=r"the actions of the agents .* cannot be padded to one space"):
        make("jaxmarl/MPE_simple_world_comm_v3")


@pytest.mark.full
@needs_jaxmarl
def test_units_that_die_end_alone_and_do_not_return():
    """One unit walks into a wall, which kills it; the others stop, until the battle is cut."""
    env = make(BATTLE, **HARMLESS)
    steps = list(play(env, 101, choose=lambda state, action: jnp.asarray([2, 4, 4])))
    alive = np.asarray([timestep.alive for timestep, _, _ in steps])
    own_alive = np.asarray([state.state.unit_alive[:3] for _, state, _ in steps])
    own_done = np.asarray([[dones[agent] for agent in env.agents] for _, _, dones in steps])
    np.testing.assert_array_equal(alive, own_alive)
    np.testing.assert_array_equal(alive, ~own_done)
    np.testing.assert_array_equal(alive, [timestep.discount for timestep, _, _ in steps])
    deaths = 1 + np.flatnonzero(np.diff(alive[:, 0]))
    assert len(deaths) == 1 and alive[:, 1:].all()  # one death, no return
    for timestep, _, _ in steps[deaths[0] :]:
        assert timestep.action_mask[0].tolist() == [False] * 4 + [True] + [False] * 3  # only to stop
        assert not timestep.observation[0].any()
    last, *_ = steps[-1]
    assert last.truncated and not last.terminated and float(last.info["won"]) == 0


@pytest.mark.slow
@needs_jaxmarl
def test_the_score_of_a_battle_has_the_rewards_of_units_that_died():
    """JaxMARL's own score is the sum of each unit's rewards, those after its death included."""
    env = make(BATTLE, scenario="3m")
    _, timestep = env.reset(jax.random.key(3))
    results = start_episodes(env, RandomPlayer().algorithm(spec_of(env)), jax.random.key(0), 1).results
    own, deaths = np.zeros(3), 0
    before = jax.tree.map(lambda x: x[None], timestep)
    for timestep, _, dones in play(env, 101, seed=3):
        own += np.asarray(timestep.reward)  # equal to JaxMARL's, as `play` checks
        deaths += sum(bool(dones[agent]) for agent in env.agents) and not timestep.last
        after = jax.tree.map(lambda x: x[None], timestep)
        results, before = add_timestep(env, results, after, before), after
    assert deaths > 0
    np.testing.assert_allclose(results.agents[0], own, rtol=1e-5)
    np.testing.assert_allclose(results.returned[0], own.mean(), rtol=1e-5)


@pytest.mark.full
@needs_jaxmarl
def test_a_battle_that_is_won_terminates_for_all():
    env = make(BATTLE, **HARMLESS)

    def shoot(state, action):
        """Attack an enemy in range, else go towards them."""
        legal = np.asarray([env.world.get_avail_actions(state)[agent] for agent in env.agents])
        return jnp.asarray([5 + int(row[5:].argmax()) if row[5:].any() else 1 for row in legal])

    *before, (won, _, _) = play(env, 101, choose=shoot)
    assert won.terminated and (won.discount == 0).all() and not won.alive.any()
    assert float(won.info["won"]) == 1 and not any(float(timestep.info["won"]) for timestep, _, _ in before)
    assert float(won.reward[0]) >= 1  # the bonus
    assert env.info_summaries["won"] == "max"


@pytest.mark.full
@needs_jaxmarl
def test_the_riddle_terminates_where_someone_tells_and_is_cut_by_its_clock():
    env = make("jaxmarl/switch_riddle")
    *_, (told, _, _) = play(env, 10, choose=lambda state, action: jnp.full(3, 2))
    assert told.terminated and (told.discount == 0).all()
    *steps, (cut, _, _) = play(env, 10, choose=lambda state, action: jnp.zeros(3, jnp.int32))
    assert len(steps) == 5 and cut.truncated and (cut.discount == 1).all()


@needs_jaxmarl
@pytest.mark.slow
@pytest.mark.parametrize("evaporating", [False, True])
def test_an_agent_that_has_arrived_or_collided_terminates_and_one_that_is_cut_does_not(evaporating):
    env = make("jaxmarl/jaxnav", max_steps=20, num_agents=3, evaporating=evaporating)
    ends = []
    for seed in range(6):
        finished = np.zeros(3, bool)
        for timestep, state, _ in play(env, 20, seed):
            finished |= np.asarray(state.goal_reached | state.move_term)
            ended = finished if evaporating or timestep.last else np.zeros(3, bool)
            np.testing.assert_array_equal(np.asarray(timestep.discount) == 0, ended)
            assert (timestep.alive is None) != evaporating
        ends.append(finished)
    assert 0 < np.mean(ends) < 1


@pytest.mark.full
@needs_jaxmarl
def test_the_critic_is_shown_the_state_of_the_world():
    env = make(BATTLE, scenario="3m", global_state=True)
    assert env.critic_only == ("global_state",)
    assert isinstance(env.observation_space, Dict)
    assert env.observation_space["global_state"] == Box(-np.inf, np.inf, (72,))
    with pytest.raises(
        ShoalError, match=r"MPE_simple_spread_v3 has no world state; global_state=True needs one"
    ):
        make(SPREAD, global_state=True)


@pytest.mark.full
@needs_jaxmarl
def test_parameters_are_those_of_jaxmarl_and_equal_ones_make_equal_environments():
    known = parameters_of(SPREAD)
    assert known["num_agents"].default == 3 and known["max_steps"].default == 25
    assert known["team_return"].default == "mean" and known["max_episode_steps"].default is None
    env = make(SPREAD, num_agents=4, local_ratio=0.5)
    assert env == JaxMARL(env.world, "MPE_simple_spread_v3", (("num_agents", 4),)) and env.num_agents == 4
    assert env.world is make(SPREAD, num_agents=4).world  # so that nothing compiles again
    assert hash(env) == hash(make(SPREAD, num_agents=4))
    health = [1.0, 125, 160, 150, 35, 80]
    weak = make(BATTLE, scenario="3m", unit_type_health=health)
    np.testing.assert_array_equal(weak.world.unit_type_health, health)
    assert make(SPREAD, team_return="sum").team_return == "sum"


@needs_jaxmarl
def test_environments_are_written_down_and_made_again():
    for env in (
        make(BATTLE, scenario="3m", team_return="sum"),
        make(SPREAD, num_agents=2, max_episode_steps=9),
    ):
        description = describing.describe(env)
        assert not description.gaps
        assert describing.rebuild(describing.description_to_json(description), {})[0] == env
    description = describing.describe_named(BATTLE, {"scenario": "3m"})
    again, _ = describing.rebuild(describing.description_to_json(description), {})
    assert again == make(BATTLE, scenario="3m")


@needs_jaxmarl
@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        (SPREAD, {"num_agent": 2}, "has no parameter 'num_agent'"),
        (SPREAD, {"local_ratio": 2},
            "jaxmarl/MPE_simple_spread_v3 cannot be made with local_ratio=2: AssertionError"),
        (BATTLE, {"scenario": "3mm"}, "there is no scenario '3mm'; did you mean '3m'"),
        ("jaxmarl/overcooked", {"layout": "cramped"}, "there is no layout 'cramped'; did you mean 'cramped_room'"),
        (SPREAD, {"num_agents": object()}, None),
        (SPREAD, {"landmarks": {1: np.zeros}}, "has no parameter 'landmarks'"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(name, parameters, sentence):
    with pytest.raises(ShoalError) as error:
        make(name, **parameters)
    assert sentence is None or sentence in str(error.value)


@needs_jaxmarl
def test_a_class_of_ones_own_is_made_by_its_import_name():
    env = make("jaxmarl/jaxmarl.environments:SimpleSpreadMPE", num_agents=2)
    assert env.num_agents == 2 and env.world_name == "jaxmarl.environments:SimpleSpreadMPE"
    named_alike = type("Overcooked", (), {})()
    assert endings.rule_of(named_alike) == endings.rule_of(None)


@pytest.mark.full
@needs_jaxmarl
def test_an_object_of_jaxmarl_is_adapted():
    world = packages.import_suite("jaxmarl/").make("MPE_simple_spread_v3", num_agents=2, max_steps=5)
    env = adapted(world)
    assert env.world is world and env.num_agents == 2
    assert env == adapted(world) and hash(env) == hash(adapted(world))
    *_, (last, _, _) = play(env, 9)  # equal to the object's own steps, by its own limit
    assert last.truncated
    assert list(describing.describe(env).gaps) == ["class"]  # a run says that it cannot be made again


@needs_jaxmarl
@pytest.mark.slow
def test_nothing_is_found_in_an_adapted_object():
    world = packages.import_suite("jaxmarl/").make("MPE_simple_spread_v3", num_agents=2, max_steps=5)
    assert shoal.check(adapted(world), keys=2, steps=8) == []


@needs_jaxmarl
@pytest.mark.full
def test_an_object_with_another_interface_is_refused_in_a_sentence():
    with pytest.raises(ShoalError, match=r"InTheGrid cannot be adapted, since its functions are"):
        adapted(importlib.import_module("jaxmarl").make("storm"))


@needs_jaxmarl
def test_the_import_leaves_the_standard_streams_alone(capsys):
    streams = sys.stdout, sys.stderr
    packages.import_suite.cache_clear()
    worlds.package()
    assert (sys.stdout, sys.stderr) == streams
    assert capsys.readouterr() == ("", "")


@needs_jaxmarl
@pytest.mark.slow
def test_the_devices_of_a_run_are_made_before_jaxmarl_is_imported():
    program = (
        f"from shoal.runs.plan.decide import decide; x = decide({SPREAD!r}, overrides={{'devices': 3}}); "
        "import jax; assert len(jax.devices()) == 3, jax.devices(); assert x.environment_name in str(x.as_json())"
    )
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment, timeout=200)


def test_unknown_names_and_a_missing_package_are_one_sentence(monkeypatch):
    with pytest.raises(
        ShoalError, match=r"no environment 'jaxmarl/MPE_simple_spred_v3'; did you mean 'jaxmarl/MPE_simple_s"
    ):
        make("jaxmarl/MPE_simple_spred_v3")
    with pytest.raises(
        ShoalError, match=r"no environment 'jaxmarl/chess'; there are MPE_simple_v3, .* of your own"
    ):
        make("jaxmarl/chess")

    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name="jaxmarl")

    packages.import_suite.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ShoalError) as error:
        JAXMARL.maker("switch_riddle")
    assert str(error.value) == (
        "names that begin with 'jaxmarl/' need jaxmarl, which is not installed; "
        f"`{install_command('jaxmarl')}` installs it."
    )


def test_names_of_the_family_are_not_listed():
    assert not [name for name in shoal.environments() if name.startswith("jaxmarl/")]


def test_the_widest_space_holds_all():
    assert agent_rows.widest([Discrete(3), Discrete(5)]) == Discrete(5)
    assert agent_rows.widest([Box(-1, 1, (2,)), Box(1, 3, (3,))]) == Box([-1, -1, 0], [3, 3, 3])
    assert agent_rows.widest([Box(0, 1, (2, 2)), Box(0, 2, (2, 2))]) == Box(0, 2, (2, 2))
    assert agent_rows.widest([Box(0, 1, (2, 2)), Box(0, 1, (3, 2))]) is None
    assert agent_rows.widest([Box(0, 1, (2,)), Discrete(2)]) is None
    assert agent_rows.widest([MultiDiscrete([2, 2])] * 2) == MultiDiscrete([2, 2])


def test_roles_are_of_equal_spaces_and_names():
    assert agent_rows.roles_of(["a_0", "a_1", "b_0"], [1, 1, 1]) == (0, 0, 1)
    assert agent_rows.roles_of(["a_0", "a_1"], [1, 2]) == (0, 1)
    assert agent_rows.roles_of([0, 1], [1, 1]) == ()


def test_an_unknown_class_is_cut_by_the_clock_of_its_state():
    world = SimpleNamespace(max_steps=5)
    rule = endings.rule_of(world)
    for steps, is_done, terminated in ((4, True, True), (4, False, False), (5, True, False)):
        step = endings.PlayedStep(
            world, None, (), SimpleNamespace(step=jnp.asarray(steps)), jnp.asarray(is_done)
        )
        assert bool(rule.ends(step).terminated) == terminated
    assert rule.ends(endings.PlayedStep(object(), None, (), None, jnp.asarray(True))).terminated


@pytest.mark.full
def test_what_jaxmarl_says_of_each_agent_becomes_an_array():
    info = {"shaped": {"a": jnp.asarray(1.0), "b": jnp.asarray(2.0)}, "flag": jnp.asarray(True), "text": "no"}
    entries = agent_rows.numeric_info(info, ["a", "b"])
    assert set(entries) == {"shaped", "flag"} and entries["shaped"].tolist() == [1.0, 2.0]
