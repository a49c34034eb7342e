"""Bounds of a particle world's ranges, within which integrators and contact laws can compute.

An impact of the effective mass m* against the stiffness S has ω = √(S / m*), and a step of dt turns its phase by ω dt.
With s = (ω dt)² and y = 2 ζ √s, the share of a velocity that the dashpot takes in a step, a contact of the Verlet
method is stable for y + s / 4 < 1: there -1 is an eigenvalue of the step. Beyond, the dashpot turns the velocity
round, and from y = 2 on an impact gains energy. Friction has a spring and a dashpot of its own, κ and √κ times as
strong, which act on a mass that is smaller by 1 + m r² / I; Coulomb's limit keeps their effect small, unless the
friction is large.

All numbers are float64, and each is the end of a range that is the worst for its bound.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp

from shoal.base.errors import ShoalError, rounded_bound
from shoal.envs.particles.physics.bodies import INERTIA_FACTOR
from shoal.envs.particles.physics.contact_laws import DASHPOT_FACTOR
from shoal.envs.particles.physics.time_steps import STEPS_PER_CONTACT, hertz_contact_time, linear_contact_time
from shoal.types import Array

PRESSED = 0.5  # radii to which weight or drive may press a body into a wall at rest
MOVED = 0.5  # radii that the drive may make a body move in a step
PASSING = 4.0  # radii of overlap with less than which agents of the drive's greatest speed meet head-on
DEEPEST, DEEPEST_OF_SLOW = 1.0, 1.75  # radii of overlap at fault in a run; where `PASSING` holds, the second
# Up to which Coulomb's limit keeps friction stable: less than 1 / √2, at which the friction of a body that spins in a
# corner of three walls can be as large as the forces by which they push it out (in an edge of two, 1).
SMALL_FRICTION = 0.7
# Contacts that turn a body together, in units of one: of one body, and of one among many.
CROWDED = {False: 2.0, True: 5.0}
SMALLEST, LARGEST = 1e-12, 1e12  # radius, mass and inertia, whose squares and products float32 holds
RESOLVED = 1e5  # radii, a box in which float32 resolves places to less than a hundredth of a radius
SMALLEST_DRAG = 1e-30  # smaller ones bound no speed
ROUNDING = 1e-6


class Numbers(NamedTuple):
    """The parameters of a world that are numbers or ranges, all at their lowest or all at their highest."""

    radius: float
    mass: float
    stiffness: float
    restitution: float
    friction: float
    tangential_ratio: float
    drag: float
    gravity: float
    drive: float  # a force, or the torque of a body that rolls
    time_step: float
    reach: float  # of rays


@dataclasses.dataclass(frozen=True)
class Ranges:
    """The ranges of a world by which its bounds are computed."""

    law: str
    dimensions: int
    is_rough: bool
    num_bodies: int
    side: float  # of the box, m
    top_speed: float
    low: Numbers
    high: Numbers

    @property
    def shared_by(self) -> int:
        """The bodies of a contact that move: two, or one against a wall where there is no other."""
        return 2 if self.num_bodies > 1 else 1

    @property
    def effective_mass(self) -> float:
        """m* of the lightest contact."""
        return self.low.mass / self.shared_by

    @property
    def phase(self) -> float:
        """ω dt of the fastest contact."""
        tangent = self.high.stiffness
        if self.law == "hertz":
            radius = self.high.radius / self.shared_by
            energy = self.effective_mass * self.top_speed**2 / 2
            depth = (15 / 8 * energy / (tangent * math.sqrt(radius))) ** 0.4
            tangent = 2 * tangent * math.sqrt(radius * max(depth, PRESSED * self.high.radius))
        return math.sqrt(tangent / self.effective_mass) * self.high.time_step

    def dashpot(self, damping_ratio: float) -> float:
        """y of a damping ratio."""
        return DASHPOT_FACTOR[self.law] * damping_ratio * self.phase

    @property
    def bearing(self) -> float:
        """The least force that a wall bears on a body that is pressed into it by `PRESSED` radii."""
        radius, depth = self.low.radius, PRESSED * self.low.radius
        if self.law == "linear":
            return self.low.stiffness * depth
        return 4 / 3 * self.low.stiffness * math.sqrt(radius) * depth**1.5


def deepest_overlap(
    law: str, push: Array, drag: Array, radius: Array, mass: Array, stiffness: Array, time_step: Array
) -> Array:
    """Return the overlap, in radii of the smaller body, at which two agents of a run pass through each other;
    the mass is the greatest, radius and stiffness are the lowest.

    It is a radius; or more, where drag holds agents at a speed at which soft bodies meet so deeply without passing.
    What a drive without drag can bring about has no bound.
    """
    speed = push / jnp.maximum(drag, SMALLEST_DRAG)
    is_bounded = speed * time_step <= MOVED * radius
    if law == "linear":
        is_bounded &= 2 * speed * jnp.sqrt(mass / 2 / stiffness) <= PASSING * radius
    return jnp.where(is_bounded, DEEPEST_OF_SLOW, DEEPEST)


def damping_ratio_of(restitution: float) -> float:
    """Return ζ of a restitution by bisection of its equation (see `restitution`); for the bounds alone."""
    low, high = 0.0, 1.0
    while restitution_of(high) > restitution:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if restitution_of(middle) > restitution else (low, middle)
    return high


def restitution_of(damping_ratio: float) -> float:
    """Return the restitution of ζ: exp(-2 ψ cot ψ) with ζ = cos ψ, or exp(-2 χ coth χ) with ζ = cosh χ."""
    if damping_ratio < 1:
        angle = math.acos(damping_ratio)
        return math.exp(-2 * angle / math.tan(angle))
    angle = math.acosh(damping_ratio)
    return math.exp(-2 * (angle / math.tanh(angle) if angle > 0 else 1.0))


def check_ranges(x: Ranges) -> None:
    """Require ranges that can be computed: nothing gains energy, sinks into a wall or is moved through another body.

    Raises:
      ShoalError: for the first number that is out of its bound, which the sentence says.
    """
    _check_scale(x)
    _check_contact_time(x)
    _check_restitution(x)
    _check_drag(x)
    if x.is_rough:
        _check_friction(x)
    if x.dimensions > 2:
        _at_most(
            "gravity",
            x.high.gravity,
            x.bearing / x.high.mass,
            f"so that mass={x.high.mass:g} on stiffness={x.low.stiffness:g} sinks half a radius into the floor",
        )
    _check_drive(x)


def _at_most(name: str, value: float, bound: float, reason: str, size: str = "large") -> None:
    if value > bound * (1 + ROUNDING):
        raise ShoalError(
            f"{name}={value:g} is too {size}: it must be at most {rounded_bound(bound)}, {reason}."
        )


def _check_scale(x: Ranges) -> None:
    """Require sizes whose squares float32 holds, and a box in which it resolves the smallest radius."""
    for end in (x.low, x.high):
        inertia = INERTIA_FACTOR[x.dimensions] * end.mass * end.radius**2
        for name, value in (("radius", end.radius), ("mass", end.mass), ("inertia", inertia)):
            if not SMALLEST <= value <= LARGEST:
                raise ShoalError(
                    f"{name}={value:.6g} is out of bounds: {SMALLEST:g} to {LARGEST:g} can be computed in float32 "
                    "(inertia is that of mass and radius); choose other units."
                )
    if x.side > RESOLVED * x.low.radius:
        raise ShoalError(
            f"radius={x.low.radius:g} is too small for a box with a side of {x.side:g}: float32 resolves places to "
            f"{x.side * 2**-24:.3g}, and the side must be at most {RESOLVED:g} radii; give a smaller area_per_agent."
        )


def _check_contact_time(x: Ranges) -> None:
    """Require that a time step is at most a twentieth of the shortest contact."""
    stiffness, radius = x.high.stiffness, x.high.radius
    origin = f"stiffness={stiffness:g}, mass={x.low.mass:g}"
    if x.law == "linear":
        duration = linear_contact_time(stiffness, x.effective_mass)
    else:
        duration = hertz_contact_time(stiffness, x.effective_mass, radius / x.shared_by, x.top_speed)
        origin += f", radius={radius:g}, top_speed={x.top_speed:g}"
    reason = f"a twentieth of the shortest contact, which lasts {duration:.3g} ({origin})"
    _at_most("time_step", x.high.time_step, float(duration / STEPS_PER_CONTACT), reason, "long")


def _check_restitution(x: Ranges) -> None:
    strongest = max(1 - x.phase**2 / 4, 0.0) / x.dashpot(1.0)
    least = restitution_of(strongest)
    if x.low.restitution < least * (1 - 1e-4):
        raise ShoalError(
            f"restitution={x.low.restitution:g} is too small: it must be at least {rounded_bound(least, up=True)} with "
            f"time_step={x.high.time_step:g}, since the dashpot of a smaller one would turn a velocity round within a "
            f"step; a shorter time_step allows less."
        )


def _check_drag(x: Ranges) -> None:
    mass, time_step = x.low.mass, x.high.time_step
    taken = x.dashpot(damping_ratio_of(x.low.restitution)) + x.phase**2 / 4
    bound = (1 - min(taken, 1.0) / 2) * mass / time_step
    reason = (
        f"so that in a step it does not turn round the velocity of mass={mass:g} (time_step={time_step:g})"
    )
    _at_most("drag", x.high.drag, bound, reason)


def _check_friction(x: Ranges) -> None:
    """Allow any friction whose own spring and dashpot are stable, also in a crowd, and else a small one."""
    friction, ratio, time_step = x.high.friction, x.high.tangential_ratio, x.high.time_step
    if friction <= SMALL_FRICTION * (1 + ROUNDING):
        return
    lighter = CROWDED[x.num_bodies > 1] * (1 + 1 / INERTIA_FACTOR[x.dimensions])
    dashpot = lighter * math.sqrt(ratio) * x.dashpot(damping_ratio_of(x.low.restitution))
    spring = lighter * ratio * x.phase**2 / 4
    if dashpot + spring > 1:
        shorter = 2 / (dashpot + math.sqrt(dashpot**2 + 4 * spring))  # of this time step
        raise ShoalError(
            f"friction={friction:g} is too large: with tangential_ratio={ratio:g}, "
            f"restitution={x.low.restitution:g} and time_step={time_step:g} it must be at most {SMALL_FRICTION:g}, "
            f"since a body that sticks would be turned round in every step; a time_step of "
            f"{rounded_bound(shorter * time_step)} allows it."
        )


def _check_drive(x: Ranges) -> None:
    """Bound the drive by which an agent sinks into what it is pressed against, or moves too far in a step."""
    low, time_step = x.low, x.high.time_step
    to_drive = 1.0 if x.dimensions == 2 else low.radius  # of a force
    reason = f"by which stiffness={low.stiffness:g} is pressed in by half of radius={low.radius:g}"
    _at_most("drive", x.high.drive, x.bearing * to_drive, reason)
    fastest = MOVED * low.radius / time_step
    bound = max(fastest * low.drag, fastest**2 * low.mass / (2 * x.side)) * to_drive
    reason = (
        f"by which mass={low.mass:g} moves half of radius={low.radius:g} in a step after it has crossed the box, so "
        f"that it cannot pass through another (drag={low.drag:g}, time_step={time_step:g})"
    )
    _at_most("drive", x.high.drive, bound, reason)
