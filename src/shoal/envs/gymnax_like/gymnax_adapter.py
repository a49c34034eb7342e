"""Environments with gymnax's functions, `reset_env(key, params)` and `step_env(key, state, action, params)`.

The flag that `step_env` returns is a termination in gymnax 1.0 and newer, and mixes death and time limit in Craftax.
The packages' own limits are set out of reach, so that it is a termination in both; Shoal's own limit truncates. Tasks
that observe the time keep theirs, as a truncation.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import Bounds
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.gymnax_like import actor_worlds, craftax_scores, gymnax_pictures
from shoal.envs.parameters import check_value
from shoal.envs.registry import check_count
from shoal.envs.suites import packages, static_values
from shoal.envs.suites.conversion import Converted, converted, of_types, subject_of
from shoal.envs.suites.families import actors_of
from shoal.envs.suites.suite import Adapted, Facts, Parameters, Suite, numbers_of, trace
from shoal.types import Array, Environment, PyTree, State, TimeStep
from shoal.types.spaces import Box, Space

LIMITS = ("max_steps_in_episode", "max_timesteps")  # the parameter, in gymnax and in Craftax
# Classes whose observation has the time, or the share of the limit that has passed.
OBSERVES_TIME = ("BernoulliBandit", "DiscountingChain", "GaussianBandit", "MetaMaze", "PointRobot")


@environment
class GymnaxLike(Adapted):
    """An environment of gymnax, of Craftax, or of a class with gymnax's functions.

    Attributes:
      params: the parameters of the package, which are data.
      world: the package's own object.
      actions: the package's space for these parameters. It is static, so that environments whose actions have other
        bounds are not stacked.
    """

    params: PyTree
    world: Any = static()
    actions: Converted = static()

    @property
    def action_space(self) -> Space:
        """The package's space for these parameters."""
        return self.actions.space

    @property
    def observation_space(self) -> Space:
        """The package's space; unbounded where its bounds depend on parameters that are not known."""
        if not _is_known(self.world, self.params):
            return _usual_observations(self.world).space
        return _observations(self.world, self.params).space

    def reset(self, key: Array) -> tuple[State, TimeStep]:
        """Start a new episode; `info` is zeros."""
        facts = _facts(self.world)
        observation, state = self.world.reset_env(key, self.params)
        state = of_types(facts.state, state)
        return state, restart(self._shown(observation), info=facts.no_info())

    def step(self, state: State, action: PyTree, key: Array) -> tuple[State, TimeStep]:
        """Make one step, without the package's own reset."""
        action = self.actions.to_package(action)
        observation, after, reward, is_over, info = self.world.step_env(key, state, action, self.params)
        after = of_types(_facts(self.world).state, after)
        is_cut = self.world.is_truncated(after, self.params) if observes_time(self.world) else False
        return after, transition(
            self._shown(observation),
            jnp.asarray(reward, jnp.float32),
            terminated=jnp.asarray(is_over, bool),
            truncated=jnp.asarray(is_cut, bool),
            info=_info(self.world, after, info),
        )

    def _shown(self, observation: PyTree) -> PyTree:
        """Return the observation in the dtypes of its space, which may differ from those that are made."""
        return _usual_observations(self.world).to_shoal(observation)


@environment
class DrawnGymnaxLike(GymnaxLike):
    """An environment that its package can draw."""

    def render(self, state: State) -> np.ndarray:
        """Draw a state, uint8 [height, width, 3], by the package's own functions."""
        return gymnax_pictures.draw(self.world, self.params, state)


class GymnaxSuite(Suite):
    """The environments of gymnax, and the convention of Craftax too."""

    interface = ("reset_env", "step_env", "default_params", "action_space", "observation_space")

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return gymnax's classes by name."""
        return packages.import_suite(self.prefix, "gymnax.registration")._registry

    def parameters(self, name: str) -> Parameters:
        """Return the parameters of the class and those of its `params`, but for a limit that Shoal keeps."""
        usual = self.world_of(name, ())
        if actors_of(usual) is not None:
            return self.class_parameters(name) | actor_worlds.SETTINGS
        default = usual.default_params
        with packages.by_convention(usual):
            names = [x.name for x in dataclasses.fields(default)]
        shown = {x: getattr(default, x) for x in names if x not in LIMITS or observes_time(usual)}
        return self.class_parameters(name) | static_values.plain_parameters(shown)

    def made(self, name: str, parameters: Mapping[str, object]) -> Environment:
        """Make the environment of a name from the parameters of its class and of its `params`."""
        known, of_class = self.parameters(name), self.class_parameters(name)
        world, changes = self.world_of(name, self.arguments(name, parameters)), {}
        if actors_of(world) is not None:
            own = {k: x for k, x in parameters.items() if k not in of_class}
            return actor_worlds.make_actor_world(f"{self.prefix}{name}", world, own)
        for k in [x for x in parameters if x not in of_class]:
            value, declared = parameters[k], known[k]
            bounds = Bounds(low=1 if k in LIMITS else None)
            check_value(f"{self.prefix}{name}: {k}", value, declared.annotation, bounds)
            # The package's code may require a float where a whole number is given for one.
            changes[k] = float(value) if isinstance(value, int) and declared.annotation is float else value
        return _environment(world, world.default_params, changes)

    def limit(self, world: Any, params: PyTree = None) -> int | None:
        """Return the limit that Shoal keeps in place of the package, None where there is none or the package does."""
        if actors_of(world) is not None:
            return None
        params = world.default_params if params is None else params
        name = limit_name(params)
        limit = None if observes_time(world) else getattr(params, name, None)
        return check_count(type(world).__name__, name, limit)

    def with_settings(
        self, world: Any, settings: Mapping[str, object]
    ) -> tuple[Environment, int | None] | None:
        """Make the environment of a world of several actors; others have parameters, which are given beside them."""
        if actors_of(world) is None:
            return None
        return actor_worlds.make_actor_world(type(world).__name__, world, settings), None

    def environment(self, world: Any, params: PyTree = None) -> Environment:
        """Make the environment of an object, by default with its usual parameters."""
        if actors_of(world) is not None:
            return actor_worlds.make_actor_world(type(world).__name__, world, {"params": params})
        return _environment(world, world.default_params if params is None else params, {})

    def interface_of(self, world: Any) -> tuple[str, ...]:
        """Return gymnax's functions; of a world of several actors those that it has, which tells a wrapper."""
        of_actors = tuple(x for x in ("n_actors", "reset_env", "step_env") if hasattr(world, x))
        return self.interface if actors_of(world) is None else of_actors

    def portable_parameters(self, name: str, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the parameters that a run writes down, of a world of several actors with the fields of its params."""
        world = self.world_of(name, self.arguments(name, parameters))
        if actors_of(world) is None:
            return dict(parameters)
        return actor_worlds.portable(world, parameters, self.class_parameters(name))


class CraftaxSuite(GymnaxSuite):
    """The environments of Craftax, which have no parameters of a class."""

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return what makes the objects that do not begin new episodes themselves."""
        make = packages.import_suite(self.prefix, "craftax.craftax_env").make_craftax_env_from_name
        return {name: functools.partial(make, name, auto_reset=False) for name in self.family.names}

    def class_parameters(self, name: str) -> Parameters:
        """Return those of a user's class; Craftax's own have none."""
        return super().class_parameters(name) if ":" in name else {}

    def require(self, name: str, world: object) -> None:
        """Require gymnax's functions of an object that does not begin new episodes itself."""
        super().require(name, world)
        if packages.is_one_of(world, "craftax", ("EnvironmentAutoReset",)):
            raise ShoalError(
                f"{subject_of(name, world)} begins new episodes itself; give one that does not, as Craftax's "
                "NoAutoReset do"
            )


GYMNAX, CRAFTAX = GymnaxSuite("gymnax/"), CraftaxSuite("craftax/")


def observes_time(world: object) -> bool:
    """Report whether the observation holds the time, so that the limit is a part of the task."""
    return packages.is_one_of(world, "gymnax", OBSERVES_TIME)


def limit_name(params: PyTree) -> str:
    """Return the name of the parameter that is the limit; "" where there is none."""
    return next((name for name in LIMITS if hasattr(params, name)), "")


def _environment(world: Any, params: PyTree, changes: Mapping[str, object]) -> Environment:
    """Make the environment of an object from its parameters and changes of them, with its own limit out of reach."""
    _observations(world, world.default_params)  # so that what fails in a step is said when it is made
    if (name := limit_name(params)) and not observes_time(world):
        changes = {**changes, name: LARGEST_INDEX}
    with packages.by_convention(world):
        params = params.replace(**changes) if changes else params
        # Python's numbers become float32 where they are traced, and the packages require integers to be integers.
        params = jax.tree.map(lambda x: np.asarray(x, np.int32) if type(x) is int else x, params)
        with packages.undisturbed():
            actions = converted(
                world.action_space(params if _is_known(world, params) else world.default_params)
            )
    kind = DrawnGymnaxLike if gymnax_pictures.can_draw(world) else GymnaxLike
    return kind(params, world, actions)  # type: ignore[return-value]


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object with its default parameters."""

    def play(key: Array) -> tuple[PyTree, PyTree, dict[str, Array]]:
        params = world.default_params
        observation, state = world.reset_env(key, params)
        action = actions.to_package(actions.space.sample(key))
        _, after, _, _, info = world.step_env(key, state, action, params)
        return after, observation, _info(world, after, info)

    with packages.by_convention(world), jax.ensure_compile_time_eval():
        actions = converted(world.action_space(world.default_params))
    return trace(world, play)


def _info(world: Any, state: State, info: Mapping[str, object]) -> dict[str, Array]:
    """Return the numbers of `info`; in Craftax the achievements so far, which its own has only at an episode's end."""
    if craftax_scores.package_of(world):
        return craftax_scores.achievements(world, state)
    return numbers_of({name: x for name, x in info.items() if name != "discount"})


def _is_known(world: Any, params: PyTree) -> bool:
    """Report whether parameters are numbers, neither traced nor those of a stack of environments."""
    leaves, own = jax.tree.leaves(params), jax.tree.leaves(world.default_params)
    return not any(isinstance(x, jax.core.Tracer | jax.ShapeDtypeStruct) for x in leaves) and all(
        np.ndim(x) == np.ndim(y) for x, y in zip(leaves, own, strict=False)
    )


def _observations(world: Any, params: PyTree) -> Converted:
    """Return the space of observations for parameters."""
    with packages.undisturbed(), packages.by_convention(world):
        return converted(world.observation_space(params), _facts(world).observation)


@functools.cache
def _usual_observations(world: Any) -> Converted:
    """Return the space of observations for parameters that are not known, on which its bounds may depend."""
    observations = _observations(world, world.default_params)
    space = observations.space
    if isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.floating):
        return Converted(Box(-np.inf, np.inf, space.shape, space.dtype))
    return observations
