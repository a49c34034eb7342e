"""Every activation by name: its formula, and gradients that stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special as sp

from shoal.base.errors import ShoalError
from shoal.nets.activations import ACTIVATIONS, activation

SELU_SCALE, SELU_ALPHA = 1.0507009873554805, 1.6732632423543772

FORMULAS = {
    "celu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "identity": lambda x: x,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "log_sigmoid": sp.log_expit,
    "mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
    "sigmoid": sp.expit,
    "silu": lambda x: x * sp.expit(x),
    "sin": np.sin,
    "softplus": lambda x: np.logaddexp(0, x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "squareplus": lambda x: (x + np.sqrt(x**2 + 4)) / 2,
    "swish": lambda x: x * sp.expit(x),
    "tanh": np.tanh,
}


def test_every_name_has_a_formula_here():
    assert FORMULAS.keys() == ACTIVATIONS.keys()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_formula_and_finite_gradient(name):
    x = np.linspace(-8, 8, 101)
    np.testing.assert_allclose(
        activation(name)(jnp.asarray(x, jnp.float32)), FORMULAS[name](x), rtol=2e-5, atol=2e-6
    )
    extremes = jnp.asarray([-1e6, -100.0, 0.0, 100.0, 1e6], jnp.float32)
    assert np.all(np.isfinite(activation(name)(extremes)))
    assert np.all(np.isfinite(jax.vmap(jax.grad(activation(name)))(extremes)))


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ShoalError, match=r"activation='tahn' .* did you mean 'tanh'\?"):
        activation("tahn")
