"""Initial weights. Kernels are `[out, in]`, as `shoal.nets.mlp` multiplies them: `kernel @ x`."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest

Array = jax.Array


def orthogonal(key: Array, shape: tuple[int, ...], scale: float | Array = 1.0) -> Array:
    """Draw an orthogonal matrix, uniform among all of them (Haar-distributed), times `scale`.

    With more rows than columns the columns are orthonormal, otherwise the rows are. The matrix is a
    product of Householder reflections along normal vectors (Stewart's algorithm), which needs no
    factorisation and no LAPACK. Batched LAPACK calls from several threads of the CPU backend can
    deadlock: this function can be mapped over keys, but `jax.nn.initializers.orthogonal` cannot.

    Args:
      shape: at least two axes, `[out, in...]`; those after the first are flattened.
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
    """Draw independent `orthogonal` matrices, one of each shape, in one loop for all of similar size.

    Most of the time of initialising a network is compilation: kernels that are padded to one size and
    drawn together compile about 1.5 times faster than one loop for each.

    Raises:
      ShoalError: a shape of fewer than two axes, or with an empty one.
    """
    return _orthogonals(key, tuple(tuple(shape) for shape in shapes))


# So that construction outside of `jit` compiles once, too.
@functools.partial(jax.jit, static_argnames="shapes")
def _orthogonals(key: Array, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    groups: dict[tuple[int, int], list[int]] = {}
    for index, shape in enumerate(shapes):
        groups.setdefault(_size_class(shape), []).append(index)
    kernels: dict[int, Array] = {}
    for group_key, members in zip(jax.random.split(key, len(groups)), groups.values(), strict=True):
        sides = [_sides(shapes[index]) for index in members]
        longest, widest = (max(side) for side in zip(*sides, strict=True))
        rows, columns = (np.asarray(side)[:, None, None] for side in zip(*sides, strict=True))
        # By `jnp`, since NumPy would allocate this array while the program is traced, and it may be large.
        inside = (jnp.arange(longest)[:, None] < rows) & (jnp.arange(widest) < columns)
        normals = jax.random.normal(group_key, (len(members), longest, widest))
        padded = jax.vmap(_product_of_reflections)(jnp.where(inside, normals, 0.0))
        for index, columns_, (long, short) in zip(members, padded, sides, strict=True):
            kernel = columns_[:long, :short]
            tall = shapes[index][0] >= math.prod(shapes[index][1:])
            kernels[index] = (kernel if tall else kernel.T).reshape(shapes[index])
    return [kernels[index] for index in range(len(shapes))]


def _sides(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the longer and the shorter side of a kernel as a matrix [out, in]."""
    if len(shape) < 2 or min(shape) < 1:
        raise ShoalError(f"shape={shape} of a kernel must have two axes or more, none of them empty.")
    outputs, inputs = shape[0], math.prod(shape[1:])
    return max(outputs, inputs), min(outputs, inputs)


def _size_class(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the size class of a kernel: one for all small kernels, and powers of two for large ones."""
    long, short = (max(128, 1 << (side - 1).bit_length()) for side in _sides(shape))
    return long, short


def _product_of_reflections(normals: Array) -> Array:
    """Compute the first k columns of the product of the k reflections that map each normal to its axis.

    Column j of the n x k `normals` is used from row j on, and its reflection acts on those rows only.
    A QR factorisation of a normal matrix reflects along vectors of the same distribution: each is normal
    for any values of the previous ones, so that independent draws are equivalent. A column of zeros
    (padding) changes nothing.
    """
    rows, columns = normals.shape
    row, column = jnp.arange(rows)[:, None], jnp.arange(columns)
    normals = jnp.where(row >= column, normals, 0.0)
    norm, pivot = jnp.sqrt(jnp.sum(normals**2, axis=0)), jnp.diagonal(normals)
    sign = jnp.where(pivot >= 0, 1.0, -1.0)
    # Of equal signs, so that nothing cancels.
    reflectors = normals + jnp.where(row == column, sign * norm, 0.0)
    # Of length sqrt(2).
    reflectors = reflectors / jnp.sqrt(jnp.maximum(norm * (norm + jnp.abs(pivot)), 1e-30))

    def reflect(product: Array, reflector: Array) -> tuple[Array, None]:
        projection = jnp.matmul(reflector, product, precision="highest")
        return product - reflector[:, None] * projection, None

    product, _ = jax.lax.scan(reflect, jnp.eye(rows, columns), reflectors.T, reverse=True)
    return -sign * product  # as in a QR whose R has a positive diagonal; without these signs not uniform


def variance_scaling(
    key: Array,
    shape: tuple[int, ...],
    scale: float | Array = 1.0,
    *,
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in",
    distribution: Literal["normal", "truncated_normal", "uniform"] = "truncated_normal",
) -> Array:
    """Draw independent weights of variance `scale / fan`.

    `scale=2, mode="fan_in"` is He's initialisation, `scale=1, mode="fan_avg"` Glorot's and
    `scale=1, mode="fan_in"` LeCun's.

    Args:
      mode: the fan: the number of inputs, the number of outputs, or the mean of both.
      distribution: the distribution of each weight; the truncated normal ends at two standard
        deviations and is rescaled to the stated variance.
    Returns:
      float32, of that shape.
    Raises:
      ShoalError: fewer than two axes, or an empty one.
      ValueError: an unknown mode or distribution (JAX's).
    Source: He et al. 2015, "Delving Deep into Rectifiers"; Glorot and Bengio 2010.
    """
    _sides(shape)
    in_axes = tuple(range(1, len(shape)))
    draw = jax.nn.initializers.variance_scaling(1.0, mode, distribution, in_axis=in_axes, out_axis=0)
    return jnp.sqrt(jnp.asarray(scale, jnp.float32)) * draw(key, shape, jnp.float32)


def kernels(key: Array, shapes: Sequence[tuple[int, ...]], initialiser: str = "orthogonal") -> list[Array]:
    """Draw independent kernels, one of each shape, by an initialiser's name.

    A layer multiplies its kernel by its own scale. With "lecun_normal" and a scale of sqrt(2) this is
    He's initialisation, with "lecun_uniform" and 1 / sqrt(3) that of PyTorch's linear layers.

    Args:
      initialiser: one of `INITIALISERS`: "orthogonal", or `variance_scaling` of scale 1 with the fan
        inputs (lecun), inputs and outputs (glorot), or inputs and scale 2 (he), each normal (cut at two
        standard deviations) or uniform.
    Raises:
      ShoalError: an unknown name, or a shape of fewer than two axes or with an empty one.
    """
    check_initialiser(initialiser)
    if initialiser == "orthogonal":
        return orthogonals(key, shapes)
    keys = jax.random.split(key, len(shapes))
    return [INITIALISERS[initialiser](k, shape) for k, shape in zip(keys, shapes, strict=True)]


def kernels_of_gates(
    key: Array, gates: int, shapes: Sequence[tuple[int, int]], initialisers: Sequence[str]
) -> list[Array]:
    """Draw independent kernels of several gates each, [gates * out, in], one of each shape (out, in) of a gate.

    Args:
      initialisers: the name of each kernel's, one of `INITIALISERS` for each gate's rows by themselves; with `_whole`
        at its end for one draw of the rows of all gates, whose fans and orthogonality are then those of
        [gates * out, in].
    Raises:
      ShoalError: an unknown name, or an empty shape.
    """
    if set(initialisers) == {"orthogonal"}:  # in one loop, which compiles faster
        drawn = orthogonals(key, [shape for shape in shapes for _ in range(gates)])
        return [jnp.concatenate(drawn[i : i + gates]) for i in range(0, len(drawn), gates)]
    stacked = []
    for own_key, (out, inputs), name in zip(
        jax.random.split(key, len(shapes)), shapes, initialisers, strict=True
    ):
        check_initialiser(name, options=CORE_INITIALISERS)
        own_shapes = [(gates * out, inputs)] if name.endswith(WHOLE) else [(out, inputs)] * gates
        stacked.append(jnp.concatenate(kernels(own_key, own_shapes, name.removesuffix(WHOLE))))
    return stacked


def check_initialiser(
    initialiser: str, name: str = "initialiser", options: Sequence[str] | None = None
) -> None:
    """Raise ShoalError unless an initialiser is one of the options, `INITIALISERS`; `name` is the setting's."""
    names = INITIALISERS if options is None else options
    if initialiser not in names:
        raise ShoalError(
            f"{name}={initialiser!r} is none of {', '.join(names)}{nearest(str(initialiser), names)}."
        )


_FANS: dict[str, tuple[float, Literal["fan_in", "fan_avg"]]] = {
    "lecun": (1.0, "fan_in"),
    "glorot": (1.0, "fan_avg"),
    "he": (2.0, "fan_in"),
}
_DRAWN: dict[str, Literal["truncated_normal", "uniform"]] = {
    "normal": "truncated_normal",
    "uniform": "uniform",
}
INITIALISERS: dict[str, Callable[..., Array]] = {"orthogonal": orthogonal} | {
    f"{name}_{suffix}": functools.partial(variance_scaling, scale=scale, mode=mode, distribution=distribution)
    for name, (scale, mode) in _FANS.items()
    for suffix, distribution in _DRAWN.items()
}
WHOLE = "_whole"
CORE_INITIALISERS = (*INITIALISERS, *(name + WHOLE for name in INITIALISERS))
