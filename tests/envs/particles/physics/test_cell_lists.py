"""The cell list against all pairs: forces, trajectories, springs that move with their partners, and overflow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from particle_bench import run, world

from shoal.base.errors import ShoalError
from shoal.envs.particles.physics import cell_lists, dynamics
from shoal.envs.particles.physics.cell_lists import CellLayout, cell_layout
from shoal.envs.particles.physics.dynamics import Rules

SKIN = 0.3
BOX = {2: (16.0, 14.0), 3: (8.0, 7.0, 9.0)}
KINDS = {2: ("periodic", "walls"), 3: ("periodic", "walls", "periodic")}
NUMBER = {2: 120, 3: 160}


def rules_of(dimensions, capacity=16, neighbours=24):
    layout = cell_layout(BOX[dimensions], KINDS[dimensions], 0.6, SKIN, capacity, neighbours)
    every = Rules(boundaries=KINDS[dimensions])
    return every, Rules(boundaries=KINDS[dimensions], layout=layout)


def cloud(dimensions):
    """Particles of unequal size at random places, so that they overlap."""
    random = np.random.default_rng(dimensions)
    box = np.array(BOX[dimensions])[:, None]
    place = random.uniform(0.6, box - 0.6, (dimensions, NUMBER[dimensions]))
    velocity = random.normal(size=place.shape)
    radius = random.uniform(0.3, 0.6, NUMBER[dimensions])
    return place, velocity, radius


def begin(rules, place, velocity, radius):
    """The particles and their first state."""
    particles = world(
        radius, dimensions=len(place), stiffness=500.0, restitution=0.8, friction=0.4, rolling_friction=0.02,
        side=jnp.asarray(BOX[len(place)]), skin=SKIN, time_step=2e-3,
    )  # fmt: skip
    return particles, dynamics.start(rules, particles, place, velocity)


@functools.partial(jax.jit, static_argnames=("rules", "steps"))
def trajectory(rules, place, velocity, radius, steps):
    particles, state = begin(rules, place, velocity, radius)
    return state, *run(rules, particles, state, steps, watch=lambda s: jnp.abs(s.force).max())


@pytest.mark.full
@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.rare("3")
def test_forces_and_trajectories_are_those_of_all_pairs(dimensions):
    every, listed = rules_of(dimensions)
    with jax.enable_x64(True):
        place, velocity, radius = map(jnp.asarray, cloud(dimensions))
        one, one_end, _ = trajectory(every, place, velocity, radius, 100)
        other, other_end, _ = trajectory(listed, place, velocity, radius, 100)
        largest = np.abs(one.force).max()
        assert largest > 1 and (other_end.neighbours.needed == 0).all()
        np.testing.assert_allclose(other.force, one.force, atol=1e-6 * largest)
        np.testing.assert_allclose(other.torque, one.torque, atol=1e-6 * largest)
        # A dense cloud is chaotic, but 100 steps in float64 are short; friction needs the springs in their places.
        np.testing.assert_allclose(other_end.position, one_end.position, atol=1e-6)
        np.testing.assert_allclose(other_end.spin, one_end.spin, atol=1e-5)
        moved = np.abs(other_end.neighbours.position - other.position).max()
        assert moved > 0  # the list was made again, with springs under way
        assert np.abs(other_end.springs).max() > 0


def test_a_spring_goes_with_its_partner():
    before = jnp.asarray([[1, 0], [3, 3]])  # partners of particles 0 and 1, where 3 stands for none of N = 3
    after = jnp.asarray([[2, 3], [1, 0]])
    springs = jnp.arange(1.0, 9.0).reshape(2, 2, 2)
    moved = cell_lists.carry_springs(springs, before, after, 3)
    np.testing.assert_array_equal(moved, [[[0, 0], [1, 2]], [[0, 0], [5, 6]]])


@pytest.mark.full
@pytest.mark.parametrize("capacity, neighbours, name", [(2, 24, "cell_capacity"), (16, 2, "max_neighbours")])
@pytest.mark.rare("2-24-cell_capacity")
def test_an_overflow_poisons_the_forces_and_says_what_would_be_enough(capacity, neighbours, name):
    _, listed = rules_of(2, capacity, neighbours)
    place, velocity, radius = (jnp.asarray(x, jnp.float32) for x in cloud(2))
    state = jax.jit(begin, static_argnums=0)(listed, place, velocity, radius)[1]
    assert np.isnan(state.force).all()
    message = cell_lists.overflow_message(listed.layout, state.neighbours.needed)
    needed = int(state.neighbours.needed.max())
    assert (
        message.startswith(f"{name}={min(capacity, neighbours)} is too few")
        and f"give {needed} or more" in message
    )
    enough = rules_of(2, *(max(needed, 16) if x < 16 else x for x in (capacity, neighbours)))[1]
    again = jax.jit(begin, static_argnums=0)(enough, place, velocity, radius)[1]
    assert np.isfinite(again.force).all()
    assert cell_lists.overflow_message(enough.layout, again.neighbours.needed) is None


@pytest.mark.full
def test_impossible_layouts_are_refused():
    kinds = ("periodic", "walls")
    with pytest.raises(
        ShoalError, match=r"box\[0\]=4 has room for 2 cells of 1.5 .* so a side of 4.5 or more"
    ):
        cell_layout((4.0, 1.0), kinds, 0.5, 0.5, 4, 8)
    assert cell_layout((4.5, 1.0), kinds, 0.5, 0.5, 4, 8) == CellLayout((3, 1), 4, 8)
