"""rejax's PPO training: rollouts and updates, without evaluation."""

from argparse import Namespace

import jax
from protocol import Program, compiler_options, serve, updates_per_call
from rejax_ppo import ppo


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as in rejax's own `train`."""
    algorithm = ppo(sizes)
    updates = updates_per_call(sizes)

    def advance(state):
        return jax.lax.fori_loop(0, updates, lambda _, s: algorithm.train_iteration(s), state), None

    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    return Program(
        jax.jit(advance, compiler_options=compiler_options(sizes)),
        state,
        updates * sizes.num_envs * sizes.num_steps,
    )


if __name__ == "__main__":
    serve(build, ("rejax", "gymnax"))
