"""The previous action as a core is shown it: as it is, embedded, both, and where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.nets.inputs import action_features
from shoal.nets.memory.recurrent import RecurrentTorso
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.networks import NetworkConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Discrete, MultiDiscrete

KEY = jax.random.key(0)
SETTINGS = {"core": "gru", "core_size": 6, "hidden_sizes": (3,), "previous_action": True}


def torso_of(space, **settings):
    config = NetworkConfig(**SETTINGS, previous_reward=True, **settings)
    config.validate()
    return RecurrentTorso(EnvSpec(Box(-1.0, 1.0, (2,)), space), config, key=KEY)


def outputs(torso, action):
    """The features of one step after a previous action, given as numbers."""
    flag = jnp.zeros((1, 1))
    inputs = NetworkInputs(jnp.ones((1, 1, 2)), None, flag > 0, action[None, None], flag)
    return np.asarray(torso.unroll(torso.initial((1,)), inputs)[1])


@pytest.mark.parametrize("embedding", [0, 2])
@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 3))], ids=str)
def test_an_episode_begins_with_no_action_or_with_the_first(space, embedding):
    first = action_features(space, jnp.zeros(space.shape, int))
    other = action_features(space, jnp.ones(space.shape, int))
    torso = torso_of(space, action_embedding=embedding, start_action="first")
    np.testing.assert_array_equal(outputs(torso, jnp.zeros_like(first)), outputs(torso, first))
    assert not np.allclose(outputs(torso, first), outputs(torso, other))
    torso = torso_of(space, action_embedding=embedding)
    assert not np.allclose(outputs(torso, jnp.zeros_like(first)), outputs(torso, first))


def test_only_an_embedding_of_none_has_a_vector_of_its_own():
    kernels = [
        torso_of(Discrete(3), action_embedding=2, start_action=start).embedding[0].projection[0]
        for start in ("none", "first")
    ]
    assert kernels[0].bias.shape == (2,) and kernels[1].bias is None
    np.testing.assert_array_equal(kernels[0].kernel, kernels[1].kernel)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1.0, 1.0, (3,))], ids=["discrete", "box"])
def test_the_embedding_and_the_action_stand_beside_each_other(space):
    torso = torso_of(space, action_embedding=2, action_beside_embedding=True, latches=1)
    assert torso.core.in_features == 3 + 2 + 3 + 1
    action = jnp.array([0.0, 1.0, 0.0])
    inputs = NetworkInputs(None, action=action[None, None], reward=jnp.full((1, 1), 7.0))
    embedded, plain, reward = torso._extra_inputs(inputs)
    np.testing.assert_allclose(embedded[0, 0], torso.embedding[0](action))
    np.testing.assert_array_equal(plain[0, 0], action)
    np.testing.assert_array_equal(reward[0, 0], [7.0])
    # A latch is opened by the reward, which stands last.
    assert np.abs(torso.core.layers[0].kernel[6, -1]) > 5.0
