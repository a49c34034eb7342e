"""The rewards of a decision in worlds of particles: by a potential, and JaxDEM's own.

A kind of reward is a function of the task `env`, its states before and after the decision, the contacts that began of
each agent, [A, ...], the work of each agent's drive, [A, ...], and whether the episode has terminated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from shoal.envs.particles.physics import contact_laws
from shoal.envs.particles.physics.vectors import dot
from shoal.types import Array

if TYPE_CHECKING:  # the tasks import this module
    from shoal.envs.particles.tasks.particle_task import ParticleTask, TaskState

# JaxDEM's reward: weights of the change of kinetic energy, of the team's mean, and of being near, and what is near.
JAXDEM_ENERGY, JAXDEM_TEAM, JAXDEM_NEAR, JAXDEM_NEAR_RADII = 0.1, 0.2, 0.1, 2.5


def potential_reward(
    env: ParticleTask, before: TaskState, after: TaskState, collisions: Array, work: Array, terminated: Array
) -> Array:
    """Return γ Φ(s') - Φ(s), with Φ the negative way to go, minus work and collisions, plus the bonus, [A].

    Φ is 0 where the episode has terminated. The bonus is paid at the rate (1 - γ) bonus while an agent is at a target
    of its own, and in full at termination, as if it stayed there for ever.
    """
    progress = env.way_to_go(before) - env.gamma * jnp.where(terminated, 0.0, env.way_to_go(after))
    rate = jnp.where(terminated, 1.0, 1 - env.gamma)
    bonus = env.bonus * rate * env.is_at_target(after).astype(progress.dtype)
    return progress - env.work_weight * work - env.collision_penalty * collisions + bonus


def jaxdem_reward(
    env: ParticleTask, before: TaskState, after: TaskState, collisions: Array, work: Array, terminated: Array
) -> Array:
    """Return the reward of JaxDEM's MultiNavigator, [A].

    p_i - p_i' - 0.1 (K_i - K_i') + 0.2 mean_j (p_j - p_j') + 0.1 [d_i <= 2.5 r],  p = exp(-2 max(0, d - r / 2)),

    where the dashes are of the time before. Its documentation gives the last term for d <= r, its code as here.
    """
    gained = _closeness(env, after) - _closeness(env, before)
    energy = _kinetic(after) - _kinetic(before)
    near = env.way_to_go(after) <= JAXDEM_NEAR_RADII * after.world.radius
    team = JAXDEM_TEAM * jnp.mean(gained, axis=0)
    return gained - JAXDEM_ENERGY * energy + team + JAXDEM_NEAR * near.astype(gained.dtype)


def jaxdem_single_reward(
    env: ParticleTask, before: TaskState, after: TaskState, collisions: Array, work: Array, terminated: Array
) -> Array:
    """Return the reward of JaxDEM's SingleNavigator, p - p' - 0.1 (K - K') with p = exp(-2 d), [A]."""
    gained = jnp.exp(-2 * env.way_to_go(after)) - jnp.exp(-2 * env.way_to_go(before))
    return gained - JAXDEM_ENERGY * (_kinetic(after) - _kinetic(before))


def _closeness(env: ParticleTask, state: TaskState) -> Array:
    distance = env.way_to_go(state)
    return jnp.exp(-2 * jnp.maximum(distance - state.world.radius / 2, 0.0))


def _kinetic(state: TaskState) -> Array:
    particles, world = state.particles, state.world
    return contact_laws.kinetic_energy(world.mass, particles.velocity, world.inertia, particles.spin)


def work_of(env: ParticleTask, before: TaskState, after: TaskState, force: Array, torque: Array) -> Array:
    """Return the magnitude of the work of each agent's drive in a decision, at the mean velocity, [A]."""
    duration = after.world.time_step * env.physics_steps
    velocity = (before.particles.velocity + after.particles.velocity) / 2
    spin = (before.particles.spin + after.particles.spin) / 2
    return jnp.abs(dot(force, velocity) + dot(torque, spin)) * duration


KINDS = {"potential": potential_reward, "jaxdem": jaxdem_reward, "jaxdem_single": jaxdem_single_reward}
