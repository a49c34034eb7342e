"""Modules whose parameters are drawn by NumPy, so that no initialiser is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def drawn_module(build: Callable[[jax.Array], Any], seed: int = 0, scale: float = 0.4) -> Any:
    """What `build` makes of a key, with normal numbers in every leaf: biases and norms are not trivial."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(build, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(scale * rng.normal(size=leaf.shape), leaf.dtype), shapes)
