"""Points and lines of an environment's state, for programs that show data in space."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Geometry(NamedTuple):
    """Points, and lines between two places each, with a number or a vector of each of them."""

    points: np.ndarray  # [N, 3]
    fields: Mapping[str, np.ndarray]  # of the points, [N] or [N, 3] each
    lines: np.ndarray  # their two ends, [L, 2, 3]
    line_fields: Mapping[str, np.ndarray]  # [L] or [L, 3] each
