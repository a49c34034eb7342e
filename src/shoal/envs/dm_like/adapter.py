"""Environments with Jumanji's functions, `reset(key)` and `step(state, action)`, which return dm_env's time-steps.

Most of Jumanji's tasks end by their time limit as by a termination. It is set out of reach, so that an end of
discount 0 is a termination; Shoal's own limit truncates. The masks in Jumanji's observations become action masks.
"""

import contextlib
import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.dm_like import pictures
from shoal.envs.registry import MAX_COUNT, check_count, resolve
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import Converted, converted, of_types, require_interface
from shoal.envs.suites.static_values import changed_arguments, declare, defaults_of, plain_parameters
from shoal.envs.wrappers import TimeLimit
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Dict, Discrete, Space

PREFIX = "jumanji/"
LIMIT = "time_limit"
INTERFACE = ("reset", "step", "action_spec", "observation_spec")
MASK = "action_mask"  # the entry of Jumanji's observations
SIZED_BY_LIMIT = ("MMST",)  # classes whose states have the limit's length; they keep it


class Facts(NamedTuple):
    """The properties of an object, read once by tracing a reset and a step."""

    state: PyTree  # shapes and dtypes after a step
    observation: Mapping[str, Any]  # of each entry the shape, without the mask
    extras: Mapping[str, Any]
    spec: Converted  # of actions
    actions: tuple[int, ...]  # the number of values of each part; () for controls
    is_joint: bool  # whether a mask is of all combinations of the parts


@environment
class DMLike:
    """An environment of Jumanji (Bonnet et al. 2024), or of a class with its functions.

    An observation is a dictionary of float32 arrays; entries within entries have names such as `agent_position.row`. A
    task whose mask is of all combinations of several parts of an action has a single discrete action, the number of the
    combination in the order of `numpy.ravel_multi_index`.

    Attributes:
      world: Jumanji's own object.
    """

    world: Any = static()

    @property
    def observation_space(self) -> Space:
        """A dictionary of what Jumanji observes, without the mask; the array itself where there is one alone."""
        boxes = {name: Box(-np.inf, np.inf, x.shape) for name, x in _facts(self.world).observation.items()}
        return boxes[""] if tuple(boxes) == ("",) else Dict(boxes)

    @property
    def action_space(self) -> Space:
        """Discrete, of several parts, or controls within Jumanji's bounds."""
        facts = _facts(self.world)
        return Discrete(math.prod(facts.actions)) if facts.is_joint else facts.spec.space

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The reduction of each entry of `info`: the last value."""
        return MappingProxyType({})

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = _facts(self.world)
        state, first = self.world.reset(key)
        info = {name: jnp.zeros(x.shape) for name, x in facts.extras.items()}
        shown, mask = self._shown(first.observation)
        return of_types(facts.state, state), restart(shown, action_mask=mask, info=info)

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step; Jumanji's state holds its randomness, so that the key is not used."""
        facts = _facts(self.world)
        if facts.is_joint:
            action = jnp.stack(jnp.unravel_index(action, facts.actions))
        after, made = self.world.step(state, facts.spec.to_package(action))
        is_last = made.step_type == LAST
        is_cut = is_last & (made.discount != 0) | self._is_cut(after)
        shown, mask = self._shown(made.observation)
        return of_types(facts.state, after), transition(
            shown,
            jnp.asarray(made.reward, jnp.float32),
            terminated=is_last & ~is_cut,
            truncated=is_cut,
            action_mask=mask,
            info={name: jnp.asarray(made.extras[name], jnp.float32) for name in facts.extras},
        )

    def _is_cut(self, state: State) -> Array | bool:
        """Report whether a task that keeps its limit has reached it."""
        if not packages.is_one_of(self.world, "jumanji", SIZED_BY_LIMIT):
            return False
        is_solved = jnp.all(state.finished_agents)  # type: ignore[attr-defined]
        return ~is_solved & (state.step_count >= self.world.time_limit)  # type: ignore[attr-defined]

    def _shown(self, observation: PyTree) -> tuple[PyTree, Array | None]:
        """Divide an observation into what is shown and the mask."""
        entries = _entries(observation)
        mask = entries.pop(MASK, None)
        shown = {name: jnp.asarray(x, jnp.float32) for name, x in entries.items()}
        return shown[""] if tuple(shown) == ("",) else shown, None if mask is None else self._opened(mask)

    def _opened(self, mask: Array) -> Array:
        """Return a mask as a vector, with all actions where none is legal: a trapped snake ends by any of them."""
        mask = jnp.ravel(mask) if _facts(self.world).is_joint else mask
        return jnp.ravel(mask | ~jnp.any(mask, axis=-1, keepdims=True))


@environment
class Drawn(DMLike):
    """An environment that Jumanji can draw."""

    def render(self, state: State) -> np.ndarray:
        """Draw a state by Jumanji's viewer, uint8 [height, width, 3]."""
        return pictures.draw(self.world, state)


LAST = 2  # dm_env's number of a last time-step


def _entries(observation: PyTree) -> dict[str, Any]:
    """Return the arrays of an observation by name."""
    leaves = jax.tree_util.tree_flatten_with_path(observation)[0]
    return {".".join(map(_name, path)): leaf for path, leaf in leaves}


def _name(part: Any) -> str:
    return str(next(getattr(part, name) for name in ("name", "key", "idx") if hasattr(part, name)))


def limit_of(prefix: str, name: str, parameters: Mapping[str, Any]) -> int | None:
    """Return Jumanji's time limit in steps; None where it has none, or keeps it."""
    return _limit(_made(name, _arguments(name, parameters)))


def _limit(world: Any) -> int | None:
    keeps = packages.is_one_of(world, "jumanji", SIZED_BY_LIMIT)
    return None if keeps else check_count(type(world).__name__, LIMIT, getattr(world, LIMIT, None))


def adapted(world: Any) -> Environment:
    """Make an environment, with its time limit, of one of Jumanji's objects, which is not changed.

    Raises:
      ShoalError: it is a wrapper, or its spaces are not those of one agent.
    """
    require_interface("", world, *INTERFACE)
    made, limit = _environment(world), _limit(world)
    return made if limit is None else TimeLimit(made, limit)


def _environment(world: Any) -> Environment:
    """Make the environment of an object, with its own limit out of reach."""
    own = _without_limit(world)
    _facts(own)  # which refuses some
    return Drawn(own) if pictures.viewer_of(own) else DMLike(own)  # type: ignore[return-value]


@functools.cache
def _without_limit(world: Any) -> Any:
    """Return a copy of an object whose limit is out of reach, one for each, since it is hashed by its identity."""
    limit = _limit(world)
    with packages.undisturbed(), packages.by_convention(world):
        own = copy.copy(world)
        _ = own.action_spec, own.observation_spec  # which are made once, with the limit as a bound
        if limit is not None:
            setattr(own, LIMIT, MAX_COUNT)
    return own


@functools.cache
def constructor_of(prefix: str, name: str) -> Callable[..., Environment]:
    """Return the function that makes an environment of a name, from the parameters of its class.

    Raises:
      ShoalError: there is no such name, or Jumanji is not installed.
    """
    known = _parameters_of(name)

    def make(**parameters: Any) -> Environment:
        with packages.first_steps(f"{PREFIX}{name}", parameters.items()):
            return _environment(_made(name, _arguments(name, parameters)))

    return declare(make, f"{PREFIX}{name}", known, f"{name} of Jumanji.")


def _parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class whose defaults are numbers or texts, but for the limit."""
    return plain_parameters({k: x for k, x in defaults_of(_class_of(name)).items() if k != LIMIT})


def _arguments(name: str, parameters: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return the parameters of the class that are not the default, in order."""
    return changed_arguments(f"{PREFIX}{name}", parameters, _parameters_of(name))


def _class_of(name: str) -> Callable[..., Any]:
    package = packages.import_suite(PREFIX)
    if ":" in name:
        return resolve(f"{PREFIX}{name}", name)
    registry = packages.import_suite(PREFIX, "jumanji.registration")
    if name not in registry._REGISTRY:
        raise packages.unknown_name(PREFIX, name, sorted(registry._REGISTRY))
    with packages.undisturbed():
        return registry.load(package.registration._REGISTRY[name].entry_point)


@functools.cache
def _made(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    """Make Jumanji's object of a name, one for each set of arguments.

    Raises:
      ShoalError: it cannot be made, or needs files that Jumanji would download.
    """
    maker = _class_of(name)
    try:
        with packages.undisturbed(), _without_downloads():
            values = dict(arguments)
            world = maker(**values) if ":" in name else packages.import_suite(PREFIX).make(name, **values)
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub"):
            raise ShoalError(
                f"{PREFIX}{name} needs files that Jumanji downloads when it is made, and which are not here; make it "
                f"once where there is a network: python -c \"import jumanji; jumanji.make('{name}')\""
            ) from error
        raise packages.cannot_be_made(f"{PREFIX}{name}", arguments, error) from error
    require_interface(f"{PREFIX}{name}", world, *INTERFACE)
    return world


@contextlib.contextmanager
def _without_downloads() -> Any:
    """Let Hugging Face's library use only what was downloaded before."""
    try:
        from huggingface_hub import constants  # noqa: PLC0415
    except ImportError:
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object.

    Raises:
      ShoalError: it has several agents, or actions that no space of Shoal has.
    """

    def play(key: Array) -> tuple[PyTree, Any]:
        state, _ = world.reset(key)
        return world.step(state, world.action_spec.generate_value())

    with packages.undisturbed(), packages.by_convention(world):
        after, made = jax.eval_shape(play, jax.random.key(0))
        spec, _ = converted(world.action_spec), (made.step_type, made.discount, made.reward.shape)
    where = type(world).__name__
    if made.reward.shape:
        raise ShoalError(
            f"{PREFIX}{where} has a reward for each of {made.reward.shape[0]} agents; only environments of one agent "
            "are adapted"
        )
    entries = _entries(made.observation)
    mask = entries.pop(MASK, None)
    space = spec.space
    actions = (space.n,) if isinstance(space, Discrete) else getattr(space, "nvec", ())
    if not actions and not jnp.issubdtype(space.dtype, jnp.floating):  # type: ignore[union-attr]
        raise ShoalError(f"{PREFIX}{where} has actions {space}, which are neither discrete nor controls")
    is_joint = len(actions) > 1 and mask is not None and mask.shape == actions
    if mask is not None and not is_joint and math.prod(mask.shape) != sum(actions):
        raise ShoalError(
            f"{PREFIX}{where} has a mask {mask.shape} of actions {actions}, which fits neither the parts nor all their "
            "combinations"
        )
    extras = {name: x for name, x in (made.extras or {}).items() if hasattr(x, "dtype")}
    return Facts(after, entries, extras, spec, actions, is_joint)
