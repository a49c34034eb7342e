"""Costs counted by hand, and gradients that are scaled on their way back."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shoal
from shoal.nets.gradients import scale_gradient
from shoal.nets.mlp import MLP
from shoal.xla.costs import num_bytes, num_parameters, product_flops, program_flops, step_cost


def test_parameters_and_bytes():
    mlp = MLP(4, (64, 32), 2, key=jax.random.key(0))
    assert num_parameters(mlp) == 4 * 64 + 64 + 64 * 32 + 32 + 32 * 2 + 2
    assert num_bytes(mlp) == 4 * num_parameters(mlp)
    assert num_parameters({"a": jnp.zeros((2, 3)), "b": jnp.zeros(())}) == 7
    assert num_bytes(jnp.zeros(3, jnp.uint8)) == 3


def test_a_products_cost_is_that_counted_by_hand():
    a, b = jax.ShapeDtypeStruct((64, 128), jnp.float32), jax.ShapeDtypeStruct((128, 32), jnp.float32)
    for function in (lambda a, b: a @ b, jax.jit(lambda a, b: a @ b)):
        cost = step_cost(function, a, b)
        assert cost.flops == cost.product_flops == 2 * 64 * 128 * 32
        assert cost.bytes_accessed == 4 * (64 * 128 + 128 * 32 + 64 * 32)
        assert cost.argument_bytes == 4 * (64 * 128 + 128 * 32)
        assert cost.output_bytes == 4 * 64 * 32


def test_a_scans_products_count_as_often_as_they_run_and_of_a_branch_the_dearest():
    x, w = jnp.zeros((8, 16)), jnp.zeros((16, 16))
    one = 2 * 8 * 16 * 16

    def looped(x, w):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=10)[0]

    assert step_cost(looped, x, w).product_flops == 10 * one
    assert step_cost(looped, x, w).flops < 2 * one  # XLA's count is that of one turn
    assert product_flops(jax.vmap(lambda row: w @ row), x) == one
    assert product_flops(jax.jit(jax.checkpoint(looped)), x, w) == 10 * one
    assert (
        product_flops(lambda x, w: jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w), x, w)
        == 2 * one
    )
    assert product_flops(lambda x: x + 1.0, x) == 0.0


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolutions_products(groups):
    x, kernel = jnp.zeros((4, 8, 8, 6)), jnp.zeros((16, 3, 3, 6 // groups))

    def convolution(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "OHWI", "NHWC"), feature_group_count=groups
        )

    assert product_flops(convolution, x, kernel) == 2 * (4 * 6 * 6 * 16) * (3 * 3 * 6 // groups)
    if groups == 1:
        assert step_cost(convolution, x, kernel).flops == product_flops(convolution, x, kernel)


def test_an_mlps_gradient_costs_three_passes_less_that_of_the_input():
    mlp, x = MLP(32, (64,), 8, key=jax.random.key(0)), jnp.zeros((16, 32))
    first, last = 2 * 16 * 32 * 64, 2 * 16 * 64 * 8
    assert product_flops(MLP.__call__, mlp, x) == first + last
    assert product_flops(jax.grad(lambda mlp: jnp.sum(mlp(x) ** 2)), mlp) == 2 * first + 3 * last


@pytest.mark.parametrize("scale", [0.5, 0.0, -2.0, 1.0])
def test_gradients_are_scaled_and_values_are_not(scale):
    tree = {"a": jnp.array([1.0, -1e30, jnp.inf]), "b": (jnp.array(3.0),)}
    for ours, theirs in zip(jax.tree.leaves(scale_gradient(tree, scale)), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(ours, theirs)

    def loss(x, scale, scaled):
        return jnp.sum(jnp.sin(scaled({"x": x}, scale)["x"]) * x)

    x = jnp.array([0.3, -1.2, 2.0])
    gradient = jax.jit(jax.grad(lambda x, s: loss(x, s, scale_gradient)))(x, scale)  # the scale is traced
    np.testing.assert_allclose(gradient, scale * np.cos(x) * x + np.sin(x), rtol=1e-5)
    np.testing.assert_allclose(
        gradient, jax.grad(lambda x: loss(x, scale, optax.scale_gradient))(x), rtol=1e-5
    )
    forwards = jax.jacfwd(lambda x: scale_gradient(x, scale))(x)
    np.testing.assert_allclose(forwards, scale * np.eye(3), rtol=1e-6)
    assert jax.grad(lambda s: jnp.sum(scale_gradient(x, s)))(scale) == 0.0


def test_a_loop_within_a_loop_counts_as_often_as_its_caller_says():
    """The number of gradient steps of an update is data of the program, and known outside."""
    x, w = jnp.ones((64, 128)), jnp.ones((128, 128))

    def updates(x, w, count):
        def gradient_steps(x):
            return jax.lax.fori_loop(0, count, lambda _, x: x @ w, x @ w)

        return jax.lax.while_loop(lambda x: x[0, 0] < 1, gradient_steps, x)

    program, one = jax.make_jaxpr(updates)(x, w, 3).jaxpr, 2 * 64 * 128 * 128
    assert program_flops(program) == 2 * one
    assert program_flops(program, 2.5) == (1 + 2.5) * one


REPLAY = {"buffer_size": 512, "learning_starts": 8}


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "widths", "settings"),
    [
        ("dqn", (32, 32), {**REPLAY, "batch_size": 128, "train_frequency": 4}),
        ("dqn", (32, 32), {**REPLAY, "batch_size": 128, "train_frequency": 32}),
        ("dqn", (32,), {**REPLAY, "batch_size": 16, "train_frequency": 4}),
        ("dqn", (64, 64), {**REPLAY, "batch_size": 16, "train_frequency": 4}),
        ("pqn", (32, 32), {"num_minibatches": 2, "update_epochs": 3}),
        ("pqn", (32,), {"num_minibatches": 16, "update_epochs": 3}),
        ("ppo", (32, 32), {"num_minibatches": 2, "update_epochs": 3}),
        ("ppo", (32,), {"num_minibatches": 16, "update_epochs": 3}),
        ("ppo", (32,), {"num_minibatches": 2, "update_epochs": 3, "core": "gru", "core_size": 24}),
    ],
)
@pytest.mark.rare(
    "dqn-widths0-settings0",
    "ppo-widths8-settings8",
    "ppo-widths6-settings6",
    "pqn-widths5-settings5",
    "dqn-widths1-settings1",
    "dqn-widths3-settings3",
    "pqn-widths4-settings4",
)
def test_an_update_counts_all_its_gradient_steps(tmp_path, algorithm, widths, settings):
    """Of products 2mnk forward, and backward twice that but for the first layer's inputs; within 1%.

    Layers of few inputs, of few outputs and of few rows count as others do, though they are written as sums.
    """
    few = {"num_evals": 1, "eval_episodes": 2, "eval_max_steps": 5, "absolute_episodes": 0, "progress": False}
    run = shoal.train(
        "CartPole-v1", algorithm=algorithm, preset=False, seeds=1, devices=1, num_envs=4, num_steps=16,
        total_steps=128, hidden_sizes=widths, run_dir=tmp_path / "run", **few, **settings,
    )  # fmt: skip
    core = settings.get("core_size", 0)
    gates = 2 * 3 * core * (widths[-1] + core)
    hidden = sum(2 * m * n for m, n in itertools.pairwise((4, *widths))) + gates
    outputs = (2, 1) if algorithm == "ppo" else (2,)
    acting = hidden + 2 * (core or widths[-1]) * 2
    forward = sum(hidden + 2 * (core or widths[-1]) * n for n in outputs)
    learning = 3 * forward - len(outputs) * 2 * 4 * widths[0]
    if algorithm == "dqn":
        steps = 64 / settings["train_frequency"]
        expected = 64 * acting + steps * settings["batch_size"] * (forward + learning)
    else:
        valued = (
            forward - acting if algorithm == "ppo" else forward
        )  # of the T + 1 time-steps of each environment
        expected = 64 * acting + 4 * (16 + 1) * valued + 3 * 64 * learning
    assert run.summary["costs"]["update_flops"] == pytest.approx(expected, rel=0.01)
