"""A sweep of PPO's learning rates as one call of `vmap` of rejax's `train`; prints each rate's mean return."""

import argparse
import json
from argparse import Namespace

import jax
import jax.numpy as jnp
from protocol import compiler_options
from rejax_ppo import ppo


def main() -> None:
    """Train all learning rates together, and evaluate before and after, as rejax's `train` does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rates", nargs="+", type=float)
    parser.add_argument("--num-envs", type=int, required=True)
    parser.add_argument("--num-steps", type=int, required=True)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--same-backend", action="store_true", help="compile as Shoal does")
    sizes = parser.parse_args()
    print(json.dumps(sweep(sizes)))


def sweep(sizes: Namespace) -> dict[str, float]:
    """Return the mean return of each learning rate's last policy, over 128 episodes."""
    budget = {"total_timesteps": sizes.total_steps, "eval_freq": sizes.total_steps}
    algorithm = ppo(sizes, **budget)

    def train(rate, key):
        return algorithm.replace(learning_rate=rate).train(key)

    keys = jax.random.split(jax.random.key(0), len(sizes.rates))
    rates = jnp.asarray(sizes.rates)
    compiled = jax.jit(jax.vmap(train), compiler_options=compiler_options(sizes))
    _, (_, returns) = compiled(rates, keys)
    reached = returns[:, -1].mean(axis=-1).tolist()
    return dict(zip(map(str, sizes.rates), reached, strict=True))


if __name__ == "__main__":
    main()
