"""Checks of the ends of episodes: that they exist, and whether an end is a termination or a truncation."""

import bisect
import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from shoal.config.struct import named_leaves, where, with_named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_flow import trace_flow
from shoal.envs.checking.check_keys import is_key
from shoal.envs.checking.check_rollouts import Rollouts, StepKeys, check_block, jit_quickly
from shoal.envs.checking.check_traces import Result, all_rows_equal, sample_action
from shoal.types import Array, Environment, PyTree, State, TimeStep

MIN_EPISODES = 8  # episodes that are needed to judge their lengths
MIN_SELF_RESETS = 3  # episodes whose last steps are compared
FAR_STEPS = 1_000_000  # steps: a counter moved this far has passed any limit


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
    yield from _check_clocks(rollouts, lengths)
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
    # Rewards that are all equal still differ by rounding.
    beyond = np.maximum(low - rewards[last], rewards[last] - high)
    if beyond.max() <= max(2 * (high - low), 1e-6 * max(abs(low), abs(high))):
        return
    other = rollouts.block_after(rollouts.start, 0, rollouts.other_actions)
    if np.array_equal(other.timesteps.last, rollouts.first.timesteps.last):
        return
    yield Finding(
        "termination",
        f"none of {len(lengths)} ends has discount 0, although the actions decide whether episodes end after "
        f"{min(lengths)} or {max(lengths)} steps, and an end has reward {rewards[last][np.argmax(beyond)]:.6g} where "
        f"other steps have {low:.6g} to {high:.6g}; an end that depends on what happens is a termination (discount 0)",
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
    # Other leaves are equal after every reset, and so after many an end.
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
        # A copy, since some write into what they are given, which has been found by then.
        after = env.step(jax.tree.map(lambda leaf: leaf, state), action, step_key)
        saved = where(found, saved, (state, action))
        after = where(found, (state, timestep), after)
        return (after, saved, found | after[1].last), None

    first = sample_action(env, keys[2][0], start[1].action_mask)
    (_, saved, found), _ = jax.lax.scan(step, (start, (start[0], first), start[1].last), keys)
    return *saved, found


class Counter(NamedTuple):
    """A number in the state that changes by `rate` at every step: element `element` of the leaf `name`."""

    name: str
    element: int
    rate: float

    def advance(self, state: State, steps: int) -> State:
        """Move this counter forward by some steps in N states."""
        # Only this leaf is made NumPy's: others may be keys, which NumPy does not hold.
        leaf = np.asarray(named_leaves(state)[self.name])
        flat = leaf.reshape(len(leaf), -1).copy()
        target = flat[:, self.element].astype(np.float64) + self.rate * steps
        if leaf.dtype.kind in "iu":
            bounds = np.iinfo(leaf.dtype)
            # Not to the bound itself, since the step counts once more and would overflow.
            target = np.clip(target, bounds.min + 1, bounds.max - 1)
        flat[:, self.element] = target.astype(leaf.dtype)
        return with_named_leaves(state, named_leaves(state) | {self.name: flat.reshape(leaf.shape)})


def _check_clocks(rollouts: Rollouts, lengths: Sequence[int]) -> Iterator[Finding]:
    """Move every counter of the state forward: an end by the counter alone should be a truncation.

    A counter that the observation or the reward shows is part of the task, and may terminate it. `lengths` are
    those of the episodes that ended.
    """

    @jit_quickly
    @jax.vmap
    def random_step(state: State, mask: PyTree, action_key: Array, key: Array) -> Result:
        return rollouts.env.step(state, sample_action(rollouts.env, action_key, mask), key)

    # The same keys for all steps, so that only the counter makes a difference.
    keys = rollouts.action_keys, rollouts.keys
    state, timestep = rollouts.start
    first = state, timestep.action_mask
    state, timestep = random_step(*first, *keys)
    # A reward may depend on the first action, so that states one step later are moved too; a start twice if it ended.
    second = where(timestep.last, first, (state, timestep.action_mask))
    early = (0, *first), (1, *second)  # with the steps that a counter has made

    def step_at(counter: Counter, steps: int) -> TimeStep:
        """Return one step from each early state, with the counter that many steps after the start, [2 N]."""
        after = [random_step(counter.advance(x, max(0, steps - n)), mask, *keys)[1] for n, x, mask in early]
        return jax.tree.map(lambda *x: np.concatenate(x), *after)

    def limit_of(counter: Counter) -> int:
        """Return the steps after which the counter alone ends every episode with discount 0; 0 if it does not."""
        before = step_at(counter, 0)

        def ends(steps: int) -> bool:
            return _counter_alone_ends(before, step_at(counter, steps))

        if ends(FAR_STEPS):
            return 1 + bisect.bisect_left(range(FAR_STEPS), True, key=ends)
        return max(lengths) if ends(max(lengths) - 1) else 0

    changeable = _changeable_leaves(rollouts)
    for counter in _counters(rollouts):
        if counter.name not in changeable and (limit := limit_of(counter)):
            yield Finding(
                "truncation",
                f"the counter `{counter.name}` of the state alone ends the episode after {limit} steps with "
                "discount 0, though neither observation nor reward shows it; a time limit is a "
                "truncation, so discount 1 would be right",
            )
            return


def _changeable_leaves(rollouts: Rollouts) -> set[str]:
    """Return the scalars of the state that a step computes from more than the time, such as hunger that food ends.

    Random actions may never have changed them. What only depends on itself and on other such numbers is a clock. In an
    array of several numbers the one that counts may be independent of what changes the others.
    """
    env, (state, timestep) = rollouts.env, jax.tree.map(lambda leaf: leaf[0], rollouts.start)
    action = sample_action(env, rollouts.action_keys[0], timestep.action_mask)
    flow = trace_flow(jax.make_jaxpr(env.step)(state, action, rollouts.keys[0]))
    leaves = named_leaves(state)
    clocks = set(range(len(leaves)))
    while dependent := {i for i in clocks if not flow.results[i].sources <= clocks}:
        clocks -= dependent
    return {name for i, (name, leaf) in enumerate(leaves.items()) if i not in clocks and np.ndim(leaf) == 0}


def _counters(rollouts: Rollouts) -> Iterator[Counter]:
    """Yield every number in the state that changes by the same amount at every step."""
    start, last = np.asarray(rollouts.start[1].last)[:, None], rollouts.first.timesteps.last
    is_running = ~np.concatenate([start, last[:, :-1]], axis=1)
    for name, course in rollouts.first.small_leaves.items():
        if course.dtype == np.bool_:
            continue
        before = np.asarray(named_leaves(rollouts.start[0])[name]).reshape(len(course), 1, -1)
        values = np.concatenate([before, course], axis=1).astype(np.float64)  # [N, T+1, elements]
        rates = np.diff(values, axis=1)[is_running]
        for element in range(rates.shape[-1]):
            rate = rates[:, element]
            if len(rate) and rate[0] != 0 and np.allclose(rate, rate[0], rtol=1e-3):
                yield Counter(name, element, float(rate[0]))


def _counter_alone_ends(before: TimeStep, after: TimeStep) -> bool:
    """Report whether moving the counter ended every environment with discount 0 and changed nothing else."""
    running = ~before.last
    if not running.any() or not after.last[running].all() or (after.discount[running] != 0).any():
        return False
    visible = (before.observation, before.reward), (after.observation, after.reward)
    pairs = zip(*map(jax.tree.leaves, visible), strict=True)
    return all(np.allclose(a[running], b[running], rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)
