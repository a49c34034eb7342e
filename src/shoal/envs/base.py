"""How an environment is written: the `environment` decorator, and the base of all wrappers."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

from shoal.errors import ShoalError
from shoal.spaces import Space
from shoal.trees import parameter, static, struct
from shoal.types import Environment, PyTree, State, TimeStep, restart, transition

__all__ = [
    "Environment",
    "TimeStep",
    "Wrapper",
    "again",
    "can_render",
    "environment",
    "frames_per_second",
    "parameter",
    "render",
    "restart",
    "static",
    "transition",
]

T = TypeVar("T")

REQUIRED = ("observation_space", "action_space", "reset", "step")
DEFAULTS: Mapping[str, Any] = {"num_agents": 1, "info_summaries": MappingProxyType({}), "critic_only": ()}


def _declares(cls: type, name: str) -> bool:
    """Whether a class has an attribute, or a field without a default, of that name."""
    return hasattr(cls, name) or any(name in vars(base).get("__annotations__", {}) for base in cls.__mro__)


@dataclass_transform(frozen_default=True)
def environment(cls: type[T]) -> type[T]:
    """Makes a class an environment: a frozen dataclass that is a pytree.

    Fields declared `float` (or `Array`, or another environment) are data: they can be traced, stacked
    and mapped over, and a new value compiles nothing anew. Fields of other types are static. Class
    attributes without an annotation, such as `observation_space`, are no fields. `num_agents` is 1,
    `info_summaries` and `critic_only` are empty where the class does not say.

    Raises:
      ShoalError: the class lacks a space, `reset` or `step`.
    """
    for name in REQUIRED:
        if not _declares(cls, name):
            raise ShoalError(f"the environment {cls.__name__} has no `{name}`, which every environment needs")
    for name, value in DEFAULTS.items():
        if not _declares(cls, name):
            setattr(cls, name, value)
    return struct(cls)


@struct
class Wrapper:
    """An environment made of another, which it holds as `env`; forwards all that it does not change."""

    env: Environment

    @property
    def observation_space(self) -> Space:
        """What an observation may be."""
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        """What an action may be."""
        return self.env.action_space

    @property
    def num_agents(self) -> int:
        """How many agents act in the world."""
        return self.env.num_agents

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The entries of the observation that only a critic is shown."""
        return getattr(self.env, "critic_only", ())

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """How each entry of `info` is summed up over an episode."""
        return self.env.info_summaries

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """A new episode: its state and its first time-step."""
        return self.env.reset(key)

    def step(self, state: State, action: PyTree, key: jax.Array) -> tuple[State, TimeStep]:
        """One step of the inner environment."""
        return self.env.step(state, action, key)

    def inner_state(self, state: State) -> State:
        """The inner environment's state in one of this; the same, unless the wrapper has a state of its own."""
        return state

    def render(self, state: State) -> Any:
        """The inner environment's picture; see the function `render`."""
        return render(self.env, self.inner_state(state))

    def again(self, state: State, key: jax.Array) -> tuple[State, TimeStep]:
        """A new episode of the task that a state is of; see the function `again`.

        Raises:
          ShoalError: the inner environment keeps tasks, and this wrapper's `reset` is its own but its `again` is
            not.
        """
        if type(self).reset is Wrapper.reset:
            return again(self.env, state, key)
        if keeps_task(self.env):
            raise ShoalError(
                f"{type(self).__name__} has a `reset` of its own but no `again(state, key)`, without which the "
                "next episode would be of another task"
            )
        return self.reset(key)


def keeps_task(env: Environment) -> bool:
    """Whether an environment draws a task in `reset` that its `again` keeps."""
    return keeps_task(env.env) if isinstance(env, Wrapper) else hasattr(env, "again")


def again(env: Environment, state: State, key: jax.Array) -> tuple[State, TimeStep]:
    """A new episode of the task that a state is of.

    Where a task is the environment's parameters alone, that is any new episode. An environment that draws
    something of the task in `reset`, such as one of many rulesets, has a method `again(state, key)` that
    keeps it.
    """
    return env.again(state, key) if hasattr(env, "again") else env.reset(key)


def can_render(env: Environment) -> bool:
    """Whether an environment draws pictures: it has a method `render(state)`, or is a wrapper of one that has."""
    if isinstance(env, Wrapper) and type(env).render is Wrapper.render:
        return can_render(env.env)
    return hasattr(env, "render")


def render(env: Environment, state: State) -> np.ndarray:
    """A picture of one environment's state, uint8 [height, width, 3].

    Made by the environment's method `render(state)`, which is given concrete values, outside of anything
    compiled, so that it may draw with whatever it likes. All pictures of an environment have one size.

    Raises:
      ShoalError: the environment has no such method, or what it returns is no picture.
    """
    if not can_render(env):
        raise ShoalError(
            f"{type(unwrapped(env)).__name__} cannot be drawn: it has no `render(state)`, which returns uint8 "
            "[height, width, 3]"
        )
    picture = np.asarray(env.render(state))  # type: ignore[attr-defined]
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
        raise ShoalError(
            f"{type(unwrapped(env)).__name__}.render returned {picture.dtype}{list(picture.shape)}; a picture is "
            "uint8[height, width, 3]"
        )
    return picture


def frames_per_second(env: Environment) -> float:
    """How fast an episode is shown: the attribute of that name of the environment or of one within it, else 10."""
    if isinstance(env, Wrapper) and not hasattr(env, "frames_per_second"):
        return frames_per_second(env.env)
    return getattr(env, "frames_per_second", 10)


def unwrapped(env: Environment) -> Environment:
    """The environment inside all wrappers."""
    return unwrapped(env.env) if isinstance(env, Wrapper) else env
