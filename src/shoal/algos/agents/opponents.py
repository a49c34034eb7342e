"""Past opponents: sets of agents learn against each other's earlier policies, not only the latest.

Where sets of agents play against each other, each may learn to beat the latest policy of the others and forget how to
beat an earlier one, so that all run in circles. Here, in a share of the worlds, one set acts by its latest policy and
learns, while every other acts by a policy of its own past. That is drawn from a pool, which is a uniform sample of all
policies so far: what each set learns to beat is the average of the others' past, as in fictitious self-play (Heinrich
et al. 2015, "Fictitious Self-Play in Extensive-Form Games").
"""

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos.acting.exploration import without_exploration
from shoal.algos.agents.independent import Sets
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.types import Algorithm, Array, Checks, Clock, Keys, Learner, Metrics, PyTree, TimeStep, Trajectory

POOL_STREAM = np.uint32(2**32 - 1)  # of an update's key; the sets of agents have the first numbers


class Opponents(NamedTuple):
    """The choice of agents that act by past policies, and of the worlds in which they do; static.

    Attributes:
      share: of the worlds, in which one set learns and the others act by policies of the past.
      size: of the pool, in policies of each set.
      every: updates after which the latest policies are offered to the pool.
    """

    sets: Sets
    share: float
    size: int
    every: int

    def worlds(self, num_envs: int) -> list[range]:
        """Return the worlds where all agents act by their latest policy, then for each set those where only it does.

        Raises:
          ShoalError: there is not one for each set.
        """
        num_sets, count = len(self.sets.members), round(self.share * num_envs)
        if count < num_sets:
            enough = math.ceil(num_sets / self.share)
            raise ShoalError(
                f"opponent_share={self.share:g} of num_envs={num_envs} worlds of a group are {count}, and each of "
                f"{num_sets} sets of agents needs one to learn in; num_envs={enough} works."
            )
        bounds = [num_envs - count + count * k // num_sets for k in range(num_sets + 1)]
        return [range(bounds[0]), *map(range, bounds[:-1], bounds[1:])]

    def learns(self, num_envs: int) -> np.ndarray:
        """Return which agents act by their latest policy and learn, [N, A]."""
        learns = np.ones((num_envs, sum(map(len, self.sets.members))), bool)
        for agents, worlds in zip(self.sets.members, self.worlds(num_envs)[1:], strict=True):
            learns[worlds.start : worlds.stop] = np.isin(np.arange(learns.shape[1]), agents)
        return learns


class Learned(NamedTuple):
    """The learned state of all sets, and a pool of their past policies."""

    latest: PyTree  # the learned state of `over_agents`
    pool: PyTree  # policies of the past, [size, ...]; the first entries are filled first
    opponent: Array  # the entry of the pool that each set acts by in the next rollout, [sets]


class Behaviour(NamedTuple):
    """The policies that act in training, of each set."""

    latest: tuple[PyTree, ...]
    past: tuple[PyTree, ...]


def against_past(algorithm: Algorithm, opponents: Opponents) -> Algorithm:
    """Make an algorithm whose agents play against past policies; the latest policies are evaluated and saved."""
    take_over: Any = algorithm.inherit
    see: Any = algorithm.warm_up
    empty: Any = algorithm.without_replay

    def init(key: Array, num_envs: int) -> Learner:
        opponents.worlds(num_envs)
        return _with_pool(algorithm, opponents, algorithm.init(key, num_envs))

    def policy(learner: Learner, clock: Clock) -> PyTree:
        return algorithm.policy(_latest(learner), clock)

    def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
        return _with_pool(algorithm, opponents, take_over(_latest(learner), saved))

    def warm_up(learner: Learner, trajectory: Trajectory) -> Learner:
        return _with_pool(algorithm, opponents, see(_latest(learner), trajectory))

    def without_replay(learner: Learner) -> Learner:
        latest = empty(_latest(learner))
        return latest._replace(shared=learner.shared._replace(latest=latest.shared))

    return Algorithm(
        init,
        algorithm.memory,
        policy,
        functools.partial(act, algorithm, opponents),
        functools.partial(update, algorithm, opponents),
        inherit if take_over else None,
        functools.partial(behaviour, algorithm),
        warm_up if see else None,
        algorithm.warm_up_steps,
        without_replay if empty else None,
    )


def _with_pool(algorithm: Algorithm, opponents: Opponents, learner: Learner) -> Learner:
    """Add to a learner a pool that is full of its policies."""
    policies = algorithm.policy(learner, Clock.zero())
    pool = jax.tree.map(lambda x: jnp.broadcast_to(x, (opponents.size, *x.shape)), policies)
    opponent = jnp.zeros(len(opponents.sets.members), jnp.int32)
    return learner._replace(shared=Learned(learner.shared, pool, opponent))


def _latest(learner: Learner) -> Learner:
    return learner._replace(shared=learner.shared.latest)


def behaviour(algorithm: Algorithm, learner: Learner, clock: Clock) -> Behaviour:
    """Return the policies that act in the next rollout: the latest, and those of the past that were drawn."""
    pool, entries = learner.shared.pool, learner.shared.opponent
    past = (jax.tree.map(lambda x, k=k: x[entries[k]], policies) for k, policies in enumerate(pool))
    latest = (algorithm.behaviour or algorithm.policy)(_latest(learner), clock)
    return Behaviour(latest, without_exploration(tuple(past)))


def act(
    algorithm: Algorithm,
    opponents: Opponents,
    policy: PyTree,
    memory: PyTree,
    timestep: TimeStep,
    key: Array,
    *,
    greedy: bool = False,
) -> tuple[PyTree, PyTree, PyTree]:
    """Act in each group of worlds by the policies that play there; outside of training by the latest alone."""
    if not isinstance(policy, Behaviour):
        return algorithm.act(policy, memory, timestep, key, greedy=greedy)
    results = []
    for index, worlds in enumerate(opponents.worlds(timestep.last.shape[0])):
        if not worlds:
            continue
        policies = [
            latest if index in (0, k + 1) else past
            for k, (latest, past) in enumerate(zip(policy.latest, policy.past, strict=True))
        ]
        inputs = jax.tree.map(lambda x, of=worlds: x[of.start : of.stop], (memory, timestep))
        own_key = jax.random.fold_in(key, index)
        results.append(algorithm.act(tuple(policies), *inputs, own_key, greedy=greedy))
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *results)


def update(
    algorithm: Algorithm,
    opponents: Opponents,
    learner: Learner,
    trajectory: Trajectory,
    keys: Keys,
    clock: Clock,
) -> tuple[Learner, Metrics, Checks]:
    """Update the latest policies, offer them to the pool where that is due, and draw the next opponents from it."""
    result: Any = algorithm.update(_latest(learner), trajectory, keys, clock)
    updated, metrics, checks = result
    slot_key, opponent_key = jax.random.split(jax.random.fold_in(keys.shared, POOL_STREAM))
    updates, size = clock.updates + 1, opponents.size
    count = offered(updates, opponents.every)
    slot = jnp.where(updates % opponents.every == 0, slot_of(slot_key, count, size), size)
    pool = stored(learner.shared.pool, algorithm.policy(updated, clock), slot)
    # Of the entries that are filled; the shared key, so that all devices meet the same opponents.
    opponent = jax.random.randint(opponent_key, learner.shared.opponent.shape, 0, jnp.minimum(count, size))
    return updated._replace(shared=Learned(updated.shared, pool, opponent)), metrics, checks


def taking_over_latest(algorithm: Algorithm) -> Algorithm:
    """Make an algorithm that can also start from runs with a pool of past policies: from the latest of them."""
    take_over: Any = algorithm.inherit

    def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
        prefix = "latest/"  # a field of `Learned`
        latest = {name.removeprefix(prefix): x for name, x in saved.items() if name.startswith(prefix)}
        return take_over(learner, latest or saved)

    return algorithm if take_over is None else algorithm._replace(inherit=inherit)


def offered(updates: Array, every: int) -> Array:
    """Return how many policies were offered to a pool by a number of updates; the initial one is the first."""
    return 1 + updates // every


def slot_of(key: Array, count: Array, size: int) -> Array:
    """Return the entry of a pool that the count-th policy offered takes; `size` or more if it takes none.

    After each, the pool is a uniform sample of all that were offered (Vitter 1985, algorithm R).
    """
    return jnp.where(count <= size, count - 1, jax.random.randint(key, (), 0, count))


def stored(pool: PyTree, policy: PyTree, slot: Array) -> PyTree:
    """Return a pool with a policy in one entry; unchanged where there is no such entry."""

    def store(entries: Array, x: Array) -> Array:
        return struct.where(jnp.arange(len(entries)) == slot, jnp.asarray(x)[None], entries)

    return jax.tree.map(store, pool, policy)
