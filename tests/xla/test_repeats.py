"""Equal rows are found, computed once, and get the results and gradients that each would have had."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets import torsos
from shoal.nets.memory import recurrent
from shoal.nets.memory.recurrent import RecurrentTorso
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.torso_config import CoreConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete
from shoal.xla.repeats import apply_to_distinct, apply_to_distinct_plain, distinct_rows

N = 64
GRID = Box(0, np.broadcast_to((5, 3), (5, 5, 2)), dtype=np.uint8)


def rows(kinds, seed=0):
    """N rows of so many kinds, in any order: an array of bytes and a number each."""
    rng = np.random.default_rng(seed)
    number = np.concatenate([np.arange(kinds), rng.integers(0, kinds, N - kinds)])
    rng.shuffle(number)
    cells = rng.integers(0, 9, (kinds, 2, 3)).astype(np.uint8)
    return {"cells": jnp.asarray(cells[number]), "number": jnp.asarray(number, jnp.int32)}


@pytest.mark.parametrize("colliding", [False, True])
@pytest.mark.parametrize("kinds", [1, 5, 33, N])
def test_rows_of_a_kind_are_equal(monkeypatch, kinds, colliding):
    tree = rows(kinds)
    if colliding:  # every hash is the same: equal rows may then be taken for two kinds, never others for one

        class Ones:
            def integers(self, high, size, dtype):
                return np.zeros(size, dtype)

        monkeypatch.setattr(np.random, "default_rng", lambda seed: Ones())
        tree["number"] = tree["number"] % 2
    groups = distinct_rows(tree)
    for leaf in tree.values():
        np.testing.assert_array_equal(leaf[groups.representatives][groups.inverse], leaf)
    flat = np.concatenate([np.asarray(leaf).reshape(N, -1) for leaf in tree.values()], axis=1)
    unique = len(np.unique(flat, axis=0))
    assert groups.num_distinct >= unique if colliding else groups.num_distinct == unique == kinds
    assert int(groups.inverse.max()) == groups.num_distinct - 1


def function(parameters, rows):
    """One that tells how many rows it was given."""
    weights, table = parameters
    x = rows["cells"].reshape(-1, 6).astype(jnp.float32) @ weights + table[rows["number"]]
    return jnp.concatenate([jnp.tanh(x), jnp.full((len(x), 1), float(len(x)))], axis=-1)


@pytest.mark.parametrize("kinds, computed", [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64)])
@pytest.mark.quick("1-16", "33-64")
def test_results_and_gradients_are_those_of_every_row(kinds, computed):
    tree = rows(kinds)
    keys = jax.random.split(jax.random.key(1), 3)
    parameters = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (N, 4))
    weights = jax.random.normal(keys[2], (N, 5)).at[:, -1].set(0.0)

    def loss(apply):
        def of(parameters):
            y = apply(parameters)
            return jnp.sum(weights * y), y

        return jax.jit(jax.value_and_grad(of, has_aux=True))(parameters)

    (value, y), gradient = loss(lambda parameters: apply_to_distinct(function, parameters, tree))
    (expected, plain), expected_gradient = loss(
        lambda parameters: apply_to_distinct_plain(function, parameters, tree)
    )
    np.testing.assert_array_equal(y[:, -1], computed)
    np.testing.assert_allclose(y[:, :-1], plain[:, :-1], atol=1e-6)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for ours, theirs in zip(gradient, expected_gradient, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_a_few_rows_are_computed_as_they_are():
    tree = jax.tree.map(lambda x: x[:15] * 0, rows(5))
    y = jax.jit(lambda tree: apply_to_distinct(function, (jnp.ones((6, 4)), jnp.ones((N, 4))), tree))(tree)
    np.testing.assert_array_equal(y[:, -1], 15.0)


@pytest.mark.full
@pytest.mark.parametrize("beside, encoder", [(True, "cnn"), (False, "one_hot")])
def test_a_torso_gives_what_it_would_give_row_by_row(monkeypatch, beside, encoder):
    """Features, memories and gradients, of a network that sees a grid and a direction; some rows are equal."""
    spec = EnvSpec(Dict({"direction": Discrete(4), "view": GRID}), Discrete(3))
    config = CoreConfig(
        core="gru",
        core_size=6,
        previous_action=beside,
        action_embedding=2 * beside,
        previous_reward=beside,
        hidden_sizes=(7,) * beside,
        encoder=encoder,
    )
    torso = RecurrentTorso(spec, config, key=jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), 6)
    steps, envs = 5, 8
    kinds = jax.random.randint(keys[0], (steps, envs), 0, 12)
    inputs = NetworkInputs(
        {
            "direction": kinds % 4,
            "view": jax.random.randint(keys[1], (12, 5, 5, 2), 0, 4).astype(jnp.uint8)[kinds],
        },
        first=jax.random.bernoulli(keys[2], 0.2, (steps, envs)),
        action=jax.nn.one_hot(jax.random.randint(keys[3], (steps, envs), 0, 3), 3) if beside else (),
        reward=jax.random.normal(keys[4], (steps, envs)) if beside else (),
    )
    carry = jax.tree.map(lambda x: x + 0.5, torso.core.initial((envs,)))
    weights = jax.random.normal(keys[5], (steps, envs, 6))

    def everything():
        def loss(torso, carry):
            outcome = torso.unroll(carry, inputs)
            return jnp.sum(weights * outcome[1]), outcome

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(torso, carry)

    calls = []
    monkeypatch.setattr(
        recurrent, "apply_to_distinct", lambda *arguments: calls.append(1) or apply_to_distinct(*arguments)
    )
    ours = everything()
    assert calls
    monkeypatch.setattr(torsos.ENCODERS[encoder], "expects_repeats", False)
    theirs = everything()
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=2e-5)


def test_what_repeats_is_made_of_integers():
    image = Box(0, 255, (12, 12, 3), np.uint8)
    numbers = Box(-1.0, 1.0, (2,))

    def expects_repeats(space, kind="cnn"):
        return jax.eval_shape(
            lambda key: torsos.build(space, kind, key=key), jax.random.key(0)
        ).expects_repeats

    assert expects_repeats(GRID)
    assert expects_repeats(Dict({"view": GRID, "direction": Discrete(4)}))
    assert not expects_repeats(Dict({"view": GRID, "speed": numbers}))
    assert not expects_repeats(image)
    assert not expects_repeats(Dict({"view": GRID, "image": image}))
    assert expects_repeats(GRID, "one_hot")
    assert not expects_repeats(Dict({"view": GRID, "speed": numbers}), "one_hot")
    assert not expects_repeats(GRID, "flatten")
    assert not expects_repeats(Discrete(4), "flatten")
