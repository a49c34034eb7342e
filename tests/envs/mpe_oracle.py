"""The real mpe2 beside Shoal's particle worlds: its states as ours, and what it does with the same actions."""

import os
from typing import Any, NamedTuple

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import jax
import numpy as np
from mpe2 import simple_speaker_listener_v4, simple_spread_v3, simple_tag_v3

from shoal.envs.mpe.speaker_listener import NOTHING_SAID, SpeakerListener, SpeakerListenerState
from shoal.envs.mpe.spread import Spread, SpreadState
from shoal.envs.mpe.tag import Tag, TagState


class Recorded(NamedTuple):
    """Transitions of mpe2, stacked: from a state by actions to what follows, [T, ...]."""

    before: Any  # a state of ours, float64 as in mpe2
    action: np.ndarray  # [T, A]
    observation: np.ndarray  # [T, A, n], padded with zeros
    reward: np.ndarray  # [T, A]
    after: Any
    info: dict[str, np.ndarray]  # of the entries that mpe2's `benchmark_data` knows as well
    truncated: np.ndarray  # [T]


def spread_of(world):
    """A state of mpe2's as one of ours."""
    return SpreadState(*bodies_of(world))


def tag_of(world):
    """A state of mpe2's as one of ours."""
    return TagState(*bodies_of(world))


def speaker_listener_of(world):
    """A state of mpe2's as one of ours."""
    speaker = world.agents[0]
    message = np.argmax(speaker.state.c) if speaker.state.c.any() else NOTHING_SAID
    goal = world.landmarks.index(speaker.goal_b)
    return SpeakerListenerState(*bodies_of(world), np.int32(goal), np.int32(message))


def bodies_of(world):
    """Positions and velocities of the agents, and positions of the landmarks, float64."""
    position = np.stack([agent.state.p_pos for agent in world.agents])
    velocity = np.stack([agent.state.p_vel for agent in world.agents])
    landmarks = np.asarray([landmark.state.p_pos for landmark in world.landmarks]).reshape(-1, 2)
    return position.copy(), velocity.copy(), landmarks.copy()


def put_bodies(world, state):
    """Puts mpe2's bodies where a state of ours has them; message and goal stay."""
    for agent, position, velocity in zip(world.agents, state[0], state[1], strict=True):
        agent.state.p_pos = np.asarray(position, np.float64).copy()
        agent.state.p_vel = np.asarray(velocity, np.float64).copy()
    for landmark, position in zip(world.landmarks, state[2], strict=True):
        landmark.state.p_pos = np.asarray(position, np.float64).copy()


class Original:
    """One of mpe2's environments by the side of ours, through its parallel API."""

    def __init__(self, ours):
        if isinstance(ours, Spread):
            ratio = float(ours.local_ratio)
            made = simple_spread_v3.parallel_env(N=ours.num_agents, local_ratio=ratio, benchmark_data=True)
            self.state_of, self.info_of = spread_of, spread_info
        elif isinstance(ours, Tag):
            made = simple_tag_v3.parallel_env(
                num_good=ours.num_prey,
                num_adversaries=ours.num_adversaries,
                num_obstacles=ours.num_obstacles,
                benchmark_data=True,
            )
            self.state_of, self.info_of = tag_of, tag_info
        else:
            assert isinstance(ours, SpeakerListener)
            made = simple_speaker_listener_v4.parallel_env(benchmark_data=True)
            self.state_of, self.info_of = speaker_listener_of, lambda infos: {}
        self.made, self.width = made, ours.observation_size
        self.sizes = [made.action_space(agent).n for agent in made.possible_agents]

    @property
    def world(self):
        return self.made.unwrapped.world

    def padded(self, observations):
        """Observations by agent as one array [A, n]."""
        return np.stack(
            [
                np.pad(observations[a], (0, self.width - len(observations[a])))
                for a in self.made.possible_agents
            ]
        )

    def reset(self, seed):
        """Starts an episode; returns its state and observations."""
        return self.made.reset(seed=seed)[0]

    def step(self, action):
        """Makes a step; returns observations, rewards, whether it was cut, and infos."""
        agents = self.made.possible_agents
        observations, rewards, _, cut, infos = self.made.step(
            dict(zip(agents, map(int, action), strict=True))
        )
        reward = np.asarray([rewards[agent] for agent in agents])
        return self.padded(observations), reward, all(cut.values()), self.info_of(infos)


def spread_info(infos):
    """What mpe2 counts for its benchmarks, as our `info` has it."""
    data = [info["benchmark_data"] for info in infos.values()]
    return {"collisions": sum(collisions for _, collisions, _, _ in data) / 2, "covered": data[0][3]}


def tag_info(infos):
    """What mpe2 counts for its benchmarks, as our `info` has it."""
    return {"catches": sum(info["benchmark_data"] for info in infos.values())}


def record(ours, episodes, seed=0, persistence=0.6):
    """Plays whole episodes in mpe2; an agent repeats its action with probability `persistence`, so that it gets around.

    Returns:
      the transitions, and the states and observations that the episodes began with, [episodes, ...].
    """
    original, rng = Original(ours), np.random.default_rng(seed)
    sizes = np.asarray(original.sizes)
    rows, begun = [], []
    for episode in range(episodes):
        observations = original.reset(seed * 1_000_003 + episode)
        begun.append((original.state_of(original.world), original.padded(observations)))
        action, cut = rng.integers(sizes), False
        while not cut:
            action = np.where(rng.random(len(sizes)) < persistence, action, rng.integers(sizes))
            before = original.state_of(original.world)
            observation, reward, cut, info = original.step(action)
            after = original.state_of(original.world)
            rows.append(Recorded(before, action, observation, reward, after, info, np.asarray(cut)))
    return tuple(jax.tree.map(lambda *x: np.stack(x), *parts) for parts in (rows, begun))


def starts(ours, count):
    """The states that episodes of mpe2's begin with, stacked."""
    original, states = Original(ours), []
    for seed in range(count):
        original.reset(seed)
        states.append(original.state_of(original.world))
    return jax.tree.map(lambda *x: np.stack(x), *states)


def step_from(ours, state, action):
    """What mpe2 does from a state of ours: observation, reward, and the state after."""
    original = Original(ours)
    original.reset(0)
    put_bodies(original.world, state)
    if isinstance(state, SpeakerListenerState):
        speaker = original.world.agents[0]
        speaker.goal_b = original.world.landmarks[int(state.goal)]
    observation, reward, _, _ = original.step(action)
    return observation, reward, original.state_of(original.world)
