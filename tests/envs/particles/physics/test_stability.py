"""The bounds of what can be computed, and a scan over worlds within them: the physics gains no energy and no NaN."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.config.struct import as_arrays
from shoal.envs.base import unwrapped
from shoal.envs.particles.physics.contact_laws import kinetic_energy
from shoal.envs.particles.physics.restitution import damping_ratio
from shoal.envs.particles.physics.stability import damping_ratio_of, restitution_of


def verlet_matrix(s, y):
    """One step of a contact that stays closed, of (x, dt v, dt² a), written from the method's formulas."""
    x, v, a = np.eye(3)
    place = x + v + a / 2
    force = -s * place - y * (v + a)
    return np.stack([place, v + (a + force) / 2, force])


@pytest.mark.parametrize("s", [1e-4, 0.02, 0.5, 2.0])
def test_a_contact_is_stable_up_to_the_bound_of_its_dashpot(s):
    for share, is_stable in ((0.2, True), (0.99, True), (1.01, False)):
        largest = np.abs(np.linalg.eigvals(verlet_matrix(s, share * (1 - s / 4)))).max()
        assert (largest <= 1 + 1e-9) == is_stable


def test_the_damping_ratio_is_the_one_of_the_physics():
    e = np.array([0.002, 0.02, np.exp(-2), 0.3, 0.8, 0.99])
    with jax.enable_x64(True):
        ratio = np.asarray(damping_ratio(jnp.asarray(e)))
    np.testing.assert_allclose([damping_ratio_of(x) for x in e], ratio, rtol=1e-9)
    np.testing.assert_allclose([restitution_of(x) for x in ratio], e, rtol=1e-9)


ROUGH = {"rough": True, "friction": 5.0}


@pytest.mark.parametrize(
    "name, parameters, message",
    [
        ("Navigator", {"restitution": 0.002}, "^restitution=0.002 is too small: it must be at least 0.00933 with"),
        ("MultiNavigator", {"restitution": [0.001, 1]}, "^restitution=0.001 .* must be at least 0.0179"),
        ("MultiNavigator", {"law": "hertz", "radius": [0.5, 2.0], "time_step": 0.02}, "^time_step=0.02 .* 0.0108,"),
        ("Navigator", {"drag": 250.0}, "^drag=250 is too large: it must be at most 99.1, so that in a step"),
        ("MultiNavigator", {"drive": 1e4}, "^drive=10000 is too large: it must be at most 50, by which stiff"),
        ("MultiNavigator", {"drive": 49.0, "time_step": 0.02, "stiffness": 25.0},
            "^drive=49 is too large: .* 12.5"),
        ("MultiNavigator", {"stiffness": 1.0}, "^drive=5 is too large: it must be at most 0.5, by which stiff"),
        ("Roller", {"mass": 100.0}, "^gravity=9.81 is too large: it must be at most 0.5, so that mass=100 on"),
        ("MultiNavigator", {"restitution": 0.3, **ROUGH},
            "^friction=5 is too large: with tangential_ratio=0.8, .* 0.7,"),
        ("MultiNavigator", {"tangential_ratio": 1e3, **ROUGH},
            "^friction=5 is too large: with tangential_ratio=1000"),
        ("Navigator", {"radius": 1e-20}, "^radius=1e-20 is out of bounds: 1e-12 to 1e[+]12 can be computed in"),
        ("Navigator", {"mass": 1e30}, "^mass=1e[+]30 is out of bounds"),
        ("Navigator", {"area_per_agent": 1e13}, "^radius=1 is too small for a box with a side of 3.16228e[+]06"),
        ("MultiNavigator", {"area_per_agent": 400.0, "drive": 25.0},
            "^drive=25 is too large: it must be at most 22, by which mass=1 moves half of radius=1 in a step"),
    ],
)  # fmt: skip
def test_what_cannot_be_computed_is_refused_with_its_bound(name, parameters, message):
    with pytest.raises(ShoalError, match=message) as error:
        envs.make(f"particles/{name}-v0", **parameters)
    if said := re.search(r"^(\w+)=.* it must be at (?:most|least) (\d[\d.]*\d)\b", str(error.value)):
        envs.make(f"particles/{name}-v0", **(parameters | {said[1]: float(said[2])}))


def draw(random, name, **static):
    """A world with parameters from all of the accepted ranges, many of them at their bounds."""
    while True:
        radius, mass, stiffness = (
            10 ** random.uniform(-2, 2) * np.sort(10 ** random.uniform(-0.5, 0, 2)) for _ in "rms"
        )
        contact = np.pi * np.sqrt(mass[0] / 2 / stiffness[1])
        step = contact / random.choice([20, 20, 40, 200])
        parameters = {
            **{"radius": radius.tolist(), "mass": mass.tolist(), "stiffness": stiffness.tolist()},
            "restitution": float(random.choice([1.0, 10 ** random.uniform(-3, 0)])),
            "friction": float(random.choice([0.0, 0.7, 10 ** random.uniform(-2, 2)])),
            "tangential_ratio": 10 ** random.uniform(-2, 2),
            "rolling_friction": float(random.choice([0.0, 10 ** random.uniform(-2, 2)])),
            "drag": float(random.choice([0.0, mass[0] / step * 10 ** random.uniform(-5, 0)])),
            "gravity": stiffness[0] * radius[0] / mass[1] * 10 ** random.uniform(-4, 0),
            "drive": stiffness[0] * radius[0] * 10 ** random.uniform(-5, 0),
            "time_step": float(step),
            "reach": 3 * radius[1],
        }
        try:
            return as_arrays(unwrapped(envs.make(name, **parameters, **static)))
        except ShoalError:
            continue


def energy_of(state):
    """The kinetic energy of a world."""
    particles, world = state.particles, state.world
    return kinetic_energy(world.mass, particles.velocity, world.inertia, particles.spin).sum()


def deepest_of(state):
    """The deepest overlap of two agents, in radii of the smaller one."""
    at, radius = state.particles.position, state.world.radius
    apart = jnp.linalg.norm(at[:, :, None] - at[:, None], axis=0)
    overlap = (radius[:, None] + radius - apart) / jnp.minimum(radius[:, None], radius)
    return jnp.max(jnp.where(jnp.eye(len(radius), dtype=bool), 0.0, overlap))


@functools.partial(jax.jit, static_argnames=("decisions",))
def simulate(worlds, keys, is_driven, decisions):
    """Return of each world its first energy, and at each decision energy, overlap and whether all is finite.

    Worlds without a drive begin with speeds by which stiff agents do not pass through each other. Actions are random,
    constant or towards the middle.
    """

    def one(env, key, is_driven):
        keys = jax.random.split(key, 4)
        state, _ = env.reset(keys[0])
        particles, world = state.particles, state.world
        fastest = 0.2 * world.radius.min() * jnp.sqrt(world.material.stiffness / world.mass.max())
        velocity = fastest * jax.random.uniform(keys[1], (2, env.num_agents), minval=-1.0)
        velocity = jnp.where(is_driven, 0.0, particles.velocity.at[:2].set(velocity))
        state = state._replace(particles=particles._replace(velocity=velocity))
        always, kind = jax.random.normal(keys[2], (env.num_agents, 2)), jax.random.randint(keys[3], (), 0, 3)

        def decide(before, key):
            middle = (before.world.box[:2] / 2 - before.particles.position[:2].T) / before.world.radius[0]
            action = jnp.stack([jax.random.normal(key, always.shape), 10 * always, middle])[kind]
            state, timestep = env.step(before, is_driven * action, key)
            is_finite = jnp.isfinite(timestep.observation).all() & jnp.isfinite(energy_of(state))
            kept = jax.tree.map(lambda x, y: jnp.where(is_finite, x, y), state, before)
            return kept, (energy_of(state), deepest_of(state), is_finite)

        found = jax.lax.scan(decide, state, jax.random.split(keys[0], decisions))[1]
        return energy_of(state), state.world.deepest, *found

    return jax.vmap(one)(worlds, keys, is_driven)


KINDS = {
    "smooth discs": ("MultiNavigator", {}),
    "rough discs": ("MultiNavigator", {"rough": True}),
    "euler": ("MultiNavigator", {"rough": True, "integrator": "euler"}),
    "spheres": ("MultiRoller", {}),
}


def scan(kind, seed, number, decisions, agents):
    """Draw worlds and simulate them, half of them without a drive."""
    name, static = KINDS[kind]
    random = np.random.default_rng(seed)
    drawn = [
        draw(random, f"particles/{name}-v0", num_agents=agents, sensing=None, area_per_agent=12.0, **static)
        for _ in range(number)
    ]
    worlds = jax.tree.map(lambda *x: jnp.stack(x), *drawn)
    is_driven = np.arange(number) % 2 == 1
    found = simulate(worlds, jax.random.split(jax.random.key(seed), number), is_driven, decisions)
    first, allowed, energy, overlap, is_finite = map(np.asarray, found)
    still = ~is_driven
    assert is_finite[still].all() and (overlap[still] < 1).all()
    growth = energy[still].max(1) / first[still]
    assert growth.max() < 1.05, drawn[np.flatnonzero(still)[growth.argmax()]]
    # A step evaluates forces at one of its instants, and may pass through a deeper overlap at another; it cannot stay.
    is_too_deep = is_finite & (overlap > allowed[:, None] + 1e-5)
    assert not (is_too_deep[:, :-1] & is_too_deep[:, 1:]).any()
    assert is_finite[is_driven & (allowed > 1)].all()  # drag holds them slow


@pytest.mark.parametrize("kind", ["rough discs"])
@pytest.mark.full
def test_worlds_within_the_bounds_gain_no_energy_and_no_nan(kind):
    scan(kind, seed=0, number=32, decisions=40, agents=4)


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.rare("rough discs-1", "spheres-1", "euler-1", "smooth discs-1")
def test_many_worlds_within_the_bounds_gain_no_energy_and_no_nan(kind, seed):
    scan(kind, seed, number=200, decisions=300, agents=7)
