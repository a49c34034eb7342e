"""Agents that begin a new life while their world goes on, without a step of absence (`restarted`)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algos.learning import advantages
from shoal.algos.learning.minibatches import Rows
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.envs import environment, restart, transition
from shoal.envs.batch import Batch
from shoal.types import Clock, Keys, spec_of, transitions
from shoal.types.agent_axis import fold_trajectory, trajectory_of_streams
from shoal.types.spaces import Box, Discrete

STEPS, LIVES = 12, np.array([3, 5])  # of the world, and of each agent's lives
NUM_ENVS, NUM_STEPS = 2, STEPS + 1  # one whole episode, and the step that resets


@environment
class Respawning:
    """All observations are alike, so that a policy with memory can tell only how long it has lived."""

    forgets: bool = True  # whether the environment says that the lives begin

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)
    num_agents = 2

    def reset(self, key):
        return jnp.int32(0), restart(jnp.ones((2, 1)), num_agents=2, restarted=self._none())

    def step(self, state, action, key):
        state = state + 1
        died = state % LIVES == 0
        restarted = died if self.forgets else self._none()
        reward = 1.0 + 0.0 * action
        return state, transition(
            jnp.ones((2, 1)),
            reward,
            terminated=died & restarted,
            truncated=state >= STEPS,
            restarted=restarted,
        )

    def _none(self):
        return jnp.zeros(2, bool)


CONFIG = with_settings(PPOConfig(), core="gru", core_size=4, hidden_sizes=(8,), norm_reward=True).resolved()


def lived(env):
    """A learner, a rollout of a whole episode, and the learner after an update."""
    algorithm, batch = CONFIG.algorithm(spec_of(env)), Batch(env, num_envs=NUM_ENVS)

    @jax.jit
    def roll(key):
        learner, (state, timestep) = algorithm.init(key, NUM_ENVS), batch.reset(key)
        episodes = Episodes(jnp.zeros((NUM_ENVS, 2)), jnp.zeros(NUM_ENVS), jnp.zeros((NUM_ENVS, 2)))
        begin = RolloutState(state, timestep, algorithm.memory((NUM_ENVS,)), episodes, no_ended_episodes(2))
        policy = algorithm.policy(learner, Clock.zero())
        after, trajectory = rollout(batch, algorithm, policy, begin, key, NUM_STEPS)
        new, *_ = algorithm.update(learner, trajectory, Keys.of_one_group(key), Clock.zero())
        return after, trajectory, new

    return roll(jax.random.key(0))


@pytest.fixture(scope="module")
def respawned():
    return lived(Respawning())


def ages():
    """How many steps each agent has lived at each of the episode's steps, [STEPS, 2]."""
    return np.arange(STEPS)[:, None] % LIVES


def memories(lives):
    """The memory of each agent after each of the episode's steps, [STEPS, NUM_ENVS, 2, size]."""
    (memory,) = jax.tree.leaves(lives[1].extras[0].memory)
    return np.asarray(memory)[:STEPS].reshape(STEPS, NUM_ENVS, 2, -1)


def test_a_memory_is_cleared_where_a_life_begins(respawned):
    memory = memories(respawned)
    by_age = {age: memory.swapaxes(1, 2)[ages() == age] for age in range(max(LIVES))}
    for age, x in by_age.items():
        np.testing.assert_array_equal(x, np.broadcast_to(x[:1, :1], x.shape), str(age))
    assert len({float(x[0, 0, 0]) for x in by_age.values()}) == max(LIVES)
    # Without the flag one life is as long as the world's episode.
    assert len(np.unique(memories(lived(Respawning(forgets=False)))[:, 0, 0, 0])) == STEPS


def test_no_return_passes_the_end_of_a_life(respawned):
    """Targets by a double loop; what follows in the same world counts for the next life alone."""
    streams = fold_trajectory(trajectory_of_streams(respawned[1]._replace(extras=(), memory=())))
    steps, after = transitions(streams), jax.tree.map(lambda x: x[1:], streams.timesteps)
    rows = Rows(weight=steps.weight, reward=after.reward, discount=0.5 * steps.discount, last=after.last)
    value = jnp.full((NUM_STEPS + 1, NUM_ENVS * 2), 100.0)
    for name in ("gae", "discounted_returns", "vtrace"):
        config = dataclasses.replace(CONFIG, advantage=name, gae_lambda=1.0)
        target = np.asarray(advantages.estimate(config, rows, value, None)[1])
        target = target.reshape(NUM_STEPS, NUM_ENVS, 2)
        for agent, life in enumerate(LIVES):
            for t in range(STEPS):
                left = min(life - t % life, STEPS - t)
                expected = sum(0.5**k for k in range(left))
                is_cut = (t + left) % life != 0  # by the end of the world, which is a truncation
                expected += 100.0 * 0.5**left if is_cut else 0.0
                np.testing.assert_allclose(target[t, :, agent], expected, rtol=1e-5)


@pytest.mark.full
def test_a_running_return_begins_with_a_life():
    """The normaliser of rewards sees the discounted returns of lives: no entry has more steps than a life."""

    def largest(env):
        *_, new = lived(env)
        moments = new.shared.reward
        return float(moments.mean)

    gamma = float(CONFIG.gamma)

    def mean(lives):
        running = [sum(gamma**k for k in range(age + 1)) for age in np.concatenate(lives)]
        return np.mean(running)

    np.testing.assert_allclose(largest(Respawning()), mean(list(ages().T)), rtol=1e-5)
    np.testing.assert_allclose(largest(Respawning(forgets=False)), mean([np.arange(STEPS)] * 2), rtol=1e-5)


@pytest.mark.full
def test_lives_are_counted_beside_the_worlds_episodes():
    sizes = {"num_envs": NUM_ENVS, "num_steps": NUM_STEPS, "num_updates": 2}
    train = shoal.make_train(Respawning(), CONFIG, num_minibatches=1, **sizes)
    metrics = {name: np.asarray(x)[-1] for name, x in train(jax.random.key(0))[1].items()}
    lives = [3] * 4 + [5, 5, 2]  # the last one is cut by the world's end
    assert metrics["lives"] == NUM_ENVS * len(lives)
    for name, expected in (("", np.mean), ("_std", np.std), ("_min", np.min), ("_max", np.max)):
        np.testing.assert_allclose(metrics[f"life_return{name}"], expected(lives), rtol=1e-6)
    assert metrics["episode_return"] == 2 * STEPS and metrics["episode_length"] == STEPS
    assert metrics["episode_return_agent_0"] == metrics["episode_return_agent_1"] == STEPS


@pytest.mark.slow
def test_such_a_world_is_sound():
    assert {x.rule for x in shoal.check(Respawning())} == {"action-ignored", "key-ignored"}  # as it is meant


def test_an_agent_that_restarts_is_alive_and_has_terminated():
    died, restarted = jnp.array([True, True, False]), jnp.array([True, False, False])
    arguments = {"terminated": died, "restarted": restarted}
    timestep = transition(jnp.zeros((3, 1)), jnp.zeros(3), alive=jnp.ones(3, bool), **arguments)
    assert timestep.alive.tolist() == [True, False, True] and not timestep.last
    assert timestep.discount.tolist() == [0.0, 0.0, 1.0]
    assert not transition(jnp.zeros((3, 1)), jnp.zeros(3), terminated=True, restarted=died).last
