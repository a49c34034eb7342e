"""Hunt-v0: a predator hunts a prey in a square, and both are shown the same."""

from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.types.spaces import Box

SIGNS = np.array([1.0, -1.0], np.float32)  # what a step is worth to the prey and to the predator
TOLERANCE = 0.01  # steps by which the time may fall short of the longest one


class HuntState(NamedTuple):
    """The time and the places, the prey's first."""

    time: jax.Array
    position: jax.Array  # [2, 2]


@environment
class Hunt:
    """A prey flees from a predator in the unit square, whose walls stop both; each chooses the angle of its way.

    A step pays the prey `step_reward`, and the step in which it is caught, that is within `catch_radius`, costs it
    `caught_reward`; the predator is paid the opposite. The episode terminates there, and with the first step that
    begins at `max_time`. Both observe the time, both places, the prey's first, and both angles, [7]. Angles beyond plus
    and minus π are cut.

    Two roles: 0 for the prey, 1 for the predator. `info["caught"]` is 1 in the step of the catch. The returns add up to
    0: look at those of the roles.

    Source: the benchmark `hunting_2_players` of jaxagents, with continuous angles.
    """

    prey_speed: float = parameter(default=3.0, low=0)
    predator_speed: float = parameter(default=1.0, low=0)
    catch_radius: float = parameter(default=0.2, low=0)
    max_time: float = parameter(default=2.0, above=0)
    time_step: float = parameter(default=0.01, above=0)
    step_reward: float = parameter(default=1.0, in_reward=True)
    caught_reward: float = parameter(default=100.0, in_reward=True)

    num_agents = 2
    roles = (0, 1)
    team_return = "sum"
    observation_space = Box(-np.inf, np.inf, (7,))
    action_space = Box(-np.pi, np.pi, (1,))
    info_summaries = MappingProxyType({"caught": "max"})

    def reset(self, key: jax.Array) -> tuple[HuntState, TimeStep]:
        """Draw both places uniformly."""
        state = HuntState(jnp.zeros(()), jax.random.uniform(key, (2, 2)))
        return state, restart(observe(state, jnp.zeros(2)), num_agents=2, info={"caught": jnp.zeros(())})

    def step(self, state: HuntState, action: jax.Array, key: jax.Array) -> tuple[HuntState, TimeStep]:
        """Move both; deterministic, the key is not used."""
        angle = jnp.clip(action[:, 0], -np.pi, np.pi)
        velocity = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        velocity *= jnp.stack([jnp.float32(self.prey_speed), jnp.float32(self.predator_speed)])[:, None]
        position = jnp.clip(state.position + self.time_step * velocity, 0.0, 1.0)
        is_caught = jnp.linalg.norm(position[0] - position[1]) <= self.catch_radius
        is_over = state.time >= self.max_time - TOLERANCE * self.time_step
        reward = SIGNS * jnp.where(is_caught, -self.caught_reward, self.step_reward)
        state = HuntState(state.time + self.time_step, position)
        info = {"caught": is_caught.astype(jnp.float32)}
        return state, transition(observe(state, angle), reward, terminated=is_caught | is_over, info=info)


def observe(state: HuntState, angle: jax.Array) -> jax.Array:
    """Return what both agents are shown, [2, 7]."""
    shown = jnp.concatenate([state.time[None], state.position.ravel(), angle])
    return jnp.broadcast_to(shown, (2, shown.size))
