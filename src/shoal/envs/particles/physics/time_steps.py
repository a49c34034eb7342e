"""The duration of a contact, and the longest time step that resolves it."""

import math
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError, rounded_bound

STEPS_PER_CONTACT = 20
HERTZ_FACTOR = 2.87  # of the duration of an elastic Hertzian impact


def linear_contact_time(stiffness: Any, mass: Any) -> Any:
    """Return the duration π √(m* / k) of an elastic impact on a linear spring, in s, of k in N/m and m* in kg."""
    return math.pi * np.sqrt(mass / stiffness)


def hertz_contact_time(modulus: Any, mass: Any, radius: Any, speed: Any) -> Any:
    """Return the duration 2.87 (m*² / (R* E*² v))^(1/5) of an elastic Hertzian impact, in s; E* is in Pa, m* in kg.

    Source: Johnson 1985, "Contact Mechanics", eq. 11.24.
    """
    return HERTZ_FACTOR * (np.square(mass) / (radius * np.square(modulus) * speed)) ** 0.2


def check_time_step(name: str, time_step: float, contact_time: float, origin: str) -> None:
    """Require that a time step is at most a twentieth of the shortest contact."""
    longest = contact_time / STEPS_PER_CONTACT
    if time_step > longest * (1 + 1e-6):
        raise ShoalError(
            f"{name}={time_step:g} is too long: it must be at most {rounded_bound(longest)}, a twentieth of the "
            f"shortest contact, which lasts {contact_time:.3g} ({origin})."
        )
