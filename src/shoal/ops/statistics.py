"""Weighted means and moments of a batch, and running moments of a pytree.

A weight of 0 takes an entry out, whatever it holds, NaN included. `axis_name` names the mapped axes
(`vmap`, `shard_map`) whose batches count as one: every mean is then `psum(sum w x) / psum(sum w)`.
Weights are 0 or more, of the shape of the values or one that broadcasts to it. The leaves of a batch of a pytree
have the same leading axes [...] before those of one sample; its `weight` is [...], all 1 by default.

Everything is computed and returned in float32: integers, booleans, float64 and narrower floats are
converted first.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.ops import _checks

Array = jax.Array
PyTree = Any
AxisName = str | tuple[str, ...]


def weighted_mean(x: Array, w: Array, axis_name: AxisName = ()) -> Array:
    """The mean `sum(w x) / sum(w)`, a scalar; 0 where all weights are 0.

    Raises:
      ValueError: w does not broadcast to the shape of x.
    """
    w = _weights(w, x)
    # Selected before it is multiplied: 0 times NaN is NaN.
    x = jnp.where(w > 0, x, 0.0).astype(jnp.float32)
    total, weight = _sum((x * w, w), axis_name)
    return _divide(total, weight)


def weighted_moments(x: Array, w: Array, axis_name: AxisName = ()) -> tuple[Array, Array]:
    """Mean and (biased) variance, scalars; both 0 where all weights are 0.

    Two passes over the data, so that a mean much larger than the deviation costs no digits.

    Raises:
      ValueError: w does not broadcast to the shape of x.
    """
    w = _weights(w, x)
    _, mean, variance, _ = _batch_moments(x, w, jnp.zeros((), jnp.float32), axis_name)
    return mean, variance


def standardise(x: Array, w: Array, axis_name: AxisName = (), epsilon: float = 1e-8) -> Array:
    """Shift and scale a batch to weighted mean 0 and standard deviation 1, as PPO does with advantages.

        (x - mean) / (max(deviation, 1e-6 |mean|) + ε),   0 where the weight is 0

    The bound keeps the rounding of equal values from being blown up into noise of size 1.

    Raises:
      ValueError: w does not broadcast to the shape of x.
    """
    w = _weights(w, x)
    x = jnp.where(w > 0, x, 0.0).astype(jnp.float32)  # a NaN would get into the gradient of the rest
    mean, variance = weighted_moments(x, w, axis_name)
    least = jnp.maximum(jnp.square(1e-6 * mean), jnp.finfo(jnp.float32).tiny)  # a root has no slope at 0
    deviation = jnp.sqrt(jnp.maximum(variance, least))
    return jnp.where(w > 0, (x - mean) / (deviation + epsilon), 0.0)


def explained_variance(target: Array, prediction: Array, w: Array, axis_name: AxisName = ()) -> Array:
    """Share of the target's variance that the prediction explains: `1 - Var(target - prediction) / Var(target)`.

    1 is perfect, 0 no better than a constant, below 0 worse. 0 where the target does not vary.

    Raises:
      ValueError: target and prediction have different shapes, or w does not broadcast to them.
    """
    _checks.same_shape(target=target, prediction=prediction)
    # Converted before they are subtracted: the difference of unsigned integers wraps, and that of half floats
    # overflows.
    target, prediction = jnp.asarray(target, jnp.float32), jnp.asarray(prediction, jnp.float32)
    _, residual = weighted_moments(target - prediction, w, axis_name)
    _, variance = weighted_moments(target, w, axis_name)
    return jnp.where(variance > 0, 1.0 - residual / jnp.where(variance > 0, variance, 1.0), 0.0)


class RunningMoments(NamedTuple):
    """Count, mean and variance of all samples so far, of each leaf of a pytree that is followed.

    Sums in float32 stall: beyond 2**24 samples one more changes nothing. Here every number is kept as a
    float32 and what rounding took from it (`residual`, of the same structure), so that each is good to
    some 48 bits: the moments are those of all samples, equally weighted, after 1e12 of them.

    Leaves that are not followed (integers, booleans, paths that were left out) hold a boolean in place of
    their moments, and are passed through wherever samples are.
    """

    count: Array  # type: ignore[assignment]  # sum of weights; it replaces the method of tuples
    mean: PyTree  # float32, of the example's shapes
    variance: PyTree  # of the same structure; biased (divided by the count)
    residual: tuple[Array, PyTree, PyTree]  # the rounding errors of count, mean and variance


def init_moments(example: PyTree, only: Callable[[str], bool] | None = None) -> RunningMoments:
    """Return the moments before any sample: mean 0 and variance 1, with which `normalise` only clips.

    Args:
      example: a pytree of arrays of the shapes and dtypes of one sample. Leaves that are not of a
        floating dtype (integers, booleans) are never touched.
      only: which of the floating leaves to follow, by their path (`"arm/angles"`; `""` for a lone array);
        all by default.
    Raises:
      ValueError: `only` chooses none, although there are floating leaves.
    """
    paths, structure = jax.tree.flatten_with_path(example)
    leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    floating = [name for name, leaf in leaves.items() if jnp.issubdtype(_dtype(leaf), jnp.floating)]
    followed = [name for name in floating if only is None or only(name)]
    if floating and not followed:
        raise ValueError(f"only chooses none of the floating leaves, whose paths are {', '.join(floating)}.")

    def full_tree(value: float) -> PyTree:
        parts = [
            jnp.full(jnp.shape(leaf), value, jnp.float32) if name in followed else jnp.asarray(False)
            for name, leaf in leaves.items()
        ]
        return jax.tree.unflatten(structure, parts)

    count = jnp.zeros((), jnp.float32)
    return RunningMoments(count, full_tree(0.0), full_tree(1.0), (count, full_tree(0.0), full_tree(0.0)))


def update_moments(
    moments: RunningMoments, batch: PyTree, weight: Array | None = None, axis_name: AxisName = ()
) -> RunningMoments:
    """Return the moments with a batch of samples added.

    Raises:
      ValueError: the batch is not of the example's structure, or a leaf that is followed does not end in the
        shape of the example's or has other leading axes than the weight.
      TypeError: a leaf that is followed is not floating.
    Source: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance"; a corrected
    two-pass sum within the batch, about the mean so far.
    """
    leaves = _matching_leaves(batch, moments, "batch")
    leading = {
        x.shape[: x.ndim - mean.ndim]
        for x, mean in zip(leaves, jax.tree.leaves(moments.mean), strict=True)
        if _is_followed(mean)
    }
    if not leading:
        return moments
    if weight is not None:
        leading.add(jnp.shape(weight))
    if len(leading) > 1:
        shapes = ", ".join(str(list(shape)) for shape in sorted(leading))
        raise ValueError(f"batch and weight have different leading axes, {shapes}; all must have the same.")
    w = jnp.ones(leading.pop(), jnp.float32) if weight is None else jnp.asarray(weight, jnp.float32)

    def update(x: Array, mean: Array, *others: Array) -> tuple[Array, ...]:
        weights = jnp.broadcast_to(w.reshape(w.shape + (1,) * mean.ndim), x.shape)
        batch_moments = _batch_moments(x, weights, mean, axis_name, range(w.ndim))
        return _merge_leaf((moments.count, mean, *others), (*batch_moments, jnp.zeros_like(mean)))

    pairs = zip(leaves, _rows(moments), strict=True)
    rows = [update(x, *row) if _is_followed(row[0]) else row for x, row in pairs]
    (count,) = _sum((w,), axis_name)
    return _from_rows(moments, _add_compensated(moments.count, moments.residual[0], count), rows)


def merge_moments(a: RunningMoments, b: RunningMoments) -> RunningMoments:
    """Merge the moments of two sets of samples; the order does not matter.

    Raises:
      ValueError: the two were not made from the same example.
    Source: Chan, Golub and LeVeque 1983, "Algorithms for Computing the Sample Variance".
    """
    # By dtypes too: a leaf that only one of them follows holds a boolean in the other.
    shapes = [
        jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), moments.mean) for moments in (a, b)
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(f"a and b are not moments of the same example: {shapes[0]} and {shapes[1]}.")
    rows = [
        _merge_leaf((b.count, *of_b), (a.count, *of_a)) if _is_followed(of_a[0]) else of_a
        for of_a, of_b in zip(_rows(a), _rows(b), strict=True)
    ]
    return _from_rows(a, _add_compensated(a.count, a.residual[0], b.count, b.residual[0]), rows)


def standard_deviation(
    moments: RunningMoments, minimum: float = 1e-4, maximum: float = math.inf, warm_up: float = 0.0
) -> PyTree:
    """The standard deviation of each leaf within bounds, `clip(sqrt(variance), minimum, maximum)`.

    Args:
      minimum: the lower bound; keeps a feature that never changes from being magnified.
      maximum: the upper bound; keeps a feature with rare outliers from being flattened.
      warm_up: before this many samples it is 1.
    Returns:
      a pytree of the example's structure; 1 for leaves that are not followed.
    """

    def leaf_deviation(variance: Array) -> Array:
        if not _is_followed(variance):
            return jnp.ones((), jnp.float32)
        deviation = jnp.clip(jnp.sqrt(jnp.maximum(variance, minimum**2)), minimum, maximum)
        return jnp.where(moments.count < warm_up, 1.0, deviation)

    return jax.tree.map(leaf_deviation, moments.variance)


def normalise(
    moments: RunningMoments,
    x: PyTree,
    clip: float = 10.0,
    minimum_deviation: float = 1e-4,
    maximum_deviation: float = math.inf,
    warm_up: float = 0.0,
) -> PyTree:
    """Shift and scale samples to mean 0 and standard deviation 1: `clip((x - mean) / deviation, -clip, clip)`.

    Args:
      x: a pytree as the example was, with any leading axes. Leaves that are not followed (integers and
        booleans among them) are returned as they are.
      warm_up: before this many samples have been counted, x is clipped and nothing else.
    Returns:
      a pytree as x is; float32 where it was normalised.
    Raises:
      ValueError: x is not of the example's structure, or a leaf that is followed does not end in the shape of
        the example's.
      TypeError: a leaf that is followed is not floating.
    """

    def normalise_leaf(x: Array, mean: Array, mean_residual: Array, deviation: Array) -> Array:
        offset = (x - mean) - mean_residual
        return jnp.clip(offset / deviation, -clip, clip)

    return _map_followed(normalise_leaf, moments, x, minimum_deviation, maximum_deviation, warm_up)


def denormalise(
    moments: RunningMoments,
    x: PyTree,
    minimum_deviation: float = 1e-4,
    maximum_deviation: float = math.inf,
    warm_up: float = 0.0,
) -> PyTree:
    """The inverse of `normalise` with the same arguments, where it did not clip: `x deviation + mean`.

    Exact but for rounding: within some units in the last place of the larger of mean and result.
    """

    def denormalise_leaf(x: Array, mean: Array, mean_residual: Array, deviation: Array) -> Array:
        return (x * deviation + mean_residual) + mean

    return _map_followed(denormalise_leaf, moments, x, minimum_deviation, maximum_deviation, warm_up)


def _map_followed(
    transform: Callable[..., Array],
    moments: RunningMoments,
    x: PyTree,
    minimum: float,
    maximum: float,
    warm_up: float,
) -> PyTree:
    """Apply `transform(x, mean, mean's residual, deviation)` to the leaves that are followed."""
    warming_up = moments.count < warm_up
    parts = (moments.mean, moments.residual[1], standard_deviation(moments, minimum, maximum, warm_up))
    columns = zip(_matching_leaves(x, moments, "x"), *(jax.tree.leaves(part) for part in parts), strict=True)
    leaves = [
        transform(
            leaf.astype(jnp.float32),
            jnp.where(warming_up, 0.0, mean),
            jnp.where(warming_up, 0.0, residual),
            deviation,
        )
        if _is_followed(mean)
        else leaf
        for leaf, mean, residual, deviation in columns
    ]
    return jax.tree.unflatten(jax.tree.structure(x), leaves)


def _dtype(leaf: object) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.result_type(leaf)


def _is_followed(part: Array) -> bool:
    return bool(part.dtype != jnp.bool_)


def _matching_leaves(x: PyTree, moments: RunningMoments, name: str) -> list[Array]:
    """Return the leaves of samples that fit the moments; those that are followed as arrays.

    Raises:
      ValueError: their structure or a shape does not fit.
      TypeError: a leaf that is followed is not floating.
    """
    paths, structure = jax.tree.flatten_with_path(x)
    expected = jax.tree.structure(moments.mean)
    if structure != expected:  # type: ignore[operator]
        raise ValueError(f"{name} has the structure {structure}, which must be the example's, {expected}.")
    leaves = []
    for (path, leaf), mean in zip(paths, jax.tree.leaves(moments.mean), strict=True):
        if not _is_followed(mean):
            leaves.append(leaf)
            continue
        where = jax.tree_util.keystr(path)
        if not jnp.issubdtype(_dtype(leaf), jnp.floating):
            raise TypeError(f"{name}{where} is {_dtype(leaf)}; it must be floating, as the example is.")
        shape, expected_shape = list(jnp.shape(leaf)), list(mean.shape)
        if shape[max(len(shape) - len(expected_shape), 0) :] != expected_shape:
            raise ValueError(
                f"{name}{where} has shape {shape}, which must end in the example's, {expected_shape}."
            )
        leaves.append(jnp.asarray(leaf))
    return leaves


def _weights(w: Array, x: Array) -> Array:
    """Convert weights to float32 of the shape of x."""
    try:
        return jnp.broadcast_to(w, jnp.shape(x)).astype(jnp.float32)
    except ValueError:
        shapes = f"{list(jnp.shape(w))}, which must broadcast to x's, {list(jnp.shape(x))}"
        raise ValueError(f"w has shape {shapes}.") from None


def _divide(total: Array, weight: Array) -> Array:
    return jnp.where(weight > 0, total / jnp.where(weight > 0, weight, 1.0), 0.0)


def _sum(xs: tuple[Array, ...], axis_name: AxisName, axes: Any = None) -> tuple[Array, ...]:
    sums = tuple(jnp.sum(x, axis=None if axes is None else tuple(axes)) for x in xs)
    return jax.lax.psum(sums, axis_name) if axis_name else sums


def _batch_moments(
    x: Array, w: Array, anchor: Array, axis_name: AxisName, axes: object = None
) -> tuple[Array, Array, Array, Array]:
    """Weight, mean, variance and the mean's residual over `axes` (None is all), in two passes about `anchor`."""
    x, w = jnp.where(w > 0, x, 0.0).astype(jnp.float32), w.astype(jnp.float32)
    total, weight = _sum((w * jnp.where(w > 0, x - anchor, 0.0), w), axis_name, axes)
    offset = _divide(total, weight)
    centred = jnp.where(w > 0, (x - anchor) - offset, 0.0)
    first, second = _sum((w * centred, w * jnp.square(centred)), axis_name, axes)
    correction = _divide(first, weight)
    variance = jnp.maximum(_divide(second, weight) - jnp.square(correction), 0.0)
    mean, residual = _add_compensated(anchor, 0.0, offset + correction)
    return weight, mean, variance, residual


def _merge_leaf(a: tuple[Array, ...], b: tuple[Array, ...]) -> tuple[Array, ...]:
    """Merge (count, mean, variance, mean's residual, variance's residual) of two sets into the last four.

    The smaller set moves the larger one, so that what is added is always the smaller number.
    """
    count_a, count_b = jnp.broadcast_arrays(a[0], b[0])
    swap = count_b > count_a
    large = [jnp.where(swap, y, x) for x, y in zip(a, b, strict=True)]
    small = [jnp.where(swap, x, y) for x, y in zip(a, b, strict=True)]
    share = _divide(small[0], large[0] + small[0])
    delta = (small[1] - large[1]) + (small[3] - large[3])
    spread = (small[2] - large[2]) + (small[4] - large[4]) + jnp.square(delta) * (1.0 - share)
    mean, mean_residual = _add_compensated(large[1], large[3], share * delta)
    variance, variance_residual = _add_compensated(large[2], large[4], share * spread)
    # Two empty sets keep the values of `init_moments`.
    return mean, variance, mean_residual, variance_residual


def _add_compensated(
    high: Array, low: Array | float, x: Array, x_low: Array | float = 0.0
) -> tuple[Array, Array]:
    """Add to a number that is stored as two float32 words (Knuth's two-sum; Dekker 1971)."""
    total = high + x
    added = total - high
    error = (high - (total - added)) + (x - added)
    low = low + error + x_low
    result = total + low
    return result, low - (result - total)


def _rows(moments: RunningMoments) -> list[tuple[Array, ...]]:
    """Return of each leaf its mean, its variance, and the residuals of both."""
    parts = (moments.mean, moments.variance, moments.residual[1], moments.residual[2])
    return list(zip(*(jax.tree.leaves(part) for part in parts), strict=True))


def _from_rows(
    moments: RunningMoments, count: tuple[Array, Array], rows: list[tuple[Array, ...]]
) -> RunningMoments:
    """Return moments of the same structure with another count (and its residual), and other rows."""
    structure = jax.tree.structure(moments.mean)
    mean, variance, mean_residual, variance_residual = (
        jax.tree.unflatten(structure, column) for column in zip(*rows, strict=True)
    )
    return RunningMoments(count[0], mean, variance, (count[1], mean_residual, variance_residual))
