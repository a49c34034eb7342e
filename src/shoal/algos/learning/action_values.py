"""Losses of action values on transitions of a replay: the three kinds of predictions, and returns of several steps.

Outputs of a network are as `shoal.nets.q_networks` describes them: values [..., A], distributions of them, or their
quantiles [..., A, m].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from shoal.algos.learning import metric_means
from shoal.nets.q_networks import values_of
from shoal.ops import distributional, off_policy, q_losses, value_losses
from shoal.types import CLIPPING, Array, Mean, PyTree

if TYPE_CHECKING:
    from shoal.algos.dqn_config import DQNConfig
    from shoal.algos.replayed_config import ReplayedConfig


class SampledTransitions(NamedTuple):
    """Transitions of one or several steps, of a batch [B]."""

    action: Array
    reward: Array  # of all steps, discounted
    discount: Array  # of the value that is bootstrapped: 0 where the episode terminated
    weight: Array  # 0 where there is no transition
    output: PyTree  # the target network's at the end, [B, A, ...]
    selector: Array  # values at the end by which the next action is chosen, [B, A]
    acting: Array | tuple[()] = ()  # the target network's values at the start, [B, A]; for munchausen


def legal(values: Array, mask: Array | None) -> Array:
    """Return values of actions with -inf for illegal ones; where none is legal, as when acting, all count as legal."""
    if mask is None:
        return values
    return jnp.where(mask | ~jnp.any(mask, axis=-1, keepdims=True), values, -jnp.inf)


def loss(config: DQNConfig, output: PyTree, batch: SampledTransitions) -> tuple[Array, Array]:
    """Compute the loss of each transition [B] for the network's output at its start; 0 where the weight is 0.

    For expected values this is half the squared TD error, or Huber's; for a distribution the cross-entropy with the
    projected distribution of the target (C51); for quantiles their regression (QR-DQN).

    Returns:
      the losses, and the errors by which the transitions have priority: the TD errors, or these losses again.
    """
    transition, end = (batch.action, batch.reward, batch.discount), (batch.output, batch.weight)
    kind, delta = values_of(config.network), config.huber_delta
    if kind == "categorical":
        atoms = jax.lax.stop_gradient(output.atoms[..., 0, :])  # the same of all actions
        after = (atoms, batch.output.logits, batch.weight)
        losses = distributional.categorical_q_learning(
            atoms, output.logits, *transition, *after, selector_t=batch.selector
        )
        return losses, losses
    if kind == "quantile":
        fractions = distributional.quantile_fractions(output.shape[-1])
        delta = delta if config.huber else 0.0
        losses = distributional.quantile_q_learning(
            output, fractions, *transition, *end, delta=delta, selector_t=batch.selector
        )
        return losses, losses
    if config.munchausen:
        error = q_losses.munchausen_q_learning(
            output,
            *transition,
            batch.output,
            batch.acting,  # type: ignore[arg-type]
            batch.weight,
            temperature=config.munchausen_temperature,
            alpha=config.munchausen_alpha,
            lowest=config.munchausen_lowest,
        )
    else:
        error = q_losses.q_learning(output, *transition, *end, selector_t=batch.selector)
    return value_losses.huber(error, delta=delta) if config.huber else value_losses.squared(error), error


def no_clipping(config: DQNConfig | ReplayedConfig) -> dict[str, Mean]:
    """Return what `clipping` adds to: zeros."""
    is_categorical = values_of(config.network) == "categorical"
    return dict.fromkeys(CLIPPING, Mean(jnp.zeros(()), jnp.zeros(()))) if is_categorical else {}


def clipping(config: DQNConfig, batch: SampledTransitions, axis: tuple[str, ...]) -> dict[str, Mean]:
    """Measure the mass of categorical targets beyond their atoms; empty for other kinds of values.

    Atoms from r / (1 - γ) of the least reward to that of the greatest hold all targets; γ is 0 where nothing follows.
    """
    if not no_clipping(config):
        return {}
    best = jnp.argmax(batch.selector, axis=-1)[:, None, None]
    logits = jnp.take_along_axis(batch.output.logits, best, axis=-2)[:, 0]
    atoms = batch.output.atoms[0, 0]  # the same of all actions
    x = batch.reward[:, None] + batch.discount[:, None] * atoms
    needed = batch.reward / (1.0 - batch.discount)
    return metric_means.clipping_metrics(x, jax.nn.softmax(logits), needed, atoms, batch.weight, axis)


class Steps(NamedTuple):
    """The n steps of windows, and what follows each; [n, B] or [n, B, A]."""

    reward: Array
    discount: Array  # gamma times the environment's
    last: Array
    weight: Array
    value: Array  # the target network's after each step, of all actions
    selector: Array  # by which the next action would be chosen
    action: Array  # that was taken there
    probability: Array | tuple[()]  # with which it was taken


def _greedy(steps: Steps) -> Array:
    best = jnp.argmax(steps.selector, axis=-1)
    return jax.nn.one_hot(best, steps.selector.shape[-1], dtype=steps.value.dtype)


def _retrace(steps: Steps) -> tuple[Callable[..., Array], tuple[PyTree, ...]]:
    return off_policy.retrace, (steps.value, steps.action, _greedy(steps), steps.probability)


def _tree_backup(steps: Steps) -> tuple[Callable[..., Array], tuple[PyTree, ...]]:
    return off_policy.tree_backup, (steps.value, steps.action, _greedy(steps))


def _watkins(steps: Steps) -> tuple[Callable[..., Array], tuple[PyTree, ...]]:
    return off_policy.q_lambda_watkins, (steps.value, steps.action)


def _uncorrected(steps: Steps) -> tuple[Callable[..., Array], tuple[PyTree, ...]]:
    function = off_policy.general_off_policy_returns_from_action_values
    return function, (steps.value, steps.action, _greedy(steps), jnp.ones_like(steps.reward))


RETURNS = {
    "retrace": _retrace,
    "tree_backup": _tree_backup,
    "q_lambda_watkins": _watkins,
    "uncorrected": _uncorrected,
}


def multistep_return(config: DQNConfig, steps: Steps) -> Array:
    """Compute the target of the first action of each window, [B], with traces that `config.multistep` chooses.

    The target policy is greedy by `selector`; Watkins' compares the values themselves. `config.q_lambda` multiplies all
    traces. A window that ends early, at the end of its episode or at the newest time-step, is bootstrapped there.
    """
    function, values = RETURNS[config.multistep](steps)

    def of_stream(weight: Array, *arguments: Array) -> Array:
        return function(*arguments, lambda_=config.q_lambda, w_tm1=weight)

    arguments = (steps.weight, steps.reward, steps.discount, steps.last, *values)
    return jax.vmap(of_stream, in_axes=1, out_axes=1)(*arguments)[0]
