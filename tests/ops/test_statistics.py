"""Against NumPy in float64: with weights, across devices, and after a thousand million samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from shoal.ops import statistics

RNG = np.random.default_rng(0)
update = jax.jit(statistics.update_moments, static_argnames="axis_name")


def weighted(shape: tuple[int, ...], binary: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, weights with zeros among them, and the values with NaN wherever the weight is 0."""
    x = RNG.normal(3.0, 2.0, size=shape).astype(np.float32)
    w = RNG.uniform(size=shape).astype(np.float32) * (RNG.uniform(size=shape) < 0.7)
    w = (w > 0).astype(np.float32) if binary else w
    return x, w, np.where(w > 0, x, np.nan).astype(np.float32)


class TestBatch:
    x, w, poisoned = weighted((40, 7))
    mean = np.average(x.astype(float), weights=w)
    variance = np.average((x.astype(float) - mean) ** 2, weights=w)

    def test_mean_and_moments(self):
        assert float(statistics.weighted_mean(self.poisoned, self.w)) == pytest.approx(self.mean, rel=1e-5)
        mean, variance = statistics.weighted_moments(self.poisoned, self.w)
        assert float(mean) == pytest.approx(self.mean, rel=1e-5)
        assert float(variance) == pytest.approx(self.variance, rel=1e-5)

    def test_gradient_passes_by_what_does_not_count(self):
        gradient = jax.grad(statistics.weighted_mean)(jnp.asarray(self.poisoned), self.w)
        np.testing.assert_allclose(gradient, self.w / self.w.sum(), rtol=1e-5)

    def test_nothing_that_counts(self):
        nothing = np.full(5, np.nan, np.float32), np.zeros(5, np.float32)
        assert statistics.weighted_mean(*nothing) == 0
        np.testing.assert_array_equal(statistics.weighted_moments(*nothing), (0, 0))
        np.testing.assert_array_equal(statistics.standardise(*nothing), 0)
        assert statistics.explained_variance(nothing[0], nothing[0], nothing[1]) == 0

    def test_variance_beside_a_large_mean(self):
        x = (1e4 + RNG.normal(size=100_000)).astype(np.float32)
        mean, variance = statistics.weighted_moments(x, jnp.ones(()))
        assert float(variance) == pytest.approx(x.astype(float).var(), rel=1e-4)
        assert float(mean) == pytest.approx(x.astype(float).mean(), rel=1e-7)

    def test_standardise(self):
        got = statistics.standardise(self.poisoned, self.w)
        expected = np.where(self.w > 0, (self.x - self.mean) / np.sqrt(self.variance), 0)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        equal = statistics.standardise(jnp.full(1000, 0.3), jnp.ones(1000))
        assert jnp.max(jnp.abs(equal)) < 0.5  # rounding is not signal
        np.testing.assert_array_equal(statistics.standardise(jnp.zeros(4), jnp.ones(4)), 0)

    def test_explained_variance(self):
        target = RNG.normal(size=500).astype(np.float32)
        w = (RNG.uniform(size=500) < 0.5).astype(np.float32)
        noise = target + 0.5 * RNG.normal(size=500).astype(np.float32)
        counts = w > 0
        expected = 1 - np.var((target - noise)[counts]) / np.var(target[counts])
        assert float(statistics.explained_variance(target, noise, w)) == pytest.approx(expected, rel=1e-4)
        assert float(statistics.explained_variance(target, target + 3, w)) == pytest.approx(1, abs=1e-5)
        assert float(statistics.explained_variance(target, 0 * target, w)) == pytest.approx(0, abs=1e-5)
        assert statistics.explained_variance(jnp.ones(5), jnp.arange(5.0), jnp.ones(5)) == 0


@pytest.mark.parametrize("how", ["vmap", "shard_map"])
def test_devices_with_different_weights_count_as_one_batch(how):
    """A mean of means would be wrong: the halves carry different weights."""
    x, w, poisoned = weighted((2, 64), binary=True)
    w[0, 3:] = 0
    poisoned = np.where(w > 0, x, np.nan).astype(np.float32)

    def everything(x, w):
        moments = statistics.update_moments(statistics.init_moments(jnp.zeros(())), x, w, axis_name="env")
        return (
            statistics.weighted_mean(x, w, "env"),
            statistics.weighted_moments(x, w, ("env",)),
            statistics.standardise(x, w, "env"),
            statistics.explained_variance(x, jnp.sin(x), w, "env"),
            moments,
        )

    if how == "vmap":
        mean, (_, variance), standard, explained, moments = jax.vmap(everything, axis_name="env")(poisoned, w)
    else:
        mesh = jax.make_mesh((2,), ("env",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = PartitionSpec("env")
        spread = jax.shard_map(
            lambda x, w: jax.tree.map(lambda y: y[None], everything(x[0], w[0])),
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
        )
        mean, (_, variance), standard, explained, moments = jax.jit(spread)(poisoned, w)
    counts = w > 0
    for device in range(2):
        assert float(mean[device]) == pytest.approx(x[counts].mean(), rel=1e-5)
        assert float(variance[device]) == pytest.approx(x[counts].var(), rel=1e-4)
        assert float(moments.mean[device]) == pytest.approx(x[counts].mean(), rel=1e-5)
        assert float(moments.variance[device]) == pytest.approx(x[counts].var(), rel=1e-4)
        assert moments.count[device] == counts.sum()
        expected = 1 - np.var((x - np.sin(x))[counts]) / np.var(x[counts])
        assert float(explained[device]) == pytest.approx(expected, rel=1e-3)
    whole = (x - x[counts].mean()) / x[counts].std()
    np.testing.assert_allclose(standard, np.where(counts, whole, 0), rtol=1e-3, atol=1e-4)


EXAMPLE = {"pixels": jnp.zeros((2, 2), jnp.uint8), "speed": jnp.zeros(3), "on": jnp.zeros((), bool)}


def batch(*leading: int) -> dict[str, np.ndarray]:
    return {
        "pixels": RNG.integers(255, size=(*leading, 2, 2)).astype(np.uint8),
        "speed": (RNG.normal(size=(*leading, 3)) * [1.0, 30.0, 0.01] + [0, 500.0, -1]).astype(np.float32),
        "on": RNG.uniform(size=leading) < 0.5,
    }


class TestRunning:
    def test_is_all_samples_at_once(self):
        batches = [batch(5, 8) for _ in range(30)]
        moments = statistics.init_moments(EXAMPLE)
        for b in batches:
            moments = update(moments, b)
        everything = np.concatenate([b["speed"].reshape(-1, 3) for b in batches]).astype(float)
        assert moments.count == len(everything)
        np.testing.assert_allclose(moments.mean["speed"], everything.mean(0), rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(moments.variance["speed"], everything.var(0), rtol=1e-5)

    def test_weights(self):
        b = batch(6, 9)
        w = (RNG.uniform(size=(6, 9)) * (RNG.uniform(size=(6, 9)) < 0.6)).astype(np.float32)
        b["speed"] = np.where(w[..., None] > 0, b["speed"], np.nan).astype(np.float32)
        moments = update(statistics.init_moments(EXAMPLE), b, w)
        kept = w > 0
        mean = np.average(b["speed"][kept].astype(float), axis=0, weights=w[kept])
        variance = np.average((b["speed"][kept] - mean) ** 2, axis=0, weights=w[kept])
        assert float(moments.count) == pytest.approx(w.sum(), rel=1e-6)
        np.testing.assert_allclose(moments.mean["speed"], mean, rtol=1e-5)
        np.testing.assert_allclose(moments.variance["speed"], variance, rtol=1e-5)
        unchanged = update(moments, b, np.zeros((6, 9), np.float32))
        for x, y in zip(jax.tree.leaves(unchanged), jax.tree.leaves(moments), strict=True):
            np.testing.assert_array_equal(x, y)

    def test_merging_is_symmetric_and_exact(self):
        parts = [batch(n) for n in (1000, 3)]
        parts[1]["speed"] += 100
        a, b = (update(statistics.init_moments(EXAMPLE), part) for part in parts)
        both = np.concatenate([part["speed"] for part in parts]).astype(float)
        for merged in (statistics.merge_moments(a, b), statistics.merge_moments(b, a)):
            assert merged.count == 1003
            np.testing.assert_allclose(merged.mean["speed"], both.mean(0), rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(merged.variance["speed"], both.var(0), rtol=1e-5)
        empty = statistics.init_moments(EXAMPLE)
        for merged in (statistics.merge_moments(a, empty), statistics.merge_moments(empty, a)):
            for x, y in zip(jax.tree.leaves(merged), jax.tree.leaves(a), strict=True):
                np.testing.assert_array_equal(x, y)

    def test_does_not_stall_after_a_thousand_million_samples(self):
        """20,000 batches of 512 on top of 1e9 samples; a mean far from 0, so that a plain sum would stall."""
        before, rounds = 1e9, 20_000
        moments = statistics.init_moments(jnp.zeros(()))._replace(
            count=jnp.float32(before), mean=jnp.float32(1000.0), variance=jnp.float32(4.0)
        )
        grid = np.linspace(-1, 1, 512).astype(np.float32)
        batch = jnp.asarray(1003 + grid)  # the same each time, so that the truth is known without noise

        @jax.jit
        def run(moments):
            def step(m, _):
                return statistics.update_moments(m, batch), None

            return jax.lax.scan(step, moments, None, length=rounds)[0]

        after = run(moments)
        n, values = rounds * 512, np.asarray(batch, np.float64)
        mean = (before * 1000 + n * values.mean()) / (before + n)
        variance = (before * (4 + (1000 - mean) ** 2) + n * (values.var() + (values.mean() - mean) ** 2)) / (
            before + n
        )
        assert float(after.count) + float(after.residual[0]) == before + n
        moved = float(after.mean) + float(after.residual[1]) - 1000
        assert moved == pytest.approx(mean - 1000, rel=1e-4)  # of 0.03; a step of float32 here is 6e-5
        moved = float(after.variance) + float(after.residual[2]) - 4
        assert moved == pytest.approx(variance - 4, rel=1e-4)

    def test_count_knows_one_more_than_2_to_the_24(self):
        moments = statistics.init_moments(jnp.zeros(()))._replace(count=jnp.float32(2.0**24))
        for _ in range(3):
            moments = update(moments, jnp.zeros(1))
        assert float(moments.count) + float(moments.residual[0]) == 2.0**24 + 3

    def test_normalise_and_back(self):
        b = batch(200)
        moments = update(statistics.init_moments(EXAMPLE), b)
        got = statistics.normalise(moments, b)
        np.testing.assert_allclose(got["speed"].mean(0), 0, atol=1e-4)
        np.testing.assert_allclose(got["speed"].std(0), 1, rtol=1e-4)
        for name in ("pixels", "on"):
            assert got[name].dtype == b[name].dtype
            np.testing.assert_array_equal(got[name], b[name])
        back = statistics.denormalise(moments, got)
        np.testing.assert_allclose(back["speed"], b["speed"], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(back["pixels"], b["pixels"])
        far = statistics.normalise(moments, b | {"speed": b["speed"] + 1e6}, clip=5.0)
        np.testing.assert_array_equal(far["speed"], 5.0)

    def test_nothing_is_changed_before_the_first_sample(self):
        x = {
            "pixels": jnp.ones((2, 2), jnp.uint8),
            "speed": jnp.asarray([1.0, -2.0, 0.5]),
            "on": jnp.asarray(True),
        }
        got = statistics.normalise(statistics.init_moments(EXAMPLE), x)
        np.testing.assert_allclose(got["speed"], x["speed"], rtol=1e-6)

    def test_what_never_changes_is_not_blown_up(self):
        moments = update(statistics.init_moments(jnp.zeros(2)), jnp.full((1000, 2), 0.1))
        np.testing.assert_allclose(statistics.standard_deviation(moments), 1e-4, rtol=1e-5)
        assert jnp.max(jnp.abs(statistics.normalise(moments, jnp.full(2, 0.1)))) < 1e-2
        assert jnp.all(statistics.standard_deviation(moments, minimum=0.5) == 0.5)

    def test_keeps_its_types_in_a_scan(self):
        moments = statistics.init_moments(EXAMPLE)
        b = {name: jnp.asarray(x) for name, x in batch(4, 6).items()}
        after, _ = jax.lax.scan(lambda m, b: (statistics.update_moments(m, b), None), moments, b)
        shapes = functools.partial(jax.tree.map, lambda x: (x.shape, x.dtype, x.weak_type))
        assert shapes(after) == shapes(moments)
        assert after.count == 24

    def test_only_integers_is_nothing_to_do(self):
        moments = statistics.init_moments(jnp.zeros(2, jnp.int32))
        assert statistics.update_moments(moments, jnp.ones((5, 2), jnp.int32)).count == 0

    def test_a_batch_that_does_not_fit_is_named(self):
        with pytest.raises(ValueError, match=r"\[5, 2\].*\[3\]"):
            statistics.update_moments(statistics.init_moments(jnp.zeros(3)), jnp.zeros((5, 2)))
