"""Shoal's PPO on CartPole until it is solved."""

from argparse import Namespace

import jax
import jax.numpy as jnp
from protocol import EVALUATION_EPISODES, SOLVING, Solver, serve_seeds
from shoal_ppo import compiled, population, ppo

from shoal import envs
from shoal.engine.evaluation import evaluate_policy
from shoal.engine.loop import start_training, train
from shoal.engine.population import member_layout as populations
from shoal.engine.run import Run
from shoal.runs.train.compiled_trainer import stack_members
from shoal.types import Clock, spec_of


def build(sizes: Namespace) -> Solver:
    """Some updates a call; evaluation samples actions, as the peer's does."""
    settings = dict(SOLVING)
    updates, epochs = settings.pop("updates_per_evaluation"), settings.pop("num_epochs")
    config = ppo(update_epochs=epochs, **settings)
    run, static, layout = population(lambda: envs.make("CartPole-v1"), config, sizes)
    arguments = jnp.int32(updates), jnp.bool_(True)
    advance = compiled(populations.run_program(train, static, layout), layout, run, *arguments)
    begin = populations.start_program(start_training, static, layout)
    stacks = (
        stack_members(envs.make("CartPole-v1"), 1),
        stack_members(config.resolved(), 1),
        run.total_updates,
    )

    @jax.jit
    def score(run: Run, key: jax.Array) -> jax.Array:
        member = populations.take_member(run, 0)
        algorithm = member.config.algorithm(spec_of(member.environment))
        sampled = static._replace(eval_mode="sampled", eval_max_steps=500)
        policy = algorithm.policy(member.learner, Clock.zero())
        return evaluate_policy(member.environment, algorithm, policy, key, sampled, EVALUATION_EPISODES)[
            "return_mean"
        ]

    return Solver(
        start=lambda seed: begin((jnp.stack([jax.random.key(seed)]), *stacks)),
        advance=lambda run: advance(run, *arguments)[0],
        score=lambda run, number: float(score(run, jax.random.key(number))),
        steps=updates * sizes.num_envs * sizes.num_steps,
    )


if __name__ == "__main__":
    serve_seeds(build, ("shoal", "flax"))
