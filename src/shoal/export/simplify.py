"""Simplification of traced programs, so that other runtimes can run them."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jax.interpreters.partial_eval import dce_jaxpr

from shoal.xla.loops import scan_sizes

MAX_UNROLLED = 64  # steps of a scan
CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")  # parameters of calls that hold the called program
LOOPS = ("scan", "while", "cond")  # whose programs are run otherwise than once


def simplify(function: Callable, *inputs: Any) -> ClosedJaxpr:
    """Trace a function, and compute already what depends on constants alone.

    Calls are inlined, scans of up to `MAX_UNROLLED` steps unrolled, barriers of the compiler left out, and selections
    by a constant replaced by what they select. Equations that no output needs are dropped; all inputs stay.

    Args:
      inputs: arrays, or their shapes and dtypes.
    """
    traced = jax.make_jaxpr(function)(*inputs)
    closed = jax.make_jaxpr(functools.partial(evaluate, traced.jaxpr, traced.consts))(
        *jax.tree.leaves(inputs)
    )
    jaxpr, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals), instantiate=True)
    return ClosedJaxpr(jaxpr, closed.consts)


def evaluate(jaxpr: Jaxpr, constants: Sequence[Any], *inputs: Any) -> list[Any]:
    """Evaluate a program on traced and concrete arrays; what depends on the concrete ones alone is computed."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def value_of(x: Any) -> Any:
        return x.val if isinstance(x, Literal) else values[x]

    for equation in jaxpr.eqns:
        source = equation.source_info  # without a line of the user's inside of JAX's functions
        with source_info_util.user_context(source.traceback if source_info_util.summarize(source) else None):
            outputs = _evaluate_equation(equation, [value_of(x) for x in equation.invars])
        values.update(zip(equation.outvars, outputs, strict=True))
    return [value_of(x) for x in jaxpr.outvars]


def _evaluate_equation(equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
    """Return the outputs of an equation."""
    name, params = equation.primitive.name, equation.params
    if name == "optimization_barrier":
        return inputs
    if name == "scan" and 0 < params["length"] <= MAX_UNROLLED:
        return _unroll(params, inputs)
    if name in ("cond", "select_n") and _is_constant(inputs[0]) and np.unique(inputs[0]).size == 1:
        choice = int(np.ravel(inputs[0])[0])
        if name == "select_n":
            return [inputs[1 + choice]]
        return _call(params["branches"][np.clip(choice, 0, len(params["branches"]) - 1)], inputs[1:])
    for parameter in CALLS:
        if parameter in params and name not in LOOPS:
            return _call(params[parameter], inputs)
    bind = functools.partial(equation.primitive.bind, **params)
    if name in ("select_n", "gather") and getattr(equation.outvars[0].aval, "dtype", None) == np.bool_:
        bind = functools.partial(_in_integers, equation)
    outputs = _computed(bind, inputs)
    return outputs if equation.primitive.multiple_results else [outputs]


def _in_integers(equation: JaxprEqn, *inputs: Any) -> Any:
    """Select or gather booleans as integers: onnxruntime has no Where of booleans."""
    first = 1 if equation.primitive.name == "select_n" else 0  # after the predicate
    numbers = [jnp.asarray(x, jnp.int32) for x in inputs[first:]]
    return equation.primitive.bind(*inputs[:first], *numbers, **equation.params) != 0


def _computed(function: Callable, inputs: Sequence[Any]) -> Any:
    """Call a function, at once where all its inputs are constants."""
    with jax.ensure_compile_time_eval() if all(map(_is_constant, inputs)) else contextlib.nullcontext():
        return function(*inputs)


def _is_constant(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer)


def _call(called: Any, inputs: Sequence[Any]) -> list[Any]:
    """Evaluate the program of a call, which has constants of its own or none."""
    is_closed = isinstance(called, ClosedJaxpr)
    return evaluate(called.jaxpr if is_closed else called, called.consts if is_closed else (), *inputs)


def _unroll(params: Any, inputs: list[Any]) -> list[Any]:
    """Evaluate a scan step by step."""
    (num_constants, num_carry), length = scan_sizes(params), params["length"]
    constants, carry = inputs[:num_constants], inputs[num_constants : num_constants + num_carry]
    rows, order = inputs[num_constants + num_carry :], range(length)
    outputs: dict[int, list[Any]] = {}
    for t in reversed(order) if params["reverse"] else order:
        row = functools.partial(jax.lax.index_in_dim, index=t, keepdims=False)
        after = _call(params["jaxpr"], [*constants, *carry, *(_computed(row, [x]) for x in rows)])
        carry, outputs[t] = after[:num_carry], after[num_carry:]
    columns = zip(*(outputs[t] for t in order), strict=True)
    return [*carry, *(_computed(lambda *column: jnp.stack(column), column) for column in columns)]
