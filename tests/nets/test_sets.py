"""The encoder of sets: the order of rows means nothing, and rows that do not count leave no trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.nets.encoders.kinds import SetEncoder
from shoal.nets.networks import NetworkConfig, check
from shoal.nets.sets import SetTorso
from shoal.nets.torso_config import TorsoConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete

ROWS = jax.random.normal(jax.random.key(0), (3, 5, 4))
COUNTS = jnp.array([[True] * 5, [True, False, True, False, False], [False] * 5])
HEADS = pytest.mark.parametrize("heads", [0, 2])


def torso(heads):
    return SetTorso(4, (6, 8), heads, key=jax.random.key(1))


@HEADS
def test_the_order_of_rows_means_nothing_and_there_may_be_any_number(heads):
    network, order = torso(heads), jnp.array([3, 0, 4, 2, 1])
    expected = network(ROWS, COUNTS)
    assert expected.shape == (3, network.num_features)
    np.testing.assert_allclose(network(ROWS[:, order], COUNTS[:, order]), expected, atol=1e-6)
    np.testing.assert_allclose(network(ROWS[0, :2]), network(ROWS[0], jnp.arange(5) < 2), atol=1e-6)


@HEADS
def test_rows_that_do_not_count_leave_no_trace_and_without_rows_it_is_zero(heads):
    network = torso(heads)
    hidden = jnp.where(COUNTS[..., None], ROWS, jnp.nan)
    np.testing.assert_array_equal(network(hidden, COUNTS), network(ROWS, COUNTS))
    assert (np.asarray(network(ROWS, COUNTS))[2] == 0).all()
    loss = lambda network, rows: jnp.sum(jnp.square(network(rows, COUNTS)))  # noqa: E731
    by_network, by_rows = jax.grad(loss, argnums=(0, 1), allow_int=True)(network, hidden)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(by_network))
    assert (np.asarray(by_rows)[~np.asarray(COUNTS)] == 0).all()


def test_it_is_the_mean_and_the_maximum_of_the_features_of_each_row():
    network = torso(0)
    features = np.stack([np.asarray(network.mlp(row)) for row in ROWS[1]])[np.asarray(COUNTS[1])]
    expected = np.concatenate([features.mean(0), features.max(0)])
    np.testing.assert_allclose(network(ROWS, COUNTS)[1], expected, atol=1e-6)


SPACE = Dict(
    {
        "bodies": Box(-1.0, 1.0, (5, 4)),
        "bodies_present": Box(0, 1, (5,), np.int8),
        "goal": Box(-1.0, 1.0, (2,)),
        "kind": Discrete(3),
    }
)


def observation(counts):
    return {
        "bodies": ROWS,
        "bodies_present": counts.astype(jnp.int8),
        "goal": jnp.ones((3, 2)),
        "kind": jnp.array([0, 1, 2]),
    }


def test_the_encoder_pools_sets_and_takes_the_rest_as_it_is():
    encoder = SetEncoder(SPACE, TorsoConfig(encoder_features=(6, 8), encoder_heads=2), key=jax.random.key(2))
    vector = encoder(observation(COUNTS))
    assert vector.shape == (3, encoder.num_features) == (3, 32 + 2 + 3)
    np.testing.assert_array_equal(vector[:, 32:34], 1.0)
    np.testing.assert_array_equal(vector[:, 34:], np.eye(3))
    np.testing.assert_allclose(vector[:, :32], encoder.sets[0](ROWS, COUNTS), atol=1e-6)
    alone = SetEncoder(SPACE["bodies"], key=jax.random.key(2))
    np.testing.assert_allclose(alone(ROWS), alone.sets[0](ROWS))


@pytest.mark.quick("none")
@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_critic_has_an_encoder_of_its_own(core):
    spec = EnvSpec(Dict({"own": Box(-1.0, 1.0, (2,)), "bodies": Box(-1.0, 1.0, (5, 4))}), Discrete(2))
    spec = spec._replace(critic_only=("bodies",))
    config = NetworkConfig(critic_encoder="set", core=core, core_size=8)
    check(config, spec)
    network = config.build(spec, jax.random.key(0))
    of = (
        (lambda x: x)
        if core == "none"
        else (lambda x: x.torso if hasattr(x.torso, "encoder") else x.torso[0])
    )
    assert of(network.actor).encoder.kind == "flatten" and of(network.critic).encoder.sets


@pytest.mark.parametrize(
    ("settings", "space", "message"),
    [
        ({"encoder": "set"}, Box(-1.0, 1.0, (3,)), r"encoder='set' needs an observation \[rows, features\]"),
        ({"critic_encoder": "set"}, Box(-1.0, 1.0, (3,)), r"critic_encoder='set' needs an observation"),
        ({"encoder": "set", "encoder_heads": 3}, SPACE, r"encoder_heads=3 must divide 64"),
        (
            {"encoder": "set", "encoder_features": ()},
            SPACE,
            r"encoder_features=\(\) leaves encoder='set' without",
        ),
    ],
)
def test_what_does_not_fit_is_refused(settings, space, message):
    with pytest.raises(ShoalError, match=message):
        check(NetworkConfig(**settings), EnvSpec(space, Discrete(2)))
