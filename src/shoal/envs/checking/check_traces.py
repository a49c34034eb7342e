"""Checks that trace the environment without running it: structure, shapes, dtypes, and repeatability."""

import functools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, cast

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from shoal.config.struct import as_arrays, named_leaves
from shoal.envs.checking.check_findings import ERRORS, Finding, FindingsError, describe, leaked, operation
from shoal.envs.checking.check_time import Announce
from shoal.types import GLOBAL_STATE, Array, Environment, PyTree, State, TimeStep, contract, restart
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space

CONCRETIZATION = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
REPEATS = 7  # traces: a random choice of Python's per trace stays undetected 1 time in 64
COMPARED_KEYS = 4  # with which traces that are not the same program are run
SLOW_TRACE = 2.0  # seconds; a program that takes longer is traced twice, which still shows a random number
Result = tuple[State, TimeStep]  # of reset or step
LeafSpace = Discrete | MultiDiscrete | Box  # of one array


class Traces(NamedTuple):
    """The results of reset and step, and the action between them, as shapes and dtypes."""

    start: Result
    action: PyTree
    stepped: Result


def sample_action(env: Environment, key: Array, mask: PyTree) -> PyTree:
    """Draw a random action of the environment: one, or one for each agent."""
    if env.num_agents == 1:
        return env.action_space.sample(key, mask)
    # None is a tree without leaves, so that it is None for each agent.
    return jax.vmap(env.action_space.sample)(jax.random.split(key, env.num_agents), mask)


def first_step(env: Environment, key: Array) -> Traces:
    """Make a reset, an action and a step: the smallest program that calls everything.

    Raises:
      FindingsError: reset or step returns anything else than (state, TimeStep).
    """
    reset_key, action_key, step_key = jax.random.split(key, 3)
    start = unpack_result(contract.named(env.reset), env.reset(reset_key))
    action = sample_action(env, action_key, start[1].action_mask)
    stepped = unpack_result(contract.named(env.step), env.step(start[0], action, step_key))
    return Traces(start, action, stepped)


def trace(env: Environment, key: Array, announce: Announce) -> Traces:
    """Trace a reset and a step, each of which is announced before.

    Raises:
      FindingsError: with the findings, where either cannot be traced or does not return arrays, or where what reset
        returns is wrong: a step may well fail after that, such as for fewer agents than there are actions.
    """
    announce("tracing reset")
    start = _trace_method(env, "reset", key)
    if wrong := list(_check_timestep(env, "reset", start[1])):
        raise FindingsError(wrong)
    action = jax.eval_shape(functools.partial(sample_action, env), key, start[1].action_mask)
    announce("tracing step")
    return Traces(start, action, _trace_method(env, "step", start[0], action, key))


def _trace_method(env: Environment, method: str, *args: object) -> Result:
    def call(*args: object) -> Result:
        return unpack_result(method, getattr(env, method)(*args))

    try:
        return jax.eval_shape(call, *args)
    except FindingsError:  # of what was returned
        raise
    except ERRORS as error:
        raise FindingsError([_trace_finding(env, method, error)]) from error


def _trace_finding(env: Environment, method: str, error: BaseException) -> Finding:
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return leaked(method, f"another place than the state, which is used at {operation(error)}")
    if isinstance(error, TypeError) and "in-place item assignment" in str(error):
        return Finding(
            "in-place",
            f"{method} changes an array in place: {operation(error)}; `x = x.at[index].set(value)` would be right",
        )
    # Some Python fails on traced values with errors of its own, such as `values[i]` of a list.
    if isinstance(error, CONCRETIZATION) or _runs_eagerly(env):
        return Finding(
            "not-traceable",
            f"{method} cannot be traced: {operation(error)} needs a value that is known only when the "
            f"program runs ({type(error).__name__}); jnp.where, jax.lax.cond and jax.numpy would do",
        )
    return Finding("raises", f"{method} raises {describe(error)}; it would return (state, TimeStep)")


def _runs_eagerly(env: Environment) -> bool:
    """Report whether the environment works on concrete values, so that only tracing it failed."""
    try:
        first_step(env, jax.random.key(0))
    except ERRORS:
        return False
    return True


def unpack_result(method: str, result: object) -> Result:
    """Return the result of reset or step, if it is (state, TimeStep) of arrays.

    Raises:
      FindingsError: it is anything else.
    """

    def require(is_right: bool, returned: str, right: str) -> None:
        if not is_right:
            raise FindingsError(
                [Finding("return-value", f"{method} returns {returned}; it must return {right}")]
            )

    pair = "(state, TimeStep), by shoal.restart and shoal.transition"
    is_pair = isinstance(result, tuple) and len(result) == 2 and not isinstance(result, TimeStep)
    require(is_pair, contract.described(result), pair)
    state, timestep = cast(Result, result)
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


def _is_array(leaf: object) -> bool:
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in "biufc"  # none of text, dates or objects
    return isinstance(leaf, jax.Array | bool | int | float)


def check_types(env: Environment, traces: Traces) -> Iterator[Finding]:
    """Check everything that shapes and dtypes show: of the state, the time-step, its masks and its agents."""
    (state, start), _, (next_state, stepped) = traces
    yield from _compare_trees("state-changes", "state", state, next_state)
    yield from _compare_trees("info-changes", "info", start.info, stepped.info)
    wrong = [*_check_timestep(env, "reset", start), *_check_timestep(env, "step", stepped)]
    yield from wrong
    if not wrong:  # each is right, but they may differ: in weak types, or by a mask that only one has
        without = [timestep._replace(info={}) for timestep in (start, stepped)]
        yield from _compare_trees("timestep-type", "time-step", *without)


def _check_timestep(env: Environment, method: str, timestep: TimeStep) -> Iterator[Finding]:
    yield from _check_fields(env, method, timestep)
    yield from _check_observation(env, method, timestep.observation)
    yield from _check_mask(env, method, timestep.action_mask)


def _compare_trees(rule: str, what: str, before: PyTree, after: PyTree) -> Iterator[Finding]:
    """Yield the differences between two trees of abstract arrays."""
    for path, *types in contract.differences(before, after, _type):
        old, new = (x or "missing" for x in types)
        leaf = f"`{path}` of the {what}" if path else f"the {what}"
        yield Finding(rule, f"{leaf} is {old} after reset and {new} after step; make them equal")


def _type(leaf: jax.ShapeDtypeStruct) -> str:
    weak = "weakly typed " if leaf.weak_type else ""
    return f"{weak}{leaf.dtype}{list(leaf.shape) if leaf.shape else ''}"


def _check_fields(env: Environment, method: str, timestep: TimeStep) -> Iterator[Finding]:
    """Check reward, discount, first, last and alive: one number each, or one for each agent."""
    right = restart((), num_agents=env.num_agents)
    right = right._replace(alive=right.reward == 0)
    for name in ("reward", "discount", "first", "last", "alive"):
        value, expected = getattr(timestep, name), getattr(right, name)
        if value is not None:  # only alive may be None: the others are checked before
            shape, text = expected.shape, f"`{name}` of {method}"
            yield from _check_array("timestep-type", text, value, shape, expected.dtype, agents=bool(shape))


def _check_array(
    rule: str, name: str, x: PyTree, shape: tuple[int, ...], dtype: np.dtype, *, agents: bool = False
) -> Iterator[Finding]:
    """Check that a value is one array of a shape and dtype; with `agents` the first axis is theirs."""
    if not hasattr(x, "shape"):
        yield Finding(rule, f"{name} is a {type(x).__name__}; one array would be right")
    elif x.shape != shape:
        only_agents_differ = agents and x.shape[1:] == shape[1:]
        expected = f"{list(shape)}{', one for each agent,' * agents}" if shape else "a scalar"
        text = f"{name} has shape {list(x.shape)}; {expected} would be right"
        yield Finding("agents" if only_agents_differ else rule, text)
    # Rewards and flags are carried from step to step as they are; a batch removes the weak types of the others.
    elif x.dtype != dtype or (x.weak_type and rule == "timestep-type"):
        weak = "weakly typed " if x.weak_type else ""
        yield Finding(rule, f"{name} has dtype {weak}{x.dtype}; {dtype} would be right")


def _check_observation(env: Environment, method: str, observation: PyTree) -> Iterator[Finding]:
    rule, several = "observation-type", env.num_agents > 1
    for path, space, leaf in observation_leaves(env.observation_space, observation):
        name = f"{path} of {method}"
        if space is None:
            yield Finding(rule, f"{name} is not in the observation space {env.observation_space}")
        elif leaf is None:
            yield Finding(rule, f"{name} is missing; its space is {space}")
        else:
            of_world = path.startswith(f"observation[{GLOBAL_STATE!r}]")  # it may have no agent axis
            has_no_agents = not several or (of_world and getattr(leaf, "shape", None) == space.shape)
            shape = space.shape if has_no_agents else (env.num_agents, *space.shape)
            yield from _check_array(rule, name, leaf, shape, space.dtype, agents=several)


def observation_leaves(
    space: Space, tree: PyTree, path: str = "observation"
) -> Iterator[tuple[str, LeafSpace | None, PyTree]]:
    """Yield (path, space, value) for each space that is not a Dict; None for what only the other side has."""
    if not isinstance(space, Dict):
        yield path, space, tree
        return
    entries = tree if isinstance(tree, Mapping) else {}
    for name in sorted(set(space) | set(entries)):
        inner = f"{path}[{name!r}]"
        if name not in space or name not in entries:
            yield inner, space.get(name), entries.get(name)
        else:
            yield from observation_leaves(space[name], entries[name], inner)


def mask_parts(
    env: Environment, mask: PyTree, space: Space | None = None, path: str = "action_mask"
) -> Iterator[tuple[str, PyTree, tuple[int, ...]]]:
    """Yield (path, mask, sizes) for each space that can be masked; no sizes where it cannot be.

    The mask of a Box says which of its entries the role of an agent has, where there are several.

    Args:
      space: the part of the action space that the mask is of; None for all of it.
    """
    space = env.action_space if space is None else space
    sizes: tuple[int, ...] = ()
    if isinstance(space, Dict) and isinstance(mask, Mapping):
        for name, part in mask.items():
            inner = f"{path}[{name!r}]"
            yield from mask_parts(env, part, space[name], inner) if name in space else [(inner, part, ())]
        return
    if isinstance(space, Discrete):
        sizes = (space.n,)
    elif isinstance(space, MultiDiscrete):
        sizes = space.nvec
    elif isinstance(space, Box) and len(set(getattr(env, "roles", ()))) > 1:
        sizes = (math.prod(space.shape),)
    yield path, mask, sizes


def _check_mask(env: Environment, method: str, mask: PyTree) -> Iterator[Finding]:
    agents = (env.num_agents,) if env.num_agents > 1 else ()
    for path, part, sizes in mask_parts(env, mask) if mask is not None else ():
        name = f"{path} of {method}"
        if sizes:
            yield from _check_array("action-mask", name, part, (*agents, sum(sizes)), np.dtype(bool))
        else:
            yield Finding("action-mask", f"{name} belongs to no discrete action of {env.action_space}")


def check_repeatable(env: Environment, key: Array) -> Iterator[Finding]:
    """Check that several traces of the same calls are the same program, or at least give the same numbers."""
    first, *others = _programs(env, key, inline=True) or _programs(env, key, inline=False)
    for program in others:
        if difference := _difference(first, program, key):
            yield Finding(
                "hidden-state",
                f"two equal calls differ: {difference}; results may depend on the state, the action and the "
                "key alone, not on Python or NumPy randomness, globals, or attributes that change",
            )
            return


class _Program(NamedTuple):
    """A trace of a reset and a step, and the names of its results."""

    jaxpr: jax.extend.core.ClosedJaxpr
    names: list[str]

    def text(self) -> tuple[str, list[bytes]]:
        """Return the operations, without the addresses of objects, and the constants."""
        constants = [_as_numpy(x).tobytes() for x in self.jaxpr.consts]
        return re.sub(r"0x[0-9a-f]+", "0x", str(self.jaxpr)), constants


def _programs(env: Environment, key: Array, *, inline: bool) -> list[_Program]:
    """Trace the same program several times.

    Args:
      inline: runs the Python of inner jitted functions each time too; there are no programs if that is not possible.
    """

    def trace_again() -> _Program:
        with jax.disable_jit(inline):
            # A function made anew, since JAX would give the trace of one that it knows.
            jaxpr, shapes = jax.make_jaxpr(lambda key: first_step(env, key), return_shape=True)(key)
        return _Program(jaxpr, list(named_leaves(shapes)))

    begun = time.monotonic()
    try:
        first = trace_again()
    except Exception:
        if inline:  # loops and branches on traced values need their jit
            return []
        raise
    repeats = 2 if time.monotonic() - begun > SLOW_TRACE else REPEATS
    return [first, *(trace_again() for _ in range(repeats - 1))]


def _difference(one: _Program, other: _Program, key: Array) -> str:
    """Describe the first result in which two traces differ; "" if none does."""
    if one.text() == other.text():
        return ""
    runs = [jax.jit(jax.extend.core.jaxpr_as_fun(program.jaxpr)) for program in (one, other)]
    for own_key in jax.random.split(key, COMPARED_KEYS):
        results, others = (dict(zip(one.names, run(own_key), strict=False)) for run in runs)
        for name, a, b in differing(results, others):
            return f"{_describe_place(name)} is {a} once and {b} another time"
    return ""


def differing(
    one: Mapping[str, ArrayLike],
    other: Mapping[str, ArrayLike],
    is_equal: Callable[[ArrayLike, ArrayLike], bool] | None = None,
) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each array that differs, bit for bit or by `is_equal`, and both values in short."""
    for name, value in one.items():
        if not (is_equal or bitwise_equal)(value, other[name]):
            yield name, format_short(value), format_short(other[name])


def bitwise_equal(one: ArrayLike, other: ArrayLike) -> bool:
    """Report whether two arrays are equal bit for bit, NaN equal to NaN, keys by their data."""
    a, b = _as_numpy(one), _as_numpy(other)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=is_inexact(a))


def all_rows_equal(x: Array | np.ndarray) -> bool:
    """Report whether all rows of an array are equal, bit for bit."""
    return all(bitwise_equal(x[0], row) for row in x[1:])


def _as_numpy(x: ArrayLike) -> np.ndarray:
    """Convert an array to NumPy's, which has no keys, so that those are given as numbers."""
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def is_inexact(value: Array | np.ndarray) -> bool:
    """Report whether an array is of floating point (of any width) or complex, and so may hold NaN."""
    return jnp.issubdtype(value.dtype, jnp.inexact)


def _describe_place(name: str) -> str:
    """Convert `stepped/1/reward`, of `Traces`, to words: the part of the result, and the call."""
    call, part, *rest = name.split("/")
    leaf = f"`{'/'.join(rest)}`" if rest else "the value"
    of = {"0": "state", "1": "time-step"}[part]
    return f"{leaf} of the {of} after {'reset' if call == 'start' else 'a step'}"


def format_short(x: ArrayLike) -> str:
    """Format an array in a few characters."""
    value = _as_numpy(x)
    if value.size == 1:
        return f"{value.item():.6g}" if is_inexact(value) else str(value.item())
    text = np.array2string(value.reshape(-1)[:4], precision=4, separator=", ")
    return text if value.size <= 4 else f"{text[:-1]}, ...]"


def check_as_argument(env: Environment, key: Array) -> Iterator[Finding]:
    """Check that the environment works as an argument of a compiled program, where its numbers are traced."""
    constant = jax.eval_shape(lambda key: first_step(env, key), key)
    try:
        traced = jax.eval_shape(first_step, as_arrays(env), key)
    except Exception as error:
        names = ", ".join(named_leaves(env))
        yield Finding(
            "parameter",
            f"a numeric field ({names}) cannot be traced: {operation(error)} fails with "
            f"{type(error).__name__} when it is data; jnp.where and jax.numpy functions would do",
        )
        return
    for path, old, new in contract.differences(constant, traced):
        if old and new and path != "structure":
            yield Finding(
                "parameter",
                f"{_describe_place(path)} is {old} where the parameters are constants and {new} "
                "where they are float32 arrays; give it a dtype of its own",
            )


def check_vmappable(env: Environment, key: Array) -> Iterator[Finding]:
    """Check that reset and step can be mapped over a batch."""

    functions: dict[str, Callable] = {"reset": env.reset, "step": functools.partial(first_step, env)}
    for method, function in functions.items():
        try:
            jax.eval_shape(jax.vmap(function), jax.random.split(key, 2))
        except Exception as error:
            wrong = f"{method} cannot be mapped by jax.vmap: {describe(error)}, at {operation(error)}"
            yield Finding("not-vmappable", f"{wrong}; jax.numpy functions of one environment would do")
            return
