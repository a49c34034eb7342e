"""Against NumPy in float64: with weights, across devices, and after a thousand million samples."""

import functools

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from shoal.ops import statistics

SEED = 106  # of numbers on which plain float32 is plainly off, whichever compiler rounds them
RNG = np.random.default_rng(SEED)


@pytest.fixture(autouse=True)
def the_same_numbers():
    """Each test draws what it draws when it runs alone."""
    RNG.bit_generator.state = np.random.default_rng(SEED).bit_generator.state


update = jax.jit(statistics.update_moments, static_argnames="axis_name")
merge = jax.jit(statistics.merge_moments)


def moments_of(x: np.ndarray) -> statistics.RunningMoments:
    """The moments of one batch of arrays."""
    return update(statistics.init_moments(x[0]), jnp.asarray(x))


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

    def test_gradients_are_finite(self):
        """NaN where the weight is 0, and values that are all equal, where a root has no slope."""
        for x, w in (
            (self.poisoned, self.w),
            (np.full((3, 4), 2.0, np.float32), np.ones((3, 4), np.float32)),
        ):
            for function in (
                statistics.weighted_mean,
                lambda x, w: sum(statistics.weighted_moments(x, w)),
                lambda x, w: jnp.sum(jnp.square(statistics.standardise(x, w))),
                lambda x, w: statistics.explained_variance(x, 0.5 * x, w),
            ):
                assert np.all(np.isfinite(jax.jit(jax.grad(function))(x, w)))
        smooth = jnp.asarray(self.x[:3, :4])

        def weighed(x, w):
            return jnp.sum(jnp.sin(x) * statistics.standardise(x, w))

        run = jax.jit(lambda x: weighed(x, self.w[:3, :4]))
        jax.test_util.check_grads(run, (smooth,), 1, modes=["rev"], rtol=0.02)

    @pytest.mark.parametrize(
        "dtype", [np.uint8, np.int8, np.int32, bool, np.float16, np.float64, jnp.bfloat16]
    )
    @pytest.mark.parametrize("x64", [False, True])
    @pytest.mark.quick("False-uint8", "True-bfloat16")
    def test_every_dtype_is_converted_first_and_comes_back_as_float32(self, dtype, x64):
        """The difference of unsigned integers would wrap, and of half floats this large overflow."""
        with jax.enable_x64(x64):
            scale = {np.uint8: 255, np.int8: 127, np.int32: 2e9, bool: 2, np.float16: 6e4}.get(dtype, 1e6)
            low = 0 if dtype in (np.uint8, bool) else -scale
            x, y = np.floor(RNG.uniform(low, scale, size=(2, 200))).astype(dtype)
            exact, other = x.astype(np.float64), y.astype(np.float64)
            for w in (np.asarray(RNG.uniform(size=200) < 0.5), np.ones(200, np.uint8)):
                counts = w > 0
                mean, variance = exact[counts].mean(), exact[counts].var()
                explained = 1 - (exact - other)[counts].var() / variance
                standard = np.where(counts, (exact - mean) / np.sqrt(variance), 0)
                got = (
                    statistics.weighted_mean(x, w),
                    *statistics.weighted_moments(x, w),
                    statistics.explained_variance(x, y, w),
                    statistics.standardise(x, w),
                )
                assert all(a.dtype == jnp.float32 for a in got)
                for a, right in zip(got, (mean, mean, variance, explained, standard), strict=True):
                    np.testing.assert_allclose(a, right, rtol=1e-4, atol=1e-5 * np.max(np.abs(right)))

    def test_what_does_not_fit_is_named(self):
        for function in (statistics.weighted_mean, statistics.weighted_moments, statistics.standardise):
            with pytest.raises(ValueError, match=r"w has shape \[3\].*x's, \[2\]"):
                function(jnp.zeros(2), jnp.ones(3))
        with pytest.raises(ValueError, match=r"target \[2\], prediction \[3\]"):
            statistics.explained_variance(jnp.zeros(2), jnp.zeros(3), jnp.ones(2))


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
        run = jax.vmap(everything, axis_name="env")
    else:
        mesh = jax.make_mesh((2,), ("env",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = PartitionSpec("env")
        run = jax.shard_map(
            lambda x, w: jax.tree.map(lambda y: y[None], everything(x[0], w[0])),
            mesh=mesh,
            in_specs=spec,
            out_specs=spec,
        )
    mean, (_, variance), standard, explained, moments = jax.jit(run)(poisoned, w)
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


def known(count: float, mean: float, variance: float) -> statistics.RunningMoments:
    """The state after `count` samples of this mean and variance."""
    empty = statistics.init_moments(jnp.zeros(()))
    return empty._replace(count=jnp.float32(count), mean=jnp.float32(mean), variance=jnp.float32(variance))


def in_float64(moments: statistics.RunningMoments) -> list[float]:
    """Count, mean and variance of a lone number with what rounding took from them."""
    return [float(x) + float(y) for x, y in zip(moments[:3], moments.residual, strict=True)]


def chan(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[float, float, float]:
    """Chan et al.'s formula; in float64 the oracle, in float32 what loses digits."""
    count, delta = a[0] + b[0], b[1] - a[1]
    variance = (a[2] * a[0] + b[2] * b[0]) / count + delta * delta * (a[0] / count) * (b[0] / count)
    return count, a[1] + delta * b[0] / count, variance


@jax.jit
def twenty_thousand_batches(moments, batches):
    """Counts in the batches [K, n] in turn, 20,000 times; and the same with `chan` in plain float32."""

    def step(carry, i):
        moments, plain = carry
        batch = batches[i % len(batches)]
        part = (jnp.float32(batch.size), batch.mean(), batch.var())
        return (statistics.update_moments(moments, batch), chan(plain, part)), None

    start = (moments, tuple(moments[:3]))
    return jax.lax.scan(step, start, jnp.arange(20_000))[0]


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

    @pytest.mark.parametrize("mean, deviation", [(0.0, 1.0), (1000.0, 2.0), (10_000.0, 1.0)])
    @pytest.mark.quick("10000.0-1.0")
    def test_does_not_stall_after_a_thousand_million_samples(self, mean, deviation):
        """20,000 batches of 512 on top of 1e9 samples, 1.5 deviations aside, against float64.

        Beside it Chan's formula in plain float32, which is off by 1e-4 of the variance at least.
        """
        before = (1e9, mean, deviation**2)
        batches = RNG.normal(mean + 1.5 * deviation, deviation, size=(64, 512)).astype(np.float32)
        parts = [(512.0, x.mean(dtype=np.float64), x.var(dtype=np.float64)) for x in batches]
        truth = functools.reduce(chan, (parts[i % 64] for i in range(20_000)), before)
        after, plain = twenty_thousand_batches(known(*before), jnp.asarray(batches))
        got = in_float64(after)
        assert got[0] == truth[0] == 1e9 + 512 * 20_000
        assert abs(got[1] - truth[1]) < 1e-9 * deviation
        assert got[2] == pytest.approx(truth[2], rel=2e-9)
        assert float(plain[2]) != pytest.approx(truth[2], rel=1e-4)

    def test_merging_up_to_a_thousand_million_samples(self):
        """256 states of four million samples each: a chain, or a tree as devices would merge."""
        states, samples = [], []
        for k in range(256):
            x = RNG.normal(100 + k % 7, 1 + k % 3, size=1000).astype(np.float32)
            states.append(moments_of(x)._replace(count=jnp.float32(4e6)))
            samples.append((4e6, x.mean(dtype=np.float64), x.var(dtype=np.float64)))
        truth = functools.reduce(chan, samples)
        # By merging alone; plain float32 is 4e-7 off.
        merged = functools.reduce(chan, map(in_float64, states))
        tree = states
        while len(tree) > 1:
            tree = [merge(a, b) for a, b in zip(tree[::2], tree[1::2], strict=True)]
        for got in (functools.reduce(merge, states), tree[0]):
            assert float(got.count) == 1.024e9
            np.testing.assert_allclose(in_float64(got), truth, rtol=5e-8)
            np.testing.assert_allclose(in_float64(got), merged, rtol=2e-8)

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

    def test_only_integers_is_nothing_to_do(self):
        moments = statistics.init_moments(jnp.zeros(2, jnp.int32))
        assert statistics.update_moments(moments, jnp.ones((5, 2), jnp.int32)).count == 0

    def test_only_chosen_paths(self):
        example = {"arm": {"angle": jnp.zeros(2), "torque": jnp.zeros(())}, "goal": jnp.zeros(3)}
        batch = jax.tree.map(lambda x: 5 + RNG.normal(size=(40, *x.shape)).astype(np.float32), example)
        asked = []

        def only(path: str) -> bool:
            asked.append(path)
            return path.startswith("arm/a") or path == "goal"

        moments = update(statistics.init_moments(example, only=only), batch)
        assert asked == ["arm/angle", "arm/torque", "goal"]
        got = statistics.normalise(moments, batch)
        for x in (got["arm"]["angle"], got["goal"]):
            np.testing.assert_allclose(x.mean(0), 0, atol=1e-4)
        assert got["arm"]["torque"] is batch["arm"]["torque"]
        assert statistics.standard_deviation(moments)["arm"]["torque"] == 1
        assert statistics.denormalise(moments, got)["arm"]["torque"] is batch["arm"]["torque"]
        both = merge(moments, moments)
        assert both.count == 80
        np.testing.assert_allclose(both.mean["goal"], moments.mean["goal"], rtol=1e-6)
        alone = statistics.init_moments(jnp.zeros(3), only=lambda path: path == "")
        assert update(alone, batch["goal"]).count == 40
        with pytest.raises(ValueError, match="arm/angle, arm/torque, goal"):
            statistics.init_moments(example, only=lambda path: path == "gaol")

    def test_bounds_of_the_deviation(self):
        x = (RNG.normal(size=(500, 3)) * [1e-3, 1.0, 50.0]).astype(np.float32)
        moments = moments_of(x)
        np.testing.assert_allclose(
            statistics.standard_deviation(moments, 0.1, 10.0), np.clip(x.std(0), 0.1, 10.0), rtol=1e-5
        )
        got = statistics.normalise(moments, x, clip=2.0, minimum_deviation=0.1, maximum_deviation=10.0)
        expected = (x - x.mean(0)) / np.clip(x.std(0), 0.1, 10.0)
        np.testing.assert_allclose(got, np.clip(expected, -2, 2), rtol=1e-4, atol=1e-5)
        assert jnp.max(jnp.abs(statistics.normalise(moments, x + 1e6, clip=np.inf))) > 1e3

    def test_warms_up_before_it_normalises(self):
        """Up to 100 samples only the clip is felt; the 100th changes that."""
        moments, x = statistics.init_moments(jnp.zeros(3)), batch(1, 3)["speed"][0]
        for count in (33, 66, 99, 132):
            moments = update(moments, batch(33)["speed"])
            got = statistics.normalise(moments, x, clip=50.0, warm_up=100)
            back = statistics.denormalise(moments, got, warm_up=100)
            deviation = statistics.standard_deviation(moments, warm_up=100)
            assert moments.count == count
            if count < 100:
                np.testing.assert_array_equal(got, np.clip(x, -50, 50))
                np.testing.assert_array_equal(back, got)
                np.testing.assert_array_equal(deviation, 1)
            else:
                np.testing.assert_array_equal(got, statistics.normalise(moments, x, clip=50.0))
                np.testing.assert_array_equal(deviation, statistics.standard_deviation(moments))
                np.testing.assert_allclose(back, x, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("mean, deviation", [(0.0, 1.0), (1e4, 0.01), (-3.0, 1e6), (1e-3, 1e-6)])
    def test_denormalise_is_the_inverse(self, mean, deviation):
        """Within four units in the last place of the largest number that took part."""
        x = RNG.normal(mean, deviation, size=(1000,)).astype(np.float32)
        moments = moments_of(x)
        back = statistics.denormalise(
            moments, statistics.normalise(moments, x, minimum_deviation=1e-8), minimum_deviation=1e-8
        )
        units = np.spacing(
            np.maximum(np.abs(x), np.abs(np.float32(moments.mean))) + 3 * np.float32(deviation)
        )
        assert np.max(np.abs(back - x) / units) <= 4

    def test_gradient_of_what_is_normalised(self):
        moments, x = moments_of(jnp.asarray([1.0, 3.0, 5.0])), jnp.asarray([0.0, 2.0, 1e9])
        gradient = jax.grad(lambda x: statistics.normalise(moments, x).sum())(x)
        np.testing.assert_allclose(gradient, [1 / np.sqrt(8 / 3)] * 2 + [0], rtol=1e-6)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, jnp.bfloat16])
    @pytest.mark.parametrize("weight", [None, np.ones(50, np.uint8)])
    @pytest.mark.quick("weight1-bfloat16")
    def test_is_float32_where_jax_has_float64_switched_on(self, dtype, weight):
        """Whatever samples and weights are, so that moments may be carried through a scan."""
        with jax.enable_x64(True):
            example = {"x": jnp.zeros(3, dtype), "n": jnp.zeros((), jnp.int32)}
            b = {
                "x": jnp.asarray(RNG.normal(3e3, 20.0, size=(50, 3))).astype(dtype),
                "n": jnp.ones(50, jnp.int32),
            }
            once = update(statistics.init_moments(example), b, weight)
            twice, _ = jax.lax.scan(
                lambda m, _: (statistics.update_moments(m, b, weight), None), once, None, length=1
            )
            for moments in (once, twice, merge(once, once)):
                followed = [leaf for leaf in jax.tree.leaves(moments) if leaf.dtype != bool]
                assert all(leaf.dtype == jnp.float32 and not leaf.weak_type for leaf in followed)
            exact = np.asarray(b["x"], np.float64)
            np.testing.assert_allclose(twice.mean["x"], exact.mean(0), rtol=1e-6)
            np.testing.assert_allclose(twice.variance["x"], exact.var(0), rtol=1e-4)
            normal = statistics.normalise(twice, b)
            back, deviation = statistics.denormalise(twice, normal), statistics.standard_deviation(twice)
            for tree in (normal, back):
                assert tree["x"].dtype == jnp.float32 and tree["n"].dtype == jnp.int32
            assert deviation["x"].dtype == deviation["n"].dtype == jnp.float32
            np.testing.assert_allclose(
                normal["x"], (exact - exact.mean(0)) / exact.std(0), rtol=1e-4, atol=1e-4
            )

    def test_what_does_not_fit_is_named(self):
        moments = statistics.init_moments({"x": jnp.zeros(3), "n": jnp.zeros((), int)})
        n = jnp.zeros(5, int)
        for x, error, message in (
            ({"x": jnp.zeros((5, 2)), "n": n}, ValueError, r"batch\['x'\] has shape \[5, 2\].* \[3\]"),
            ({"x": jnp.zeros((5, 3), int), "n": n}, TypeError, r"batch\['x'\] is int32.*floating"),
            ({"x": jnp.zeros((5, 3))}, ValueError, "structure"),
        ):
            with pytest.raises(error, match=message):
                statistics.update_moments(moments, x)
        with pytest.raises(ValueError, match=r"x\['x'\] has shape \[2\]"):
            statistics.normalise(moments, {"x": jnp.zeros(2), "n": n})
        with pytest.raises(ValueError, match=r"\[4\], \[5\]"):
            statistics.update_moments(moments, {"x": jnp.zeros((5, 3)), "n": n}, jnp.ones(4))
        two = statistics.init_moments((jnp.zeros(2), jnp.zeros(2)))
        with pytest.raises(ValueError, match=r"\[5\], \[6\]"):
            statistics.update_moments(two, (jnp.zeros((5, 2)), jnp.zeros((6, 2))))
        with pytest.raises(ValueError, match="same example"):
            statistics.merge_moments(
                statistics.init_moments(jnp.zeros(2)), statistics.init_moments(jnp.zeros(1))
            )
