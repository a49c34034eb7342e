"""Environments with Brax's functions, `reset(rng) -> State` and `step(State, action) -> State`.

The packages' own objects have no time limit (their trainers' wrappers add it) and begin no episodes themselves, so that
an end is a termination, and Shoal's own limit truncates.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, restart, static, transition
from shoal.envs.brax_like import brax_names, pictures, playground_names
from shoal.envs.brax_like.randomisation import changed_leaves, with_leaves
from shoal.envs.registry import check_count
from shoal.envs.suites.conversion import of_types, require_interface
from shoal.envs.suites.families import FAMILIES
from shoal.envs.suites.packages import by_convention, first_steps
from shoal.envs.suites.static_values import changed_arguments, declare, plain_parameters
from shoal.envs.wrappers import TimeLimit
from shoal.types import Array, Environment, PyTree, TimeStep
from shoal.types.spaces import Box, Dict, Space

PRIVILEGED = "privileged_state"  # the entry that only a critic is shown
DIVERGED = "diverged"  # the entry of `info`: whether a number was not finite
INTERFACE = ("reset", "step", "action_size")
NAMES = {"brax/": brax_names, "playground/": playground_names}


class BraxState(NamedTuple):
    """The package's state, the last finite observation, and the numbers of the model that are this episode's own."""

    inner: PyTree
    observation: PyTree
    model: tuple[Array, ...]  # () without a randomiser


class Facts(NamedTuple):
    """The properties of an object, read once by tracing a reset and a step."""

    state: PyTree  # shapes and dtypes after a step
    observation: PyTree  # shapes and dtypes


@environment
class BraxLike:
    """An environment of MuJoCo Playground, of Brax, or of a class with their functions.

    Where a number of an observation, of a reward or of the positions is not finite the episode terminates with reward 0
    and the last finite observation, and `info["diverged"]` is 1.

    Attributes:
      world: the package's own object.
      randomiser: its function of domain randomisation, `(model, keys) -> (models, in_axes)`, called with one key at the
        start of each episode; None for the model as it is.
    """

    world: Any = static()
    randomiser: Any = static(None)

    @property
    def observation_space(self) -> Space:
        """A vector, or a dictionary of what the package observes, without bounds."""
        shapes = _facts(self.world).observation
        boxes = {name: Box(-np.inf, np.inf, x.shape) for name, x in _entries(shapes).items()}
        return Dict(boxes) if isinstance(shapes, Mapping) else boxes[""]

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The privileged state, if there is one."""
        return tuple(name for name in _entries(_facts(self.world).observation) if name == PRIVILEGED)

    @property
    def action_space(self) -> Box:
        """Controls from -1 to 1."""
        with by_convention(self.world):
            return Box(-1.0, 1.0, (int(self.world.action_size),))

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """Terms of the reward are added up over an episode; of the other metrics the last value counts."""
        terms = {name: "sum" for name in _facts(self.world).state.metrics if name.startswith("reward")}
        return MappingProxyType(terms | {DIVERGED: "max"})

    @property
    def frames_per_second(self) -> float:
        """The rate at which the world moves as fast as time does."""
        return float(1 / getattr(self.world, "dt", 0.1))

    def reset(self, key: Array) -> tuple[BraxState, TimeStep]:
        """Start a new episode, with its own physics if there is a randomiser."""
        facts = _facts(self.world)
        model: tuple[Array, ...] = ()
        if self.randomiser is not None:
            key, model_key = jax.random.split(key)
            model = changed_leaves(self.randomiser, self.world, model_key)
        inner = with_leaves(self.world, self.randomiser, model).reset(key)
        inner = of_types(facts.state, _completed(inner, facts.state))
        observation = _float32(inner.obs)
        return BraxState(inner, observation, model), restart(observation, info=_info(inner, jnp.float32(0.0)))

    def step(self, state: BraxState, action: PyTree, key: Array) -> tuple[BraxState, TimeStep]:
        """Make one step; the package's own state holds its randomness, so that the key is not used."""
        world = with_leaves(self.world, self.randomiser, state.model)
        # A copy of the dictionaries, since the packages write into `info` and `metrics`.
        inner = world.step(jax.tree.map(lambda x: x, state.inner), action)
        inner = of_types(_facts(self.world).state, inner)
        is_finite = _is_finite(inner)
        observation = jax.tree.map(
            lambda x, last: jnp.where(is_finite, x, last), _float32(inner.obs), state.observation
        )
        return BraxState(inner, observation, state.model), transition(
            observation,
            jnp.where(is_finite, inner.reward, 0.0).astype(jnp.float32),
            terminated=~is_finite | (inner.done > 0.5),
            truncated=playground_names.is_cut(self.world, state.inner),
            info=_info(inner, 1.0 - is_finite.astype(jnp.float32)),
        )

    def render(self, state: BraxState) -> np.ndarray:
        """Draw a state by the package's own renderer, uint8 [height, width, 3].

        Raises:
          ShoalError: MuJoCo cannot draw here.
        """
        return pictures.draw(self.world, state.inner)


def limit_of(prefix: str, name: str, parameters: Mapping[str, Any]) -> int | None:
    """Return the time limit of a name, in steps: that of the package's own training."""
    return NAMES[prefix].limit_of(name)


def adapted(world: Any) -> Environment:
    """Make an environment, with its time limit, of an object of Playground or Brax.

    Raises:
      ShoalError: it is inside a wrapper of the packages' trainers, is a batch, or has a limit of 0.
    """
    require_interface("", world, *INTERFACE)
    limit = getattr(getattr(world, "_config", None), playground_names.LIMIT, brax_names.EPISODE_LENGTH)
    limit = check_count(type(world).__name__, playground_names.LIMIT, limit) or brax_names.EPISODE_LENGTH
    return TimeLimit(BraxLike(world), limit)  # type: ignore[arg-type]


@functools.cache
def constructor_of(prefix: str, name: str) -> Callable[..., BraxLike]:
    """Return the function that makes an environment of a name.

    Raises:
      ShoalError: there is no such name, or its package is not installed.
    """
    names = NAMES[prefix]
    known = names.parameters_of(name)
    # A class of one's own may have a parameter of that name.
    shown = {**known, **plain_parameters({"randomize": False}), **known}

    def make(**parameters: Any) -> BraxLike:
        randomize = "randomize" not in known and parameters.pop("randomize", False)
        arguments = changed_arguments(f"{prefix}{name}", parameters, known)
        world = names.world_of(name, arguments)
        require_interface(f"{prefix}{name}", world, *INTERFACE)
        if arguments:  # one with the defaults is traced where it is used
            with first_steps(f"{prefix}{name}", arguments):
                _facts(world)
        return BraxLike(world, names.randomiser_of(name) if randomize else None)

    if names is playground_names:
        make.portable_parameters = functools.partial(names.portable_parameters, name)  # type: ignore[attr-defined]
    return declare(make, f"{prefix}{name}", shown, f"{name} of {FAMILIES[prefix].title}.")


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object."""

    def play(key: Array) -> tuple[PyTree, PyTree]:
        first = world.reset(key)
        after = world.step(jax.tree.map(lambda x: x, first), jnp.zeros(world.action_size))
        return after, first.obs

    with jax.ensure_compile_time_eval():
        key = jax.random.key(0)
    with by_convention(world):
        facts = Facts(*jax.eval_shape(play, key))
        _ = facts.state.reward, facts.state.done, facts.state.info, facts.state.metrics
        _ = [x.shape for x in _entries(facts.observation).values()]
    return facts


def _completed(inner: PyTree, state: PyTree) -> PyTree:
    """Return a state after a reset with the entries of `info` and `metrics` that only a step makes, as zeros."""

    def complete(own: Mapping[str, Any], shapes: Mapping[str, Any]) -> dict[str, Any]:
        missing = {
            k: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), x)
            for k, x in shapes.items()
            if k not in own
        }
        return {k: ({**own, **missing})[k] for k in shapes}

    return inner.replace(
        info=complete(dict(inner.info), state.info), metrics=complete(dict(inner.metrics), state.metrics)
    )


def _entries(observation: PyTree) -> dict[str, Any]:
    return dict(observation) if isinstance(observation, Mapping) else {"": observation}


def _float32(observation: PyTree) -> PyTree:
    """Return an observation whose mappings are dictionaries."""
    entries = {name: jnp.asarray(x, jnp.float32) for name, x in _entries(observation).items()}
    return entries if isinstance(observation, Mapping) else entries[""]


def _is_finite(inner: PyTree) -> Array:
    """Report whether observation, reward and positions are finite."""
    data = getattr(inner, "data", getattr(inner, "pipeline_state", None))
    positions = next((getattr(data, name) for name in ("qpos", "q") if hasattr(data, name)), 0.0)
    parts = jax.tree.leaves((inner.obs, inner.reward, positions))
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in parts])


def _info(inner: PyTree, diverged: Array) -> dict[str, Array]:
    """Return the metrics of a step, 0 where they are not finite."""
    metrics = {name: jnp.asarray(x, jnp.float32) for name, x in inner.metrics.items()}
    return {name: jnp.where(jnp.isfinite(x), x, 0.0) for name, x in metrics.items()} | {DIVERGED: diverged}
