"""Losses of distributions of values: categorical ones on fixed atoms, and quantiles.

The rules for weights, gradients and dtypes are those of `shoal.ops.value_losses`: single transitions with batch axes
[...] first, actions next and atoms or quantiles last. Every function returns losses [...], unreduced and to be
minimised. An action that is none of 0..A-1 has the loss NaN, unless its transition has weight 0. Atoms are in
ascending order, one support for all, [n], or one for each, [..., n]; those of the prediction and of the target may
differ in number and place. Logits and quantiles of actions are [..., A, n]; `fractions`, of which each quantile is one,
are in (0, 1), [n] or [..., n]; `delta` is that of the Huber loss, a number of 0 or more. An action that is illegal
gets -inf in `selector_t`.
"""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from shoal.ops import _checks
from shoal.ops._selects import take_entry
from shoal.ops._streams import masked, stop_gradient_if
from shoal.ops._transitions import Transition, action_transition, check_axes, transition
from shoal.ops.value_losses import huber
from shoal.xla.loops import sum_by_loop

Array = jax.Array


def categorical_projection(atoms: Array, probabilities: Array, onto: Array) -> Array:
    """Project a categorical distribution to other atoms: each mass is split between its two neighbours.

        p'_i = Σ_j p_j (f_{i-1}(z_j) - f_i(z_j)),   f_i(z) = clip((z - z'_i) / (z'_{i+1} - z'_i), 0, 1)
        with f of before the first atom 1 and of the last 0

    The nearer neighbour gets more, and a mass at an atom goes there undivided; masses beyond the ends go to the
    ends. The masses keep their sum and none is negative, and the mean is kept if no mass lies beyond the ends.
    The supports may differ in every way.

    Args:
      atoms: z, in any order, [m] or [..., m].
      probabilities: p, [..., m].
      onto: z', in ascending order, [n] or [..., n].
    Returns:
      p', [..., n].
    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", eq. 7.
    """
    batch = jnp.shape(probabilities)[:-1]
    _checks.floating(atoms=atoms, probabilities=probabilities, onto=onto)
    check_axes(batch, "[m] [..., m] [n]", atoms=atoms, probabilities=probabilities, onto=onto)
    lower, upper = onto[..., :-1], onto[..., 1:]
    # Two equal atoms have no distance to share a mass by; dividing by it would be NaN, in the gradient too.
    is_distinct = upper > lower
    width = jnp.where(is_distinct, upper - lower, 1.0)

    def shares(z: Array, probability: Array) -> Array:
        moved_up = jnp.where(is_distinct, (z - lower) / width, z >= upper)
        moved_up = jnp.clip(
            moved_up, 0.0, 1.0
        )  # the share of a mass at z that has moved from atom i to i + 1
        unchanged = [(0, 0)] * (moved_up.ndim - 1)
        inflow = jnp.pad(moved_up, [*unchanged, (1, 0)], constant_values=1.0)
        return (inflow - jnp.pad(moved_up, [*unchanged, (0, 1)])) * probability

    # A loop over the masses, which the compiler vectorises, as it does not the sum over all pairs of atoms.
    z, probabilities = jnp.broadcast_arrays(jnp.asarray(atoms), probabilities)
    return sum_by_loop(shares, z, probabilities)


def two_hot(atoms: Array, logits: Array, target: Array) -> Array:
    """The loss of a categorical value with a number for its target: the cross-entropy with its two nearest atoms.

        -Σ_i p_i log softmax(logits)_i,   p the `categorical_projection` of a mass of 1 at g

    The mean of p is g, unless g lies beyond the ends. The loss is least where the prediction is p; it is then the
    entropy of p.

    Args:
      atoms: z, [n] or [..., n].
      logits: [..., n].
      target: g, [...]; no gradient passes.
    Source: Schrittwieser et al. 2020, "Mastering Atari, Go, Chess and Shogi by Planning with a Learned Model",
    appendix F.
    """
    atoms, target = _check_target(atoms, logits, target)
    return _cross_entropy(
        categorical_projection(target[..., None], jnp.ones_like(target)[..., None], atoms), logits
    )


def hl_gauss(atoms: Array, logits: Array, target: Array, sigma: Array | float) -> Array:
    """The loss of a categorical value with a number for its target: the cross-entropy with a Gaussian around it.

        -Σ_i p_i log softmax(logits)_i
        p_i = (Φ((b_i - g)/σ) - Φ((b_{i-1} - g)/σ)) / (Φ((b_n - g)/σ) - Φ((b_0 - g)/σ))

    The bin of an atom z_i ends half-way to its neighbours, at b_{i-1} and b_i; those at the ends are as wide on both
    sides. A target beyond the ends counts as the end. Near the ends, where the Gaussian is cut, the mean of p is not
    quite g.

    Args:
      sigma: σ, above 0, in the units of the atoms; 0.75 times their distance in the source. A number or [...].
      atoms, logits, target: as of `two_hot`.
    Source: Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for Scalable Deep
    RL", section 3.1; Imani and White 2018, "Improving Regression Performance with Distributional Losses".
    """
    atoms, target = _check_target(atoms, logits, target)
    _checks.broadcastable(jnp.shape(target), sigma=sigma)
    middles = (atoms[..., 1:] + atoms[..., :-1]) / 2
    first, last = 2 * atoms[..., :1] - middles[..., :1], 2 * atoms[..., -1:] - middles[..., -1:]
    edges = jnp.concatenate([first, middles, last], axis=-1)
    # Far beyond the ends no mass would lie within the bins, and p would be 0 / 0.
    centre = jnp.clip(target, atoms[..., 0], atoms[..., -1])[..., None]
    below = jax.scipy.special.ndtr((edges - centre) / jnp.asarray(sigma, edges.dtype)[..., None])
    return _cross_entropy(jnp.diff(below) / (below[..., -1:] - below[..., :1]), logits)


def categorical_td_learning(
    atoms_tm1: Array,
    logits_tm1: Array,
    r_t: Array,
    discount_t: Array,
    atoms_t: Array,
    logits_t: Array,
    w_tm1: Array | None = None,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """The loss of a categorical state value: its cross-entropy with the projected target distribution.

        -Σ_i p'_i log softmax(logits_{t-1})_i,   p' the projection of softmax(logits_t) at r_t + γ_t z

    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", eq. 7 and
    algorithm 1.
    """
    arrays = {"atoms_tm1": atoms_tm1, "logits_tm1": logits_tm1, "atoms_t": atoms_t, "logits_t": logits_t}
    t = transition(r_t, discount_t, w_tm1, **arrays)
    check_axes(t.r_t.shape, "[n] [..., n] [m] [..., m]", **arrays)
    return _categorical_loss(t, atoms_tm1, logits_tm1, atoms_t, logits_t, stop_target_gradients)


def categorical_q_learning(
    atoms_tm1: Array,
    logits_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    atoms_t: Array,
    logits_t: Array,
    w_tm1: Array | None = None,
    *,
    selector_t: Array | None = None,
    stop_target_gradients: bool = True,
) -> Array:
    """The loss of categorical Q-learning (C51): as `categorical_td_learning`, with the action of the highest mean.

    Args:
      selector_t: values by which the next action is chosen instead, [..., A] (double Q-learning).
    Source: Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", algorithm 1; double Hessel
    et al. 2018, "Rainbow: Combining Improvements in Deep Reinforcement Learning".
    """
    floats = {"atoms_tm1": atoms_tm1, "logits_tm1": logits_tm1, "atoms_t": atoms_t, "logits_t": logits_t}
    axes = "[n] [..., A, n] [m] [..., A, m]"
    t = action_transition(r_t, discount_t, w_tm1, a_tm1, axes, selector_t, **floats)
    if selector_t is None:
        selector_t = jnp.sum(jax.nn.softmax(logits_t) * jnp.asarray(atoms_t)[..., None, :], axis=-1)
    logits_tm1 = take_entry(logits_tm1, a_tm1, axis=-2)
    logits_t = take_entry(logits_t, jnp.argmax(selector_t, axis=-1), axis=-2)
    return _categorical_loss(t, atoms_tm1, logits_tm1, atoms_t, logits_t, stop_target_gradients)


def quantile_fractions(n: int, dtype: DTypeLike = jnp.float32) -> Array:
    """The fractions at the middle of n equal parts, (2 i + 1) / (2 n) for i of 0..n-1: [n].

    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", lemma 2.
    """
    return (2 * jnp.arange(n, dtype=dtype) + 1) / (2 * n)


def quantile_regression(
    quantiles: Array,
    fractions: Array,
    samples: Array,
    delta: Array | float = 1.0,
    *,
    stop_target_gradients: bool = True,
) -> Array:
    """The quantile Huber loss, summed over quantiles and averaged over samples.

        Σ_i mean_j |τ_i - 1{e_ij < 0}| H(e_ij) / δ,   e_ij = x_j - θ_i
        H(e) = e²/2 where |e| <= δ,   δ (|e| - δ/2) elsewhere;   H(e) / δ is |e| where δ = 0

    With δ = 0 its minimum is at the quantiles of the samples; the division makes that the limit of small δ.

    Args:
      quantiles: θ, the prediction, [..., n].
      fractions: τ, of which each is the quantile, in (0, 1), [n] or [..., n].
      samples: x, of the distribution that is aimed at, [..., m].
    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", eq. 10; the
    division by δ as in Dabney et al. 2018, "Implicit Quantile Networks for Distributional Reinforcement
    Learning", eq. 3.
    """
    _checks.broadcastable((), delta=delta)
    arrays = {"quantiles": quantiles, "fractions": fractions, "samples": samples}
    check_axes(jnp.shape(quantiles)[:-1], "[..., n] [n] [..., m]", **arrays)
    _checks.floating(**arrays)
    delta = jnp.asarray(delta, quantiles.dtype)
    smooth = delta > 0

    def loss(sample: Array) -> Array:
        error = sample - quantiles
        weight = jnp.abs(fractions - (error < 0))
        scaled = huber(error, delta=delta) / jnp.where(smooth, delta, 1.0)
        return weight * jnp.where(smooth, scaled, jnp.abs(error))

    samples = stop_gradient_if(samples, stop_target_gradients)
    return jnp.sum(sum_by_loop(loss, samples), axis=-1) / samples.shape[-1]


def quantile_q_learning(
    quantiles_tm1: Array,
    fractions: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    quantiles_t: Array,
    w_tm1: Array | None = None,
    *,
    delta: Array | float = 1.0,
    selector_t: Array | None = None,
    stop_target_gradients: bool = True,
) -> Array:
    """The loss of quantile Q-learning (QR-DQN): `quantile_regression` on r_t + γ_t θ_t of the action with the
    highest mean.

    Args:
      selector_t: values by which the next action is chosen instead, [..., A] (double Q-learning).
    Source: Dabney et al. 2018, "Distributional Reinforcement Learning with Quantile Regression", algorithm 1; double
    with the choice of van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning".
    """
    floats = {"quantiles_tm1": quantiles_tm1, "fractions": fractions, "quantiles_t": quantiles_t}
    axes = "[..., A, n] [n] [..., A, m]"
    t = action_transition(r_t, discount_t, w_tm1, a_tm1, axes, selector_t, **floats)
    a_t = jnp.argmax(jnp.mean(quantiles_t, axis=-1) if selector_t is None else selector_t, axis=-1)
    predicted = masked(t.is_transition, take_entry(quantiles_tm1, a_tm1, axis=-2))
    following = masked(t.bootstraps, take_entry(quantiles_t, a_t, axis=-2))
    samples = t.r_t[..., None] + t.discount_t[..., None] * following
    losses = quantile_regression(
        predicted, fractions, samples, delta, stop_target_gradients=stop_target_gradients
    )
    return masked(t.is_transition, losses)


def _check_target(atoms: Array, logits: Array, target: Array) -> tuple[Array, Array]:
    """Check a categorical value and its target, a number; return atoms and target as constants."""
    arrays = {"atoms": atoms, "logits": logits, "target": target}
    check_axes(jnp.shape(logits)[:-1], "[n] [..., n] [...]", **arrays)
    _checks.floating(**arrays)
    return jax.lax.stop_gradient((jnp.asarray(atoms), jnp.asarray(target)))


def _cross_entropy(target: Array, logits: Array) -> Array:
    """Compute -Σ_i p_i log softmax(logits)_i."""
    return -jnp.sum(target * jax.nn.log_softmax(logits), axis=-1)


def _categorical_loss(
    t: Transition, atoms_tm1: Array, logits_tm1: Array, atoms_t: Array, logits_t: Array, stop: bool
) -> Array:
    """Compute the cross-entropy of the projected target and the prediction, from logits [..., n] and [..., m]."""
    probabilities = jax.nn.softmax(masked(t.bootstraps, logits_t))
    shifted_atoms = t.r_t[..., None] + t.discount_t[..., None] * atoms_t
    target = stop_gradient_if(categorical_projection(shifted_atoms, probabilities, atoms_tm1), stop)
    return masked(t.is_transition, _cross_entropy(target, masked(t.is_transition, logits_tm1)))
