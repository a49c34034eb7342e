"""Integrators and worlds: order of convergence, conservation laws, rest, rolling, periodic images, gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from particle_bench import energy, momentum, run, world

from shoal.base.errors import ShoalError
from shoal.envs.particles.physics import dynamics
from shoal.envs.particles.physics.dynamics import Rules

FREE = ("open", "open", "open")
GRAVITY = 9.81


def x64(function):
    """Call a function in float64."""

    @functools.wraps(function)
    def called(*arguments):
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, function(*arguments))

    return called


# --- the order of the integrators -----------------------------------------------------------------------------------

STEP_COUNTS = np.array([25, 50, 100, 200, 1600])


@x64
@functools.partial(jax.jit, static_argnames=("integrator", "law"))
def after_a_time(integrator, law, restitution, friction, tangential, duration):
    """Velocities of a sphere that was pressed into the floor, after a time that STEP_COUNTS steps divide."""
    rules = Rules(law, integrator, ("open", "open", "floor"))

    def with_steps(count, restitution, friction, tangential):
        sphere = world(
            jnp.ones(1), wall_stiffness=1e3, restitution=restitution, friction=friction, time_step=duration / count,
        )  # fmt: skip
        place, velocity = jnp.asarray([0.0, 0.0, 0.98]), jnp.asarray([tangential, 0.0, -0.5])
        state = dynamics.start(rules, sphere, place[:, None], velocity[:, None])
        nothing = jnp.zeros_like(state.position), jnp.zeros_like(state.spin)

        def one(i, state):
            after = dynamics.advance(rules, sphere, state, *nothing)
            return jax.tree.map(lambda x, y: jnp.where(i < count, x, y), after, state)

        state = jax.lax.fori_loop(0, STEP_COUNTS.max(), one, state)
        return jnp.concatenate([state.position[:, 0], state.velocity[:, 0], state.spin[:, 0]])

    each = jax.vmap(with_steps, (0, None, None, None))
    return jax.vmap(each, (None, 0, 0, 0))(jnp.asarray(STEP_COUNTS, float), restitution, friction, tangential)


def orders(integrator, law):
    """The order for contacts that are elastic, damped, sticking and sliding, and for one that begins to slide."""
    restitution = np.array([1.0, 0.5, 1.0, 0.5, 0.5, 1.0])
    friction = np.array([0.0, 0.0, 100.0, 100.0, 0.1, 0.3])
    tangential = np.array([0.0, 0.0, 0.3, 0.3, 3.0, 0.25])
    found = after_a_time(integrator, law, restitution, friction, tangential, np.float64(0.03))
    error = np.linalg.norm(found[:, :-1] - found[:, -1:], axis=-1)
    return np.polyfit(np.log(1 / STEP_COUNTS[:-1]), np.log(error).T, 1)[0]


@pytest.mark.full
@pytest.mark.parametrize("law", ["linear", "hertz"])
def test_verlet_is_of_order_two_within_a_contact(law):
    found = orders("verlet", law)
    assert np.all(found[:4] > 1.9), found


@pytest.mark.full
@pytest.mark.parametrize("law", ["linear", "hertz"])
def test_euler_is_of_order_one_within_a_contact(law):
    found = orders("euler", law)
    assert np.all((found > 0.85) & (found < 1.25)), found


# --- conservation -----------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("integrator", "law", "steps"))
def cluster(key, integrator, law, steps):
    """A dense cloud of nine unequal spheres that fall together: momenta before and after, and the loss of energy."""
    rules = Rules(law, integrator, FREE)
    keys = jax.random.split(key, 4)
    radius = jax.random.uniform(keys[0], (9,), float, 0.3, 0.6)
    spheres = world(
        radius, mass=radius**3, stiffness=200.0, restitution=0.7, friction=0.5, rolling_friction=0.1
    )
    lattice = jnp.stack(jnp.meshgrid(*[jnp.arange(3.0)] * 2, jnp.zeros(1))).reshape(3, 9)
    place = lattice + 0.2 * jax.random.normal(keys[1], (3, 9))
    velocity = 1.0 - place + jax.random.normal(keys[2], (3, 9))
    spin = 3 * jax.random.normal(keys[3], (3, 9))
    state = dynamics.start(rules, spheres, place, velocity, spin)
    end, forces = run(rules, spheres, state, steps, watch=lambda s: jnp.abs(s.force).sum())
    ratio = energy(spheres, end) / energy(spheres, state)
    return momentum(spheres, state), momentum(spheres, end), ratio, jnp.mean(forces > 0), end


@pytest.mark.full
@pytest.mark.parametrize("integrator, law", [("verlet", "linear"), ("euler", "linear"), ("verlet", "hertz")])
def test_an_isolated_system_keeps_both_momenta_with_friction(integrator, law):
    with jax.enable_x64(True):
        found = cluster(jax.random.key(0), integrator, law, 300)[:-1]
        before, after, ratio, touching = jax.tree.map(np.asarray, found)
    for first, last in zip(before, after, strict=True):
        np.testing.assert_allclose(last, first, atol=1e-12)
    assert touching > 0.3 and abs(ratio - 1) > 0.1  # the contacts did something


@pytest.mark.full
def test_momenta_in_float32_and_the_same_bits_again():
    one, other = (cluster(jax.random.key(0), "verlet", "linear", 300) for _ in range(2))
    for first, last in zip(*one[:2], strict=True):
        np.testing.assert_allclose(last, first, atol=5e-5)  # of terms of magnitude 1
    jax.tree.map(np.testing.assert_array_equal, one, other)


# --- rest and rolling -------------------------------------------------------------------------------------------------


@x64
@functools.partial(jax.jit, static_argnames=("dimensions", "steps"))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None))
def on_the_floor(speed, friction, rolling_friction, start_height, dimensions, steps):
    """A sphere or disc of radius 1 that is put onto the floor with a speed; its velocity and spin at each step."""
    rules = Rules(boundaries=("open",) * (dimensions - 1) + ("floor",))
    sphere = world(
        jnp.ones(1), dimensions=dimensions, wall_stiffness=1e5, restitution=0.3, friction=friction,
        tangential_ratio=0.8, rolling_friction=rolling_friction, gravity=GRAVITY,
    )  # fmt: skip
    height = 1 - GRAVITY / 1e5 + start_height  # where the spring carries the weight
    place = jnp.zeros((dimensions, 1)).at[-1].set(height)
    velocity = jnp.zeros((dimensions, 1)).at[0].set(speed)
    state = dynamics.start(rules, sphere, place, velocity)
    return run(
        rules, sphere, state, steps, watch=lambda s: (s.position[:, 0], s.velocity[:, 0], s.spin[:, 0])
    )[1]


def floor_runs(dimensions):
    """Cases: sliding that becomes rolling, rolling with rolling friction, and a fall that comes to rest."""
    speed = np.array([2.0, 1.0, 2.0, 0.0])
    friction = np.array([0.3, 0.2, 0.5, 0.5])
    rolling = np.array([0.0, 0.0, 0.05, 0.0])
    height = np.array([0.0, 0.0, 0.0, 0.01])
    return on_the_floor(speed, friction, rolling, height, dimensions, 1000)


@pytest.mark.full
@pytest.mark.parametrize("dimensions, share, final", [(3, 2 / 7, 5 / 7), (2, 1 / 3, 2 / 3)])
def test_a_body_that_slides_begins_to_roll(dimensions, share, final):
    place, velocity, spin = floor_runs(dimensions)
    # The surface moves with v_x + ω r, where ω turns z (in the plane: y) into x.
    turning = -spin[..., 0] if dimensions == 2 else spin[..., 1]
    surface = velocity[..., 0] - turning
    for case, (speed, friction) in enumerate([(2.0, 0.3), (1.0, 0.2)]):
        rolls_from = (np.argmax(surface[case] < 1e-3 * speed) + 1) * 1e-3
        assert rolls_from == pytest.approx(share * speed / (friction * GRAVITY), rel=1e-2)
        assert velocity[case, -1, 0] == pytest.approx(final * speed, rel=1e-3)
        assert turning[case, -1] == pytest.approx(final * speed, rel=2e-3)
    # Rolling friction: the model's torque slows a rolling body by μ_r g / (1 + I / (m r²)).
    inertia = {2: 0.5, 3: 0.4}[dimensions]
    slowing = (velocity[2, 500, 0] - velocity[2, 900, 0]) / 0.4
    assert slowing == pytest.approx(0.05 * GRAVITY / (1 + inertia), rel=1e-3)
    # The body that fell rests where the spring carries its weight.
    assert place[3, -1, -1] == pytest.approx(1 - GRAVITY / 1e5, abs=1e-9)
    assert np.abs(velocity[3, -1]).max() < 1e-7


@functools.partial(jax.jit, static_argnames=("steps", "dtype"))
def stack(friction, steps, dtype):
    """Three discs one upon the other, beside a pyramid of three: how far each has moved from where it was put."""
    rules = Rules(boundaries=("open", "floor"))
    column = [[0.0, 0.5], [0.0, 1.5], [0.0, 2.5]]
    pyramid = [[9.5, 0.5], [10.5, 0.5], [10.0, 0.5 + np.sqrt(0.75)]]
    place = jnp.asarray(np.transpose(column + pyramid), dtype)
    discs = world(
        jnp.full(6, 0.5, dtype), dimensions=2, stiffness=1e5, restitution=0.5, friction=friction,
        tangential_ratio=0.8, gravity=GRAVITY,
    )  # fmt: skip
    state = dynamics.start(rules, discs, place)
    end, _ = run(rules, discs, state, steps)
    return end.position - place, end.velocity, end.force


@pytest.mark.full
def test_a_stack_stands_and_carries_its_weight_and_a_pyramid_needs_friction():
    for dtype, rest in ((np.float64, 1e-6), (np.float32, 1e-4)):
        with jax.enable_x64(dtype == np.float64):
            moved, velocity, force = map(np.asarray, stack(0.5, 1500, dtype))
        assert np.abs(velocity).max() < rest
        np.testing.assert_allclose(force[1], GRAVITY, rtol=1e-2 if dtype == np.float32 else 1e-4)
        # Each contact of the column is pressed together by what lies upon it.
        sunk = np.cumsum([3, 2, 1]) * GRAVITY / 1e5
        np.testing.assert_allclose(-moved[1, :3], sunk, rtol=1e-3 if dtype == np.float64 else 2e-2)
        assert np.abs(moved[:, 3:]).max() < 5e-4
    with jax.enable_x64(True):
        moved, _, _ = map(np.asarray, stack(0.05, 1500, np.float64))
    assert np.abs(moved[:, 3:]).max() > 0.1


@x64
@functools.partial(jax.jit, static_argnames=("integrator",))
@functools.partial(jax.vmap, in_axes=(0, None))
def wedge(friction, integrator):
    """A small disc between the floor and a disc ten times its size that is pushed against it: how both move."""
    rules = Rules(integrator=integrator, boundaries=("open", "floor"))
    radius = jnp.asarray([1.0, 0.1])
    discs = world(
        radius, dimensions=2, mass=radius**2, stiffness=1e4, restitution=0.3, friction=friction,
        tangential_ratio=0.8, gravity=1.0, time_step=1.5e-4,
    )  # fmt: skip
    place = jnp.asarray([[0.0, 2 * jnp.sqrt(0.1)], [1.0, 0.1]])
    state = dynamics.start(rules, discs, place)
    push = jnp.asarray([[0.2, 0.0], [0.0, 0.0]])
    end, _ = run(rules, discs, state, 24_000, push)
    return end.position - place, end.velocity, end.spin


@pytest.mark.full
@pytest.mark.parametrize("integrator", ["verlet", "euler"])
def test_static_friction_holds_at_a_size_ratio_of_ten(integrator):
    # Both contacts of the small disc hold while half the angle of the wedge is below the angle of friction:
    # tan(β / 2) = 0.316, where the normals of the contacts enclose β.
    moved, velocity, spin = wedge(np.array([0.45, 0.2]), integrator)
    assert np.abs(moved[0]).max() < 1e-3
    assert np.abs(velocity[0]).max() < 1e-5 and np.abs(spin[0]).max() < 1e-5
    assert moved[1, 0, 1] > 0.02  # driven out of the wedge


# --- periodic images --------------------------------------------------------------------------------------------------


@x64
@jax.jit
@jax.vmap
def across_the_border(shift):
    """Three particles of a periodic box, displaced as a whole: what becomes of their motion."""
    rules = Rules(boundaries=("periodic", "periodic", "periodic"))
    spheres = world(
        jnp.asarray([0.5, 0.4, 0.6]), side=jnp.asarray([4.0, 5.0, 6.0]), stiffness=500.0, restitution=0.8,
        friction=0.4,
    )  # fmt: skip
    place = jnp.asarray([[1.0, 1.8, 2.9], [2.0, 2.2, 2.1], [3.0, 3.1, 2.7]])
    velocity = jnp.asarray([[1.0, 0.0, -1.0], [0.0, 0.3, 0.0], [0.2, 0.0, 0.4]])
    state = dynamics.start(rules, spheres, place + shift[:, None], velocity)
    end, force = run(rules, spheres, state, 600, watch=lambda s: jnp.abs(s.force).max())
    return (
        end.velocity, end.spin, (end.position - shift[:, None]) % spheres.box[:, None], end.position, force.max(),
    )  # fmt: skip


@pytest.mark.full
def test_periodic_images():
    shifts = np.array([[0.0, 0.0, 0.0], [2.6, 0.0, 0.0], [2.0, 2.9, 3.1], [-1.4, -2.0, -7.0]])
    velocity, spin, place, inside, force = across_the_border(shifts)
    assert (force > 1).all() and np.abs(spin[0]).max() > 0.1
    for x in (velocity, spin, place):
        np.testing.assert_allclose(x[1:], np.broadcast_to(x[:1], x[1:].shape), atol=1e-10)
    assert (inside >= 0).all() and (inside < np.array([4.0, 5.0, 6.0])[:, None]).all()


@pytest.mark.full
def test_a_box_in_which_two_particles_touch_on_both_sides_is_refused():
    rules, place = Rules(boundaries=("periodic",) * 2), jnp.asarray([[0.5, 2.0], [1.0, 1.0]])

    def begin(side):
        return dynamics.start(rules, world(jnp.asarray([1.0, 0.5]), dimensions=2, side=side), place).position

    with pytest.raises(ShoalError, match=r"^box=2.9 is too short for a periodic axis, .* give 3 or more"):
        begin(2.9)
    of_many = np.asarray(jax.jit(jax.vmap(begin))(jnp.asarray([2.9, 3.0])))
    assert np.isnan(of_many[0]).all() and np.isfinite(of_many[1]).all()


# --- rolling friction of several contacts -------------------------------------------------------------------------


@x64
@jax.jit
def in_a_corner():
    """The spin, at each step, of a disc that a force of 5 N presses against two walls."""
    disc = world(jnp.ones(1), dimensions=2, stiffness=1e3, rolling_friction=0.5, side=10.0)
    rules, place = Rules(boundaries=("walls", "walls")), jnp.full((2, 1), 1 - 5 / 1e3)
    state = dynamics.start(rules, disc, place, spin=jnp.ones((1, 1)))
    return run(rules, disc, state, 300, force=jnp.full((2, 1), -5.0), watch=lambda s: s.spin[0, 0])[1]


def test_rolling_friction_of_two_contacts_stops_a_body():
    spin, slowing = in_a_corner(), 2 * 0.5 * 5.0 / 0.5  # both walls, μ_r r F / I
    stops = 1 / slowing
    np.testing.assert_allclose(spin[:99], 1 - slowing * np.arange(1, 100) * 1e-3, rtol=1e-9)
    assert stops == 0.1 and (spin >= 0).all() and (spin[130:] < 1e-9).all()


@x64
@jax.jit
def in_a_crowd():
    """The spins, at each step, of a disc among six others, all pressed together, with a large rolling friction."""
    angle = jnp.arange(6) * jnp.pi / 3
    place = 5 + 1.9 * jnp.concatenate(
        [jnp.zeros((2, 1)), jnp.stack([jnp.cos(angle), jnp.sin(angle)])], axis=1
    )
    discs = world(jnp.ones(7), dimensions=2, rolling_friction=100.0, side=10.0)
    rules = Rules(boundaries=("open", "open"))
    state = dynamics.start(rules, discs, place, spin=jnp.ones((1, 7)).at[0, 0].set(-1.0))
    return run(rules, discs, state, 10, watch=lambda s: s.spin[0])[1]


@pytest.mark.full
def test_rolling_friction_of_a_crowd_accelerates_no_body():
    spin = in_a_crowd()
    assert np.abs(spin).max() <= 1 + 1e-12 and np.ptp(spin[-1]) < 0.1
    np.testing.assert_allclose(spin.sum(1), 5.0, rtol=1e-12)  # equal discs keep the sum


# --- gradients and batches --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("law", ["linear", "hertz"])
def test_gradients_are_finite(law):
    rules = Rules(law, "verlet", ("walls", "floor", "periodic"))
    # Two that collide, two at the same place, two that touch at rest, one that meets a wall.
    place = np.array(
        [[3, 3.9, 5, 5, 7, 7.9999, 0.6], [2, 2.1, 2, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 3]], np.float32
    )
    velocity = np.zeros((3, 7), np.float32)
    velocity[0, [0, 1, 6]] = 1, -1, -2

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def gradient(place, velocity, numbers):
        spheres = world(
            jnp.full(7, 0.5), stiffness=numbers[0], restitution=numbers[1], friction=numbers[2],
            rolling_friction=numbers[3], side=10.0, time_step=1e-2,
        )  # fmt: skip
        end, _ = run(rules, spheres, dynamics.start(rules, spheres, place, velocity), 30)
        return jnp.sum(end.position**2) + jnp.sum(end.velocity * jnp.arange(7.0)) + jnp.sum(end.spin**2)

    found = gradient(jnp.asarray(place), jnp.asarray(velocity), jnp.asarray([100.0, 0.8, 0.3, 0.05]))
    assert all(np.isfinite(x).all() for x in found)
    assert all(np.abs(x).max() > 0 for x in found)


@pytest.mark.slow
def test_worlds_with_different_parameters_step_side_by_side():
    rules = Rules("linear", "verlet", ("walls", "walls"))

    def end(stiffness, friction, mass, radius):
        discs = world(radius, dimensions=2, stiffness=stiffness, friction=friction, mass=mass, side=5.0)
        place = jnp.asarray([[1.0, 2.0, 3.0], [1.0, 1.5, 1.2]])
        velocity = jnp.asarray([[1.0, 0.0, -1.0], [0.0, 0.5, 0.0]])
        return run(rules, discs, dynamics.start(rules, discs, place, velocity), 200)[0]

    values = (
        jnp.asarray([100.0, 300.0]),
        jnp.asarray([0.0, 0.5]),
        jnp.asarray([[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]]),
        jnp.asarray([[0.5, 0.5, 0.5], [0.55, 0.5, 0.6]]),
    )
    together = jax.jit(jax.vmap(end))(*values)
    alone = jax.jit(end)
    for world_index in range(2):
        jax.tree.map(
            lambda x, y, i=world_index: np.testing.assert_allclose(x[i], y, atol=1e-5),
            together,
            alone(*(x[world_index] for x in values)),
        )
    assert np.abs(together.position[0] - together.position[1]).max() > 0.01
