"""Losses of the critic: functions with one signature, by name.

Each takes the config, the critic's output of each row, [...] numbers or distributions over numbers, and the targets,
numbers [...] in the same units; for those of `OF_TRANSITIONS` the rows themselves. It returns the loss of each row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax.numpy as jnp

from shoal.algos.learning.minibatches import Rows
from shoal.base.errors import ShoalError
from shoal.base.imports import chosen_function
from shoal.nets.outputs import Value
from shoal.ops import distributional, value_losses
from shoal.types import Array, PyTree

if TYPE_CHECKING:
    from shoal.algos.ppo_config import PPOConfig


def squared(config: PPOConfig, output: Value, target: Array) -> Array:
    """Compute half the squared error."""
    return value_losses.squared(_number(config, output), target)


def huber(config: PPOConfig, output: Value, target: Array) -> Array:
    """Compute Huber's loss, linear for errors beyond `huber_delta`."""
    return value_losses.huber(_number(config, output), target, config.huber_delta)


def two_hot(config: PPOConfig, output: Value, target: Array) -> Array:
    """Compute the cross-entropy of a categorical output with the two atoms nearest to the target."""
    return distributional.two_hot(*_atoms_and_logits(config, output), target)


def hl_gauss(config: PPOConfig, output: Value, target: Array) -> Array:
    """Compute the cross-entropy of a categorical output with a Gaussian of `hl_gauss_sigma` bins around the target."""
    atoms, logits = _atoms_and_logits(config, output)
    bin_width = (atoms[..., -1] - atoms[..., 0]) / (atoms.shape[-1] - 1)
    return distributional.hl_gauss(atoms, logits, target, config.hl_gauss_sigma * bin_width)


def categorical_td(config: PPOConfig, output: Value, target: Rows) -> Array:
    """Compute the cross-entropy of a categorical output with the next step's distribution, moved by the reward."""
    atoms, logits = _atoms_and_logits(config, output)
    transition = target.reward, target.discount, atoms, target.following, target.weight
    return distributional.categorical_td_learning(atoms, logits, *transition)


LOSSES: dict[str, Callable[..., Array]] = {
    "squared": squared,
    "huber": huber,
    "hl_gauss": hl_gauss,
    "two_hot": two_hot,
    "categorical_td": categorical_td,
}
OF_TRANSITIONS = ("categorical_td",)


def following(config: PPOConfig, output: Value) -> PyTree:
    """Return what the chosen loss reads of the outputs after each of T steps, given those of T+1; () for nothing."""
    return _atoms_and_logits(config, output)[1][1:] if config.value_loss in OF_TRANSITIONS else ()


def target_of(config: PPOConfig, rows: Rows) -> PyTree:
    """Return what the chosen loss compares outputs with."""
    return rows if config.value_loss in OF_TRANSITIONS else rows.target


def value_loss(config: PPOConfig, output: Value, old_value: Array, target: PyTree) -> Array:
    """Compute the chosen loss of each row; with `clip_vloss`, the larger of it and the clipped value's loss.

    Raises:
      ShoalError: the critic gives distributions where the loss is of numbers, or the other way round.
    """
    loss = functools.partial(chosen_function("value_loss", config.value_loss, LOSSES), config)
    if not config.clip_vloss:
        return loss(output, target)
    if not isinstance(output, Array):
        raise ShoalError(
            "clip_vloss=True clips a number, and this critic gives a distribution; set clip_vloss=False."
        )
    return value_losses.clipped_value(output, old_value, target, config.vf_clip_coef, loss)


def _number(config: PPOConfig, output: Value) -> Array:
    if not isinstance(output, Array):
        raise ShoalError(
            f"value_loss={config.value_loss!r} is of a number, and this critic gives a distribution; choose "
            "value_loss='hl_gauss' or value_loss='two_hot', or value_head='scalar'."
        )
    return output


def _atoms_and_logits(config: PPOConfig, output: Value) -> tuple[Array, Array]:
    if not (hasattr(output, "atoms") and hasattr(output, "logits")):
        raise ShoalError(
            f"value_loss={config.value_loss!r} is of a distribution over atoms, and this critic gives none; choose "
            "value_head='categorical' with bounds of the values, or value_loss='squared'."
        )
    return jnp.asarray(output.atoms), jnp.asarray(output.logits)
