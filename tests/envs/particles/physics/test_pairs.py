"""Every pair of particles once, against a double loop."""

import jax
import numpy as np
import pytest

from shoal.envs.particles.physics import pairs


@pytest.mark.quick("4-(5,)")
@pytest.mark.parametrize(
    "number, rest", [(1, ()), (2, (5,)), (3, ()), (4, (5,)), (7, (5,)), (8, ())], ids=str
)
def test_every_pair_appears_once_and_acts_on_both(number, rest):
    x = np.random.default_rng(0).normal(size=(2, number, *rest))
    partner = np.asarray(jax.jit(pairs.of_partners)(x))
    counts = pairs.counted_pairs(number) if number > 1 else np.zeros((0, 1), bool)
    assert partner.shape == (2, number // 2, number, *rest)
    seen, total = set(), np.zeros_like(x)
    first = np.random.default_rng(1).normal(size=partner.shape)
    second = np.random.default_rng(2).normal(size=partner.shape)
    for s in range(number // 2):
        for i in range(number):
            j = (i + s + 1) % number
            np.testing.assert_allclose(partner[:, s, i], x[:, j], rtol=1e-6)
            total[:, i] += first[:, s, i]
            total[:, j] += second[:, s, i]
            if counts[s, i]:
                assert frozenset((i, j)) not in seen
                seen.add(frozenset((i, j)))
    assert len(seen) == number * (number - 1) // 2
    added = jax.jit(pairs.sum_over_pairs)(first, second)
    np.testing.assert_allclose(added, total, atol=1e-5)
