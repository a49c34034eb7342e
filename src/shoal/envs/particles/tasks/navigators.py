"""particles/Navigator-v0 and particles/MultiNavigator-v0: discs that reach their targets by force."""

from shoal.envs.base import environment, parameter
from shoal.envs.particles.tasks.particle_task import MAX_AGENTS, ParticleTask


@environment
class Navigator(ParticleTask):
    """One disc in a box reaches its target by force, and stays there for five decisions.

    The episode terminates then. Success is to be within a radius of the target at the last step.
    """

    area_per_agent: float = parameter(default=400.0, above=0, static=True)
    sensing: str | None = None


@environment
class MultiNavigator(ParticleTask):
    """Discs in a box, each with a target of its own, reach their targets by force without touching each other.

    Agents at their targets stay in the world as obstacles; the episode terminates when all have been at their targets
    for five decisions. An agent senses other agents and walls by rays, or by angular bins.
    """

    num_agents: int = parameter(default=8, low=2, high=MAX_AGENTS)  # type: ignore[assignment]
