"""Normalised values: their units, the order of statistics and targets, and outputs that PopArt preserves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import ENDS, NETWORKS, SPEC, N, acted, made

from shoal.algos import ppo
from shoal.algos.learning import minibatches, value_normalisation
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.nets.memory import sequences
from shoal.nets.networks import rescale_value_layer
from shoal.ops import statistics

WEIGHT = ~ENDS[1][:-1]


def moments_about(mean, deviation):
    x = jnp.asarray([mean - deviation, mean + deviation], jnp.float32)
    return statistics.update_moments(statistics.init_moments(x[0]), x)


@functools.partial(jax.jit, static_argnums=(1, 2))
def outputs(config, old, new):
    """Denormalised values before and after the last layer was rescaled, and those without rescaling it."""
    learner, trajectory = acted(config, jax.random.key(0))
    network, (*_, rollout) = learner.shared.network, ppo.prepare(config, SPEC, (), learner, trajectory)
    old, new = moments_about(*old), moments_about(*new)
    rescaled = rescale_value_layer(network, old, new)

    def value(network, moments):
        output = sequences.unroll(network, rollout.memories, rollout.inputs).value
        return value_normalisation.denormalise(moments, output)

    return value(network, old), value(rescaled, new), value(network, new), (network, rescaled)


@pytest.mark.full
@pytest.mark.parametrize("old, new", [((0.0, 1.0), (250.0, 40.0)), ((1e3, 300.0), (1.2e3, 0.5))])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.quick("a shared torso-old0-new0")
@pytest.mark.rare()
def test_rescaling_the_last_layer_preserves_the_values(name, old, new):
    config = struct.as_arrays(made(advantage="gae", **NETWORKS[name]))
    before, after, unscaled, (network, rescaled) = outputs(config, old, new)
    rounding = 4 * np.finfo(np.float32).eps * max(abs(new[0]), float(np.abs(before).max()))
    np.testing.assert_allclose(after, before, rtol=0, atol=rounding)
    assert np.abs(unscaled - before).max() > 10
    first, second = struct.named_leaves(network), struct.named_leaves(rescaled)
    changed = [name for name in first if (first[name] != second[name]).any()]
    assert changed == ["critic/mlp/projection/0/bias", "critic/mlp/projection/0/kernel"]


@pytest.mark.full
def test_a_change_below_the_rounding_of_the_mean_is_not_lost():
    """The moments keep what rounding takes from their mean, and so does the shift of the bias."""
    config = made(advantage="gae")
    network = config.network.build(SPEC, jax.random.key(0))
    old = moments_about(1e6, 1.0)
    new = old._replace(residual=(old.residual[0], jnp.float32(0.01), old.residual[2]))
    rescaled = rescale_value_layer(network, old, new)
    np.testing.assert_allclose(rescaled.critic.mlp.projection[0].bias, -0.01, rtol=1e-3)


@jax.jit
def prepared(config, key):
    """What is prepared from a learner that has moments, its rollout, and what its network then gives."""
    learner, trajectory = acted(config, key, reward_scale=20.0)
    shared = learner.shared
    if shared.value is not None:
        learner = learner._replace(shared=shared._replace(value=moments_about(30.0, 8.0)))
    rows, after, metrics, _ = ppo.prepare(config, SPEC, (), learner, trajectory)
    output = minibatches.evaluate(after.shared.network, rows)[2]
    return learner, trajectory, (rows, after, metrics), output


@jax.jit
def prepared_plainly(config, learner, trajectory):
    """The same from a critic without normalisation that gives the same values, and these."""
    identity = statistics.init_moments(jnp.zeros(()))
    network = rescale_value_layer(learner.shared.network, learner.shared.value, identity)
    shared = learner.shared._replace(network=network, value=None)
    learner = learner._replace(shared=shared)
    rows, after, metrics, _ = ppo.prepare(config, SPEC, (), learner, trajectory)
    return (rows, after, metrics), ppo.replay_rollout(config, SPEC, learner, trajectory)[1].value


GAE = {"advantage": "gae", "norm_adv": "none", "clip_vloss": True}


@pytest.mark.full
@pytest.mark.parametrize("network", ["no memory", "two memories"])
@pytest.mark.parametrize("kind", ["running", "popart"])
@pytest.mark.rare("running-two memories", "popart-no memory", "running-no memory")
def test_advantages_and_targets_are_those_of_a_plain_critic_with_the_same_values(kind, network):
    """In the units of the rewards; targets enter the moments, and are normalised by the new ones."""
    settings = GAE | NETWORKS[network]
    config = made(norm_value=kind, **settings)
    learner, trajectory, found, output = prepared(struct.as_arrays(config), jax.random.key(2))
    plain, replayed = prepared_plainly(struct.as_arrays(made(**settings)), learner, trajectory)
    rows, after, metrics = found
    plain_rows, plain_learner, plain_metrics = plain
    counts = np.asarray(rows.weight) > 0
    np.testing.assert_allclose(rows.advantage, plain_rows.advantage, rtol=1e-4, atol=1e-3)
    for name, mean in plain_metrics.items():
        np.testing.assert_allclose(metrics[name].total, mean.total, rtol=1e-3, err_msg=name)

    targets = np.asarray(plain_rows.target, np.float64)[counts]
    new, both = after.shared.value, np.concatenate([[22.0, 38.0], targets])
    assert float(new.count) == len(both)
    np.testing.assert_allclose(new.mean, both.mean(), rtol=1e-4)
    np.testing.assert_allclose(new.variance, both.var(), rtol=1e-3)
    expected = (targets - both.mean()) / both.std()
    np.testing.assert_allclose(np.asarray(rows.target)[counts], expected, rtol=1e-3, atol=1e-3)

    # The old value of the clip is what the network gives before the first gradient step.
    output = np.asarray(output).T if output.shape != counts.shape else np.asarray(output)
    np.testing.assert_allclose(np.asarray(rows.value)[counts], output[counts], rtol=1e-4, atol=1e-4)
    values = value_normalisation.denormalise(new, rows.value)
    real = np.asarray(plain_rows.value)[counts]
    assert np.allclose(np.asarray(values)[counts], real, rtol=1e-4, atol=1e-3) == (kind == "popart")

    # Without normalisation nothing is kept, and the value is what the network gave.
    assert plain_learner.shared.value is None
    init = functools.partial(made(**settings).algorithm(SPEC).init, num_envs=N)
    assert jax.eval_shape(init, jax.random.key(0)).shared.value is None
    order = minibatches.to_rows(made(**settings), (replayed[:-1], WEIGHT))
    np.testing.assert_array_equal(np.asarray(plain_rows.value)[order[1]], np.asarray(order[0])[order[1]])


@pytest.mark.full
def test_targets_far_out_are_not_clipped():
    moments = moments_about(0.0, 1.0)
    far = value_normalisation.normalise(moments, jnp.asarray([1e4, -50.0]))
    np.testing.assert_allclose(value_normalisation.denormalise(moments, far), [1e4, -50.0], rtol=1e-6)


@pytest.mark.full
def test_another_run_is_started_from_with_its_moments():
    config = struct.as_arrays(made(norm_value="popart", **GAE))
    algorithm = config.algorithm(SPEC)
    trained = prepared(config, jax.random.key(0))[2][1].shared
    saved = struct.named_leaves(trained)
    new = jax.jit(lambda key: algorithm.init(key, 4))(jax.random.key(5))
    inherited = algorithm.inherit(new, saved).shared
    assert float(inherited.value.mean) == float(trained.value.mean) != 0.0
    plain = struct.as_arrays(made(**GAE)).algorithm(SPEC)
    with pytest.raises(
        ShoalError, match="'value/count' was saved there, but nothing of that name is learned"
    ):
        plain.inherit(jax.jit(lambda key: plain.init(key, 4))(jax.random.key(5)), saved)
