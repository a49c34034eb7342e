"""Check for time limits that terminate: ends of episodes that a counter in the state alone brings about."""

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from shoal.config.struct import named_leaves, where, with_named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_flow import trace_flow
from shoal.envs.checking.check_rollouts import Rollouts, jit_quickly
from shoal.envs.checking.check_traces import Result, sample_action
from shoal.types import Array, PyTree, State, TimeStep

FAR_STEPS = 1_000_000  # steps: a counter moved this far has passed any limit


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
            target = np.clip(target, bounds.min + 1, bounds.max - 1)
        flat[:, self.element] = target.astype(leaf.dtype)
        return with_named_leaves(state, named_leaves(state) | {self.name: flat.reshape(leaf.shape)})


def check_clocks(rollouts: Rollouts, lengths: Sequence[int]) -> Iterator[Finding]:
    """Move every counter of the state forward: an end by the counter alone should be a truncation.

    A counter that the observation or the reward shows is part of the task, and may terminate it. `lengths` are
    those of the episodes that ended.
    """

    @jit_quickly
    @jax.vmap
    def random_step(state: State, mask: PyTree, action_key: Array, key: Array) -> Result:
        return rollouts.env.step(state, sample_action(rollouts.env, action_key, mask), key)

    keys = rollouts.action_keys, rollouts.keys
    state, timestep = rollouts.start
    first = state, timestep.action_mask
    state, timestep = random_step(*first, *keys)
    # A reward may depend on the first action, so that states one step later are moved too; a start twice if it ended.
    early = first, where(timestep.last, first, (state, timestep.action_mask))

    def step_at(counter: Counter, steps: int) -> TimeStep:
        """Return the time-steps of one step from the early states, the counter moved forward, [2 N]."""
        after = [random_step(counter.advance(state, steps), mask, *keys)[1] for state, mask in early]
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
