"""The benchmark of the founding works: its worlds are those of the works, and Shoal takes its settings."""

import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.cli import train

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def works(monkeypatch):
    """benchmarks/founding_works.py."""
    for folder in (BENCHMARKS, BENCHMARKS / "founding"):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module("founding_works")


@pytest.fixture
def worlds(works):
    """benchmarks/founding/worlds.py."""
    return importlib.import_module("worlds")


def test_shoal_takes_the_settings_of_every_work(works, monkeypatch):
    """With the budget and the sizes of the peer's update, and every peer's packages name a JAX."""
    experiments = []

    def keep(experiment, caller):
        experiment.validate()
        experiments.append(experiment)
        raise shoal.ShoalError("not trained")

    monkeypatch.setattr(train, "run_experiment", keep)
    for work in works.WORKS.values():
        assert (works.DRIVERS / f"{work.driver}.py").exists()
        assert "jax==" in (BENCHMARKS / "peers" / f"{work.packages}.txt").read_text()
        with pytest.raises(shoal.ShoalError, match="not trained"):
            train.main([*works.settings(work), "--seeds", "1", "--num-updates", "2", "--eval-every", "never"])
        assert experiments[-1].run.steps_per_update == work.steps
    assert len(experiments) == len(works.WORKS)


def hunted(start, angles):
    """Positions, rewards and ends of a hunt, by NumPy."""
    positions, time = np.array(start, np.float64), 0.0
    for angle in angles:
        cut = np.clip(angle, -np.pi, np.pi)
        way = np.stack([np.cos(cut), np.sin(cut)], axis=-1)
        positions = np.clip(positions + 0.01 * np.array([[3.0], [1.0]]) * way, 0.0, 1.0)
        caught, over = np.linalg.norm(positions[0] - positions[1]) <= 0.2, time >= 2.0 - 1e-4
        time += 0.01
        yield positions, np.array([-100.0, 100.0]) if caught else np.array([1.0, -1.0]), caught or over


def test_a_hunt_is_that_of_jaxagents(worlds):
    env, step = worlds.Hunt(), jax.jit(worlds.Hunt.step)
    ends = []
    for seed in range(8):
        state, timestep = env.reset(jax.random.key(seed))
        angles = np.random.default_rng(seed).normal(0.0, 3.0, (210, 2)).astype(np.float32)
        for number, (positions, reward, last) in enumerate(hunted(state.positions, angles)):
            state, timestep = step(env, state, angles[number][:, None], jax.random.key(0))
            np.testing.assert_allclose(timestep.observation[0, 1:5], positions.ravel(), atol=1e-4)
            np.testing.assert_array_equal(timestep.observation[0], timestep.observation[1])
            np.testing.assert_array_equal(timestep.reward, reward)
            assert bool(timestep.last) == last and (not last or not timestep.discount.any())
            if last:
                ends.append(number + 1)
                break
    assert max(ends) == 201 and min(ends) < 201


def test_the_rewards_of_a_navigator_add_up(worlds):
    """To the gain in closeness, less a tenth of the kinetic energy."""
    env = worlds.SingleNavigator(drive=6.0, time_step=2e-3, physics_steps=1, hold_decisions=10**6)
    start, _ = env.reset(jax.random.key(0))

    @jax.jit
    def play(state):
        def step(state, key):
            state, timestep = env.step(state, jnp.array([1.0, -0.5]), key)
            return state, timestep.reward

        return jax.lax.scan(step, state, jax.random.split(jax.random.key(1), 500))

    end, rewards = play(start)
    velocity = np.asarray(end.particles.velocity, np.float64)
    distances = [float(env.way_to_go(state)[0]) for state in (start, end)]
    gained = np.exp(-2 * distances[1]) - np.exp(-2 * distances[0])
    expected = gained - 0.05 * (velocity**2).sum()
    np.testing.assert_allclose(rewards.sum(), expected, atol=1e-4)
