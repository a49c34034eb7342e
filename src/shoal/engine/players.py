"""Players who share a world of several agents: policies, random actions or a function, each for some of the agents.

A player serves evaluation as an algorithm's config does: it has a method `algorithm(spec)`, whose `memory` and `act`
play. So two players make one more, which is evaluated like any policy.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config import struct
from shoal.engine.evaluation import play_episodes
from shoal.engine.population.member_layout import map_members
from shoal.types import (
    Algorithm,
    AlgorithmConfig,
    Array,
    Environment,
    EnvSpec,
    Learner,
    Memory,
    PyTree,
    TimeStep,
    spec_of,
)
from shoal.types.contract import refuse


@struct.struct
class RandomPlayer:
    """Acts uniformly among the legal actions."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return its functions for a world of several agents."""

        def act(
            policy: PyTree, memory: Memory, timestep: TimeStep, key: Array, *, greedy: bool = False
        ) -> tuple[Memory, PyTree, PyTree]:
            keys = jax.random.split(key, timestep.reward.shape)
            return memory, jax.vmap(jax.vmap(spec.action_space.sample))(keys, timestep.action_mask), ()

        return _without_learning(lambda _: (), act)


@struct.struct
class ScriptedPlayer:
    """Acts by a function of the observations of all agents of one world.

    Attributes:
      function: (observation, key) -> action, of arrays [A, ...] or dictionaries of them, as policies are given them;
        the actions of the agents that it does not play for are ignored.
    """

    function: Callable[[PyTree, Array], PyTree] = struct.static()

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return its functions for a world of several agents."""

        def act(
            policy: PyTree, memory: Memory, timestep: TimeStep, key: Array, *, greedy: bool = False
        ) -> tuple[Memory, PyTree, PyTree]:
            keys = jax.random.split(key, timestep.last.shape)
            return memory, jax.vmap(self._checked, in_axes=(0, 0, None))(timestep.observation, keys, spec), ()

        return _without_learning(lambda _: (), act)

    def _checked(self, observation: PyTree, key: Array, spec: EnvSpec) -> PyTree:
        """Return the actions of one world's agents.

        Raises:
          ShoalError: they are not of the action space's structure and shape.
        """
        action = self.function(observation, key)
        example = jax.eval_shape(spec.action_space.sample, key)
        expected = jax.tree.map(lambda x: (spec.num_agents, *x.shape), example)
        got = jax.tree.map(np.shape, action)
        if got != expected:
            world = f"{spec.num_agents} agents with action_space={spec.action_space}"
            refuse(self.function, f"actions of shape {got} for {world}", f"actions of shape {expected}")
        return jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype), action, example)


def _without_learning(memory: Callable[..., Memory], act: Callable[..., Any]) -> Algorithm:
    """Make an algorithm that only acts."""
    learner = Learner((), ())
    return Algorithm(
        lambda key, num_envs: learner,
        memory,
        lambda learner, clock: (),
        act,
        lambda learner, *_: (learner, {}),
    )


def pair(first: Algorithm, second: Algorithm, is_first: Array) -> Algorithm:
    """Combine two algorithms, with the policies and memories of both; the first acts for agents `is_first`, [A]."""

    def memory(batch_shape: tuple[int, ...]) -> Memory:
        return first.memory(batch_shape), second.memory(batch_shape)

    def act(
        policy: PyTree, memory: Memory, timestep: TimeStep, key: Array, *, greedy: bool = False
    ) -> tuple[Memory, PyTree, PyTree]:
        results = [
            algorithm.act(part, own, timestep, key, greedy=greedy)
            for algorithm, part, own in zip((first, second), policy, memory, strict=True)
        ]
        memories, actions, _ = zip(*results, strict=True)
        return memories, struct.where(jnp.broadcast_to(is_first, timestep.reward.shape), *actions), ()

    return _without_learning(memory, act)


class Side(NamedTuple):
    """The players of one side, one for each seed; each leaf has a leading axis of them."""

    config: AlgorithmConfig  # an algorithm's config, RandomPlayer or ScriptedPlayer
    parameters: PyTree
    number: Array  # the number of each player, so that there is a leaf


@functools.partial(jax.jit, static_argnames=("of_first", "episodes", "max_steps", "greedy", "mapped_by"))
def play_pairs(
    environment: Environment,
    first: Side,
    second: Side,
    key: Array,
    *,
    of_first: tuple[int, ...],
    episodes: int,
    max_steps: int,
    greedy: bool,
    mapped_by: str,
) -> tuple[Array, Array]:
    """Play each of the S players of one side against each of the R players of the other.

    A pair of twice the same policy plays the same episodes as an evaluation of that policy with the same key does.

    Args:
      of_first: the agents that the players of the first side act for; the others' act for all others.
      mapped_by: "map" or "vmap": pairs one after the other or together.
    Returns:
      the mean over the episodes of the return of each agent, [S, R, A], and the share that was cut, [S, R].
    """
    spec = spec_of(environment)
    is_first = jnp.isin(jnp.arange(spec.num_agents), jnp.asarray(of_first))

    def play(one: Side, other: Side) -> tuple[Array, Array]:
        algorithm = pair(one.config.algorithm(spec), other.config.algorithm(spec), is_first)
        policy, limits = (one.parameters, other.parameters), {"episodes": episodes, "max_steps": max_steps}
        results = play_episodes(environment, algorithm, policy, key, **limits, greedy=greedy)
        return results.agents.mean(axis=0), jnp.mean(~results.terminated & ~results.truncated)

    def play_all(one: Side, others: Side) -> tuple[Array, Array]:
        return map_members(lambda other, one: play(one, other), mapped_by)(others, one)

    return map_members(play_all, mapped_by)(first, second)
