"""gymnax's CartPole with its own auto-reset."""

from argparse import Namespace

import gymnax
import jax
from gymnax_stepping import program
from protocol import Program, serve


def build(sizes: Namespace) -> Program:
    """A rollout with given actions."""
    env, params = gymnax.make("CartPole-v1")
    key = jax.random.key(0)
    actions = jax.random.bernoulli(key, shape=(sizes.num_steps, sizes.num_envs)).astype("int32")
    return program(
        lambda key: env.reset(key, params),
        lambda key, state, action: env.step(key, state, action, params),
        key,
        actions,
        sizes,
    )


if __name__ == "__main__":
    serve(build, ("gymnax",))
