"""The hunt against a loop in NumPy, written from the description of jaxagents' `HuntingContinuous`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs import make
from shoal.envs.checking.checker import check
from shoal.envs.hunt import Hunt, HuntState


def rules(position, angles, time, speeds=(3.0, 1.0), radius=0.2, longest=2.0, dt=0.01, caught=100.0):
    """One step of both agents: places, rewards, whether the prey is caught, and whether that is the end."""
    places = []
    for (x, y), angle, speed in zip(position, angles, speeds, strict=True):
        cut = min(max(angle, -np.pi), np.pi)
        ways = speed * dt * np.cos(cut), speed * dt * np.sin(cut)
        places.append([min(max(x + ways[0], 0.0), 1.0), min(max(y + ways[1], 0.0), 1.0)])
    is_caught = np.hypot(*np.subtract(*places)) <= radius
    reward = np.array([-caught, caught]) if is_caught else np.array([1.0, -1.0])
    return places, reward, is_caught, is_caught or time >= longest - 0.01 * dt


@pytest.mark.parametrize("seed", range(3))
def test_steps_are_those_of_the_rules(seed):
    random = np.random.default_rng(seed)
    env, step = make("Hunt-v0"), jax.jit(make("Hunt-v0").step)
    state, timestep = env.reset(jax.random.key(seed))
    position, time, ends = np.asarray(state.position, np.float64), 0.0, 0
    np.testing.assert_allclose(timestep.observation[0], [0.0, *position.ravel(), 0.0, 0.0], atol=1e-6)
    for _ in range(201):
        angles = random.uniform(-4.0, 4.0, 2).astype(np.float32)  # beyond π, too
        position, reward, is_caught, is_end = rules(position, angles, time)
        state, timestep = step(state, jnp.asarray(angles)[:, None], jax.random.key(0))
        time += 0.01
        shown = [time, *np.ravel(position), *np.clip(angles, -np.pi, np.pi)]
        np.testing.assert_allclose(timestep.observation, [shown, shown], atol=1e-4)
        np.testing.assert_allclose(timestep.reward, reward)
        assert bool(timestep.last) == is_end and float(timestep.info["caught"]) == is_caught
        assert np.all(np.asarray(timestep.discount) == (0.0 if is_end else 1.0))  # the end by time is an end
        ends += is_end
        if is_end:
            break
    assert ends == 1


def test_walls_stop_both_and_a_catch_ends_the_episode():
    env = Hunt(prey_speed=10.0, predator_speed=20.0)
    state = HuntState(jnp.zeros(()), jnp.array([[0.95, 0.5], [0.1, 0.05]]))
    state, timestep = env.step(state, jnp.array([[0.0], [-np.pi / 2]]), jax.random.key(0))
    np.testing.assert_allclose(state.position, [[1.0, 0.5], [0.1, 0.0]], atol=1e-6)
    assert not timestep.last
    state = state._replace(position=jnp.array([[0.5, 0.5], [0.6, 0.5]]))
    _, timestep = env.step(state, jnp.array([[0.0], [np.pi]]), jax.random.key(0))
    assert timestep.last and timestep.reward.tolist() == [-100.0, 100.0]


def test_an_episode_without_a_catch_has_a_step_more_than_the_time():
    env = Hunt(catch_radius=0.0)
    state, _ = env.reset(jax.random.key(1))

    def step(state, _):
        state, timestep = env.step(state, jnp.array([[0.3], [2.0]]), jax.random.key(0))
        return state, (timestep.last, timestep.reward)

    _, (last, reward) = jax.lax.scan(step, state, length=205)
    assert int(np.argmax(last)) == 200 and np.all(np.asarray(reward)[:200] == [1.0, -1.0])


@pytest.mark.slow
def test_the_checker_finds_nothing():
    assert check(make("Hunt-v0")) == []
