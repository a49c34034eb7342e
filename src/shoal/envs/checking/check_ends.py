"""Checks of the ends of episodes: that they exist, and whether an end is a termination or a truncation."""

import functools
from collections.abc import Iterator

import jax
import numpy as np

from shoal.config.struct import where
from shoal.envs.checking.check_clocks import check_clocks
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_keys import is_key
from shoal.envs.checking.check_rollouts import Rollouts, StepKeys, check_block, jit_quickly
from shoal.envs.checking.check_traces import Result, all_rows_equal, sample_action
from shoal.types import Array, Environment, PyTree, State, TimeStep

MIN_EPISODES = 8  # episodes that are needed to judge their lengths
MIN_SELF_RESETS = 3  # episodes whose last steps are compared


def check_ends(rollouts: Rollouts) -> Iterator[Finding]:
    """Step until every environment has ended once or has made the most steps, then judge the ends."""
    sizes, block, offset = rollouts.sizes, rollouts.first, 0
    previous = jax.tree.map(np.asarray, rollouts.start[1])
    ends: list[tuple[np.ndarray, ...]] = []
    while True:
        yield from check_block(rollouts, block, previous, offset)
        previous = jax.tree.map(lambda leaf: leaf[:, -1], block.timesteps)
        ends.append(_ends_and_rewards(block.timesteps))
        offset += block.timesteps.last.shape[1]
        last, terminated, rewards = (np.concatenate(parts, axis=1) for parts in zip(*ends, strict=True))
        if last.any(axis=1).all() or offset >= sizes.max_steps:
            break
        block = rollouts.block_after(block.end, offset)
    if not last.any():
        yield Finding(
            "never-ends",
            f"a warning: none of {sizes.keys} environments ended within {offset} random steps; if nothing "
            "else ends an episode, shoal.envs.TimeLimit would (or a higher max_steps shows that it ends)",
        )
        return
    lengths = _lengths(last)
    if not terminated.any():
        yield from _check_terminations(rollouts, lengths, last, rewards)
    yield from check_clocks(rollouts, lengths)
    yield from _check_self_reset(rollouts)


def _ends_and_rewards(timesteps: TimeStep) -> tuple[np.ndarray, ...]:
    """Return where episodes end, where with discount 0 for any agent, and the agents' rewards together, [N, T] each."""
    last = np.asarray(timesteps.last)
    discounts, rewards = (
        np.asarray(x).reshape(*last.shape, -1) for x in (timesteps.discount, timesteps.reward)
    )
    return last, last & (discounts == 0).any(axis=-1), rewards.sum(axis=-1)


def _lengths(last: np.ndarray) -> list[int]:
    """Return the lengths of the whole episodes in [N, T] flags; the step after an end is the reset's."""
    lengths: list[int] = []
    for row in last:
        ends = np.flatnonzero(row).tolist()
        starts = [0, *(end + 2 for end in ends)]
        lengths += [end + 1 - start for start, end in zip(starts, ends, strict=False)]
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
    other = rollouts.block_after(rollouts.start, 0, rollouts.other_actions)
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
    before_ends = jit_quickly(jax.vmap(functools.partial(_before_first_end, rollouts.env)))
    state, action, found = before_ends(rollouts.start, rollouts.keys_at(0))
    drawn = [not is_key(leaf) and not all_rows_equal(leaf) for leaf in jax.tree.leaves(rollouts.start[0])]
    step = jit_quickly(jax.vmap(rollouts.env.step, (0, 0, None)))

    def drawn_after(state: State, key: Array) -> tuple[list[np.ndarray], np.ndarray]:
        """Return what a start draws, after a step from each state, and where the step ends an episode."""
        after, timestep = step(state, action, key)
        leaves = zip(jax.tree.leaves(after), drawn, strict=True)
        return [np.asarray(leaf) for leaf, is_drawn in leaves if is_drawn], np.asarray(timestep.last)

    (one, last), (other, other_last) = (drawn_after(state, key) for key in rollouts.keys[:2])
    ended = np.asarray(found) & last & other_last
    # Steps that end nothing show whether the state before a step counts at all.
    running, running_last = drawn_after(rollouts.start[0], rollouts.keys[0])
    if min(ended.sum(), (~running_last).sum()) < MIN_SELF_RESETS:
        return
    same_for_one_key = all(all_rows_equal(leaf[ended]) for leaf in [*one, *other])
    other_for_another = any(not np.array_equal(a[ended], b[ended]) for a, b in zip(one, other, strict=True))
    if (
        same_for_one_key
        and other_for_another
        and not all(all_rows_equal(leaf[~running_last]) for leaf in running)
    ):
        yield Finding(
            "self-reset",
            f"the state after an end does not depend on the state before it: the last steps of {ended.sum()} different "
            "episodes, made again with one key, return the same state, as reset would; return the state in which the "
            "episode ended, since the batch calls reset on the next step",
        )


def _before_first_end(env: Environment, start: Result, keys: StepKeys) -> tuple[State, PyTree, Array]:
    """Return the state and the action before the first end of random steps, and whether there was one."""

    def step(
        carry: tuple[Result, PyTree, Array], keys: StepKeys
    ) -> tuple[tuple[Result, PyTree, Array], None]:
        (state, timestep), saved, found = carry
        step_key, _, action_key = keys
        action = sample_action(env, action_key, timestep.action_mask)
        after = env.step(state, action, step_key)
        saved = where(found, saved, (state, action))
        after = where(found, (state, timestep), after)
        return (after, saved, found | after[1].last), None

    first = sample_action(env, keys[2][0], start[1].action_mask)
    (_, saved, found), _ = jax.lax.scan(step, (start, (start[0], first), start[1].last), keys)
    return *saved, found
