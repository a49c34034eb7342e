"""Checks of the ends of episodes: that they exist, and whether an end is a termination or a truncation."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from shoal.envs.checking.check_clocks import check_clocks
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_rollouts import Rollouts, check_block, other_actions, run_block

MIN_EPISODES = 8  # episodes that are needed to judge their lengths


def check_ends(rollouts: Rollouts) -> Iterator[Finding]:
    """Step until every environment has ended once or has made the most steps, then judge the ends."""
    sizes, block = rollouts.sizes, rollouts.first
    previous, ends = jax.tree.map(np.asarray, rollouts.start[1]), []
    offset = 0
    while True:
        yield from check_block(rollouts, block, previous, offset)
        previous = jax.tree.map(lambda leaf: leaf[:, -1], block.timesteps)
        ends.append((block.timesteps.last, _is_terminated(block.timesteps)))
        offset += block.timesteps.last.shape[1]
        ended = np.concatenate([last for last, _ in ends], axis=1).any(axis=1)
        if ended.all() or offset >= sizes.max_steps:
            break
        block = run_block(rollouts.advance, block.end, rollouts.keys_at(offset))
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
    yield from check_clocks(rollouts, lengths)


def _is_terminated(timesteps: Any) -> np.ndarray:
    """Report where an episode ended with discount 0 for any of its agents, [N, T]."""
    zero = timesteps.discount == 0
    return timesteps.last & zero.reshape(*timesteps.last.shape, -1).any(axis=-1)


def _lengths(last: np.ndarray) -> list[int]:
    """Return the lengths of the whole episodes in [N, T] flags; the step after an end is the reset's."""
    lengths: list[int] = []
    for row in last:
        starts = 0
        for end in np.flatnonzero(row):
            lengths.append(int(end) + 1 - starts)
            starts = int(end) + 2
    return lengths


def _check_terminations(rollouts: Rollouts, lengths: list[int]) -> Iterator[Finding]:
    """Check that episodes which are always truncated would end for other actions as well."""
    if len(lengths) < MIN_EPISODES or min(lengths) == max(lengths):
        return
    other = run_block(rollouts.advance, rollouts.start, rollouts.keys_at(0, other_actions(rollouts)))
    if np.array_equal(other.timesteps.last, rollouts.first.timesteps.last):
        return
    yield Finding(
        "termination",
        f"none of {len(lengths)} ends has discount 0, although the actions decide whether episodes end after "
        f"{min(lengths)} or {max(lengths)} steps; an end that depends on what happens is a "
        "termination (discount 0), only a time limit is a truncation",
    )
