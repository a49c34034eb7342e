"""Costs of a network or a compiled function: parameters, arithmetic, memory."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax.interpreters.partial_eval import dce_jaxpr

PyTree = Any

SUMMED_PRODUCT = "summed_product"
"""The `jax.named_scope` in which a product is written as multiplications and sums; its gradients are in it too."""


def num_parameters(tree: PyTree) -> int:
    """Count the numbers in a pytree of arrays: for a network, its parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def num_bytes(tree: PyTree) -> int:
    """Return the memory of the arrays of a pytree, in bytes (of a JAX key, that of its words)."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


class Cost(NamedTuple):
    """Costs of one call of a compiled function. Memory is in bytes; a FLOP is a single operation."""

    flops: float
    """XLA's count of arithmetic after optimisation. It counts the body of a loop once, for any number of iterations."""

    bytes_accessed: float
    """XLA's count of bytes that its fused operations read and write; the body of a loop counts once."""

    product_flops: float
    """Arithmetic of matrix products and convolutions alone, as written, with every iteration of each scan."""

    argument_bytes: int
    """Memory of the arguments."""

    output_bytes: int
    """Memory of the results."""

    temporary_bytes: int
    """Memory of the intermediate results, at its peak."""


def step_cost(function: Callable[..., Any], *args: object, **kwargs: object) -> Cost:
    """Compile a function for these arguments (or their `jax.ShapeDtypeStruct`s) and return the costs of a
    call, without calling it.

    XLA counts the body of a loop once, so for a step that contains a scan (a rollout, epochs of minibatches) its
    numbers are those of one iteration. `product_flops` counts all iterations; these products dominate in training.
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


def product_flops(function: Callable[..., object], *args: object, **kwargs: object) -> float:
    """Count the floating-point operations in the matrix products and convolutions of one call, tracing it only.

    A product of [m, k] and [k, n] counts 2 m k n, where it is written as sums too (`SUMMED_PRODUCT`). The body of a
    scan counts once per iteration, that of a `while_loop` (whose number of iterations is unknown) once, and a `cond`
    counts its most expensive branch. Operations on which no result depends are left out, as in the compiled program.
    """
    return program_flops(jax.make_jaxpr(function)(*args, **kwargs).jaxpr)


def program_flops(program: Any, repeats: float = 1.0, *, in_loop: bool = False) -> float:
    """Count as `product_flops` does in a program that is traced.

    Args:
      repeats: counts the body of a `while_loop` within another one so often, as of gradient steps within updates, whose
        number is data and known to the caller.
      in_loop: whether the program is the body of a `while_loop`.
    """
    program = getattr(program, "jaxpr", program)  # without its constants
    needed, _ = dce_jaxpr(program, [True] * len(program.outvars))
    return sum(_flops_of(equation, repeats, in_loop) for equation in needed.eqns)


def num_operations(program: Any) -> int:
    """Count the operations of a program that is traced, with every iteration of each scan, and of other loops one."""

    def count(equation: Any) -> int:
        inner = sum(map(num_operations, _programs(equation.params)))
        return inner * (equation.params["length"] if equation.primitive.name == "scan" else 1) or 1

    return sum(map(count, program.eqns))


def _flops_of(equation: Any, repeats: float, in_loop: bool) -> float:
    name, parameters = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        lengths = [equation.invars[0].aval.shape[axis] for axis in contracted]
        return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(lengths)
    if name == "conv_general_dilated":
        kernel, outputs = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
        each = math.prod(kernel) / kernel[parameters["dimension_numbers"].rhs_spec[0]]
        return 2.0 * math.prod(outputs) * each
    if name == "mul" and SUMMED_PRODUCT in str(equation.source_info.name_stack):
        return 2.0 * math.prod(equation.outvars[0].aval.shape)  # each is added to others
    is_loop = name == "while"
    inner = [program_flops(x, repeats, in_loop=in_loop or is_loop) for x in _programs(parameters)]
    if name == "cond":
        return max(inner)
    times = repeats if is_loop and in_loop else parameters["length"] if name == "scan" else 1
    return sum(inner) * times


def _programs(parameters: dict[str, object]) -> Iterator[Any]:
    """Yield the programs among an equation's parameters: bodies, branches, called functions."""
    for value in parameters.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            program = getattr(part, "jaxpr", part)  # closed (with constants) or open
            if hasattr(program, "eqns"):
                yield program
