"""SAC, TD3 and DDPG on a task of one step, whose best policy is known or found by quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from quadratic import Quadratic
from tiny_worlds import populate
from value_rollouts import config_of

BEST = (0.25, -0.5)
ALPHA = 0.1
SIZES = {"num_envs": 32, "num_steps": 2}
LEARNS = {
    **{
        "hidden_sizes": (64, 64),
        "lr_schedule": "linear",
        "learning_rate": 3e-3,
        "critic_learning_rate": 3e-3,
    },
    **{"buffer_size": 65_536, "batch_size": 256, "learning_starts": 2048, "train_frequency": 16, "tau": 0.05},
    **{"target_network_frequency": 16},
}


def learned(name, updates, **settings):
    """The distribution of a policy after training."""
    config = config_of(name, **LEARNS | settings)
    population, compiled = populate(Quadratic(best=BEST), config, **SIZES, total_updates=updates)
    population, _ = compiled.train(population, jnp.int32(updates))
    actor = jax.tree.map(lambda x: x[0], population.learner.shared.network.actor)
    return jax.device_get(actor.policy(jnp.ones(1)))


@pytest.mark.parametrize("name", ["td3", "ddpg"])
@pytest.mark.slow
def test_a_deterministic_policy_finds_the_best_action(name):
    """Within 1% of the half range, though its bounds are neither alike nor symmetric."""
    np.testing.assert_allclose(learned(name, 1500, exploration_noise=0.5).mode(), BEST, atol=0.01)


def objective(loc_and_log_scale, best):
    """Minus the expected reward and the weighted entropy of a tanh-normal, by Gauss and Hermite."""
    loc, scale = loc_and_log_scale[0], np.exp(loc_and_log_scale[1])
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    raw, weights = loc + scale * nodes, weights / np.sqrt(2 * np.pi)
    action = np.tanh(raw)
    log_slope = 2 * (np.log(2) - raw - np.logaddexp(0, -2 * raw))
    entropy = 0.5 * np.log(2 * np.pi * np.e) + np.log(scale) + weights @ log_slope
    return weights @ (action - best) ** 2 - ALPHA * entropy


@pytest.mark.slow
def test_sac_finds_the_best_tanh_normal_of_a_temperature():
    policy = learned("sac", 1500, autotune=False, alpha=ALPHA)
    for entry, best in enumerate(BEST):
        found = scipy.optimize.minimize(objective, (0.0, -1.0), (best,), tol=1e-10).x
        assert objective(found, best) < objective(found + 0.01, best)
        loc, scale = policy.loc[entry], policy.scale[entry]
        np.testing.assert_allclose(loc, found[0], rtol=0.01)
        np.testing.assert_allclose(scale, np.exp(found[1]), rtol=0.01)
