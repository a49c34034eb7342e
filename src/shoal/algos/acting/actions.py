"""Raw actions of a policy, and their conversion to actions of the environment.

The update uses the action as it was sampled (`raw`): every log-probability is that of the raw action. The
environment receives the raw action converted to its space: unchanged (discrete), rescaled or clipped (normal),
squashed (tanh-normal), or rescaled from [-1, 1] (beta).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shoal.config import settings, struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets.outputs import ActionDistribution
from shoal.ops.distributions import Foreign
from shoal.types import Array, PyTree, spaces
from shoal.types.spaces import Box, Space


@struct.struct
class NoiseConfig(settings.Nested):
    """Settings of the noise by which a continuous policy explores."""

    group: ClassVar[str] = "actions"

    correlated_noise: bool = parameter(False, needs=Needs("action_space", kinds=("Box",)))
    """Correlates the exploration noise of a continuous policy over time, for tasks of sparse reward."""
    noise_correlation: float = parameter(0.9, low=0.0, high=1.0, needs=Needs("correlated_noise", (True,)))
    """Sets the correlation of the noise of neighbouring steps (correlated_noise)."""


def sample(distribution: ActionDistribution, key: Array) -> Array:
    """Sample a raw action."""
    return getattr(distribution, "sample_raw", distribution.sample)(key)


def mode(distribution: ActionDistribution) -> Array:
    """Return the raw action that a greedy policy takes."""
    return getattr(distribution, "mode_raw", distribution.mode)()


def log_prob(distribution: ActionDistribution, raw: Array) -> Array:
    """Return the log-probability (density) of a raw action."""
    return getattr(distribution, "log_prob_raw", distribution.log_prob)(raw)


def before_scaling(distribution: ActionDistribution, raw: Array) -> Array:
    """Return what `action_transform` takes: the raw sample, or the action of another package's distribution."""
    return distribution.from_raw(raw) if isinstance(distribution, Foreign) else raw


def bounded(distribution: ActionDistribution, raw: Array) -> Array:
    """Return the action of a raw sample as its distribution bounds it: a TanhNormal's in [-1, 1], others' itself."""
    return getattr(distribution, "from_raw", lambda x: x)(raw)


def entropy(distribution: Any) -> Array:
    """Return the entropy, or its estimate where there is no closed form (tanh-normal)."""
    if hasattr(distribution, "entropy_estimate"):
        return distribution.entropy_estimate()
    return distribution.entropy()


def without_noise(distribution: ActionDistribution) -> ActionDistribution:
    """Return a distribution without the weights of noise that is held, which only acting needs."""
    return getattr(distribution, "marginal", distribution)


def initial_noise(config: NoiseConfig, space: Space, batch_shape: tuple[int, ...]) -> Array | tuple[()]:
    """Make the noise before the first step, [*batch_shape, A]; () where each step's is drawn by itself."""
    is_drawn = config.correlated_noise and isinstance(space, Box)
    return jnp.zeros((*batch_shape, spaces.zeros(space).size)) if is_drawn else ()


def draw_noise(noise: Array, first: Array, key: Array, correlation: Array | float) -> Array:
    """Draw the noise of a step, [N, A], from an AR(1) process within each episode.

        ε_t = c ε_{t-1} + sqrt(1 - c²) z_t,   z_t ~ N(0, 1);   ε_t = z_t where t begins an episode

    Each ε_t by itself is standard normal; only those of consecutive steps are correlated. This helps exploration
    where white noise averages out (Hollenstein et al. 2024, "Colored Noise in PPO"; Eberhard et al. 2023).

    Args:
      noise: ε of the previous step, [N, A].
      first: whether the step begins an episode, [N].
      key: a JAX key for this step.
      correlation: c in [0, 1).
    """
    white_noise = jax.random.normal(key, noise.shape)
    correlated = correlation * noise + jnp.sqrt(1.0 - jnp.square(correlation)) * white_noise
    return jnp.where(first[..., None], white_noise, correlated)


def uniform_of(noise: Array) -> Array:
    """Map standard normal noise to uniform numbers in [-1, 1], 2 Φ(ε) - 1, elementwise.

    Random actions of noise that is correlated over time are each uniform.
    """
    return jax.lax.erf(noise / math.sqrt(2.0))


def sample_correlated(
    distribution: Any, noise: Array, first: Array, key: Array, correlation: Array | float
) -> tuple[Array, Array]:
    """Sample a raw action with correlated noise; return (noise, raw). The other arguments are those of `draw_noise`.

    The marginal distribution of each action is the policy's, so that an update uses its log-probability.

    Args:
      distribution: a Normal or TanhNormal with `loc` and `scale`, [N, A].
    """
    noise = draw_noise(noise, first, key, correlation)
    return noise, distribution.loc + distribution.scale * noise


def sample_held(
    distribution: PyTree, noise: tuple[Array, Array], first: Array, key: Array, steps: int
) -> tuple[tuple[Array, Array], Array]:
    """Sample a raw action with noise numbers that are held for some steps; return (noise, raw).

    Args:
      distribution: a `LinearNoise` of N streams, [N, A].
      noise: the numbers of the last steps, [N, M, A], and the steps since they were drawn, [N].
      first: whether the step begins an episode, [N].
      key: a JAX key for this step.
      steps: draws the numbers anew after this many steps, counted from the first that was acted; 0 where an episode
        begins.
    """
    numbers, age = noise
    is_due = age == 0 if steps else first

    def draw() -> Array:
        return struct.where(is_due, jax.random.normal(key, numbers.shape), numbers)

    # All streams are often due at once, and most steps need no numbers, of which there are many.
    numbers = jax.lax.cond(jnp.any(is_due), draw, lambda: numbers)
    return (numbers, (age + 1) % max(steps, 1)), distribution.with_noise(numbers)


def action_transform(space: Space, kind: str, scaling: str) -> Callable[[Array], Array]:
    """Return the function that converts raw actions [..., *shape] to actions of the environment.

    Args:
      space: the action space.
      kind: the name of the policy's distribution, which may be "auto".
      scaling: for a normal policy "rescale" (raw actions are in [-1, 1]) or "clip" (in the units of the space).
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
