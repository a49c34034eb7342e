"""What a network or a step costs: parameters, arithmetic, memory."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from shoal.types import PyTree


def num_parameters(tree: PyTree) -> int:
    """How many numbers a pytree of arrays holds: for a network, its parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: PyTree) -> int:
    """How much memory the arrays of a pytree take, in bytes (keys by the words that they hold)."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


class Cost(NamedTuple):
    """What one call of a compiled function costs. Bytes are bytes, FLOPs single operations."""

    flops: float
    """XLA's count of arithmetic after optimisation. It counts the body of a loop once, however often it runs."""

    bytes_accessed: float
    """XLA's count of memory read and written between its fused operations; of loops as of `flops`."""

    product_flops: float
    """Arithmetic of matrix products and convolutions alone, as written, with each scan's as often as it runs."""

    argument_bytes: int
    """Memory of the arguments."""

    output_bytes: int
    """Memory of the results."""

    temporary_bytes: int
    """Memory for everything between, at its peak."""


def step_cost(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Cost:
    """Compiles a function for these arguments and says what a call costs, without calling it.

    XLA counts a loop's body once, so for a step with a scan inside (a rollout, epochs of minibatches) its
    numbers are those of one turn; `product_flops` has all of them, and is what dominates in training.

    Args:
      function: compiled by `jax.jit` already or not.
      args, kwargs: arrays, pytrees of them, or their `jax.ShapeDtypeStruct`s.
    """
    compiled = (
        (function if hasattr(function, "lower") else jax.jit(function)).lower(*args, **kwargs).compile()
    )
    analysis, memory = compiled.cost_analysis() or {}, compiled.memory_analysis()
    return Cost(
        flops=analysis.get("flops", math.nan),
        bytes_accessed=analysis.get("bytes accessed", math.nan),
        product_flops=product_flops(function, *args, **kwargs),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
    )


def product_flops(function: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Floating-point operations in the matrix products and convolutions of one call.

    A product of [m, k] and [k, n] counts 2 m k n. The body of a scan counts as often as it runs, that of a
    `while_loop` (whose turns are not known) once, and of a `cond` the dearest branch. What no result depends on
    is left out, as it is when compiled.

    Args:
      function: it is traced, not compiled or called.
      args, kwargs: arrays, pytrees of them, or their `jax.ShapeDtypeStruct`s.
    """
    program = jax.make_jaxpr(function)(*args, **kwargs).jaxpr
    needed, _ = dce_jaxpr(program, [True] * len(program.outvars))
    return _flops(needed)


def _flops(program: Any) -> float:
    return sum(_flops_of(equation) for equation in program.eqns)


def _flops_of(equation: Any) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        lengths = [equation.invars[0].aval.shape[axis] for axis in contracted]
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(lengths)
    if name == "conv_general_dilated":
        kernel, outputs = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        each = math.prod(kernel) / kernel[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(outputs) * each
    inner = [_flops(program) for program in _programs(parameters)]
    if name == "cond":
        return max(inner)
    return sum(inner) * (parameters["length"] if name == "scan" else 1)


def _programs(parameters: dict[str, Any]) -> Iterator[Any]:
    """The programs that stand in an equation's parameters: bodies, branches, called functions."""
    for value in parameters.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            program = getattr(part, "jaxpr", part)  # with its constants, or bare
            if hasattr(program, "eqns"):
                yield program
