"""A batch of environments with auto-reset on the step after an episode's last.

An environment describes one episode. The batch steps N environments side by side. Where an environment's
time-step was `last`, the next step ignores its action and returns the `first` time-step of a new episode
(reward 0, discount 1).
"""

from typing import NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.config import struct
from shoal.types import Array, Environment, PyTree, State, TimeStep, contract
from shoal.types.spaces import Space
from shoal.xla import sparse_updates
from shoal.xla.backend import by_platform

T = TypeVar("T")

RESET_POLICIES = ("fresh", "pool", "optimistic", "first")

# Key streams: environment i uses fold_in(key, i), so that its random numbers do not depend on the number of
# environments; all else uses indices that no environment has.
POOL_STREAM, REFRESH_STREAM, KEYS_STREAM = np.arange(2**32 - 1, 2**32 - 4, -1, dtype=np.uint32)


class BatchState(NamedTuple):
    """State of a batch between steps."""

    env: State  # [N, ...]
    last: Array  # [N], true where the previous time-step ended its episode
    pool: PyTree = ()  # with "pool" K starts, (State, TimeStep) [K, ...], without the axis N
    starts: PyTree = ()  # with "first" the start of each environment, (State, TimeStep) [N, ...]


@struct.struct
class Batch:
    """N copies of an environment with next-step auto-reset.

    Attributes:
      reset_policy: how new episodes start.
        "fresh": a new `env.reset` every time.
        "pool": one of `pool_size` starts, drawn uniformly. They are computed at `Batch.reset`; `refresh` replaces
        `pool_refresh` of them.
        "optimistic": each step computes one new start for every `reset_ratio` environments. Where more episodes end in
        a step, several begin with the same one (Matthews et al. 2024, Craftax).
        "first": the environment's first start again, as in Brax's own training; for comparisons.
        Where a start is used again, random keys in its state (arrays of `jax.random.key`) are replaced by new ones.
    """

    env: Environment
    num_envs: int
    reset_policy: str = "fresh"
    pool_size: int = 1024
    pool_refresh: int = 0
    reset_ratio: int = 16

    @property
    def observation_space(self) -> Space:
        """The space of one environment's observations."""
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        """The space of one agent's actions."""
        return self.env.action_space

    @property
    def num_agents(self) -> int:
        """The number of agents that act in each environment."""
        return self.env.num_agents

    def reset(self, key: Array, first_index: Array | int = 0) -> tuple[BatchState, TimeStep]:
        """Start all environments.

        Args:
          key: environment i uses `fold_in(key, first_index + i)`; a batch that is split over devices gives
            each part the same key and its own first index, and so draws what the whole would.
        Returns:
          the state and the first time-steps, each with a leading axis N (the pool excepted).
        Raises:
          ShoalError: there is no such reset policy.
        """
        if self.reset_policy not in RESET_POLICIES:
            raise ShoalError(
                f"reset_policy={self.reset_policy!r} is not one of {', '.join(RESET_POLICIES)}"
                f"{nearest(str(self.reset_policy), RESET_POLICIES)}"
            )
        pool = (
            self._new_starts(jax.random.fold_in(key, POOL_STREAM), self.pool_size) if self._has_pool else ()
        )
        indices = first_index + jnp.arange(self.num_envs)
        env, timestep = jax.vmap(lambda i: self._start(pool, jax.random.fold_in(key, i)))(indices)
        starts = (env, timestep) if self.reset_policy == "first" else ()
        return BatchState(env, timestep.last, pool, starts), timestep

    def refresh(self, state: BatchState, key: Array) -> BatchState:
        """Replace `pool_refresh` of the pool's starts, neighbours at a random place, by new ones."""
        count = min(self.pool_refresh, self.pool_size)
        if not self._has_pool or not count:
            return state
        place_key, start_key = jax.random.split(jax.random.fold_in(key, REFRESH_STREAM))
        first = jax.random.randint(place_key, (), 0, self.pool_size)
        places = (first + jnp.arange(count)) % self.pool_size
        new = self._new_starts(start_key, count)
        return state._replace(pool=jax.tree.map(lambda x, y: x.at[places].set(y), state.pool, new))

    def step(
        self, state: BatchState, action: PyTree, key: Array, first_index: Array | int = 0
    ) -> tuple[BatchState, TimeStep]:
        """Step every environment by its action [N, ...], or start a new episode where the previous time-step
        was `last`; the key is another one at every step.

        Returns:
          the state and time-steps [N, ...]; the action mask of a terminated one is all true.
        """

        def step_one(env_state: State, env_action: PyTree, index: Array) -> tuple[State, TimeStep]:
            return self.env.step(env_state, env_action, jax.random.fold_in(key, index))

        indices = first_index + jnp.arange(self.num_envs)
        stepped = _without_weak_types(jax.vmap(step_one)(state.env, action, indices))
        env, timestep = self._restarted(state, key, indices, stepped)
        timestep = _allow_all_at_the_end(timestep)
        return state._replace(env=env, last=timestep.last), timestep

    def _restarted(self, state: BatchState, key: Array, indices: Array, stepped: PyTree) -> PyTree:
        """Start a new episode in the environments whose previous one had ended."""
        if self.reset_policy == "first":
            return struct.where(state.last, _each_with_new_keys(state.starts, key, indices), stepped)
        if self.reset_policy == "optimistic":
            return self._restart_sharing(state.last, key, indices, stepped)
        # A loop over those that ended is far cheaper on the CPU; elsewhere it would wait for the host.
        return by_platform(
            *(state.last, state.pool, key, indices, stepped),
            cpu=self._restart_in_groups,
            default=self._restart_all,
        )

    def sample_actions(self, timestep: TimeStep, key: Array, first_index: Array | int = 0) -> PyTree:
        """Draw actions uniformly among the legal ones, [N, ...] ([N, A, ...] for A agents)."""
        indices = first_index + jnp.arange(self.num_envs)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, indices)
        return jax.vmap(self.sample_action)(keys, timestep.action_mask)

    def sample_action(self, key: Array, mask: PyTree) -> PyTree:
        """Draw the action of one environment uniformly among the legal ones, [...] or [A, ...]."""
        if self.num_agents == 1:
            return self.action_space.sample(key, mask)
        return jax.vmap(self.action_space.sample)(jax.random.split(key, self.num_agents), mask)

    @property
    def _has_pool(self) -> bool:
        return self.reset_policy == "pool"

    def _new_starts(self, key: Array, count: int) -> PyTree:
        return _without_weak_types(jax.vmap(self.env.reset)(jax.random.split(key, count)))

    def _start(self, pool: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode of one environment."""
        if not self._has_pool:
            return _without_weak_types(self.env.reset(key))
        index = jax.random.randint(key, (), 0, self.pool_size)
        return _with_new_keys(jax.tree.map(lambda starts: starts[index], pool), key)

    def _restart_sharing(self, ended: Array, key: Array, indices: Array, stepped: PyTree) -> PyTree:
        """Compute few new starts and deal them out in turn to the environments whose episode had ended."""
        count = max(self.num_envs // self.reset_ratio, 1)
        starts = jax.vmap(lambda i: self._start((), jax.random.fold_in(key, i)))(indices[:count])
        self._check_same_types(starts, stepped)
        dealt = (jnp.cumsum(ended) - 1) % count
        starts = _each_with_new_keys(jax.tree.map(lambda x: x[dealt], starts), key, indices)
        return struct.where(ended, starts, stepped)

    def _restart_all(
        self, ended: Array, pool: PyTree, key: Array, indices: Array, stepped: PyTree
    ) -> tuple[State, TimeStep]:
        """Start a new episode in every environment and use it where the previous one had ended.

        Nothing is computed in a step in which none had, if starts are costly.
        """

        def restart(stepped: PyTree) -> PyTree:
            started = jax.vmap(lambda i: self._start(pool, jax.random.fold_in(key, i)))(indices)
            self._check_same_types(started, stepped)
            return struct.where(ended, started, stepped)

        return sparse_updates.change_if_costly(jnp.any(ended), restart, stepped)

    def _restart_in_groups(
        self, ended: Array, pool: PyTree, key: Array, indices: Array, stepped: PyTree
    ) -> tuple[State, TimeStep]:
        """Compute the same as `_restart_all`, for one group of ended environments at a time."""

        def start_group(group: Array, current: PyTree) -> PyTree:
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, indices[group])
            started = jax.vmap(lambda own_key: self._start(pool, own_key))(keys)
            self._check_same_types(started, current)
            return started

        return sparse_updates.change_in_groups(ended, start_group, stepped)

    def _check_same_types(self, started: PyTree, stepped: PyTree) -> None:
        """Require that `reset` and `step` return the same structure, shapes and dtypes; read while tracing."""
        start, step = ({"state": x[0], "timestep": x[1]} for x in (started, stepped))
        for path, *types in contract.differences(start, step, _type_of_one):
            old, new = (x or "missing" for x in types)
            right = "the same structure, shapes and dtypes as reset"
            contract.refuse(self.env.step, f"{path!r} as {new}, which after reset is {old}", right)


def _with_new_keys(start: PyTree, key: Array) -> PyTree:
    """Replace the random keys in a start that is used again, so that the episodes draw different numbers."""
    leaves, structure = jax.tree.flatten(start)
    key = jax.random.fold_in(key, KEYS_STREAM)
    renewed = [
        jax.random.split(jax.random.fold_in(key, i), x.shape)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        else x
        for i, x in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, renewed)


def _each_with_new_keys(starts: PyTree, key: Array, indices: Array) -> PyTree:
    """Replace the random keys in one start for each environment."""
    return jax.vmap(lambda start, i: _with_new_keys(start, jax.random.fold_in(key, i)))(starts, indices)


def _type_of_one(leaf: Array) -> str:
    """Return the dtype and the shape of a leaf of one environment of a batch."""
    return f"{leaf.dtype}{list(leaf.shape[1:])}"


def _without_weak_types(tree: T) -> T:
    """Remove weak types, so that a Python number in an environment does not change a scan's carry."""

    def strengthen(x: Array) -> Array:
        x = jnp.asarray(x)
        return jax.lax.convert_element_type(x, x.dtype)

    return cast(T, jax.tree.map(strengthen, tree))


def _allow_all_at_the_end(timestep: TimeStep) -> TimeStep:
    """Allow every action where an episode has terminated, or has ended with none that is legal: the next is ignored.

    Where it was truncated the mask stays, since the state has a value: that of the best legal action.
    """
    mask = timestep.action_mask
    everything = jax.tree.map(jnp.ones_like, mask)
    something = jax.tree.map(lambda x: x | ~jnp.any(x, axis=-1, keepdims=True), mask)
    mask = struct.where(timestep.last, something, mask)
    return timestep._replace(action_mask=struct.where(timestep.terminated, everything, mask))
