"""The agents of a world of particles as points, and their contacts as lines between their centres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.envs.geometry import Geometry

if TYPE_CHECKING:  # the tasks import this module
    from shoal.envs.particles.tasks.particle_task import ParticleTask, TaskState


def geometry_of(env: ParticleTask, state: TaskState) -> Geometry:
    """Return places, radii, masses and velocities of the agents, and the overlap of each pair that touches.

    In the plane the third coordinate is 0. A line across a periodic boundary ends at the nearest image.
    """
    place, velocity = (_in_space(np.asarray(x)) for x in (state.particles.position, state.particles.velocity))
    spin = np.asarray(state.particles.spin)
    radius, mass = np.asarray(state.world.radius), np.asarray(state.world.mass)
    first, second = np.triu_indices(len(radius), 1)
    offset = place[second] - place[first]
    for axis, kind in enumerate(env.boundaries):
        if kind == "periodic":
            side = float(state.world.box[axis])
            offset[:, axis] -= side * np.round(offset[:, axis] / side)
    overlap = radius[first] + radius[second] - np.linalg.norm(offset, axis=1)
    touches = overlap > 0
    start = place[first][touches]
    spins = np.concatenate([np.zeros((3 - len(spin), len(radius))), spin]).T
    return Geometry(
        place,
        {"radius": radius, "mass": mass, "velocity": velocity, "spin": spins},
        np.stack([start, start + offset[touches]], axis=1),
        {"overlap": overlap[touches]},
    )


def _in_space(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [D, N] as [N, 3]."""
    return np.concatenate([vectors, np.zeros((3 - len(vectors), vectors.shape[1]))]).T.astype(np.float64)
