"""Check for time limits that terminate: ends of episodes that a counter in the state alone brings about."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.config.struct import named_leaves, where, with_named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_flow import trace_flow
from shoal.envs.checking.check_rollouts import MAX_LEAF_SIZE, QUICK_COMPILE, Rollouts
from shoal.envs.checking.check_traces import sample_action

FAR_STEPS = 1_000_000  # steps: a counter moved this far has passed any limit


class Counter(NamedTuple):
    """A number in the state that changes by `rate` at every step: element `element` of the leaf `name`."""

    name: str
    element: int
    rate: float

    def advance(self, leaf: np.ndarray, steps: int) -> np.ndarray:
        """Move this counter forward by some steps in the leaves [N, ...] of N states."""
        flat = leaf.reshape(len(leaf), -1).copy()
        target = flat[:, self.element].astype(np.float64) + self.rate * steps
        if leaf.dtype.kind in "iu":
            bounds = np.iinfo(leaf.dtype)
            target = np.clip(target, bounds.min + 1, bounds.max - 1)
        flat[:, self.element] = target.astype(leaf.dtype)
        return flat.reshape(leaf.shape)


def check_clocks(rollouts: Rollouts, lengths: Sequence[int]) -> Iterator[Finding]:
    """Move every counter of the state forward: an end by the counter alone should be a truncation.

    A counter that the observation or the reward shows is part of the task, and may terminate it. `lengths` are
    those of the episodes that ended.
    """
    step = _random_step(rollouts)
    state, action_mask, action_keys, keys = _early_states(rollouts, step)
    leaves = {
        name: np.asarray(leaf)
        for name, leaf in named_leaves(state).items()
        if name in rollouts.first.small_leaves
    }

    def step_at(counter: Counter, steps: int) -> Any:
        """Return the time-steps of one step from the early states, the counter moved forward."""
        # Only this leaf is replaced: the others may be keys, which NumPy does not hold.
        named = {**named_leaves(state), counter.name: counter.advance(leaves[counter.name], steps)}
        advanced = with_named_leaves(state, named)
        arguments = advanced, action_mask, action_keys, keys
        halves = [jax.tree.map(lambda x, i=i: jax.numpy.split(x, 2)[i], arguments) for i in (0, 1)]
        return jax.tree.map(lambda *x: np.concatenate(x), *(step(*half)[1] for half in halves))

    changeable = _changeable_leaves(rollouts)
    for counter in _counters(rollouts):
        limit = 0 if counter.name in changeable else _limit(counter, step_at, lengths)
        if limit:
            yield Finding(
                "truncation",
                f"the counter `{counter.name}` of the state alone ends the episode after {limit} steps with "
                "discount 0, though neither observation nor reward shows it; a time limit is a "
                "truncation, so discount 1 would be right",
            )
            return


def _early_states(rollouts: Rollouts, step: Callable[..., Any]) -> Any:
    """Return the states of the start and those one step later, whose reward may depend on the first action.

    Returns:
      states, masks of actions, keys of actions and of steps, each [2 N]; a start twice if its episode ends at once.
    """
    keys = rollouts.action_keys, rollouts.keys
    state, timestep = rollouts.start
    first = state, timestep.action_mask
    state, timestep = step(*first, *keys)
    second = where(timestep.last, first, (state, timestep.action_mask))
    return jax.tree.map(_join, (*first, *keys), (*second, *keys))


def _join(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.numpy.concatenate([x, y])


def _random_step(rollouts: Rollouts) -> Any:
    """Compile a step of many worlds by random actions: of states, masks, keys of actions and keys of steps."""

    def step(state: object, mask: object, action_key: jax.Array, key: jax.Array) -> Any:
        return rollouts.env.step(state, sample_action(rollouts.env, action_key, mask), key)

    return jax.jit(jax.vmap(step), compiler_options=QUICK_COMPILE)


def _changeable_leaves(rollouts: Rollouts) -> set[str]:
    """Return the scalars of the state that a step computes from more than the time, such as hunger that food ends.

    Random actions may never have changed them. What only depends on itself and on other such numbers is a clock. In an
    array of several numbers the one that counts may be independent of what changes the others.
    """
    env, (state, timestep) = rollouts.env, jax.tree.map(lambda leaf: leaf[0], rollouts.start)
    action = sample_action(env, rollouts.action_keys[0], timestep.action_mask)
    flow = trace_flow(jax.make_jaxpr(env.step)(state, action, rollouts.keys[0]))
    names = list(named_leaves(state))
    clocks = set(range(len(names)))
    while dependent := {i for i in clocks if not flow.results[i].sources <= clocks}:
        clocks -= dependent
    return {
        name for i, name in enumerate(names) if i not in clocks and np.ndim(named_leaves(state)[name]) == 0
    }


def _limit(counter: Counter, step_at: Callable[..., object], lengths: Sequence[int]) -> int:
    """Return the number of steps after which the counter alone ends every episode with discount 0; 0 if it does not."""
    before = step_at(counter, 0)
    for steps in (FAR_STEPS, max(lengths) - 1):
        if _counter_alone_ends(before, step_at(counter, steps)):
            return 1 + (
                _bisect(lambda n: _counter_alone_ends(before, step_at(counter, n)), FAR_STEPS)
                if steps == FAR_STEPS
                else steps
            )
    return 0


def _running_steps(rollouts: Rollouts) -> np.ndarray:
    """Report which steps of the first block start from a running episode [N, T]."""
    start, last = np.asarray(rollouts.start[1].last)[:, None], rollouts.first.timesteps.last
    return ~np.concatenate([start, last[:, :-1]], axis=1)


def _counters(rollouts: Rollouts) -> Iterator[Counter]:
    """Yield every number in the state that changes by the same amount at every step."""
    is_running = _running_steps(rollouts)
    for name, course in rollouts.first.small_leaves.items():
        if course.dtype == np.bool_:
            continue
        start = np.asarray(named_leaves(rollouts.start[0])[name]).reshape(len(course), 1, -1)
        values = np.concatenate([start, course], axis=1).astype(np.float64)  # [N, T+1, elements]
        rates = np.diff(values, axis=1)[is_running]
        for element in range(min(rates.shape[-1], MAX_LEAF_SIZE)):
            rate = rates[:, element]
            if len(rate) and rate[0] != 0 and np.allclose(rate, rate[0], rtol=1e-3):
                yield Counter(name, element, float(rate[0]))


def _counter_alone_ends(before: Any, after: Any) -> bool:
    """Report whether moving the counter ended every environment with discount 0 and changed nothing else."""
    running = ~before.last
    if not running.any() or not after.last[running].all() or (after.discount[running] != 0).any():
        return False
    visible = (before.observation, before.reward), (after.observation, after.reward)
    pairs = zip(*map(jax.tree.leaves, visible), strict=True)
    return all(np.allclose(a[running], b[running], rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs)


def _bisect(holds: Callable[[int], bool], limit: int) -> int:
    """Return the least n for which `holds(n)`, which is assumed to hold from there to `limit`."""
    low, high = 0, limit
    while low < high:
        candidate = (low + high) // 2
        low, high = (low, candidate) if holds(candidate) else (candidate + 1, high)
    return low
