"""Rays and bins: known hits, occlusion, grazing, walls, periodic images."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.particles.tasks import lidar

BOX = jnp.asarray([20.0, 16.0])
WALLS, PERIODIC = ("walls", "walls"), ("periodic", "periodic")
RAYS = 8  # one every 45 degrees


@functools.partial(jax.jit, static_argnames="kind")
def scans(position, radius, kind):
    """What all agents sense within 6: by rays ("walls", "periodic") or by bins."""
    if kind == "bins":
        return lidar.scan("bins", position, radius, BOX, WALLS, RAYS, 6.0)
    return lidar.scan("rays", position, radius, BOX, WALLS if kind == "walls" else PERIODIC, RAYS, 6.0)


def sense(places, kind, radius=1.0):
    position = jnp.asarray(np.transpose(places), jnp.float32)
    return jax.tree.map(np.asarray, scans(position, jnp.full(len(places), radius), kind))


def test_hits_occlusion_and_grazing():
    places = [
        (8, 8), (12, 8), (13.5, 8.5), (8 - 4 * np.sqrt(0.5), 8 + 4 * np.sqrt(0.5)), (5, 7.0001), (9.0001, 3.5),
    ]  # fmt: skip
    found = sense(places, "walls")
    # East: the nearer of two discs, on its side that faces the agent. South-east, north-east: nothing in range.
    expected = [3.0, 6.0, 6.0, 3.0, 3.0, 6.0, 6.0, 6.0]
    # The disc at (5, 7.0001) is grazed by the ray to the west: the ray passes 0.9999 from its centre; the one at
    # (9.0001, 3.5) is missed by the ray to the south by as little.
    np.testing.assert_allclose(found.distance[0], expected, atol=2e-2)
    np.testing.assert_array_equal(found.is_disc[0], [1, 0, 0, 1, 1, 0, 0, 0])
    assert not found.is_wall[0].any()
    # The farther disc is hidden from the first agent, and sees it no more than it is seen.
    assert found.distance[2][4] < 2 and found.is_disc[2][4]


def test_walls_are_met_at_their_distance_and_hidden_by_discs():
    found = sense([(2, 3), (2, 9)], "walls")
    diagonal = np.sqrt(2)
    expected = [6.0, 6.0, 5.0, 2 * diagonal, 2.0, 2 * diagonal, 3.0, 3 * diagonal]
    np.testing.assert_allclose(found.distance[0], expected, atol=1e-5)
    np.testing.assert_array_equal(found.is_wall[0], [0, 0, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(found.is_disc[0], [0, 0, 1, 0, 0, 0, 0, 0])


def test_periodic_images_are_sensed():
    found = sense([(1, 8), (18, 8)], "periodic")
    np.testing.assert_allclose(found.distance[0][4], 2.0, atol=1e-5)  # 3 through the border, minus the radius
    np.testing.assert_allclose(found.distance[1][0], 2.0, atol=1e-5)
    assert found.is_disc[0].sum() == 1 and not found.is_wall.any()


@pytest.mark.parametrize("side", [4.6, 9.0])
def test_all_images_of_a_small_periodic_box_are_sensed(side):
    """Against a loop over all images, an agent's own among them; 4.6 is the smallest box of two agents."""
    places, radius, reach = np.random.default_rng(0).uniform(0, side, (3, 2)), np.array([1.0, 0.7, 0.4]), 6.0
    box, position = jnp.full(2, side), jnp.asarray(places.T, jnp.float32)
    scan = jax.jit(lidar.scan, static_argnums=(0, 4, 5))
    rays, bins = (scan(kind, position, radius, box, PERIODIC, RAYS, reach) for kind in lidar.KINDS)
    shifts = side * np.stack(np.meshgrid(*[np.arange(-4, 5)] * 2), -1).reshape(-1, 2)
    directions = lidar.directions(RAYS).T
    for i, place in enumerate(places):
        on_rays, in_bins = np.full(RAYS, reach), np.full(RAYS, reach)
        for j, other in enumerate(places):
            for shift in shifts:
                way = other + shift - place
                if i == j and not shift.any():
                    continue
                along, across = directions @ way, np.abs(directions @ (way[1], -way[0]))
                hits = (along > 0) & (across <= radius[j])
                met = along - np.sqrt(np.maximum(radius[j] ** 2 - across**2, 0))
                on_rays = np.where(hits, np.minimum(on_rays, np.maximum(met, 0)), on_rays)
                k = round(np.arctan2(way[1], way[0]) * RAYS / (2 * np.pi)) % RAYS
                in_bins[k] = min(in_bins[k], np.hypot(*way))
        np.testing.assert_allclose(rays.distance[i], on_rays, atol=2e-3)
        np.testing.assert_allclose(bins.distance[i], in_bins, rtol=1e-5)


@pytest.mark.full
def test_the_distance_of_a_nearest_image_has_its_gradient():
    box, radius = jnp.full(2, 9.0), jnp.ones(2)

    def east(x, radius):
        place = jnp.stack([jnp.stack([x, x + 3.0]), jnp.ones(2)])
        return lidar.scan("rays", place.at[0, 0].set(1.0), radius, box, PERIODIC, 4, 6.0).distance[0, 0]

    slope, by_radius = jax.jit(jax.grad(east, (0, 1)))(jnp.asarray(1.0), radius)
    assert slope == 1 and by_radius.tolist() == [0.0, -1.0]


def test_a_disc_that_overlaps_is_at_no_negative_distance():
    found = sense([(8, 8), (8.5, 8)], "walls")
    assert found.distance[0][0] == 0 and found.is_disc[0][0]


def test_bins_show_the_nearest_centre_of_each_angle():
    found = sense([(8, 8), (12, 8.5), (11, 7), (8, 13)], "bins")
    expected = [np.hypot(3, 1), 6.0, 5.0, 6.0, 6.0, 6.0, 6.0, 6.0]
    np.testing.assert_allclose(found.distance[0], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.is_disc[0], [1, 0, 1, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("num_rays", [1, 2, 3, 8, 16])
def test_bins_against_angles(num_rays):
    offset = np.random.default_rng(num_rays).normal(size=(2, 40, 6)).astype(np.float32)
    is_seen = np.arange(6) != 2
    found = np.asarray(lidar.centre_bins(jnp.asarray(offset), jnp.asarray(is_seen), num_rays, 1.5))
    angle = np.arctan2(offset[1], offset[0]) * num_rays / (2 * np.pi)
    expected = np.full((40, num_rays), 1.5)
    for i, j in np.argwhere(np.broadcast_to(is_seen, angle.shape)):
        k = round(float(angle[i, j])) % num_rays
        expected[i, k] = min(expected[i, k], np.hypot(*offset[:, i, j]))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_centre_on_the_edge_of_two_bins_is_in_both():
    for num_rays, edge in ((4, (1.0, 1.0)), (7, (-1.0, 0.0)), (2, (0.0, 1.0)), (6, (0.0, -1.0))):
        found = lidar.centre_bins(jnp.asarray(edge)[:, None, None], jnp.ones((1, 1), bool), num_rays, 6.0)
        expected = [np.hypot(*edge)] * 2 + [6.0] * (num_rays - 2)
        np.testing.assert_allclose(np.sort(found[0]), expected, rtol=1e-6)


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", [0, 1])
def test_rays_against_small_steps_along_each_of_them(seed):
    random = np.random.default_rng(seed)
    places, radius = random.uniform(1, 15, (5, 2)), 0.8
    found = sense(places, "walls", radius)
    steps = np.linspace(0, 6, 3001)
    for i, place in enumerate(places):
        for k, direction in enumerate(lidar.directions(RAYS).T):
            points = place + steps[:, None] * direction
            inside = [np.hypot(*(points - x).T) < radius for j, x in enumerate(places) if j != i]
            outside = ((points < 0) | (points > np.asarray(BOX))).any(1)
            hit = np.logical_or.reduce([*inside, outside])
            expected = steps[np.argmax(hit)] if hit.any() else 6.0
            assert found.distance[i, k] == pytest.approx(expected, abs=5e-2)
