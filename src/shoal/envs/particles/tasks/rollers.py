"""particles/Roller-v0 and particles/MultiRoller-v0: spheres on a floor that are driven by torque."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, parameter
from shoal.envs.particles.tasks import particle_scene
from shoal.envs.particles.tasks.particle_task import MAX_AGENTS, ParticleTask, TaskState
from shoal.types import Array


@environment
class Roller(ParticleTask):
    """One sphere on a floor reaches its target by a torque about the two horizontal axes.

    It moves by friction alone: a torque about the y axis rolls it along x, and more than friction can carry makes it
    slide.
    """

    area_per_agent: float = parameter(default=400.0, above=0, static=True)
    drive: float = parameter(default=4.0, above=0)
    sensing: str | None = None
    rough: bool = True

    dimensions: ClassVar[int] = 3

    @property
    def num_agents(self) -> int:
        """One."""
        return 1

    def driving(self, action: Array) -> tuple[Array, Array]:
        """Return no force, and the torque of the action about the x and y axes."""
        return _torque(self.drive * action)

    def render(self, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
        """Draw the spheres from above, shaded."""
        return particle_scene.draw(self, state, past)


@environment
class MultiRoller(ParticleTask):
    """Spheres on a floor, each with a target of its own, driven by torques; they should not touch each other."""

    num_agents: int = parameter(default=8, low=2, high=MAX_AGENTS)  # type: ignore[assignment]
    drive: float = parameter(default=4.0, above=0)
    rough: bool = True

    dimensions: ClassVar[int] = 3

    def driving(self, action: Array) -> tuple[Array, Array]:
        """Return no force, and the torques of the actions about the x and y axes."""
        return _torque(self.drive * action)

    def render(self, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
        """Draw the spheres from above, shaded."""
        return particle_scene.draw(self, state, past)


def _torque(action: Array) -> tuple[Array, Array]:
    nothing = jnp.zeros_like(action[:1])
    return jnp.concatenate([nothing] * 3), jnp.concatenate([action, nothing])
