"""Entropy, KL and log-density of Betas of all sizes, and their gradients, against sixty decimal digits."""

import decimal
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.ops.distributions import Beta

PARAMETERS = (1e-3, 0.03, 0.5, 1.0, 1.0001, 1.7, 3.99, 4.01, 9.0, 60.0, 1e3, 3e4, 1e6, 1e7)
PAIRS = np.asarray([(a, b) for a in PARAMETERS for b in PARAMETERS], np.float32)


@functools.cache
def gamma_functions(x: float) -> tuple[decimal.Decimal, ...]:
    """lnΓ, ψ and ψ' to 40 digits and more: by the recursion up to 60, and Stirling's series there."""
    x = decimal.Decimal(float(x))
    log_gamma = slope = curvature = decimal.Decimal(0)
    while x < 60:
        log_gamma, slope, curvature = log_gamma - x.ln(), slope - 1 / x, curvature + 1 / x**2
        x += 1
    log_gamma += (x - decimal.Decimal("0.5")) * x.ln() - x + (2 * PI).ln() / 2
    slope, curvature = slope + x.ln() - 1 / (2 * x), curvature + 1 / x + 1 / (2 * x**2)
    for k, (above, below) in enumerate(BERNOULLI, 1):
        b = decimal.Decimal(above) / below
        log_gamma += b / (2 * k * (2 * k - 1)) / x ** (2 * k - 1)
        slope -= b / (2 * k) / x ** (2 * k)
        curvature += b / x ** (2 * k + 1)
    return log_gamma, slope, curvature


PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582")
BERNOULLI = (
    (1, 6), (-1, 30), (1, 42), (-1, 30), (5, 66), (-691, 2730), (7, 6), (-3617, 510), (43867, 798), (-174611, 330),
    (854513, 138), (-236364091, 2730),
)  # fmt: skip


@pytest.fixture(scope="module")
def sixty_digits():
    with decimal.localcontext(prec=60):
        yield


@pytest.mark.usefixtures("sixty_digits")
class TestBetaOfAllSizes:
    """In float32 against sixty decimal digits, since SciPy's float64 cancels too."""

    @staticmethod
    def exact(function, *rows: np.ndarray) -> np.ndarray:
        """The function of each row's numbers, as decimals, and of the functions of a, b and a + b."""

        def one(*row):
            row = [decimal.Decimal(float(x)) for x in row]
            of = [gamma_functions(x) for x in (row[0], row[1], row[0] + row[1])]
            return function(*zip(*of, strict=True), *row)

        return np.asarray([[float(x) for x in np.atleast_1d(one(*row))] for row in zip(*rows, strict=True)])

    @staticmethod
    def entropy(log_gammas, slopes, curvatures, a, b):
        value = log_gammas[0] + log_gammas[1] - log_gammas[2]
        value += (a + b - 2) * slopes[2] - (a - 1) * slopes[0] - (b - 1) * slopes[1]
        total = (a + b - 2) * curvatures[2]
        return value, total - (a - 1) * curvatures[0], total - (b - 1) * curvatures[1]

    @pytest.mark.full
    def test_entropy_and_its_gradient(self):
        a, b = PAIRS.T
        expected = self.exact(self.entropy, a, b)
        both = jax.jit(
            jax.vmap(jax.value_and_grad(lambda a, b: Beta(a[None], b[None]).entropy(), argnums=(0, 1)))
        )
        value, slopes = both(a, b)
        np.testing.assert_allclose(value, expected[:, 0], rtol=2e-6, atol=2e-6)
        # Where a and b are equal, or one is 1, the slope's own terms cancel: beside them it is as good.
        for got, right in zip(slopes, expected[:, 1:].T, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-6)

    def test_entropy_of_the_largest_is_scipys(self):
        assert float(Beta(jnp.full(1, 1e6), jnp.full(1, 1e6)).entropy()) == pytest.approx(
            scipy.stats.beta(1e6, 1e6).entropy(), rel=1e-6
        )

    @staticmethod
    def divergence(log_gammas, slopes, _, a, b, c, d):
        other = [gamma_functions(x)[:2] for x in (c, d, c + d)]
        value = other[0][0] + other[1][0] - other[2][0] - log_gammas[0] - log_gammas[1] + log_gammas[2]
        value += (a - c) * slopes[0] + (b - d) * slopes[1] - (a + b - c - d) * slopes[2]
        of_sum = other[2][1] - slopes[2]  # slopes in the parameters of the other one
        return value, other[0][1] - slopes[0] - of_sum, other[1][1] - slopes[1] - of_sum

    @pytest.mark.full
    @pytest.mark.parametrize("change", [1e-4, 1e-2, 1.0, 5.0])
    def test_kl_and_its_gradient(self, change):
        """Of neighbours and of strangers; a KL of 1e-9 has its digits too."""
        rng = np.random.default_rng(4)
        large = PAIRS[np.all(PAIRS >= 0.5, axis=-1)]
        a, b = large.T
        c, d = (large * np.exp(change * rng.normal(size=large.shape))).astype(np.float32).T
        expected = self.exact(self.divergence, a, b, c, d)

        @jax.jit
        @jax.vmap
        def both(a, b, c, d):
            kl = lambda c, d: Beta(a[None], b[None]).kl(Beta(c[None], d[None]))  # noqa: E731
            return jax.value_and_grad(kl, argnums=(0, 1))(c, d)

        value, slopes = both(a, b, c, d)
        np.testing.assert_allclose(value, expected[:, 0], rtol=5e-5)
        for got, right, parameter in zip(slopes, expected[:, 1:].T, (c, d), strict=True):
            scale = np.sqrt(expected[:, 0] / parameter)  # of the slope, by that of the square root of the KL
            assert np.all(np.abs(got - right) < 1e-4 * (np.abs(right) + scale))

    def test_kl_of_small_parameters(self):
        a, b = PAIRS.T
        c, d = PAIRS[::-1].T
        expected = self.exact(lambda *args: self.divergence(*args)[0], a, b, c, d)[:, 0]
        got = jax.jit(lambda a, b, c, d: Beta(a[:, None], b[:, None]).kl(Beta(c[:, None], d[:, None])))(
            a, b, c, d
        )
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    @staticmethod
    def density(log_gammas, slopes, _, a, b, x):
        return (a - 1) * x.ln() + (b - 1) * (1 - x).ln() - log_gammas[0] - log_gammas[1] + log_gammas[2]

    def test_log_prob(self):
        """Within what half a unit in the last place of the action does, and float32's own rounding."""
        rng = np.random.default_rng(5)
        a, b = PAIRS.T.astype(np.float64)
        deviation = np.sqrt(a * b / (a + b + 1)) / (a + b)
        x = np.clip(a / (a + b) + deviation * rng.normal(size=len(a)), 2e-6, 1 - 2e-6).astype(np.float32)
        expected = self.exact(self.density, a, b, x)[:, 0]
        got = jax.jit(lambda a, b, x: Beta(a[:, None], b[:, None]).log_prob(x[:, None]))(*PAIRS.T, x)
        of_action = np.abs((a - 1) / x - (b - 1) / (1 - x)) * np.spacing(x)
        assert np.all(np.abs(got - expected) < 3e-6 * (1 + np.abs(expected)) + of_action)

    def test_float64_is_exact_to_its_own_digits(self):
        large = PAIRS[np.all(PAIRS >= 0.5, axis=-1)].astype(np.float64)
        a, b, (c, d) = *large.T, large[::-1].T
        with jax.enable_x64(True):
            p, q = Beta(a[:, None], b[:, None]), Beta(c[:, None], d[:, None])
            entropy, kl = p.entropy(), p.kl(q)
        np.testing.assert_allclose(entropy, self.exact(self.entropy, a, b)[:, 0], rtol=1e-13, atol=1e-13)
        expected = self.exact(lambda *args: self.divergence(*args)[0], a, b, c, d)[:, 0]
        np.testing.assert_allclose(kl, expected, rtol=1e-12, atol=1e-12)
