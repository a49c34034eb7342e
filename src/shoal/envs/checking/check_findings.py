"""Findings of the checker, the rules that they belong to, and the line that an error came from."""

import textwrap
import traceback
from collections.abc import Iterable
from typing import NamedTuple

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error, format_location, shorten, user_frames

RULES = {
    "protocol": "an attribute or method that every environment has is missing or of the wrong kind",
    "space": "a space that has no elements or is none of Shoal's",
    "critic-only": "`critic_only` does not name some entries of a dictionary of observations",
    "actor-only": "`actor_only` does not name some entries of a dictionary of observations, or names the critic's",
    "not-a-pytree": "the environment's parameters cannot be passed to a compiled function",
    "raises": "the environment raises an error of its own",
    "not-traceable": "a Python operation needs a value that is only known when the program runs",
    "not-vmappable": "reset or step cannot be mapped over a batch",
    "vmap-differs": "a batch of environments computes something else than one environment",
    "parameter": "a numeric field does not work as data: traced, stacked, or changed without compiling",
    "return-value": "reset or step does not return (state, TimeStep) of arrays",
    "state-changes": "the state changes its structure, a shape, a dtype or a weak type between steps",
    "timestep-type": "a field of the time-step has the wrong shape or dtype, or changes it between steps",
    "observation-type": "the observation has not the structure, shape or dtype of its space",
    "observation-outside": "an observation lies outside its space",
    "not-finite": "an observation, a reward or an entry of `info` is NaN or infinite",
    "reset-reward": "the reward of a first step is not 0",
    "first-flag": "`first` is not True exactly on the time-step of a reset",
    "ends-on-reset": "an episode is over before its first step",
    "never-ends": "no episode ended within many random steps",
    "discount": "a discount is neither 0 nor 1, or is 0 before the episode has ended",
    "truncation": "a time limit terminates the episode (discount 0) where it should truncate it",
    "termination": "no end has discount 0, although the actions decide when episodes end and the reward shows it",
    "self-reset": "a step that ends an episode returns the start of the next one",
    "action-mask": "the action mask has the wrong shape or dtype, or leaves no action",
    "alive": "`alive` and the discount of an agent do not agree",
    "agents": "the number of agents is not `num_agents` everywhere",
    "info-changes": "the entries of `info` change between reset and step",
    "info-summary": "`info_summaries` names an unknown reduction or an entry that `info` lacks",
    "hidden-state": "two equal calls differ: state or randomness outside of state and key",
    "in-place": "a state, an action or an array is changed in place",
    "key-ignored": "all keys give the same episode, or random numbers that should come from a key do not",
    "key-reused": "a key is used twice, within reset or step or by steps after each other",
    "action-ignored": "no action changes anything",
    "not-checked": "checks that were left out because of an earlier finding",
}

# Errors that an environment may raise; `sys.exit` in it would end the check as a success.
ERRORS = (Exception, SystemExit)
MAX_CHARACTERS = 160  # of an error's message or a line of source
MAX_PER_RULE = 3  # findings, since a state may have a hundred wrong leaves


class Finding(NamedTuple):
    """One error of an environment: the rule (a key of `RULES`) and a sentence that names the value."""

    rule: str
    message: str


class FindingsError(ShoalError):
    """Carry findings out of a function that is being traced; the message is that of the first."""

    def __init__(self, findings: list[Finding]):
        super().__init__(f"{findings[0].message}.")
        self.findings = findings


def leaked(doing: str, place: str) -> Finding:
    """Make the finding of a traced value that was kept outside of the state, and cannot be used after the trace."""
    right = "everything that later steps need belongs in the state that a step returns"
    return Finding("hidden-state", f"{doing} keeps a traced value in {place}; {right}")


def limit_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Keep a few findings of each rule, and of each leaf only the first step at which it is wrong."""
    selected: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        # What is wrong at several steps is said alike up to "after 3 random steps".
        subject = finding.message.split(" after ")[0]
        if sum(rule == finding.rule for rule, _ in selected) < MAX_PER_RULE:
            selected.setdefault((finding.rule, subject), finding)
    return list(selected.values())


def report(findings: Iterable[Finding], name: str) -> str:
    """Format findings for a terminal, one paragraph each, under the name of the environment."""
    findings = list(findings)
    if not findings:
        return f"{name}: nothing found"
    wrong = [finding for finding in findings if finding.rule != "not-checked"]
    lines = [f"{name}: {len(wrong)} finding{'' if len(wrong) == 1 else 's'}"]
    width = max(len(finding.rule) for finding in findings) + 4
    for rule, message in findings:
        lines += textwrap.wrap(
            message,
            width=100,
            initial_indent=f"  {rule}".ljust(width),
            subsequent_indent=" " * width,
            break_on_hyphens=False,  # within a rule or a flag
        )
    return "\n".join(lines)


def describe(error: BaseException) -> str:
    """Describe an error in half a sentence: its type, the first line of its message, and the line that raised it."""
    frames = user_frames(error)
    place = f" ({_place(frames[-1].summary)})" if frames else ""
    return f"{shorten(describe_error(error), MAX_CHARACTERS)}{place}"


def operation(error: BaseException) -> str:
    """Return the environment's line that failed, innermost in its own code, or the error where there is none."""
    frames = user_frames(error)
    if not frames:
        return f"a function of the environment ({describe(error)})"
    summary = frames[-1].summary
    return f"`{shorten(summary.line or '', MAX_CHARACTERS)}` ({_place(summary)})"


def _place(summary: traceback.FrameSummary) -> str:
    return format_location(summary.filename, summary.lineno)
