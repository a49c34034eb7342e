"""Contact laws: the force between two bodies that overlap, and on a body that overlaps a wall.

A contact is of a first body (i) against a second one (j), which may be a wall. The normal n points from the first
to the second, δ is the overlap of the undeformed bodies, and u the velocity of the first body's surface at the contact
relative to the second's. With the effective mass m*, 1/m* = 1/m_i + 1/m_j, radius R* and moment of inertia I* (those of
the first body, if the second is a wall):

| part | force on the first body |
| --- | --- |
| normal | -n F, F = max(0, F_e + c n·u): bodies push, and never pull |
| "linear" | F_e = k δ, S = k, c = 2 ζ √(S m*) |
| "hertz" | F_e = (2/3) S δ = (4/3) E* √R* δ^(3/2), S = 2 E* √(R* δ), c = 2 √(5/6) ζ √(S m*) |
| tangential | -(κ S ξ + √κ c u_t), shortened to μ F; the spring ξ follows dξ/dt = u_t and is shortened to μ F / (κ S) |
| rolling | a torque of magnitude μ_r R* F against the relative rotation; all of a body at most stop it in a step |

The damping ratio ζ is that of the restitution asked for (`restitution.damping_ratio`). κ = 2 (1 - ν) / (2 - ν) is
the ratio of tangential to normal stiffness of elastic bodies with Poisson's ratio ν (Mindlin). The rolling
friction is the model of a constant directional torque, type A of Ai et al.

Sources: Cundall and Strack 1979, "A discrete numerical model for granular assemblies"; Tsuji et al. 1992; Di Renzo and
Di Maio 2004, "Comparison of contact-force models for the simulation of collisions in DEM-based granular flow codes"; Ai
et al. 2011, "Assessment of rolling resistance models in discrete element simulations".
"""

import math
from typing import NamedTuple

import jax.numpy as jnp

from shoal.envs.particles.physics.vectors import dot, shortened, square_root, tangential, turned
from shoal.types import Array

LAWS = ("linear", "hertz")
DASHPOT_FACTOR = {"linear": 2.0, "hertz": 2 * math.sqrt(5 / 6)}


class Material(NamedTuple):
    """Constants of the material of all bodies of a world; scalars."""

    stiffness: Array  # between two bodies: k in N/m ("linear"), or the effective modulus E* in Pa ("hertz")
    wall_stiffness: Array  # the same between a body and a wall
    damping_ratio: Array  # ζ, see `restitution.damping_ratio`
    friction: Array  # μ, Coulomb's coefficient
    tangential_ratio: Array  # κ, of tangential to normal stiffness
    rolling_friction: Array  # μ_r


class Contact(NamedTuple):
    """The geometry and the motion of contacts [...]; see the module's docstring."""

    normal: Array  # [D, ...], from the first body to the second; zero where their centres coincide
    overlap: Array  # m, negative where the bodies are apart
    velocity: Array  # u, [D, ...], m/s
    spin: Array  # the first body's angular velocity minus the second's, [S, ...], rad/s
    mass: Array  # m*, kg
    radius: Array  # R*, m
    inertia: Array  # I*, kg m², of the bodies' inertias divided among their contacts
    deepest: Array | float = math.inf  # overlap beyond which bodies pass through each other, m


class Slip(NamedTuple):
    """The motion by which tangential springs are lengthened during a step."""

    velocity: Array  # u_t, [D, ...], m/s
    duration: Array  # of the step, s


class Response(NamedTuple):
    """The effect of contacts [...] on the first body; that on the second is the opposite."""

    force: Array  # [D, ...], N
    torque: Array  # of rolling friction alone, [S, ...], N m
    spring: Array  # ξ, [D, ...], m; zero where the bodies are apart


def effective(a: Array, b: Array) -> Array:
    """Return the effective value of two masses, radii or moments of inertia, a b / (a + b)."""
    return a * b / (a + b)


def tangential_ratio(poisson: Array | float) -> Array:
    """Return κ = 2 (1 - ν) / (2 - ν) of elastic bodies with Poisson's ratio ν."""
    return 2 * (1 - jnp.asarray(poisson)) / (2 - jnp.asarray(poisson))


def normal_force(
    law: str, stiffness: Array, damping_ratio: Array, contact: Contact
) -> tuple[Array, Array, Array]:
    """Return the normal force F, the stiffness S and the dashpot's coefficient c of contacts, [...] each.

    All are 0 where the bodies are apart, but S of a linear spring. The force of too deep an overlap is NaN.
    """
    overlap = jnp.maximum(contact.overlap, 0.0)
    if law == "linear":
        tangent, elastic = jnp.broadcast_to(stiffness, overlap.shape), stiffness * overlap
    else:
        tangent = 2 * stiffness * square_root(contact.radius * overlap)
        elastic = (2 / 3) * tangent * overlap
    dashpot = DASHPOT_FACTOR[law] * damping_ratio * square_root(tangent * contact.mass)
    approach = dot(contact.normal, contact.velocity)
    is_touching = contact.overlap > 0
    force = jnp.where(is_touching, jnp.maximum(elastic + dashpot * approach, 0.0), 0.0)
    force = jnp.where(contact.overlap > contact.deepest, jnp.nan, force)
    return force, tangent, dashpot


def smooth_response(law: str, stiffness: Array, material: Material, contact: Contact) -> Array:
    """Return the force of contacts without friction on the first body, [D, ...]."""
    force, _, _ = normal_force(law, stiffness, material.damping_ratio, contact)
    return -contact.normal * force


def rough_response(
    law: str,
    stiffness: Array,
    material: Material,
    contact: Contact,
    slip: Slip,
    spring: Array,
) -> Response:
    """Return the forces of contacts with sliding and rolling friction.

    Args:
      stiffness: k or E* of these contacts.
      slip: the motion since the springs were computed.
      spring: ξ as it was, [D, ...].
    """
    normal, tangent, dashpot = normal_force(law, stiffness, material.damping_ratio, contact)
    limit = material.friction * normal
    tangential_stiffness = material.tangential_ratio * tangent
    longest = limit / jnp.where(tangential_stiffness > 0, tangential_stiffness, 1.0)
    spring = turned(spring + slip.duration * slip.velocity, contact.normal)
    spring = jnp.where(contact.overlap > 0, shortened(spring, longest), 0.0)
    sliding = tangential(contact.velocity, contact.normal)
    resistance = tangential_stiffness * spring + jnp.sqrt(material.tangential_ratio) * dashpot * sliding
    force = -contact.normal * normal - shortened(resistance, limit)
    return Response(force, _rolling_torque(material, contact, normal, slip.duration), spring)


def _rolling_torque(material: Material, contact: Contact, normal: Array, duration: Array) -> Array:
    """Return the torque of rolling friction on the first body, [S, ...]."""
    in_space = len(contact.spin) == 3
    rolling = tangential(contact.spin, contact.normal) if in_space else contact.spin
    greatest = material.rolling_friction * contact.radius * normal
    return -shortened(rolling * (contact.inertia / duration), greatest)


def kinetic_energy(mass: Array, velocity: Array, inertia: Array, spin: Array) -> Array:
    """Return the kinetic energy of bodies, translation and rotation, in J: [N] of [N], [D, N], [N], [S, N]."""
    return 0.5 * mass * dot(velocity, velocity) + 0.5 * inertia * dot(spin, spin)
