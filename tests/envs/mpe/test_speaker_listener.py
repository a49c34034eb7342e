"""Speaker and listener: words, roles and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.mpe.speaker_listener import SpeakerListener

ENV = SpeakerListener()


def play(word, move, seed=0):
    state, first = ENV.reset(jax.random.key(seed))
    return state, first, *ENV.step(state, jnp.asarray([word, move]), jax.random.key(0))


@pytest.mark.full
def test_masks_and_padding_are_those_of_the_roles():
    _, first, _, second = play(0, 0)
    for timestep in (first, second):
        np.testing.assert_array_equal(timestep.action_mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
        assert timestep.observation.shape == (2, 11)
        np.testing.assert_array_equal(timestep.observation[0, 3:], 0)


@pytest.mark.parametrize("word", [0, 1, 2])
def test_a_word_is_heard_in_the_same_step_and_does_not_move_the_speaker(word):
    state, first, after, timestep = play(word, 4)
    np.testing.assert_array_equal(first.observation[1, -3:], 0)
    np.testing.assert_array_equal(timestep.observation[1, -3:], np.eye(3)[word])
    np.testing.assert_array_equal(after.position, state.position)  # nobody had a velocity yet
    np.testing.assert_allclose(after.velocity, [[0, 0], [0, 0.5]])


def test_the_speaker_sees_the_colour_of_the_goal_and_both_are_paid_for_the_listeners_way():
    goals = set()
    for seed in range(12):
        state, first, after, timestep = play(0, 0, seed)
        goal = int(state.goal)
        goals.add(goal)
        np.testing.assert_allclose(first.observation[0, :3], 0.15 + 0.5 * np.eye(3)[goal])
        squared = np.sum((np.asarray(after.position[1]) - np.asarray(after.landmarks[goal])) ** 2)
        np.testing.assert_allclose(timestep.reward, [-squared, -squared], rtol=1e-6)
        np.testing.assert_allclose(timestep.info["distance"], np.sqrt(squared), rtol=1e-6)
    assert goals == {0, 1, 2}
