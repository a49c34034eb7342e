"""Policies with random weights, in worlds of any spaces, and their comparison with the files that they become."""

from typing import Any

import jax
import jax.numpy as jnp

from shoal import environment, restart, transition
from shoal.config.struct import as_arrays, static
from shoal.export import api
from shoal.export.check import Check, compare
from shoal.export.program import Program, make_program
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import resolve
from shoal.runs.policies.trained_policy import TrainedPolicy, repeated
from shoal.types import Clock, spec_of
from shoal.types.spaces import Box, Dict, Discrete


@environment
class Drawn:
    """Observations, rewards, masks and who takes part are drawn at random; an episode ends at one step in ten."""

    observation_space: Any = static(Box(-1.0, 1.0, (4,)))
    action_space: Any = static(Discrete(3))
    num_agents: int = static(1)
    roles: tuple[int, ...] = static(())
    has_masks: bool = static(False)
    has_absent: bool = static(False)

    def reset(self, key):
        return jnp.zeros(()), restart(self.observe(key), num_agents=self.num_agents, **self.others(key))

    def step(self, state, action, key):
        reward = jax.random.normal(key, () if self.num_agents == 1 else (self.num_agents,))
        ends = jax.random.bernoulli(key, 0.1)
        return state, transition(self.observe(key), reward, truncated=ends, **self.others(key))

    def observe(self, key):
        space = self.observation_space
        return (space if self.num_agents == 1 else repeated(space, self.num_agents)).sample(key)

    def others(self, key):
        agents = () if self.num_agents == 1 else (self.num_agents,)
        found = {}
        if self.has_masks:
            mask = jax.random.bernoulli(key, 0.5, (*agents, count(self.action_space)))
            found["action_mask"] = mask.at[..., 0].set(True)
            if hasattr(self.action_space, "nvec"):
                found["action_mask"] = found["action_mask"].at[..., self.action_space.nvec[0]].set(True)
        if self.has_absent:
            found["alive"] = jax.random.bernoulli(key, 0.8, agents).at[0].set(True)
        return found


def count(space) -> int:
    """The entries of a mask."""
    if isinstance(space, Box):
        return space.shape[0]
    return space.n if isinstance(space, Discrete) else sum(space.nvec)


PICTURE = Box(0, 255, (20, 20, 3), jnp.uint8)
GRID = Box(0, 10, (5, 5, 3), jnp.uint8)
PARTS = Dict({"picture": GRID, "vector": Box(-jnp.inf, jnp.inf, (3,)), "number": Discrete(4)})


def random_policy(env, algorithm="ppo", **settings) -> TrainedPolicy:
    """A policy that was not trained, with memory and layers small enough to be quick."""
    experiment = decide(env, algorithm=algorithm, use_preset=False, overrides=settings)
    spec, config = spec_of(experiment.environment), as_arrays(resolve(experiment.config))

    @jax.jit
    def parameters(config):
        made = config.algorithm(spec)
        return made.policy(made.init(jax.random.key(1), 2), Clock.zero())

    return TrainedPolicy(config, parameters(config), experiment.environment)


def checked(policy, *, suffix=".onnx", steps=200, sample=False) -> tuple[Check, Program]:
    """Convert a policy and play it."""
    program, form = make_program(policy, sample=sample), api.FORMS[suffix]
    return compare(policy, program, form.runner(form.write(program, {}), program), steps), program
