"""mpe/Tag-v0: slow adversaries hunt faster prey between obstacles."""

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

ADVERSARY, PREY = 0, 1  # roles
OBSTACLE_FIELD = 0.9  # half the side of the square in which obstacles lie
EDGE = 0.9  # where the penalty of the prey begins, in either coordinate
PENALTY_SLOPE = 10.0  # of the penalty up to the border of the field
MAX_PENALTY = 10.0  # in either coordinate


class TagState(NamedTuple):
    """Positions and velocities of the agents, adversaries first, and the positions of the obstacles."""

    position: Array  # [A, 2]
    velocity: Array  # [A, 2], per unit of time
    obstacles: Array  # [O, 2]


@environment
class Tag(ParticleWorld):
    """Adversaries chase prey that is faster than they are; large obstacles stand in the way.

    For every pair of an adversary and a prey that touch, each adversary receives `catch_reward` and that prey loses it.
    A prey also pays for leaving the field: for each coordinate x, 0 up to |x| = 0.9, 10 (|x| - 0.9) up to 1, and
    min(exp(2 |x| - 2), 10) beyond.

    Two roles: 0 for the adversaries, which come first, and 1 for the prey. An observation is the agent's velocity, its
    position, the obstacles and then the other agents as seen from it, and the velocities of the (other) prey. With one
    prey this is 16 entries for an adversary and 14 for the prey, which is padded with zeros to 16. The same as mpe2's
    `simple_tag_v3`.

    `info["catches"]` counts the pairs of an adversary and a prey that touch. The agents' returns are added up to the
    score, in which a catch counts `catch_reward` times (adversaries - 1); since the roles play against each other,
    look at the return of each role and at the catches.

    Source: Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments".
    """

    num_adversaries: int = particles.count(3, smallest=1)
    num_prey: int = particles.count(1, smallest=1)
    num_obstacles: int = particles.count(2, smallest=0)
    catch_reward: float = parameter(default=10.0, in_reward=True)
    adversary_size: float = parameter(default=0.075, above=0)  # radius
    prey_size: float = parameter(default=0.05, above=0)
    obstacle_size: float = parameter(default=0.2, above=0)
    adversary_acceleration: float = parameter(default=3.0)
    prey_acceleration: float = parameter(default=4.0)
    adversary_speed: float = parameter(default=1.0, above=0)  # largest
    prey_speed: float = parameter(default=1.3, above=0)
    contact_force: float = parameter(default=100.0)  # per unit of length that two bodies overlap
    contact_margin: float = parameter(default=1e-3, above=0)  # length over which the contact sets in

    team_return = "sum"
    info_summaries = MappingProxyType({"catches": "sum"})

    @property
    def num_agents(self) -> int:
        """Adversaries and prey."""
        return self.num_adversaries + self.num_prey

    @property
    def roles(self) -> tuple[int, ...]:
        """0 for adversaries, 1 for prey."""
        return (ADVERSARY,) * self.num_adversaries + (PREY,) * self.num_prey

    @property
    def observation_size(self) -> int:
        """That of an adversary, which is wider by one prey's velocity."""
        return 4 + 2 * self.num_obstacles + 2 * (self.num_agents - 1) + 2 * self.num_prey

    @property
    def global_state_size(self) -> int:
        """Positions and velocities of the agents, positions of the obstacles."""
        return 4 * self.num_agents + 2 * self.num_obstacles

    def start(self, key: Array) -> TagState:
        """Draw the places of agents and obstacles."""
        places = particles.draw_places(key, self.num_agents + self.num_obstacles)
        position, obstacles = places[: self.num_agents], OBSTACLE_FIELD * places[self.num_agents :]
        return TagState(position, jnp.zeros_like(position), obstacles)

    def advance(self, state: TagState, action: Array) -> TagState:
        """Drive the agents, which are pushed away by what they touch, and limit their speeds."""
        size = self._by_role(self.adversary_size, self.prey_size)
        obstacle_size = jnp.broadcast_to(self.obstacle_size, (self.num_obstacles, *size.shape[1:]))
        contact = particles.repulsion(
            state.position,
            jnp.concatenate([state.position, state.obstacles]),
            size[:, None] + jnp.concatenate([size, obstacle_size])[None],
            self.contact_force,
            self.contact_margin,
        )
        acceleration = self._by_role(self.adversary_acceleration, self.prey_acceleration)
        force = particles.drive(action, acceleration) + contact
        position, velocity = self.moved(state, force)
        max_speed = self._by_role(self.adversary_speed, self.prey_speed)
        return TagState(position, particles.limit_speed(velocity, max_speed), state.obstacles)

    def _by_role(self, adversary: Array | float, prey: Array | float) -> Array:
        """Return a parameter of each agent by its role, [A, ...]."""
        adversary, prey = jnp.broadcast_arrays(
            jnp.asarray(adversary, jnp.float32), jnp.asarray(prey, jnp.float32)
        )
        return jnp.stack([adversary] * self.num_adversaries + [prey] * self.num_prey)

    def observe(self, state: TagState) -> Array:
        """Return velocity, position, obstacles, other agents and the velocities of other prey, [A, n]."""
        obstacles = particles.offsets(state.position, state.obstacles)
        others = particles.without_own(particles.offsets(state.position, state.position))
        parts = (
            state.velocity,
            state.position,
            particles.flat(obstacles),
            particles.flat(others),
            self._velocities_of_prey(state.velocity[self.num_adversaries :]),
        )
        return jnp.concatenate(parts, axis=1)

    def _velocities_of_prey(self, velocity: Array) -> Array:
        """Show the velocities of the prey [P, 2] to each agent, [A, 2 P]; prey are shown the others', padded."""
        to_adversaries = jnp.broadcast_to(velocity, (self.num_adversaries, *velocity.shape))
        to_prey = particles.without_own(jnp.broadcast_to(velocity, (self.num_prey, *velocity.shape)))
        to_prey = jnp.pad(to_prey, ((0, 0), (0, 1), (0, 0)))
        return particles.flat(jnp.concatenate([to_adversaries, to_prey]))

    def rewards(self, state: TagState) -> tuple[Array, Mapping[str, Array]]:
        """Return the adversaries' reward for catches, and each prey's penalty for them and for leaving the field."""
        caught = self.caught(state)
        catches = add_up(add_up(caught, axis=0), axis=0)
        gain = jnp.broadcast_to(self.catch_reward * catches, (self.num_adversaries, *catches.shape))
        penalty = add_up(leaving_penalty(jnp.abs(state.position[self.num_adversaries :])), axis=1)
        loss = self.catch_reward * add_up(caught, axis=0) + penalty
        return jnp.concatenate([gain, -loss]), {"catches": catches}

    def caught(self, state: TagState) -> Array:
        """Return 1 for each adversary and each prey that it touches, else 0, [adversaries, prey, ...]."""
        adversaries, prey = state.position[: self.num_adversaries], state.position[self.num_adversaries :]
        is_caught = particles.distances(adversaries, prey) < self.adversary_size + self.prey_size
        return is_caught.astype(jnp.float32)

    def render(self, state: TagState) -> np.ndarray:
        """Draw obstacles, adversaries and prey, caught prey in another colour."""
        return particle_scenes.tag(
            *map(np.asarray, state),
            sizes=np.asarray(self._by_role(self.adversary_size, self.prey_size)),
            obstacle_size=float(self.obstacle_size),
            is_prey=np.asarray(self.roles) == PREY,
            caught=np.asarray(self.caught(state)).sum(0) > 0,
        )


def leaving_penalty(x: Array) -> Array:
    """Return a prey's penalty for a coordinate of magnitude x: 0 within the field, up to 10 far outside."""
    penalty_of_edge = jnp.where(x < EDGE, 0.0, PENALTY_SLOPE * (x - EDGE))
    return jnp.where(x < particles.FIELD, penalty_of_edge, jnp.minimum(jnp.exp(2 * x - 2), MAX_PENALTY))
