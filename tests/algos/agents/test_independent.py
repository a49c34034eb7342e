"""Several agents trained by PPO: absent agents count for nothing, and each rule of one agent holds for each."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import assert_equal, populate, values

from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.agents.independent import Sets
from shoal.algos.ppo import ppo, prepare
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import with_choices, with_settings
from shoal.engine import loop, rollout, team
from shoal.engine.evaluation import play_episodes
from shoal.engine.run import ProgramSettings
from shoal.envs import Wrapper, environment, make
from shoal.envs.team_probe import ALIVE, STEPS, TeamProbe
from shoal.runs.train.compiled_trainer import member_shapes
from shoal.types import Array, Clock, Keys, Learner, agent_axis, restart, spec_of, transition
from shoal.types.spaces import Box, Discrete, MultiDiscrete

NAN = float("nan")
SMALL = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 2}


def config_of(**settings):
    given = SMALL | settings
    return with_settings(with_choices(PPOConfig(), given), **given).resolved()


def train(env, config, updates=3, num_envs=3, num_steps=8, **settings):
    """Train with as many worlds as agents, where mixing up the axes would show no error."""
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_updates": updates}
    population, compiled = populate(env, config, **sizes | settings)
    return compiled.train(population, jnp.int32(updates))


VARIANTS = {
    "shared": {},
    "own": {"parameters": "agent"},
    "roles": {"parameters": "role", "norm_obs": True},
    "recurrent": {
        "core": "gru",
        "core_size": 4,
        "previous_action": True,
        "previous_reward": True,
        "num_minibatches": 1,
    },
    "normalised": {"norm_obs": True, "norm_reward": True, "norm_adv": "batch"},
    "state": {"critic_input": "state"},
    "everybody": {"critic_input": "everybody", "agent_id": True},
    "joint": {"network": "shoal.nets.joint:JointActorCritic", "attention_heads": 2, "norm_reward": True},
    "flat": {"network": "shoal.nets.joint:JointActorCritic", "agents_as": "flat", "norm_obs": True},
    "all to each": {"agent_input": "everybody", "critic_input": "state", "parameters": "agent"},
    "state and own": {"critic_input": "state_and_own", "core": "lstm", "core_size": 4, "num_minibatches": 1},
}


@pytest.mark.full
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.quick("recurrent")
@pytest.mark.rare()
def test_what_an_absent_agent_holds_is_never_read(name):
    config = config_of(**VARIANTS[name])
    results = [train(TeamProbe(fill=jnp.float32(fill)), config) for fill in (0.0, NAN)]
    first, second = (run.learner for run, _ in results)
    assert_equal(first, second)
    assert_equal(results[0][1], results[1][1])  # metrics
    assert int(results[1][0].fault[0]) == -1
    assert all(np.isfinite(x).all() for x in values(first).values() if x.dtype == np.float32)


@pytest.mark.slow
def test_known_values_are_found_with_the_state_and_not_without():
    gamma = 0.5
    settings = {
        "hidden_sizes": (32,),
        "gamma": gamma,
        "learning_rate": 0.02,
        "lr_schedule": "linear",
        "vf_coef": 1.0,
    }
    errors = {}
    for critic_input in ("own", "state_and_own"):
        config = config_of(**settings, critic_input=critic_input, agent_id=True)
        run, _ = train(TeamProbe(), config, updates=150, num_envs=32, num_steps=16)
        shared = jax.tree.map(lambda x: x[0], run.learner.shared)
        view = config.agents.view(spec_of(TeamProbe()))
        errors[critic_input] = max(
            abs(value - TeamProbe().value(agent, step, sign, gamma))
            for agent, step, sign, value in critic_values(shared.network, view)
        )
    assert errors["state_and_own"] < 0.2
    assert errors["own"] > 0.9  # the sign is hidden: the error is at least that of a step's reward


def critic_values(network, view):
    """Yield (agent, step, sign, value) for every time-step at which an agent takes part."""
    env = TeamProbe()
    for sign in (-1.0, 1.0):
        state, timestep = env.reset(jax.random.key(0))
        state = state._replace(sign=jnp.float32(sign))
        timestep = timestep._replace(observation=env._observe(state))
        for step in range(STEPS):
            batch = jax.tree.map(lambda x: x[None], timestep)
            shown = agent_axis.fold(agent_axis.as_streams(view.of_critics(batch)))
            value = network.value(shown.observation)
            yield from ((agent, step, sign, float(value[agent])) for agent in range(3) if ALIVE[step, agent])
            state, timestep = env.step(state, jnp.asarray([1, 1, 2]), jax.random.key(1))


@pytest.mark.full
def test_each_role_learns_its_action_and_returns_are_kept_of_each_agent():
    config = config_of(learning_rate=0.02, lr_schedule="linear", hidden_sizes=(16,))
    env = TeamProbe()
    run, metrics = train(env, config, updates=60, num_envs=16, num_steps=16)
    results = jax.jit(lambda run: evaluate_first(run, env))(run)
    counts = ALIVE[:-1].sum(axis=0)  # transitions of each agent: with the sign, 2 each or none
    returned = np.asarray(results.agents)
    signs = np.sign(returned[:, 2] - STEPS)
    np.testing.assert_allclose(returned, counts * (1 + signs[:, None]), atol=1e-6)
    np.testing.assert_allclose(results.returned, returned.sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(results.last_reward, 2 * (1 + signs), atol=1e-6)  # the second agent is back
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert (np.asarray(results.length) == STEPS).all() and np.asarray(results.terminated).all()
    assert {f"episode_return_agent_{i}" for i in range(3)} <= set(metrics)


def evaluate_first(run, env):
    config = jax.tree.map(lambda x: x[0], run.config)
    algorithm = config.algorithm(spec_of(env))
    learner = jax.tree.map(lambda x: x[0], run.learner)
    policy = algorithm.policy(learner, Clock.zero())
    return play_episodes(env, algorithm, policy, jax.random.key(5), episodes=3, max_steps=10, greedy=True)


@environment
class Permuted(Wrapper):
    """The same world with its agents in another order; of agents whose roles count for nothing."""

    order: Array

    def _permuted(self, timestep):
        order = self.order
        observation = {**timestep.observation, "observation": timestep.observation["observation"][order]}
        fields = {
            name: getattr(timestep, name)[order] for name in ("reward", "discount", "action_mask", "alive")
        }
        return timestep._replace(observation=observation, **fields)

    def reset(self, key):
        state, timestep = self.env.reset(key)
        return state, self._permuted(timestep)

    def step(self, state, action, key):
        state, timestep = self.env.step(state, action[jnp.argsort(self.order)], key)
        return state, self._permuted(timestep)


def update_once(env, trajectory, config, num_envs=3):
    spec = spec_of(env)
    algorithm = config.algorithm(spec)
    learner = algorithm.init(jax.random.key(3), num_envs)
    return algorithm.update(learner, trajectory, KEYS, Clock.zero())


KEYS = Keys.of_one_group(jax.random.key(9))


def trajectory_of(env, config, num_envs=3, num_steps=8):
    """A rollout, greedy so that the order of agents draws no other actions."""
    from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
    from shoal.engine.run import Episodes
    from shoal.envs import Batch

    algorithm = config.algorithm(spec_of(env))
    learner = algorithm.init(jax.random.key(3), num_envs)
    batch = Batch(env, num_envs)
    state, timestep = batch.reset(jax.random.key(1))
    start = RolloutState(
        state,
        timestep,
        algorithm.memory((num_envs,)),
        Episodes(jnp.zeros((num_envs, 3)), jnp.zeros(num_envs)),
        no_ended_episodes(3),
    )
    policy = algorithm.policy(learner, Clock.zero())
    return rollout(batch, algorithm, policy, start, jax.random.key(2), num_steps, greedy=True)[1]


@pytest.mark.parametrize("settings", [{}, {"core": "gru", "core_size": 4}], ids=["plain", "recurrent"])
@pytest.mark.quick("plain")
@pytest.mark.rare()
@pytest.mark.full
def test_the_order_of_agents_does_not_matter(settings):
    """One minibatch and one epoch, so that the shuffle of rows does not matter either."""
    config = config_of(**settings, critic_input="state", num_minibatches=1, update_epochs=1, norm_obs=True)

    @jax.jit
    def learned(order):
        env = Permuted(TeamProbe(), order)
        learner, metrics, _ = update_once(env, trajectory_of(env, config), config)
        return learner.shared.network, metrics

    first, second = (values(learned(jnp.asarray(order))) for order in ((0, 1, 2), (2, 0, 1)))
    for name, x in first.items():
        np.testing.assert_allclose(x, second[name], rtol=2e-4, atol=2e-6, err_msg=name)


@pytest.mark.full
def test_advantages_are_those_of_each_agent_by_the_definition():
    """An oracle with Python's loops, for worlds whose agents end and come back."""
    env, num_envs, num_steps = TeamProbe(), 3, 10
    config = config_of(gae_lambda=0.7, gamma=0.9, critic_input="state_and_own", norm_adv="none")
    view = config.agents.view(spec_of(env))

    @jax.jit
    def estimated():
        trajectory = trajectory_of(env, config, num_envs, num_steps)
        of_set = {"extras": trajectory.extras[0], "memory": trajectory.memory.sets[0]}
        as_shown = trajectory._replace(timesteps=view.of_critics(trajectory.timesteps), **of_set)
        of_streams = agent_axis.trajectory_of_streams(as_shown)
        of_streams = agent_axis.fold_trajectory(of_streams)
        learner = config.algorithm(spec_of(env)).init(jax.random.key(3), num_envs)
        inner = Learner(learner.shared, agent_axis.fold(learner.local))
        rows, *_ = prepare(config.with_critic_defaults(), view.spec_of_agent, (), inner, of_streams)
        value = inner.shared.network.value(of_streams.timesteps.observation)
        return trajectory.timesteps, rows.advantage, rows.weight, value

    timesteps, *of_rows = jax.tree.map(np.asarray, estimated())
    advantage, weight, value = (x.reshape(-1, num_envs, 3) for x in of_rows)
    expected = np.zeros((num_steps + 1, num_envs, 3))
    counts = timesteps.alive[:-1] & ~timesteps.last[:-1, :, None]
    for t in reversed(range(num_steps)):
        for n in range(num_envs):
            for i in range(3):
                if not counts[t, n, i]:
                    continue
                discount = 0.9 * timesteps.discount[t + 1, n, i]
                delta = timesteps.reward[t + 1, n, i] + discount * value[t + 1, n, i] - value[t, n, i]
                expected[t, n, i] = delta + discount * 0.7 * expected[t + 1, n, i]
    np.testing.assert_array_equal(weight > 0, counts)
    np.testing.assert_allclose(advantage[counts], expected[:-1][counts], rtol=1e-4, atol=1e-5)


def test_a_memory_is_clean_when_an_agent_comes_back():
    env = TeamProbe()
    config = config_of(core="gru", core_size=4, num_minibatches=1)
    algorithm = config.algorithm(spec_of(env))
    policy = jax.jit(lambda key: algorithm.policy(algorithm.init(key, 1), Clock.zero()))(jax.random.key(0))
    act = jax.jit(functools.partial(algorithm.act, greedy=True))
    step, (state, timestep) = jax.jit(env.step), jax.jit(env.reset)(jax.random.key(0))
    memory, carries = algorithm.memory((1,)), []
    for _ in range(STEPS):
        batch = jax.tree.map(lambda x: np.asarray(x)[None], timestep)
        batch = batch._replace(observation={"observation": batch.observation["observation"]})
        memory, action, _ = act(policy, memory, batch, jax.random.key(1))
        carries.append(jax.tree.map(lambda x: np.asarray(x[0, 1]), memory.sets[0]))
        state, timestep = step(state, np.asarray(action)[0], jax.random.key(2))
    # What the second agent remembers after it came back is what it would after the first step of an episode.
    back = {"observation": np.asarray([[[0.75, 0.0]] * 3], np.float32)}
    begun = jax.tree.map(lambda x: np.asarray(x)[None], jax.jit(env.reset)(jax.random.key(0))[1])
    alone = begun._replace(observation=back)
    fresh, _, _ = act(policy, algorithm.memory((1,)), alone, jax.random.key(1))
    expected = jax.tree.map(lambda x: np.asarray(x[0, 1]), fresh.sets[0])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), carries[-1], expected)


@environment
class Same:
    """Three agents of one kind, whose reward is their own action; of any action space."""

    space: object = Discrete(3)
    observation_space = Box(-1.0, 1.0, (2,))
    num_agents = 3
    team_return = "mean"

    @property
    def action_space(self):
        return self.space

    def reset(self, key):
        state = jnp.zeros((), jnp.int32)
        return state, restart(jnp.zeros((3, 2)), num_agents=3)

    def step(self, state, action, key):
        reward = jnp.asarray(action, jnp.float32).reshape(3, -1).mean(axis=-1)
        return state + 1, transition(jnp.zeros((3, 2)), reward, truncated=state >= 4)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3)), Box(-1.0, 1.0, (2,))], ids=repr)
@pytest.mark.full
@pytest.mark.rare("Discrete(n=3)")
def test_every_kind_of_action_is_learned(space):
    config = config_of(learning_rate=0.03, lr_schedule="linear", hidden_sizes=(16,), gamma=0.5)
    run, _ = train(Same(space), config, updates=50, num_envs=8, num_steps=16)
    results = evaluate_first(run, Same(space))
    best = {Discrete: 2.0, MultiDiscrete: 1.5, Box: 1.0}[type(space)]
    assert np.asarray(results.agents).min() > 0.9 * 5 * best
    np.testing.assert_allclose(results.returned, np.asarray(results.agents).mean(axis=1), rtol=1e-5)


@pytest.mark.full
def test_the_number_of_agents_may_change_with_shared_parameters_and_not_with_separate_ones():
    spec = spec_of(Same())
    saved = {}
    for parameters in ("shared", "agent"):
        algorithm = config_of(parameters=parameters).algorithm(spec)
        learner = algorithm.init(jax.random.key(0), 2)
        saved[parameters] = values(learner.shared)
    fewer = spec._replace(num_agents=2)
    algorithm = config_of().algorithm(fewer)
    learner = algorithm.init(jax.random.key(1), 2)
    inherited = values(algorithm.inherit(learner, saved["shared"]).shared)
    assert inherited[
        "network/actor/mlp/layers/0/kernel"
        if "network/actor/mlp/layers/0/kernel" in inherited
        else next(name for name in inherited if name.startswith("network/"))
    ].shape
    algorithm = config_of(parameters="agent").algorithm(fewer)
    learner = algorithm.init(jax.random.key(1), 2)
    with pytest.raises(
        ShoalError, match="parameters of 2 sets of agents cannot be taken over from a run that has 3"
    ):
        algorithm.inherit(learner, saved["agent"])
    with pytest.raises(ShoalError, match="cannot be taken over from a run that has 1"):
        algorithm.inherit(learner, saved["shared"])


@pytest.mark.parametrize(
    ("settings", "changes", "sentence"),
    [
        ({"parameters": "role"}, {}, "needs agents of several roles"),
        ({}, {"roles": (0, 1)}, r"roles=\(0, 1\) are 2, and num_agents=3"),
        ({"critic_input": "state"}, {}, "has no entry 'global_state'; critic_input='everybody' works"),
        ({"num_minibatches": 5}, {}, r"num_minibatches=5 does not divide num_envs\*num_steps\*3=96"),
    ],
)
def test_settings_that_do_not_fit_the_world_are_refused(settings, changes, sentence):
    spec = spec_of(Same())._replace(**changes)
    with pytest.raises(ShoalError, match=sentence):
        config_of(**settings).validate(spec, 4, 8)


def test_sets_split_and_join():
    sets = Sets(((2, 0), (1,)))
    x = jnp.arange(6).reshape(2, 3)
    parts = sets.split(x, 1)
    np.testing.assert_array_equal(parts[0], [[2, 0], [5, 3]])
    np.testing.assert_array_equal(sets.join(parts, 1), x)
    assert dataclasses.is_dataclass(AgentsConfig())


@pytest.mark.full
def test_one_agent_costs_nothing(monkeypatch):
    """Its program is the one that PPO and the runtime make where they do not know of several agents."""

    def program():
        config = config_of()
        run = member_shapes(make("CartPole-v1"), config, ProgramSettings(num_envs=4, num_steps=8))
        return str(jax.make_jaxpr(functools.partial(loop.update_once))(run))  # traced anew each time

    def no_agents(*arguments, **keywords):
        raise AssertionError("one agent needs this")

    expected = program()
    monkeypatch.setattr(
        PPOConfig, "algorithm", lambda self, spec, axis=(): ppo(self.with_critic_defaults(), spec, axis)
    )
    monkeypatch.setattr(rollout, "counted_reward", lambda environment, reward, alive: reward)
    monkeypatch.setattr(team, "of_team", lambda environment, x: x)
    for name in ("fold", "unfold", "as_streams", "trajectory_of_streams", "fold_trajectory"):
        monkeypatch.setattr(agent_axis, name, no_agents)
    assert program() == expected
