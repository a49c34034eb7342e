"""The values that the probes promise satisfy Bellman's equation, and no action does better."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_play import at_random, played

from shoal.envs import environments, make
from shoal.types.spaces import Discrete

GAMMA = 0.9
PROBES = [name for name in environments() if name.startswith("probe/") and name != "probe/team"]


def rollout(env, choose=at_random):
    """The time-steps before and after each step."""
    _, _, timesteps = played(env, 16, 60, choose=choose)
    return jax.tree.map(lambda x: x[:-1], timesteps), jax.tree.map(lambda x: x[1:], timesteps)


@functools.cache
def of_random_actions(name):
    return rollout(make(name))


def target(env, after):
    """r + γ V(o'), V(o') only where the episode was not terminated."""
    following = np.asarray(env.value(jnp.asarray(after.observation), GAMMA))
    return after.reward + np.where(after.discount > 0, GAMMA * following, 0.0)


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.quick("probe/action-and-observation", "probe/continuous-action", "probe/delay")
def test_values_of_the_best_policy_satisfy_bellmans_equation(name):
    env = make(name)
    before, after = rollout(env, lambda batch, timestep, key: env.best_action(timestep.observation))
    value = np.asarray(env.value(jnp.asarray(before.observation), GAMMA))
    within = ~before.last
    assert within.sum() > 100
    np.testing.assert_allclose(target(env, after)[within], value[within], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", PROBES)
@pytest.mark.quick("probe/action-and-observation", "probe/continuous-action", "probe/delay")
def test_no_action_does_better(name):
    env = make(name)
    before, after = of_random_actions(name)
    value = np.asarray(env.value(jnp.asarray(before.observation), GAMMA))
    within = ~before.last
    assert np.all(target(env, after)[within] <= value[within] + 1e-6)


@pytest.mark.parametrize("name", ["probe/action", "probe/action-and-observation", "probe/continuous-action"])
def test_random_actions_do_worse_where_actions_matter(name):
    env = make(name)
    before, after = of_random_actions(name)
    expected = 0.0 if isinstance(env.action_space, Discrete) else -(1 / 3 + 1 / 12)  # variances of a and o/2
    assert np.mean(after.reward[~before.last]) == pytest.approx(expected, abs=0.1)


def test_endless_is_cut_after_any_number_of_steps_and_never_terminates():
    _, after = rollout(make("probe/endless", most_steps=4))
    assert not after.terminated.any()
    assert after.truncated.any()
    lengths = [np.diff(np.flatnonzero(after.last[:, i])) - 1 for i in range(16)]
    assert set(np.concatenate(lengths)) == {1, 2, 3, 4}


def test_all_other_probes_terminate_within_two_steps():
    for name in set(PROBES) - {"probe/endless"}:
        _, after = of_random_actions(name)
        assert not after.truncated.any()
        assert np.all(np.diff(np.flatnonzero(after.last[:, 0])) == (3 if name == "probe/delay" else 2))
