"""Arrays that XLA computes once and lays out as written, before anything reads them."""

from typing import TypeVar

import jax

from shoal.xla.plain import USE_PLAIN

T = TypeVar("T")


def materialise(tree: T) -> T:
    """The same arrays, which XLA computes as they stand before it computes what reads them.

        materialise(x) = x,   bit for bit

    XLA folds what is cheap into each operation that reads it: a transposition into a matrix product, which then reads
    its operand the wrong way round by a slow routine; a gather or a sum into every consumer, to be computed again for
    each. The barrier is gone before the last fusions; where these are the harm, `compute_gradient_once` and
    `compute_once` hold (`shoal.xla.single_evaluation`).

    Gain: an update of the reference workload took 45 ms for 59 with the barrier before an MLP's last transposition (and
    its layout), and 73 ms for 90 with one behind the transposed kernel of a gradient.
    """
    return materialise_plain(tree) if USE_PLAIN else jax.lax.optimization_barrier(tree)


def materialise_plain(tree: T) -> T:
    """The arrays as they are: the plain form of `materialise`."""
    return tree
