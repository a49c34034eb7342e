"""Parameters by whose they are: small leaves as a vector, large ones beside it; nothing of that shows."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shoal import envs
from shoal.algos.learning import optimisers
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.types import spec_of
from shoal.xla import packing


@pytest.mark.full
@pytest.mark.parametrize("large, leaves", [(10**9, 1), (64, 3), (1, 13)])
def test_leaves_of_any_size_take_the_steps_that_each_would_take_alone(monkeypatch, large, leaves):
    """Against Optax on the network as it is."""
    monkeypatch.setattr(packing, "MIN_UNPACKED_SIZE", large)
    config = with_settings(PPOConfig(), hidden_sizes=(8, 8), learning_rate=0.01).resolved()
    network = config.network.build(spec_of(envs.make("CartPole-v1")), jax.random.key(0))
    config = config.optimization
    parts, merge = optimisers.split_parameters(config, network, is_split=False)
    assert len(jax.tree.leaves(parts)) == leaves
    for x, y in zip(jax.tree.leaves(merge(parts)), jax.tree.leaves(network), strict=True):
        np.testing.assert_array_equal(x, y)

    plain = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(0.01, eps=1e-5))
    ours = optimisers.build(config, parts, 1.0)

    @jax.jit
    def both(network):
        def loss(network):
            return sum(jnp.sum(jnp.sin(3.0 * x + 1.0)) for x in jax.tree.leaves(network))

        parts, merge = optimisers.split_parameters(config, network, is_split=False)
        our_state, their_state = ours.init(parts), plain.init(network)
        for _ in range(3):
            gradient = jax.grad(lambda parts: loss(merge(parts)))(parts)
            updates, our_state = ours.update(gradient, our_state, parts)
            parts = optax.apply_updates(parts, updates)
            updates, their_state = plain.update(jax.grad(loss)(network), their_state, network)
            network = optax.apply_updates(network, updates)
        return merge(parts), network

    for x, y in zip(*map(jax.tree.leaves, both(network)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
