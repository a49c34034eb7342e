"""Spheres (discs in the plane), their world, and the geometry of a contact between two of them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from shoal.envs.particles.physics.boxes import nearest_image
from shoal.envs.particles.physics.contact_laws import Contact, Material, Slip, effective
from shoal.envs.particles.physics.vectors import tangential, unit, velocity_by_spin
from shoal.types import Array

# Moment of inertia of a homogeneous disc and sphere, in units of m r².
INERTIA_FACTOR = {2: 1 / 2, 3: 2 / 5}


class World(NamedTuple):
    """The bodies, material, box and forces of an episode's world; data."""

    radius: Array  # [N], m
    mass: Array  # [N], kg
    inertia: Array  # [N], kg m²
    material: Material
    box: Array  # sides, [D], m
    gravity: Array  # acceleration, [D], m/s²
    drag: Array  # force per velocity, kg/s
    angular_drag: Array  # torque per angular velocity, kg m²/s
    time_step: Array  # s
    skin: Array  # by how much lists of neighbours reach beyond contact, m; unused without a cell list
    # Overlap of two particles, in radii of the smaller one, beyond which their force is NaN; twice that with a wall.
    deepest: Array | float = math.inf


class Bodies(NamedTuple):
    """Particles of any arrangement [...], such as the first particles of all pairs, at one time."""

    position: Array  # [D, ...], m
    velocity: Array  # [D, ...], m/s
    spin: Array  # angular velocity, [S, ...], rad/s
    radius: Array  # [...], m
    mass: Array  # [...], kg
    inertia: Array  # divided among the contacts of the body, [...], kg m²


class Movement(NamedTuple):
    """Velocities [D, ...] and angular velocities [S, ...] of particles during a step."""

    velocity: Array
    spin: Array


def inertia_of(mass: Array, radius: Array, dimensions: int) -> Array:
    """Return the moment of inertia of homogeneous discs (2 dimensions) or spheres (3)."""
    return INERTIA_FACTOR[dimensions] * mass * radius**2


def contact_between(first: Bodies, second: Bodies, box: Array, boundaries: tuple[str, ...]) -> Contact:
    """Return the contacts of particles with each other.

    The lever arms of the tangential force divide the distance of the centres in proportion to the radii. So they add up
    to the distance, and angular momentum is conserved.
    """
    offset = nearest_image(second.position - first.position, box, boundaries)
    normal, distance = unit(offset)
    reach = first.radius + second.radius
    return Contact(
        normal=normal,
        overlap=reach - distance,
        velocity=_surface_velocity(first, second, first, second, normal, distance),
        spin=first.spin - second.spin,
        mass=effective(first.mass, second.mass),
        radius=effective(first.radius, second.radius),
        inertia=effective(first.inertia, second.inertia),
    )


def slip_between(
    first: Bodies,
    second: Bodies,
    of_first: Movement,
    of_second: Movement,
    since: Array,
    duration: Array,
    box: Array,
    boundaries: tuple[str, ...],
) -> Slip:
    """Return the motion that lengthens the tangential springs during a step.

    Args:
      of_first: their velocities at a time within the step, at which slip and normal are taken.
      since: the time from then to the end of the step, s.
    """
    moved = since * (of_second.velocity - of_first.velocity)
    normal, distance = unit(nearest_image(second.position - first.position, box, boundaries) - moved)
    velocity = _surface_velocity(first, second, of_first, of_second, normal, distance)
    return Slip(tangential(velocity, normal), duration)


def wall_contacts(direction: Array, distance: Array, bodies: Bodies, movement: Movement | Bodies) -> Contact:
    """Return the contacts of bodies [N, ...] with walls at distances [W, N, ...] in directions [D, W, N, ...].

    The lever arm of the friction is the radius, so that a body that rolls without sliding has the speed ω r.
    """
    velocity, spin = movement.velocity[:, None], movement.spin[:, None]
    mass, radius, inertia = (
        jnp.broadcast_to(x, distance.shape) for x in (bodies.mass, bodies.radius, bodies.inertia)
    )
    return Contact(
        normal=direction,
        overlap=bodies.radius - distance,
        velocity=velocity + velocity_by_spin(bodies.radius * spin, direction),
        spin=jnp.broadcast_to(spin, (len(spin), *distance.shape)),
        mass=mass,
        radius=radius,
        inertia=inertia,
    )


def lever_arms(first: Bodies, second: Bodies, distance: Array) -> tuple[Array, Array]:
    """Return the distances of both centres to the contact, which add up to the distance of the centres."""
    share = first.radius / (first.radius + second.radius)
    return distance * share, distance * (1 - share)


def _surface_velocity(
    first: Bodies,
    second: Bodies,
    of_first: Movement | Bodies,
    of_second: Movement | Bodies,
    normal: Array,
    distance: Array,
) -> Array:
    """Return the velocity of the first particles' surface at the contact relative to the second's, [D, ...]."""
    arm, other_arm = lever_arms(first, second, distance)
    turning = velocity_by_spin(arm * of_first.spin + other_arm * of_second.spin, normal)
    return of_first.velocity - of_second.velocity + turning


def map_bodies(bodies: Bodies, function: Callable[[Array], Array]) -> Bodies:
    """Apply a function of arrays [C, N, ...] to all fields, those of [N, ...] with an axis C = 1 added and removed."""
    vectors = [function(x) for x in bodies[:3]]
    scalars = [function(x[None])[0] for x in bodies[3:]]
    return Bodies(*vectors, *scalars)
