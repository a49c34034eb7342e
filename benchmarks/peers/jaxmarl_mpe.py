"""JaxMARL's MPE_simple_spread_v3 with its own auto-reset.

Its episodes have 26 steps, and it starts a new one within the last of them.
"""

from argparse import Namespace

import jax
import jaxmarl
from gymnax_stepping import program
from protocol import Program, serve


def build(sizes: Namespace) -> Program:
    """A rollout with given actions."""
    env = jaxmarl.make("MPE_simple_spread_v3")
    key = jax.random.key(0)
    drawn = jax.random.randint(key, (sizes.num_steps, sizes.num_envs, env.num_agents), 0, 5)
    actions = {agent: drawn[..., i] for i, agent in enumerate(env.agents)}
    return program(env.reset, env.step, key, actions, sizes)


if __name__ == "__main__":
    serve(build, ("jaxmarl",))
