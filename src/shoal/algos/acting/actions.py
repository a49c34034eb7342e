"""Between a policy's distribution and the action that the environment is given.

A policy remembers the action as it was sampled (`raw`), and the log-probability is always of that. The
environment is given the raw action fitted to its space: as it is (discrete), rescaled or clipped (normal),
squashed (tanh-normal), or stretched from [-1, 1] (beta).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.spaces import Box, Space
from shoal.types import Array


def sample(distribution: Any, key: Array) -> Array:
    """A raw action."""
    return getattr(distribution, "sample_raw", distribution.sample)(key)


def mode(distribution: Any) -> Array:
    """The raw action that a greedy policy takes."""
    return getattr(distribution, "mode_raw", distribution.mode)()


def log_prob(distribution: Any, raw: Array) -> Array:
    """Log-probability (density) of a raw action."""
    return getattr(distribution, "log_prob_raw", distribution.log_prob)(raw)


def entropy(distribution: Any) -> Array:
    """The entropy, or its estimate where there is no closed form (tanh-normal)."""
    if hasattr(distribution, "entropy_estimate"):
        return distribution.entropy_estimate()
    return distribution.entropy()


def sample_correlated(
    distribution: Any, noise: Array, first: Array, key: Array, correlation: Array | float
) -> tuple[Array, Array]:
    """A raw action whose noise follows an AR(1) process within each episode; returns (noise, raw).

        ε_t = c ε_{t-1} + sqrt(1 - c²) z_t,   z_t ~ N(0, 1);   ε_t = z_t where t begins an episode

    Each ε_t is standard normal by itself, so the marginal distribution of each action, whose log-probability
    the update uses, is the policy's; only neighbours are correlated. This explores where single steps of
    white noise cancel out (Hollenstein et al. 2024, "Colored Noise in PPO"; Eberhard et al. 2023).

    Args:
      distribution: a Normal or TanhNormal with `loc` and `scale`, [N, A].
      noise: ε of the step before, [N, A].
      first: whether the step begins an episode, [N].
      key: randomness of this step.
      correlation: c in [0, 1).
    """
    white_noise = jax.random.normal(key, noise.shape)
    correlated = correlation * noise + jnp.sqrt(1.0 - jnp.square(correlation)) * white_noise
    noise = jnp.where(first[..., None], white_noise, correlated)
    return noise, distribution.loc + distribution.scale * noise


def action_transform(space: Space, kind: str, scaling: str) -> Callable[[Array], Array]:
    """The function from raw actions [..., *shape] to those that the environment is given.

    Args:
      space: the action space.
      kind: the policy's distribution by name, "auto" included.
      scaling: for a normal policy "rescale" (it acts in [-1, 1]) or "clip" (in the action's own units).
    """
    if not isinstance(space, Box):
        return lambda raw: raw
    low, high = jnp.asarray(space.low), jnp.asarray(space.high)
    shape, middle, half_width = space.shape, (low + high) / 2, (high - low) / 2

    def transform(raw: Array) -> Array:
        raw = raw.reshape(raw.shape[:-1] + shape)
        if kind == "tanh_normal":
            return middle + half_width * jnp.tanh(raw)
        if kind != "beta" and scaling == "clip":
            return jnp.clip(raw, low, high)
        return middle + half_width * jnp.clip(raw, -1.0, 1.0)

    return transform
