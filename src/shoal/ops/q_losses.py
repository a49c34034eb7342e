"""TD errors of action values, of single transitions with batch axes [...] first and actions [..., A] last.

The rules for weights, gradients and dtypes are those of `shoal.ops.value_losses`. Each function returns TD errors
δ_t = target - q_{t-1}(a_{t-1}), [...], so that `huber(δ)` or `squared(δ)` is the loss and |δ| a priority. An
action that is illegal at observation t gets a value of -inf there before it is passed. An action a_{t-1} that is
none of 0..A-1 has the error NaN, unless its transition has weight 0. All values are [..., A].
"""

import jax
import jax.numpy as jnp

from shoal.ops import _checks
from shoal.ops._selects import take_entry
from shoal.ops._streams import masked
from shoal.ops._transitions import action_transition, td_error

Array = jax.Array


def q_learning(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_t: Array,
    w_tm1: Array | None = None,
    *,
    selector_t: Array | None = None,
    stop_target_gradients: bool = True,
) -> Array:
    """TD errors of Q-learning; with `selector_t` double Q-learning: one network chooses, another evaluates.

        δ_t = r_t + γ_t q_t(argmax_a selector_t(a)) - q_{t-1}(a_{t-1})

    Args:
      selector_t: values by which the next action is chosen, [..., A]; None for q_t, whose maximum is then the value.
    Source: Watkins and Dayan 1992, "Q-learning"; with a target network Mnih et al. 2015, "Human-level control through
    deep reinforcement learning"; double van Hasselt et al. 2016, "Deep Reinforcement Learning with Double Q-learning",
    eq. 4.
    """
    q = {"q_tm1": q_tm1, "q_t": q_t}
    t = action_transition(r_t, discount_t, w_tm1, a_tm1, "[..., A] [..., A]", selector_t, **q)
    # Where nothing bootstraps the choice may be of NaN: the value is 0 whatever it is.
    a_t = jnp.argmax(q_t if selector_t is None else selector_t, axis=-1)
    value_t = take_entry(masked(t.bootstraps, q_t), a_t)
    return td_error(t, take_entry(q_tm1, a_tm1), value_t, stop_target_gradients)


def munchausen_q_learning(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_t: Array,
    policy_q_tm1: Array,
    w_tm1: Array | None = None,
    *,
    temperature: Array | float = 0.03,
    alpha: Array | float = 0.9,
    lowest: Array | float = -1.0,
    stop_target_gradients: bool = True,
) -> Array:
    """TD errors of Munchausen Q-learning: a soft value, and the policy's log-probability as a reward.

        δ_t = r_t + α max(τ log π(a_{t-1}), l_0) + γ_t Σ_a π_t(a) (q_t(a) - τ log π_t(a)) - q_{t-1}(a_{t-1})
        π = softmax(policy_q_{t-1} / τ),   π_t = softmax(q_t / τ)

    The sum is τ log Σ_a exp(q_t(a) / τ), the form that is computed. With α = 0 this is soft Q-learning.

    Args:
      policy_q_tm1: values of the actions at the observations that were acted on by the network of q_t, [..., A].
      lowest: l_0, at most 0: keeps the log-probability of an action that is nearly impossible in bounds.
    Source: Vieillard et al. 2020, "Munchausen Reinforcement Learning" (arXiv:2007.14430): the target of M-DQN.
    """
    q = {"q_tm1": q_tm1, "q_t": q_t, "policy_q_tm1": policy_q_tm1}
    t = action_transition(r_t, discount_t, w_tm1, a_tm1, "[..., A] [..., A] [..., A]", **q)
    _checks.broadcastable((), temperature=temperature, alpha=alpha, lowest=lowest)
    policy_q_tm1 = masked(t.is_transition, policy_q_tm1)
    scaled_log_pi = take_entry(policy_q_tm1, a_tm1) - _soft_maximum(policy_q_tm1, temperature)
    reward = t.r_t + masked(t.is_transition, alpha * jnp.maximum(scaled_log_pi, lowest))
    value_t = _soft_maximum(masked(t.bootstraps, q_t), temperature)
    return td_error(t._replace(r_t=reward), take_entry(q_tm1, a_tm1), value_t, stop_target_gradients)


def _soft_maximum(q: Array, temperature: Array | float) -> Array:
    """Compute τ log Σ_a exp(q(a) / τ), [..., A] -> [...]; the largest is subtracted first, so that none overflows."""
    highest = jax.lax.stop_gradient(jnp.max(q, axis=-1, keepdims=True))
    rest = temperature * jax.nn.logsumexp((q - highest) / temperature, axis=-1)
    return highest[..., 0] + rest
