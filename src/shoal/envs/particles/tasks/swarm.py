"""particles/Swarm-v0: many discs share fewer targets."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.base import environment, parameter
from shoal.envs.particles.physics.vectors import length
from shoal.envs.particles.tasks import lidar
from shoal.envs.particles.tasks.particle_task import MAX_AGENTS, ParticleTask, TaskState, shown_way
from shoal.types import Array
from shoal.types.spaces import Box, Dict

MOST_HELD = 0.9  # share of the targets whose holding is timed


@environment
class Swarm(ParticleTask):
    """More discs than targets: each target is to be held by one of them, and nobody should crowd.

    A target is held by the nearest of the agents that have it within their own radius. An agent is shown the direction
    of the nearest target that is free or its own, and the way there as other tasks show it; in each of K angles the
    nearest free and the nearest held target; whether it holds one, its velocity, and what its rays meet. It is paid for
    coming closer to the nearest target that is free or its own, and while it holds one; a target pays one agent alone.
    The episode terminates when all targets have been held for five decisions.
    """

    num_agents: int = parameter(default=32, low=2, high=MAX_AGENTS)  # type: ignore[assignment]
    num_targets: int = parameter(default=16, low=1, high=MAX_AGENTS)  # type: ignore[assignment]
    target_reach: float = parameter(default=50.0, above=0)  # up to which targets are shown
    collision_penalty: float = parameter(default=5.0, low=0, in_reward=True)  # with 20, nothing is held

    info_summaries: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"success": "last", "collisions": "sum", "distance": "last", "decisions_below_90": "sum"}
    )

    def __post_init__(self) -> None:
        """Refuse more targets than agents, and the reward for agents with a target each."""
        if self.num_targets > self.num_agents:
            raise ShoalError(
                f"num_targets={self.num_targets} is too many: {self.num_agents} agents can hold at most "
                f"{self.num_agents}."
            )
        if self.reward != "potential":
            raise ShoalError(f"reward={self.reward!r} needs a target for each agent; 'potential' does not.")
        super().__post_init__()

    @property
    def target_entries(self) -> int:
        """The nearest target, two channels of K angles, and whether the agent holds a target."""
        return 4 + 2 * self.num_rays + 1

    def is_held(self, state: TaskState) -> Array:
        """Return which targets are held, [M, ...]."""
        return jnp.any(holders(self, state), axis=0)

    def observe_targets(self, state: TaskState) -> Array:
        """Return the nearest target, the channels of free and of held ones, and whether each agent holds one,
        [4 + 2 K + 1, A, ...].
        """
        offset, holds = _ways(self, state), holders(self, state)
        is_held = jnp.broadcast_to(jnp.any(holds, axis=0), holds.shape)
        reach = jnp.asarray(self.target_reach)
        channels = [
            lidar.centre_bins(offset, is_seen, self.num_rays, reach) / reach
            for is_seen in (~is_held, is_held)
        ]
        holding = self.is_at_target(state).astype(offset.dtype)[:, None]
        angles = jnp.moveaxis(jnp.concatenate([*channels, holding], axis=1), 1, 0)
        return jnp.concatenate([shown_way(_way_to_nearest(self, state), state.world.radius), angles])

    @property
    def world_space(self) -> Dict:
        """Two sets: a row for each agent, and one for each target."""
        agents, targets = (
            Box(-np.inf, np.inf, (n, k)) for n, k in ((self.num_agents, 6), (self.num_targets, 3))
        )
        return Dict({"agents": agents, "targets": targets})

    def observe_world(self, state: TaskState) -> dict[str, Array]:
        """Return of each agent its place in box sides, velocity, radius and mass, and of each target its place and
        whether it is held.
        """
        side, world = state.world.box[:2, None], state.world
        parts = (
            state.particles.position[:2] / side,
            state.particles.velocity[:2],
            world.radius[None],
            world.mass[None],
        )
        is_held = self.is_held(state).astype(side.dtype)[None]
        return {
            "agents": jnp.concatenate(parts).T,
            "targets": jnp.concatenate([state.target / side, is_held]).T,
        }

    def way_to_go(self, state: TaskState) -> Array:
        """Return each agent's distance to the nearest target that is free or its own, at most `target_reach`."""
        return jnp.min(_open_distances(self, state), axis=1)

    def is_at_target(self, state: TaskState) -> Array:
        """Return which agents hold a target, [A, ...]."""
        return jnp.any(holders(self, state), axis=1)

    def measures(self, state: TaskState) -> dict[str, Array]:
        """Return the share of targets held, the mean way to go, and whether fewer than 0.9 of the targets are held."""
        measures = super().measures(state)
        below = (measures["success"] < MOST_HELD - 1e-6).astype(jnp.float32)
        return measures | {"decisions_below_90": below}


def _ways(env: Swarm, state: TaskState) -> Array:
    """Return the vectors from all agents to all targets, [2, A, M, ...]."""
    place, box = state.particles.position[:2], state.world.box[:2]
    return lidar.offsets_to(place, state.target, box, env.boundaries[:2])


def holders(env: Swarm, state: TaskState) -> Array:
    """Return which agent holds which target, [A, M, ...]: the nearest of those that have it within their own radius,
    and the first of equally near ones.
    """
    distance = length(_ways(env, state))
    is_within = distance <= state.world.radius[:, None]
    nearest = jnp.min(jnp.where(is_within, distance, jnp.inf), axis=0, keepdims=True)
    return _first(is_within & (distance <= nearest), axis=0)


def _first(marked: Array, axis: int) -> Array:
    """Return the first of the marked entries along an axis alone."""
    return marked & (jnp.cumsum(marked.astype(jnp.int32), axis=axis) == 1)


def _open_distances(env: Swarm, state: TaskState) -> Array:
    """Return the distance from each agent to each target that is free or its own, else `target_reach`, [A, M, ...]."""
    holds = holders(env, state)
    is_open = ~jnp.any(holds, axis=0) | holds
    reach = jnp.asarray(env.target_reach)
    return jnp.where(is_open, jnp.minimum(length(_ways(env, state)), reach), reach)


def _way_to_nearest(env: Swarm, state: TaskState) -> Array:
    """Return the way from each agent to the nearest target that is free or its own, 0 if it is too far, [2, A, ...]."""
    distance = _open_distances(env, state)
    nearest = jnp.min(distance, axis=1, keepdims=True)
    is_nearest = (distance <= nearest) & (distance < env.target_reach)
    return jnp.sum(jnp.where(_first(is_nearest, axis=1), _ways(env, state), 0.0), axis=2)
