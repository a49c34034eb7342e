"""Means over what counts: weighted means and moments of a batch, and running moments of a pytree.

A weight of 0 takes an entry out, whatever it holds, NaN included. `axis_name` names the mapped axes
(`vmap`, `shard_map`) whose batches count as one: every mean is then `psum(sum w x) / psum(sum w)`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any
AxisName = str | tuple[str, ...]


def weighted_mean(x: Array, w: Array, axis_name: AxisName = ()) -> Array:
    """The mean `sum(w x) / sum(w)`, a scalar; 0 where all weights are 0.

    Args:
      x: values, [...].
      w: weights of 0 or more, of the shape of x or one that broadcasts to it.
      axis_name: mapped axes to reduce over as well.
    """
    w = jnp.broadcast_to(w, x.shape)
    total, weight = _sum((jnp.where(w > 0, x * w, 0.0), w), axis_name)
    return _divide(total, weight)


def weighted_moments(x: Array, w: Array, axis_name: AxisName = ()) -> tuple[Array, Array]:
    """Mean and (biased) variance, scalars; both 0 where all weights are 0.

    Two passes over the data, so that a mean that is large beside the deviation costs no digits.

    Args:
      x: values, [...].
      w: weights of 0 or more, of the shape of x or one that broadcasts to it.
      axis_name: mapped axes to reduce over as well.
    """
    w = jnp.broadcast_to(w, x.shape)
    _, mean, variance = _batch_moments(x, w, jnp.zeros((), jnp.float32), axis_name)
    return mean, variance


def standardise(x: Array, w: Array, axis_name: AxisName = (), epsilon: float = 1e-8) -> Array:
    """Brings a batch to weighted mean 0 and standard deviation 1, as PPO does with advantages.

        (x - mean) / (max(deviation, 1e-6 |mean|) + ε),   0 where the weight is 0

    The bound keeps the rounding of equal values from being blown up into noise of size 1.

    Args:
      x: values, [...].
      w: weights of 0 or more, of the shape of x or one that broadcasts to it.
      axis_name: mapped axes that the mean and the deviation are taken over as well.
      epsilon: ε, added to the standard deviation.
    """
    mean, variance = weighted_moments(x, w, axis_name)
    deviation = jnp.maximum(jnp.sqrt(variance), 1e-6 * jnp.abs(mean))
    return jnp.where(w > 0, (x - mean) / (deviation + epsilon), 0.0)


def explained_variance(target: Array, prediction: Array, w: Array, axis_name: AxisName = ()) -> Array:
    """Share of the target's variance that the prediction explains: `1 - Var(target - prediction) / Var(target)`.

    1 is perfect, 0 no better than a constant, below 0 worse. 0 where the target does not vary.

    Args:
      target: [...].
      prediction: [...].
      w: weights of 0 or more, [...].
      axis_name: mapped axes to reduce over as well.
    """
    _, residual = weighted_moments(target - prediction, w, axis_name)
    _, variance = weighted_moments(target, w, axis_name)
    return jnp.where(variance > 0, 1.0 - residual / jnp.where(variance > 0, variance, 1.0), 0.0)


class RunningMoments(NamedTuple):
    """Count, mean and variance of all samples so far, of each leaf of a pytree.

    Sums in float32 stall: beyond 2**24 samples one more changes nothing. Here every number is kept as a
    float32 and what rounding took from it (`residual`, of the same structure), so that each is good to
    some 48 bits: the moments are those of all samples, equally weighted, after 1e12 of them.
    """

    count: Array  # type: ignore[assignment]  # sum of weights; a tuple's own count is of no use here
    mean: PyTree  # float32, of the example's shapes; () for leaves that are not floating
    variance: PyTree  # of the same structure; biased (divided by the count)
    residual: tuple[Array, PyTree, PyTree]  # what count, mean and variance lost to rounding


def init_moments(example: PyTree) -> RunningMoments:
    """No samples yet: mean 0, variance 1, so that `normalise` changes nothing but its clip.

    Args:
      example: a pytree of arrays of the shapes and dtypes of one sample. Leaves that are not of a
        floating dtype (integers, booleans) are never touched.
    """

    def shape(leaf: Array) -> tuple[int, ...]:
        return jnp.shape(leaf) if _is_floating(leaf) else ()

    zeros = jax.tree.map(lambda leaf: jnp.zeros(shape(leaf), jnp.float32), example)
    ones = jax.tree.map(lambda leaf: jnp.ones(shape(leaf), jnp.float32), example)
    count = jnp.zeros((), jnp.float32)
    return RunningMoments(count, zeros, ones, (count, zeros, zeros))


def update_moments(
    moments: RunningMoments, batch: PyTree, weight: Array | None = None, axis_name: AxisName = ()
) -> RunningMoments:
    """The moments with a batch of samples counted in.

    Args:
      moments: so far; equal on all devices.
      batch: a pytree as the example was, each leaf with the same leading axes [...] before its own.
      weight: weights of 0 or more of the samples, [...]; all 1 by default.
      axis_name: mapped axes whose batches are counted in as well, so that all come to the same result.

    Raises:
      ValueError: a leaf of the batch does not end in the shape of the example's.

    Source: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance"; a corrected
    two-pass sum within the batch, about the mean so far.
    """

    def update(x: Array, *parts: Array) -> tuple[Array, ...]:
        if not _is_floating(x):
            return parts
        mean, variance, mean_residual, variance_residual = parts
        leading = x.ndim - mean.ndim
        if leading < 0 or x.shape[leading:] != mean.shape:
            raise ValueError(f"batch has a leaf of shape {list(x.shape)}; it must end in {list(mean.shape)}.")
        w = jnp.ones(x.shape[:leading]) if weight is None else weight
        w = jnp.broadcast_to(w.reshape(w.shape + (1,) * mean.ndim), x.shape)
        count, batch_mean, batch_variance = _batch_moments(x, w, mean, axis_name, range(leading))
        return _merge_leaf(
            (moments.count, mean, variance, mean_residual, variance_residual),
            (count, batch_mean, batch_variance, jnp.zeros_like(mean), jnp.zeros_like(mean)),
        )

    leaves, structure = jax.tree.flatten(batch)
    merged = _map_parts(update, moments, leaves)
    shapes = zip(leaves, jax.tree.leaves(moments.mean), strict=True)
    floating = [x.shape[: x.ndim - mean.ndim] for x, mean in shapes if _is_floating(x)]
    if not floating:
        return moments
    w = jnp.ones(floating[0]) if weight is None else weight
    (count,) = _sum((w.astype(jnp.float32),), axis_name)
    return _rebuild(structure, _add(moments.count, moments.residual[0], count), merged)


def merge_moments(a: RunningMoments, b: RunningMoments) -> RunningMoments:
    """The moments of both sets of samples together; the order does not matter.

    Source: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance".
    """

    def merge(*parts: Array) -> tuple[Array, ...]:
        return _merge_leaf((a.count, *parts[:4]), (b.count, *parts[4:]))

    mean, variance = jax.tree.leaves(b.mean), jax.tree.leaves(b.variance)
    residuals = (jax.tree.leaves(part) for part in b.residual[1:])
    others = list(zip(mean, variance, *residuals, strict=True))
    merged = _map_parts(lambda other, *own: merge(*own, *other), a, others)
    count = _add(a.count, a.residual[0], b.count, b.residual[0])
    return _rebuild(jax.tree.structure(a.mean), count, merged)


def standard_deviation(moments: RunningMoments, minimum: float = 1e-4) -> PyTree:
    """The standard deviation of each leaf, never below `minimum`."""
    return jax.tree.map(lambda v: jnp.sqrt(jnp.maximum(v, minimum**2)), moments.variance)


def normalise(
    moments: RunningMoments, x: PyTree, clip: float = 10.0, minimum_deviation: float = 1e-4
) -> PyTree:
    """Brings samples to mean 0 and standard deviation 1: `clip((x - mean) / deviation, -clip, clip)`.

    Args:
      moments: of such samples.
      x: a pytree as the example was, with any leading axes. Integers and booleans are returned as they are.
      clip: bound of the result.
      minimum_deviation: what the standard deviation is at least; keeps a feature that never changes from
        being blown up.
    """

    def one(x: Array, mean: Array, deviation: Array, mean_residual: Array) -> Array:
        if not _is_floating(x):
            return x
        return jnp.clip((x - mean - mean_residual) / deviation, -clip, clip)

    deviation = standard_deviation(moments, minimum_deviation)
    return jax.tree.map(one, x, moments.mean, deviation, moments.residual[1])


def denormalise(moments: RunningMoments, x: PyTree, minimum_deviation: float = 1e-4) -> PyTree:
    """The inverse of `normalise`, for what it did not clip: `x deviation + mean`."""

    def one(x: Array, mean: Array, deviation: Array) -> Array:
        return x * deviation + mean if _is_floating(x) else x

    return jax.tree.map(one, x, moments.mean, standard_deviation(moments, minimum_deviation))


def _is_floating(leaf: Array) -> bool:
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def _divide(total: Array, weight: Array) -> Array:
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)


def _sum(xs: tuple[Array, ...], axis_name: AxisName, axes: Any = None) -> tuple[Array, ...]:
    sums = tuple(jnp.sum(x, axis=None if axes is None else tuple(axes)) for x in xs)
    return jax.lax.psum(sums, axis_name) if axis_name else sums


def _batch_moments(
    x: Array, w: Array, anchor: Array, axis_name: AxisName, axes: Any = None
) -> tuple[Array, Array, Array]:
    """Weight, mean and variance over `axes` (all by default), in two passes about `anchor`."""
    x, w = jnp.where(w > 0, x, 0.0).astype(jnp.float32), w.astype(jnp.float32)
    total, weight = _sum((w * jnp.where(w > 0, x - anchor, 0.0), w), axis_name, axes)
    offset = _divide(total, weight)
    rest = jnp.where(w > 0, (x - anchor) - offset, 0.0)
    first, second = _sum((w * rest, w * jnp.square(rest)), axis_name, axes)
    correction = _divide(first, weight)
    variance = jnp.maximum(_divide(second, weight) - jnp.square(correction), 0.0)
    return weight, anchor + offset + correction, variance


def _merge_leaf(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    """Merges (count, mean, variance, mean's residual, variance's residual) of two sets into the last four.

    The smaller set moves the larger one, so that what is added is always the smaller number.
    """
    count_a, count_b = jnp.broadcast_arrays(a[0], b[0])
    swap = count_b > count_a
    large = [jnp.where(swap, y, x) for x, y in zip(a, b, strict=True)]
    small = [jnp.where(swap, x, y) for x, y in zip(a, b, strict=True)]
    share = _divide(small[0], large[0] + small[0])
    delta = (small[1] - large[1]) + (small[3] - large[3])
    spread = (small[2] - large[2]) + (small[4] - large[4]) + jnp.square(delta) * (1.0 - share)
    mean, mean_residual = _add(large[1], large[3], share * delta)
    variance, variance_residual = _add(large[2], large[4], share * spread)
    # Two empty sets keep what `init_moments` put there, which is nobody's variance.
    return mean, variance, mean_residual, variance_residual


def _add(high: Array, low: Array, x: Array, x_low: Array | float = 0.0) -> tuple[Array, Array]:
    """Adds to a number kept in two float32 words (Knuth's two-sum; Dekker 1971)."""
    total = high + x
    taken = total - high
    lost = (high - (total - taken)) + (x - taken)
    low = low + lost + x_low
    result = total + low
    return result, low - (result - total)


def _map_parts(function: Any, moments: RunningMoments, leaves: list) -> list[tuple[Array, ...]]:
    trees = (moments.mean, moments.variance, moments.residual[1], moments.residual[2])
    parts = zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)
    return [function(leaf, *own) for leaf, own in zip(leaves, parts, strict=True)]


def _rebuild(structure: Any, count: tuple[Array, Array], parts: list[tuple[Array, ...]]) -> RunningMoments:
    columns = zip(*parts, strict=True)
    mean, variance, mean_residual, variance_residual = (
        jax.tree.unflatten(structure, list(column)) for column in columns
    )
    return RunningMoments(count[0], mean, variance, (count[1], mean_residual, variance_residual))
