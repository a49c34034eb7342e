"""particles/Roller-v0 and particles/MultiRoller-v0: spheres on a floor that are driven by torque."""

from typing import ClassVar

from shoal.envs.base import environment, parameter
from shoal.envs.particles.tasks.particle_task import MAX_AGENTS, ParticleTask


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


@environment
class MultiRoller(ParticleTask):
    """Spheres on a floor, each with a target of its own, driven by torques; they should not touch each other."""

    num_agents: int = parameter(default=8, low=2, high=MAX_AGENTS)  # type: ignore[assignment]
    drive: float = parameter(default=4.0, above=0)
    rough: bool = True

    dimensions: ClassVar[int] = 3
