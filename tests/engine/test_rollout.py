"""Rollouts: the trajectory's shape, and the statistics of episodes against a replay in plain Python."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

from shoal.engine.rollout import EndedEpisodes, RolloutState, episode_metrics, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.envs.batch import Batch
from shoal.types import restart, spec_of
from shoal.types.metrics import joined

NUM_ENVS, NUM_STEPS, CHUNKS = 6, 50, 2


@pytest.fixture(scope="module")
def rolled():
    """Two rollouts, the second going on where the first ended."""
    env = Halves(bonus=0.5)
    batch, algorithm = Batch(env, num_envs=NUM_ENVS), BanditConfig().algorithm(spec_of(env))
    zeros = jnp.zeros(NUM_ENVS)
    policy = jnp.array([0.0, 0.3])

    @jax.jit
    def roll(rollout_state, key):
        return rollout(batch, algorithm, policy, rollout_state, key, NUM_STEPS)

    state, timestep = jax.jit(batch.reset)(jax.random.key(0))
    rollout_state = RolloutState(
        state, timestep, algorithm.memory((NUM_ENVS,)), Episodes(zeros, zeros), no_ended_episodes()
    )
    results = []
    for chunk in range(CHUNKS):
        rollout_state, trajectory = roll(rollout_state, jax.random.key(chunk + 1))
        results.append(jax.device_get((rollout_state, trajectory)))
    return results


def test_a_trajectory_has_one_time_step_more_than_actions(rolled):
    for rollout_state, trajectory in rolled:
        assert trajectory.actions.shape == (NUM_STEPS, NUM_ENVS)
        assert {x.shape[:2] for x in jax.tree.leaves(trajectory.timesteps)} == {(NUM_STEPS + 1, NUM_ENVS)}
        np.testing.assert_array_equal(
            trajectory.timesteps.observation[-1], rollout_state.timestep.observation
        )
    (_, first), (_, second) = rolled
    for end, start in zip(jax.tree.leaves(first.timesteps), jax.tree.leaves(second.timesteps), strict=True):
        np.testing.assert_array_equal(end[-1], start[0])
    np.testing.assert_array_equal(first.memory, np.zeros(NUM_ENVS))
    np.testing.assert_array_equal(second.memory, rolled[0][0].memory)  # of before the first step


def test_episode_statistics_are_those_of_a_replay(rolled):
    """Episodes run across rollouts; the ignored step after an end counts in no return and no length."""
    returns, lengths, terminated, spread = [], [], [], None
    running = [(0.0, 0)] * NUM_ENVS
    for rollout_state, trajectory in rolled:
        rewards, discount, first, last = (
            getattr(trajectory.timesteps, name) for name in ("reward", "discount", "first", "last")
        )
        for t in range(1, NUM_STEPS + 1):
            for n in range(NUM_ENVS):
                if last[t - 1, n]:
                    assert first[t, n]
                    assert rewards[t, n] == 0
                    running[n] = (0.0, 0)
                    continue
                assert rewards[t, n] == 1.0 + 0.5 * trajectory.actions[t - 1, n]
                running[n] = (running[n][0] + float(rewards[t, n]), running[n][1] + 1)
                if last[t, n]:
                    returns.append(running[n][0])
                    lengths.append(running[n][1])
                    terminated.append(discount[t, n] == 0)
        np.testing.assert_allclose(rollout_state.episodes.returned, [x for x, _ in running])
        np.testing.assert_array_equal(rollout_state.episodes.length, [x for _, x in running])
        expected = EndedEpisodes(len(returns), sum(returns), sum(lengths), sum(terminated))
        np.testing.assert_allclose(rollout_state.ended[:4], expected[:4])
        new = episode_metrics(rollout_state, trajectory.timesteps)
        spread = joined(spread, new) if spread else new
        for name, x in (("episode_return", returns), ("episode_length", lengths)):
            for statistic in (np.std, np.min, np.max):
                metric = spread[f"{name}_{statistic.__name__}"]
                np.testing.assert_allclose(metric.value, statistic(x), rtol=1e-5)
                assert metric.weight == len(x)
    assert set(lengths) == {2, 20}
    np.testing.assert_array_equal(np.asarray(lengths) == 2, terminated)


def metrics_of(ended, played, last, axis=()):
    """The metrics of episodes; `played` and `last` are [T, N]."""
    first = restart(jnp.zeros(()))
    timesteps = first._replace(last=jnp.concatenate([jnp.zeros_like(last[:1]), last]))
    return episode_metrics(RolloutState((), first, (), played, ended, (), played), timesteps, axis)


def test_metrics_are_means_over_the_episodes_that_ended():
    ended = EndedEpisodes(*map(jnp.float32, (4, 10, 100, 1)))
    nothing = Episodes(jnp.zeros((3, 2)), jnp.zeros((3, 2))), jnp.zeros((3, 2), bool)
    metrics = {name: (float(x.value), float(x.weight)) for name, x in metrics_of(ended, *nothing).items()}
    assert {name: x for name, x in metrics.items() if not name.endswith(("_std", "_min", "_max"))} == {
        "episode_return": (2.5, 4),
        "episode_length": (25, 4),
        "episode_terminated": (0.25, 4),
        "episodes": (4, 1),
    }
    groups = jax.vmap(
        lambda k: metrics_of(EndedEpisodes(k, 10 * k, k, k), *nothing, ("env",)), axis_name="env"
    )(jnp.array([1.0, 3.0]))
    assert groups["episode_return"].total.tolist() == [40, 40]
    assert groups["episodes"].value.tolist() == [4, 4]


def test_the_spread_of_episodes_is_that_of_all_groups():
    """Numbers of episodes that go on count nowhere, and where none has ended there is no number."""
    rng = np.random.default_rng(0)
    played = Episodes(*(jnp.asarray(1e4 + rng.normal(size=(3, 50, 6)), jnp.float32) for _ in range(2)))
    last = jnp.asarray(rng.random((3, 50, 6)) < 0.1).at[1].set(False)
    groups = jax.vmap(lambda *x: metrics_of(no_ended_episodes(), *x, ("env",)), axis_name="env")(played, last)
    each = [
        metrics_of(no_ended_episodes(), jax.tree.map(lambda x, k=k: x[k], played), last[k]) for k in range(3)
    ]
    assert all(np.isnan(x.value) for name, x in each[1].items() if name != "episodes")
    in_turn = joined(joined(each[0], each[1]), each[2])
    assert in_turn.keys() == groups.keys()
    for name, x in zip(("episode_return", "episode_length"), played, strict=False):
        ended = np.asarray(x, np.float64)[np.asarray(last)]
        for statistic in (np.std, np.min, np.max):
            expected, name_of = statistic(ended), f"{name}_{statistic.__name__}"
            np.testing.assert_allclose(groups[name_of].value, [expected] * 3, rtol=1e-4)
            np.testing.assert_allclose(in_turn[name_of].value, expected, rtol=1e-4)


@pytest.mark.full
def test_a_greedy_rollout_takes_the_mode():
    env = Halves()
    batch, algorithm = Batch(env, num_envs=3), BanditConfig().algorithm(spec_of(env))

    @jax.jit
    def roll(key):
        state, timestep = batch.reset(key)
        episodes = Episodes(jnp.zeros(3), jnp.zeros(3))
        rollout_state = RolloutState(state, timestep, algorithm.memory((3,)), episodes, no_ended_episodes())
        policy = jnp.array([0.0, 0.1])
        return [
            rollout(batch, algorithm, policy, rollout_state, key, 30, greedy=greedy)[1].actions
            for greedy in (True, False)
        ]

    greedy, sampled = roll(jax.random.key(0))
    assert set(np.unique(greedy)) == {1}
    assert set(np.unique(sampled)) == {0, 1}


FEW = """
import re
import jax
import jax.numpy as jnp
from shoal.algos.ppo_config import PPOConfig
from shoal.envs import make
from shoal.envs.batch import Batch
from shoal.xla import machine
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.types import Clock, spec_of

machine.prepare(1)
for num_envs in (2, 16):
    env = make("CartPole-v1")
    batch, algorithm = Batch(env, num_envs=num_envs), PPOConfig().resolved().algorithm(spec_of(env), ())
    learner = jax.jit(algorithm.init, static_argnums=1)(jax.random.key(0), num_envs)
    zeros = jnp.zeros(num_envs)
    state, timestep = jax.jit(batch.reset)(jax.random.key(0))
    episodes = Episodes(zeros, zeros)
    before = RolloutState(state, timestep, algorithm.memory((num_envs,)), episodes, no_ended_episodes())
    def roll(learner, before, key):
        return rollout(batch, algorithm, algorithm.policy(learner, Clock.zero()), before, key, 37)
    text = jax.jit(roll).lower(learner, before, jax.random.key(1)).compile().as_text()
    parts = re.split(r"^(?:ENTRY )?(%\\S+) \\(", text, flags=re.M)  # the computations' names and texts, in turn
    (name,) = [name for name, body in zip(parts[1::2], parts[2::2]) if '"n":"37"' in body]
    print(bool(re.search(rf"to_apply={re.escape(name)}, .*xla_cpu_small_call", text)))
"""


@pytest.mark.full
def test_the_rollout_of_few_environments_is_one_kernel():
    """To start an operation takes 0.1 µs, and a step has fifty; one that XLA cannot take in brings them all back."""
    done = subprocess.run(
        [sys.executable, "-c", FEW],
        env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.split() == ["True", "True"]
