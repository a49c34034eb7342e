"""Pictures of the particle worlds: everything where it is, and in the colour of its role."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs.base import render
from shoal.envs.classic.scenes import BLUE, GREEN, LIGHT_GREY, ORANGE
from shoal.envs.mpe.particle_scenes import RED, SIZE, VIEW
from shoal.envs.mpe.speaker_listener import SpeakerListener, SpeakerListenerState
from shoal.envs.mpe.spread import Spread, SpreadState
from shoal.envs.mpe.tag import Tag, TagState


def where(picture, colour):
    """The middle of all pixels of a colour, in the coordinates of the field."""
    rows, columns = np.nonzero((picture == colour).all(-1))
    assert rows.size
    scale = SIZE / 2 / VIEW
    return (columns.mean() + 0.5 - SIZE / 2) / scale, (SIZE / 2 - rows.mean() - 0.5) / scale


def has(picture, colour):
    return (picture == colour).all(-1).any()


@pytest.mark.full
def test_agents_are_where_they_are_and_a_covered_landmark_is_green():
    far = [[0.7, -0.4], [0.7, -0.4], [0.7, -0.4]]
    state = SpreadState(jnp.asarray(far), jnp.zeros((3, 2)), jnp.asarray([[0.0, 1.0], [-1, 0], [0, -1]]))
    picture = render(Spread(), state)
    assert picture.shape == (SIZE, SIZE, 3)
    np.testing.assert_allclose(where(picture, ORANGE), (0.7, -0.4), atol=0.02)  # all three touch
    assert not has(picture, GREEN) and not has(picture, BLUE)
    apart = state._replace(position=jnp.asarray([[-1.0, 0.02], [0.7, -0.4], [0.7, 0.9]]))
    picture = render(Spread(), apart)
    np.testing.assert_allclose(where(picture, GREEN), (-1, 0), atol=0.02)
    assert has(picture, BLUE) and not has(picture, ORANGE)


@pytest.mark.parametrize("message", [-1, 0, 1, 2])
def test_the_speakers_word_is_shown(message):
    state = SpeakerListenerState(
        jnp.asarray([[-0.5, -0.5], [0.5, 0.5]]), jnp.zeros((2, 2)),
        jnp.asarray([[0.0, 0.9], [-0.9, 0.3], [0.9, -0.9]]), jnp.asarray(1), jnp.asarray(message),
    )  # fmt: skip
    picture = render(SpeakerListener(), state)
    assert has(picture, (255, 255, 255)) == (message >= 0)
    np.testing.assert_allclose(where(picture, RED), (0, 0.9), atol=0.02)
    np.testing.assert_allclose(where(picture, BLUE), (0.9, -0.9), atol=0.02)
    np.testing.assert_allclose(where(picture, ORANGE), (-0.9, 0.3), atol=0.02)  # around the goal
    np.testing.assert_allclose(where(picture, LIGHT_GREY), (0.5, 0.5), atol=0.02)
    said = [render(SpeakerListener(), state._replace(message=jnp.asarray(word))) for word in range(-1, 3)]
    assert [np.array_equal(picture, other) for other in said].count(True) == 1


@pytest.mark.full
def test_roles_can_be_told_apart_and_a_catch_is_marked():
    position = jnp.asarray([[-0.8, 0.8], [-0.8, 0.8], [-0.8, 0.8], [0.8, -0.8]])
    state = TagState(position, jnp.zeros((4, 2)), jnp.zeros((2, 2)))
    picture = render(Tag(), state)
    np.testing.assert_allclose(where(picture, RED), (-0.8, 0.8), atol=0.02)
    np.testing.assert_allclose(where(picture, GREEN), (0.8, -0.8), atol=0.02)
    np.testing.assert_allclose(where(picture, LIGHT_GREY), (0, 0), atol=0.02)
    assert not has(picture, ORANGE)
    caught = state._replace(position=position.at[0].set(jnp.asarray([0.7, -0.8])))
    assert has(render(Tag(), caught), ORANGE)


@pytest.mark.full
@pytest.mark.parametrize("name", ["mpe/SpeakerListener-v0", "mpe/Spread-v0", "mpe/Tag-v0"])
def test_what_leaves_the_field_stays_in_the_picture(name):
    env = envs.make(name)
    state, _ = env.reset(jax.random.key(0))
    away = state._replace(env=state.env._replace(position=state.env.position.at[-1].set(9.0)))
    picture = render(env, away)
    assert picture.shape == (SIZE, SIZE, 3)
    margin = np.ones((SIZE, SIZE), bool)
    margin[2:-2, 2:-2] = False
    assert (picture[margin] == picture[0, 0]).all()
