"""Each single episode of an evaluation, against the same episodes stepped one after the other in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.envs.team_probe import BEST, ROLES, TeamProbe
from shoal.types import Algorithm

ENTRIES = ("return", "length", "terminated", "truncated", "final_reward")


@struct.struct
class Fixed:
    """Acts by a rule that is not learned: (memory of the steps since the first one, N) -> actions."""

    rule: object = struct.static(default=None)

    def algorithm(self, spec, axis=()):
        def act(policy, memory, timestep, key, *, greedy=False):
            memory = jnp.where(timestep.first, 0, memory + 1)
            return memory, self.rule(memory), ()

        return Algorithm(None, lambda shape: jnp.zeros(shape, jnp.int32), None, act, None)


def best_of_roles(memory):
    return jnp.broadcast_to(jnp.asarray(BEST)[jnp.asarray(ROLES)], (*memory.shape, len(ROLES)))


POLICIES = {
    "one": shoal.TrainedPolicy(struct.as_arrays(BanditConfig()), jnp.array([0.0, 1.0]), Halves(bonus=0.5)),
    "team": shoal.TrainedPolicy(Fixed(best_of_roles), jnp.zeros(()), TeamProbe(fill=7.0)),
}


def stepped(env, action, seed, episodes, max_steps):
    """The entries of each episode, and of each agent, by stepping one environment at a time."""
    rows = {name: [] for name in ENTRIES}
    several = env.num_agents > 1
    for reset_key in jax.random.split(jax.random.split(jax.random.key(seed))[0], episodes):
        state, timestep = env.reset(reset_key)
        count = env.num_agents
        row = {"return": [0.0] * count, "length": [0] * count, "final_reward": [0.0] * count}
        row |= {"terminated": [False] * count, "truncated": [False] * count}
        for _ in range(max_steps):
            alive = np.asarray(timestep.alive) if several else np.array([True])
            state, timestep = env.step(state, action, jax.random.key(0))
            reward, discount = np.atleast_1d(timestep.reward), np.atleast_1d(timestep.discount)
            for k in range(count):
                if alive[k]:
                    is_over = bool(timestep.last) or (several and not bool(timestep.alive[k]))
                    row["return"][k] += float(reward[k])
                    row["length"][k] += 1
                    row["final_reward"][k] = float(reward[k])
                    row["terminated"][k] = is_over and discount[k] == 0
                    row["truncated"][k] = is_over and discount[k] != 0
            if timestep.last:
                break
        for name, x in row.items():
            rows[name].append(x if several else x[0])
    return {name: np.array(x) for name, x in rows.items()}


@pytest.mark.quick("one-action2-1-50")
@pytest.mark.parametrize(
    ("name", "action", "episodes", "max_steps"),
    [
        ("one", jnp.int32(1), 12, 50),  # some end after two steps, the others after twenty
        ("one", jnp.int32(1), 12, 10),  # cut by the limit
        ("one", jnp.int32(1), 1, 50),
        ("team", best_of_roles(jnp.zeros(())), 5, 50),  # one agent ends early, one comes back
        ("team", best_of_roles(jnp.zeros(())), 5, 3),
    ],
)
def test_each_episode_is_what_stepping_it_alone_gives(name, action, episodes, max_steps):
    policy = POLICIES[name]
    settings = {"episodes": episodes, "seed": 3, "max_steps": max_steps}
    metrics = shoal.evaluate(policy, per_episode=True, **settings)
    found = metrics.pop("episodes")
    expected = stepped(policy.environment, action, 3, episodes, max_steps)
    assert tuple(found) == ENTRIES
    for entry, x in expected.items():
        np.testing.assert_array_equal(found[entry], x, err_msg=entry)
    if name == "one" and max_steps == 50 and episodes > 1:
        assert expected["terminated"].any() and expected["truncated"].any()
    without = shoal.evaluate(policy, **settings)
    np.testing.assert_equal(metrics, without)
    returns = found["return"] if name == "one" else found["return"].sum(1)
    assert metrics["return_mean"] == pytest.approx(returns.mean())


@pytest.mark.full
def test_the_memory_is_kept_from_one_consecutive_episode_to_the_next():
    """The action is 1, which pays 2, from the third step on that is remembered; every episode has two steps."""
    env = Halves(bonus=1.0, short=2, long=2)
    policy = shoal.TrainedPolicy(Fixed(lambda memory: (memory >= 2).astype(jnp.int32)), jnp.zeros(()), env)
    metrics = shoal.evaluate(policy, episodes=4, consecutive=3, per_episode=True)
    assert [metrics[f"info_return_of_episode_{k}_mean"] for k in range(3)] == [2.0, 4.0, 4.0]
    assert metrics["return_mean"] == 10.0
    assert metrics["episodes"]["length"].tolist() == [6.0] * 4
    assert shoal.evaluate(policy, episodes=4)["return_mean"] == 2.0
    with pytest.raises(ShoalError, match="2 consecutive episodes cannot be played of trials"):
        shoal.evaluate(shoal.TrainedPolicy(Fixed(), jnp.zeros(()), shoal.envs.Trial(env, 3)), consecutive=2)
