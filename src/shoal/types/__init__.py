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

from shoal.types.metrics import Mean as Mean
from shoal.types.metrics import Metrics as Metrics
from shoal.types.spaces import Dict, Space

EPISODE_ENDED = (
    "episode_ended"  # in the observations of a trial: 1 if the step that led here ended an episode
)

OBSERVATION = "observation"  # the entry of an agent's own observation, next to others
GLOBAL_STATE = "global_state"  # the entry with the world's state, without an axis of agents
TEAM_RETURNS = ("mean", "sum")  # how the returns of several agents add up
CLIPPING = (
    "clipped_mass",
    "clipped_low",
    "clipped_high",
)  # metrics of targets beyond the bounds of a distribution

PyTree = Any
Array = jax.Array
State = PyTree


class TimeStep(NamedTuple):
    """The data that an agent receives at one step; see the module's docstring for the indices.

    With several agents in a world, observation, reward, discount, action mask and `alive` have an axis of agents after
    the batch axes, and `first` and `last` are of the world. An observation's entry `global_state` has no such axis.
    """

    observation: PyTree  # o_t
    reward: Array  # r_t, for the step that led here; 0 on a first step
    discount: Array  # 0 exactly if the episode terminated here, else 1
    first: Array  # True: this observation begins an episode
    last: Array  # True: this observation ends one (terminated or truncated)
    action_mask: Array | None = None  # legal actions, where the environment has them
    alive: Array | None = None  # several agents: which take part, and act on this observation; None means all
    info: Mapping[str, Array] = {}  # metrics of the environment's own; same keys every step
    # Several agents: whose observation begins a new life here, after one that ended with the step that led here, while
    # the world goes on. None means nobody; an agent that was not alive at the step before begins in any case.
    restarted: Array | None = None

    @property
    def has_agents(self) -> bool:
        """Whether there is an axis of agents."""
        return self.reward.ndim > self.last.ndim

    @property
    def terminated(self) -> Array:
        """True where the episode terminated: nothing follows this state, for no agent of the world."""
        return self.last & ~self._goes_on

    @property
    def truncated(self) -> Array:
        """True where the episode was truncated: the state has a value, which is bootstrapped."""
        return self.last & self._goes_on

    @property
    def _goes_on(self) -> Array:
        """Whether a value follows, for any agent of the world."""
        return jnp.any(self.discount > 0, axis=-1) if self.has_agents else self.discount != 0


def restart(
    observation: PyTree,
    *,
    num_agents: int = 1,
    action_mask: Array | None = None,
    alive: Array | None = None,
    info: Mapping[str, Array] | None = None,
    restarted: Array | None = None,
) -> TimeStep:
    """Make the first time-step of an episode: reward 0, discount 1; of each agent, if there are several.

    Where `transition` is given `restarted`, this needs it too, False for all.
    """
    shape = () if num_agents == 1 else (num_agents,)
    return TimeStep(
        observation=observation,
        reward=jnp.zeros(shape, jnp.float32),
        discount=jnp.ones(shape, jnp.float32),
        first=jnp.asarray(True),
        last=jnp.asarray(False),
        action_mask=action_mask,
        alive=alive,
        info=dict(info or {}),
        restarted=restarted,
    )


def transition(
    observation: PyTree,
    reward: Array | float,
    *,
    terminated: Array | bool = False,
    truncated: Array | bool = False,
    action_mask: Array | None = None,
    alive: Array | None = None,
    info: Mapping[str, Array] | None = None,
    restarted: Array | None = None,
) -> TimeStep:
    """Make the time-step after an action. If it ends both ways, termination has precedence (discount 0).

    Args:
      reward: a number, or one for each of several agents, [A].
      terminated: whether nothing follows, for the world or for each agent, [A].
      truncated: whether the world was cut.
      alive: [A], the agents that take part from here on; one that terminates does not, whatever is given. It is needed,
        here and in `restart`, where an agent may end before its world does.
      restarted: [A], the agents that terminate with this step and whose observation is already that of a new life; they
        stay alive.
    Returns:
      the time-step; it is `last` if the world was cut or terminated, or no agent is left.
    """
    reward = jnp.asarray(reward, jnp.float32)
    terminated, truncated = jnp.asarray(terminated, bool), jnp.asarray(truncated, bool)
    if restarted is not None:
        terminated = terminated & ~restarted
    if not reward.ndim:
        ended, nobody_left = terminated, terminated
    elif alive is None:
        ended = jnp.broadcast_to(terminated, reward.shape)
        nobody_left = jnp.all(ended)
    else:
        alive = alive & ~terminated
        ended, nobody_left = ~alive, ~jnp.any(alive)
    ended = ended if restarted is None else ended | restarted
    return TimeStep(
        observation=observation,
        reward=reward,
        discount=1.0 - ended.astype(jnp.float32),
        first=jnp.asarray(False),
        last=nobody_left | truncated,
        action_mask=action_mask,
        alive=alive,
        info=dict(info or {}),
        restarted=restarted,
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
    def roles(self) -> tuple[int, ...]:
        """The role of each agent, a number from 0 on; () if all have the same."""
        ...

    @property
    def team_return(self) -> str:
        """The convention by which several agents' returns make the score: their "sum" or their "mean"."""
        ...

    @property
    def pays_absent(self) -> bool:
        """Whether rewards of agents that take no part are numbers that count in returns; in no loss. Usually False."""
        ...

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The entries of a dictionary of observations that only a critic is shown, while training; () for none."""
        ...

    @property
    def actor_only(self) -> tuple[str, ...]:
        """The entries of a dictionary of observations that the critic is not shown; () for none."""
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
    critic_only: tuple[str, ...] = ()  # entries of the observation that `act` is not given
    roles: tuple[int, ...] = ()  # of each agent; () if all have the same
    actor_only: tuple[str, ...] = ()  # entries of the observation that the critic is not given

    @property
    def of_actor(self) -> "EnvSpec":
        """The spec of the inputs of `act`: without the entries that are for the critic only."""
        return self._without(self.critic_only)

    @property
    def of_critic(self) -> "EnvSpec":
        """The spec of a critic's inputs: without the entries that are for the actor only."""
        return self._without(self.actor_only)

    def _without(self, names: tuple[str, ...]) -> "EnvSpec":
        if not names or not isinstance(self.observation_space, Dict):
            return self
        entries = without_entries(dict(self.observation_space.items()), names)
        return self._replace(observation_space=Dict(entries), critic_only=(), actor_only=())


def spec_of(env: Environment) -> EnvSpec:
    """Return an environment's spec."""
    return EnvSpec(
        env.observation_space,
        env.action_space,
        env.num_agents,
        getattr(env, "critic_only", ()),
        getattr(env, "roles", ()),
        getattr(env, "actor_only", ()),
    )


def without_entries(observation: PyTree, names: tuple[str, ...]) -> PyTree:
    """Remove the entries of these names from a dictionary of observations; others stay as they are."""
    if not names or not isinstance(observation, Mapping):
        return observation
    return {name: entry for name, entry in observation.items() if name not in names}


def for_actor(timestep: TimeStep, spec: EnvSpec) -> TimeStep:
    """Return the time-step that `act` is given: without the observations that only the critic is shown."""
    if not spec.critic_only:
        return timestep
    return timestep._replace(observation=without_entries(timestep.observation, spec.critic_only))


class Learner(NamedTuple):
    """The trained state of an algorithm. A mesh can place both parts without looking inside."""

    shared: PyTree  # parameters, optimiser, normalisers: the same on every device
    local: PyTree  # a leading environment axis: running returns, replay


Policy = PyTree  # only what acting needs; this is kept as "best"
Memory = PyTree  # such as the recurrent carry and the previous action; no arrays if the policy has none


class Trajectory(NamedTuple):
    """A rollout of T steps of N environments, time-major."""

    timesteps: TimeStep  # [T+1, N, ...]
    actions: PyTree  # [T, N, ...], as the environment was given them
    extras: PyTree  # [T, N, ...], the algorithm's own
    memory: Memory  # [N, ...], from before the first step


class Transitions(NamedTuple):
    """Weight, discount and end of the T transitions of a trajectory, [T, N] each: from time-step t to t+1."""

    weight: Array  # 1, and 0 where there is no transition: from a last to a first time-step
    discount: Array  # 0 exactly where the episode terminated, else 1
    terminated: Array  # whether the episode ended with it for good
    truncated: Array  # whether the episode was truncated with it, so that its end has a value


def transitions(trajectory: Trajectory) -> Transitions:
    """Read the weight and the end of each transition of a trajectory.

    What has weight 0 may hold anything, NaN included: replace it by `where`, and multiply nothing by 0.
    """
    after = jax.tree.map(lambda x: x[1:], trajectory.timesteps)
    is_transition = ~trajectory.timesteps.last[:-1]
    return Transitions(
        weight=jnp.where(trajectory.timesteps.last[:-1], 0.0, 1.0),
        discount=after.discount,
        terminated=is_transition & after.terminated,
        truncated=is_transition & after.truncated,
    )


class Clock(NamedTuple):
    """The progress of a member's training before the iteration's rollout; data, scalars.

    A run that is extended continues its counts, and its progress refers to the new total. Fine-tuning from another
    run starts at 0.
    """

    updates: Array  # made so far, int32: count with this one
    steps: Array  # environment steps so far, float32, which is exact up to 16.7 million: for schedules
    progress: Array  # from 0 to 1 over the run's total, float32

    @classmethod
    def zero(cls) -> "Clock":
        """Return the clock before the first update, and wherever nothing is trained."""
        return cls(jnp.zeros((), jnp.int32), jnp.zeros(()), jnp.zeros(()))


class Keys(NamedTuple):
    """Randomness of one update."""

    shared: Array  # the same for all groups of environments: noise in parameters, dropout
    local: Array  # another one for each group: shuffling, sampling from a replay

    @classmethod
    def of_one_group(cls, key: Array) -> "Keys":
        """Use one key for both, where there is one group of environments."""
        return cls(key, key)


# By the name of a quantity, whether it is not finite, scalars: the run then stops.
Checks = Mapping[str, Array]


class Algorithm(NamedTuple):
    """Pure functions over a pytree; knows nothing of devices, files, loops or logging."""

    init: Callable[..., Learner]  # (key, num_envs) -> Learner
    memory: Callable[..., Memory]  # (batch_shape) -> Memory
    policy: Callable[[Learner, Clock], Policy]
    act: Callable[..., tuple[Memory, PyTree, PyTree]]
    # act: (policy, memory, timestep, key, *, greedy) -> (Memory, Action, Extras)
    update: Callable[..., tuple[Learner, Metrics] | tuple[Learner, Metrics, Checks]]
    # update: (learner, trajectory, keys, clock) -> (Learner, Metrics), or with Checks as a third
    inherit: Callable[..., Learner] | None = None
    # inherit: (learner, saved) -> Learner: a new learner with another run's parameters. `saved` maps the names
    # of the leaves of that run's `learner.shared` to arrays. None: the algorithm cannot start from another run.
    behaviour: Callable[[Learner, Clock], Policy] | None = None
    # behaviour: (learner, clock) -> Policy: what acts while transitions are collected, where that is not the policy
    # that is evaluated and saved, such as opponents of the past, or an epsilon-greedy policy of which only the greedy
    # part is the result. `act` is given either. None: it is `policy`.
    warm_up: Callable[[Learner, Trajectory], Learner] | None = None
    # warm_up: (learner, trajectory) -> Learner: a learner that has seen a rollout of random actions, before training;
    # the trajectory has no extras and no memory. None: nothing precedes training.
    warm_up_steps: int = 0  # environment steps of these rollouts, over all environments together
    without_replay: Callable[[Learner], Learner] | None = None
    # without_replay: (learner) -> Learner: the same learner as if nothing had been collected yet, with empty rings and
    # their counter 0, by which a run begins that resumes from a checkpoint without its replay. All of `learner.local`
    # counts as the replay. None: the algorithm keeps none.


class AlgorithmConfig(Protocol):
    """The settings of an algorithm: a struct, whose floats are data."""

    def algorithm(self, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
        """Return the functions for environments of a spec; `axis` names what values are reduced over, if anything."""
        ...
