"""Independent learners (de Witt et al. 2020, arXiv:2011.09533): a single-agent algorithm for each of several agents.

Each agent of a world is a stream (`types.agent_axis`). A set of agents that share parameters is trained as one agent
in that many more environments; agents or roles with parameters of their own are several such sets. An algorithm whose
network is shown all agents of a world at once keeps their axis: the batch of one agent, [N], is then [N, A].
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos.agents.agent_views import View
from shoal.base.errors import ShoalError
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
    agent_axis,
)
from shoal.types.metrics import joined


class AgentMemories(NamedTuple):
    """The memories of all agents, [N, A, ...]."""

    sets: tuple[PyTree, ...]  # the memory of each set's agents
    absent: Array | None  # agents absent at the previous step, [N, A]; None where no agent has a memory

    @property
    def of_greedy(self) -> "AgentMemories":
        """What greedy actions read."""
        sets = tuple(getattr(memory, "of_greedy", memory) for memory in self.sets)
        return AgentMemories(sets, self.absent if jax.tree.leaves(sets) else None)


class Sets(NamedTuple):
    """The agents that share parameters, by their indices; each agent is in one set."""

    members: tuple[tuple[int, ...], ...]

    @property
    def is_one(self) -> bool:
        """Whether all agents share their parameters; then there is no axis of sets anywhere."""
        return len(self.members) == 1

    @property
    def sizes(self) -> list[int]:
        """The number of agents of each set."""
        return [len(agents) for agents in self.members]

    def split(self, tree: PyTree, axis: int) -> list[PyTree]:
        """Split arrays with an agent axis into one per parameter set."""
        if self.is_one:
            return [tree]
        columns = map(jnp.asarray, self.members)
        return [jax.tree.map(lambda x, of=of: x.take(of, axis), tree) for of in columns]

    def join(self, parts: Sequence[PyTree], axis: int) -> PyTree:
        """Join the arrays of all parameter sets along the agent axis, the reverse of `split`."""
        if self.is_one:
            return parts[0]
        places = jnp.argsort(jnp.asarray([agent for agents in self.members for agent in agents]))
        return jax.tree.map(lambda *xs: jnp.concatenate(xs, axis).take(places, axis), *parts)

    def timesteps(self, timestep: TimeStep) -> list[TimeStep]:
        """Return the time-step of each set's agents; all observations must have an axis of agents."""
        fields = ("observation", "reward", "discount", "action_mask", "alive", "restarted")
        of_agents = {name: getattr(timestep, name) for name in fields}
        return [timestep._replace(**part) for part in self.split(of_agents, timestep.last.ndim)]

    def each(self, tree: PyTree) -> Sequence[PyTree]:
        """Return the values that are stored per set, such as parameters: one for each set."""
        return (tree,) if self.is_one else tree

    def all(self, parts: Iterable[PyTree]) -> PyTree:
        """Join one value for each set in the form in which they are stored, the reverse of `each`."""
        parts = tuple(parts)
        return parts[0] if self.is_one else parts

    def named_parts(self, saved: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """Split saved arrays, by name, into those of each parameter set.

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
    make: Callable[[EnvSpec, int], Algorithm],
    view: View,
    sets: Sets,
    *,
    joint: bool = False,
    learns: Callable[[int], np.ndarray] | None = None,
) -> Algorithm:
    """Make an algorithm for several agents from one for a single agent.

    Args:
      make: is given the spec of one agent, and the number of agents of a set, which are its streams in each world.
      sets: the agents that share parameters. What an algorithm computes over its batch, such as the moments of
        advantages, is computed over the agents of a set.
      joint: whether the algorithm is given the agents of a world along an axis of their own, [N, A]. Its `init` is then
        given the shape (N, A) in place of N.
      learns: (N) -> which agents of which worlds are learned from, [N, A]; None for all.
    """
    algorithms = tuple(make(view.spec_of_agent, size) for size in sets.sizes)
    algorithm, parts = algorithms[0], _OfAgents(algorithms, view, sets, joint, learns)
    return Algorithm(
        parts.init,
        parts.memory,
        parts.policy,
        parts.act,
        parts.update,
        inherit=parts.inherit if algorithm.inherit else None,
        behaviour=parts.behaviour if algorithm.behaviour else None,
        warm_up=parts.warm_up if algorithm.warm_up else None,
        warm_up_steps=algorithm.warm_up_steps,
        without_replay=parts.without_replay if algorithm.without_replay else None,
    )


class _OfAgents(NamedTuple):
    """The functions of the algorithm for several agents; the fields are the arguments of `over_agents`."""

    algorithms: tuple[Algorithm, ...]  # for one agent, of each set; they differ in `init` and `update` only
    view: View
    sets: Sets
    joint: bool
    learns: Callable[[int], np.ndarray] | None

    @property
    def algorithm(self) -> Algorithm:
        return self.algorithms[0]

    def init(self, key: Array, num_envs: int) -> Learner:
        learners = [
            algorithm.init(own_key, (num_envs, size) if self.joint else num_envs * size)
            for algorithm, own_key, size in zip(
                self.algorithms, self.sets.keys(key), self.sets.sizes, strict=True
            )
        ]
        return self._joined(learners)

    def memory(self, batch_shape: tuple[int, ...]) -> PyTree:
        shapes = [(*batch_shape, size) for size in self.sets.sizes]
        memories = tuple(self.algorithm.memory(shape) for shape in shapes)
        has_memory = bool(jax.tree.leaves(memories))
        return AgentMemories(
            memories, jnp.zeros((*batch_shape, sum(self.sets.sizes)), bool) if has_memory else None
        )

    def policy(self, learner: Learner, clock: Clock) -> PyTree:
        return self.sets.all(self.algorithm.policy(part, clock) for part in self._split(learner))

    def behaviour(self, learner: Learner, clock: Clock) -> PyTree:
        behave: Any = self.algorithm.behaviour
        return self.sets.all(behave(part, clock) for part in self._split(learner))

    def act(
        self, policy: PyTree, memory: PyTree, timestep: TimeStep, key: Array, *, greedy: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        memories, absents = self._parts(memory)
        timesteps = self.sets.timesteps(self.view.of_actors(timestep))
        arguments = self.sets.each(policy), memories, absents, timesteps, self.sets.keys(key), self.sets.sizes
        results = []
        for part, memory_of_set, absent, steps, set_key, size in zip(*arguments, strict=True):
            of_streams = self._fold(agent_axis.as_streams(steps, absent))
            result = self.algorithm.act(part, self._fold(memory_of_set), of_streams, set_key, greedy=greedy)
            results.append(self._unfold(result, size))
        memories, actions, extras = zip(*results, strict=True)
        absent = None if memory.absent is None else ~agent_axis.alive_of(timestep)
        return AgentMemories(memories, absent), self.sets.join(actions, 1), extras

    def update(
        self, learner: Learner, trajectory: Trajectory, keys: Keys, clock: Clock
    ) -> tuple[Learner, Metrics, Checks]:
        set_keys = map(Keys, self.sets.keys(keys.shared), self.sets.keys(keys.local))
        learners, metrics, checks = [], [], []
        for algorithm, part, of_streams, key in zip(
            self.algorithms, self._split(learner), self._trajectories(trajectory), set_keys, strict=True
        ):
            result = algorithm.update(part, of_streams, key, clock)
            learners.append(result[0])
            metrics.append(result[1])
            checks.append(result[2] if len(result) == 3 else {})
        is_one = self.sets.is_one
        total = functools.reduce(joined, metrics)  # over the agents of all sets
        not_finite: Any = checks[0] if is_one else jax.tree.map(lambda *xs: jnp.any(jnp.stack(xs)), *checks)
        return self._joined(learners), total, not_finite

    def inherit(self, learner: Learner, saved: Mapping[str, Array]) -> Learner:
        take_over: Any = self.algorithm.inherit
        pairs = zip(self._split(learner), self.sets.named_parts(saved), strict=True)
        return self._joined([take_over(*pair) for pair in pairs])

    def warm_up(self, learner: Learner, trajectory: Trajectory) -> Learner:
        see: Any = self.algorithm.warm_up
        empty = ((),) * len(self.sets.sizes)  # of random actions
        trajectory = trajectory._replace(extras=empty, memory=AgentMemories(empty, None))
        pairs = zip(self._split(learner), self._trajectories(trajectory), strict=True)
        return self._joined([see(*pair) for pair in pairs])

    def without_replay(self, learner: Learner) -> Learner:
        empty: Any = self.algorithm.without_replay
        return self._joined([empty(part) for part in self._split(learner)])

    def _trajectories(self, trajectory: Trajectory) -> list[Trajectory]:
        """Return the trajectory of each set's agents, as streams."""
        trajectory = trajectory._replace(timesteps=self.view.of_critics(trajectory.timesteps))
        if self.learns is not None:
            learns = jnp.asarray(self.learns(trajectory.timesteps.last.shape[1]))
            trajectory = _without_others(trajectory, learns)
        memories, absents = self._parts(trajectory.memory)
        timesteps, actions = self.sets.timesteps(trajectory.timesteps), self.sets.split(trajectory.actions, 2)
        of_sets = map(Trajectory, timesteps, actions, trajectory.extras, memories)
        of_streams = [agent_axis.trajectory_of_streams(*pair) for pair in zip(of_sets, absents, strict=True)]
        return of_streams if self.joint else [agent_axis.fold_trajectory(x) for x in of_streams]

    def _fold(self, tree: PyTree) -> PyTree:
        return tree if self.joint else agent_axis.fold(tree)

    def _unfold(self, tree: PyTree, size: int) -> PyTree:
        return tree if self.joint else agent_axis.unfold(tree, size)

    def _split(self, learner: Learner) -> list[Learner]:
        shared, local = self.sets.each(learner.shared), self.sets.each(learner.local)
        return [Learner(x, self._fold(y)) for x, y in zip(shared, local, strict=True)]

    def _joined(self, learners: Sequence[Learner]) -> Learner:
        local = [self._unfold(x.local, size) for x, size in zip(learners, self.sets.sizes, strict=True)]
        return Learner(self.sets.all(x.shared for x in learners), self.sets.all(local))

    def _parts(self, memory: AgentMemories) -> tuple[Sequence[PyTree], Sequence[Array | None]]:
        return memory.sets, self.sets.split(memory.absent, 1)


def _without_others(trajectory: Trajectory, learns: Array) -> Trajectory:
    """Mark agents that are not learned from as absent at every step, after critics were shown all of them.

    Their discount is 0, so that no value is bootstrapped from their observations. `learns` is [N, A].
    """
    timesteps, memory = trajectory.timesteps, trajectory.memory
    alive = agent_axis.alive_of(timesteps) & learns
    discount = jnp.where(learns, timesteps.discount, 0.0)
    if memory.absent is not None:
        memory = memory._replace(absent=memory.absent | ~learns)
    return trajectory._replace(timesteps=timesteps._replace(alive=alive, discount=discount), memory=memory)
