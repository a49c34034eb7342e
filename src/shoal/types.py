"""The data types of environments and algorithms: time-steps, trajectories, learners.

Time-step t holds what the agent receives at t: the observation o_t, and the reward and discount of the step
that led to it. A rollout of T steps has T+1 time-steps, numbered 0 to T, and T actions. Where `last` is True,
the next step ignores its action and returns a `first` time-step of a new episode, so the final observation of
every episode is an ordinary element of the trajectory.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from shoal.spaces import Space

EPISODE_ENDED = (
    "episode_ended"  # in the observations of a trial: 1 if the step that led here ended an episode
)

PyTree = Any
Array = jax.Array
State = PyTree


class TimeStep(NamedTuple):
    """The data that an agent receives at one step; see the module's docstring for the indices."""

    observation: PyTree  # o_t
    reward: Array  # r_t, for the step that led here; 0 on a first step
    discount: Array  # 0 exactly if the episode terminated here, else 1
    first: Array  # True: this observation begins an episode
    last: Array  # True: this observation ends one (terminated or truncated)
    action_mask: Array | None = None  # legal actions, where the environment has them
    alive: Array | None = None  # several agents: who takes part; None means all
    info: Mapping[str, Array] = {}  # metrics of the environment's own; same keys every step

    @property
    def terminated(self) -> Array:
        """True where the episode terminated: nothing follows this state."""
        return self.last & (self.discount == 0)

    @property
    def truncated(self) -> Array:
        """True where the episode was truncated: the state has a value, which is bootstrapped."""
        return self.last & (self.discount != 0)


def restart(
    observation: PyTree, *, action_mask: Array | None = None, info: Mapping[str, Array] | None = None
) -> TimeStep:
    """Make the first time-step of an episode: reward 0, discount 1."""
    return TimeStep(
        observation=observation,
        reward=jnp.zeros((), jnp.float32),
        discount=jnp.ones((), jnp.float32),
        first=jnp.asarray(True),
        last=jnp.asarray(False),
        action_mask=action_mask,
        info=dict(info or {}),
    )


def transition(
    observation: PyTree,
    reward: Array | float,
    *,
    terminated: Array | bool = False,
    truncated: Array | bool = False,
    action_mask: Array | None = None,
    info: Mapping[str, Array] | None = None,
) -> TimeStep:
    """Make the time-step after an action. If it ends both ways, termination has precedence (discount 0)."""
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    return TimeStep(
        observation=observation,
        reward=jnp.asarray(reward, jnp.float32),
        discount=1.0 - terminated.astype(jnp.float32),
        first=jnp.asarray(False),
        last=terminated | truncated,
        action_mask=action_mask,
        info=dict(info or {}),
    )


class Environment(Protocol):
    """One environment (for several agents, one world): no batch axis, no auto-reset, no hidden state.

    An implementation is a frozen dataclass made by `shoal.envs.environment`: its numeric fields are
    its parameters (data that can be stacked and mapped over), its sizes are static.
    """

    @property
    def observation_space(self) -> Space:
        """The space of observations."""
        ...

    @property
    def action_space(self) -> Space:
        """The space of actions."""
        ...

    @property
    def num_agents(self) -> int:
        """The number of agents; 1 means that there is no agent axis."""
        ...

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction over an episode of each entry of `info`: "last", "sum", "mean" or "max"."""
        ...

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode and return its state and first time-step."""
        ...

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step; undefined after a `last` time-step (the batch resets there instead)."""
        ...


class EnvSpec(NamedTuple):
    """The properties of an environment that an algorithm needs; static."""

    observation_space: Space
    action_space: Space
    num_agents: int = 1


def spec_of(env: Environment) -> EnvSpec:
    """Return an environment's spec."""
    return EnvSpec(env.observation_space, env.action_space, env.num_agents)


class Learner(NamedTuple):
    """The trained state of an algorithm. A mesh can place both parts without looking inside."""

    shared: PyTree  # parameters, optimiser, normalisers: the same on every device
    local: PyTree  # a leading environment axis: running returns, replay


Policy = PyTree  # only what acting needs; this is kept as "best"
Memory = PyTree  # the recurrent carry and the previous action; () if the policy has none


class Trajectory(NamedTuple):
    """A rollout of T steps of N environments, time-major."""

    timesteps: TimeStep  # [T+1, N, ...]
    actions: PyTree  # [T, N, ...], as the environment was given them
    extras: PyTree  # [T, N, ...], the algorithm's own
    memory: Memory  # [N, ...], from before the first step


class Mean(NamedTuple):
    """A weighted mean that is not divided yet, so that means of chunks and devices can be joined."""

    total: Array
    weight: Array

    @property
    def value(self) -> Array:
        """The mean; NaN if nothing was counted."""
        return self.total / self.weight


Metrics = Mapping[str, Mean]


class Algorithm(NamedTuple):
    """Pure functions over a pytree; knows nothing of devices, files, loops or logging."""

    init: Callable[..., Learner]  # (key, num_envs) -> Learner
    memory: Callable[..., Memory]  # (batch_shape) -> Memory
    policy: Callable[[Learner], Policy]
    act: Callable[..., tuple[Memory, PyTree, PyTree]]
    # act: (policy, memory, timestep, key, *, greedy) -> (Memory, Action, Extras)
    update: Callable[..., tuple[Learner, Metrics]]
    # update: (learner, trajectory, key, progress) -> (Learner, Metrics)
    inherit: Callable[..., Learner] | None = None
    # inherit: (learner, saved) -> Learner: a new learner with what another run had learned. `saved` maps the names
    # of the leaves of that run's `learner.shared` to arrays. None: the algorithm cannot start from another run.
