"""mpe/SpeakerListener-v0: one agent sees the goal and speaks, the other hears it and goes there."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, parameter
from shoal.envs.mpe import particle_scenes, particles
from shoal.envs.mpe.particle_world import ParticleWorld
from shoal.types import Array
from shoal.xla.batch_last import add_up

SPEAKER, LISTENER = 0, 1  # agents, and their roles
NUM_LANDMARKS = 3  # as many as words and colours
COLOURS = np.full((NUM_LANDMARKS, 3), 0.15, np.float32) + 0.5 * np.eye(NUM_LANDMARKS, dtype=np.float32)
NOTHING_SAID = -1  # the message before the speaker's first action


class SpeakerListenerState(NamedTuple):
    """Positions, the listener's velocity, the goal, and the speaker's last message."""

    position: Array  # [2, 2], of the speaker, which cannot move, and of the listener
    velocity: Array  # [2, 2]
    landmarks: Array  # [3, 2]
    goal: Array  # [], int32: the landmark that the listener should go to
    message: Array  # [], int32: 0, 1 or 2, or NOTHING_SAID


@environment
class SpeakerListener(ParticleWorld):
    """A speaker sees the colour of the goal and says one of three words; a listener hears it and moves.

    Both are paid the negated square of the listener's distance to the goal, one of three landmarks. The words have
    no meaning of their own.

    Two roles. Role 0, the speaker, observes the colour of the goal (3 entries) and has three actions, the words; it
    does not move. Role 1, the listener, observes its velocity, the red, the green and the blue landmark as seen from
    it, and the word that was just said, one-hot (11 entries; zeros before the first word); it has five actions. The
    speaker's observation is padded with zeros to 11 entries, and the action mask excludes its last two actions. The
    same as mpe2's `simple_speaker_listener_v4`.

    `info["distance"]` is the listener's distance to the goal.

    Source: Lowe et al. 2017, "Multi-Agent Actor-Critic for Mixed Cooperative-Competitive Environments".
    """

    acceleration: float = parameter(default=5.0)

    num_agents = 2
    roles = (SPEAKER, LISTENER)
    team_return = "mean"  # both are paid the same
    observation_size = 2 + 2 * NUM_LANDMARKS + NUM_LANDMARKS
    global_state_size = 2 * 2 + 2 + 2 * NUM_LANDMARKS + NUM_LANDMARKS + NUM_LANDMARKS
    info_summaries = MappingProxyType({"distance": "last"})

    def legal_actions(self) -> np.ndarray:
        """Exclude the speaker's actions beyond the words."""
        words = np.arange(self.action_space.n) < NUM_LANDMARKS
        return np.stack([words, np.ones_like(words)])

    def start(self, key: Array) -> SpeakerListenerState:
        """Draw the goal and the places of agents and landmarks."""
        goal_key, place_key = jax.random.split(key)
        places = particles.draw_places(place_key, 2 + NUM_LANDMARKS)
        return SpeakerListenerState(
            position=places[:2],
            velocity=jnp.zeros((2, 2)),
            landmarks=places[2:],
            goal=jax.random.randint(goal_key, (), 0, NUM_LANDMARKS),
            message=jnp.asarray(NOTHING_SAID, jnp.int32),
        )

    def advance(self, state: SpeakerListenerState, action: Array) -> SpeakerListenerState:
        """Say the speaker's word and drive the listener; nobody collides."""
        listener = particles.drive(action[LISTENER:], self.acceleration)
        force = jnp.concatenate([jnp.zeros_like(listener), listener])
        position, velocity = self.moved(state, force)
        message = action[SPEAKER].astype(jnp.int32)
        return state._replace(position=position, velocity=velocity, message=message)

    def observe(self, state: SpeakerListenerState) -> Array:
        """Return the goal's colour, padded; and velocity, landmarks and word, [2, 11]."""
        colour = jnp.sum(_one_hot(state.goal)[:, None] * COLOURS, axis=0)
        padding = jnp.zeros(self.observation_size - len(colour))
        landmarks = state.landmarks - state.position[LISTENER]
        heard = [state.velocity[LISTENER], landmarks.reshape(-1), _one_hot(state.message)]
        return jnp.stack([jnp.concatenate([colour, padding]), jnp.concatenate(heard)])

    def observe_world(self, state: SpeakerListenerState) -> Array:
        """Return positions, the listener's velocity, landmarks, goal and word, both one-hot, [18]."""
        parts = (
            state.position.reshape(-1),
            state.velocity[LISTENER],
            state.landmarks.reshape(-1),
            _one_hot(state.goal),
            _one_hot(state.message),
        )
        return jnp.concatenate(parts)

    def rewards(self, state: SpeakerListenerState) -> tuple[Array, Mapping[str, Array]]:
        """Return the negated square of the listener's distance to the goal, for both."""
        goal = add_up(_one_hot(state.goal)[:, None] * state.landmarks, axis=0)
        squared = add_up((state.position[LISTENER] - goal) ** 2, axis=0)
        return jnp.stack([-squared, -squared]), {"distance": jnp.sqrt(squared)}

    def render(self, state: SpeakerListenerState) -> np.ndarray:
        """Draw the landmarks in their colours, a ring around the goal, the listener, and the speaker with its word."""
        return particle_scenes.speaker_listener(*map(np.asarray, state))


def _one_hot(index: Array) -> Array:
    """Return the one-hot vector of a landmark or a word [...], as [3, ...]; zeros for any other number."""
    return jnp.stack([index == number for number in range(NUM_LANDMARKS)]).astype(jnp.float32)
