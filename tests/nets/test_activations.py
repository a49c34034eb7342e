"""Every activation by name: its formula, and gradients that stay finite."""

import jax
import numpy as np
import pytest
import scipy.special as sp

from shoal.base.errors import ShoalError
from shoal.nets.activations import ACTIVATIONS, OF_ALL_FEATURES, activation
from shoal.nets.mlp import MLP

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
    "none": lambda x: x,
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

OVER_FEATURES = {  # of rows of features
    "softmax": lambda x: sp.softmax(x, axis=-1),
    "log_softmax": lambda x: sp.log_softmax(x, axis=-1),
    "normalise": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
}


def test_every_name_has_a_formula_here():
    assert FORMULAS.keys() | OVER_FEATURES.keys() == ACTIVATIONS.keys()
    assert OVER_FEATURES.keys() == set(OF_ALL_FEATURES)


def test_formulas_and_finite_gradients():
    x = np.linspace(-8, 8, 101, dtype=np.float32)
    extremes = np.asarray([-1e6, -100.0, 0.0, 100.0, 1e6], np.float32)

    @jax.jit
    def all_of(x, extremes):
        functions = {name: activation(name) for name in FORMULAS}
        return {n: (f(x), f(extremes), jax.vmap(jax.grad(f))(extremes)) for n, f in functions.items()}

    for name, (y, at_extremes, slopes) in all_of(x, extremes).items():
        expected = FORMULAS[name](x.astype(np.float64))
        np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6, err_msg=name)
        assert np.all(np.isfinite(at_extremes)) and np.all(np.isfinite(slopes)), name


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(ShoalError, match=r"activation='tahn' .* did you mean 'tanh'\?"):
        activation("tahn")


@pytest.mark.quick("40-normalise")
@pytest.mark.parametrize("name", OVER_FEATURES)
@pytest.mark.parametrize("rows", [3, 40])
def test_those_of_all_features_are_over_each_row_in_an_mlp_of_few_rows_and_of_many(name, rows):
    x = np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)
    mlp = MLP(5, (7,), 2, activation=name, key=jax.random.key(0))
    hidden = x @ np.asarray(mlp.layers[0].kernel).T
    expected = OVER_FEATURES[name](hidden.astype(np.float64))
    np.testing.assert_allclose(mlp.with_features(x)[1], expected, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(activation(name, 0)(hidden.T).T, expected, rtol=2e-5, atol=2e-6)
