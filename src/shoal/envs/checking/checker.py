"""The environment checker: finds errors of an environment and describes each in one sentence.

The checks have three stages, each of which needs the one before: reading the object's attributes (protocol
and spaces), tracing (structure, shapes, dtypes, repeatability, `vmap`), and random rollouts. Where a stage
finds something that a later one needs, the later one is skipped, and a finding says so.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from shoal.base.errors import ShoalError, nearest
from shoal.envs.checking import check_rollouts
from shoal.envs.checking.check_effects import check_in_place, check_side_effects, take_snapshot
from shoal.envs.checking.check_ends import check_ends
from shoal.envs.checking.check_findings import (
    ERRORS,
    RULES,
    Finding,
    FindingsError,
    describe,
    leaked,
    limit_findings,
    operation,
    report,
)
from shoal.envs.checking.check_key_reuse import check_key_reuse
from shoal.envs.checking.check_keys import check_key_flow
from shoal.envs.checking.check_rollouts import Sizes
from shoal.envs.checking.check_static import (
    check_parameters,
    check_protocol,
    check_shown,
    check_space,
    check_summaries,
)
from shoal.envs.checking.check_time import Activity, reported_activity
from shoal.envs.checking.check_traces import (
    Traces,
    check_as_argument,
    check_repeatable,
    check_types,
    check_vmappable,
    trace,
)

__all__ = ["RULES", "Finding", "check", "report"]


def check(
    env: Any,
    *,
    keys: int = 16,
    steps: int = 128,
    max_steps: int = 10_000,
    seed: int = 0,
    ignore: Iterable[str] = (),
    progress: bool = False,
) -> list[Finding]:
    """Look for errors in an environment; the arguments are those of `shoal.check`.

    Never raises because of the environment: an error inside it becomes a finding.

    Returns:
      the findings, in the order of the checks; an empty list if there are none.
    Raises:
      ShoalError: an argument other than `env` is out of range.
    """
    ignore = frozenset([ignore] if isinstance(ignore, str) else ignore)
    _check_arguments(keys, steps, max_steps, ignore)
    with reported_activity(progress) as activity:
        sizes = Sizes(keys, steps, max_steps)
        findings = limit_findings(list(_all_findings(env, sizes, jax.random.key(seed), activity)))
    return [finding for finding in findings if finding.rule not in ignore]


def _check_arguments(keys: int, steps: int, max_steps: int, ignore: Iterable[str]) -> None:
    for name, value, minimum in (("keys", keys, 2), ("steps", steps, 2), ("max_steps", max_steps, 2)):
        if value < minimum:
            raise ShoalError(f"{name}={value} is too few for a check; {minimum} is the least")
    for rule in ignore:
        if rule not in RULES:
            names = ", ".join(RULES)
            raise ShoalError(
                f"ignore={rule!r} is not a rule of the checker; it has {names}{nearest(rule, RULES)}"
            )


def _all_findings(env: Any, sizes: Sizes, key: jax.Array, activity: Activity) -> Iterator[Finding]:
    run_stage = functools.partial(_run_stage, activity)
    findings = run_stage("reading its attributes", lambda: _static_findings(env))
    yield from findings
    if findings:
        yield _not_checked("tracing and random rollouts were left out", findings)
        return
    parameter_findings = run_stage("reading its parameters", lambda: check_parameters(env))
    yield from parameter_findings
    snapshot = take_snapshot(env)
    result = _trace_or_findings(env, key, activity)
    if isinstance(result, list):
        yield from result
        yield _not_checked("the rest of the checks, random rollouts among them,", result)
        return
    traces = result
    findings = run_stage("tracing it", lambda: check_types(env, traces))
    summaries = run_stage("reading info_summaries", lambda: check_summaries(env, traces.start[1].info))
    findings = findings or run_stage("tracing it again", lambda: check_repeatable(env, key))
    findings = findings or run_stage("tracing it under vmap", lambda: check_vmappable(env, traces, key))
    yield from summaries + findings
    if findings:
        yield _not_checked("random rollouts were left out", findings)
        return
    yield from run_stage("looking for what it leaves behind", lambda: check_side_effects(env, snapshot))
    yield from run_stage(
        "comparing the state before and after a step", lambda: check_in_place(env, traces, key)
    )
    as_argument_findings = []
    if not any(rule == "not-a-pytree" for rule, _ in parameter_findings) and jax.tree.leaves(env):
        as_argument_findings = run_stage("tracing its parameters", lambda: check_as_argument(env, key))
    yield from as_argument_findings
    compare = not (parameter_findings or summaries or as_argument_findings)
    yield from _rollout_findings(env, check_rollouts.fit_sizes(sizes, traces), key, traces, compare, activity)


def _static_findings(env: Any) -> Iterator[Finding]:
    protocol = list(check_protocol(env))
    yield from protocol
    if not protocol:
        yield from check_space("observation_space", env.observation_space)
        yield from check_space("action_space", env.action_space)
        yield from check_shown(env)


def _trace_or_findings(env: Any, key: jax.Array, activity: Activity) -> Any:
    """Return the traces of reset and step, or the findings that prevent them."""
    try:
        return trace(env, key, activity)
    except FindingsError as wrong:
        return wrong.findings
    except ERRORS as error:
        return [_raises_finding("tracing it", error)]


def _rollout_findings(
    env: Any, sizes: Sizes, key: jax.Array, traces: Traces, compare: bool, activity: Activity
) -> Iterator[Finding]:
    run_stage = functools.partial(_run_stage, activity)
    try:
        rollouts = check_rollouts.start_rollouts(env, sizes, key, activity)
    except ERRORS as error:
        failure = [_raises_finding("running it", error)]
        yield from [*failure, _not_checked("random rollouts were left out", failure)]
        return
    findings = run_stage("inspecting its first steps", lambda: check_rollouts.check_reset(rollouts))
    yield from findings
    if rollouts.start[1].last.all():
        yield _not_checked("random rollouts were left out", findings)
        return
    repeated = run_stage("running it again", lambda: check_rollouts.check_repeated(rollouts))
    if repeated:
        yield from run_stage("running it to its end", lambda: check_ends(rollouts))
        yield from repeated
        yield _not_checked("comparisons of keys, actions and batches were left out", repeated)
        return
    for doing, stage in (
        ("running it with other actions", check_rollouts.check_actions),
        ("running it with other keys", check_rollouts.check_keys),
        ("following its keys", lambda _: _key_findings(env, traces, key)),
        ("running it alone", check_rollouts.check_single),
        ("running it to its end", check_ends),
    ):
        if compare or stage is not check_rollouts.check_single:
            yield from run_stage(doing, functools.partial(stage, rollouts))


def _key_findings(env: Any, traces: Traces, key: jax.Array) -> Iterable[Finding]:
    """Follow keys to what is drawn; a key that no step renews is found so already, and not once more by its reuse."""
    return list(check_key_flow(env, traces, key)) or check_key_reuse(env, traces)


def _run_stage(activity: Activity, doing: str, stage: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Return the findings of a stage; an error inside it is one more."""
    activity(doing)
    findings: list[Finding] = []
    try:
        findings.extend(stage())
    except FindingsError as wrong:
        findings.extend(wrong.findings)
    except ERRORS as error:
        findings.append(_raises_finding(doing, error))
    return findings


def _raises_finding(doing: str, error: BaseException) -> Finding:
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return leaked(doing, f"another place than the state, which is used at {operation(error)}")
    return Finding("raises", f"{doing} raised {describe(error)}; no error would be right")


def _not_checked(what: str, findings: list[Finding]) -> Finding:
    what = what if what.endswith("left out") else f"{what} were left out"
    return Finding(
        "not-checked", f"{what}, because they need what was found to be wrong ({findings[0].rule})"
    )
