"""Checks of the use of random keys in reset and step, by the data flow of the traced programs."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_flow import Flow, trace_flow
from shoal.envs.checking.check_traces import Traces, sample_action
from shoal.types import Environment

RAW_KEYS = ((2,), (4,))  # shapes of untyped keys, of threefry and of rbg
IGNORE_HINT = "or ignore this rule where it is meant"


class _Step(NamedTuple):
    """Data flow of a step: the names of the state's leaves, in the order of inputs, and the index of its key."""

    flow: Flow
    state: list[str]
    key: int


def is_key(leaf: Any) -> bool:
    """Report whether an array (or its shape and dtype) is a random key, or an array of keys, typed or not."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    return leaf.dtype == np.uint32 and leaf.shape[-1:] in RAW_KEYS


def check_key_flow(env: Environment, traces: Traces, key: jax.Array) -> Iterator[Finding]:
    """Check that random numbers come from the key of the call, or from a key in the state that each step renews.

    A method that draws nothing may ignore its key, and so may one that passes it to parts that draw nothing:
    many correct environments have a deterministic reset or step. Numbers from a constant key, in addition to
    others from the method's own key, may be a fixed pattern, such as a map, and are allowed.
    """
    state, start = traces.start
    reset = trace_flow(jax.make_jaxpr(env.reset)(key))
    action = jax.eval_shape(lambda key, mask: sample_action(env, key, mask), key, start.action_mask)
    step = _Step(
        trace_flow(jax.make_jaxpr(env.step)(state, action, key)),
        list(named_leaves(state)),
        len(jax.tree.leaves((state, action))),
    )
    for method, method_flow, key_input, results in (
        ("reset", reset, 0, traces.start),
        ("step", step.flow, step.key, traces.stepped),
    ):
        if any(key_input in draw for draw in method_flow.draws) and not any(
            ~key_input in x.sources for x in method_flow.results
        ):
            yield Finding(
                "key-ignored",
                f"{method} draws random numbers from its key, but nothing that it returns depends on them; it "
                f"would use them, {IGNORE_HINT}",
            )
        elif method_flow.draws and not _depends_on_key(method_flow, key_input, results):
            yield from (
                _check_reset_draws(method_flow) if method == "reset" else _check_step_draws(step, reset)
            )


def _depends_on_key(method_flow: Flow, key_input: int, results: object) -> bool:
    """Report whether a result depends on the key, other than by storing it."""
    leaves = jax.tree.leaves(results)
    pairs = zip(method_flow.results, leaves, strict=True)
    return any(key_input in origin.sources and not is_key(leaf) for origin, leaf in pairs)


def _check_reset_draws(reset: Flow) -> Iterator[Finding]:
    if not all(reset.draws):
        yield Finding(
            "key-ignored",
            "reset draws random numbers from a constant key and not from the key that it is given, so every "
            f"episode begins alike; draw from its key, {IGNORE_HINT}",
        )


def _check_step_draws(step: _Step, reset: Flow) -> Iterator[Finding]:
    """Check that a step that ignores its own key draws from a random key that changes at every step."""
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
        advice = "draw from the key of step, or from one in the state that is split and replaced at each step"
        yield Finding("key-ignored", f"step draws random numbers from {source}; {advice}, {IGNORE_HINT}")
        return


def _random_leaves(step: _Step, reset: Flow) -> set[int]:
    """Return the leaves of the state that depend on a key, of the reset or of a step before."""
    random = {i for i in range(len(step.state)) if reset.results[i].sources}
    while True:
        more = {i for i in range(len(step.state)) if step.flow.results[i].sources & (random | {step.key})}
        if more <= random:
            return random
        random |= more
