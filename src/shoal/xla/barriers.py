"""Arrays that XLA computes once, in the layout as written, before other operations read them."""

from typing import TypeVar

import jax

from shoal.xla.plain import uses_plain_form

T = TypeVar("T")


def materialise(tree: T) -> T:
    """Make XLA compute arrays as written before it computes the operations that read them.

        materialise(x) = x,   bit for bit

    XLA merges cheap operations into each operation that reads them: a transposition into a matrix product, which then
    reads its operand in the wrong order by a slow routine; a gather or a sum into every consumer, each of which
    computes it again. XLA removes the barrier before its last fusions; `compute_once` prevents these too
    (`shoal.xla.single_evaluation`).

    Gain: an update of the reference workload took 45 ms instead of 59 with the barrier before an MLP's last
    transposition (and its layout), and 73 ms instead of 90 with one after the transposed kernel of a gradient.
    """
    return materialise_plain(tree) if uses_plain_form("materialise") else jax.lax.optimization_barrier(tree)


def materialise_plain(tree: T) -> T:
    """Return the arrays: the plain form of `materialise`."""
    return tree
