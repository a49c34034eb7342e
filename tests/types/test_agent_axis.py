"""Several agents as streams: the rules for one agent hold for each, also where agents end early and come back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.team_probe import TeamProbe
from shoal.types import Trajectory, agent_axis, restart, transition, transitions

NAN = float("nan")


def world(steps, agents, seed, num_envs=3):
    """Random lives [T+1, N, A], and worlds that end at random; NaN where nobody may look."""
    random = np.random.default_rng(seed)
    alive = random.random((steps + 1, num_envs, agents)) < 0.7
    last = random.random((steps + 1, num_envs)) < 0.2
    last[1:] &= ~last[:-1]  # the step after a last one is a first one
    first = np.concatenate([np.zeros((1, num_envs), bool), last[:-1]])
    alive[first] = True
    truncated = last & (random.random(last.shape) < 0.5)
    discount = np.where(alive | truncated[..., None], 1.0, 0.0).astype(np.float32)
    discount[last & ~truncated] = 0.0
    before = np.concatenate([np.ones((1, num_envs, agents), bool), alive[:-1]])
    absent = ~alive & ~before
    reward = np.where(absent, NAN, random.normal(size=alive.shape)).astype(np.float32)
    is_read = alive | (truncated[..., None] & before)
    observation = np.where(is_read[..., None], random.normal(size=(*alive.shape, 2)), NAN).astype(np.float32)
    timesteps = restart(jnp.asarray(observation))._replace(
        **{
            "reward": reward,
            "discount": np.where(absent, NAN, discount),
            "first": first,
            "last": last,
            "alive": alive,
        }
    )
    return jax.tree.map(jnp.asarray, timesteps)


@pytest.mark.full
@pytest.mark.parametrize(("steps", "agents", "num_envs"), [(6, 3, 3), (9, 2, 4), (5, 5, 5)])
def test_weights_and_ends_of_streams_are_those_of_the_definition(steps, agents, num_envs):
    timesteps = world(steps, agents, steps, num_envs)
    found = transitions(agent_axis.trajectory_of_streams(Trajectory(timesteps, (), (), ())))
    of_agents = jax.tree.map(lambda x: np.asarray(x).reshape(steps, num_envs, agents), found)
    alive, last = np.asarray(timesteps.alive), np.asarray(timesteps.last)
    discount = np.asarray(timesteps.discount)
    for t in range(steps):
        for n in range(num_envs):
            for i in range(agents):
                counts = alive[t, n, i] and not last[t, n]
                assert of_agents.weight[t, n, i] == counts
                ends = last[t + 1, n] or not alive[t + 1, n, i]
                assert of_agents.terminated[t, n, i] == (counts and ends and discount[t + 1, n, i] == 0)
                assert of_agents.truncated[t, n, i] == (counts and ends and discount[t + 1, n, i] == 1)


def test_a_stream_begins_where_the_one_before_has_ended():
    timesteps = world(20, 3, 1)
    absent = jnp.asarray([[True, False, False]] * 3)
    of_streams = agent_axis.trajectory_of_streams(Trajectory(timesteps, (), (), ()), absent).timesteps
    np.testing.assert_array_equal(of_streams.first[1:], of_streams.last[:-1])
    assert np.asarray(of_streams.first[0]).reshape(3, 3)[:, 0].all()


def test_what_nobody_may_read_is_replaced_and_what_is_bootstrapped_from_is_not():
    timesteps = world(12, 4, 2)
    observation = np.asarray(agent_axis.as_streams(timesteps).observation)
    given, alive = np.asarray(timesteps.observation), np.asarray(timesteps.alive)
    np.testing.assert_array_equal(observation[alive], given[alive])
    kept = np.asarray(timesteps.last)[..., None] & (np.asarray(timesteps.discount) == 1)
    np.testing.assert_array_equal(observation[kept], given[kept])
    assert not np.isnan(observation[~np.asarray(timesteps.last)]).any()


def test_folding_and_unfolding_are_inverse_and_keep_worlds_together():
    x = jnp.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(
        agent_axis.fold(x)[:4], [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    )
    np.testing.assert_array_equal(agent_axis.unfold(agent_axis.fold(x), 3), x)
    np.testing.assert_array_equal(agent_axis.unfold(agent_axis.fold(x, 1), 4, 1), x)


def test_one_flag_or_one_for_each_agent_ends_a_world():
    reward = jnp.ones(3)
    alive = jnp.asarray([True, True, False])
    cut = transition(0.0, reward, truncated=True, alive=alive)
    np.testing.assert_array_equal(cut.discount, [1, 1, 0])
    assert bool(cut.last) and bool(cut.truncated) and not bool(cut.terminated)
    one = transition(0.0, reward, terminated=jnp.asarray([True, False, False]), alive=alive)
    np.testing.assert_array_equal(one.alive, [False, True, False])
    np.testing.assert_array_equal(one.discount, [0, 1, 0])
    assert not bool(one.last)
    nobody = transition(0.0, reward, terminated=jnp.asarray([True, True, False]), alive=alive)
    assert bool(nobody.last) and bool(nobody.terminated) and not bool(nobody.truncated)
    both = transition(0.0, reward, terminated=True, truncated=True)
    np.testing.assert_array_equal(both.discount, [0, 0, 0])
    assert both.alive is None and bool(both.terminated) and not bool(both.truncated)


def test_a_batch_tells_how_a_world_has_ended():
    """[N, A] and [N] with N = A, where an axis that is mixed up shows no error."""
    timestep = restart(jnp.zeros((3, 3, 1)), num_agents=3)._replace(
        reward=jnp.zeros((3, 3)),
        discount=jnp.asarray([[0, 0, 0], [1, 0, 1], [1, 1, 1]], jnp.float32),
        last=jnp.asarray([True, True, False]),
    )
    np.testing.assert_array_equal(timestep.terminated, [True, False, False])
    np.testing.assert_array_equal(timestep.truncated, [False, True, False])


def test_the_probe_fills_what_belongs_to_absent_agents_and_nothing_else():
    env = TeamProbe(fill=NAN)
    state, timestep = env.reset(jax.random.key(0))
    fields = [timestep]
    for _ in range(4):
        state, timestep = env.step(state, jnp.asarray([1, 1, 2]), jax.random.key(1))
        fields.append(timestep)
    alive = np.stack([x.alive for x in fields])
    observed = np.stack([x.observation["observation"] for x in fields])
    assert (np.isnan(observed[..., 0]) == ~alive).all()
    rewards = np.stack([x.reward for x in fields[1:]])
    assert (np.isnan(rewards) == ~alive[:-1]).all()
    assert [bool(x.last) for x in fields] == [False] * 4 + [True]
    assert bool(fields[-1].terminated)
