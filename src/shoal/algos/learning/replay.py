"""Replay: one ring of time-steps per environment, from which windows of successive steps are drawn.

A ring has C rows, each a time-step: the observation, the action, and the reward and discount of the step that follows.
The next observation is the next row, since the true final observation of an episode is a time-step of its own. All
rings together are `StoredSteps` [N, C, ...] and belong in `Learner.local`. The counter `written`, which is the same for
all environments, belongs in `Learner.shared`: the newest time-step is in row `written mod C`. It has no action yet, and
is written again, complete, as the first of the next rollout.

The age of a row is its distance from the newest: age 1 is the latest complete step, min(written, C-1) the oldest that
is kept. All environments and ages are drawn alike. Rows whose episode is over (`last`, or not `alive`) start no
transition and have weight 0, so a mean over a batch is sum(w x) / sum(w). Several agents are streams, N A in the place
of N (`shoal.types.agent_axis`).

With `prioritized_replay` the rings have priorities (`priorities.py`), by which `sample` draws.

    ring, written = write(ring, written, stored_steps(trajectory))
    window = sample(key, ring, written, batch_size, n)
    target = n_step_return(window, gamma)
    start, end = steps_at(ring, window, 0), steps_at(ring, window, target.steps)

Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning"; windows as in Hessel et al. 2018,
"Rainbow", section 3.
"""

import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.learning import priorities
from shoal.algos.learning.priorities import Priorities
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.types import Array, Clock, EnvSpec, PyTree, Trajectory, spaces, transitions


class StoredSteps(NamedTuple):
    """Time-steps with the step that follows: rings [N, C, ...], a rollout [T+1, N, ...], or a batch [B, ...]."""

    observation: PyTree
    action: PyTree
    reward: Array  # of the step that follows
    discount: Array  # of the step that follows: 0 exactly if it terminated the episode
    last: Array  # whether the observation ends its episode, so that no transition starts here
    action_mask: Array | None = None
    alive: Array | None = None  # False ends a stream as `last` does; None: it is in `last` already
    extras: PyTree = ()  # the algorithm's own, such as the log-probability of the action
    priorities: Priorities | None = None  # of rings alone: rows are drawn by them; None: all alike


class Window(NamedTuple):
    """The n steps from each of B starts, time-major. Steps of weight 0 come after all others, and may hold NaN."""

    env: Array  # [B]
    start: Array  # the row of the first step, [B]
    reward: Array  # [n, B]
    discount: Array  # the environment's, [n, B]
    last: Array  # whether the step led to the end of its episode, [n, B]
    weight: Array  # 0 after the end of an episode and from the newest time-step on, else 1, [n, B]
    probability: Array | None = None  # with which the start was drawn, [B]; None: all alike


class NStepReturn(NamedTuple):
    """The parts of the target, reward + discount * value, of the first action of each window, [B] each."""

    reward: Array  # the discounted sum of the rewards
    discount: Array  # γ^k; 0 where the episode terminated, and where the weight is 0
    steps: Array  # k, the steps that are summed; the value is that of the observation there
    weight: Array  # 0 where no transition starts


_PRIORITIZED = Needs("prioritized_replay", (True,))


@struct.struct
class ReplayConfig:
    """Settings of the replay; all counts of steps are of all environments together."""

    group: ClassVar[str] = "replay"

    buffer_size: int = parameter(
        10_000, low=1, high=10**9, group="most used"
    )  # twice the rows are counted in 32 bits
    """Keeps this many of the latest environment steps, of all environments together."""
    batch_size: int = parameter(128, low=1, high=LARGEST_INDEX, group="most used")
    """Draws this many transitions for each gradient step."""
    learning_starts: int = parameter(10_000, low=0, high=LARGEST_INDEX, group="most used")
    """Makes no gradient step before this many environment steps, of all environments together."""
    train_frequency: int = parameter(10, low=1, high=10**9, group="most used")
    """Learns once in this many environment steps, of all environments together."""
    gradient_steps: int = parameter(1, low=1, high=10_000)
    """Makes this many gradient steps each time that it learns (train_frequency)."""
    n_step: int = parameter(1, low=1, high=LARGEST_INDEX, group="most used")
    """Sums the rewards of this many steps before the value that is bootstrapped; fewer at the end of an episode."""
    prioritized_replay: bool = False
    """Draws transitions of great errors more often (Schaul et al. 2016), with less weight in the loss."""
    prioritized_replay_alpha: float = parameter(0.5, low=0.0, high=1.0, needs=_PRIORITIZED)
    """Draws each transition in proportion to its error to this power (prioritized_replay)."""
    prioritized_replay_beta: float = parameter(0.4, low=0.0, high=1.0, needs=_PRIORITIZED)
    """Weights each loss by its probability to minus this power at the start of training, which rises to 1
    (prioritized_replay)."""
    prioritized_replay_eps: float = parameter(1e-6, above=0.0, needs=_PRIORITIZED)
    """Adds this to each error, so that every transition may be drawn again (prioritized_replay)."""

    def num_rows(self, num_envs: int) -> int:
        """Return C, for the number of all environments: the steps that each ring keeps, and the newest time-step."""
        return math.ceil(self.buffer_size / num_envs) + 1

    def validate(self, num_envs: int, num_steps: int) -> None:
        """Check the sizes against each other and against a rollout.

        Args:
          num_envs: of all groups together.
          num_steps: of each environment in a rollout.
        Raises:
          ShoalError: the first setting that cannot work.
        """
        kept, size = self.num_rows(num_envs) - 1, self.buffer_size
        keeps = f"buffer_size={size} keeps {kept} steps of each of {num_envs} environments"
        if kept < num_steps:
            raise ShoalError(
                f"{keeps}, fewer than the num_steps={num_steps} of a rollout; it must be at least "
                f"{num_envs * num_steps}."
            )
        if kept < self.n_step:
            raise ShoalError(
                f"{keeps}, fewer than n_step={self.n_step}; choose buffer_size={num_envs * self.n_step}, or "
                f"n_step={kept}."
            )
        for name in ("batch_size", "learning_starts"):
            if (value := getattr(self, name)) > size:
                raise ShoalError(
                    f"{name}={value} is greater than buffer_size={size}; it must be at most {size}."
                )
        steps, every = num_envs * num_steps, self.train_frequency
        if math.lcm(steps, every) // math.gcd(steps, every) > LARGEST_INDEX:
            multiple = max(every // steps, 1) * steps
            raise ShoalError(
                f"train_frequency={every} and num_envs*num_steps={steps} have no common divisor that is large enough "
                f"to count with; train_frequency={multiple}, a multiple, works."
            )


def num_groups(axis: tuple[str, ...]) -> int:
    """Return the number of groups of environments that train one network together."""
    return jax.lax.axis_size(axis) if axis else 1


def new_ring(
    config: ReplayConfig,
    spec: EnvSpec,
    action: Array,
    extras: PyTree,
    num_envs: int,
    streams: int,
    axis: tuple[str, ...],
) -> StoredSteps:
    """Make the empty rings of a group's streams [N, C, ...].

    Args:
      spec: of the observations that are kept.
      action: one action as it is kept, and `extras` one step's of the algorithm's own, for shapes and dtypes.
      streams: of each environment (`shoal.types.agent_axis`).
    Raises:
      ShoalError: the priorities are more than 32 bits can count.
    """
    number, flag = jnp.zeros(()), jnp.zeros((), bool)
    mask = _all_masks(spec, flag, None)
    step = StoredSteps(
        spaces.zeros(spec.observation_space), action, number, number, flag, mask, extras=extras
    )
    num_worlds = num_envs // streams * num_groups(axis)
    num_rows = config.num_rows(num_worlds)
    # A tree has two entries for each row, of the next power of two, and all trees have one index.
    most = 2 ** ((LARGEST_INDEX // (2 * num_envs)).bit_length() - 1)
    if config.prioritized_replay and num_rows > most:
        raise ShoalError(
            f"buffer_size={config.buffer_size} has more priorities than 32 bits can count; with "
            f"prioritized_replay=True it must be at most {(most - 1) * num_worlds}."
        )
    ring = empty_ring(step, num_envs, num_rows)
    return ring._replace(
        priorities=priorities.empty(num_envs, num_rows) if config.prioritized_replay else None
    )


def collect(
    config: ReplayConfig,
    spec: EnvSpec,
    ring: StoredSteps,
    written: Array,
    trajectory: Trajectory,
    clock: Clock,
    streams: int,
    axis: tuple[str, ...],
) -> tuple[StoredSteps, Array, Array]:
    """Write a rollout into the rings; return them, `written`, and the number of gradient steps that are due."""
    steps = stored_steps(trajectory)
    # A ring was made before the first time-step, when nobody knew whether there are masks; so it always has them.
    steps = steps._replace(alive=None, action_mask=_all_masks(spec, steps.last, steps.action_mask))
    ring, written = write(ring, written, steps)
    num_steps, num_streams = transitions(trajectory).weight.shape
    num_worlds = num_streams // streams * num_groups(axis)
    due = num_gradient_steps(config, clock.updates, num_worlds * num_steps)
    # By the clock they would be due in a run that resumed without its replay, too, whose rings are still empty.
    return ring, written, jnp.where(has_started(config, ring, written, num_worlds), due, 0)


def _all_masks(spec: EnvSpec, last: Array, mask: Array | None) -> Array:
    """Return the mask of each time-step, [..., A]; whether an environment has masks, its spec does not say."""
    if mask is not None:
        return mask
    space = spec.action_space
    size = space.n if isinstance(space, spaces.Discrete) else spaces.zeros(space).size
    return jnp.ones((*last.shape, size), bool)


def num_gradient_steps(config: ReplayConfig, updates: Array, rollout_steps: int) -> Array:
    """Compute how many gradient steps follow a rollout: 0 during the warm-up.

    The steps of all environments are numbered from 0. Each number that is above `learning_starts` and a multiple of
    `train_frequency` calls for `gradient_steps`, which are made after its rollout: after S steps in all these are

        gradient_steps * max(0, floor((S-1) / train_frequency) - floor(learning_starts / train_frequency))

    For one environment and rollouts of one step this is CleanRL's `global_step > learning_starts and global_step %
    train_frequency == 0`.

    Args:
      updates: the number of earlier updates, int32 (`Clock.updates`), so that there may be more steps than 32 bits
        count.
      rollout_steps: N T, of all environments together.
    Returns:
      an int32 of the shape of `updates`.
    """
    every, starts = config.train_frequency, config.learning_starts
    first = starts // rollout_steps  # the update in which the warm-up ends
    in_first = ((first + 1) * rollout_steps - 1) // every - starts // every
    divisor = math.gcd(every, rollout_steps)
    period, stride = every // divisor, rollout_steps // divisor  # the counts repeat after `period` updates
    begin = updates % period * stride
    # The multiples of `period` from `begin` on, below `begin + stride`.
    count = (begin + stride - 1) // period - (begin - 1) // period
    count = jnp.where(updates > first, count, jnp.where(updates == first, in_first, 0))
    return (config.gradient_steps * count).astype(jnp.int32)


def has_started(config: ReplayConfig, ring: StoredSteps, written: Array, num_envs: int) -> Array:
    """Report whether the rings hold `learning_starts` steps, which those of a resumed run need not.

    Args:
      num_envs: of all groups together, worlds where there are several agents.
    """
    return jnp.minimum(written, ring.last.shape[1] - 1) * num_envs >= config.learning_starts


def empty_ring(step: StoredSteps, num_envs: int, num_rows: int) -> StoredSteps:
    """Make rings of zeros [N, C, ...]; `step` is one time-step, of arrays or their shapes and dtypes."""
    return jax.tree.map(lambda x: jnp.zeros((num_envs, num_rows, *x.shape), x.dtype), step)


def stored_steps(trajectory: Trajectory) -> StoredSteps:
    """Lay out a rollout as rows [T+1, N, ...]; the step that follows the last of them is not known yet, and zeros."""

    def with_newest(x: Array) -> Array:
        return jnp.concatenate([x, jnp.zeros_like(x[:1])])

    timesteps = trajectory.timesteps
    following = (trajectory.actions, timesteps.reward[1:], timesteps.discount[1:], trajectory.extras)
    action, reward, discount, extras = jax.tree.map(with_newest, following)
    return StoredSteps(
        *(timesteps.observation, action, reward, discount),
        *(timesteps.last, timesteps.action_mask, timesteps.alive, extras),
    )


def write(ring: StoredSteps, written: Array, steps: StoredSteps) -> tuple[StoredSteps, Array]:
    """Write the T+1 time-steps of a rollout, which begins with the last one of the rollout before it.

    A compiled program writes in place, with the work of T+1 rows, whatever C is.

    Args:
      ring: [N, C, ...].
      written: int32 [], 0 for empty rings.
      steps: [T+1, N, ...].
    Returns:
      the rings, and `written` increased by T; less C where it would reach 2 C, so that it never overflows.
    Raises:
      ShoalError: the ring has fewer than T+1 rows.
    """
    num_rows, length = ring.last.shape[1], steps.last.shape[0]
    if num_rows < length:
        raise ShoalError(
            f"a ring of {num_rows} rows cannot hold the {length} time-steps of a rollout of {length - 1} steps; it "
            f"needs at least {length} rows."
        )
    rows = (written + jnp.arange(length)) % num_rows

    def put(x: Array, new: Array) -> Array:
        new = jnp.swapaxes(new, 0, 1)
        return x.at[:, rows].set(new, unique_indices=True, mode="promise_in_bounds")

    if (drawn_by := ring.priorities) is not None:
        is_newest = jnp.arange(length)[:, None] == length - 1
        drawn_by = priorities.rows_written(drawn_by, rows, ~(_has_ended(steps) | is_newest).T)
    ring = jax.tree.map(put, ring._replace(priorities=None), steps)._replace(priorities=drawn_by)
    written = written + (length - 1)
    return ring, jnp.where(written < 2 * num_rows, written, written - num_rows)


def sample(key: Array, ring: StoredSteps, written: Array, batch_size: int, n: int) -> Window:
    """Draw windows of n steps from all pairs of an environment and an age, with replacement: uniformly, or by the
    rings' priorities."""
    num_envs, num_rows = ring.last.shape
    if ring.priorities is not None:
        env, row, probability = priorities.draw(key, ring.priorities, batch_size)
        return windows(ring, written, env, (written - row) % num_rows, n)._replace(probability=probability)
    # One draw for both: on a CPU half of the time is random bits.
    pair = jax.random.randint(key, (batch_size,), 0, num_envs * jnp.minimum(written, num_rows - 1))
    return windows(ring, written, pair % num_envs, 1 + pair // num_envs, n)


def windows(ring: StoredSteps, written: Array, env: Array, age: Array, n: int) -> Window:
    """Read the windows of n steps that start at these ages [B] of these environments [B].

    A window ends early, with fewer steps of weight 1, at the end of its episode or at the newest time-step. So every
    transition starts one, the last n-1 of an episode too.
    """
    num_rows, step = ring.last.shape[1], jnp.arange(n + 1)[:, None]
    start = (written - age) % num_rows
    # Time-major: a CPU waits for the memory of many starts at once, which takes a third less than window by window.
    small = ring._replace(observation=(), action=(), action_mask=None, extras=())
    steps = _gather(small, env, (start + step) % num_rows)
    ended = _has_ended(steps)
    has_ended = jnp.cumsum(ended, axis=0) > 0
    is_step = (step < age) & (age <= written) & ~has_ended
    weight = jnp.where(is_step[:n], 1.0, 0.0)
    return Window(env, start, steps.reward[:n], steps.discount[:n], ended[1:], weight)


def steps_at(ring: StoredSteps, window: Window, offset: Array | int) -> StoredSteps:
    """Read the time-steps that are `offset` steps after the start of each window.

    Args:
      offset: from 0 to n: a number or [B], for one of each window [B, ...]; or [K, B] or [K, 1], for [K, B, ...].
        Beyond the last step of weight 1 and the time-step that it led to, rows belong to another episode, or are older
        ones or zeros.
    """
    return _gather(ring, window.env, (window.start + offset) % ring.last.shape[1])


def n_step_return(window: Window, gamma: Array | float) -> NStepReturn:
    """Compute the n-step return of each window, up to the value that is bootstrapped.

        R = Σ_{i<k} γ^i r_{i+1},   target R + γ^k d_k v(o_k)

    with k the steps of weight 1, and d_k 0 if the episode terminated, else 1: at truncation the value is that of the
    final observation. (A discount d_i between 0 and 1 multiplies all that follows.)

    Source: Sutton and Barto 2018, "Reinforcement Learning", eq. 7.1.
    """
    is_step = window.weight > 0
    after = jnp.cumprod(jnp.where(is_step, gamma * window.discount, 1.0), axis=0)  # γ^(i+1) at step i
    before = jnp.concatenate([jnp.ones_like(after[:1]), after[:-1]])
    reward = jnp.sum(jnp.where(is_step, before * window.reward, 0.0), axis=0)
    steps, weight = jnp.sum(is_step, axis=0), window.weight[0]
    return NStepReturn(reward, jnp.where(weight > 0, after[-1], 0.0), steps, weight)


def draw(
    config: ReplayConfig,
    key: Array,
    ring: StoredSteps,
    written: Array,
    progress: Array,
    axis: tuple[str, ...],
) -> tuple[Window, Array | float]:
    """Draw a group's part of the batch of one gradient step.

    Args:
      progress: of the run, from 0 to 1 (`Clock.progress`).
    Returns:
      the windows, and the factors of their losses, [B], that undo how priorities change their mean: in part before the
      end of the run; 1 without priorities.
    """
    window = sample(key, ring, written, config.batch_size // num_groups(axis), config.n_step)
    if window.probability is None:
        return window, 1.0
    beta = config.prioritized_replay_beta
    return window, priorities.weights(window.probability, beta + (1.0 - beta) * progress, axis)


def with_errors(
    config: ReplayConfig, ring: StoredSteps, window: Window, error: Array, axis: tuple[str, ...]
) -> StoredSteps:
    """Return the rings with priorities by the errors [B] of the windows that were drawn; as they are, without any."""
    if ring.priorities is None:
        return ring
    priority = (jnp.abs(error) + config.prioritized_replay_eps) ** config.prioritized_replay_alpha
    priority = jnp.where(window.weight[0] > 0, priority, 0.0)
    return ring._replace(
        priorities=priorities.updated(ring.priorities, window.env, window.start, priority, axis)
    )


def _has_ended(steps: StoredSteps) -> Array:
    return steps.last if steps.alive is None else steps.last | ~steps.alive


def _gather(ring: StoredSteps, env: Array, rows: Array) -> StoredSteps:
    ring = ring._replace(priorities=None)
    return jax.tree.map(lambda x: x.at[env, rows].get(mode="promise_in_bounds"), ring)
