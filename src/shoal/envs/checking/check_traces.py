"""Checks that trace the environment without running it: structure, shapes, dtypes, and repeatability."""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from shoal.config.struct import as_arrays, named_leaves
from shoal.envs.checking.check_findings import ERRORS, Finding, FindingsError, describe, leaked, operation
from shoal.types import GLOBAL_STATE, TimeStep, contract
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

CONCRETIZATION = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
REPEATS = 4  # traces of each kind: a random choice of Python's per trace stays undetected 1 time in 64
SLOW_TRACE = 2.0  # seconds; a program that takes longer is traced twice, which still shows a random number


class Traces(NamedTuple):
    """The results of reset and step, as shapes and dtypes."""

    start: tuple[Any, TimeStep]
    stepped: tuple[Any, TimeStep]


def sample_action(env: Any, key: jax.Array, mask: Any) -> Any:
    """Draw a random action of the environment: one, or one for each agent."""
    if env.num_agents == 1:
        return env.action_space.sample(key, mask)
    keys = jax.random.split(key, env.num_agents)
    if mask is None:
        return jax.vmap(env.action_space.sample)(keys)
    return jax.vmap(env.action_space.sample)(keys, mask)


def first_steps(env: Any, key: jax.Array) -> tuple[Any, ...]:
    """Make a reset and two steps: the smallest program that calls everything."""
    state, start = env.reset(jax.random.fold_in(key, 0))
    results = [(state, start)]
    for i in (1, 2):
        action = sample_action(env, jax.random.fold_in(key, 2 * i), results[-1][1].action_mask)
        results.append(env.step(results[-1][0], action, jax.random.fold_in(key, 2 * i + 1)))
    return tuple(results)


def trace(env: Any, key: jax.Array, activity: Callable[[str], None]) -> Traces:
    """Trace a reset and a step, each of which is reported to `activity` before.

    Raises:
      FindingsError: with the findings, where either cannot be traced or does not return arrays.
    """
    activity("tracing reset")
    start = _trace_method(env, "reset", key)
    mask = start[1].action_mask
    wrong = list(_check_mask(env, "reset", mask))
    if wrong:
        raise FindingsError(wrong)
    try:
        action = jax.eval_shape(lambda key, mask: sample_action(env, key, mask), key, mask)
    except Exception as error:
        finding = Finding("space", f"no action could be sampled from {env.action_space}: {describe(error)}")
        raise FindingsError([finding]) from error
    activity("tracing step")
    try:
        stepped = _trace_method(env, "step", start[0], action, key)
    except FindingsError as wrong_step:
        # After a wrong reset, such as one for fewer agents than there are actions, a step may well fail too.
        wrong = [
            *_check_fields(env, "reset", start[1]),
            *_check_observation(env, "reset", start[1].observation),
        ]
        raise FindingsError(wrong or wrong_step.findings) from wrong_step
    return Traces(start, stepped)


def _trace_method(env: Any, method: str, *args: Any) -> tuple[Any, TimeStep]:
    def call(*args: Any) -> Any:
        return unpack_result(method, getattr(env, method)(*args))

    try:
        return jax.eval_shape(call, *args)
    except FindingsError:
        raise
    except ERRORS as error:
        raise FindingsError([_trace_finding(env, method, args, error)]) from error


def _trace_finding(env: Any, method: str, args: tuple, error: BaseException) -> Finding:
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return leaked(method, f"another place than the state, which is used at {operation(error)}")
    if isinstance(error, TypeError) and "in-place item assignment" in str(error):
        return Finding(
            "in-place",
            f"{method} changes an array in place: {operation(error)}; `x = x.at[index].set(value)` would be right",
        )
    if isinstance(error, CONCRETIZATION) or _runs_eagerly(env, method, args):
        return Finding(
            "not-traceable",
            f"{method} cannot be traced: {operation(error)} needs a value that is known only when the "
            f"program runs ({type(error).__name__}); jnp.where, jax.lax.cond and jax.numpy would do",
        )
    return Finding("raises", f"{method} raises {describe(error)}; it would return (state, TimeStep)")


def _runs_eagerly(env: Any, method: str, args: tuple) -> bool:
    """Report whether the method works on concrete values, so that only tracing it failed."""
    key = jax.random.key(0)
    try:
        state, timestep = env.reset(key)
        if method == "step":
            env.step(state, sample_action(env, key, timestep.action_mask), key)
    except ERRORS:
        return False
    return True


def unpack_result(method: str, result: Any) -> tuple[Any, TimeStep]:
    """Return the result of reset or step, if it is (state, TimeStep) of arrays."""

    def require(is_right: bool, returned: str, right: str) -> None:
        if not is_right:
            raise FindingsError(
                [Finding("return-value", f"{method} returns {returned}; it must return {right}")]
            )

    pair = "(state, TimeStep), by shoal.restart and shoal.transition"
    is_pair = isinstance(result, tuple) and len(result) == 2 and not isinstance(result, TimeStep)
    require(is_pair, contract.described(result), pair)
    state, timestep = result
    require(isinstance(timestep, TimeStep), f"{contract.described(timestep)} as its second value", pair)
    for field in ("observation", "reward", "discount", "first", "last"):
        require(getattr(timestep, field) is not None, f"None as `{field}`", "an array")
    info = timestep.info
    require(isinstance(info, Mapping), f"{contract.described(info)} as `info`", "a dictionary of arrays")
    for part, tree in (("state", state), ("time-step", timestep)):
        for path, leaf in named_leaves(tree).items():
            name = f"`{path}` of the {part}" if path else f"the {part}"
            require(_is_array(leaf), f"a {type(leaf).__name__} as {name}", "an array")
    return state, timestep


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufc"
    return isinstance(leaf, jax.Array | bool | int | float)


def check_types(env: Any, traces: Traces) -> Iterator[Finding]:
    """Check everything that shapes and dtypes show: of the state, the time-step, its masks and its agents."""
    (state, start), (next_state, stepped) = traces
    yield from _compare_trees("state-changes", "state", state, next_state)
    yield from _compare_trees("info-changes", "info", start.info, stepped.info)
    wrong: list[Finding] = []
    for method, timestep in (("reset", start), ("step", stepped)):
        wrong += _check_fields(env, method, timestep)
        wrong += _check_observation(env, method, timestep.observation)
        wrong += _check_mask(env, method, timestep.action_mask)
    yield from wrong
    if not wrong:  # each is right, but they may differ: in weak types, or by a mask that only one has
        without = [timestep._replace(info={}) for timestep in (start, stepped)]
        yield from _compare_trees("timestep-type", "time-step", *without)


def _compare_trees(rule: str, what: str, before: Any, after: Any) -> Iterator[Finding]:
    """Yield the differences between two trees of abstract arrays."""
    for path, *types in contract.differences(before, after, _type):
        old, new = (x or "missing" for x in types)
        leaf = f"`{path}` of the {what}" if path else f"the {what}"
        yield Finding(rule, f"{leaf} is {old} after reset and {new} after step; make them equal")


def _type(leaf: Any) -> str:
    weak = "weakly typed " if getattr(leaf, "weak_type", False) else ""
    return f"{weak}{leaf.dtype}{list(leaf.shape) if leaf.shape else ''}"


def _check_fields(env: Any, method: str, timestep: TimeStep) -> Iterator[Finding]:
    """Check reward, discount, first, last and alive: one number each, or one for each agent."""
    per_agent = (env.num_agents,) if env.num_agents > 1 else ()
    number, flag = np.dtype(np.float32), np.dtype(np.bool_)
    expected = {
        "reward": (per_agent, number),
        "discount": (per_agent, number),
        "first": ((), flag),
        "last": ((), flag),
        "alive": (per_agent, flag),
    }
    for field, (shape, dtype) in expected.items():
        value = getattr(timestep, field)
        if value is not None:  # only alive may be None: the others are checked before
            rules = "timestep-type", "agents" if shape else "timestep-type"
            yield from _check_array(rules, f"`{field}` of {method}", value, shape, dtype, agents=bool(shape))


def _check_array(
    rules: tuple[str, str], name: str, x: Any, shape: tuple[int, ...], dtype: Any, *, agents: bool = False
) -> Iterator[Finding]:
    """Check that a value is one array of a shape and dtype; the second rule is that of a wrong shape."""
    if not hasattr(x, "shape"):
        yield Finding(rules[0], f"{name} is a {type(x).__name__}; one array would be right")
    elif x.shape != shape:
        each = ", one for each agent," * agents
        right = f"{list(shape)}{each}" if shape else "a scalar"
        yield Finding(rules[1], f"{name} has shape {list(x.shape)}; {right} would be right")
    elif x.dtype != dtype or (
        x.weak_type and rules[0] == "timestep-type"
    ):  # of others a batch removes weak types
        weak = "weakly typed " if x.weak_type else ""
        yield Finding(rules[0], f"{name} has dtype {weak}{x.dtype}; {dtype} would be right")


def _check_observation(env: Any, method: str, observation: Any) -> Iterator[Finding]:
    rule, several = "observation-type", env.num_agents > 1
    for path, space, leaf in observation_leaves(env.observation_space, observation):
        name = f"{path} of {method}"
        if space is None:
            yield Finding(rule, f"{name} is not in the observation space {env.observation_space}")
        elif leaf is None:
            yield Finding(rule, f"{name} is missing; its space is {space}")
        else:
            shape = (env.num_agents, *space.shape) if several else space.shape
            of_world = path.startswith(f"observation[{GLOBAL_STATE!r}]")  # it may have no agent axis
            if of_world and getattr(leaf, "shape", None) == space.shape:
                shape = space.shape
            other_agents = several and getattr(leaf, "shape", shape)[1:] == space.shape
            rules = rule, "agents" if other_agents else rule
            yield from _check_array(rules, name, leaf, shape, space.dtype, agents=several)


def observation_leaves(space: Any, tree: Any, path: str = "observation") -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, space, value) for each space that is not a Dict; None for what only the other side has."""
    if not isinstance(space, Dict):
        yield path, space, tree
        return
    if not isinstance(tree, Mapping):
        yield path, space, None
        return
    for name in sorted(set(space) | set(tree)):
        inner = f"{path}[{name!r}]"
        if name not in space:
            yield inner, None, tree[name]
        elif name not in tree:
            yield inner, space[name], None
        else:
            yield from observation_leaves(space[name], tree[name], inner)


def mask_parts(
    space: Any, mask: Any, roles: tuple[int, ...] = (), path: str = "action_mask"
) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Yield (path, mask, sizes) for each space that can be masked; no sizes where it cannot be.

    The mask of a Box says which of its entries the role of an agent has, where there are several.
    """
    if isinstance(space, Dict) and isinstance(mask, Mapping):
        for name, part in mask.items():
            inner = f"{path}[{name!r}]"
            yield from mask_parts(space[name], part, roles, inner) if name in space else [(inner, part, ())]
    elif isinstance(space, Discrete):
        yield path, mask, (space.n,)
    elif isinstance(space, MultiDiscrete):
        yield path, mask, space.nvec
    elif isinstance(space, Box) and len(set(roles)) > 1:
        yield path, mask, (math.prod(space.shape),)
    elif isinstance(space, Box | Dict):
        yield path, mask, ()


def _check_mask(env: Any, method: str, mask: Any) -> Iterator[Finding]:
    if mask is None:
        return
    agents, rule = (env.num_agents,) if env.num_agents > 1 else (), "action-mask"
    for path, part, sizes in mask_parts(env.action_space, mask, getattr(env, "roles", ())):
        name = f"{path} of {method}"
        if sizes:
            yield from _check_array((rule, rule), name, part, (*agents, sum(sizes)), np.dtype(np.bool_))
        else:
            yield Finding(rule, f"{name} belongs to no discrete action of {env.action_space}")


def check_repeatable(env: Any, key: jax.Array) -> Iterator[Finding]:
    """Check that several traces of the same calls are the same program, or at least give the same numbers."""
    for group in (_programs(env, key, inline) for inline in (False, True)):
        texts = [_text(program) for program, _ in group]
        for text, (program, shapes) in zip(texts[1:], group[1:], strict=True):
            if text == texts[0] and _equal_constants(program, group[0][0]):
                continue
            difference = _difference(shapes, group[0][0], program, key)
            if difference:
                yield Finding(
                    "hidden-state",
                    f"two equal calls differ: {difference}; results may depend on the state, the action and the "
                    "key alone, not on Python or NumPy randomness, globals, or attributes that change",
                )
                return


def _programs(env: Any, key: jax.Array, inline: bool) -> list[Any]:
    """Trace the same program several times; none where it cannot be traced so."""
    begun, first = time.monotonic(), _program(env, key, inline)
    repeats = 2 if time.monotonic() - begun > SLOW_TRACE else REPEATS
    others = [_program(env, key, inline) for _ in range(repeats - 1)] if first else []
    return [program for program in (first, *others) if program]


def _program(env: Any, key: jax.Array, inline: bool) -> Any:
    """Trace the first steps again; `inline` runs the Python of inner jitted functions again too."""
    make = jax.make_jaxpr(lambda key: first_steps(env, key), return_shape=True)
    if not inline:
        return make(key)
    try:
        with jax.disable_jit():
            return make(key)
    except Exception:
        return None  # loops and branches on traced values need their jit


def _text(program: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "0x", str(program))


def _equal_constants(one: Any, other: Any) -> bool:
    pairs = zip(one.consts, other.consts, strict=False)
    return len(one.consts) == len(other.consts) and all(bitwise_equal(a, b) for a, b in pairs)


def bitwise_equal(a: Any, b: Any) -> bool:
    """Report whether two arrays are equal bit for bit, NaN equal to NaN, keys by their data."""
    if hasattr(a, "dtype") and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=is_inexact(a))


def is_inexact(value: Any) -> bool:
    """Report whether an array is of floating point (of any width) or complex, and so may hold NaN."""
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _difference(shapes: Any, one: Any, other: Any, key: jax.Array) -> str:
    """Describe the first output in which two traces differ; "" if none does."""
    if one.out_avals != other.out_avals:
        return f"the results have the types {one.out_avals} and then {other.out_avals}"
    names = list(named_leaves(shapes))
    for i in range(REPEATS):
        data = jax.random.key_data(jax.random.fold_in(key, i))
        args = [jax.random.wrap_key_data(data)]
        results = [jax.jit(jax.extend.core.jaxpr_as_fun(program))(*args) for program in (one, other)]
        for name, a, b in zip(names, *results, strict=True):
            if not bitwise_equal(a, b):
                return f"{_describe_place(name)} is {format_short(a)} once and {format_short(b)} another time"
    return ""


def _describe_place(name: str) -> str:
    """Convert `0/1/reward` to words: the call, and the part of its result."""
    call, part, *rest = name.split("/")
    calls = ("reset", "the first step", "the second step")
    leaf = f"`{'/'.join(rest)}`" if rest else "the value"
    return f"{leaf} of the {('state', 'time-step')[int(part)]} after {calls[int(call)]}"


def format_short(value: Any) -> str:
    """Format an array in a few characters."""
    if hasattr(value, "dtype") and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    value = np.asarray(value)
    if value.size == 1:
        return f"{value.item():.6g}" if is_inexact(value) else str(value.item())
    text = np.array2string(value.reshape(-1)[:4], precision=4, separator=", ")
    return text if value.size <= 4 else f"{text[:-1]}, ...]"


def check_as_argument(env: Any, key: jax.Array) -> Iterator[Finding]:
    """Check that the environment works as an argument of a compiled program, where its numbers are traced."""
    constant = jax.eval_shape(lambda key: first_steps(env, key), key)
    try:
        traced = jax.eval_shape(first_steps, as_arrays(env), key)
    except Exception as error:
        names = ", ".join(named_leaves(env))
        yield Finding(
            "parameter",
            f"a numeric field ({names}) cannot be traced: {operation(error)} fails with "
            f"{type(error).__name__} when it is data; jnp.where and jax.numpy functions would do",
        )
        return
    for path, *types in contract.differences(constant, traced):
        if all(types) and path != "structure":
            yield Finding(
                "parameter",
                f"{_describe_place(path)} is {types[0]} where the parameters are constants and {types[1]} "
                "where they are float32 arrays; give it a dtype of its own",
            )


def check_vmappable(env: Any, traces: Traces, key: jax.Array) -> Iterator[Finding]:
    """Check that reset and step can be mapped over a batch."""
    keys = jax.random.split(key, 2)

    def reset_and_step(key: jax.Array) -> Any:
        state, timestep = env.reset(key)
        return env.step(state, sample_action(env, key, timestep.action_mask), key)

    for method, function in (("reset", env.reset), ("step", reset_and_step)):
        try:
            jax.eval_shape(jax.vmap(function), keys)
        except Exception as error:
            wrong = f"{method} cannot be mapped by jax.vmap: {describe(error)}, at {operation(error)}"
            yield Finding("not-vmappable", f"{wrong}; jax.numpy functions of one environment would do")
            return
