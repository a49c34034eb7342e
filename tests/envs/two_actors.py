"""A gymnax-like world of two actors, which needs no package: each is paid for its own action."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

MOVES = 3


class Params(NamedTuple):
    """What the world's functions take."""

    steps: int = 8
    pay: float = 1.0
    end: float = 0.0  # chance of a step to end the episode


class State(NamedTuple):
    """The time, and the action that is right for the first actor."""

    time: jax.Array
    right: jax.Array


class TwoActors:
    """The one observation [1, 4] has the time and the first actor's right action; the second's is the next one."""

    def __init__(self):
        self.n_actors = 2

    def reset_env(self, key, params):
        state = State(jnp.zeros((), jnp.int32), jax.random.randint(key, (), 0, MOVES))
        return self.show(state, params), state

    def step_env(self, key, state, actions, params):
        right = (state.right + jnp.arange(2)) % MOVES
        after = State(state.time + 1, jax.random.randint(key, (), 0, MOVES))
        is_cut = after.time >= params.steps
        died = jax.random.uniform(jax.random.fold_in(key, 1)) < params.end
        info = {"truncated": is_cut, "right": (actions == right).astype(jnp.float32), "name": "two"}
        return self.show(after, params), after, params.pay * (actions == right), died | is_cut, info

    def show(self, state, params):
        return jnp.concatenate([state.time[None] / params.steps, jnp.eye(MOVES)[state.right]])[None]


class TwoAngles(TwoActors):
    """Each is paid for the cosine of its own angle to the right one."""

    def step_env(self, key, state, actions, params):
        right = (state.right + jnp.arange(2)) % MOVES - 1.0
        observation, after, _, flag, info = super().step_env(key, state, jnp.zeros(2, jnp.int32), params)
        return observation, after, params.pay * jnp.cos(actions - right), flag, info


class ResetsWithin:
    """Two actors whose only `step` begins the next episode itself."""

    n_actors = 2

    def reset(self, key, params):
        return TwoActors().reset_env(key, params)

    def step(self, key, state, actions, params):
        shown, after, rewards, flag, info = TwoActors().step_env(key, state, actions, params)
        first = self.reset(key, params)
        shown, after = jax.tree.map(lambda x, y: jnp.where(flag, x, y), first, (shown, after))
        return shown, after, rewards, flag, info
