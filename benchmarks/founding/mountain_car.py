"""The rollouts of "An RL environment in JAX": MountainCar, mapped over environments and over devices, results kept.

Written after the notebook (azzeddineCH/RL-environment-in-Jax 08d8029, `RL_env.ipynb`), with its two slips put right:
keys are `jax.Array`, and the arrays that `x.at[i].set(v)` returns are kept, which the notebook throws away, so that XLA
removes the work. Actions are 0 or 1, from one key for all. Shoal's own interpreter runs it.
"""

from argparse import Namespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from driver import Training, run

LOW, HIGH, FASTEST, GOAL, FORCE, GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025
ENVIRONMENTS = 4


class Car(NamedTuple):
    """The state of one environment."""

    key: jax.Array
    position: jax.Array
    velocity: jax.Array


def reset(key: jax.Array) -> Car:
    """At the bottom, at rest."""
    position = jax.random.uniform(key, minval=-0.6, maxval=-0.4)
    return Car(jax.random.split(key)[0], position, jnp.float32(0))


def step(car: Car, action: jax.Array) -> tuple[Car, tuple]:
    """One step, with the reset within it."""
    velocity = car.velocity + (action - 1) * FORCE - jnp.cos(3 * car.position) * GRAVITY
    velocity = jnp.clip(velocity, -FASTEST, FASTEST)
    position = jnp.clip(car.position + velocity, LOW, HIGH)
    velocity = jax.lax.cond((position == LOW) & (velocity < 0), lambda: jnp.float32(0), lambda: velocity)
    done = (position >= GOAL) & (velocity >= 0)
    moved = Car(car.key, position, velocity)
    car = jax.lax.cond(done, reset, lambda _: moved, car.key)
    return car, (jnp.stack([car.position, car.velocity]), jnp.float32(-1), done)


def rollout(key: jax.Array, steps: int) -> tuple:
    """All observations, rewards and ends of one environment."""

    def body(i: int, episode: tuple) -> tuple:
        car, action_key, *kept = episode
        (action,) = jax.random.randint(action_key, (1,), 0, 2)
        car, results = step(car, action)
        kept = [x.at[i].set(result) for x, result in zip(kept, results, strict=True)]
        return car, jax.random.split(action_key)[0], *kept

    empty = jnp.zeros((steps, 2)), jnp.zeros((steps, 1)), jnp.zeros((steps, 1), bool)
    start = reset(key), jax.random.PRNGKey(0), *empty
    return jax.lax.fori_loop(0, steps, body, start)[2:]


def build(sizes: Namespace) -> Training:
    """One call, which makes all steps; an "update" is a step of all environments."""
    devices = jax.local_device_count()
    keys = jax.random.split(jax.random.PRNGKey(sizes.seed), ENVIRONMENTS).reshape(devices, -1, 2)
    mapped = jax.pmap(jax.vmap(lambda key: rollout(key, sizes.updates)))
    compiled = lambda: mapped.lower(keys).compile()  # noqa: E731
    mean = lambda kept: float(kept[1].mean())  # noqa: E731 (the reward)
    return Training(compiled, keys, ENVIRONMENTS, mean, updates_per_call=sizes.updates)


if __name__ == "__main__":
    run(build, ())
