"""DQN, C51, QR-DQN, PQN and discrete SAC on small decision processes, whose optimal values value iteration gives."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import populate
from value_rollouts import config_of

from shoal import envs
from shoal.envs.base import restart, transition
from shoal.nets.q_networks import expected_values
from shoal.types.spaces import Box, Discrete

GAMMA = 0.9


class Process(NamedTuple):
    """A decision process: of states, actions and next states [S, A, S], [S, A] and [S]."""

    probability: np.ndarray
    reward: np.ndarray
    legal: np.ndarray
    terminal: np.ndarray


def chain(length=5):
    """Right leads to the reward at the end, left back to the start for a little; a third action is legal nowhere."""
    probability, reward = np.zeros((length, 3, length)), np.zeros((length, 3, length))
    for s in range(length):
        probability[s, 0, 0], reward[s, 0, 0] = 1, 0.2
        right = min(s + 1, length - 1)
        probability[s, 1, right], reward[s, 1, right] = 1, 2.0 if right == length - 1 else -0.1
        probability[s, 2, s], reward[s, 2] = 1, 100.0
    return Process(
        probability, reward, np.tile([True, True, False], (length, 1)), np.arange(length) == length - 1
    )


def grid(side=3, slip=0.1):
    """A step goes astray now and then; the last corner ends the episode with a reward of 1."""
    size = side * side
    probability = np.zeros((size, 4, size))
    moves = ((0, 1), (1, 0), (0, -1), (-1, 0))
    for s in range(size):
        to = [
            side * np.clip(s // side + dy, 0, side - 1) + np.clip(s % side + dx, 0, side - 1)
            for dy, dx in moves
        ]
        for a in range(4):
            for other in range(4):
                probability[s, a, to[other]] += 1 - slip if a == other else slip / 3
    gain = np.full(size, -0.04)
    gain[-1] = 1.0
    reward = np.broadcast_to(gain, probability.shape)
    legal = np.ones((size, 4), bool)
    legal[0, 0] = False
    return Process(probability, reward, legal, np.isin(np.arange(size), (size - 1,)))


def costs():
    """One state and a cost of each step, never terminated; an illegal action, never tried, seems better."""
    return Process(np.ones((1, 2, 1)), np.full((1, 2, 1), -0.2), np.array([[True, False]]), np.array([False]))


PROCESSES = {"chain": chain(), "grid": grid(), "costs": costs()}


def optimal(process, temperature=0.0):
    """The optimal values [S, A] of actions, by value iteration; with a temperature the soft-optimal ones."""
    values = np.zeros(process.legal.shape)
    for _ in range(500):
        best = np.where(process.legal, values, -np.inf).max(-1)
        if temperature:
            parts = np.where(process.legal, np.exp((values - best[:, None]) / temperature), 0.0)
            best += temperature * np.log(parts.sum(-1))
        following = np.where(process.terminal, 0.0, best)
        values = (process.probability * (process.reward + GAMMA * following)).sum(-1)
    return values


@envs.environment
class Walk:
    """A decision process whose episodes are also cut now and then; nobody may read where they terminate."""

    name: str = "chain"
    cut_rate: float = 0.1

    @property
    def process(self):
        return PROCESSES[self.name]

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (len(self.process.terminal),))

    @property
    def action_space(self):
        return Discrete(self.process.legal.shape[1])

    def show(self, state):
        return jax.nn.one_hot(state, len(self.process.terminal)), jnp.asarray(self.process.legal)[state]

    def reset(self, key):
        state = jax.random.choice(key, np.flatnonzero(~self.process.terminal))
        observation, mask = self.show(state)
        return state, restart(observation, action_mask=mask)

    def step(self, state, action, key):
        next_key, cut_key = jax.random.split(key)
        probability, reward, _, terminal = map(jnp.asarray, self.process)
        after = jax.random.categorical(next_key, jnp.log(probability[state, action]))
        observation, mask = self.show(after)
        ends = terminal[after]
        return after, transition(
            jnp.where(ends, jnp.nan, observation),
            reward[state, action, after],
            terminated=ends,
            truncated=jax.random.bernoulli(cut_key, self.cut_rate),
            action_mask=mask & ~ends,
        )


SIZES = {"num_envs": 32, "num_steps": 8}
REPLAY = {
    **{"buffer_size": 65_536, "batch_size": 256, "learning_starts": 2048, "train_frequency": 32},
}
MOVES = {
    "chain": {"target_network_frequency": 320},
    "costs": {"target_network_frequency": 320},
    "grid": {"target_network_frequency": 1280},
}
RANGES = {
    "chain": {"v_min": -2.5, "v_max": 2.5},
    "costs": {"v_min": -2.5, "v_max": 2.5},
    "grid": {"v_min": -0.5, "v_max": 1.0},
}


def learned(name, process, updates, **settings):
    """The values of actions that an algorithm predicts after training by random actions."""
    common = {"hidden_sizes": (), "gamma": GAMMA, "lr_schedule": "linear"}
    common["learning_rate"] = 0.01 if process == "grid" else 0.05
    if name == "sac":
        common |= {"critic_learning_rate": common["learning_rate"], "autotune": False}
    else:
        common |= {"start_e": 1.0, "end_e": 1.0}
    if name == "c51":
        common |= {"num_atoms": 11} | RANGES[process]
    common |= {"q_lambda": 0.0, "layer_norm": False} if name == "pqn" else REPLAY | MOVES[process]
    config = config_of(name, **common | settings)
    sizes = SIZES | ({"num_envs": 256} if name == "pqn" else {})
    population, compiled = populate(Walk(name=process), config, **sizes, total_updates=updates)
    population, _ = compiled.train(population, jnp.int32(updates))
    network = jax.tree.map(lambda x: x[0], population.learner.shared.network)
    states = jnp.eye(len(PROCESSES[process].terminal))
    if name == "sac":
        policy = network.actor.policy(states, jnp.asarray(PROCESSES[process].legal))
        return np.asarray(network.critic.values(states)).mean(0), np.asarray(jax.nn.softmax(policy.logits))
    output = network.values(states)
    return np.asarray(expected_values(config.network, output))


CASES = {
    "dqn on a chain": ("dqn", "chain", 150, {"double": True}),
    **{f"{name} of costs": (name, "costs", 150, {}) for name in ("dqn", "c51", "qr_dqn", "pqn")},
    "dqn": ("dqn", "grid", 500, {}),
    "retrace": ("dqn", "grid", 500, {"multistep": "retrace", "n_step": 3, "double": True}),
    "tree backup": ("dqn", "grid", 500, {"multistep": "tree_backup", "n_step": 3}),
    "watkins on a chain": ("dqn", "chain", 150, {"multistep": "q_lambda_watkins", "n_step": 5}),
    "soft values": (
        "dqn",
        "grid",
        500,
        {"munchausen": True, "munchausen_alpha": 0.0, "munchausen_temperature": 0.2},
    ),
    "c51 on a chain": ("c51", "chain", 150, {}),
    "c51": ("c51", "grid", 500, {}),
    "qr_dqn on a chain": ("qr_dqn", "chain", 150, {"num_quantiles": 5}),
    "qr_dqn": ("qr_dqn", "grid", 500, {"num_quantiles": 25, "huber": False}),
    "pqn on a chain": ("pqn", "chain", 150, {}),
    "pqn": ("pqn", "grid", 500, {}),
}


QUICK = ("dqn on a chain", "dqn of costs", "pqn of costs", "qr_dqn on a chain")


FULL = ("dqn on a chain", "qr_dqn on a chain")


@pytest.mark.parametrize("case", [pytest.param(x, marks=pytest.mark.full) if x in FULL else x for x in CASES])
@pytest.mark.quick(*QUICK)
@pytest.mark.rare()
@pytest.mark.rare("qr_dqn on a chain")
def test_it_finds_the_optimal_values_within_one_percent(case):
    name, process, updates, settings = CASES[case]
    values = learned(name, process, updates, **settings)
    known = optimal(PROCESSES[process], settings.get("munchausen_temperature", 0.0))
    counts = PROCESSES[process].legal & ~PROCESSES[process].terminal[:, None]
    error = np.abs(values - known)[counts].max() / np.abs(known[counts]).max()
    assert error < 0.01


@pytest.mark.parametrize("process", ["chain", "grid", "costs"])
@pytest.mark.slow
def test_sac_finds_the_soft_values_and_the_policy_of_a_temperature(process):
    """By soft value iteration: values of all that it does now and then within one percent, and probabilities by so much
    as such values change them."""
    alpha, settings = 0.2, {"alpha": 0.2, "tau": 1.0, "learning_starts": 32_768, "train_frequency": 4}
    values, policy = learned("sac", process, 256, **settings | {"target_network_frequency": 64})
    legal, terminal = PROCESSES[process].legal, PROCESSES[process].terminal
    known = optimal(PROCESSES[process], alpha)
    soft = np.where(legal, np.exp((known - known.max(-1, keepdims=True)) / alpha), 0.0)
    soft /= soft.sum(-1, keepdims=True)
    counts = (soft > 0.02) & ~terminal[:, None]
    assert counts.any(-1)[~terminal].all()
    assert np.abs(values - known)[counts].max() < 0.01 * np.abs(known[counts]).max()
    assert np.abs(policy - soft)[~terminal].max() < 0.02
