"""Each distribution against SciPy, loops and Monte Carlo; what all promise is in `test_distribution_contract.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from shoal.ops import distributions
from shoal.ops.distributions import (
    Beta,
    Categorical,
    Deterministic,
    DiscreteValued,
    EpsilonGreedy,
    MultiCategorical,
    Normal,
    TanhNormal,
    discrete,
)

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


def floats(*values: float) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def many(distribution, count: int = 200_000, seed: int = 0) -> np.ndarray:
    """`count` independent samples of one distribution without batch axes."""
    batch = jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *x.shape)), distribution)
    return np.asarray(jax.jit(lambda d, key: d.sample(key))(batch, jax.random.key(seed)))


class TestCategorical:
    @pytest.mark.full
    @pytest.mark.parametrize("n", [1, 3, 18, 100])
    def test_samples_are_distributed_as_they_should(self, n):
        logits = jnp.asarray(RNG.normal(size=n), jnp.float32)
        counts = np.bincount(many(Categorical(logits)), minlength=n)
        assert counts.shape == (n,)
        if n > 1:
            expected = np.asarray(jax.nn.softmax(logits), np.float64)
            assert scipy.stats.chisquare(counts, counts.sum() * expected / expected.sum()).pvalue > 1e-4

    @pytest.mark.parametrize("sampler", [discrete._inverse_cdf_unrolled, discrete._inverse_cdf])
    def test_never_samples_what_cannot_be(self, sampler):
        """Uniform numbers at both ends, illegal actions anywhere, and probabilities that do not sum to 1."""
        uniform = jnp.asarray([0.0, 2.0**-23, 0.5, 1.0 - 2.0**-23, 1.0 - 2.0**-24], jnp.float32)
        for n in (1, 2, 18, 100):
            legal = RNG.uniform(size=(n, 20)) < 0.4
            legal[RNG.integers(n, size=20), np.arange(20)] = True
            logits = np.where(legal, RNG.normal(size=(n, 20)) * 3, -np.inf).astype(np.float32)
            probabilities = scipy.special.softmax(logits, axis=0) * RNG.uniform(0.99, 1.01, size=20)
            tiled = jnp.asarray(np.repeat(probabilities, len(uniform), axis=1), jnp.float32)
            drawn = np.asarray(jax.jit(sampler)(tiled, jnp.tile(uniform, 20)))
            assert np.all(np.repeat(legal, len(uniform), axis=1)[drawn, np.arange(100)])

    def test_log_prob_entropy_and_kl_are_scipys(self):
        p, q = RNG.normal(size=(2, 7, 5)).astype(np.float32) * 2
        d, other = Categorical(jnp.asarray(p)), Categorical(jnp.asarray(q))
        probabilities = np.asarray(jax.nn.softmax(p), np.float64)
        actions = RNG.integers(5, size=7)
        expected = np.log(probabilities[np.arange(7), actions])
        np.testing.assert_allclose(d.log_prob(jnp.asarray(actions)), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(d.entropy(), scipy.stats.entropy(probabilities, axis=1), rtol=1e-5)
        expected = scipy.stats.entropy(probabilities, np.asarray(jax.nn.softmax(q), np.float64), axis=1)
        np.testing.assert_allclose(d.kl(other), expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(d.mode(), p.argmax(axis=1))
        assert d.mode().dtype == d.sample(KEY).dtype == jnp.int32

    def test_one_key_gives_independent_entries(self):
        drawn = np.asarray(Categorical(jnp.zeros((40_000, 2))).sample(KEY)).reshape(-1, 2)
        counts = np.bincount(drawn[:, 0] * 2 + drawn[:, 1], minlength=4)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


class TestMasks:
    logits = jnp.asarray([[1.0, np.nan, -2.0, 1e4], [0.5, 1.0, -1.0, 0.0]], jnp.float32)
    mask = jnp.asarray([[True, False, True, False], [True, True, True, True]])

    def test_only_legal_actions_count(self):
        d = distributions.masked(Categorical(self.logits), self.mask)
        first = np.asarray([1.0, -2.0])
        expected = scipy.stats.entropy(np.exp(first) / np.exp(first).sum())
        np.testing.assert_allclose(d.entropy()[0], expected, rtol=1e-5)
        np.testing.assert_allclose(
            d.log_prob(jnp.asarray([0, 0]))[0], first[0] - np.logaddexp(*first), rtol=1e-5
        )
        assert d.log_prob(jnp.asarray([1, 1]))[0] == -np.inf
        assert d.mode()[0] == 0
        drawn = many(jax.tree.map(lambda x: x[0], d), 20_000)
        assert set(drawn) <= {0, 2}
        unmasked = Categorical(self.logits[1])
        np.testing.assert_allclose(d.entropy()[1], unmasked.entropy(), rtol=1e-6)

    def test_one_legal_action_leaves_no_entropy_and_no_gradient(self):
        mask = jnp.asarray([False, True, False, False])

        def everything(logits):
            d = distributions.masked(Categorical(logits), mask)
            return d.entropy() + d.log_prob(jnp.asarray(1)) + d.kl(d)

        both = jax.jit(jax.value_and_grad(everything))
        for logits in (self.logits[0].at[1].set(-1e4), self.logits[1]):
            value, gradient = both(logits)
            assert value == 0
            np.testing.assert_array_equal(gradient, 0.0)
            d = distributions.masked(Categorical(logits), mask)
            assert all(d.sample(jax.random.key(i)) == 1 for i in range(20))

    @pytest.mark.parametrize("logit", [-1e12, 1e12])
    def test_legal_actions_of_any_logit_count_alone(self, logit):
        d = distributions.masked(Categorical(jnp.full(3, logit)), jnp.asarray([False, True, True]))
        both = distributions.masked(Categorical(jnp.full(3, logit)), jnp.ones(3, bool))
        np.testing.assert_allclose(d.log_prob(jnp.arange(3)), [-np.inf, -np.log(2), -np.log(2)], rtol=1e-6)
        np.testing.assert_allclose(
            [d.entropy(), d.kl(d), d.kl(both), both.kl(d)], [np.log(2), 0, np.log(1.5), np.inf], atol=1e-6
        )
        assert d.mode() == 1 and set(many(d, 1000)) == {1, 2}

        def everything(logits):
            d = distributions.masked(Categorical(logits), jnp.asarray([False, True, True]))
            return d.entropy() + d.kl(d) + d.log_prob(jnp.asarray(1))

        slope = jax.grad(everything)(jnp.full(3, logit))
        np.testing.assert_allclose(slope, [0.0, 0.5, -0.5], atol=1e-6)

    def test_no_legal_action_is_any_action(self):
        d = distributions.masked(Categorical(self.logits[0]), jnp.zeros(4, bool))
        np.testing.assert_allclose(d.entropy(), np.log(4), rtol=1e-6)
        np.testing.assert_allclose(d.log_prob(jnp.arange(4)), -np.log(4), rtol=1e-6)
        np.testing.assert_allclose(d.kl(d), 0.0, atol=1e-6)

    @pytest.mark.full
    def test_parts_of_different_sizes(self):
        sizes = (2, 5)
        logits = tuple(jnp.asarray(RNG.normal(size=(6, n)), jnp.float32) for n in sizes)
        mask = jnp.asarray(RNG.uniform(size=(6, 7)) < 0.6).at[:, jnp.asarray([0, 2])].set(True)
        d = distributions.masked(MultiCategorical(logits), mask)
        ends = np.cumsum(sizes)
        x = d.sample(KEY)
        assert x.shape == (6, 2) and x.dtype == jnp.int32
        separate = [
            distributions.masked(Categorical(part), mask[:, end - n : end])
            for part, n, end in zip(logits, sizes, ends, strict=True)
        ]
        np.testing.assert_allclose(d.entropy(), sum(s.entropy() for s in separate), rtol=1e-5)
        np.testing.assert_allclose(
            d.log_prob(x), sum(s.log_prob(x[:, i]) for i, s in enumerate(separate)), rtol=1e-5
        )
        assert np.all(np.asarray(d.log_prob(x)) > -100)
        np.testing.assert_array_equal(d.mode(), jnp.stack([s.mode() for s in separate], axis=-1))
        np.testing.assert_allclose(d.kl(d), 0.0, atol=1e-6)
        other = distributions.masked(MultiCategorical(tuple(-part for part in logits)), mask)
        flipped = [Categorical(jnp.where(s.logits > -1e8, -s.logits, s.logits)) for s in separate]
        expected = sum(s.kl(f) for s, f in zip(separate, flipped, strict=True))
        np.testing.assert_allclose(d.kl(other), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(d.sample_and_log_prob(KEY)[0], x)

    def test_a_mask_that_does_not_fit_is_named(self):
        with pytest.raises(ValueError, match=r"mask has shape \[3\].*4 long"):
            distributions.masked(Categorical(jnp.zeros(4)), jnp.ones(3, bool))


LOC = np.asarray([-1.5, 0.0, 0.3, 2.0], np.float32)
SCALE = np.asarray([0.3, 1.0, 2.5, 0.05], np.float32)


class TestNormal:
    d = Normal(jnp.asarray(LOC), jnp.asarray(SCALE))

    def test_is_scipys(self):
        x = RNG.normal(size=4).astype(np.float32)
        oracle = scipy.stats.norm(LOC, SCALE)
        np.testing.assert_allclose(self.d.log_prob(jnp.asarray(x)), oracle.logpdf(x).sum(), rtol=1e-5)
        np.testing.assert_allclose(self.d.entropy(), oracle.entropy().sum(), rtol=1e-5)
        drawn = many(self.d)
        for i in range(4):
            assert scipy.stats.kstest(drawn[:, i], scipy.stats.norm(LOC[i], SCALE[i]).cdf).pvalue > 1e-4

    def test_kl_is_the_integral(self):
        other = Normal(self.d.loc[::-1] * 0.5, self.d.scale * 1.3 + 0.4)
        p = scipy.stats.norm(LOC.astype(float), SCALE.astype(float))
        q = scipy.stats.norm(np.asarray(other.loc, float), np.asarray(other.scale, float))
        grid = np.linspace(-12, 12, 40_001)[:, None] * SCALE + LOC
        integrand = p.pdf(grid) * (p.logpdf(grid) - q.logpdf(grid))
        expected = scipy.integrate.trapezoid(integrand, grid, axis=0).sum()
        np.testing.assert_allclose(self.d.kl(other), expected, rtol=1e-4)
        assert self.d.kl(self.d) == 0

    def test_free_scale_is_broadcast(self):
        d = Normal(jnp.zeros((5, 3)), jnp.asarray([0.5, 1.0, 2.0]))
        assert d.sample(KEY).shape == d.mode().shape == (5, 3)
        assert d.entropy().shape == d.log_prob(d.mode()).shape == d.kl(d).shape == (5,)


def tanh_entropy(loc: float, scale: float) -> float:
    """By adaptive quadrature in float64."""

    def integrand(u: float) -> float:
        return scipy.stats.norm.pdf(u, loc, scale) * 2 * np.logaddexp(u, -u)

    span, points = 12 * scale, sorted({loc, 0.0})
    inside = [p for p in points if loc - span < p < loc + span]
    value, _ = scipy.integrate.quad(integrand, loc - span, loc + span, points=inside, limit=400, epsabs=1e-10)
    return scipy.stats.norm.entropy(loc, scale) + 2 * np.log(2) - value


class TestTanhNormal:
    d = TanhNormal(
        jnp.asarray(LOC), jnp.asarray(SCALE), low=(-1.0, -2.0, 0.0, 5.0), high=(1.0, 2.0, 10.0, 6.0)
    )

    def test_samples_are_squashed_normals(self):
        drawn = many(self.d)
        low, high = np.asarray(self.d.low), np.asarray(self.d.high)
        assert np.all(drawn >= low) and np.all(drawn <= high)
        for i in (0, 1):
            unit = 2 * (drawn[:, i] - low[i]) / (high[i] - low[i]) - 1
            oracle = scipy.stats.norm(LOC[i], SCALE[i])
            assert (
                scipy.stats.kstest(
                    unit, lambda x, o=oracle: o.cdf(np.arctanh(np.clip(x, -1 + 1e-7, 1 - 1e-7)))
                ).pvalue
                > 1e-4
            )

    def test_density_is_that_of_the_action(self):
        """The density of x, integrated over the interval, is 1; and both ways to ask give the same."""
        loc, scale = np.float32([[[0.3]], [[-0.5]], [[0.0]]]), np.float32([[[0.6]], [[0.2]], [[1.5]]])
        d = TanhNormal(jnp.asarray(loc), jnp.asarray(scale), low=-3.0, high=2.0)
        raw = jnp.linspace(-7.0, 7.0, 4001)[:, None]
        x = np.asarray(jax.jit(TanhNormal.from_raw)(d, raw))[:, 0]
        of_raw, of_x = np.asarray(d.log_prob_raw(raw)), np.asarray(d.log_prob(jnp.asarray(x[:, None])))
        middle = (x > -2.9) & (x < 1.9)
        for raw_row, row in zip(of_raw, of_x, strict=True):
            density = np.exp(raw_row.astype(np.float64))
            assert scipy.integrate.trapezoid(density, x.astype(np.float64)) == pytest.approx(1.0, abs=2e-3)
            np.testing.assert_allclose(row[middle], raw_row[middle], rtol=1e-3, atol=1e-4)

    def test_log_prob_raw_is_exact_far_out(self):
        raw = floats(-30.0, -5.0, 0.0, 5.0, 30.0)[:, None]
        d = TanhNormal(floats(1.0), floats(8.0))
        u = np.asarray(raw[:, 0], np.float64)
        slope = 2 * (np.log(2) - np.logaddexp(u, -u))
        expected = scipy.stats.norm(1, 8).logpdf(u) - slope
        np.testing.assert_allclose(d.log_prob_raw(raw), expected, rtol=1e-5)

    @pytest.mark.parametrize("loc", [0.0, 0.5, -3.0, 20.0])
    @pytest.mark.quick("0.5", "20.0")
    def test_entropy_estimate_is_as_exact_as_it_says(self, loc):
        for scale in (1e-3, 0.05, 0.3, 1.0, 3.0, 30.0):
            d = TanhNormal(floats(loc), floats(scale))
            rounding = 4e-7 * (1 + 2 * (abs(loc) + scale))
            assert float(d.entropy_estimate()) == pytest.approx(
                tanh_entropy(loc, scale), abs=4e-6 + 2 * rounding
            )

    def test_entropy_estimate_has_the_gradient_of_the_entropy(self):
        for loc, scale in ((0.4, 0.7), (-1.5, 2.0)):
            entropy = lambda m, s: jnp.sum(TanhNormal(m[None], s[None]).entropy_estimate())  # noqa: E731
            got = jax.jit(jax.grad(entropy, argnums=(0, 1)))(jnp.float32(loc), jnp.float32(scale))
            step = 1e-4
            by_loc = (tanh_entropy(loc + step, scale) - tanh_entropy(loc - step, scale)) / (2 * step)
            by_scale = (tanh_entropy(loc, scale + step) - tanh_entropy(loc, scale - step)) / (2 * step)
            np.testing.assert_allclose(got, [by_loc, by_scale], atol=3e-5)

    def test_entropy_estimate_knows_the_interval(self):
        wide = TanhNormal(floats(0.2, -0.3), floats(0.5, 0.9), low=0.0, high=10.0)
        unit = TanhNormal(wide.loc, wide.scale)
        np.testing.assert_allclose(
            wide.entropy_estimate() - unit.entropy_estimate(), 2 * np.log(5.0), rtol=1e-5
        )
        x = many(wide, 100_000)
        log_prob = np.asarray(TanhNormal(wide.loc, wide.scale, 0.0, 10.0).log_prob(jnp.asarray(x)))
        error = 5 * log_prob.std() / np.sqrt(len(log_prob))
        assert float(wide.entropy_estimate()) == pytest.approx(-log_prob.mean(), abs=error)

    def test_modes_and_pairs(self):
        np.testing.assert_allclose(self.d.mode(), self.d.from_raw(self.d.mode_raw()))
        np.testing.assert_allclose(self.d.mode_raw(), LOC)
        raw = self.d.sample_raw(KEY)
        x, log_prob = self.d.sample_and_log_prob(KEY)
        np.testing.assert_array_equal(x, self.d.from_raw(raw))
        np.testing.assert_array_equal(log_prob, self.d.log_prob_raw(raw))
        other = TanhNormal(self.d.loc + 0.1, self.d.scale * 1.1, self.d.low, self.d.high)
        np.testing.assert_allclose(
            self.d.kl(other), Normal(self.d.loc, self.d.scale).kl(Normal(other.loc, other.scale))
        )


class TestBeta:
    alpha = np.asarray([1.2, 3.0, 20.0], np.float32)
    beta = np.asarray([1.5, 1.1, 45.0], np.float32)
    d = Beta(jnp.asarray(alpha), jnp.asarray(beta), low=-1.0, high=3.0)
    oracle = scipy.stats.beta(alpha.astype(float), beta.astype(float), loc=-1, scale=4)

    def test_is_scipys(self):
        x = np.asarray([-0.9, 2.0, 0.3], np.float32)
        np.testing.assert_allclose(self.d.log_prob(jnp.asarray(x)), self.oracle.logpdf(x).sum(), rtol=1e-4)
        np.testing.assert_allclose(self.d.entropy(), self.oracle.entropy().sum(), rtol=1e-4)
        drawn = many(self.d, 30_000)
        for i in range(3):
            oracle = scipy.stats.beta(self.alpha[i], self.beta[i], loc=-1, scale=4)
            assert scipy.stats.kstest(drawn[:, i], oracle.cdf).pvalue > 1e-4

    def test_mode(self):
        d = Beta(floats(3.0, 0.5, 2.0, 1.0, 1.0), floats(2.0, 2.0, 0.5, 1.0, 3.0))
        np.testing.assert_allclose(d.mode(), [2 / 3, 0.0, 1.0, 0.5, 0.0], atol=2e-6)


def test_deterministic():
    d = Deterministic(floats(1.0, 2.0)[None])
    np.testing.assert_array_equal(d.sample(KEY), d.mode())
    np.testing.assert_array_equal(d.log_prob(d.value), 0.0)
    np.testing.assert_array_equal(d.log_prob(d.value + 1), -np.inf)
    np.testing.assert_array_equal(d.entropy(), 0.0)
    np.testing.assert_array_equal(d.sample_and_log_prob(KEY)[1], 0.0)


class TestEpsilonGreedy:
    values = np.asarray([[1.0, 3.0, 3.0, -2.0], [5.0, 1.0, 0.0, 2.0], [1.0, 1.0, 1.0, 1.0]], np.float32)
    mask = np.asarray([[1, 0, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]], np.int8)

    @staticmethod
    def loop(values, epsilon, legal):
        """Action by action; where none is legal all are."""
        legal = legal if any(legal) else [True] * len(values)
        best = max(value for value, may in zip(values, legal, strict=True) if may)
        greedy = [may and value == best for value, may in zip(values, legal, strict=True)]
        return [
            may * epsilon / sum(legal) + chosen * (1 - epsilon) / sum(greedy)
            for may, chosen in zip(legal, greedy, strict=True)
        ]

    @pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
    @pytest.mark.parametrize("mask", [None, mask])
    @pytest.mark.quick("None-0.0", "mask1-0.3")
    def test_probabilities_are_those_of_a_loop(self, epsilon, mask):
        d = EpsilonGreedy(self.values, epsilon, mask)
        legal = np.ones((3, 4), bool) if mask is None else mask.astype(bool)
        expected = [self.loop(row, epsilon, may) for row, may in zip(self.values, legal, strict=True)]
        got = jnp.stack([jnp.exp(d.log_prob(jnp.full(3, action))) for action in range(4)], axis=-1)
        np.testing.assert_allclose(got, expected, atol=1e-6)
        np.testing.assert_allclose(d.entropy(), scipy.stats.entropy(expected, axis=-1), atol=1e-5)
        np.testing.assert_array_equal(d.mode(), [1, 0, 0] if mask is None else [2, 1, 0])
        counts = np.bincount(
            many(jax.tree.map(lambda x: jnp.asarray(x)[0], d._replace(epsilon=np.full(3, epsilon))))
        )
        if np.sum(np.asarray(expected[0]) > 0) > 1:
            possible = np.asarray(expected[0]) > 0
            counts = np.pad(counts, (0, 4 - len(counts)))
            assert counts[~possible].sum() == 0
            exact = np.asarray(expected[0])[possible] / np.sum(expected[0])
            assert scipy.stats.chisquare(counts[possible], counts.sum() * exact).pvalue > 1e-4

    def test_equals_share_and_the_mode_is_the_first_of_them_whatever_epsilon_is(self):
        d = EpsilonGreedy(jnp.asarray([0.0, 7.0, 7.0]), 0.0)
        assert set(many(d._replace(epsilon=jnp.float32(0.0)), 1000)) == {1, 2}
        assert d.mode() == d._replace(epsilon=1.0).mode() == 1

    def test_epsilon_has_a_gradient_and_values_have_none(self):
        def log_prob(values, epsilon):
            return EpsilonGreedy(values, epsilon).log_prob(jnp.asarray(0))

        of_values, of_epsilon = jax.grad(log_prob, argnums=(0, 1))(jnp.asarray([0.0, 1.0, 2.0]), 0.25)
        np.testing.assert_array_equal(of_values, 0.0)
        np.testing.assert_allclose(of_epsilon, 4.0, rtol=1e-5)  # of log(ε / 3)

    def test_what_is_not_a_number_leaves_all_legal_actions_alike(self):
        d = EpsilonGreedy(
            jnp.asarray([1.0, jnp.nan, 2.0, jnp.nan]), 0.1, jnp.asarray([True, True, True, False])
        )
        assert d.entropy() == pytest.approx(np.log(3), rel=1e-6)
        hidden = EpsilonGreedy(
            jnp.asarray([1.0, jnp.nan, 2.0, 0.0]), 0.1, jnp.asarray([True, False, True, True])
        )
        assert hidden.mode() == 2


class TestDiscreteValued:
    logits = RNG.normal(size=(3, 6)).astype(np.float32)
    atoms = np.linspace(-2.0, 3.0, 6, dtype=np.float32)
    d = DiscreteValued(logits, atoms)

    def test_is_scipys(self):
        probabilities = np.asarray(jax.nn.softmax(self.logits), np.float64)
        for row, p in enumerate(probabilities / probabilities.sum(axis=-1, keepdims=True)):
            oracle = scipy.stats.rv_discrete(values=(np.arange(6), p))  # of integers only
            np.testing.assert_allclose(self.d.mean()[row], oracle.mean() - 2, rtol=1e-5)
            np.testing.assert_allclose(self.d.variance()[row], oracle.var(), rtol=1e-5)
            np.testing.assert_allclose(self.d.entropy()[row], oracle.entropy(), rtol=1e-5)
            np.testing.assert_allclose(
                self.d.log_prob(self.atoms[:, None])[:, row], np.log(p), rtol=1e-4, atol=1e-6
            )
        drawn = many(DiscreteValued(self.logits[0], self.atoms))
        counts = np.asarray([np.sum(drawn == atom) for atom in self.atoms])
        assert (
            scipy.stats.chisquare(counts, counts.sum() * probabilities[0] / probabilities[0].sum()).pvalue
            > 1e-4
        )

    def test_the_mode_is_an_atom_and_nothing_else_is_possible(self):
        np.testing.assert_array_equal(self.d.mode(), self.atoms[self.logits.argmax(axis=-1)])
        np.testing.assert_array_equal(self.d.log_prob(jnp.full(3, 0.5)), -np.inf)

    def test_atoms_of_equal_value_count_together(self):
        d = DiscreteValued(jnp.zeros(4), floats(1.0, 2.0, 2.0, 3.0))
        np.testing.assert_allclose(d.log_prob(jnp.float32(2.0)), np.log(0.5), rtol=1e-6)
        assert d.mean() == 2.0 and d.variance() == 0.5

    def test_each_may_have_atoms_of_its_own(self):
        quantiles = RNG.normal(size=(3, 6)).astype(np.float32)
        d = DiscreteValued(np.zeros((6,), np.float32), quantiles)
        np.testing.assert_allclose(d.mean(), quantiles.mean(axis=-1), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(d.variance(), quantiles.var(axis=-1), rtol=1e-4)
        drawn = d.sample(KEY)
        assert drawn.shape == (3,) and np.all(np.any(drawn[:, None] == quantiles, axis=-1))


def finite(*trees) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(trees))


def test_a_mask_of_the_users_own_by_infinite_logits_is_finite():
    value, gradient = jax.value_and_grad(lambda x: Categorical(x).entropy())(jnp.asarray([0.0, -jnp.inf]))
    assert value == 0 and finite(gradient)


def test_beta_samples_have_the_gradient_of_their_mean():
    """E x = a / (a + b), so that dE x / da = b / (a + b)² and dE x / db = -a / (a + b)²."""
    count = 20_000

    def mean(a, b):
        return jnp.mean(Beta(jnp.full((count, 1), a), jnp.full((count, 1), b)).sample(KEY))

    slopes = jax.jit(jax.grad(mean, argnums=(0, 1)))(2.0, 3.0)
    np.testing.assert_allclose(slopes, [3 / 25, -2 / 25], rtol=0.03)


@pytest.mark.full
def test_the_gradient_of_a_betas_entropy_is_scipys():
    """Also for parameters so small that JAX's own log B has no gradient."""
    a, b = (np.asarray(x, np.float64) for x in ([1e-6, 1e-3, 2.0, 500.0], [1e-6, 1e6, 0.7, 300.0]))
    slope = jax.grad(lambda a: jnp.sum(Beta(a[:, None], b[:, None].astype(np.float32)).entropy()))
    trigamma = scipy.special.polygamma(1, a), scipy.special.polygamma(1, a + b)
    expected = -(a - 1) * trigamma[0] + (a + b - 2) * trigamma[1]
    np.testing.assert_allclose(slope(a.astype(np.float32)), expected, rtol=2e-4)


@pytest.mark.full
def test_beta_samples_lie_inside_at_extremes():
    parameters = (1e-6, 1e-3, 0.5, 1.0, 2.0, 1e3, 1e6)
    alpha, beta = (jnp.asarray(x.ravel(), jnp.float32) for x in np.meshgrid(parameters, parameters))
    drawn = jax.jit(jax.vmap(lambda key: Beta(alpha, beta, -1.0, 1.0).sample(key)))(
        jax.random.split(KEY, 500)
    )
    assert finite(drawn) and np.all(np.abs(drawn) < 1)
