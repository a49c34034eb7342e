"""The requirements of an environment before it is run: the part of the checker that needs only one trace."""

import itertools
from collections.abc import Iterator
from typing import Any

import jax

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code, user_code_error
from shoal.config.struct import as_arrays
from shoal.envs import base
from shoal.envs.checking.check_findings import Finding, FindingsError, describe, leaked
from shoal.envs.checking.check_flow import trace_flow
from shoal.envs.checking.check_static import (
    check_parameters,
    check_protocol,
    check_shown,
    check_space,
    check_summaries,
)
from shoal.envs.checking.check_traces import Traces, check_types, sample_action, unpack_result
from shoal.envs.wrappers import TimeLimit
from shoal.types import PyTree, TimeStep, contract

DECLARATIONS = (
    "observation_space",
    "action_space",
    "num_agents",
    "info_summaries",
    "critic_only",
    "actor_only",
)


@reports_user_code
def require_contract(env: Any, name: str = "") -> None:
    """Require that an environment has all parts, and that `reset` and `step` agree with each other and its spaces.

    Traces both once, with the environment's numbers as data. The trace of an environment is cached, so that a
    second call is fast.

    Raises:
      ShoalError: the first error found.
      UserCodeError: `reset` or `step` fails.
    """
    name = name or getattr(type(env), "__name__", str(env))
    hint = f"`shoal check {name}` tells more." if ":" in name else "shoal.check tells more."
    try:
        finding = next(itertools.chain(_check_declarations(env), _check_step(env)), None)
    except ShoalError:
        raise
    except Exception as error:
        if user_code_error(error) is not None:
            raise
        raise _refusal(env, name, describe(error), hint) from error
    if finding is not None:
        raise _refusal(env, name, finding.message, hint)


def _refusal(env: Any, name: str, problem: str, hint: str) -> ShoalError:
    """Make the error for an environment, with the line of `reset` where that alone is wrong, else that of `step`."""
    method = "reset" if "reset" in problem and "step" not in problem else "step"
    named = contract.named(getattr(base.unwrapped(env), method, None), name)
    return ShoalError(f"{named} cannot be run: {problem}; {hint}")


def _check_declarations(env: Any) -> Iterator[Finding]:
    for attribute in DECLARATIONS:
        if hasattr(type(env), attribute):
            getattr(env, attribute)  # a property that fails names its own line
    yield from check_protocol(env)
    yield from check_space("observation_space", env.observation_space)
    yield from check_space("action_space", env.action_space)
    yield from check_shown(env)
    yield from check_parameters(env)


def _check_step(env: Any) -> Iterator[Finding]:
    env_arrays, key = as_arrays(env), jax.eval_shape(jax.random.key, 0)
    start, action, stepped = _shapes(_first_step.trace(env_arrays, key))
    yield from check_types(env, Traces(start, stepped))
    yield from check_summaries(env, start[1].info)
    constants = jax.make_jaxpr(_second_step)(env_arrays, stepped[0], action, key).consts
    if any(isinstance(constant, jax.core.Tracer) for constant in constants):  # of the first trace
        yield leaked("reset or step", "another place than the state")


def never_ends(env: Any) -> bool:
    """Report whether it is certain that no step ends an episode: `last` is False and depends on nothing.

    Only what the trace of a step shows is certain; of an environment whose end is out of reach this reports False.
    """
    if isinstance(env, TimeLimit):  # nothing needs to be traced, which takes seconds of some physics
        return False
    env_arrays, key = as_arrays(env), jax.eval_shape(jax.random.key, 0)
    _, action, stepped = _shapes(_first_step.trace(env_arrays, key))
    program = jax.make_jaxpr(lambda *inputs: _second_step(*inputs)[1].last)(
        env_arrays, stepped[0], action, key
    )
    if trace_flow(program).results[0].sources:
        return False
    return not jax.jit(lambda env, key: _first_step(env, key)[2][1].last)(env_arrays, jax.random.key(0))


def _shapes(traced: Any) -> Any:
    """Return the results of a traced function as shapes and dtypes, without weak types, since a batch removes these."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), traced.out_info)


@jax.jit
def _first_step(env: Any, key: jax.Array) -> tuple[Any, PyTree, Any]:
    """Make a reset, an action and a step; traced and never run."""
    state, start = _require_pair(env, "reset", env.reset(key))
    action = sample_action(env, key, start.action_mask)
    return (state, start), action, _require_pair(env, "step", env.step(state, action, key))


@jax.jit
def _second_step(env: Any, state: Any, action: PyTree, key: jax.Array) -> Any:
    """Make a step in a trace of its own, which shows values that leaked from the first trace."""
    return env.step(state, action, key)


def _require_pair(env: Any, method: str, result: Any) -> tuple[PyTree, TimeStep]:
    """Return the state and the time-step that a method returned; raises ShoalError where it returned anything else."""
    try:
        return unpack_result(contract.named(getattr(env, method)), result)
    except FindingsError as wrong:
        raise ShoalError(f"{wrong.findings[0].message}.") from None
