"""Check that no random key is used twice, by JAX's own check, which is on for the traces of this module alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax
from jax.extend.core import JaxprEqn

from shoal.base.user_errors import user_frames
from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding, operation
from shoal.envs.checking.check_traces import Traces
from shoal.types import Array, Environment, PyTree, State

STEPS = 2  # of the scan; what holds of two holds of all
# JAX takes what `where` selects for used, and each `keys[i]` of a traced `i` for the whole of `keys`, so that it would
# refuse a state that is frozen at its end, or a loop over keys. Here the results are new keys.
SELECTIONS = (jax.lax.select_n_p, jax.lax.dynamic_slice_p, jax.lax.gather_p)


def check_key_reuse(env: Environment, traces: Traces) -> Iterator[Finding]:
    """Check that reset, step, and steps after each other use each key once: the ones given, made, and in the state."""
    key = jax.eval_shape(jax.random.key, 0)
    words = jax.eval_shape(lambda key: jax.random.key_data(jax.random.split(key, STEPS)), key)

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
