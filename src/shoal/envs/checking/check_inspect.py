"""Checks of every time-step: finite values inside their spaces, with a legal mask and discount."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_traces import LeafSpace, is_inexact, mask_parts, observation_leaves
from shoal.types import Array, Environment, TimeStep
from shoal.types.spaces import Box, Discrete

ROUNDING = 1e-6  # relative: a compiled cosine may be one unit in the last place above 1


def check_timesteps(
    env: Environment, timesteps: TimeStep, offset: int, alive_before: ArrayLike | None = None
) -> Iterator[Finding]:
    """Check time-steps [N, T, ...] in NumPy; the first is that of step number `offset` (0: of reset).

    Args:
      alive_before: the agents that took part before the first one, [N, A]; None for those that take part in it.
    """
    agents = (env.num_agents,) if env.num_agents > 1 else ()
    last = np.asarray(timesteps.last)
    alive = np.ones((*last.shape, *agents), bool) if timesteps.alive is None else np.asarray(timesteps.alive)
    # Rewards and discounts count for who took part at the step before.
    first = alive[:, :1] if alive_before is None else np.asarray(alive_before)[:, None]
    acted = np.concatenate([first, alive[:, :-1]], axis=1)
    goes_on = ~_expand_like(last, alive)
    for path, space, value in observation_leaves(env.observation_space, timesteps.observation):
        if space is not None:  # else the trace has found it
            yield from _check_observed(path, space, value, alive, offset)
    yield from _check_finite("the reward", timesteps.reward, acted, offset, "every reward would be finite")
    yield from _check_info(timesteps.info, alive, offset)
    stays = alive if timesteps.restarted is None else alive & ~np.asarray(timesteps.restarted)
    yield from _check_discount(np.asarray(timesteps.discount), stays, acted, goes_on, offset)
    if timesteps.action_mask is not None:
        for path, mask, sizes in mask_parts(env, timesteps.action_mask):
            # The mask of a last time-step is not used, since its action is ignored.
            yield from _check_mask(path, mask, sizes, alive & goes_on, offset)


def _expand_like(x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Append axes of length 1 to an array until it has as many axes as another."""
    return x.reshape(x.shape + (1,) * (other.ndim - x.ndim))


def _check_finite(
    name: str, value: np.ndarray | Array, counts: np.ndarray | bool, offset: int, right: str
) -> Iterator[Finding]:
    """Check that numbers are finite where they count."""
    wrong = ~np.isfinite(value) & counts
    if wrong.any():
        yield Finding("not-finite", f"{_describe_first(name, value, wrong, offset)}; {right}")


def _check_observed(
    path: str, space: LeafSpace, value: np.ndarray, alive: np.ndarray, offset: int
) -> Iterator[Finding]:
    axes = value.ndim - len(space.shape)
    # A global state has no agent axis; the observations of agents that take no part may be anything.
    is_observed = _expand_like(alive if alive.ndim == axes else np.any(alive, axis=-1), value)
    if is_inexact(value):
        findings = list(_check_finite(path, value, is_observed, offset, "every observation would be finite"))
        yield from findings
        if findings:
            return
    low, high = _bounds(space)
    slack = ROUNDING * np.maximum(1, np.abs(np.nan_to_num(value))) if is_inexact(value) else 0
    wrong = ((value < low - slack) | (value > high + slack)) & is_observed
    if wrong.any():
        index = tuple(_earliest_index(wrong)[axes:])
        bounds = [np.broadcast_to(bound, space.shape)[index] for bound in (low, high)]
        right = f"between {bounds[0]:g} and {bounds[1]:g}, as its space says, would be right"
        yield Finding("observation-outside", f"{_describe_first(path, value, wrong, offset)}; {right}")


def _bounds(space: LeafSpace) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(space, Box):
        return space.low, space.high
    numbers = np.asarray(space.n if isinstance(space, Discrete) else space.nvec)
    return np.zeros_like(numbers), numbers - 1


def _earliest_index(wrong: np.ndarray) -> np.ndarray:
    """Return the index of a wrong entry of [N, T, ...], at the earliest step that has one."""
    places = np.argwhere(wrong)
    return places[np.argmin(places[:, 1])]


def _describe_first(path: str, value: np.ndarray | Array, wrong: np.ndarray, offset: int) -> str:
    """Describe the place of the earliest wrong number, and the number."""
    index = _earliest_index(wrong)
    inner = index[2:].tolist()
    number = value[tuple(index)]
    text = f"{number:.6g}" if is_inexact(value) else str(number)
    return f"{path}{inner or ''} {_describe_step(wrong, offset)} is {text}"


def _describe_step(wrong: np.ndarray, offset: int) -> str:
    """Describe the earliest step that has a wrong entry."""
    step = int(_earliest_index(wrong)[1]) + offset
    return f"after {step} random step{'' if step == 1 else 's'}" if step else "after reset"


def _check_info(info: object, alive: np.ndarray, offset: int) -> Iterator[Finding]:
    """Check that every number of `info` is finite; where an entry has an agent axis, for the agents that take part."""
    right = "every entry of `info` would be finite, since its sums and means over episodes are not finite otherwise"
    for path, value in named_leaves(info).items():
        if is_inexact(value):
            of_agents = alive.ndim > 2 and value.shape[: alive.ndim] == alive.shape
            name = "info" + "".join(f"[{part!r}]" for part in path.split("/"))
            counts = _expand_like(alive, value) if of_agents else True
            yield from _check_finite(name, value, counts, offset, right)


def _check_discount(
    discount: np.ndarray, alive: np.ndarray, acted: np.ndarray, goes_on: np.ndarray, offset: int
) -> Iterator[Finding]:
    """Check discounts; `alive` is False where an agent ends, and where it restarts."""
    wrong = (discount != 0) & (discount != 1) & acted
    if wrong.any():
        right = "0 where the episode terminated and else 1 would be right (gamma belongs to the algorithm)"
        yield Finding("discount", f"{_describe_first('the discount', discount, wrong, offset)}; {right}")
        return
    if alive.ndim == 2:
        right = "with `last` True, or a discount of 1, it would be right"
        wrong = (discount == 0) & goes_on
        yield from _finding_at(
            "discount", wrong, offset, "the discount {} is 0 although `last` is False", right
        )
        return
    # One of several agents may die before the episode ends.
    right = "0 would be right: a single agent ends for good, and only the world as a whole is cut"
    wrong = acted & ~alive & (discount == 1) & goes_on
    yield from _finding_at(
        "alive", wrong, offset, "an agent is no longer alive {}, and its discount is 1", right
    )
    right = "`alive` False would be right, or a discount of 1"
    wrong = acted & alive & (discount == 0) & goes_on
    yield from _finding_at(
        "alive", wrong, offset, "the discount of an agent {} is 0 although it is alive", right
    )


def _finding_at(rule: str, wrong: np.ndarray, offset: int, what: str, right: str) -> Iterator[Finding]:
    """Make the finding of the earliest wrong step, which the text says at `{}`."""
    if wrong.any():
        yield Finding(rule, f"{what.replace('{}', _describe_step(wrong, offset))}; {right}")


def _check_mask(
    path: str, mask: np.ndarray, sizes: tuple[int, ...], acting: np.ndarray, offset: int
) -> Iterator[Finding]:
    for i, part in enumerate(np.split(mask, np.cumsum(sizes)[:-1], axis=-1)):
        has_none = ~part.any(axis=-1) & acting
        of_part = f" of part {i}" if len(sizes) > 1 else ""
        text = f"{path} {{}} is False for all {sizes[i]} actions{of_part}"
        yield from _finding_at("action-mask", has_none, offset, text, "at least one would be legal")
