"""Checks of the use of random keys in reset and step: which are drawn from, and that none is used twice.

The first is seen in the data flow of the traced programs, the second by JAX's own check, which is on for the traces of
this module alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import numpy as np
from jax.extend.core import JaxprEqn

from shoal.base.user_errors import user_frames
from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding, operation
from shoal.envs.checking.check_flow import Flow, trace_flow
from shoal.envs.checking.check_traces import Traces
from shoal.types import Array, Environment, PyTree, State

RAW_KEYS = ((2,), (4,))  # shapes of untyped keys, of threefry and of rbg
IGNORE_HINT = "or ignore this rule where it is meant"
REUSE_STEPS = 2  # of the scan; what holds of two holds of all
# JAX takes what `where` selects for used, and each `keys[i]` of a traced `i` for the whole of `keys`, so that it would
# refuse a state that is frozen at its end, or a loop over keys. Here the results are new keys.
SELECTIONS = (jax.lax.select_n_p, jax.lax.dynamic_slice_p, jax.lax.gather_p)


class _StepFlow(NamedTuple):
    """Data flow of a step: the names of the state's leaves, in the order of inputs, and the index of its key."""

    flow: Flow
    state: list[str]
    key: int


def is_key(leaf: Array | np.ndarray) -> bool:
    """Report whether an array (or its shape and dtype) is a random key, or an array of keys, typed or not."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    # Other words of this shape may be taken for a key, and are then left out of comparisons.
    return leaf.dtype == np.uint32 and leaf.shape[-1:] in RAW_KEYS


def check_key_flow(env: Environment, traces: Traces, key: Array) -> Iterator[Finding]:
    """Check that random numbers come from the key of the call, or from a key in the state that each step renews.

    A method that draws nothing may ignore its key, and so may one that passes it to parts that draw nothing:
    many correct environments have a deterministic reset or step. Numbers from a constant key, in addition to
    others from the method's own key, may be a fixed pattern, such as a map, and are allowed.
    """
    state, action = traces.start[0], traces.action
    reset = trace_flow(jax.make_jaxpr(env.reset)(key))
    step = _StepFlow(
        trace_flow(jax.make_jaxpr(env.step)(state, action, key)),
        list(named_leaves(state)),
        len(jax.tree.leaves((state, action))),
    )
    for method, flow, key_input, results in (
        ("reset", reset, 0, traces.start),
        ("step", step.flow, step.key, traces.stepped),
    ):
        draws_from_key = any(key_input in draw for draw in flow.draws)
        if draws_from_key and not any(~key_input in x.sources for x in flow.results):
            problem = "its key, but nothing that it returns depends on them; it would use them"
        elif flow.draws and not _depends_on_key(flow, key_input, results):
            problem = (
                _wrong_source_in_reset(reset) if method == "reset" else _wrong_source_in_step(step, reset)
            )
        else:
            problem = ""
        if problem:
            yield Finding("key-ignored", f"{method} draws random numbers from {problem}, {IGNORE_HINT}")


def _depends_on_key(flow: Flow, key_input: int, results: object) -> bool:
    """Report whether a result depends on the key, other than by storing it."""
    pairs = zip(flow.results, jax.tree.leaves(results), strict=True)
    return any(key_input in origin.sources and not is_key(leaf) for origin, leaf in pairs)


def _wrong_source_in_reset(reset: Flow) -> str:
    """Say from which key a reset that ignores its own draws, if it is constant."""
    source = "a constant key and not from the key that it is given, so every episode begins alike"
    return "" if all(reset.draws) else f"{source}; draw from its key"


def _wrong_source_in_step(step: _StepFlow, reset: Flow) -> str:
    """Say from which key a step that ignores its own draws, unless it is random and changes at every step."""
    random = _random_leaves(step, reset)
    unchanged = {i for i in range(len(step.state)) if step.flow.results[i].copy_of == i}
    for draw in step.flow.draws:
        sources = {i for i in draw if i >= 0}
        names = ", ".join(f"`{step.state[i]}`" for i in sorted(sources) if i < len(step.state))
        if not sources:
            source = "a constant key and not from the key that it is given, so every step has the same noise"
        elif not sources & random and max(sources) < len(step.state):
            source = (
                f"a key that is made of {names} of the state alone, where no key of reset or step has a part, "
                "so every episode has the same noise"
            )
        elif sources <= unchanged:
            source = (
                f"{names} of the state, which no step changes, so every step of an episode has the same noise"
            )
        else:
            continue
        return f"{source}; draw from the key of step, or from one in the state that is split and replaced at each step"
    return ""


def _random_leaves(step: _StepFlow, reset: Flow) -> set[int]:
    """Return the leaves of the state that depend on a key, of the reset or of a step before."""
    random = {i for i in range(len(step.state)) if reset.results[i].sources}
    while True:
        more = {i for i in range(len(step.state)) if step.flow.results[i].sources & (random | {step.key})}
        if more <= random:
            return random
        random |= more


def check_key_reuse(env: Environment, traces: Traces) -> Iterator[Finding]:
    """Check that reset, step, and steps after each other use each key once: the ones given, made, and in the state."""
    key = jax.eval_shape(jax.random.key, 0)
    words = jax.eval_shape(lambda key: jax.random.key_data(jax.random.split(key, REUSE_STEPS)), key)

    def play(key: Array, words: Array, action: PyTree) -> State:
        def step(state: State, words: Array) -> tuple[State, None]:
            # Made here, since a key from outside that the state keeps is to JAX the same key at every step.
            return env.step(state, action, jax.random.wrap_key_data(words))[0], None

        return jax.lax.scan(step, env.reset(key)[0], words)[0]

    try:
        with _reuse_is_refused():
            jax.jit(play).trace(key, words, traces.action)
    except jax.errors.KeyReuseError as error:
        advice = "so that both draw the same numbers; split it, and use or keep each part once"
        yield Finding("key-reused", f"a key {_use(error, traces)}, {advice}")
    except Exception:  # JAX's check is experimental: where it fails by itself, nothing is known
        return


def _use(error: BaseException, traces: Traces) -> str:
    """Describe the second use of a key: its line, or, where that is the checker's loop over steps, the state's keys."""
    for x in (error.__cause__, error):  # the first has the frames of the operation itself
        if x and user_frames(x):
            return f"is used twice, at last by {operation(x)}"
    leaves = named_leaves(traces.start[0]).items()
    names = [f"`{name}`" for name, x in leaves if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)]
    return f"that the state keeps ({', '.join(names)}) is used by a step, and was used by reset or by the step before"


@contextmanager
def _reuse_is_refused() -> Iterator[None]:
    """Let JAX raise KeyReuseError where a key is used twice in a program that is traced meanwhile."""
    # Imported here, since a later JAX may have them elsewhere.
    from jax._src.custom_batching import custom_vmap_p  # noqa: PLC0415
    from jax.experimental.key_reuse import _core as jax_check  # noqa: PLC0415

    def signature_of_call(equation: JaxprEqn) -> jax_check.KeyReuseSignature:
        return jax_check.jaxpr_type_signature(equation.params["call"].jaxpr)

    rules = jax_check.key_reuse_signatures
    before = dict(rules)
    rules.update(dict.fromkeys(SELECTIONS, jax_check.KeyReuseSignature(jax_check.Source(0))))
    rules[custom_vmap_p] = jax_check.dynamic_key_reuse_signature(signature_of_call)
    try:
        with jax.debug_key_reuse(True):
            yield
    finally:
        rules.clear()
        rules.update(before)
