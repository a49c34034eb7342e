"""Impacts with a wall and between two spheres, against closed forms and the benchmark of Chung and Ooi 2011."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from particle_bench import energy, run, world

from shoal.envs.particles.physics import dynamics
from shoal.envs.particles.physics.contact_laws import tangential_ratio
from shoal.envs.particles.physics.dynamics import Rules
from shoal.envs.particles.physics.time_steps import hertz_contact_time, linear_contact_time

STEPS_PER_CONTACT = 400
STEPS = 1000  # an impact with a large damping lasts longer


@functools.partial(jax.jit, static_argnames=("law", "integrator"))
@functools.partial(jax.vmap, in_axes=(0, None, None))
def wall_impact(case, law, integrator="verlet"):
    """The sphere after an impact with the floor of an open space: normal and tangential speed, spin, touching time, and
    the greatest force."""
    rules = Rules(law, integrator, ("open", "open", "floor"))
    names = ("mass", "restitution", "friction", "tangential_ratio", "time_step")
    given = {name: case[name] for name in names}
    sphere = world(case["radius"][None], stiffness=1.0, wall_stiffness=case["stiffness"], **given)
    # Touch-down in the middle of a step: the dashpot sets in at once, with an error that is odd about that time.
    gap = case["normal"] * case["time_step"] / 2
    place = jnp.zeros((3, 1)).at[2].set(case["radius"] + gap)
    velocity = jnp.stack([case["tangential"], 0 * case["normal"], -case["normal"]])[:, None]
    spin = jnp.stack([0 * case["spin"], case["spin"], 0 * case["spin"]])[:, None]
    state = dynamics.start(rules, sphere, place, velocity, spin)
    end, (touching, force) = run(
        rules, sphere, state, STEPS, watch=lambda s: (s.position[2, 0] < sphere.radius[0], s.force[2, 0])
    )
    return {
        "normal": end.velocity[2, 0], "tangential": end.velocity[0, 0], "spin": end.spin[1, 0],
        "duration": jnp.sum(touching) * sphere.time_step, "energy": energy(sphere, end) / energy(sphere, state),
        "force": jnp.max(force),
    }  # fmt: skip


def cases(law, **values):
    """Cases as arrays of one length; the time step follows from the contact time."""
    base = {
        "radius": 0.1, "mass": 2.0, "stiffness": 1e5, "restitution": 1.0, "friction": 0.0,
        "tangential_ratio": 2 / 7, "normal": 0.2, "tangential": 0.0, "spin": 0.0,
    }  # fmt: skip
    found = dict(
        zip(base | values, np.broadcast_arrays(*map(np.asarray, (base | values).values())), strict=True)
    )
    if law == "linear":
        duration = linear_contact_time(found["stiffness"], found["mass"])
    else:
        duration = hertz_contact_time(found["stiffness"], found["mass"], found["radius"], found["normal"])
    return found | {"time_step": duration / STEPS_PER_CONTACT}


def impacts(law, found, integrator="verlet", dtype=np.float64):
    with jax.enable_x64(dtype == np.float64):
        arrays = {name: jnp.asarray(x, dtype) for name, x in found.items()}
        return {name: np.asarray(x) for name, x in wall_impact(arrays, law, integrator).items()}


# One call for each law, padded to one length, so that each is compiled once for all the tests below.
RESTITUTIONS = np.array([0.2, 0.3, 0.5, 0.7, 0.9, 1.0])
SPEEDS = np.array([0.01, 1.0, 100.0])
GRID_E, GRID_V = (x.ravel() for x in np.meshgrid(RESTITUTIONS, SPEEDS))
SIZE = len(GRID_E)
LAW = pytest.mark.parametrize("law", ["linear", "hertz"])


def padded(law, **values):
    count = max(np.size(x) for x in values.values())
    return cases(law, **{k: np.resize(np.broadcast_to(x, count), SIZE) for k, x in values.items()})


@pytest.mark.full
@LAW
def test_the_restitution_is_the_one_asked_for_at_every_speed(law):
    result = impacts(law, padded(law, restitution=GRID_E, normal=GRID_V))
    np.testing.assert_allclose(result["normal"] / GRID_V, GRID_E, rtol=2e-3)
    single = impacts(law, padded(law, restitution=GRID_E, normal=GRID_V), dtype=np.float32)
    assert single["normal"].dtype == np.float32
    np.testing.assert_allclose(single["normal"] / GRID_V, GRID_E, rtol=1e-2)


@LAW
def test_an_elastic_impact_lasts_as_long_as_theory_says(law):
    found = padded(law, normal=SPEEDS, mass=[1.0, 2.0, 5.0], stiffness=[1e4, 1e5, 1e6])
    result = impacts(law, found)
    np.testing.assert_allclose(result["duration"], found["time_step"] * STEPS_PER_CONTACT, rtol=5e-3)
    np.testing.assert_allclose(result["energy"], 1, rtol=1e-4)


@LAW
def test_gross_sliding(law):
    found = padded(
        law, restitution=[0.3, 0.6, 1.0, 0.5], friction=[0.1, 0.2, 0.3, 0.05], normal=[1.0, 2.0, 0.5, 1.0],
        tangential=[4.0, 9.0, 5.0, 0.0], spin=[0.0, -20.0, 3.0, 30.0],
    )  # fmt: skip
    result = impacts(law, found)
    # The surface moves with v_t - ω_y r relative to the floor, and friction acts against this.
    sliding = np.sign(found["tangential"] - found["spin"] * found["radius"])
    impulse = found["friction"] * (1 + found["restitution"]) * found["normal"] * sliding
    np.testing.assert_allclose(result["tangential"], found["tangential"] - impulse, rtol=2e-3)
    np.testing.assert_allclose(result["spin"], found["spin"] + 2.5 * impulse / found["radius"], rtol=2e-3)


def test_a_contact_that_sticks_turns_the_surface_round_by_its_tangential_spring():
    # Without sliding and damping the surface velocity oscillates: u' = u cos(π √(7 κ / 2)) after half a period of the
    # normal spring, since a sphere's surface is moved with the mass (2/7) m.
    ratio = np.array([0.05, 2 / 7, 0.5, 1.0])
    found = padded("linear", friction=1e3, tangential_ratio=ratio, tangential=0.3, spin=[0.0, 1.0, -2.0, 5.0])
    result = impacts("linear", found)
    u = found["tangential"] - found["spin"] * found["radius"]
    turned = u * np.cos(np.pi * np.sqrt(3.5 * found["tangential_ratio"]))
    expected = found["tangential"] - 2 / 7 * (u - turned)
    # Within a step of 400, by which the contact's end is known.
    np.testing.assert_allclose(result["tangential"], expected, atol=1e-3)
    # What the tangential spring still holds when the bodies separate is lost.
    spin = found["spin"] * found["radius"]
    energy = found["normal"] ** 2 + found["tangential"] ** 2 + 0.4 * spin**2
    np.testing.assert_allclose(result["energy"], 1 - 2 / 7 * (u**2 - turned**2) / energy, atol=4e-3)


# Chung and Ooi 2011, "Benchmark tests for verifying discrete element modelling codes at particle impact level":
# material constants of its tests (as the examples of YADE repeat them), against theory: gross sliding where the
# impact is oblique enough. The plane is rigid.
MAGNESIUM_ALLOY = {"young": 4.0e10, "poisson": 0.35, "density": 1800.0}
ALUMINIUM_OXIDE = {"young": 3.8e11, "poisson": 0.23, "density": 4000.0}
ALUMINIUM_ALLOY = {"young": 7.0e10, "poisson": 0.33, "density": 2700.0}
CAST_IRON = {"young": 1.0e11, "poisson": 0.25, "density": 7000.0}
RIGID = (np.inf, 0.0)


def effective_modulus(young, poisson, other=None):
    """E* of two bodies, 1 / E* = (1 - ν_i²) / E_i + (1 - ν_j²) / E_j; the second is like the first without `other`."""
    young_2, poisson_2 = (young, poisson) if other is None else other
    return 1 / ((1 - poisson**2) / young + (1 - poisson_2**2) / young_2)


def sphere_of(material, radius):
    modulus = effective_modulus(material["young"], material["poisson"], RIGID)
    return {
        "radius": radius,
        "mass": 4 / 3 * np.pi * radius**3 * material["density"],
        "stiffness": modulus,
        "tangential_ratio": float(tangential_ratio(material["poisson"])),
    }


def hertz_peak(modulus, radius, mass, speed):
    """The greatest force of an elastic impact, (4/3) E* √R* δ^1.5, where (8/15) E* √R* δ^2.5 = m* v² / 2."""
    depth = (15 * mass * speed**2 / (16 * modulus * np.sqrt(radius))) ** 0.4
    return 4 / 3 * modulus * np.sqrt(radius) * depth**1.5


def test_chung_ooi_2_greatest_force_on_a_rigid_plane():
    sphere = sphere_of(MAGNESIUM_ALLOY, 0.1)
    result = impacts("hertz", padded("hertz", normal=[0.2, 0.02, 2.0], **sphere))
    expected = hertz_peak(sphere["stiffness"], 0.1, sphere["mass"], np.array([0.2, 0.02, 2.0]))
    np.testing.assert_allclose(result["force"][:3], expected, rtol=1e-4)
    np.testing.assert_allclose(result["energy"], 1, rtol=1e-4)


@pytest.mark.parametrize("material", [ALUMINIUM_OXIDE, CAST_IRON], ids=["aluminium oxide", "cast iron"])
def test_chung_ooi_3_restitution(material):
    e = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
    found = padded("hertz", normal=3.9, restitution=e, **sphere_of(material, 0.0025))
    result = impacts("hertz", found)
    np.testing.assert_allclose(result["normal"] / 3.9, found["restitution"], rtol=2e-3)


@pytest.mark.parametrize("material", [ALUMINIUM_OXIDE, ALUMINIUM_ALLOY], ids=["oxide", "alloy"])
def test_chung_ooi_4_oblique_impact_at_constant_speed(material):
    angle = np.radians([5.0, 10.0, 20.0, 45.0, 60.0, 70.0, 80.0])
    friction, e = 0.092, 0.98
    found = padded(
        "hertz", normal=3.9 * np.cos(angle), tangential=3.9 * np.sin(angle), friction=friction, restitution=e,
        **sphere_of(material, 0.0025),
    )  # fmt: skip
    result = {k: x[:7] for k, x in impacts("hertz", found).items()}
    tangential = result["tangential"] / (3.9 * np.sin(angle))
    slides = angle > np.radians(40)  # Maw et al.: at more than about 30° for this friction
    expected = 1 - friction * (1 + e) / np.tan(angle)
    np.testing.assert_allclose(tangential[slides], expected[slides], rtol=1e-3)
    spin = 2.5 * friction * (1 + e) * 3.9 * np.cos(angle) / 0.0025
    np.testing.assert_allclose(result["spin"][slides], spin[slides], rtol=1e-3)
    # Where it sticks, friction takes less than its limit; a surface that is turned round completely would give 3/7.
    assert np.all(tangential[:2] > expected[:2]) and np.all((tangential[:2] > 3 / 7) & (tangential[:2] < 1))


def test_chung_ooi_5_oblique_impact_at_constant_normal_speed():
    tangential = np.array([0.5, 5.0, 15.0, 30.0])
    found = padded(
        "hertz", normal=5.0, tangential=tangential, friction=0.3, **sphere_of(ALUMINIUM_ALLOY, 1e-5)
    )
    result = {k: x[:4] for k, x in impacts("hertz", found).items()}
    # Maw et al. 1976: it slides all the time where v_t is more than (7 - 1 / κ) μ v_n.
    slides = tangential > (7 - 1 / found["tangential_ratio"][0]) * 0.3 * 5.0
    np.testing.assert_allclose(result["tangential"][slides], tangential[slides] - 0.3 * 2 * 5.0, rtol=1e-3)
    spin = 2.5 * 0.3 * 2 * 5.0 / 1e-5
    np.testing.assert_allclose(result["spin"][slides], spin, rtol=1e-3)
    assert (result["spin"][~slides] < 0.99 * spin).all() and slides.sum() == 2


def test_chung_ooi_6_impact_with_a_spin():
    spin = np.array([5.0, 7.0, 10.0, 14.0, 21.0])
    found = padded(
        "hertz", normal=0.2, spin=-spin, friction=0.4, restitution=0.5, **sphere_of(ALUMINIUM_ALLOY, 0.1)
    )
    result = {k: x[:5] for k, x in impacts("hertz", found).items()}
    np.testing.assert_allclose(result["tangential"], -0.4 * 1.5 * 0.2, rtol=2e-3)
    np.testing.assert_allclose(result["spin"], -spin + 2.5 * 0.4 * 1.5 * 0.2 / 0.1, rtol=2e-3)


@functools.partial(jax.jit, static_argnames=("law",))
@functools.partial(jax.vmap, in_axes=(0, None))
def pair_impact(case, law):
    """Two spheres that meet along an oblique line of centres: the state before and after."""
    rules = Rules(law, "verlet", ("open",) * 3)
    names = ("stiffness", "mass", "restitution", "friction", "tangential_ratio", "time_step")
    spheres = world(case["radius"], **{name: case[name] for name in names})
    line = jnp.asarray([0.6, 0.0, 0.8])
    gap = case["normal"] * case["time_step"] / 2
    place = jnp.stack([-line * case["radius"][0], line * (case["radius"][1] + gap)], axis=1)
    velocity = jnp.stack([line, -line], axis=1) * case["normal"] / 2
    spin = jnp.zeros((3, 2)).at[1].set(case["spin"])
    state = dynamics.start(rules, spheres, place, velocity, spin)
    end, force = run(rules, spheres, state, STEPS, watch=lambda s: jnp.abs(line @ s.force[:, 0]))
    along = jnp.asarray([-0.8, 0.0, 0.6])  # ω_y x the line of centres has this direction reversed
    return (
        line @ end.velocity, along @ end.velocity, end.spin[1], energy(spheres, end) / energy(spheres, state),
        jnp.max(force),
    )  # fmt: skip


@pytest.mark.full
@LAW
def test_chung_ooi_7_and_8_two_spheres_with_spin(law):
    # Equal spheres, and spheres of different size; the first four slide all the time, the last is without friction.
    radius = np.array([[0.1, 0.1], [0.1, 0.2], [0.1, 1.0], [0.1, 0.1], [0.1, 0.3]])
    mass = 2700 * 4 / 3 * np.pi * radius**3
    spin = np.array([[10.0, 10.0], [10.0, 15.0], [0.0, 20.0], [-14.0, -14.0], [0.0, 0.0]])
    friction, e, normal = np.array([0.4, 0.4, 0.1, 0.4, 0.0]), np.array([0.5, 0.5, 0.8, 0.9, 1.0]), 0.2
    effective_mass = mass.prod(1) / mass.sum(1)
    if law == "linear":
        stiffness = np.full(5, 1e6)
        duration = linear_contact_time(stiffness, effective_mass)
    else:
        stiffness = np.full(5, effective_modulus(7e10, 0.33))
        duration = hertz_contact_time(stiffness, effective_mass, radius.prod(1) / radius.sum(1), normal)
    case = {
        **{"radius": radius, "mass": mass, "spin": spin, "friction": friction, "restitution": e},
        **{"stiffness": stiffness, "time_step": duration / STEPS_PER_CONTACT, "normal": np.full(5, normal)},
        "tangential_ratio": np.full(5, 0.8),
    }
    with jax.enable_x64(True):
        result = pair_impact({k: jnp.asarray(x, jnp.float64) for k, x in case.items()}, law)
        along_line, across, after, ratio, force = map(np.asarray, result)
    impulse = (1 + e) * effective_mass * normal
    approach = along_line[:, 0] - along_line[:, 1]
    np.testing.assert_allclose(approach, -e * normal, rtol=3e-3)
    # The surfaces move relative to each other with Σ ω r; each sphere gets the same impulse and the same sense of spin.
    sliding = np.sign((spin * radius).sum(1))
    change = friction * impulse * sliding
    np.testing.assert_allclose(across[:, 0] * mass[:, 0], change * -1 * -1, rtol=3e-3, atol=1e-12)
    np.testing.assert_allclose(across[:, 1] * mass[:, 1], -change, rtol=3e-3, atol=1e-12)
    expected = spin - (change[:, None] * radius) / (0.4 * mass * radius**2)
    np.testing.assert_allclose(after, expected, rtol=3e-3, atol=1e-9)
    assert ratio[4] == pytest.approx(1, rel=1e-5)
    # Without a dashpot the greatest force is that of the elastic impact.
    m, r = effective_mass[4], radius[4].prod() / radius[4].sum()
    peak = hertz_peak(stiffness[4], r, m, normal) if law == "hertz" else normal * np.sqrt(stiffness[4] * m)
    assert force[4] == pytest.approx(peak, rel=1e-4)
