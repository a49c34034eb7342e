"""Keys that are used twice are found, wherever they are; keys that are split, folded or selected are not."""

import jax
import jax.numpy as jnp
import pytest
from broken import Noisy, Walk
from one_of_each import one_of_each

from shoal.envs import Trial, environments, make
from shoal.envs.base import environment
from shoal.envs.checking.check_keys import check_key_reuse
from shoal.envs.checking.check_traces import trace


def found(env):
    """What is said of an environment that is traced as the checker traces it; "" for nothing."""
    findings = list(check_key_reuse(env, trace(env, jax.random.key(0), lambda doing: None)))
    assert [finding.rule for finding in findings] in ([], ["key-reused"])
    return findings[0].message if findings else ""


def with_wind(draw):
    """A walk to whose reward each step adds `draw(state, key)`."""

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state["walk"], action, key)
        wind, kept = draw(state, key)
        state = {"walk": walk, "key": kept, "steps": state["steps"] + 1}
        return state, timestep._replace(reward=timestep.reward + wind)

    return environment(type("Windy", (Noisy,), {"step": step}))()


def both(key):
    return jax.random.normal(key) + jax.random.uniform(key)


def of_each(keys):
    return jax.lax.fori_loop(0, 3, lambda i, wind: wind + jax.random.normal(keys[i]), 0.0)


TWICE = {
    "in one step": lambda state, key: (both(key), state["key"]),
    "in jit": lambda state, key: (jax.jit(both)(key), state["key"]),
    "by two calls of a jit": lambda state, key: (
        sum(map(jax.jit(jax.random.normal), (key, key))),
        state["key"],
    ),
    "in vmap": lambda state, key: (jax.vmap(both)(jax.random.split(key, 3)).sum(), state["key"]),
    "in scan": lambda state, key: (
        jax.lax.scan(lambda wind, k: (wind + both(k), None), 0.0, jax.random.split(key, 3))[0],
        state["key"],
    ),
    "by each round of a loop": lambda state, key: (
        jax.lax.fori_loop(0, 3, lambda _, wind: wind + jax.random.normal(key), 0.0),
        state["key"],
    ),
    "in cond": lambda state, key: (
        jax.lax.cond(state["steps"] > 3, both, jax.random.normal, key),
        state["key"],
    ),
    "before and in cond": lambda state, key: (
        jax.lax.cond(jax.random.normal(key) > 0, jax.random.normal, lambda _: 0.0, key),
        state["key"],
    ),
    "split after a draw": lambda state, key: (
        jax.random.normal(key) + jax.random.normal(jax.random.split(key)[0]),
        state["key"],
    ),
}
ONCE = {
    "split": lambda state, key: (sum(map(jax.random.normal, jax.random.split(key))), state["key"]),
    "one of two branches": lambda state, key: (
        jax.lax.cond(state["steps"] > 3, jax.random.uniform, jax.random.normal, key),
        state["key"],
    ),
    "each of an array": lambda state, key: (of_each(jax.random.split(key, 3)), state["key"]),
    "folded": lambda state, key: (
        sum(jax.random.normal(jax.random.fold_in(state["key"], i)) for i in range(2)),
        state["key"],
    ),
    "kept for the next step": lambda state, key: (jax.random.normal(state["key"]), key),
    "selected by an end": lambda state, key: (
        jax.random.normal(key),
        jnp.where(state["steps"] > 3, *jax.random.split(state["key"])),
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_is_used_twice_is_found_with_the_line(name):
    message = found(with_wind(TWICE[name]))
    assert message.startswith("a key is used twice, at last by `")
    assert "(tests/envs/checking/test_check_key_reuse.py, line " in message


@pytest.mark.parametrize("name", ONCE)
def test_keys_that_are_used_once_pass(name):
    assert found(with_wind(ONCE[name])) == ""


def test_reset_that_draws_twice_from_its_key_is_found():
    @environment
    class Start(Noisy):
        def reset(self, key):
            state, timestep = Noisy.reset(self, key)
            return state, timestep._replace(observation=jax.random.uniform(key, (2,)))

    assert "`return state, timestep._replace(observation=jax.random.uniform(key, (2,)))` (tests/" in found(
        Start()
    )


@pytest.mark.parametrize("kept_by", ["step", "reset"])
def test_a_key_that_the_state_keeps_after_its_use_is_found(kept_by):
    @environment
    class Keeps(Noisy):
        def reset(self, key):
            state, timestep = Noisy.reset(self, key)
            return ({**state, "key": key} if kept_by == "reset" else state), timestep

        def key_of_step(self, state, key):
            return state["key"]

        def next_key(self, state, key):
            return state["key"] if kept_by == "step" else key

    assert found(Keeps()).startswith(
        "a key that the state keeps (`key`) is used by a step, and was used by reset or"
    )


def test_a_trial_of_an_environment_with_a_key_passes():
    assert found(Trial(with_wind(ONCE["kept for the next step"]), 2)) == ""


def test_no_use_of_keys_after_the_check_is_refused():
    found(with_wind(TWICE["in one step"]))
    assert both(jax.random.key(0)).shape == ()
    assert not jax.config.jax_debug_key_reuse


@pytest.mark.parametrize("name", environments())
@pytest.mark.quick("CartPole-v1", "Pendulum-NoVelocity-v1", "MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R1-9x9")
@pytest.mark.rare(*(set(environments()) - {*one_of_each(), "MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R1-9x9"}))
def test_no_environment_of_shoal_uses_a_key_twice(name):
    assert found(make(name)) == ""
