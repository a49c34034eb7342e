"""mpe/Spread-v0: agents cover landmarks and avoid each other."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, parameter
from shoal.envs.mpe import particle_scenes, particles
from shoal.envs.mpe.particle_world import ParticleWorld
from shoal.types import Array
from shoal.xla.batch_last import add_up

COVERED_WITHIN = 0.1  # distance at which an agent covers a landmark, for `info` and the picture
MESSAGE_SIZE = 2  # entries of each other agent's message, which are always 0 since nobody speaks


class SpreadState(NamedTuple):
    """Positions and velocities of the agents, and the positions of the landmarks."""

    position: Array  # [A, 2]
    velocity: Array  # [A, 2], per unit of time
    landmarks: Array  # [A, 2]


@environment
class Spread(ParticleWorld):
    """Agents share the landmarks out among themselves, each covering one, without touching each other.

    There are as many landmarks as agents. All agents are paid the negated sum over the landmarks of the distance to
    the nearest agent, and each agent loses 1 for every other agent that it touches; the reward is the mean of
    the two, weighted by `local_ratio`:

        r_a = (1 - local_ratio) (-Σ_l min_b |p_b - p_l|) - local_ratio |{b ≠ a : |p_a - p_b| < 2 agent_size}|

    An agent's observation is its velocity, its position, the landmarks and then the other agents as seen from it, and
    two zeros for each of the others (the message of a silent agent): 6 A entries, all in the order of their numbers.
    The same as mpe2's `simple_spread_v3`.

    `info` counts the pairs of agents that touch (`collisions`) and the landmarks with an agent within 0.1 (`covered`).

    Source: Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments".
    """

    num_agents: int = particles.count(3, smallest=2)
    local_ratio: float = parameter(default=0.5, low=0, high=1, in_reward=True)
    agent_size: float = parameter(default=0.15, above=0)  # radius
    acceleration: float = parameter(default=5.0)
    contact_force: float = parameter(default=100.0)  # per unit of length that two agents overlap
    contact_margin: float = parameter(default=1e-3, above=0)  # length over which the contact sets in

    team_return = "mean"  # the common reward is in each agent's reward already
    info_summaries = MappingProxyType({"collisions": "sum", "covered": "last"})

    @property
    def observation_size(self) -> int:
        """6 A."""
        return 6 * self.num_agents

    @property
    def global_state_size(self) -> int:
        """6 A: positions and velocities of the agents, positions of the landmarks."""
        return 6 * self.num_agents

    def start(self, key: Array) -> SpreadState:
        """Draw the places of agents and landmarks."""
        places = particles.draw_places(key, 2 * self.num_agents)
        position, landmarks = places[: self.num_agents], places[self.num_agents :]
        return SpreadState(position, jnp.zeros_like(position), landmarks)

    def advance(self, state: SpreadState, action: Array) -> SpreadState:
        """Drive the agents, which push each other away where they touch."""
        contact = particles.repulsion(
            state.position, state.position, 2 * self.agent_size, self.contact_force, self.contact_margin
        )
        force = particles.drive(action, self.acceleration) + contact
        position, velocity = self.moved(state, force)
        return SpreadState(position, velocity, state.landmarks)

    def observe(self, state: SpreadState) -> Array:
        """Return velocity, position, landmarks, other agents and their messages, [A, 6 A]."""
        landmarks = particles.offsets(state.position, state.landmarks)
        others = particles.without_own(particles.offsets(state.position, state.position))
        silence = jnp.zeros((self.num_agents, (self.num_agents - 1) * MESSAGE_SIZE))
        parts = (
            state.velocity,
            state.position,
            particles.flat(landmarks),
            particles.flat(others),
            silence,
        )
        return jnp.concatenate(parts, axis=1)

    def rewards(self, state: SpreadState) -> tuple[Array, Mapping[str, Array]]:
        """Return the mean of the common reward and each agent's penalty for touching others."""
        nearest = jnp.min(particles.distances(state.landmarks, state.position), axis=1)
        touched = add_up(self.touching(state), axis=1)
        paid_to_all = -add_up(nearest, axis=0)
        reward = (1 - self.local_ratio) * paid_to_all - self.local_ratio * touched
        covered = add_up((nearest < COVERED_WITHIN).astype(jnp.float32), axis=0)
        return reward, {"collisions": add_up(touched, axis=0) / 2, "covered": covered}

    def touching(self, state: SpreadState) -> Array:
        """Return 1 for each agent and each other one that it touches, else 0, [A, A, ...]."""
        distance = particles.distances(state.position, state.position)
        is_other = ~jnp.eye(self.num_agents, dtype=bool).reshape(
            distance.shape[:2] + (1,) * (distance.ndim - 2)
        )
        return (is_other & (distance < 2 * self.agent_size)).astype(jnp.float32)

    def render(self, state: SpreadState) -> np.ndarray:
        """Draw the agents, those that touch in another colour, and the landmarks, filled where they are covered."""
        distance = particles.distances(state.landmarks, state.position)
        return particle_scenes.spread(
            *map(np.asarray, state),
            size=float(self.agent_size),
            touches=np.asarray(self.touching(state)).sum(1) > 0,
            covered=np.asarray(distance).min(1) < COVERED_WITHIN,
        )
