"""The environment checker: finds errors of an environment and describes each in one sentence.

The checks have three stages, each of which needs the one before: reading the object's attributes (protocol
and spaces), tracing (structure, shapes, dtypes, repeatability, `vmap`), and random rollouts. Where a stage
finds something that a later one needs, the later one is skipped, and a finding says so.
"""

import functools
from collections.abc import Callable, Iterable, Iterator

import jax

from shoal.base.errors import ShoalError, nearest
from shoal.envs.checking import check_findings, check_rollouts, check_static, check_traces
from shoal.envs.checking.check_effects import check_in_place, check_side_effects, take_snapshot
from shoal.envs.checking.check_ends import check_ends
from shoal.envs.checking.check_findings import ERRORS, RULES, Finding, FindingsError, report
from shoal.envs.checking.check_keys import check_key_flow, check_key_reuse
from shoal.envs.checking.check_rollouts import Rollouts, RolloutSizes
from shoal.envs.checking.check_time import Announce, reported_activity
from shoal.envs.checking.check_traces import Traces
from shoal.types import Array, Environment

__all__ = ["RULES", "Finding", "check", "report"]


def check(
    env: Environment, *, seed: int = 0, ignore: Iterable[str] = (), progress: bool = False, **sizes: int
) -> list[Finding]:
    """Look for errors in an environment; the arguments are those of `shoal.check`.

    Never raises because of the environment: an error inside it becomes a finding.

    Args:
      sizes: of `RolloutSizes`.
    Returns:
      the findings, in the order of the checks; an empty list if there are none.
    Raises:
      ShoalError: `ignore` names no rule.
    """
    ignored = [*ignore] if isinstance(ignore, Iterable) and not isinstance(ignore, str) else [ignore]
    names = [*RULES]
    for rule in ignored:
        if rule not in names:
            hint = nearest(str(rule), names)
            raise ShoalError(f"ignore={rule!r} is not a rule of the checker; it has {', '.join(names)}{hint}")
    with reported_activity(progress) as announce:
        found = _all_findings(env, RolloutSizes(**sizes), jax.random.key(seed), announce)
        findings = check_findings.limit_findings(found)
    return [finding for finding in findings if finding.rule not in ignored]


def _all_findings(env: Environment, sizes: RolloutSizes, key: Array, announce: Announce) -> Iterator[Finding]:
    run = functools.partial(_findings_of, announce)
    findings = run("reading its attributes", check_static.check_declarations, env)
    if findings:
        yield from _stopped_by(findings, "tracing and random rollouts were")
        return
    parameters = run("reading its parameters", check_static.check_parameters, env)
    yield from parameters
    # What is no pytree is traced and run all the same, with its numbers as constants.
    snapshot = take_snapshot(env)
    try:
        traces = check_traces.trace(env, key, announce)
    except ERRORS as error:
        findings = _findings_of_error("tracing it", error)
        yield from _stopped_by(findings, "the rest of the checks, random rollouts among them, were")
        return
    findings = run("tracing it", check_traces.check_types, env, traces)
    summaries = run("reading info_summaries", check_static.check_summaries, env, traces.start[1].info)
    findings = findings or run("tracing it again", check_traces.check_repeatable, env, key)
    findings = findings or run("tracing it under vmap", check_traces.check_vmappable, env, key)
    yield from summaries
    if findings:
        yield from _stopped_by(findings, "random rollouts were")
        return
    yield from run("looking for what it leaves behind", check_side_effects, env, snapshot)
    yield from run("comparing the state before and after a step", check_in_place, env, traces, key)
    as_argument = []
    if not any(rule == "not-a-pytree" for rule, _ in parameters) and jax.tree.leaves(env):
        as_argument = run("tracing its parameters", check_traces.check_as_argument, env, key)
    yield from as_argument
    # What was found in its parameters would be found once more.
    compares_single = not (parameters or summaries or as_argument)
    try:
        rollouts = check_rollouts.start_rollouts(env, sizes, traces, key, announce)
    except ERRORS as error:
        yield from _stopped_by(_findings_of_error("running it", error), "random rollouts were")
        return
    yield from _rollout_findings(run, rollouts, traces, key, compares_single)


def _rollout_findings(
    run: Callable[..., list[Finding]], rollouts: Rollouts, traces: Traces, key: Array, compares_single: bool
) -> Iterator[Finding]:
    findings = run("inspecting its first steps", check_rollouts.check_reset, rollouts)
    if rollouts.start[1].last.all():
        yield from _stopped_by(findings, "random rollouts were")
        return
    yield from findings
    repeated = run("running it again", check_rollouts.check_repeated, rollouts)
    if repeated:
        yield from run("running it to its end", check_ends, rollouts)
        yield from _stopped_by(repeated, "comparisons of keys, actions and batches were")
        return
    yield from run("running it with other actions", check_rollouts.check_actions, rollouts)
    yield from run("running it with other keys", check_rollouts.check_keys, rollouts)
    # A key that no step renews is found by its flow, and not once more by its reuse.
    key_flow = run("following its keys", check_key_flow, rollouts.env, traces, key)
    yield from key_flow or run("following its keys", check_key_reuse, rollouts.env, traces)
    if compares_single:
        yield from run("running it alone", check_rollouts.check_single, rollouts)
    yield from run("running it to its end", check_ends, rollouts)


def _findings_of(
    announce: Announce, doing: str, check: Callable[..., Iterable[Finding]], *args: object
) -> list[Finding]:
    """Return the findings of a check; an error inside it is one more."""
    announce(doing)
    findings: list[Finding] = []
    try:
        findings.extend(check(*args))
    except ERRORS as error:
        findings += _findings_of_error(doing, error)
    return findings


def _findings_of_error(doing: str, error: BaseException) -> list[Finding]:
    if isinstance(error, FindingsError):
        return error.findings
    if isinstance(error, jax.errors.UnexpectedTracerError):
        place = f"another place than the state, which is used at {check_findings.operation(error)}"
        return [check_findings.leaked(doing, place)]
    raised = check_findings.describe(error)
    return [Finding("raises", f"{doing} raised {raised}; no error would be right")]


def _stopped_by(findings: list[Finding], left_out: str) -> list[Finding]:
    """Return findings after which some checks are left out, and the one that says so."""
    reason = f"because they need what was found to be wrong ({findings[0].rule})"
    return [*findings, Finding("not-checked", f"{left_out} left out, {reason}")]
