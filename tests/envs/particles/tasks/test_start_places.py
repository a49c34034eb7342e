"""Places that keep their distance, and how many fit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.particles.tasks.start_places import draw_places, lattice, most_along


@pytest.mark.full
@pytest.mark.parametrize(
    "number, sides", [(8, (15.9, 15.9)), (16, (7.5, 7.5)), (1, (5.0, 5.0)), (6, (20.0, 0.5))]
)
def test_places_lie_apart_within_the_region(number, sides):
    cells = lattice(number, sides, 2.5)
    draw = functools.partial(draw_places, number=number, sides=jnp.asarray(sides), cells=cells, apart=2.5)
    places = np.asarray(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 50)))
    assert places.shape == (50, 2, number) and (places >= 0).all()
    assert (places <= np.asarray(sides, np.float32)[:, None]).all()
    offset = places[:, :, :, None] - places[:, :, None]
    distance = np.hypot(offset[:, 0], offset[:, 1]) + 100 * np.eye(number)
    assert distance.min() >= 2.5 - 1e-4
    assert np.ptp(places[:, 0, 0]) > 0.5 * sides[0] or number == 16  # the fullest lattice leaves no room


def test_how_many_fit_along_a_side():
    assert [most_along(side, 2.5) for side in (7.5, 7.4, 0.5, -1.0)] == [4, 3, 1, 0]
