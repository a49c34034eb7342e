"""The requirements of an environment before it is run: the part of the checker that needs only one trace."""

import itertools
from collections.abc import Iterator

import jax

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code, user_code_error
from shoal.config.struct import as_arrays
from shoal.envs import base
from shoal.envs.checking import check_static
from shoal.envs.checking.check_findings import Finding, describe, leaked
from shoal.envs.checking.check_flow import trace_flow
from shoal.envs.checking.check_traces import Traces, check_types, first_step
from shoal.envs.wrappers import TimeLimit
from shoal.types import Array, Environment, PyTree, State, TimeStep, contract

# A function of the module, whose traces JAX keeps.
_first_step = jax.jit(first_step)


@reports_user_code
def require_contract(env: Environment, name: str = "") -> None:
    """Require that an environment has all parts, and that `reset` and `step` agree with each other and its spaces.

    Traces both once, with the environment's numbers as data. The trace of an environment is cached, so that a
    second call is fast.

    Raises:
      ShoalError: the first error found.
      UserCodeError: `reset` or `step` fails.
    """
    name = name or getattr(type(env), "__name__", str(env))
    # Generators, of which the first finding ends all: what a later one reads may then be missing.
    checks = check_static.check_declarations(env), check_static.check_parameters(env), _check_step(env)
    try:
        for attribute in check_static.ATTRIBUTES:
            getattr(env, attribute, None)  # a property that fails is told with the user's own frames
        finding = next(itertools.chain(*checks), None)
    except ShoalError:
        raise
    except Exception as error:
        if user_code_error(error) is not None:  # it becomes a sentence with its own line
            raise
        raise _refusal(env, name, describe(error)) from error
    if finding is not None:
        raise _refusal(env, name, finding.message)


def _refusal(env: Environment, name: str, problem: str) -> ShoalError:
    """Make the error for an environment, with the line of `reset` where that alone is wrong, else that of `step`."""
    method = "reset" if "reset" in problem and "step" not in problem else "step"
    named = contract.named(getattr(base.unwrapped(env), method, None), name)
    hint = f"`shoal check {name}` tells more." if ":" in name else "shoal.check tells more."
    return ShoalError(f"{named} cannot be run: {problem}; {hint}")


def _check_step(env: Environment) -> Iterator[Finding]:
    env_arrays, key = as_arrays(env), jax.eval_shape(jax.random.key, 0)
    traces = _traces(env_arrays, key)
    yield from check_types(env, traces)
    yield from check_static.check_summaries(env, traces.start[1].info)
    constants = jax.make_jaxpr(_second_step)(env_arrays, traces.stepped[0], traces.action, key).consts
    if any(isinstance(constant, jax.core.Tracer) for constant in constants):  # of the first trace
        yield leaked("reset or step", "another place than the state")


def never_ends(env: Environment) -> bool:
    """Report whether it is certain that no step ends an episode: `last` is False and depends on nothing.

    Only what the trace of a step shows is certain; of an environment whose end is out of reach this reports False.
    """
    if isinstance(env, TimeLimit):  # nothing needs to be traced, which takes seconds of some physics
        return False
    env_arrays, key = as_arrays(env), jax.eval_shape(jax.random.key, 0)
    traces = _traces(env_arrays, key)
    last_of_step = jax.make_jaxpr(lambda *inputs: _second_step(*inputs)[1].last)
    program = last_of_step(env_arrays, traces.stepped[0], traces.action, key)
    if trace_flow(program).results[0].sources:
        return False
    # What depends on nothing is the same at every step, so that one shows it.
    return not jax.jit(lambda env, key: _first_step(env, key).stepped[1].last)(env_arrays, jax.random.key(0))


def _traces(env_arrays: Environment, key: Array) -> Traces:
    """Trace the first step, as shapes and dtypes without weak types, since a batch removes these."""
    traced = _first_step.trace(env_arrays, key).out_info
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), traced)


@jax.jit
def _second_step(env: Environment, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
    """Make a step in a trace of its own, which shows values that leaked from the first trace."""
    return env.step(state, action, key)
