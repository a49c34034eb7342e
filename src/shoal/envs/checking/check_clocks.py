"""Check for time limits that terminate: ends of episodes that a clock in the state alone brings about."""

import functools
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


class Clock(NamedTuple):
    """A number in the state that shows the time: element `element` of the leaf `name`.

    Either it changes by `rate` at every step, or it runs through `course`, the same in every episode: its
    values after a reset and after each following step.
    """

    name: str
    element: int
    rate: float = 0.0
    course: np.ndarray | None = None

    def advance(self, leaf: np.ndarray, steps: int) -> np.ndarray:
        """Move this clock forward by some steps in the leaves [N, ...] of N states."""
        flat = leaf.reshape(len(leaf), -1).copy()
        if self.course is not None:
            flat[:, self.element] = self.course[steps]
            return flat.reshape(leaf.shape)
        target = flat[:, self.element].astype(np.float64) + self.rate * steps
        if leaf.dtype.kind in "iu":
            bounds = np.iinfo(leaf.dtype)
            target = np.clip(target, bounds.min + 1, bounds.max - 1)
        flat[:, self.element] = target.astype(leaf.dtype)
        return flat.reshape(leaf.shape)


def check_clocks(rollouts: Rollouts, lengths: Sequence[int]) -> Iterator[Finding]:
    """Move every clock of the state forward: an end by the clock alone should be a truncation.

    A clock that the observation or the reward shows is part of the task, and may terminate it. `lengths` are
    those of the episodes that ended.
    """
    step = _random_step(rollouts)
    state, action_mask, action_keys, keys = _early_states(rollouts, step)
    leaves = {
        name: np.asarray(leaf)
        for name, leaf in named_leaves(state).items()
        if name in rollouts.first.small_leaves
    }

    def step_at(clock: Clock, steps: int) -> Any:
        """Return the time-steps of one step from the early states, the clock moved forward."""
        # Only this leaf is replaced: the others may be keys, which NumPy does not hold.
        named = {**named_leaves(state), clock.name: clock.advance(leaves[clock.name], steps)}
        advanced = with_named_leaves(state, named)
        arguments = advanced, action_mask, action_keys, keys
        halves = [jax.tree.map(lambda x, i=i: jax.numpy.split(x, 2)[i], arguments) for i in (0, 1)]
        return jax.tree.map(lambda *x: np.concatenate(x), *(step(*half)[1] for half in halves))

    first_end_of = _first_end_function(rollouts)
    counters, changeable = list(_counters(rollouts)), _changeable_leaves(rollouts)
    for clock in [*counters, *_fixed_clocks(rollouts, counters)]:
        if clock.name in changeable:
            continue
        limit = _clock_limit(clock, step_at, first_end_of, lengths)
        if limit:
            kind = "counter" if clock.course is None else "clock"
            yield Finding(
                "truncation",
                f"the {kind} `{clock.name}` of the state alone ends the episode after {limit} steps with "
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

    def step(state: Any, mask: Any, action_key: jax.Array, key: jax.Array) -> Any:
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


def _clock_limit(
    clock: Clock, step_at: Callable[..., Any], first_end: Callable[[Clock, int], int], lengths: Sequence[int]
) -> int:
    """Return the number of steps after which the clock alone ends every episode with discount 0; 0 if it does not."""
    before = step_at(clock, 0)
    if clock.course is not None:
        running = np.flatnonzero(~before.last)
        steps = first_end(clock, int(running[0])) if running.size else 0
        return steps + 1 if steps and _clock_alone_ends(before, step_at(clock, steps)) else 0
    for steps in (FAR_STEPS, max(lengths) - 1):
        if _clock_alone_ends(before, step_at(clock, steps)):
            return 1 + (
                _bisect(lambda n: _clock_alone_ends(before, step_at(clock, n)), FAR_STEPS)
                if steps == FAR_STEPS
                else steps
            )
    return 0


def _first_end_function(rollouts: Rollouts) -> Callable[[Clock, int], int]:
    """Make a function of a clock with a course and an environment's index: the first place of the course that ends it.

    Ends count only with discount 0; the result is 0 if there is none. A course may pass a limit and fall
    below it again, as a product that overflows does, so every place is tried.
    """
    state, timestep = rollouts.start

    @functools.partial(jax.jit, static_argnames="name", compiler_options=QUICK_COMPILE)
    def ends_by_course(
        name: str, element: Any, course: jax.Array, start: Any, action: Any, key: jax.Array
    ) -> jax.Array:
        leaf = named_leaves(start)[name]

        def is_end_at(value: jax.Array) -> jax.Array:
            changed = leaf.reshape(-1).at[element].set(value).reshape(leaf.shape)
            next_timestep = rollouts.env.step(
                with_named_leaves(start, {**named_leaves(start), name: changed}), action, key
            )[1]
            return next_timestep.last & (next_timestep.discount == 0).all()

        return jax.lax.map(is_end_at, course)

    def first_end(clock: Clock, i: int) -> int:
        start, mask = jax.tree.map(lambda leaf: leaf[i], (state, timestep.action_mask))
        action = sample_action(rollouts.env, rollouts.action_keys[i], mask)
        is_end = ends_by_course(clock.name, clock.element, clock.course, start, action, rollouts.keys[i])
        return int(np.argmax(is_end))

    return first_end


def _episode_steps(rollouts: Rollouts) -> tuple[np.ndarray, np.ndarray]:
    """Report which steps of the first block start from a running episode [N, T], and each state's age [N, T+1]."""
    start, last = np.asarray(rollouts.start[1].last)[:, None], rollouts.first.timesteps.last
    is_running = ~np.concatenate([start, last[:, :-1]], axis=1)
    age = np.zeros((len(last), last.shape[1] + 1), np.int64)
    for t in range(last.shape[1]):
        age[:, t + 1] = np.where(is_running[:, t], age[:, t] + 1, 0)
    return is_running, age


def _leaf_values(rollouts: Rollouts, name: str, course: np.ndarray) -> np.ndarray:
    """Return all values of a leaf from the start on: [N, T+1, elements]."""
    start = np.asarray(named_leaves(rollouts.start[0])[name]).reshape(len(course), 1, -1)
    return np.concatenate([start, course], axis=1)


def _counters(rollouts: Rollouts) -> Iterator[Clock]:
    """Yield every number in the state that changes by the same amount at every step."""
    is_running, _ = _episode_steps(rollouts)
    for name, course in rollouts.first.small_leaves.items():
        if course.dtype == np.bool_:
            continue
        rates = np.diff(_leaf_values(rollouts, name, course).astype(np.float64), axis=1)[is_running]
        for element in range(min(rates.shape[-1], MAX_LEAF_SIZE)):
            rate = rates[:, element]
            if len(rate) and rate[0] != 0 and np.allclose(rate, rate[0], rtol=1e-3):
                yield Clock(name, element, rate=float(rate[0]))


def _fixed_clocks(rollouts: Rollouts, counters: Sequence[Clock]) -> list[Clock]:
    """Return every other number that changes and is the same at the same step of every episode, for all actions.

    So it depends on nothing but the time: a product, a power that decays, a number that jumps. Its course is
    the observed one, and longer where it can be iterated without the rest of the state.
    """
    known = {(clock.name, clock.element) for clock in counters}
    _, age = _episode_steps(rollouts)
    clocks = []
    for name, course in rollouts.first.small_leaves.items():
        values = _leaf_values(rollouts, name, course)
        values_by_age = np.zeros((age.max() + 1, values.shape[-1]), values.dtype)
        values_by_age[age] = values
        is_same = (values_by_age[age] == values).all(axis=(0, 1)) & (values_by_age != values_by_age[0]).any(
            axis=0
        )
        clocks += [
            Clock(name, int(element), course=values_by_age[:, element])
            for element in np.flatnonzero(is_same)
            if (name, element) not in known
        ]
    return _extend_courses(rollouts, clocks[:MAX_LEAF_SIZE])


def _extend_courses(rollouts: Rollouts, clocks: list[Clock]) -> list[Clock]:
    """Extend courses to the most steps, where iterating the clocks alone gives the observed course."""
    if not clocks:
        return []
    env, max_steps = rollouts.env, rollouts.sizes.max_steps
    state, timestep = jax.tree.map(lambda leaf: leaf[0], rollouts.start)
    action = sample_action(env, rollouts.action_keys[0], timestep.action_mask)

    def values_of(state: Any) -> list[jax.Array]:
        leaves = named_leaves(state)
        return [leaves[clock.name].reshape(-1)[clock.element] for clock in clocks]

    def step_clocks(values: list[jax.Array], _: None) -> Any:
        leaves = named_leaves(state)
        for clock, value in zip(clocks, values, strict=True):
            leaf = leaves[clock.name]
            leaves[clock.name] = leaf.reshape(-1).at[clock.element].set(value).reshape(leaf.shape)
        after = values_of(env.step(with_named_leaves(state, leaves), action, rollouts.keys[0])[0])
        return after, after

    iterate = jax.jit(
        lambda values: jax.lax.scan(step_clocks, values, length=max_steps)[1], compiler_options=QUICK_COMPILE
    )
    return [
        clock._replace(
            course=_longer_course(clock.course, np.append(np.asarray(first)[None], np.asarray(course)))
        )
        for clock, first, course in zip(clocks, values_of(state), iterate(values_of(state)), strict=True)
    ]


def _longer_course(observed: Any, iterated: np.ndarray) -> np.ndarray:
    """Return the iterated course where it begins with the observed one, else the observed one."""
    return iterated if np.array_equal(iterated[: len(observed)], observed[: len(iterated)]) else observed


def _clock_alone_ends(before: Any, after: Any) -> bool:
    """Report whether moving the clock ended every environment with discount 0 and changed nothing else."""
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
