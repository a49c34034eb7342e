"""Environments with Jumanji's functions, `reset(key)` and `step(state, action)`, which return dm_env's time-steps.

Most of Jumanji's tasks end by their time limit as by a termination. It is set out of reach, so that an end of
discount 0 is a termination; Shoal's own limit truncates. The masks in Jumanji's observations become action masks.
"""

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import LARGEST_INDEX
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.dm_like import jumanji_pictures
from shoal.envs.registry import check_count
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import Converted, converted, in_float32, of_types, unbounded
from shoal.envs.suites.static_values import defaults_of, plain_parameters
from shoal.envs.suites.suite import Adapted, Facts, Parameters, Suite, numbers_of, trace
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Discrete, Space

PREFIX = "jumanji/"
LIMIT = "time_limit"
MASK = "action_mask"  # the entry of Jumanji's observations
SIZED_BY_LIMIT = ("MMST",)  # classes whose states have the limit's length; they keep it
LAST = 2  # dm_env's number of a last time-step


class Actions(NamedTuple):
    """The actions of an object."""

    spec: Converted
    parts: tuple[int, ...]  # the number of values of each part; () for controls
    is_joint: bool  # whether a mask is of all combinations of the parts


@environment
class DMLike(Adapted):
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
        return unbounded(_divided(_facts(self.world).observation)[0])

    @property
    def action_space(self) -> Space:
        """Discrete, of several parts, or controls within Jumanji's bounds."""
        actions = _actions(self.world)
        return Discrete(math.prod(actions.parts)) if actions.is_joint else actions.spec.space

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = _facts(self.world)
        state, first = self.world.reset(key)
        shown, mask = self._shown(first.observation)
        return of_types(facts.state, state), restart(shown, action_mask=mask, info=facts.no_info())

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step; Jumanji's state holds its randomness, so that the key is not used."""
        actions = _actions(self.world)
        if actions.is_joint:
            action = jnp.stack(jnp.unravel_index(action, actions.parts))
        after, made = self.world.step(state, actions.spec.to_package(action))
        is_last = made.step_type == LAST
        is_cut = is_last & (made.discount != 0) | self._is_cut(after)
        shown, mask = self._shown(made.observation)
        return of_types(_facts(self.world).state, after), transition(
            shown,
            jnp.asarray(made.reward, jnp.float32),
            terminated=is_last & ~is_cut,
            truncated=is_cut,
            action_mask=mask,
            info=numbers_of(made.extras or {}, jnp.float32),
        )

    def _is_cut(self, state: State) -> Array | bool:
        """Report whether a task that keeps its limit has reached it."""
        if not packages.is_one_of(self.world, "jumanji", SIZED_BY_LIMIT):
            return False
        is_solved = jnp.all(state.finished_agents)  # type: ignore[attr-defined]
        return ~is_solved & (state.step_count >= self.world.time_limit)  # type: ignore[attr-defined]

    def _shown(self, observation: PyTree) -> tuple[PyTree, Array | None]:
        """Divide an observation into what is shown and the mask, all of it where no action is legal.

        A trapped snake ends by any action.
        """
        entries, mask = _divided(observation)
        if mask is not None:
            mask = jnp.ravel(mask) if _actions(self.world).is_joint else mask
            mask = jnp.ravel(mask | ~jnp.any(mask, axis=-1, keepdims=True))
        return in_float32(entries), mask


@environment
class DrawnDMLike(DMLike):
    """An environment that Jumanji can draw."""

    def render(self, state: State) -> np.ndarray:
        """Draw a state by Jumanji's viewer, uint8 [height, width, 3]."""
        return jumanji_pictures.draw(self.world, state)


class DMSuite(Suite):
    """The environments of Jumanji."""

    interface = ("reset", "step", "action_spec", "observation_spec")

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return the functions that make Jumanji's objects by name."""
        names = packages.import_suite(self.prefix, "jumanji.registration")._REGISTRY
        return {x: functools.partial(packages.import_suite(self.prefix).make, x) for x in sorted(names)}

    def maker(self, name: str) -> Callable[..., object]:
        """Return the class, or the function, that makes the object of a name, without downloads."""
        return functools.partial(_made_offline, self.prefix + name, super().maker(name))

    def class_parameters(self, name: str) -> Parameters:
        """Return the parameters of a class whose defaults are numbers or texts, but for the limit."""
        maker = super().maker(name)
        if ":" not in name:
            registry = packages.import_suite(self.prefix, "jumanji.registration")
            with packages.undisturbed():
                maker = registry.load(registry._REGISTRY[name].entry_point)
        return plain_parameters({k: x for k, x in defaults_of(maker).items() if k != LIMIT})

    def limit(self, world: Any, *params: PyTree) -> int | None:
        """Return Jumanji's time limit in steps; None where it has none, or keeps it."""
        if packages.is_one_of(world, "jumanji", SIZED_BY_LIMIT):
            return None
        return check_count(type(world).__name__, LIMIT, getattr(world, LIMIT, None))

    def environment(self, world: Any, *params: PyTree) -> Environment:
        """Make the environment of an object, which is not changed."""
        own = _without_limit(world)
        _actions(own)  # which refuses some
        return DrawnDMLike(own) if jumanji_pictures.viewer_of(own) else DMLike(own)  # type: ignore[return-value]


JUMANJI = DMSuite(PREFIX)


def _made_offline(name: str, maker: Callable[..., object], **values: object) -> Any:
    """Make an object of what Hugging Face's library, by which Jumanji downloads, has downloaded before.

    Raises:
      ShoalError: it needs files that are not here.
    """
    from huggingface_hub import constants  # noqa: PLC0415  (is installed with Jumanji alone)

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        return maker(**values)
    except Exception as error:
        if not type(error).__module__.startswith("huggingface_hub"):
            raise
        raise ShoalError(
            f"{name} needs files that Jumanji downloads when it is made, and which are not here; make it once where "
            f"there is a network: python -c \"import jumanji; jumanji.make('{name.removeprefix(PREFIX)}')\""
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = before


@functools.cache
def _without_limit(world: Any) -> Any:
    """Return a copy of an object whose limit is out of reach, one for each, since it is hashed by its identity."""
    with packages.undisturbed(), packages.by_convention(world):
        own = copy.copy(world)
        _ = own.action_spec, own.observation_spec  # which are made once, with the limit as a bound
        if JUMANJI.limit(world) is not None:
            setattr(own, LIMIT, LARGEST_INDEX)
    return own


def _divided(observation: PyTree) -> tuple[dict[str, Array], Array | None]:
    """Return the arrays of an observation by name but for the mask, and the mask, None if there is none."""
    leaves = jax.tree_util.tree_flatten_with_path(observation)[0]
    entries = {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
    mask = entries.pop(MASK, None)
    return entries, mask


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object."""

    def play(key: Array) -> tuple[PyTree, PyTree, dict[str, Array]]:
        state, _ = world.reset(key)
        after, made = world.step(state, world.action_spec.generate_value())
        _ = made.step_type, made.discount
        if made.reward.shape:
            raise ShoalError(
                f"{PREFIX}{type(world).__name__} has a reward for each of {made.reward.shape[0]} agents; only "
                "environments of one agent are adapted"
            )
        return after, made.observation, numbers_of(made.extras or {}, jnp.float32)

    with packages.undisturbed():
        return trace(world, play)


@functools.cache
def _actions(world: Any) -> Actions:
    """Read the actions of an object.

    Raises:
      ShoalError: it has several agents, or actions that no space of Shoal has.
    """
    where, (_, mask) = f"{PREFIX}{type(world).__name__}", _divided(_facts(world).observation)
    with packages.undisturbed(), packages.by_convention(world):
        spec = converted(world.action_spec)
    space = spec.space
    parts = (space.n,) if isinstance(space, Discrete) else getattr(space, "nvec", ())
    if not parts and not jnp.issubdtype(space.dtype, jnp.floating):  # type: ignore[union-attr]
        raise ShoalError(f"{where} has actions {space}, which are neither discrete nor controls")
    is_joint = len(parts) > 1 and mask is not None and mask.shape == parts
    return Actions(spec, parts, is_joint)
