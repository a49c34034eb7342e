"""Wrappers: environments that change another one. Each is an environment itself, so that wrappers compose."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import LARGEST_INDEX
from shoal.envs.base import TimeStep, Wrapper, again, environment, parameter
from shoal.types import GLOBAL_STATE, OBSERVATION, PyTree, State
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space

STATE = "state"  # the entry that shows hidden numbers to the critic
STEP_COUNT = "step_count"


class BeginningWrapper(Wrapper):
    """A base of wrappers that change how an episode begins, by `_begin`, whichever way it is started."""

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start a new episode."""
        return self._begin(*self.env.reset(key))

    def again(self, state: State, key: jax.Array) -> tuple[State, TimeStep]:
        """Start a new episode of the same task."""
        return self._begin(*again(self.env, self.inner_state(state), key))

    def _begin(self, inner: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        raise NotImplementedError


class CountedState(NamedTuple):
    """The inner state, and the number of steps of the episode."""

    env: State
    steps: jax.Array


@environment
class TimeLimit(BeginningWrapper):
    """Truncate an episode after `max_steps` steps.

    The final time-step is `last` with discount 1, so that the value of the final state is bootstrapped. If
    the inner environment terminates on the same step, its discount of 0 stays. Of a limit and one inside it, also
    inside of other wrappers of this module, the smaller one is the limit of both; `make` takes a longer one.
    """

    max_steps: int = parameter(low=1, high=LARGEST_INDEX)

    def __post_init__(self) -> None:
        """Take the limit inside where it is smaller, and its place where nothing is between."""
        inner = self.env
        while isinstance(inner, Wrapper) and type(inner).__module__ == __name__:
            if isinstance(inner, TimeLimit):
                object.__setattr__(self, "max_steps", min(self.max_steps, inner.max_steps))
            inner = inner.env
        if type(self.env) is TimeLimit:
            object.__setattr__(self, "env", self.env.env)

    def inner_state(self, state: CountedState) -> State:
        """Return the inner environment's state."""
        return state.env

    def _begin(self, inner: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        return CountedState(inner, jnp.zeros((), jnp.int32)), timestep

    def step(self, state: CountedState, action: PyTree, key: jax.Array) -> tuple[CountedState, TimeStep]:
        """Make one step; the `max_steps`-th of an episode is its last."""
        inner, timestep = self.env.step(state.env, action, key)
        steps = state.steps + 1
        timestep = timestep._replace(last=timestep.last | (steps >= self.max_steps))
        return CountedState(inner, steps), timestep


@environment
class StepCount(BeginningWrapper):
    """Show the number of steps of the episode as one more entry of the observation, `step_count`.

    It is 0 at the first time-step, and multiplied by `scale`: by 1 / n it is the share of a limit of n steps. A
    dictionary gets the entry; any other observation becomes the entry `observation` beside it. Each of several agents
    is shown it.
    """

    scale: float = parameter(default=1.0)

    @property
    def observation_space(self) -> Dict:
        """The inner space and a number that is not bounded."""
        space = self.env.observation_space
        parts = dict(space.items()) if isinstance(space, Dict) else {OBSERVATION: space}
        return Dict(parts | {STEP_COUNT: Box(-np.inf, np.inf, ())})

    def inner_state(self, state: CountedState) -> State:
        """Return the inner environment's state."""
        return state.env

    def _begin(self, inner: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        return self._counted(inner, jnp.zeros((), jnp.int32), timestep)

    def step(self, state: CountedState, action: PyTree, key: jax.Array) -> tuple[CountedState, TimeStep]:
        """Make one step, and count it."""
        inner, timestep = self.env.step(state.env, action, key)
        return self._counted(inner, state.steps + 1, timestep)

    def _counted(self, inner: State, steps: jax.Array, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        shown = timestep.observation
        shown = shown if isinstance(self.env.observation_space, Dict) else {OBSERVATION: shown}
        of_agents = () if self.num_agents == 1 else (self.num_agents,)
        count = jnp.broadcast_to(steps * self.scale, of_agents).astype(jnp.float32)
        return CountedState(inner, steps), timestep._replace(observation={**shown, STEP_COUNT: count})


class FrameStackState(NamedTuple):
    """The inner state, and the last observations."""

    env: State
    frames: PyTree  # of the stacked observation's structure


@environment
class FrameStack(BeginningWrapper):
    """Show the last `frames` observations at once, on a new first axis, the oldest first.

    An observation of shape [...] becomes [frames, ...] (each entry of a dictionary by itself; for several
    agents the new axis comes after the agents' axis). At the start of an episode the first observation is
    repeated. The entry `global_state` has no axis of agents.

    Raises:
      ShoalError: when the space is read, if it holds a MultiDiscrete; no space describes a stack of these.
    """

    frames: int = parameter(low=1)

    @property
    def observation_space(self) -> Space:
        """The inner space with a new first axis; Discrete becomes MultiDiscrete."""
        return stacked_space(self.env.observation_space, self.frames)

    def _axis(self, path: tuple) -> int:
        """Return the axis of the frames of an entry of the observation."""
        is_global = bool(path) and path[0] == jax.tree_util.DictKey(GLOBAL_STATE)
        return 0 if self.num_agents == 1 or is_global else 1

    def inner_state(self, state: FrameStackState) -> State:
        """Return the inner environment's state."""
        return state.env

    def _begin(self, inner: State, timestep: TimeStep) -> tuple[FrameStackState, TimeStep]:
        frames = jax.tree_util.tree_map_with_path(
            lambda path, x: jnp.stack([x] * self.frames, self._axis(path)), timestep.observation
        )
        return FrameStackState(inner, frames), timestep._replace(observation=frames)

    def step(
        self, state: FrameStackState, action: PyTree, key: jax.Array
    ) -> tuple[FrameStackState, TimeStep]:
        """Make one step; the new observation replaces the oldest one."""

        def push(path: tuple, frames: jax.Array, newest: jax.Array) -> jax.Array:
            axis = self._axis(path)
            remaining = jax.lax.slice_in_dim(frames, 1, None, axis=axis)
            return jnp.concatenate([remaining, jnp.expand_dims(newest, axis)], axis)

        inner, timestep = self.env.step(state.env, action, key)
        frames = jax.tree_util.tree_map_with_path(push, state.frames, timestep.observation)
        return FrameStackState(inner, frames), timestep._replace(observation=frames)


class ObservationWrapper(BeginningWrapper):
    """A base of wrappers that show another observation; `_shown` makes it, of every time-step."""

    def _begin(self, inner: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        return inner, self._shown(timestep)

    def step(self, state: State, action: PyTree, key: jax.Array) -> tuple[State, TimeStep]:
        """Make one step."""
        state, timestep = self.env.step(state, action, key)
        return state, self._shown(timestep)

    def _shown(self, timestep: TimeStep) -> TimeStep:
        raise NotImplementedError


@environment
class Flatten(ObservationWrapper):
    """Show an observation of any space as one float32 vector.

    Discrete values become one-hot vectors, arrays are flattened, and the entries of a dictionary are joined
    in the order of their names. With several agents, the agents' axis stays.
    """

    @property
    def observation_space(self) -> Box:
        """A vector.

        Raises:
          ShoalError: some entries of the observation are for the critic only; a vector has no entries.
        """
        for whose, names in (("critic", self.env.critic_only), ("actor", self.env.actor_only)):
            if names:
                raise ShoalError(
                    f"Flatten makes one vector of the observation, of which {whose}_only={names} is for the {whose} "
                    "only; flatten the entries in the environment itself, or leave the wrapper out"
                )
        return flattened_space(self.env.observation_space)

    def _shown(self, timestep: TimeStep) -> TimeStep:
        def flatten_observation(observation: PyTree) -> jax.Array:
            return flatten(self.env.observation_space, observation)

        flatten_observation = flatten_observation if self.num_agents == 1 else jax.vmap(flatten_observation)
        return timestep._replace(observation=flatten_observation(timestep.observation))


@environment
class RewardScale(Wrapper):
    """Multiply rewards by `scale` and add `offset`; the first time-step of an episode keeps its reward of 0.

    Returns, scores too, are of these rewards; an algorithm's `reward_scale` scales rewards for learning only.
    An offset changes which policy is best where the length of an episode depends on it.
    """

    scale: float = parameter(default=1.0)
    offset: float = parameter(default=0.0)

    def step(self, state: State, action: PyTree, key: jax.Array) -> tuple[State, TimeStep]:
        """Make one step."""
        state, timestep = self.env.step(state, action, key)
        return state, timestep._replace(reward=timestep.reward * self.scale + self.offset)


@environment
class Hide(ObservationWrapper):
    """Remove entries from an observation that is a vector, so that the agent does not receive them.

    Attributes:
      critic_state: whether the critic is shown the whole vector. The observation is then a dictionary of
        "observation", the vector without the hidden entries, and "state", the whole one, for the critic only
        (asymmetric actor-critic, Pinto et al. 2018).
    Raises:
      ShoalError: when the space is read, if the observation is not a vector or has no such entry.
    """

    hidden: tuple[int, ...]
    critic_state: bool = False

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The whole vector, if the critic is shown it."""
        return (STATE,) if self.critic_state else ()

    @property
    def observation_space(self) -> Box | Dict:
        """The vector without the hidden entries, and also the whole one if the critic is shown it."""
        visible = self._visible_space
        return (
            Dict({OBSERVATION: visible, STATE: self.env.observation_space}) if self.critic_state else visible
        )

    @property
    def _visible_space(self) -> Box:
        space = self.env.observation_space
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ShoalError(f"hidden={self.hidden} needs an observation that is a vector, and it is {space}")
        visible = self._visible_indices(space.shape[0])
        return Box(space.low[visible], space.high[visible], dtype=space.dtype)

    def _visible_indices(self, size: int) -> np.ndarray:
        if not set(self.hidden) < set(range(size)):
            raise ShoalError(
                f"hidden={self.hidden} must be some of the entries 0 to {size - 1} of the observation, not all"
            )
        return np.setdiff1d(np.arange(size), self.hidden)

    def _shown(self, timestep: TimeStep) -> TimeStep:
        state = timestep.observation
        visible = state[..., self._visible_indices(state.shape[-1])]
        observation = {OBSERVATION: visible, STATE: state} if self.critic_state else visible
        return timestep._replace(observation=observation)


@environment
class Shown(Wrapper):
    """Name more entries of a dictionary of observations that only the actor, or only the critic, is shown."""

    of_actor: tuple[str, ...] = ()
    of_critic: tuple[str, ...] = ()

    @property
    def actor_only(self) -> tuple[str, ...]:
        """The entries of the observation that only the actor is shown."""
        return tuple(dict.fromkeys((*self.env.actor_only, *self.of_actor)))

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The entries of the observation that only a critic is shown."""
        return tuple(dict.fromkeys((*self.env.critic_only, *self.of_critic)))


def with_hidden_entries(
    constructor: Callable[..., Any], hidden: tuple[int, ...], description: str
) -> Callable[..., Hide]:
    """Make a constructor whose environments hide entries of their observations.

    It takes the same parameters, and `critic_state` of `Hide`. `description` becomes its documentation.
    """

    @functools.wraps(constructor, updated=())
    def make(*args: object, critic_state: bool = False, **parameters: object) -> Hide:
        return Hide(constructor(*args, **parameters), hidden, critic_state)

    inner = inspect.signature(constructor)
    own = inspect.Parameter("critic_state", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=bool)
    make.__signature__ = inner.replace(parameters=[*inner.parameters.values(), own])  # type: ignore[attr-defined]
    make.__annotations__ = {**make.__annotations__, "critic_state": bool}
    make.__doc__ = description
    make.environment_class = Hide  # type: ignore[attr-defined]  # see `shoal.envs.registry.names_of_class`
    return make


def stacked_space(space: Space, count: int) -> Space:
    """Return the space of `count` elements of a space, on a new first axis.

    Raises:
      ShoalError: the space holds a MultiDiscrete; no space describes a stack of these.
    """
    if isinstance(space, Dict):
        return Dict({name: stacked_space(part, count) for name, part in space.items()})
    if isinstance(space, Discrete):
        return MultiDiscrete([space.n] * count)
    if isinstance(space, MultiDiscrete):
        raise ShoalError(f"{space} cannot be stacked, since no space describes it; flatten it first")
    return Box(np.stack([space.low] * count), np.stack([space.high] * count), dtype=space.dtype)


def flattened_space(space: Space) -> Box:
    """Return the space of flattened elements."""
    if isinstance(space, Dict):
        parts = [flattened_space(part) for part in space.values()]
        return Box(
            np.concatenate([part.low for part in parts]), np.concatenate([part.high for part in parts])
        )
    if isinstance(space, Box):
        return Box(space.low.ravel(), space.high.ravel())
    return Box(0.0, 1.0, (space.n if isinstance(space, Discrete) else sum(space.nvec),))


def flatten(space: Space, element: PyTree) -> jax.Array:
    """Flatten an element of a space to one float32 vector; see `Flatten`."""
    if isinstance(space, Dict):
        return jnp.concatenate([flatten(part, element[name]) for name, part in space.items()])
    if isinstance(space, Discrete):
        return jax.nn.one_hot(element, space.n, dtype=jnp.float32)
    if isinstance(space, MultiDiscrete):
        parts = [jax.nn.one_hot(x, n, dtype=jnp.float32) for x, n in zip(element, space.nvec, strict=True)]
        return jnp.concatenate(parts)
    return jnp.ravel(element).astype(jnp.float32)
