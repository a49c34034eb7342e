"""Scripted policies for the particle worlds, and what they and a random one reach: `python benchmarks/scripted.py`.

A policy is a function `(env, observation, key) -> action` of one world: observations of all agents [A, n] to actions
[A]. Those that are scripted read nothing but the observations, padded as the worlds pad them; Spread's considers the
observations of all agents at once. So a trained policy has the same to go by, for all but Spread's assignment.
"""

import argparse
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal import envs
from shoal.envs.base import frames_per_second, render, unwrapped
from shoal.runs.policies import films
from shoal.types import Array

FILMED_EPISODES = 4
# Units of time that agents look ahead; these and the next are the best that were tried.
ARRIVING, CHASING = 0.16, 0.4
AVOIDANCE, COMFORT = 2.0, 1.2  # weight of keeping apart, and the distance that is kept, in sums of two radii
MOST_PERMUTED = 5  # agents; with more the assignment is greedy

DIRECTIONS = np.asarray([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)], np.float32)  # of `particles.MOVES`


def random(env: Any, observation: Array, key: Array) -> Array:
    """Draws uniformly among the legal actions."""
    mask = getattr(env, "legal_actions", lambda: None)()
    keys = jax.random.split(key, env.num_agents)
    if mask is None:
        return jax.vmap(env.action_space.sample)(keys)
    return jax.vmap(env.action_space.sample)(keys, jnp.asarray(mask))


def distances_ahead(
    offset: Array, velocity: Array, acceleration: float, env: Any, coasting: float = ARRIVING
) -> Array:
    """How far from its goal each agent would be after each move if it coasted on for a time, [A, 5].

    Args:
      offset: the goals as seen from the agents, [A, 2].
      velocity: of the agents, [A, 2].
      acceleration: of the agents.
      env: the world.
      coasting: that time; the longer it is, the earlier agents brake.
    """
    ahead = env.time_step * velocity[:, None] + coasting * velocities_after(velocity, acceleration, env)
    return jnp.linalg.norm(ahead - offset[:, None], axis=-1)


def velocities_after(velocity: Array, acceleration: float, env: Any) -> Array:
    """The velocities [A, 2] of agents after each move, [A, 5, 2]."""
    return (1 - env.damping) * velocity[:, None] + acceleration * env.time_step * DIRECTIONS


def nearness(position: Array, velocity: Array, acceleration: float, env: Any) -> Array:
    """How much closer than is comfortable each agent would be to others two steps after each move, [A, 5]."""
    after = velocities_after(velocity, acceleration, env)
    own = position[:, None] + env.time_step * (velocity[:, None] + after)
    others = position + env.time_step * velocity * (2 - env.damping)
    distance = jnp.linalg.norm(own[:, :, None] - others, axis=-1)
    too_near = jnp.maximum(COMFORT * 2 * env.agent_size - distance, 0.0)
    return jnp.sum(too_near * ~jnp.eye(len(position), dtype=bool)[:, None], axis=-1)


def assignment(distance: Array) -> Array:
    """The landmark of each agent, [A], so that the sum of the squared ways is smallest; greedy for many agents.

    Args:
      distance: of each agent to each landmark, [A, A].
    """
    agents = len(distance)
    if agents <= MOST_PERMUTED:
        orders = np.asarray(list(itertools.permutations(range(agents))))
        sums = jnp.sum(distance[np.arange(agents), orders] ** 2, axis=1)
        return jnp.asarray(orders)[jnp.argmin(sums)]

    def choose(remaining: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        agent, landmark = jnp.unravel_index(jnp.argmin(remaining), remaining.shape)
        return remaining.at[agent].set(jnp.inf).at[:, landmark].set(jnp.inf), (agent, landmark)

    _, (order, landmarks) = jax.lax.scan(choose, distance, length=agents)
    return jnp.zeros(agents, jnp.int32).at[order].set(landmarks)


def spread(env: Any, observation: Array, key: Array) -> Array:
    """Sends each agent to a landmark of its own, and keeps the agents apart on their ways."""
    agents = env.num_agents
    landmarks = observation[:, 4 : 4 + 2 * agents].reshape(agents, agents, 2)
    goal = landmarks[jnp.arange(agents), assignment(jnp.linalg.norm(landmarks, axis=-1))]
    velocity, position = observation[:, :2], observation[:, 2:4]
    cost = distances_ahead(goal, velocity, env.acceleration, env)
    return jnp.argmin(cost + AVOIDANCE * nearness(position, velocity, env.acceleration, env), axis=1)


def speaker_listener(env: Any, observation: Array, key: Array) -> Array:
    """The speaker says the number of the goal's colour; the listener goes to the landmark of that number."""
    seen, heard = observation
    word = jnp.argmax(seen[:3])
    landmarks, message = heard[2:8].reshape(3, 2), heard[8:11]
    nothing_said = jnp.sum(message) == 0
    goal = jnp.sum(jnp.where(nothing_said, 1 / 3, message)[:, None] * landmarks, axis=0)
    move = jnp.argmin(distances_ahead(goal[None], heard[None, :2], env.acceleration, env))
    return jnp.stack([word, move])


def tag(env: Any, observation: Array, key: Array) -> Array:
    """Adversaries chase the nearest prey; prey flee from the nearest adversary, and from the border."""
    adversaries, agents = env.num_adversaries, env.num_agents
    first = 4 + 2 * env.num_obstacles
    others = observation[:, first : first + 2 * (agents - 1)].reshape(agents, agents - 1, 2)

    def nearest(offset: Array) -> tuple[Array, Array]:
        distance = jnp.linalg.norm(offset, axis=-1)
        index = jnp.argmin(distance, axis=1)
        return offset[jnp.arange(len(offset)), index], index

    prey, index = nearest(others[:adversaries, adversaries - 1 :])
    velocities = observation[:adversaries, first + 2 * (agents - 1) :].reshape(adversaries, -1, 2)
    ahead = prey + CHASING * velocities[jnp.arange(adversaries), index]
    velocity = observation[:adversaries, :2]
    chase = jnp.argmin(distances_ahead(ahead, velocity, env.adversary_acceleration, env, CHASING), axis=1)

    hunter, _ = nearest(others[adversaries:, :adversaries])
    position = observation[adversaries:, 2:4]
    away = -hunter / jnp.maximum(jnp.linalg.norm(hunter, axis=-1), 0.1)[:, None]
    inwards = -jnp.sign(position) * jnp.maximum(jnp.abs(position) - 0.6, 0.0) * 5.0
    flee = jnp.argmax((away + inwards) @ DIRECTIONS.T, axis=1)
    return jnp.concatenate([chase, flee])


def tag_players(observation: Array, key: Array) -> Array:
    """Plays both roles of Tag in its default sizes, as an opponent: `shoal eval RUN --against MODULE:tag_players`."""
    return tag(unwrapped(envs.make("mpe/Tag-v0")), observation, key)


SCRIPTED: dict[str, Callable[[Any, Array, Array], Array]] = {
    "mpe/Spread-v0": spread,
    "mpe/SpeakerListener-v0": speaker_listener,
    "mpe/Tag-v0": tag,
}


@functools.partial(jax.jit, static_argnames=("policy", "num_episodes"))
def returns(env: Any, policy: Callable, key: Array, num_episodes: int) -> tuple[Array, dict[str, Array]]:
    """The returns of whole episodes by agent, [N, A], and the sums of the entries of `info`, [N] each."""
    inner = unwrapped(env)

    def episode(key: Array) -> tuple[Array, Any]:
        reset_key, key = jax.random.split(key)
        state, timestep = env.reset(reset_key)

        def step(carry: Any, key: Array) -> Any:
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            action = policy(inner, timestep.observation, action_key)
            state, timestep = env.step(state, action, step_key)
            return (state, timestep), (timestep.reward, timestep.info)

        _, (reward, info) = jax.lax.scan(step, (state, timestep), jax.random.split(key, env.max_steps))
        return reward.sum(0), jax.tree.map(lambda x: x.sum(0), info)

    return jax.vmap(episode)(jax.random.split(key, num_episodes))


def frames(name: str, env: Any, policy: Callable, key: Array) -> Iterator[films.FilmFrame]:
    """The images of some episodes of a policy."""
    act, step = jax.jit(functools.partial(policy, unwrapped(env))), jax.jit(env.step)
    for episode in range(FILMED_EPISODES):
        keys = jax.random.split(jax.random.fold_in(key, episode), env.max_steps + 1)
        state, timestep = env.reset(keys[0])
        total = np.zeros(env.num_agents)
        for t in range(env.max_steps + 1):
            if t > 0:
                state, timestep = step(state, act(timestep.observation, keys[t]), keys[t])
            total += timestep.reward
            caption = f"{name}, {policy.__name__}   step {t}   return {total.mean():.1f}"
            yield films.FilmFrame(render(env, state), caption, bool(timestep.last))


def mean(samples: np.ndarray) -> str:
    """Mean and standard error of independent samples."""
    return f"{samples.mean():.2f} ± {samples.std(ddof=1) / math.sqrt(len(samples)):.2f}"


def main() -> None:
    """Prints a table: the mean over the agents, and over those of each role, of the return of an episode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=4096, help="of each policy in each world")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--films", metavar="FOLDER", type=Path, help="write a film of the scripted policies too"
    )
    options = parser.parse_args()
    print("| world | policy | mean over agents | by role |\n| --- | --- | --- | --- |")
    for name, scripted in SCRIPTED.items():
        env = envs.make(name)
        for policy in (random, scripted):
            key = jax.random.key(options.seed)
            by_agent = np.asarray(returns(env, policy, key, options.episodes)[0], np.float64)
            roles = np.asarray(env.roles or (0,) * env.num_agents)
            by_role = [mean(by_agent[:, roles == role].mean(1)) for role in sorted(set(roles))]
            kind = "random" if policy is random else "scripted"
            print(f"| {name} | {kind} | {mean(by_agent.mean(1))} | {', '.join(by_role)} |", flush=True)
        if options.films:
            path = options.films / f"{name.split('/')[1]}.gif"
            shown = frames(name, env, scripted, jax.random.key(options.seed))
            films.write_frames(path, shown, frames_per_second(env))


if __name__ == "__main__":
    main()
