"""Checks of every time-step: finite values inside their spaces, with a legal mask and discount."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from shoal.config.struct import named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_traces import is_inexact, mask_parts, observation_leaves
from shoal.types.spaces import Box, MultiDiscrete

ROUNDING = 1e-6  # relative: a compiled cosine may be one unit in the last place above 1


def check_timesteps(env: Any, timesteps: Any, offset: int, alive_before: Any = None) -> Iterator[Finding]:
    """Check time-steps [N, T, ...] in NumPy; the first is that of step number `offset` (0: of reset).

    Args:
      alive_before: the agents that took part before the first one, [N, A]; None for those that take part in it.
    """
    alive = _alive_agents(env, timesteps)
    acted = _acted(alive, alive_before)
    for path, space, value in observation_leaves(env.observation_space, timesteps.observation):
        yield from _check_observed(path, space, value, alive, offset)
    yield from _check_reward(timesteps.reward, acted, offset)
    yield from _check_info(timesteps.info, alive, offset)
    yield from _check_discount(env, timesteps, alive, acted, offset)
    if timesteps.action_mask is not None:
        for path, mask, sizes in mask_parts(
            env.action_space, timesteps.action_mask, getattr(env, "roles", ())
        ):
            # The mask of a last time-step is not used, since its action is ignored.
            yield from _check_mask(path, mask, sizes, alive & ~_expand_like(timesteps.last, alive), offset)


def _alive_agents(env: Any, timesteps: Any) -> np.ndarray:
    """Return the agents that take part, [N, T] or [N, T, A]; the observations of the others are not checked."""
    if timesteps.alive is not None:
        return timesteps.alive
    agents = (env.num_agents,) if env.num_agents > 1 else ()
    return np.ones((*timesteps.last.shape, *agents), bool)


def _expand_like(world: np.ndarray, other: np.ndarray) -> np.ndarray:
    return world.reshape(world.shape + (1,) * (other.ndim - world.ndim))


def _check_observed(path: str, space: Any, value: Any, alive: np.ndarray, offset: int) -> Iterator[Finding]:
    axes = value.ndim - len(space.shape)
    is_observed = alive if alive.ndim == axes else alive.any(axis=-1)  # a global state has no agent axis
    is_observed = is_observed.reshape(is_observed.shape + (1,) * (value.ndim - is_observed.ndim))
    if is_inexact(value):
        wrong = ~np.isfinite(value) & is_observed
        if wrong.any():
            yield Finding(
                "not-finite",
                f"{_describe_first(path, value, wrong, offset)}; every observation would be finite",
            )
            return
    low, high = _bounds(space)
    wrong = ((value < low) | (value > high)) & is_observed
    if wrong.any() and is_inexact(value):
        slack = ROUNDING * np.maximum(1, np.where(np.isfinite(value), np.abs(value), 1))
        wrong &= (value < low - slack) | (value > high + slack)
    if wrong.any():
        index = tuple(_earliest_index(wrong)[axes:])
        bounds = [np.broadcast_to(bound, space.shape)[index] for bound in (low, high)]
        right = f"between {bounds[0]:g} and {bounds[1]:g}, as its space says, would be right"
        yield Finding("observation-outside", f"{_describe_first(path, value, wrong, offset)}; {right}")


def _bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, Box):
        return space.low, space.high
    if isinstance(space, MultiDiscrete):
        return np.zeros(space.shape), np.asarray(space.nvec) - 1
    return np.zeros(()), np.asarray(space.n - 1)


def _earliest_index(wrong: np.ndarray) -> np.ndarray:
    """Return the index of a wrong entry of [N, T, ...], at the earliest step that has one."""
    places = np.argwhere(wrong)
    return places[np.argmin(places[:, 1])]


def _describe_first(path: str, value: np.ndarray, wrong: np.ndarray, offset: int) -> str:
    """Describe the place of the earliest wrong number, and the number."""
    index = _earliest_index(wrong)
    inner = [int(i) for i in index[2:]]
    place = f"{path}{inner if inner else ''}"
    number = value[tuple(index)]
    text = f"{number:.6g}" if is_inexact(value) else str(number)
    return f"{place} {_describe_step(index, offset)} is {text}"


def _describe_step(index: np.ndarray, offset: int) -> str:
    step = int(index[1]) + offset
    return f"after {step} random step{'' if step == 1 else 's'}" if step else "after reset"


def _acted(alive: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Return who took part at the step before, whose rewards and discounts count."""
    first = alive[:, :1] if before is None else before[:, None]
    return np.concatenate([first, alive[:, :-1]], axis=1)


def _check_reward(reward: np.ndarray, acted: np.ndarray, offset: int) -> Iterator[Finding]:
    wrong = ~np.isfinite(reward) & acted
    if wrong.any():
        yield Finding(
            "not-finite",
            f"{_describe_first('the reward', reward, wrong, offset)}; every reward would be finite",
        )


def _check_info(info: object, alive: np.ndarray, offset: int) -> Iterator[Finding]:
    """Check that every number of `info` is finite; where an entry has an agent axis, for the agents that take part."""
    for path, value in named_leaves(info).items():
        if not is_inexact(value):
            continue
        wrong = ~np.isfinite(value)
        if alive.ndim > 2 and value.shape[: alive.ndim] == alive.shape:
            wrong &= alive.reshape(alive.shape + (1,) * (value.ndim - alive.ndim))
        if wrong.any():
            entry, *rest = path.split("/")
            name = "".join([f"info[{entry!r}]", *(f"[{part!r}]" for part in rest)])
            yield Finding(
                "not-finite",
                f"{_describe_first(name, value, wrong, offset)}; every entry of `info` would be finite, since its sums "
                "and means over episodes are not finite otherwise",
            )


def _check_discount(
    env: Any, timesteps: Any, alive: np.ndarray, acted: np.ndarray, offset: int
) -> Iterator[Finding]:
    discount, last = timesteps.discount, timesteps.last
    wrong = (discount != 0) & (discount != 1) & acted
    if wrong.any():
        right = "0 where the episode terminated and else 1 would be right (gamma belongs to the algorithm)"
        yield Finding("discount", f"{_describe_first('the discount', discount, wrong, offset)}; {right}")
    elif env.num_agents == 1:  # with several agents, one may die before the episode ends
        wrong = (discount == 0) & ~last
        if wrong.any():
            when = _describe_step(_earliest_index(wrong), offset)
            right = "with `last` True, or a discount of 1, it would be right"
            yield Finding("discount", f"the discount {when} is 0 although `last` is False; {right}")
    else:
        goes_on = ~_expand_like(last, alive)
        wrong = acted & ~alive & (discount == 1) & goes_on
        if wrong.any():
            when = _describe_step(_earliest_index(wrong), offset)
            right = "0 would be right: a single agent ends for good, and only the world as a whole is cut"
            yield Finding("alive", f"an agent is no longer alive {when}, and its discount is 1; {right}")
        wrong = alive & (discount == 0) & goes_on & acted
        if wrong.any():
            when = _describe_step(_earliest_index(wrong), offset)
            right = "`alive` False would be right, or a discount of 1"
            yield Finding("alive", f"the discount of an agent {when} is 0 although it is alive; {right}")


def _check_mask(
    path: str, mask: np.ndarray, sizes: tuple[int, ...], acting: np.ndarray, offset: int
) -> Iterator[Finding]:
    ends = np.cumsum(sizes)
    for i, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        has_none = ~mask[..., end - size : end].any(axis=-1) & acting
        if has_none.any():
            part = f" of part {i}" if len(sizes) > 1 else ""
            when = _describe_step(_earliest_index(has_none), offset)
            wrong = f"{path} {when} is False for all {size} actions{part}"
            yield Finding("action-mask", f"{wrong}; at least one would be legal")
            return
