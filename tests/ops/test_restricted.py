"""A restricted distribution is the one of the entries that there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.ops.distributions import Beta, Normal, Restricted, TanhNormal

MASK = np.asarray([[True, True, False, True], [False, True, False, False]])


def made(kind, seed):
    keys = jax.random.split(jax.random.key(seed), 2)
    first, second = (jax.random.uniform(key, (2, 4), minval=0.5, maxval=2.0) for key in keys)
    return kind(first, second) if kind is not Beta else Beta(1.0 + first, 1.0 + second, low=-1.0, high=1.0)


def of_row(distribution, row):
    """The distribution of the entries that a row has."""
    return jax.tree.map(lambda x: x[row][MASK[row]], distribution)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Normal, TanhNormal, Beta])
def test_it_is_the_distribution_of_its_entries(kind):
    @jax.jit
    def said(inner, other):
        restricted = Restricted(inner, MASK)
        raw = jnp.where(MASK, jnp.linspace(-0.9, 0.8, 8).reshape(2, 4), 0.0)
        rows = []
        for row in range(2):
            alone = of_row(inner, row)
            log_prob = getattr(alone, "log_prob_raw", alone.log_prob)(raw[row][MASK[row]])
            entropy = (alone.entropy_estimate if kind is TanhNormal else alone.entropy)()
            rows.append((log_prob, entropy, alone.kl(of_row(other, row))))
        together = restricted.log_prob_raw(raw), restricted.entropy(), restricted.kl(Restricted(other, MASK))
        return restricted.sample_raw(jax.random.key(2)), restricted.mode_raw(), together, rows

    raw, mode, (log_prob, entropy, kl), rows = said(made(kind, 0), made(kind, 1))
    assert (raw[~MASK] == 0).all() and (mode[~MASK] == 0).all()
    assert (raw[MASK] != 0).all()
    for row, alone in enumerate(rows):
        np.testing.assert_allclose(log_prob[row], alone[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(entropy[row], alone[1], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(kl[row], alone[2], rtol=1e-4, atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("kind", [Normal, TanhNormal, Beta])
def test_what_there_is_not_may_be_nan_and_gets_no_gradient(kind):
    inner = made(kind, 0)

    @jax.jit
    @jax.value_and_grad
    def both(inner):
        restricted = Restricted(inner, MASK)
        return jnp.sum(restricted.log_prob_raw(jnp.full((2, 4), 0.3))) + jnp.sum(restricted.entropy())

    broken = jax.tree.map(lambda x: jnp.where(MASK, x, jnp.nan), inner)
    value, gradient = both(broken)
    expected, expected_gradient = both(inner)
    assert value == expected
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        np.testing.assert_array_equal(x, y)
        assert (x[~MASK] == 0).all()


def test_the_means_of_a_normal_can_be_read():
    restricted = Restricted(made(Normal, 0), MASK)
    assert (restricted.loc[~MASK] == 0).all() and (restricted.scale[MASK] > 0).all()
