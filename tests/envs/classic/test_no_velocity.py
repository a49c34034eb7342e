"""CartPole and Pendulum without their velocities: Gymnasium's own steps, with those entries left out."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.envs import Flatten, Hide, TimeLimit, make, parameters_of
from shoal.envs.checking.checker import check
from shoal.envs.classic.cartpole import CartPole
from shoal.envs.classic.pendulum import Pendulum
from shoal.types.spaces import Box

NAMES = {"CartPole-NoVelocity-v1": ("CartPole-v1", [0, 2]), "Pendulum-NoVelocity-v1": ("Pendulum-v1", [0, 1])}
EACH = pytest.mark.parametrize("name", NAMES)
STEPS = 250  # beyond Pendulum's time limit


@EACH
@pytest.mark.quick("CartPole-NoVelocity-v1")
def test_steps_are_gymnasiums_without_the_hidden_entries(name):
    env, (full, seen) = make(name), NAMES[name]
    theirs = gymnasium.make(full, disable_env_checker=True)
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    np.testing.assert_array_equal(env.observation_space.high, theirs.observation_space.high[seen])
    np.testing.assert_array_equal(env.observation_space.low, theirs.observation_space.low[seen])
    ends = 0
    for episode in range(5):
        state, timestep = reset(jax.random.key(episode))
        theirs.reset(seed=0)
        theirs.unwrapped.state = np.stack(state.env).astype(np.float64)
        rng = np.random.default_rng(episode)
        for _ in range(STEPS):
            assert timestep.observation.shape == (2,)
            assert env.observation_space.contains(timestep.observation)
            # Both step from the same state, so that nothing drifts; every other episode is played well.
            theirs.unwrapped.state = np.stack(state.env).astype(np.float64)
            if full == "CartPole-v1":
                good = int(state.env.angle + 0.3 * state.env.angular_velocity > 0)
                action = int(rng.integers(2)) if episode % 2 else good
            else:
                action = rng.uniform(-3, 3, 1).astype(np.float32)
            observation, reward, terminated, truncated, _ = theirs.step(action)
            state, timestep = step(state, jnp.asarray(action), jax.random.key(0))
            np.testing.assert_allclose(timestep.observation, observation[seen], atol=5e-6)
            np.testing.assert_allclose(timestep.reward, reward, atol=5e-5)
            assert (timestep.terminated, timestep.truncated) == (terminated, truncated and not terminated)
            if timestep.last:
                ends += 1
                break
    assert ends >= 2


@EACH
def test_what_is_hidden_does_not_show(name):
    """Where time stands still, states that differ in nothing but their velocities look the same."""
    env, still = make(name, max_episode_steps=None), make(name, max_episode_steps=None, time_step=1e-30)
    state, timestep = env.reset(jax.random.key(0))
    faster = state._replace(**{field: x + 1.0 for field, x in state._asdict().items() if "velocity" in field})
    action = env.action_space.sample(jax.random.key(1))

    def looks(env):
        return [np.asarray(env.step(s, action, jax.random.key(2))[1].observation) for s in (state, faster)]

    slow, fast = looks(still)
    np.testing.assert_array_equal(slow, fast)
    np.testing.assert_allclose(slow, timestep.observation, atol=1e-6)
    slow, fast = looks(env)
    assert (slow != fast).all()


@EACH
def test_parameters_and_limit_are_those_of_the_whole_environment(name):
    full = NAMES[name][0]
    mine, theirs = parameters_of(name), parameters_of(full)
    assert mine.pop("critic_state").default is False
    assert {k: (x.default, x.annotation) for k, x in mine.items()} == {
        k: (x.default, x.annotation) for k, x in theirs.items()
    }
    env = make(name, gravity=3.0, max_episode_steps=7)
    inner, hidden = (CartPole, (1, 3)) if full == "CartPole-v1" else (Pendulum, (2,))
    assert env == TimeLimit(Hide(inner(gravity=3.0), hidden), 7)
    with pytest.raises(ShoalError, match="did you mean 'gravity'"):
        make(name, gravty=3.0)


@EACH
@pytest.mark.slow
def test_the_checker_finds_nothing(name):
    assert check(make(name), keys=4, steps=40) == []


def test_hide_says_what_it_cannot():
    with pytest.raises(
        ShoalError, match=r"hidden=\(4,\) must be some of the entries 0 to 3 of the observation"
    ):
        Hide(CartPole(), (4,)).reset(jax.random.key(0))
    with pytest.raises(ShoalError, match="not all"):
        _ = Hide(CartPole(), (0, 1, 2, 3)).observation_space
    with pytest.raises(ShoalError, match="needs an observation that is a vector, and it is Box"):
        _ = Hide(make("MiniGrid-Empty-5x5"), (0,)).observation_space
    flat = Hide(Flatten(make("MiniGrid-Empty-5x5")), (0,)).observation_space
    assert isinstance(flat, Box)
    assert flat.shape == (97,)
