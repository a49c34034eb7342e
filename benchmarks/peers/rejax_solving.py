"""rejax's PPO on CartPole until it is solved."""

from argparse import Namespace

import jax
from protocol import EVALUATION_EPISODES, SOLVING, Solver, compiler_options, serve_seeds
from rejax.evaluate import evaluate
from rejax_ppo import ppo


def build(sizes: Namespace) -> Solver:
    """Some updates a call; evaluation samples actions, as Shoal's does in this benchmark."""
    settings = dict(SOLVING)
    updates = settings.pop("updates_per_evaluation")
    algorithm = ppo(sizes, **settings)
    options = compiler_options(sizes)

    def advance(state):
        return jax.lax.fori_loop(0, updates, lambda _, s: algorithm.train_iteration(s), state)

    def score(state, key):
        _, returns = evaluate(
            algorithm.make_act(state), key, algorithm.env, algorithm.env_params, EVALUATION_EPISODES, 500
        )
        return returns.mean()

    start, compiled_score = jax.jit(algorithm.init_state), jax.jit(score)
    return Solver(
        start=lambda seed: start(jax.random.key(seed)),
        advance=jax.jit(advance, compiler_options=options),
        score=lambda state, number: float(compiled_score(state, jax.random.key(number))),
        steps=updates * sizes.num_envs * sizes.num_steps,
    )


if __name__ == "__main__":
    serve_seeds(build, ("rejax", "gymnax"))
