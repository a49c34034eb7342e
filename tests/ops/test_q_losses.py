"""Q-learning, double and Munchausen: what they are in special cases.

Their formulas, weights, gradients and shapes are held by `test_transitions.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transition_losses import LOSSES, arguments

from shoal.ops import q_losses

MADE = arguments(LOSSES["double_q"], 0, (50,))


def test_an_illegal_action_is_never_the_best():
    made = MADE | {"q_t": np.abs(MADE["q_t"])}
    legal = np.asarray([True, False, True])
    forbidden = made | {"selector_t": np.where(legal, made["selector_t"], -np.inf).astype(np.float32)}
    others = made | {key: made[key][:, legal] for key in ("q_t", "selector_t")}
    # Dropping an action of what follows changes the number of actions, so the first value is padded out again.
    others |= {
        key: np.concatenate([others[key], others[key][:, :1]], axis=-1) for key in ("q_t", "selector_t")
    }
    np.testing.assert_array_equal(q_losses.q_learning(**forbidden), q_losses.q_learning(**others))


@pytest.mark.parametrize("temperature", [0.03, 1.0])
@pytest.mark.quick("0.03")
def test_munchausen_without_its_bonus_is_soft_q_learning(temperature):
    made = {name: array for name, array in MADE.items() if name != "selector_t"}
    rest = {"policy_q_tm1": MADE["selector_t"], "temperature": temperature}
    got = q_losses.munchausen_q_learning(**made, **rest, alpha=0.0)
    q_t = made["q_t"].astype(np.float64)
    soft_value = temperature * np.log(np.sum(np.exp(q_t / temperature), axis=-1))
    prediction = made["q_tm1"][np.arange(50), made["a_tm1"]]
    np.testing.assert_allclose(
        got, made["r_t"] + made["discount_t"] * soft_value - prediction, rtol=1e-4, atol=1e-5
    )


def test_munchausen_at_temperature_0_adds_the_gap_to_the_best_action():
    """The limit: the soft value is the maximum, and τ log π(a) is q(a) - max q: advantage learning, clipped."""
    made = {name: array for name, array in MADE.items() if name != "selector_t"}
    before = MADE["selector_t"]
    got = q_losses.munchausen_q_learning(**made, policy_q_tm1=before, temperature=1e-4)
    gap = before[np.arange(50), made["a_tm1"]] - before.max(axis=-1)
    expected = q_losses.q_learning(**made) + 0.9 * np.maximum(gap, -1.0)
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_munchausen_is_finite_with_illegal_actions_and_hopeless_ones():
    values = jnp.asarray([[-np.inf, 1e4, -1e4], [0.0, -np.inf, -np.inf]])

    def total(values):
        return jnp.sum(
            q_losses.munchausen_q_learning(
                values,
                jnp.asarray([2, 0]),
                jnp.ones(2),
                jnp.full(2, 0.99),
                values,
                values,
                stop_target_gradients=False,
            )
        )

    value, gradient = jax.jit(jax.value_and_grad(total))(values)
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    # 1 - 0.9 + 0.99 * 1e4 + 1e4, and 1 + 0 + 0 - 0
    np.testing.assert_allclose(value, 1 - 0.9 + 1.99e4 + 1, rtol=1e-6)
