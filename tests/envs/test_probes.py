"""The values that the probes promise satisfy Bellman's equation, and no action does better."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs import Batch, environments, make
from shoal.types.spaces import Discrete

GAMMA = 0.9
PROBES = [name for name in environments() if name.startswith("probe/") and name != "probe/team"]


def rollout(env, choose):
    batch = Batch(env, 16)

    @jax.jit
    def run(key):
        def body(carry, key):
            state, timestep = carry
            after = batch.step(state, choose(batch, timestep, key), jax.random.fold_in(key, 1))
            return after, (timestep, after[1])

        return jax.lax.scan(body, batch.reset(key), jax.random.split(key, 60))[1]

    return jax.tree.map(np.asarray, run(jax.random.key(0)))


@functools.cache
def at_random(name):
    return rollout(make(name), lambda batch, timestep, key: batch.sample_actions(timestep, key))


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
    before, after = at_random(name)
    value = np.asarray(env.value(jnp.asarray(before.observation), GAMMA))
    within = ~before.last
    assert np.all(target(env, after)[within] <= value[within] + 1e-6)


@pytest.mark.parametrize("name", ["probe/action", "probe/action-and-observation", "probe/continuous-action"])
def test_random_actions_do_worse_where_actions_matter(name):
    env = make(name)
    before, after = at_random(name)
    expected = 0.0 if isinstance(env.action_space, Discrete) else -(1 / 3 + 1 / 12)  # variances of a and o/2
    assert np.mean(after.reward[~before.last]) == pytest.approx(expected, abs=0.1)


def test_endless_is_cut_after_any_number_of_steps_and_never_terminates():
    choose = lambda batch, timestep, key: batch.sample_actions(timestep, key)  # noqa: E731
    _, after = rollout(make("probe/endless", most_steps=4), choose)
    assert not after.terminated.any()
    assert after.truncated.any()
    lengths = [np.diff(np.flatnonzero(after.last[:, i])) - 1 for i in range(16)]
    assert set(np.concatenate(lengths)) == {1, 2, 3, 4}


def test_all_other_probes_terminate_within_two_steps():
    for name in set(PROBES) - {"probe/endless"}:
        _, after = at_random(name)
        assert not after.truncated.any()
        assert np.all(np.diff(np.flatnonzero(after.last[:, 0])) == (3 if name == "probe/delay" else 2))
