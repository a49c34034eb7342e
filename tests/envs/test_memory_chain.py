"""MemoryChain against bsuite's rules, written again in NumPy from the description of its episodes.

The rules below were compared with bsuite 0.3.6 itself, whose package needs what is not installed here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_play import played

from shoal.base.errors import ShoalError
from shoal.envs import make
from shoal.envs.checking.checker import check
from shoal.envs.memory_chain import MemoryChain


class Rules:
    """One episode with a known context and query; `step` returns observation, reward, whether it is the end."""

    def __init__(self, length, context, query):
        self.length, self.context, self.query = length, np.asarray(context), int(query)
        self.time = 0

    def observation(self):
        seen = np.zeros(2 + len(self.context), np.float32)
        seen[0] = 1 - self.time / self.length
        seen[1] = self.query if self.time == self.length - 1 else 0
        if self.time == 0:
            seen[2:] = np.where(self.context, 1, -1)
        return seen

    def step(self, action):
        seen = self.observation()  # of the time before it passes
        self.time += 1
        if self.time <= self.length:
            return seen, 0.0, False
        return seen, 1.0 if action == self.context[self.query] else -1.0, True


@pytest.mark.full
@pytest.mark.parametrize(("length", "num_bits"), [(1, 1), (2, 3), (3, 1), (32, 1), (7, 20)])
def test_whole_episodes_follow_bsuites_rules(length, num_bits):
    actions, states, timesteps = played(MemoryChain(length, num_bits), 16, 3 * (length + 2), seed=length)
    states = jax.device_get(states)
    ends = answers = 0
    for i in range(actions.shape[1]):
        for t in range(len(actions) + 1):
            seen, reward, last = timesteps.observation[t, i], 0.0, False
            if timesteps.first[t, i]:
                rules = Rules(length, states.context[t, i], states.query[t, i])
                expected = rules.observation()
            else:
                expected, reward, last = rules.step(actions[t - 1, i])
            np.testing.assert_allclose(seen, expected, atol=1e-7)
            assert timesteps.reward[t, i] == reward
            assert timesteps.last[t, i] == timesteps.terminated[t, i] == last
            assert timesteps.info["success"][t, i] == (reward == 1.0)
            ends, answers = ends + last, answers + (reward == 1.0)
    assert ends == 3 * actions.shape[1]
    assert 0 < answers < ends


def test_bits_and_queries_are_fair_and_drawn_apart():
    reset = jax.jit(jax.vmap(MemoryChain(4, 3).reset))
    state, _ = reset(jax.random.split(jax.random.key(0), 6000))
    np.testing.assert_allclose(np.mean(state.context, 0), 0.5, atol=0.03)
    np.testing.assert_allclose(np.bincount(state.query) / 6000, 1 / 3, atol=0.03)
    np.testing.assert_allclose(np.corrcoef(np.c_[state.context, state.query].T), np.eye(4), atol=0.05)


def test_who_remembers_is_always_right_and_who_does_not_is_right_by_half():
    env = make("MemoryChain-v0", length=5)

    @jax.jit
    @jax.vmap
    def episode(key):
        state, timestep = env.reset(key)
        shown = timestep.observation[2] > 0
        rewards = []
        for answer in (shown, ~shown):
            inner = state
            for _ in range(6):
                inner, timestep = env.step(inner, answer.astype(jnp.int32), key)
            rewards.append(timestep.reward)
        return jnp.stack(rewards), timestep.observation

    rewards, last_seen = episode(jax.random.split(jax.random.key(0), 50))
    np.testing.assert_array_equal(rewards, np.tile([1.0, -1.0], (50, 1)))
    assert not np.any(last_seen)  # nothing is left of the context


def test_the_registered_name():
    assert make("MemoryChain-v0") == MemoryChain(length=32, num_bits=1)


@pytest.mark.parametrize(("length", "num_bits"), [(6, 1), pytest.param(4, 3, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_the_checker_finds_nothing(length, num_bits):
    assert check(make("MemoryChain-v0", length=length, num_bits=num_bits), keys=8, steps=40) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ["length", "num_bits"])
def test_too_few_is_one_sentence(name):
    with pytest.raises(
        ShoalError, match=f"^MemoryChain-v0: {name}=0 is out of bounds: it must be at least 1 and at most "
    ):
        make("MemoryChain-v0", **{name: 0}).reset(jax.random.key(0))
