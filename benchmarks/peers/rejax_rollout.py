"""rejax's rollout: acting and stepping, whole trajectories returned."""

from argparse import Namespace

import jax
from protocol import Program, compiler_options, serve
from rejax_ppo import ppo


def build(sizes: Namespace) -> Program:
    """One rollout a call, with a policy that never changes."""
    algorithm = ppo(sizes)
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    collect = jax.jit(algorithm.collect_trajectories, compiler_options=compiler_options(sizes))
    return Program(collect, state, sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("rejax", "gymnax"))
