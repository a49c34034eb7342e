"""The duration of a contact, and the steps in which it is resolved."""

import math
from typing import TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)

STEPS_PER_CONTACT = 20  # or more, of the shortest
HERTZ_FACTOR = 2.87  # of the duration of an elastic Hertzian impact


def linear_contact_time(stiffness: Number, mass: Number) -> Number:
    """Return the duration π √(m* / k) of an elastic impact on a linear spring, in s, of k in N/m and m* in kg."""
    return math.pi * np.sqrt(mass / stiffness)


def hertz_contact_time(modulus: Number, mass: Number, radius: Number, speed: Number) -> Number:
    """Return the duration 2.87 (m*² / (R* E*² v))^(1/5) of an elastic Hertzian impact, in s; E* is in Pa, m* in kg.

    Source: Johnson 1985, "Contact Mechanics", eq. 11.24.
    """
    return HERTZ_FACTOR * (np.square(mass) / (radius * np.square(modulus) * speed)) ** 0.2
