"""Initial weights. Kernels are `[out, in]`, as `shoal.nets.mlp` multiplies them: `kernel @ x`."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from shoal.errors import ShoalError, nearest

Array = jax.Array


def orthogonal(key: Array, shape: tuple[int, ...], scale: float | Array = 1.0) -> Array:
    """A random orthogonal matrix, uniform among all of them (Haar-distributed), times `scale`.

    With more rows than columns the columns are orthonormal, otherwise the rows are. It is a product
    of Householder reflections along normal vectors (Stewart's algorithm), which needs neither a
    factorisation nor LAPACK: batched LAPACK calls from several threads of the CPU backend can block
    each other for good, so this one may be mapped over keys where `jax.nn.initializers.orthogonal`
    may not.

    Args:
      key: a JAX key.
      shape: at least two axes; those after the first are taken together, `[out, in...]`.
      scale: multiplies the matrix; sqrt(2) is usual before tanh and ReLU.

    Returns:
      float32, of that shape; orthogonal within 1e-5 up to at least 512 x 512.

    Raises:
      ShoalError: fewer than two axes, or an empty one.

    Source: Stewart 1980, "The Efficient Generation of Random Orthogonal Matrices with an Application
    to Condition Estimators"; Saxe et al. 2014 for its use.
    """
    return scale * orthogonals(key, [shape])[0]


def orthogonals(key: Array, shapes: Sequence[tuple[int, ...]]) -> list[Array]:
    """Independent `orthogonal` matrices, one of each shape, in one loop for all of similar size.

    A program that initialises a network is mostly compilation: padding its kernels to one size and
    drawing them together compiles about 1.5 times faster than one loop for each.

    Raises:
      ShoalError: a shape of fewer than two axes, or with an empty one.
    """
    return _orthogonals(key, tuple(tuple(shape) for shape in shapes))


@functools.partial(jax.jit, static_argnames="shapes")  # so that eager construction compiles once, too
def _orthogonals(key: Array, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(_size_class(shape), []).append(index)
    kernels: dict[int, Array] = {}
    for group_key, members in zip(jax.random.split(key, len(groups)), groups.values(), strict=True):
        sides = [_sides(shapes[index]) for index in members]
        longest, widest = (max(side) for side in zip(*sides, strict=True))
        rows, columns = (np.asarray(side)[:, None, None] for side in zip(*sides, strict=True))
        # Of JAX, since an array of NumPy would be made while the program is traced, however large it is.
        inside = (jnp.arange(longest)[:, None] < rows) & (jnp.arange(widest) < columns)
        normals = jax.random.normal(group_key, (len(members), longest, widest))
        padded = jax.vmap(_product_of_reflections)(jnp.where(inside, normals, 0.0))
        for index, columns_, (long, short) in zip(members, padded, sides, strict=True):
            kernel = columns_[:long, :short]
            tall = shapes[index][0] >= math.prod(shapes[index][1:])
            kernels[index] = (kernel if tall else kernel.T).reshape(shapes[index])
    return [kernels[index] for index in range(len(shapes))]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """The longer and the shorter side of a kernel seen as a matrix."""
    if len(shape) < 2 or min(shape) < 1:
        raise ShoalError(f"shape={shape} of a kernel must have two axes or more, none of them empty.")
    outputs, inputs = shape[0], math.prod(shape[1:])
    return max(outputs, inputs), min(outputs, inputs)


def _size_class(shape: tuple[int, ...]) -> tuple[int, int]:
    """Kernels of one class are padded to each other: all small ones, and large ones within a factor 2."""
    long, short = (max(128, 1 << (side - 1).bit_length()) for side in _sides(shape))
    return long, short


def _product_of_reflections(normals: Array) -> Array:
    """The first k columns of the product of the k reflections that map each normal to its axis.

    Column j of the n x k `normals` counts from row j on, and its reflection acts on those rows only.
    QR of a normal matrix would meet just such vectors, one after the other; since each is normal
    whatever came before, independent draws do as well. A column of zeros (padding) reflects nothing.
    """
    rows, columns = normals.shape
    row, column = jnp.arange(rows)[:, None], jnp.arange(columns)
    normals = jnp.where(row >= column, normals, 0.0)
    norm, pivot = jnp.sqrt(jnp.sum(normals**2, axis=0)), jnp.diagonal(normals)
    sign = jnp.where(pivot >= 0, 1.0, -1.0)
    reflectors = normals + jnp.where(row == column, sign * norm, 0.0)  # grows, so that nothing cancels
    reflectors = reflectors / jnp.sqrt(
        jnp.maximum(norm * (norm + jnp.abs(pivot)), 1e-30)
    )  # of length sqrt(2)

    def reflect(product: Array, reflector: Array) -> tuple[Array, None]:
        projection = jnp.matmul(reflector, product, precision="highest")
        return product - reflector[:, None] * projection, None

    product, _ = jax.lax.scan(reflect, jnp.eye(rows, columns), reflectors.T, reverse=True)
    return -sign * product  # as QR whose R has a positive diagonal; without it, not uniform


def variance_scaling(
    key: Array,
    shape: tuple[int, ...],
    scale: float | Array = 1.0,
    *,
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in",
    distribution: Literal["normal", "truncated_normal", "uniform"] = "truncated_normal",
) -> Array:
    """Independent weights of variance `scale / fan`.

    `scale=2, mode="fan_in"` is He's initialisation, `scale=1, mode="fan_avg"` Glorot's and
    `scale=1, mode="fan_in"` LeCun's.

    Args:
      key: a JAX key.
      shape: at least two axes, `[out, in...]`.
      scale: the variance times the fan.
      mode: what the fan is: the inputs of an output, the outputs, or the mean of both.
      distribution: of each weight; the truncated normal ends at two standard deviations and is
        widened so that its variance is the stated one.

    Returns:
      float32, of that shape.

    Raises:
      ShoalError: fewer than two axes, an empty one, or an unknown mode or distribution.

    Source: He et al. 2015, "Delving Deep into Rectifiers"; Glorot and Bengio 2010.
    """
    _sides(shape)
    fan_out, fan_in = shape[0], math.prod(shape[1:])
    fans = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in fans:
        raise ShoalError(f"mode={mode!r} of variance_scaling must be one of {', '.join(fans)}.")
    std = jnp.sqrt(jnp.asarray(scale, jnp.float32) / fans[mode])
    if distribution == "normal":
        return std * jax.random.normal(key, shape)
    if distribution == "truncated_normal":
        return std / _TRUNCATED_STD * jax.random.truncated_normal(key, -2.0, 2.0, shape)
    if distribution == "uniform":
        return std * math.sqrt(3.0) * jax.random.uniform(key, shape, minval=-1.0, maxval=1.0)
    raise ShoalError(
        f"distribution={distribution!r} of variance_scaling must be one of normal, truncated_normal, uniform."
    )


def kernels(key: Array, shapes: Sequence[tuple[int, ...]], initialiser: str = "orthogonal") -> list[Array]:
    """Independent kernels, one of each shape, by an initialiser's name.

    The scale of a layer multiplies what comes out of this. With "lecun_normal" and a scale of sqrt(2)
    that is He's initialisation, with "lecun_uniform" and 1 / sqrt(3) PyTorch's of linear layers.

    Args:
      key: a JAX key.
      shapes: each of at least two axes, `[out, in...]`.
      initialiser: one of `INITIALISERS`: "orthogonal", or `variance_scaling` of scale 1 with the fan
        inputs (lecun), inputs and outputs (glorot), or inputs and scale 2 (he), each normal (cut at two
        standard deviations) or uniform.

    Raises:
      ShoalError: an unknown name, or a shape of fewer than two axes or with an empty one.
    """
    if initialiser not in INITIALISERS:
        options = ", ".join(INITIALISERS)
        raise ShoalError(
            f"initialiser={initialiser!r} is none of {options}{nearest(str(initialiser), INITIALISERS)}."
        )
    if initialiser == "orthogonal":
        return orthogonals(key, shapes)
    keys = jax.random.split(key, len(shapes))
    return [INITIALISERS[initialiser](k, shape) for k, shape in zip(keys, shapes, strict=True)]


def _variance_scaling(
    scale: float, mode: Literal["fan_in", "fan_avg"], uniform: bool
) -> Callable[..., Array]:
    distribution: Literal["uniform", "truncated_normal"] = "uniform" if uniform else "truncated_normal"
    return functools.partial(variance_scaling, scale=scale, mode=mode, distribution=distribution)


INITIALISERS: dict[str, Callable[..., Array]] = {
    "orthogonal": orthogonal,
    "lecun_normal": _variance_scaling(1.0, "fan_in", uniform=False),
    "lecun_uniform": _variance_scaling(1.0, "fan_in", uniform=True),
    "glorot_normal": _variance_scaling(1.0, "fan_avg", uniform=False),
    "glorot_uniform": _variance_scaling(1.0, "fan_avg", uniform=True),
    "he_normal": _variance_scaling(2.0, "fan_in", uniform=False),
    "he_uniform": _variance_scaling(2.0, "fan_in", uniform=True),
}

_TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at two standard deviations
