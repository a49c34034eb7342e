"""Independent learners (de Witt et al. 2020, arXiv:2011.09533): an algorithm for one agent, for each of several.

Each agent of each world is a stream (`shoal.streams`). A set of agents that share parameters is trained as one agent
in that many more environments; agents or roles with parameters of their own are several such sets. An algorithm whose
network is shown all agents of a world at once keeps their axis: the batch of one agent, [N], is then [N, A].
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal import streams
from shoal.algos.agents.agent_views import View
from shoal.errors import ShoalError
from shoal.types import (
    Algorithm,
    Array,
    Checks,
    Clock,
    EnvSpec,
    Keys,
    Learner,
    Metrics,
    PyTree,
    TimeStep,
    Trajectory,
)


class Memory(NamedTuple):
    """The memories of all agents, [N, A, ...]; () instead if they have none."""

    sets: tuple[PyTree, ...]  # of the agents of each set
    absent: Array  # who took no part at the step before, [N, A]


class Sets(NamedTuple):
    """The agents that share parameters, by their indices; each agent is in one set."""

    members: tuple[tuple[int, ...], ...]

    @property
    def is_one(self) -> bool:
        """Whether all agents share their parameters; then there is no axis of sets anywhere."""
        return len(self.members) == 1

    def split(self, tree: PyTree, axis: int) -> list[PyTree]:
        """Return of what all agents have that of each set; `axis` is that of the agents."""
        if self.is_one:
            return [tree]
        columns = map(jnp.asarray, self.members)
        return [jax.tree.map(lambda x, of=of: x.take(of, axis), tree) for of in columns]

    def join(self, parts: Sequence[PyTree], axis: int) -> PyTree:
        """Return what all agents have from that of each set, the reverse of `split`."""
        if self.is_one:
            return parts[0]
        places = jnp.argsort(jnp.asarray([agent for agents in self.members for agent in agents]))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs, axis).take(places, axis), *parts)

    def timesteps(self, timestep: TimeStep) -> list[TimeStep]:
        """Return the time-step of each set's agents; all observations must have an axis of agents."""
        fields = ("observation", "reward", "discount", "action_mask", "alive")
        of_agents = {name: getattr(timestep, name) for name in fields}
        return [timestep._replace(**part) for part in self.split(of_agents, timestep.last.ndim)]

    def each(self, tree: PyTree) -> Sequence[PyTree]:
        """Return the part of each set of what is kept for each of them, such as parameters."""
        return (tree,) if self.is_one else tree

    def all(self, parts: Iterable[PyTree]) -> PyTree:
        """Return what is kept for each set, the reverse of `each`."""
        parts = tuple(parts)
        return parts[0] if self.is_one else parts

    def named_parts(self, saved: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """Return of saved arrays, by name, those of each set.

        Raises:
          ShoalError: they are of another number of sets.
        """
        if self.is_one:
            return [saved]
        numbers = [str(k) for k in range(len(self.members))]
        prefixes = {name.split("/", 1)[0] for name in saved}
        if prefixes != set(numbers):
            raise ShoalError(
                f"parameters of {len(numbers)} sets of agents cannot be taken over from a run that has "
                f"{len(prefixes) if all(x.isdigit() for x in prefixes) else 1}; parameters='shared' takes over those "
                "of any number of agents."
            )
        return [
            {name.removeprefix(f"{k}/"): x for name, x in saved.items() if name.startswith(f"{k}/")}
            for k in numbers
        ]

    def keys(self, key: Array) -> list[Array]:
        """Return a key for each set."""
        return [key] if self.is_one else [jax.random.fold_in(key, k) for k in range(len(self.members))]


def over_agents(
    make: Callable[[EnvSpec], Algorithm], view: View, sets: Sets, *, joint: bool = False
) -> Algorithm:
    """Make an algorithm for several agents of one for a single agent.

    Args:
      make: (spec of one agent) -> the algorithm for one agent.
      view: what the agents and their critics are shown.
      sets: the agents that share parameters. What an algorithm computes over its batch, such as the moments of
        advantages, is computed over the agents of a set.
      joint: whether the algorithm is given the agents of a world along an axis of their own, [N, A]. Its `init` is then
        given the shape (N, A) in place of N.
    """
    algorithm = make(view.spec_of_agent)
    sizes = [len(agents) for agents in sets.members]
    take_over: Any = algorithm.inherit

    def fold(tree: PyTree) -> PyTree:
        return tree if joint else streams.fold(tree)

    def unfold(tree: PyTree, size: int) -> PyTree:
        return tree if joint else streams.unfold(tree, size)

    def init(key: Array, num_envs: int) -> Learner:
        learners = [
            algorithm.init(own_key, (num_envs, size) if joint else num_envs * size)
            for own_key, size in zip(sets.keys(key), sizes, strict=True)
        ]
        return _joined(learners)

    def memory(batch_shape: tuple[int, ...]) -> PyTree:
        shapes = [(*batch_shape, size) for size in sizes]
        memories = tuple(algorithm.memory(shape) for shape in shapes)
        if not jax.tree.leaves(memories):
            return ()
        return Memory(memories, jnp.zeros((*batch_shape, sum(sizes)), bool))

    def policy(learner: Learner, clock: Clock) -> PyTree:
        return sets.all(algorithm.policy(part, clock) for part in _split(learner))

    def act(
        policy: PyTree, memory: PyTree, timestep: TimeStep, key: Array, *, greedy: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        memories, absents = _parts(memory)
        results = []
        arguments = (sets.each(policy), memories, absents, sets.timesteps(view.of_actors(timestep)))
        for part, own, absent, timesteps, own_key in zip(*arguments, sets.keys(key), strict=True):
            of_streams = fold(streams.as_streams(timesteps, absent))
            results.append(algorithm.act(part, fold(own), of_streams, own_key, greedy=greedy))
        unfolded = [unfold(result, size) for result, size in zip(results, sizes, strict=True)]
        memories, actions, extras = zip(*unfolded, strict=True)
        after = Memory(memories, ~streams.alive_of(timestep)) if jax.tree.leaves(memories) else ()
        return after, sets.join(actions, 1), extras

    def update(
        learner: Learner, trajectory: Trajectory, keys: Keys, clock: Clock
    ) -> tuple[Learner, Metrics, Checks]:
        memories, absents = _parts(trajectory.memory)
        timesteps = sets.timesteps(view.of_critics(trajectory.timesteps))
        actions = sets.split(trajectory.actions, 2)
        own_keys = [Keys(*pair) for pair in zip(sets.keys(keys.shared), sets.keys(keys.local), strict=True)]
        learners, metrics, checks = [], [], []
        for k, part in enumerate(_split(learner)):
            own = Trajectory(timesteps[k], actions[k], trajectory.extras[k], memories[k])
            of_streams = streams.trajectory_of_streams(own, absents[k])
            of_streams = of_streams if joint else streams.fold_trajectory(of_streams)
            result = algorithm.update(part, of_streams, own_keys[k], clock)
            learners.append(result[0])
            metrics.append(result[1])
            checks.append(result[2] if len(result) == 3 else {})
        total: Any = metrics[0] if sets.is_one else jax.tree.map(lambda *xs: sum(xs), *metrics)
        found: Any = checks[0] if sets.is_one else jax.tree.map(lambda *xs: jnp.any(jnp.stack(xs)), *checks)
        return _joined(learners), total, found

    def inherit(learner: Learner, saved: Mapping[str, Array]) -> Learner:
        parts = sets.named_parts(saved)
        return _joined([take_over(*pair) for pair in zip(_split(learner), parts, strict=True)])

    def _split(learner: Learner) -> list[Learner]:
        shared, local = sets.each(learner.shared), sets.each(learner.local)
        return [Learner(x, fold(y)) for x, y in zip(shared, local, strict=True)]

    def _joined(learners: Sequence[Learner]) -> Learner:
        local = [unfold(x.local, size) for x, size in zip(learners, sizes, strict=True)]
        return Learner(sets.all(x.shared for x in learners), sets.all(local))

    def _parts(memory: PyTree) -> tuple[Sequence[PyTree], Sequence[Array | None]]:
        if not isinstance(memory, Memory):
            return ((),) * len(sizes), (None,) * len(sizes)
        return memory.sets, sets.split(memory.absent, 1)

    return Algorithm(init, memory, policy, act, update, inherit if algorithm.inherit else None)
