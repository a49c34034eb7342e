"""What is measured of targets beyond the bounds of a distribution of returns."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from shoal.algos.learning import action_values, metric_means
from shoal.algos.learning.action_values import SampledTransitions
from shoal.ops.distributions import DiscreteValued
from shoal.types import CLIPPING

RNG = np.random.default_rng(0)
CATEGORICAL = types.SimpleNamespace(network=types.SimpleNamespace(values="categorical"))


@pytest.mark.parametrize("scale", [1.0, 1e12])
def test_the_mass_beyond_the_atoms_of_c51_is_that_of_a_loop(scale):
    count, actions, atoms = 40, 3, scale * np.linspace(-2.0, 3.0, 6)
    logits, selector = RNG.normal(size=(count, actions, 6)), RNG.normal(size=(count, actions))
    reward, weight = scale * RNG.normal(size=count) * 2, (RNG.uniform(size=count) < 0.8).astype(float)
    discount = np.where(RNG.uniform(size=count) < 0.3, 0.0, 0.9)
    reward[weight == 0] = np.nan
    batch = SampledTransitions(
        jnp.zeros(count, int),
        *(jnp.asarray(x, jnp.float32) for x in (reward, discount, weight)),
        DiscreteValued(
            *(jnp.asarray(np.broadcast_to(x, logits.shape), jnp.float32) for x in (logits, atoms))
        ),
        jnp.asarray(selector, jnp.float32),
    )
    found = jax.jit(lambda batch: action_values.clipping(CATEGORICAL, batch, ()))(batch)
    cut, lows, highs = 0.0, [], []
    for k in np.flatnonzero(weight):
        p = scipy.special.softmax(logits[k, selector[k].argmax()])
        z = reward[k] + discount[k] * atoms
        below, above = p[z < atoms[0]].sum(), p[z > atoms[-1]].sum()
        cut += below + above
        lows += [reward[k] / (1 - discount[k])] * int(below > 0.01)
        highs += [reward[k] / (1 - discount[k])] * int(above > 0.01)
    np.testing.assert_allclose(found["clipped_mass"].value, cut / weight.sum(), rtol=1e-5)
    np.testing.assert_allclose(found["clipped_low"], (min(lows), 1.0), rtol=1e-5)
    np.testing.assert_allclose(found["clipped_high"], (max(highs), 1.0), rtol=1e-5)
    # With these bounds nothing is cut any more, whatever is predicted.
    wide = np.linspace(min(lows), max(highs), 6)
    z = reward[weight > 0, None] + discount[weight > 0, None] * wide
    assert z.min() >= wide[0] * (1 + 1e-9) and z.max() <= wide[-1] * (1 + 1e-9)


def test_targets_of_a_categorical_critic_count_where_they_lie_beyond():
    target = jnp.asarray([[-3.0, 0.0], [5.0, jnp.nan], [1.0, 9.0]])
    weight, atoms = jnp.asarray([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), jnp.asarray([-1.0, 0.0, 1.0])

    def measured(target):
        x = target[..., None]
        return metric_means.clipping_metrics(x, jnp.ones_like(x), target, atoms, weight, ())

    found = measured(target)
    assert [float(found[name].value) for name in CLIPPING] == [pytest.approx(0.6), -3.0, 9.0]
    within = measured(jnp.clip(target, -1.0, 1.0))
    assert within["clipped_mass"].value == 0
    assert within["clipped_low"].weight == within["clipped_high"].weight == 0
