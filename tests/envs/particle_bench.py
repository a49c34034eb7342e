"""Small worlds of particles for the tests of the physics, in the precision in which they are called."""

import functools

import jax
import jax.numpy as jnp

from shoal.envs.particles.physics import dynamics
from shoal.envs.particles.physics.bodies import inertia_of
from shoal.envs.particles.physics.contact_laws import Material, kinetic_energy
from shoal.envs.particles.physics.dynamics import Rules, World
from shoal.envs.particles.physics.restitution import damping_ratio
from shoal.envs.particles.physics.vectors import torque_of


def world(
    radius,
    *,
    dimensions=3,
    mass=1.0,
    stiffness=1e3,
    wall_stiffness=None,
    restitution=1.0,
    friction=0.0,
    tangential_ratio=2 / 7,
    rolling_friction=0.0,
    side=100.0,
    gravity=0.0,
    drag=0.0,
    time_step=1e-3,
    skin=0.0,
):
    """A world of particles with these radii [N]; numbers may be traced. Gravity is along the last axis, downwards."""
    radius = jnp.asarray(radius)
    mass = jnp.broadcast_to(jnp.asarray(mass, radius.dtype), radius.shape)
    number = functools.partial(jnp.asarray, dtype=radius.dtype)
    material = Material(
        number(stiffness), number(stiffness if wall_stiffness is None else wall_stiffness),
        damping_ratio(number(restitution)), number(friction), number(tangential_ratio), number(rolling_friction),
    )  # fmt: skip
    down = jnp.zeros(dimensions, radius.dtype).at[-1].set(-1)
    return World(
        radius, mass, inertia_of(mass, radius, dimensions), material, jnp.broadcast_to(number(side), dimensions),
        number(gravity) * down, number(drag), number(0.0), number(time_step), number(skin),
    )  # fmt: skip


def run(rules: Rules, world: World, state, steps, force=None, torque=None, watch=None):
    """The state after some steps, and what `watch` returns of each."""
    force = jnp.zeros_like(state.position) if force is None else force
    torque = jnp.zeros_like(state.spin) if torque is None else torque

    def one(state, _):
        state = dynamics.advance(rules, world, state, force, torque)
        return state, None if watch is None else watch(state)

    return jax.lax.scan(one, state, None, length=steps)


def energy(world: World, state):
    """The kinetic energy of all particles."""
    return kinetic_energy(world.mass, state.velocity, world.inertia, state.spin).sum()


def momentum(world: World, state):
    """Linear and angular momentum of all particles."""
    linear = world.mass * state.velocity
    angular = world.inertia * state.spin + torque_of(state.position, linear)
    return linear.sum(1), angular.sum(1)
