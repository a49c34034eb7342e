"""Checks of how episodes end: that they do, and whether an end is a termination or a truncation."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from shoal.envs.check_findings import Finding
from shoal.envs.check_rollouts import FAR, QUICK, SMALL, Rollouts, check_block, other_actions, run
from shoal.envs.check_traces import sample_action
from shoal.trees import named_leaves, with_named_leaves

ENOUGH_ENDS = 8  # episodes, before their lengths are judged


def check_ends(rollouts: Rollouts) -> Iterator[Finding]:
    """Runs on until every environment has ended once or has made the most steps, then judges the ends."""
    sizes, block = rollouts.sizes, rollouts.first
    before, ends = np.asarray(rollouts.start[1].last), []
    offset = 0
    while True:
        yield from check_block(rollouts, block, before, offset)
        before = np.asarray(block.timesteps.last[:, -1])
        ends.append((block.timesteps.last, _terminated(block.timesteps)))
        offset += block.timesteps.last.shape[1]
        ended = np.concatenate([last for last, _ in ends], axis=1).any(axis=1)
        if ended.all() or offset >= sizes.max_steps:
            break
        block = run(rollouts.go, block.end, rollouts.keys_at(offset))
    if not ended.any():
        yield Finding(
            "never-ends",
            f"a warning: none of {sizes.keys} environments ended within {offset} random steps; if nothing "
            "else ends an episode, shoal.envs.TimeLimit would (or a higher max_steps shows that it ends)",
        )
        return
    last, terminated = (np.concatenate(parts, axis=1) for parts in zip(*ends, strict=True))
    lengths = _lengths(last)
    if not terminated.any():
        yield from _check_terminations(rollouts, lengths)
    yield from _check_clocks(rollouts, lengths)


def _terminated(timesteps: Any) -> np.ndarray:
    """Where an episode ended with discount 0, for any of its agents, [N, T]."""
    zero = timesteps.discount == 0
    return timesteps.last & zero.reshape(*timesteps.last.shape, -1).any(axis=-1)


def _lengths(last: np.ndarray) -> list[int]:
    """The lengths of the whole episodes in [N, T] flags; the step after an end is the reset's."""
    lengths: list[int] = []
    for row in last:
        starts = 0
        for end in np.flatnonzero(row):
            lengths.append(int(end) + 1 - starts)
            starts = int(end) + 2
    return lengths


def _check_terminations(rollouts: Rollouts, lengths: list[int]) -> Iterator[Finding]:
    """Episodes that are never terminated, only cut, should end whatever the actions are."""
    if len(lengths) < ENOUGH_ENDS or min(lengths) == max(lengths):
        return
    other = run(rollouts.go, rollouts.start, rollouts.keys_at(0, other_actions(rollouts)))
    if np.array_equal(other.timesteps.last, rollouts.first.timesteps.last):
        return
    yield Finding(
        "termination",
        f"none of {len(lengths)} ends has discount 0, although the actions decide whether episodes end after "
        f"{min(lengths)} or {max(lengths)} steps; an end that depends on what happens is a "
        "termination (discount 0), only a time limit is a truncation",
    )


def _check_clocks(rollouts: Rollouts, lengths: list[int]) -> Iterator[Finding]:
    """Moves every counter of the state forward: an end by the clock alone should be a truncation.

    A clock that the observation or the reward shows is part of the task, and may terminate it.
    """
    state, timestep = rollouts.start
    leaves = named_leaves(state)
    keys = rollouts.keys

    @functools.partial(jax.jit, compiler_options=QUICK)
    @jax.vmap
    def step(state: Any, mask: Any, action_key: jax.Array, key: jax.Array) -> Any:
        return rollouts.env.step(state, sample_action(rollouts.env, action_key, mask), key)[1]

    def step_at(name: str, element: int, rate: float, steps: int) -> Any:
        moved = _moved(np.array(leaves[name]), element, rate * steps)
        states = with_named_leaves(state, {**leaves, name: moved})
        return jax.tree.map(np.asarray, step(states, timestep.action_mask, rollouts.action_keys, keys))

    for name, element, rate in _counters(rollouts):
        now = step_at(name, element, rate, 0)
        for steps in (FAR, max(lengths) - 1):
            if not _only_ends(now, step_at(name, element, rate, steps)):
                continue
            counter = functools.partial(step_at, name, element, rate)
            limit = 1 + (_least(functools.partial(_ends_at, now, counter), FAR) if steps == FAR else steps)
            yield Finding(
                "truncation",
                f"the counter `{name}` of the state alone ends the episode after {limit} steps with "
                "discount 0, though neither observation nor reward shows it; a time limit is a "
                "truncation, so discount 1 would be right",
            )
            return


def _counters(rollouts: Rollouts) -> Iterator[tuple[str, int, float]]:
    """(leaf, element, rate) of every number in the state that changes by the same amount at every step."""
    last = np.concatenate(
        [np.asarray(rollouts.start[1].last)[:, None], rollouts.first.timesteps.last[:, :-1]], axis=1
    )
    start = named_leaves(rollouts.start[0])
    for name, values in rollouts.first.small.items():
        first = np.asarray(start[name], np.float64).reshape(len(values), 1, -1)
        course = np.concatenate([first, values.astype(np.float64)], axis=1)
        rates = np.diff(course, axis=1)[~last]
        for element in range(min(rates.shape[-1], SMALL)):
            rate = rates[:, element]
            if len(rate) and rate[0] != 0 and np.allclose(rate, rate[0], rtol=1e-3):
                yield name, element, float(rate[0])


def _moved(leaf: np.ndarray, element: int, by: float) -> np.ndarray:
    """A batched leaf with one element moved, within what its dtype can hold."""
    flat = leaf.reshape(len(leaf), -1)
    target = flat[:, element].astype(np.float64) + by
    if leaf.dtype.kind in "iu":
        bounds = np.iinfo(leaf.dtype)
        target = np.clip(target, bounds.min + 1, bounds.max - 1)
    flat[:, element] = target.astype(leaf.dtype)
    return flat.reshape(leaf.shape)


def _only_ends(now: Any, then: Any) -> bool:
    """Whether moving the clock ended every environment, with discount 0, and showed in nothing else."""
    going = ~now.last
    if not going.any() or not then.last[going].all() or (then.discount[going] != 0).any():
        return False
    shown = (now.observation, now.reward), (then.observation, then.reward)
    pairs = zip(*map(jax.tree.leaves, shown), strict=True)
    return all(np.allclose(a[going], b[going], rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)


def _ends_at(now: Any, counter: Callable[[int], Any], steps: int) -> bool:
    return _only_ends(now, counter(steps))


def _least(holds: Callable[[int], bool], most: int) -> int:
    """The least n for which `holds(n)`, which is taken to hold from there to `most`."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
