"""Value losses, elementwise and unreduced: the caller weighs and averages.

`value` is the prediction and `target` a constant (no gradient passes); both [...], and so is the result.
"""

import jax
import jax.numpy as jnp

Array = jax.Array


def squared(value: Array, target: Array) -> Array:
    """Half the squared error: `(v - g)² / 2`, whose gradient is `v - g`."""
    return 0.5 * jnp.square(value - jax.lax.stop_gradient(target))


def clipped_value(value: Array, old_value: Array, target: Array, clip_coef: Array | float) -> Array:
    """The larger of the loss of the value and that of the value kept within ε of its old one.

        max((v - g)², (v_old + clip(v - v_old, -ε, ε) - g)²) / 2

    Args:
      value: v, [...].
      old_value: what the critic said when the data were gathered, [...].
      target: g, [...].
      clip_coef: ε, in the units of the value.

    Source: OpenAI Baselines' ppo2; examined in Engstrom et al. 2020, "Implementation Matters in Deep
    Policy Gradients".
    """
    old_value = jax.lax.stop_gradient(old_value)
    clipped = old_value + jnp.clip(value - old_value, -clip_coef, clip_coef)
    return jnp.maximum(squared(value, target), squared(clipped, target))


def huber(value: Array, target: Array, delta: Array | float = 1.0) -> Array:
    """Huber's loss: squared for errors up to δ, linear beyond, so that the gradient is within ±δ.

        e²/2 where |e| <= δ,   δ (|e| - δ/2) elsewhere,   e = v - g

    Source: Huber 1964, "Robust Estimation of a Location Parameter".
    """
    error = jnp.abs(value - jax.lax.stop_gradient(target))
    quadratic = jnp.minimum(error, delta)  # and the rest is linear; neither overflows or divides
    return 0.5 * jnp.square(quadratic) + delta * (error - quadratic)
