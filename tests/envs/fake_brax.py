"""A world with Brax's functions and without physics, which has all that makes adapting such worlds hard."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.suites.packages import import_suite


class FakeState(NamedTuple):
    """What `reset` and `step` return."""

    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    metrics: dict
    info: dict

    def replace(self, **changes):
        """Return a state with other values."""
        return self._replace(**changes)


class Point(NamedTuple):
    """The position and speed, [2] each."""

    q: jax.Array
    qd: jax.Array


class Model(NamedTuple):
    """The physics."""

    gain: jax.Array
    friction: jax.Array
    masses: jax.Array


def randomise(model, keys):
    """Draw the gain and the masses of each key; the friction stays."""

    def draw(key):
        gain_key, mass_key = jax.random.split(key)
        return jax.random.uniform(gain_key, minval=0.5, maxval=1.5), jax.random.uniform(mass_key, (2,)) + 0.5

    gain, masses = jax.vmap(draw)(keys)
    in_axes = jax.tree.map(lambda x: None, model)._replace(gain=0, masses=0)
    return model._replace(gain=gain, masses=masses), in_axes


class PushedPoint:
    """A point that actions push; it writes into the state, and its reset has other types than its step.

    The position is not finite from step `breaks_at` on. An episode ends where the first coordinate is above 1.
    """

    action_size = 2
    dt = 0.05

    def __init__(self, breaks_at: int = 10**6, shows_all: bool = True):
        self.breaks_at, self.shows_all = breaks_at, shows_all
        self.sys = Model(jnp.float32(1.0), jnp.full(2, 0.1), jnp.ones(2))

    @property
    def unwrapped(self):
        """The object itself."""
        return self

    def reset(self, rng):
        """Begin near the origin; reward, done and a metric are weakly typed or integers."""
        rng, key = jax.random.split(rng)
        point = Point(jax.random.uniform(key, (2,), minval=-0.1, maxval=0.1) * self.sys.gain, jnp.zeros(2))
        info = {"rng": rng, "steps": 0, "last_action": jnp.zeros(2), "goal": point.q}
        return FakeState(point, self._shown(point, info), 0.0, 0, {"reward/near": 0, "speed": 0.0}, info)

    def step(self, state, action):
        """Push the point, in place."""
        info, metrics = state.info, state.metrics
        info["rng"], key = jax.random.split(info["rng"])
        info["steps"] += 1
        info["speeds"] = {"largest": jnp.max(jnp.abs(state.pipeline_state.qd))}  # a reset has none
        force = self.sys.gain * action / self.sys.masses + 0.01 * jax.random.normal(key, (2,))
        speed = (1 - self.sys.friction) * state.pipeline_state.qd + 0.1 * force
        position = state.pipeline_state.q + speed
        position = jnp.where(info["steps"] >= self.breaks_at, jnp.nan, position)
        point = Point(position, speed)
        info["last_action"] = action
        reward = 1.0 - jnp.sum(position**2)
        metrics.update({"reward/near": reward, "speed": jnp.linalg.norm(speed)})
        metrics["inverse"] = jnp.where(jnp.isfinite(reward), 1.0, jnp.inf)  # a reset has none
        done = (position[0] > 1.0).astype(jnp.float32)
        return state.replace(pipeline_state=point, obs=self._shown(point, info), reward=reward, done=done)

    def _shown(self, point, info):
        shown = jnp.concatenate([point.q, info["last_action"]])
        return {"state": shown, "privileged_state": point.qd} if self.shows_all else shown


class PointOfFolder(PushedPoint):
    """A point with a parameter of the name that Playground's robots have, which remembers where robots were then."""

    def __init__(self, menagerie: str = ""):
        super().__init__()
        self.menagerie = menagerie
        self.read_from = import_suite("playground/", "mujoco_playground._src.mjx_env").MENAGERIE_PATH
