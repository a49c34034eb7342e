"""Checks of the ends of episodes: that they exist, and whether an end is a termination or a truncation."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from shoal.config.struct import where
from shoal.envs.checking.check_clocks import check_clocks
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_keys import is_key
from shoal.envs.checking.check_rollouts import (
    QUICK_COMPILE,
    Rollouts,
    check_block,
    other_actions,
    run_block,
)
from shoal.envs.checking.check_traces import bitwise_equal, sample_action

MIN_EPISODES = 8  # episodes that are needed to judge their lengths
MIN_SELF_RESETS = 3  # episodes whose last steps are compared


def check_ends(rollouts: Rollouts) -> Iterator[Finding]:
    """Step until every environment has ended once or has made the most steps, then judge the ends."""
    sizes, block = rollouts.sizes, rollouts.first
    previous, ends = jax.tree.map(np.asarray, rollouts.start[1]), []
    rewards = []
    offset = 0
    while True:
        yield from check_block(rollouts, block, previous, offset)
        previous = jax.tree.map(lambda leaf: leaf[:, -1], block.timesteps)
        ends.append((block.timesteps.last, _is_terminated(block.timesteps)))
        rewards.append(block.timesteps.reward.reshape(*block.timesteps.last.shape, -1).sum(axis=-1))
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
        yield from _check_terminations(rollouts, lengths, last, np.concatenate(rewards, axis=1))
    yield from check_clocks(rollouts, lengths)
    yield from _check_self_reset(rollouts)


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


def _check_terminations(
    rollouts: Rollouts, lengths: list[int], last: np.ndarray, rewards: np.ndarray
) -> Iterator[Finding]:
    """Check that episodes which are always truncated would end for other actions as well, or without a special reward.

    An end that the actions bring about may be a cut, as where an agent leaves the part of the world that is simulated.
    One that is rewarded as no other step is happens within the task.
    """
    if len(lengths) < MIN_EPISODES or min(lengths) == max(lengths) or not np.isfinite(rewards).all():
        return
    is_reset = np.zeros_like(last)
    is_reset[:, 1:] = last[:, :-1]
    usual = rewards[~last & ~is_reset]
    if not usual.size:
        return
    low, high = usual.min(), usual.max()
    beyond = np.maximum(low - rewards[last], rewards[last] - high)
    if beyond.max() <= max(2 * (high - low), 1e-6 * max(abs(low), abs(high))):
        return
    other = run_block(rollouts.advance, rollouts.start, rollouts.keys_at(0, other_actions(rollouts)))
    if np.array_equal(other.timesteps.last, rollouts.first.timesteps.last):
        return
    reward = rewards[last][np.argmax(beyond)]
    yield Finding(
        "termination",
        f"none of {len(lengths)} ends has discount 0, although the actions decide whether episodes end after "
        f"{min(lengths)} or {max(lengths)} steps, and an end has reward {reward:.6g} where other steps have "
        f"{low:.6g} to {high:.6g}; an end that depends on what happens is a termination (discount 0)",
    )


def _check_self_reset(rollouts: Rollouts) -> Iterator[Finding]:
    """Check that a step that ends an episode does not return the start of the next.

    The state after an end depends on the state before it; a start is drawn from the key alone. So the last steps of
    different episodes are made again with one key, and with another. Only what a start draws is compared.
    """
    if rollouts.first.timesteps.last.any(axis=1).sum() < MIN_SELF_RESETS:
        return
    before_ends = jax.vmap(functools.partial(_before_first_end, rollouts.env))
    state, action, found = jax.jit(before_ends, compiler_options=QUICK_COMPILE)(
        rollouts.start, rollouts.keys_at(0)
    )
    drawn = [not is_key(leaf) and not _is_equal(leaf) for leaf in jax.tree.leaves(rollouts.start[0])]
    step = jax.jit(jax.vmap(rollouts.env.step, (0, 0, None)), compiler_options=QUICK_COMPILE)

    def drawn_after(state: object, key: jax.Array) -> tuple[list[np.ndarray], np.ndarray]:
        """Return what a start draws, after a step from each state, and where the step ends an episode."""
        after, timestep = step(state, action, key)
        leaves = zip(jax.tree.leaves(after), drawn, strict=True)
        return [np.asarray(leaf) for leaf, is_drawn in leaves if is_drawn], np.asarray(timestep.last)

    (one, last), (other, other_last) = (drawn_after(state, key) for key in rollouts.keys[:2])
    ended = np.asarray(found) & last & other_last
    running, running_last = drawn_after(rollouts.start[0], rollouts.keys[0])
    if min(ended.sum(), (~running_last).sum()) < MIN_SELF_RESETS:
        return
    same_for_one_key = all(_is_equal(leaf[ended]) for leaf in [*one, *other])
    other_for_another = any(not np.array_equal(a[ended], b[ended]) for a, b in zip(one, other, strict=True))
    if same_for_one_key and other_for_another and not all(_is_equal(leaf[~running_last]) for leaf in running):
        yield Finding(
            "self-reset",
            f"the state after an end does not depend on the state before it: the last steps of {ended.sum()} different "
            "episodes, made again with one key, return the same state, as reset would; return the state in which the "
            "episode ended, since the batch calls reset on the next step",
        )


def _before_first_end(env: Any, carry: Any, keys: Any) -> Any:
    """Return the state and the action before the first end of random steps, and whether there was one."""

    def step(carry: Any, keys: Any) -> Any:
        (state, timestep), saved, found = carry
        step_key, _, action_key = keys
        action = sample_action(env, action_key, timestep.action_mask)
        after = env.step(state, action, step_key)
        saved = where(found, saved, (state, action))
        after = where(found, (state, timestep), after)
        return (after, saved, found | after[1].last), None

    first = sample_action(env, keys[2][0], carry[1].action_mask)
    (_, saved, found), _ = jax.lax.scan(step, (carry, (carry[0], first), carry[1].last), keys)
    return *saved, found


def _is_equal(leaf: Any) -> bool:
    """Report whether all rows of an array are equal, bit for bit."""
    return all(bitwise_equal(leaf[0], row) for row in leaf[1:])
