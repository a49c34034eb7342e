"""Products of a kernel with a batch of vectors."""

import jax
import jax.numpy as jnp

from shoal.xla.barriers import materialise
from shoal.xla.costs import SUMMED_PRODUCT
from shoal.xla.plain import uses_plain_form

Array = jax.Array

MAX_SINGLE_ROW_PRODUCTS = 16  # number of rows up to which a product for each row is faster than one for all
# Multiplications up to which a product for each row is faster: 16 rows of a 64 x 64 kernel, or 4 of 128 x 128.
MAX_SINGLE_ROW_SIZE = 2**16
MAX_SUMMED_INPUTS = 8  # number of inputs up to which a sum over them is faster than a product
# Number of outputs up to which a product with a vector, or a sum, for each is faster than one product with a matrix.
MAX_SUMMED_OUTPUTS = 4


def product(kernel: Array, x: Array) -> Array:
    """Multiply a kernel with a feature-major batch; on a CPU the gradient is as fast as the product.

        kernel @ x,   [out, in] and [in, batch] -> [out, batch]

    The gradient with respect to x is a product with the transposed kernel. By default XLA reads the kernel in the wrong
    order, by a routine that takes up to twice as long and uses a second core badly. The cost of a transposed copy of
    the kernel is negligible in comparison. With few outputs the kernel's gradient is a product with a vector for each.

    There is no forward-mode derivative. Values are bit-equal to the plain form, gradients within float32's rounding.

    Gain: an update of the reference workload took 73 ms instead of 90 on one device and 66 instead of 70 on two; the
    gradient of a head of one output took 19 µs instead of 102 (one core, 4,096 rows).
    """
    return product_plain(kernel, x) if uses_plain_form("product") else _product(kernel, x)


def product_plain(kernel: Array, x: Array) -> Array:
    """Compute `kernel @ x`: the plain form of `product`."""
    return kernel @ x


@jax.custom_vjp
def _product(kernel: Array, x: Array) -> Array:
    return kernel @ x


def _product_forward(kernel: Array, x: Array) -> tuple[Array, tuple[Array, Array]]:
    return kernel @ x, (kernel, x)


def _product_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    kernel, x = residuals
    if kernel.shape[0] <= MAX_SUMMED_OUTPUTS:
        # Otherwise XLA computes the whole gradient of a loss again for each feature.
        gradient = materialise(gradient)
        kernel_gradient = jnp.stack([x @ row for row in gradient])
    else:
        kernel_gradient = gradient @ x.T
    return kernel_gradient, materialise(kernel.T) @ gradient


_product.defvjp(_product_forward, _product_backward)


def affine_of_few_rows(kernel: Array, bias: Array, x: Array) -> Array:
    """Multiply a few rows with a kernel and add a bias, without a matrix library where calling it is slow.

        x @ kernel.T + bias,   [batch, in] and [out, in] -> [batch, out]

    A call of a matrix library takes longer than such a product, and a loop over steps that calls one cannot be compiled
    as one kernel (`shoal.xla.machine`). Layers of few inputs or few outputs are computed as sums, and small layers
    as a product for each row: XLA compiles both without a library. Equal to the plain form within float32's rounding.

    Gain: an update of 4 x 128 steps took 2.39 ms instead of 2.58; with one kernel for the rollout 2.21 ms instead of
    2.47.
    """
    if uses_plain_form("affine_of_few_rows"):
        return affine_of_few_rows_plain(kernel, bias, x)
    outputs, inputs = kernel.shape
    if outputs <= MAX_SUMMED_OUTPUTS:
        with jax.named_scope(SUMMED_PRODUCT):
            return jnp.sum(x[:, None] * kernel, axis=-1) + bias
    transposed = materialise(kernel.T)  # else it is transposed again at each step of a loop
    if inputs <= MAX_SUMMED_INPUTS:
        with jax.named_scope(SUMMED_PRODUCT):
            return sum((x[:, i, None] * transposed[i] for i in range(inputs)), start=bias)
    if len(x) <= MAX_SINGLE_ROW_PRODUCTS and len(x) * kernel.size <= MAX_SINGLE_ROW_SIZE:
        return jnp.stack([row @ transposed for row in x]) + bias
    return x @ transposed + bias


def affine_of_few_rows_plain(kernel: Array, bias: Array, x: Array) -> Array:
    """Compute `x @ kernel.T + bias`: the plain form of `affine_of_few_rows`."""
    return x @ kernel.T + bias
