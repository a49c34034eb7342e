"""State-dependent exploration: its noise is held over steps, and each action is distributed as the policy says."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.acting import actions
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.nets.heads import GSDEHead
from shoal.ops.distributions import LinearNoise, Normal, Restricted
from shoal.types import Clock, EnvSpec, TimeStep
from shoal.types.spaces import Box

N = 4
SPEC = EnvSpec(Box(-1.0, 1.0, (3,)), Box(-2.0, 2.0, (2,)))


def acted(config, firsts):
    """Raw actions of N streams that always see the same, [T, N, 2]; `firsts` [T, N] begin episodes."""
    algorithm = config.algorithm(SPEC)
    policy = algorithm.policy(algorithm.init(jax.random.key(0), N), Clock.zero())
    zeros = jnp.zeros(N)

    def step(memory, inputs):
        first, key = inputs
        timestep = TimeStep(jnp.ones((N, 3)), zeros, zeros + 1.0, first, first & False)
        memory, _, extras = algorithm.act(policy, memory, timestep, key)
        return memory, extras.raw_action

    keys = jax.random.split(jax.random.key(1), len(firsts))
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, algorithm.memory((N,)), (firsts, keys))[1])())


@pytest.mark.parametrize("core", ["none", "gru"])
def test_noise_is_held_for_some_steps_or_for_an_episode(core):
    # A core whose memory is cleared at each step sees the same at each, too.
    settings = {"hidden_sizes": (5,), "distribution": "gsde"} | ({} if core == "none" else {"core": core})
    firsts = jnp.ones((7, N), bool)
    raw = acted(with_settings(PPOConfig(), gsde_steps=3, **settings).resolved(), firsts)
    is_same = [np.allclose(a, b) for a, b in itertools.pairwise(raw)]
    assert is_same == [True, True, False, True, True, False]
    assert np.unique(raw[0].round(4), axis=0).shape == (N, 2)  # each stream has noise of its own

    if core == "none":
        firsts = jnp.zeros((7, N), bool).at[0].set(True).at[4, 1].set(True)
        raw = acted(with_settings(PPOConfig(), gsde_steps=0, **settings).resolved(), firsts)
        changes = ~np.isclose(raw[1:], raw[:-1]).all(axis=-1)
        assert np.argwhere(changes).tolist() == [[3, 1]]


def test_each_action_is_distributed_as_the_policy_says():
    head = GSDEHead(2, 16, initial_std=0.7, minimum_std=0.3)
    loc, features = jnp.array([1.0, -1.0]), jax.random.normal(jax.random.key(0), (16,))
    distribution, count = head(loc, features), 20_000
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), distribution)
    noise = jnp.zeros((count, *head.noise_shape)), jnp.zeros(count, jnp.int32)
    _, raw = actions.sample_held(many, noise, jnp.zeros(count, bool), jax.random.key(1), 4)
    np.testing.assert_allclose(raw.mean(axis=0), distribution.loc, atol=0.05)
    np.testing.assert_allclose(raw.std(axis=0), distribution.scale, rtol=0.02)
    np.testing.assert_allclose(
        jnp.sqrt(jnp.sum(distribution.weights**2, axis=0)), distribution.scale, rtol=1e-5
    )


def test_it_has_the_methods_of_its_normal_and_keeps_to_a_mask():
    mask = jnp.array([True, False])
    distribution = GSDEHead(2, 3)(jnp.array([1.0, 2.0]), jnp.ones(3), mask)
    assert isinstance(distribution, LinearNoise) and isinstance(distribution.marginal, Restricted)
    np.testing.assert_array_equal(distribution.with_noise(jnp.ones((4, 2)))[1], 0.0)
    plain = GSDEHead(2, 3)(jnp.array([1.0, 2.0]), jnp.ones(3))
    normal = Normal(plain.loc, plain.scale)
    np.testing.assert_array_equal(plain.log_prob(jnp.ones(2)), normal.log_prob(jnp.ones(2)))
    np.testing.assert_array_equal(plain.entropy(), normal.entropy())
    np.testing.assert_allclose(normal.kl(plain), 0.0, atol=1e-6)
    assert actions.without_noise(plain) == plain.marginal
    assert not hasattr(plain, "sample_raw") and not hasattr(plain, "__copy__")
