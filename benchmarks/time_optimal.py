"""Trained navigators against the time-optimal force: `python benchmarks/time_optimal.py RUN`.

RUN is a run of particles/Navigator-v0 with the default parameters. An episode that succeeds ends once the disc has been
within a radius of its target at five decisions in succession. The fewest decisions after which any force can do so are
computed for each distance of the start: the disc starts at rest, so the best force is along the line to the target,
where the places after the decisions are linear in the forces, and whether k decisions are enough is a linear program.
Prints, for each seed's best policy, the share of episodes that end so, and the ratio of the mean lengths over the same
starts.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np
from scipy.optimize import linprog

import shoal
from shoal import envs
from shoal.envs.base import unwrapped

EPISODES = 1280
DISTANCE_STEP = 0.05  # radii, between the distances for which the fewest decisions are computed


def responses(env, decisions):
    """The place after decision k by a unit of force during decision j, [k, j], in the plane without walls."""
    drag, mass, duration = float(env.drag), float(env.mass.low), float(env.time_step) * env.physics_steps
    decay = np.exp(-drag / mass * duration)
    speed = (1 - decay) / drag  # of a body at rest after one decision of unit force
    way = (duration - mass / drag * (1 - decay)) / drag
    places = np.zeros((decisions, decisions))
    for j in range(decisions):
        place, velocity = way, speed
        for k in range(j, decisions):
            places[k, j] = place
            place, velocity = place + velocity * mass / drag * (1 - decay), velocity * decay
    return places


def farthest(env, decisions):
    """The greatest distance whose target can be held at the last `hold_decisions` of some decisions; -1 for none."""
    held, radius = env.hold_decisions, float(env.radius.low)
    if decisions < held:
        return -1.0
    places = responses(env, decisions)[-held:] * float(env.drive)
    ones = np.ones((held, 1))
    bounds = [(-1, 1)] * decisions + [(0, None)]  # the forces, and the distance d, which is maximised
    upper = np.vstack([np.hstack([places, -ones]), np.hstack([-places, ones])])  # |place - d| <= radius
    objective = np.zeros(decisions + 1)
    objective[-1] = -1
    result = linprog(objective, A_ub=upper, b_ub=np.full(2 * held, radius), bounds=bounds)
    return -result.fun


def reachable_distances(env):
    """The distances whose targets can be held in 0, 1, 2, ... decisions, up to the diagonal of the box."""
    env = unwrapped(env)
    distances, longest = [], env.side_in_radii * np.sqrt(2) * float(env.radius.low)
    while not distances or distances[-1] < longest:
        distances.append(farthest(env, len(distances)))
    return np.asarray(distances)


def main() -> None:
    """Plays the starts of a run's episodes, and prints the ratio for each seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--episodes", type=int, default=EPISODES)
    arguments = parser.parse_args()
    env = envs.make("particles/Navigator-v0")
    state, first = jax.vmap(env.reset)(jax.random.split(jax.random.key(0), arguments.episodes))
    inner = env.inner_state(state)
    way = np.asarray(inner.particles.position - inner.target)[:, :, 0]
    fewest = np.searchsorted(reachable_distances(env), np.linalg.norm(way, axis=1)).mean()
    print(f"time-optimal: {fewest:.2f} decisions in the mean of {arguments.episodes} starts")
    summary = json.loads((Path(arguments.run) / "summary.json").read_text())
    for seed in summary["seeds"]:
        length, has_ended = play(env, shoal.load(arguments.run, seed=seed), state, first)
        ratio = length.mean() / fewest
        print(f"seed {seed}: {has_ended.mean():.4f} ended, {length.mean():.2f} decisions, ratio {ratio:.3f}")


def play(env, policy, state, timestep):
    """The length of each episode, and whether it ended by itself."""
    step = jax.jit(jax.vmap(env.step))
    count = len(timestep.reward)
    keys = jax.random.split(jax.random.key(0), count)  # not used: the world is deterministic
    memory = policy.initial_memory((count,))
    length, has_ended, goes_on = np.zeros(count), np.zeros(count, bool), np.ones(count, bool)
    while goes_on.any():
        observation, reward = np.asarray(timestep.observation), np.asarray(timestep.reward)
        memory, action = policy(memory, observation, reward=reward)
        state, timestep = step(state, action, keys)
        length += goes_on
        has_ended |= goes_on & np.asarray(timestep.last & (timestep.discount == 0))
        goes_on &= ~np.asarray(timestep.last)
    return length, has_ended


if __name__ == "__main__":
    main()
