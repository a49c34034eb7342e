"""rejax's PPO training: rollouts and updates, without evaluation, of one seed or of several under `vmap`."""

from argparse import Namespace

import jax
from protocol import Program, compiler_options, serve, updates_per_call
from rejax_ppo import ppo


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as in rejax's own `train`."""
    algorithm = ppo(sizes)
    updates = updates_per_call(sizes)

    def train(state):
        return jax.lax.fori_loop(0, updates, lambda _, s: algorithm.train_iteration(s), state)

    if sizes.members == 1:
        state = jax.jit(algorithm.init_state)(jax.random.key(0))
    else:
        train = jax.vmap(train)
        state = jax.jit(jax.vmap(algorithm.init_state))(jax.random.split(jax.random.key(0), sizes.members))
    return Program(
        jax.jit(lambda state: (train(state), None), compiler_options=compiler_options(sizes)),
        state,
        updates * sizes.num_envs * sizes.num_steps * sizes.members,
    )


if __name__ == "__main__":
    serve(build, ("rejax", "gymnax"))
