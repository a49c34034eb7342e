"""Data flow through a traced program: the inputs that each result, and the key of each random draw, depends on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from shoal.xla.loops import scan_sizes

Params = Mapping[str, Any]  # of an operation, whose entries are JAX's own
Sources = frozenset[int]  # indices of inputs; ~i stands for random numbers drawn from a key made of input i
NO_SOURCES: Sources = frozenset()
# Primitives that turn keys into random numbers.
RANDOM_PRIMITIVES = ("random_bits", "threefry2x32", "rng_bit_generator")


class Origin(NamedTuple):
    """The inputs that a value is computed from, and the input that it is an unchanged copy of, if any."""

    sources: Sources = NO_SOURCES
    copy_of: int | None = None


class Flow(NamedTuple):
    """The origin of each result of a program, and the sources of the key of each random draw in it."""

    results: list[Origin]
    draws: list[Sources]


def trace_flow(program: ClosedJaxpr) -> Flow:
    """Follow every input of a program to its results and to its random draws.

    A result counts as computed from an input wherever an operation joins the two, whatever its numbers: `0 *
    x` is computed from `x`. Control flow counts too: both branches of a condition are computed from it.
    """
    draws: list[Sources] = []
    inputs = [Origin(frozenset([i]), i) for i in range(len(program.jaxpr.invars))]
    return Flow(_follow(program.jaxpr, inputs, draws), draws)


def _follow(jaxpr: Jaxpr, inputs: Sequence[Origin], draws: list[Sources]) -> list[Origin]:
    """Return the origins of a program's results, given those of its inputs; append the draws to `draws`."""
    origins = dict(zip(jaxpr.invars, inputs, strict=True))

    def origin(x: Var | Literal) -> Origin:
        return Origin() if isinstance(x, Literal) else origins.get(x, Origin())  # a constant has no source

    for equation in jaxpr.eqns:
        outputs = _follow_equation(equation, [origin(x) for x in equation.invars], draws)
        origins.update(zip(equation.outvars, outputs, strict=True))
    return [origin(x) for x in jaxpr.outvars]


def _follow_equation(equation: JaxprEqn, inputs: list[Origin], draws: list[Sources]) -> list[Origin]:
    name, params, outputs = equation.primitive.name, equation.params, len(equation.outvars)
    if name in RANDOM_PRIMITIVES:
        key = _union(inputs)
        draws.append(key)
        return [Origin(key | {~i for i in key if i >= 0})] * outputs
    if name == "cond":  # the first input selects the branch
        branches = [_follow(branch.jaxpr, inputs[1:], draws) for branch in params["branches"]]
        return [_join(inputs[0], *alternatives) for alternatives in zip(*branches, strict=True)]
    if name == "while":
        return _follow_while(params, inputs, draws)
    if name == "scan":
        return _follow_scan(params, inputs, draws)
    inner = _inner_program(params, len(inputs), outputs)
    if inner is not None:
        return _follow(inner, inputs, draws)
    return [Origin(_union(inputs))] * outputs


def _inner_program(params: Params, inputs: int, outputs: int) -> Jaxpr | None:
    """Return the program that an operation such as `jit` calls with its own inputs for its own results."""
    for value in params.values():
        inner = value.jaxpr if isinstance(value, ClosedJaxpr) else value
        if isinstance(inner, Jaxpr) and (len(inner.invars), len(inner.outvars)) == (inputs, outputs):
            return inner
    return None


def _follow_while(params: Params, inputs: list[Origin], draws: list[Sources]) -> list[Origin]:
    conditions, constants = params["cond_nconsts"], params["body_nconsts"]
    condition_inputs, body_inputs = inputs[:conditions], inputs[conditions : conditions + constants]
    condition, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr

    def iterate(carry: list[Origin], draws: list[Sources]) -> list[Origin]:
        (continues,) = _follow(condition, [*condition_inputs, *carry], draws)
        results = _follow(body, [*body_inputs, *carry], draws)
        return [_join(continues, before, after) for before, after in zip(carry, results, strict=True)]

    carry = _fixed_point(iterate, inputs[conditions + constants :])
    return iterate(carry, draws)


def _follow_scan(params: Params, inputs: list[Origin], draws: list[Sources]) -> list[Origin]:
    constants, carries = scan_sizes(params)
    body = params["jaxpr"].jaxpr
    constant_inputs, elements = inputs[:constants], inputs[constants + carries :]

    def iterate(carry: list[Origin], draws: list[Sources]) -> list[Origin]:
        results = _follow(body, [*constant_inputs, *carry, *elements], draws)[:carries]
        return [_join(Origin(), *pair) for pair in zip(carry, results, strict=True)]

    carry = _fixed_point(iterate, inputs[constants : constants + carries])
    stacked = _follow(body, [*constant_inputs, *carry, *elements], draws)[carries:]
    return [*carry, *(Origin(x.sources) for x in stacked)]


def _fixed_point(iterate: Callable[..., list[Origin]], carry: list[Origin]) -> list[Origin]:
    """Return the origins of a loop's carry after as many rounds as it takes until nothing is added."""
    while (after := iterate(carry, [])) != carry:
        carry = after
    return carry


def _join(control: Origin, *alternatives: Origin) -> Origin:
    """Join the origins of several values that a condition selects from."""
    copies = {alternative.copy_of for alternative in alternatives}
    return Origin(control.sources | _union(alternatives), copies.pop() if len(copies) == 1 else None)


def _union(origins: Sequence[Origin]) -> Sources:
    return NO_SOURCES.union(*(origin.sources for origin in origins))
