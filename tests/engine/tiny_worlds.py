"""Small worlds whose episodes can be counted by hand, and populations that are quick to compile."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal import envs
from shoal.config import struct
from shoal.engine.evaluation import evaluate
from shoal.engine.loop import start_training, train
from shoal.engine.population import member_layout as populations
from shoal.engine.run import ProgramSettings
from shoal.runs.train.compiled_trainer import stack_members
from shoal.types import Environment, restart, transition
from shoal.types.spaces import Box, Discrete


class HalvesState(NamedTuple):
    steps: jax.Array
    ends_after: jax.Array


@envs.environment
class Halves:
    """A coin decides whether an episode has 2 steps or 20: the short ones terminate, the long ones are cut.

    The reward is 1 a step, and `bonus` more for action 1. Whoever steps on after the end gets NaN.
    """

    bonus: float = 0.0
    short: int = 2
    long: int = 20

    observation_space = Box(0.0, 20.0, (1,))
    action_space = Discrete(2)
    info_summaries = {  # noqa: RUF012
        "is_long": "last",
        "clock_last": "last",
        "clock_sum": "sum",
        "clock_mean": "mean",
        "below_zero_max": "max",
        "odd_sum": "sum",
        "odd_mean": "mean",
    }

    def info(self, state, broken=False):
        clock = jnp.where(broken, jnp.nan, state.steps.astype(jnp.float32))
        return {
            "is_long": (state.ends_after == self.long).astype(jnp.float32),
            "clock_last": clock,
            "clock_sum": clock,
            "clock_mean": clock,
            "below_zero_max": -clock,
            "odd_sum": state.steps % 2 == 1,
            "odd_mean": state.steps % 2 == 1,
        }

    def observe(self, state):
        return state.steps.astype(jnp.float32)[None]

    def reset(self, key):
        ends_after = jnp.where(jax.random.bernoulli(key), self.long, self.short)
        state = HalvesState(jnp.zeros((), jnp.int32), ends_after)
        return state, restart(self.observe(state), info=self.info(state))

    def step(self, state, action, key):
        broken = state.steps >= state.ends_after
        state = HalvesState(state.steps + 1, state.ends_after)
        ends, long = state.steps == state.ends_after, state.ends_after == self.long
        return state, transition(
            jnp.where(broken, jnp.nan, self.observe(state)),
            jnp.where(broken, jnp.nan, 1.0 + self.bonus * action),
            terminated=ends & ~long,
            truncated=ends & long,
            info=self.info(state, broken),
        )


@envs.environment
class Sized(envs.Wrapper):
    """A world whose parameters are such as JSON has no words for."""

    env: Environment = Halves()
    sizes: tuple = ((1, 2), (3,))
    limit: float = envs.parameter(default=float("inf"), low=-float("inf"), high=float("inf"))


SMALL = {"num_envs": 4, "num_steps": 8, "eval_episodes": 4, "eval_max_steps": 50}


class Programs(NamedTuple):
    """What the runtime compiles for a population."""

    start: object
    train: object  # (population, number of updates) -> (population, metrics)
    evaluate: object  # population -> (population, metrics)


@functools.cache
def programs(settings, layout):
    return Programs(
        populations.start_program(start_training, settings, layout),
        populations.run_program(train, settings, layout),
        populations.run_program(evaluate, settings, layout, grouped=False),
    )


def populate(env, config, seeds=(0,), *, devices=1, mapped_by="map", total_updates=10, **settings):
    """A population of the given seeds, and its programs (the same ones for the same sizes)."""
    chosen = ProgramSettings(**SMALL | settings)
    layout = populations.lay_out(jax.devices()[:devices], len(seeds), chosen.groups, mapped_by)
    compiled = programs(chosen, layout)
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    arguments = keys, stack_members(env, len(seeds)), stack_members(config, len(seeds))
    arguments = *arguments, jnp.full(len(seeds), total_updates, jnp.int32)
    return compiled.start(arguments), compiled


def values(tree):
    """The leaves of a tree as NumPy arrays by name, keys as their data."""

    def plain(leaf):
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    return struct.named_leaves(jax.device_get(jax.tree.map(plain, tree)))


def assert_equal(first, second):
    """Two trees are equal bit for bit."""
    first, second = values(first), values(second)
    assert first.keys() == second.keys()
    different = [name for name in first if first[name].tobytes() != second[name].tobytes()]
    assert not different


class Compilations:
    """Counts what is compiled within a `with`."""

    EVENT = "/jax/core/compile/backend_compile_duration"

    def __enter__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self.heard)
        return self

    def heard(self, event, duration, **_):
        self.count += event == self.EVENT

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self.heard)
