"""A task of discs and spheres with JaxDEM's sensing and physics steps, in a batch with auto-reset; or its training."""

from argparse import Namespace
from typing import Any

import jax
from protocol import Program, serve, updates_per_call
from shoal_ppo import ppo, training
from stepping import program

from shoal import envs
from shoal.xla import machine

LIKE_JAXDEM: dict[str, Any] = {"physics_steps": 1, "time_step": 2e-3, "max_episode_steps": 1000}
TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "one navigator": ("particles/Navigator-v0", {"sensing": None} | LIKE_JAXDEM),
    "one roller": ("particles/Roller-v0", {"sensing": None} | LIKE_JAXDEM),
    "16 navigators": (
        "particles/MultiNavigator-v0",
        {"num_agents": 16, "sensing": "bins", "num_rays": 16} | LIKE_JAXDEM,
    ),
    "8 navigators with rays": ("particles/MultiNavigator-v0", {}),
}
TRAINING = "8 navigators with rays, training"


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends; or updates of PPO."""
    if sizes.environment == TRAINING:
        make = lambda: envs.make("particles/MultiNavigator-v0")  # noqa: E731
        return training(make, ppo(), sizes, updates_per_call(sizes))
    machine.prepare(sizes.devices)  # as `shoal rollout` and `shoal.rollout` do
    name, parameters = TASKS[sizes.environment]
    env = envs.make(name, **parameters)
    key = jax.random.key(0)
    agents = () if env.num_agents == 1 else (env.num_agents,)
    actions = jax.random.uniform(key, (sizes.num_steps, sizes.num_envs, *agents, 2), minval=-1.0)
    timed = program(envs.Batch(env, sizes.num_envs), key, actions)
    return timed._replace(steps=sizes.num_steps * sizes.num_envs)  # of worlds, not of agents


if __name__ == "__main__":
    serve(build, ("shoal",))
