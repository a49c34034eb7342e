"""The `environment` decorator, the base class of all wrappers, and functions that every environment has."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.struct import parameter, static, struct
from shoal.envs.geometry import Geometry
from shoal.types import Environment, PyTree, State, TimeStep, restart, transition
from shoal.types.spaces import Space

# What environments and wrappers are written with, and other modules define.
__all__ = ["Environment", "TimeStep", "parameter", "restart", "static", "transition"]

T = TypeVar("T")

REQUIRED = ("observation_space", "action_space", "reset", "step")
DEFAULTS: Mapping[str, object] = {
    **{"num_agents": 1, "roles": (), "team_return": "sum", "pays_absent": False},
    **{"info_summaries": MappingProxyType({}), "critic_only": (), "actor_only": ()},
}


def _names_of(cls: type) -> set[str]:
    """Return the names of a class's attributes, and of its fields without a default."""
    return set(dir(cls)).union(*[vars(base).get("__annotations__", ()) for base in cls.__mro__])


@dataclass_transform(frozen_default=True)
def environment(cls: type[T]) -> type[T]:
    """Make a class an environment: a frozen dataclass that is a pytree.

    Fields declared `float` (or `Array`, or another environment) are data: they can be traced, stacked and
    mapped over, and a new value does not compile anything again. Fields of other types are static. Class
    attributes without an annotation, such as `observation_space`, are not fields. If the class does not
    define them, `num_agents` is 1, `team_return` is "sum", `pays_absent` is False, and `roles`, `info_summaries`,
    `critic_only` and `actor_only` are empty.

    Raises:
      ShoalError: the class lacks a space, `reset` or `step`.
    """
    declared = _names_of(cls)
    for name in REQUIRED:
        if name not in declared:
            raise ShoalError(f"the environment {cls.__name__} has no `{name}`, which every environment needs")
    for name, value in DEFAULTS.items():
        if name not in declared:
            setattr(cls, name, value)
    return struct(cls)


@struct
class Wrapper:
    """An environment that holds another one as `env` and forwards everything that it does not change."""

    env: Environment

    @property
    def observation_space(self) -> Space:
        """The space of observations."""
        return self.env.observation_space

    @property
    def action_space(self) -> Space:
        """The space of actions."""
        return self.env.action_space

    @property
    def num_agents(self) -> int:
        """The number of agents that act in the environment."""
        return self.env.num_agents

    @property
    def roles(self) -> tuple[int, ...]:
        """The role of each agent."""
        return self.env.roles

    @property
    def team_return(self) -> str:
        """The convention by which the agents' returns make the team's, "sum" or "mean"."""
        return self.env.team_return

    @property
    def pays_absent(self) -> bool:
        """Whether the rewards of agents that take no part count in returns too."""
        return self.env.pays_absent

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The entries of the observation that only a critic is shown."""
        return self.env.critic_only

    @property
    def actor_only(self) -> tuple[str, ...]:
        """The entries of the observation that only the actor is shown."""
        return self.env.actor_only

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction over an episode of each entry of `info`, by name."""
        return self.env.info_summaries

    def reset(self, key: jax.Array) -> tuple[State, TimeStep]:
        """Start a new episode and return its state and first time-step."""
        return self.env.reset(key)

    def step(self, state: State, action: PyTree, key: jax.Array) -> tuple[State, TimeStep]:
        """Make one step of the inner environment."""
        return self.env.step(state, action, key)

    def inner_state(self, state: State) -> State:
        """Return the inner environment's state; the same state, unless the wrapper has a state of its own."""
        return state

    def render(self, state: State, past: Sequence[State] = ()) -> np.ndarray:
        """Draw the inner environment's state; see the function `render`."""
        return render(self.env, self.inner_state(state), [self.inner_state(x) for x in past])

    def geometry(self, state: State) -> Geometry:
        """Return the inner environment's points and lines; see the function `geometry`."""
        return geometry(self.env, self.inner_state(state))

    def explain_fault(self, state: State) -> str | None:
        """Explain the inner environment's state; see the function `explain_fault`."""
        return explain_fault(self.env, self.inner_state(state))

    def again(self, state: State, key: jax.Array) -> tuple[State, TimeStep]:
        """Start a new episode of the task that a state belongs to; see the function `again`.

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
    """Report whether an environment draws a task in `reset` that its `again` keeps."""
    return keeps_task(env.env) if isinstance(env, Wrapper) else hasattr(env, "again")


def again(env: Environment, state: State, key: jax.Array) -> tuple[State, TimeStep]:
    """Start a new episode of the task that a state belongs to.

    If the environment's parameters alone define the task, this is any new episode. An environment that draws
    a part of the task in `reset`, such as one of many rulesets, has a method `again(state, key)` that keeps
    it.
    """
    return env.again(state, key) if hasattr(env, "again") else env.reset(key)


def _owner_of(env: Environment, method: str) -> Environment | None:
    """Return the environment whose method a call reaches, itself or inside its wrappers; None if none has it."""
    # A wrapper has every method of `Wrapper`; one that it does not replace is only passed on.
    if isinstance(env, Wrapper) and getattr(type(env), method) is getattr(Wrapper, method):
        return _owner_of(env.env, method)
    return env if hasattr(env, method) else None


def can_render(env: Environment) -> bool:
    """Report whether an environment or the one inside its wrappers has a method `render(state)`."""
    return _owner_of(env, "render") is not None


def draws_past(env: Environment) -> bool:
    """Report whether an environment's method is `render(state, past)`, which it says by `draws_past = True`."""
    return getattr(_owner_of(env, "render"), "draws_past", False)


def render(env: Environment, state: State, past: Sequence[State] = ()) -> np.ndarray:
    """Draw one environment's state as an image, uint8 [height, width, 3].

    The environment's method `render(state)` makes the image. It is called outside of compiled code with
    concrete values, so it may use any library. All images of an environment have the same size.

    Args:
      past: the earlier states of the episode, the oldest first, for an environment that draws them (`draws_past`).
    Raises:
      ShoalError: the environment has no such method, or it does not return an image.
    """
    if not can_render(env):
        raise ShoalError(
            f"{type(unwrapped(env)).__name__} cannot be drawn: it has no `render(state)`, which returns uint8 "
            "[height, width, 3]"
        )
    drawn = env.render(state, past) if past and draws_past(env) else env.render(state)  # type: ignore[attr-defined]
    picture = np.asarray(drawn)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[-1] != 3:
        raise ShoalError(
            f"{type(unwrapped(env)).__name__}.render returned {picture.dtype}{list(picture.shape)}; a picture is "
            "uint8[height, width, 3]"
        )
    return picture


def has_geometry(env: Environment) -> bool:
    """Report whether an environment or the one inside its wrappers has a method `geometry(state)`."""
    return _owner_of(env, "geometry") is not None


def geometry(env: Environment, state: State) -> Geometry:
    """Return points and lines of one environment's state, which its method `geometry(state)` makes of concrete values.

    Raises:
      ShoalError: the environment has no such method.
    """
    if not has_geometry(env):
        raise ShoalError(f"{type(unwrapped(env)).__name__} has no `geometry(state)`")
    return env.geometry(state)  # type: ignore[attr-defined]


def can_explain_faults(env: Environment) -> bool:
    """Report whether an environment or the one inside its wrappers has a method `explain_fault(state)`.

    Its attribute `explains_faults`, if there is one, says whether the method has anything to explain: only then are
    states kept for it.
    """
    owner = _owner_of(env, "explain_fault")
    return owner is not None and getattr(owner, "explains_faults", True)


def explain_fault(env: Environment, state: State) -> str | None:
    """Say why numbers of one environment's state are not finite, in a sentence without its full stop.

    The environment's method `explain_fault(state)` does so, or returns None where it does not know. It is called
    outside of compiled code with concrete values, once a number was found that is not finite. None if the environment
    has no such method.
    """
    return env.explain_fault(state) if can_explain_faults(env) else None  # type: ignore[attr-defined]


def counted_reward(env: Environment, reward: jax.Array, alive: jax.Array | None) -> jax.Array:
    """Return the rewards of a step that count in returns: 0 for agents that took no part, whatever theirs are.

    Where the environment declares `pays_absent`, theirs count as they are.

    Args:
      alive: which agents took part in it, as the time-step before it says; None for all.
    """
    if alive is None or env.pays_absent:
        return reward
    return jnp.where(alive, reward, 0.0)


def frames_per_second(env: Environment) -> float:
    """Return the frame rate of a film: the attribute of this name of the environment or one inside it, else 10."""
    if isinstance(env, Wrapper) and not hasattr(env, "frames_per_second"):
        return frames_per_second(env.env)
    return getattr(env, "frames_per_second", 10)


def metadata_of(env: Environment) -> dict[str, Any]:
    """Return what an environment says of itself to an exported policy.

    That is `rate`, its `frames_per_second` where it has one, and what its method `export_metadata()` returns, texts,
    numbers and lists by name, where there is one. Of a wrapper both hold before those of the environment inside.
    """
    inner = metadata_of(env.env) if isinstance(env, Wrapper) else {}
    rate = {"rate": float(env.frames_per_second)} if hasattr(env, "frames_per_second") else {}
    return inner | rate | (dict(env.export_metadata()) if hasattr(env, "export_metadata") else {})


def unwrapped(env: Environment) -> Environment:
    """Return the environment inside all wrappers."""
    return unwrapped(env.env) if isinstance(env, Wrapper) else env
