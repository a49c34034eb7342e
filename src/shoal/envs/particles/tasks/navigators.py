"""particles/Navigator-v0 and particles/MultiNavigator-v0: discs that reach their targets by force."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, parameter
from shoal.envs.particles.tasks import particle_scene
from shoal.envs.particles.tasks.particle_task import MAX_AGENTS, ParticleTask, TaskState
from shoal.types import Array


@environment
class Navigator(ParticleTask):
    """One disc in a box reaches its target by force, and stays there for five decisions.

    The episode terminates then. Success is to be within a radius of the target at the last step.
    """

    area_per_agent: float = parameter(default=400.0, above=0, static=True)
    sensing: str | None = None

    dimensions: ClassVar[int] = 2

    @property
    def num_agents(self) -> int:
        """One."""
        return 1

    def driving(self, action: Array) -> tuple[Array, Array]:
        """Return the force of the action, and no torque."""
        return self.drive * action, jnp.zeros_like(action[:1])

    def render(self, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
        """Draw agents, targets, rays and trails from above."""
        return particle_scene.draw(self, state, past)


@environment
class MultiNavigator(ParticleTask):
    """Discs in a box, each with a target of its own, reach their targets by force without touching each other.

    Agents at their targets stay in the world as obstacles; the episode terminates when all have been at their targets
    for five decisions. An agent senses other agents and walls by rays, or by angular bins.
    """

    num_agents: int = parameter(default=8, low=2, high=MAX_AGENTS)  # type: ignore[assignment]

    dimensions: ClassVar[int] = 2

    def driving(self, action: Array) -> tuple[Array, Array]:
        """Return the force of the actions, and no torque."""
        return self.drive * action, jnp.zeros_like(action[:1])

    def render(self, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
        """Draw agents, targets, rays and trails from above."""
        return particle_scene.draw(self, state, past)
