"""rejax's PPO on CartPole as a script of its users: 100,000 steps of one seed, with ten evaluations of 128 episodes."""

from argparse import Namespace

import jax
from rejax_ppo import ppo

SIZES = Namespace(num_envs=4, num_steps=128)
STEPS = SIZES.num_envs * SIZES.num_steps  # of an update

if __name__ == "__main__":
    budget = {"total_timesteps": 190 * STEPS, "eval_freq": 19 * STEPS}
    algorithm = ppo(SIZES, learning_rate=1e-3, ent_coef=0.0, **budget)
    _, (_, returns) = jax.jit(algorithm.train)(jax.random.key(0))
    print(returns.mean(axis=1))
