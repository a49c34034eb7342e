"""Checks that run the environment: a batch of random rollouts, compiled once and checked in NumPy."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from shoal.config.struct import as_arrays, named_leaves
from shoal.envs.checking.check_findings import Finding
from shoal.envs.checking.check_inspect import check_timesteps
from shoal.envs.checking.check_keys import is_key
from shoal.envs.checking.check_time import Announce
from shoal.envs.checking.check_traces import Result, Traces, all_rows_equal, differing, sample_action
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.xla.backend import compile_ahead
from shoal.xla.sparse_updates import change_where

MAX_BLOCK_BYTES = 32 * 2**20  # of the data of one block
MAX_LEAF_SIZE = 64  # elements: smaller leaves of the state are searched for a clock
COMPARED_STEPS = 4
COMPARED_KEYS = 4
SAMPLED_ACTIONS = 64  # of which all are equal only where there is no other action

# Compiled for a few thousand steps, not for millions.
jit_quickly = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 1})

StepKeys = tuple[Array, Array, Array]  # of the steps, of the resets after an end, and of the actions
Advanced = tuple[
    Result, tuple[TimeStep, dict[str, Array]]
]  # after the last step; of all steps, with small leaves


class RolloutSizes(NamedTuple):
    """The amount of computation: keys (environments), steps of a block, and the most steps of one environment."""

    keys: int = 16
    steps: int = 128
    max_steps: int = 10_000


class Block(NamedTuple):
    """Random steps of all environments; every array but those of the ends is [N, T, ...]."""

    timesteps: TimeStep
    small_leaves: dict[str, np.ndarray]  # the small numeric leaves of the state
    end: Result  # the state and time-step after the last step


class Rollouts(NamedTuple):
    """The two compiled programs and the first block of random steps, which the checks share."""

    env: Environment
    sizes: RolloutSizes
    reset: Callable[[Array], Result]
    advance: Callable[[Result, StepKeys], Advanced]
    start: Result
    keys: Array
    action_keys: Array
    first: Block

    def keys_at(self, offset: int, action_keys: Array | None = None) -> StepKeys:
        """Return the keys of the block that begins after `offset` steps, with these or with other actions."""
        actions = self.action_keys if action_keys is None else action_keys
        return step_keys(self.keys, actions, offset, steps=self.sizes.steps)

    def block_after(self, previous: Result, offset: int, action_keys: Array | None = None) -> Block:
        """Make the block of random steps after a state and time-step, as NumPy arrays."""
        return _run_block(self.advance, previous, self.keys_at(offset, action_keys))

    @property
    def other_actions(self) -> Array:
        """The keys of other actions than those of the first block, [N]."""
        return jax.random.split(self.action_keys[0], self.sizes.keys)


def advance(env: Environment, carry: Result, keys: StepKeys) -> Advanced:
    """Make random steps of one environment from (state, time-step), with a reset after each end.

    `keys` are [T] each: they are made outside, because making them inside takes longer to compile than most
    environments.
    """

    def step(carry: Result, keys: StepKeys) -> Advanced:
        state, timestep = carry
        step_key, reset_key, action_key = keys
        action = sample_action(env, action_key, timestep.action_mask)
        stepped = env.step(state, action, step_key)
        # Only the worlds whose episode has ended compute a start, which may cost as much as hundreds of steps.
        carry = change_where(timestep.last, lambda _, key: env.reset(key), stepped, reset_key)
        return carry, (carry[1], _small_leaves(carry[0]))

    return jax.lax.scan(step, carry, keys)


def _small_leaves(state: State) -> dict[str, Array]:
    """Return the leaves of the state that may hold a clock, each as a vector."""
    leaves = {name: jnp.asarray(leaf) for name, leaf in named_leaves(state).items()}
    return {
        name: leaf.reshape(-1)
        for name, leaf in leaves.items()
        if leaf.size <= MAX_LEAF_SIZE and not is_key(leaf)
    }


def _fit_sizes(sizes: RolloutSizes, traces: Traces) -> RolloutSizes:
    """Reduce sizes until their data fits the memory that the checker may use."""
    state, size = (
        sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)) for tree in traces.stepped
    )
    size += 4 * MAX_LEAF_SIZE
    keys = int(np.clip(MAX_BLOCK_BYTES // (max(size, state) * 2), 2, sizes.keys))
    steps = int(np.clip(MAX_BLOCK_BYTES // (size * keys), 2, min(sizes.steps, sizes.max_steps)))
    return RolloutSizes(keys, steps, sizes.max_steps)


def start_rollouts(
    env: Environment, sizes: RolloutSizes, traces: Traces, key: Array, announce: Announce
) -> Rollouts:
    """Compile, reset, and make the first block of random steps; announce which of these begins."""
    sizes = _fit_sizes(sizes, traces)
    keys, action_keys = jax.random.split(key, (2, sizes.keys))
    announce("compiling reset")
    reset = compile_ahead(jit_quickly(jax.vmap(env.reset)), keys)
    announce(f"running reset of {sizes.keys} environments")
    # Waited for, or a slow reset would be announced as the compilation that follows.
    start = jax.block_until_ready(reset(keys))
    announce("compiling random steps")
    steps = step_keys(keys, action_keys, 0, steps=sizes.steps)
    advance_batch = compile_ahead(jit_quickly(jax.vmap(functools.partial(advance, env))), start, steps)
    announce(f"running {sizes.steps} random steps of {sizes.keys} environments")
    first = _run_block(advance_batch, start, steps)
    return Rollouts(env, sizes, reset, advance_batch, start, keys, action_keys, first)


@functools.partial(jax.jit, static_argnames="steps")
def step_keys(keys: Array, action_keys: Array, offset: int, *, steps: int) -> StepKeys:
    """Return the keys of steps, resets and actions, [N, T] each, from step number `offset` on."""
    own, of_resets = (jax.vmap(jax.random.fold_in, (0, None))(keys, kind) for kind in (0, 1))

    def split(key: Array) -> Array:
        return jax.random.split(jax.random.fold_in(key, offset), steps)

    return jax.vmap(split)(own), jax.vmap(split)(of_resets), jax.vmap(split)(action_keys)


def _run_block(advance_batch: Callable[..., Advanced], carry: Result, keys: StepKeys) -> Block:
    end, (timesteps, small_leaves) = advance_batch(carry, keys)
    return Block(jax.tree.map(np.asarray, timesteps), jax.tree.map(np.asarray, small_leaves), end)


def check_reset(rollouts: Rollouts) -> Iterator[Finding]:
    """Check the first time-steps: their flags, their reward, and everything that holds for every time-step."""
    timesteps = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], rollouts.start[1])
    last, first = timesteps.last, timesteps.first
    if last.any():
        yield Finding(
            "ends-on-reset",
            f"`last` is True on the time-step of reset for {last.sum()} of {last.size} keys; an episode "
            "has at least one step",
        )
    if not first.all():
        wrong = f"`first` is False on the time-step of reset for {(~first).sum()} of {first.size} keys"
        yield Finding("first-flag", f"{wrong}; True would be right")
    reward = timesteps.reward
    if (reward != 0).any() and np.isfinite(reward).all():
        value = reward[reward != 0].flat[0]
        text = f"the reward of reset is {value:.6g}; no step led here, so 0 would be right"
        yield Finding("reset-reward", text)
    yield from check_timesteps(rollouts.env, timesteps, 0)


def check_block(rollouts: Rollouts, block: Block, previous: TimeStep, offset: int) -> Iterator[Finding]:
    """Check a block for everything that holds for every time-step; `previous` are those before it, [N, ...]."""
    last = block.timesteps.last
    is_reset = np.concatenate([previous.last[:, None], last[:, :-1]], axis=1)
    wrong = block.timesteps.first & ~is_reset
    if wrong.any():
        step = offset + int(np.argwhere(wrong)[0][1]) + 1
        text = f"`first` is True on the time-step of step {step}; only on reset would it be"
        yield Finding("first-flag", text)
    yield from check_timesteps(rollouts.env, block.timesteps, offset + 1, previous.alive)


def check_repeated(rollouts: Rollouts) -> Iterator[Finding]:
    """Check that the same compiled program with the same arguments gives the same numbers, bit for bit."""
    repeated = rollouts.block_after(rollouts.start, 0)
    start = rollouts.reset(rollouts.keys)
    difference = _difference(rollouts.start, start) or _difference(rollouts.first, repeated)
    if difference:
        yield Finding(
            "hidden-state",
            f"the same compiled rollout with the same keys and actions differs: {difference}; results may "
            "depend on the state, the action and the key alone, not on a callback to Python",
        )


def _difference(one: PyTree, other: PyTree) -> str:
    for name, a, b in differing(named_leaves(one), named_leaves(other)):
        return f"`{name.split('/', 1)[-1]}` is {a} once and {b} another time"
    return ""


def check_actions(rollouts: Rollouts) -> Iterator[Finding]:
    """Check that other actions change something."""
    samples = jax.vmap(rollouts.env.action_space.sample)(jax.random.split(rollouts.keys[0], SAMPLED_ACTIONS))
    if all(map(all_rows_equal, jax.tree.leaves(samples))):  # there is one action only
        return
    actions, block, offset = rollouts.other_actions, rollouts.first, 0
    other = rollouts.block_after(rollouts.start, 0, actions)
    ended = np.zeros(rollouts.sizes.keys, bool)
    while not _difference(block, other):
        offset += block.timesteps.last.shape[1]
        ended |= block.timesteps.last.any(axis=1)
        if ended.all() or offset >= rollouts.sizes.max_steps:
            yield Finding(
                "action-ignored",
                f"no action changes anything: {rollouts.sizes.keys} rollouts of {offset} random "
                "steps were equal to those with other actions in state, observation, reward and end; the step "
                "would depend on its action",
            )
            return
        # An action may count at the end of an episode only, so that each is followed to its end.
        block = rollouts.block_after(block.end, offset)
        other = rollouts.block_after(other.end, offset, actions)


def check_keys(rollouts: Rollouts) -> Iterator[Finding]:
    """Check that with the same actions, other keys give another episode: another start or other steps."""
    actions = jnp.broadcast_to(rollouts.action_keys[:1], rollouts.action_keys.shape)
    block = rollouts.block_after(rollouts.start, 0, actions)
    leaves = jax.tree.leaves((rollouts.start, block))
    if all(is_key(leaf) or all_rows_equal(leaf) for leaf in leaves):
        yield Finding(
            "key-ignored",
            f"all {rollouts.sizes.keys} keys give the same start and, with the same actions, the same "
            f"{rollouts.sizes.steps} steps; draw the start or the steps from the key, or ignore this rule where "
            "the environment is meant to be deterministic",
        )


def check_single(rollouts: Rollouts) -> Iterator[Finding]:
    """Check that one environment, and one whose parameters are data, compute the same as the batch."""
    env = rollouts.env
    has_parameters = bool(jax.tree.leaves(env)) and not jax.tree_util.all_leaves([env])
    difference = ""
    # Parameters are data in every run, so that constants are only tried to tell which of the two is the cause.
    if has_parameters:
        single = functools.partial(jit_quickly(_short_rollout), as_arrays(env))
        difference = _compare_single(rollouts, single)
        if not difference:
            return
    constant = _compare_single(rollouts, jit_quickly(functools.partial(_short_rollout, env)))
    if constant:
        yield Finding(
            "vmap-differs",
            f"one environment and a batch under jax.vmap differ with the same key and actions: {constant} in "
            "the batch; equal numbers would be right",
        )
    elif has_parameters:
        yield Finding(
            "parameter",
            f"parameters as data (float32 arrays) and as constants differ: {difference} as constants; equal "
            "numbers would be right, so nothing may depend on the Python type of a parameter",
        )


def _short_rollout(env: Environment, key: Array, keys: StepKeys) -> tuple[TimeStep, TimeStep]:
    start = env.reset(key)
    _, (timesteps, _) = advance(env, start, keys)
    return start[1], timesteps


def _compare_single(
    rollouts: Rollouts, single: Callable[[Array, StepKeys], tuple[TimeStep, TimeStep]]
) -> str:
    """Describe the difference between single rollouts and the rows of the batch, for two keys or more; "" if none."""
    steps = min(COMPARED_STEPS, rollouts.sizes.steps)
    keys = jax.tree.map(lambda x: x[:, :steps], rollouts.keys_at(0))
    batch = rollouts.start[1], jax.tree.map(lambda x: x[:, :steps], rollouts.first.timesteps)
    differences = []
    for i in range(min(COMPARED_KEYS, rollouts.sizes.keys)):
        row, row_keys = jax.tree.map(lambda x, i=i: x[i], (batch, keys))
        one = single(rollouts.keys[i], row_keys)
        found = next(differing(named_leaves(one), named_leaves(row), _are_close), None)
        if found:
            name, alone, in_batch = found
            differences.append(f"`{name.split('/', 1)[-1]}` is {alone} alone and {in_batch}")
    return differences[0] if len(differences) >= 2 else ""


def _are_close(one: ArrayLike, other: ArrayLike) -> bool:
    # The program of a batch rounds otherwise than that of one environment.
    return np.allclose(np.asarray(one), np.asarray(other), rtol=1e-3, atol=1e-4, equal_nan=True)
