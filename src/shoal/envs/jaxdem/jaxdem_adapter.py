"""Environments of JaxDEM, each of which is one pytree, and of classes that inherit from its `Environment`.

The functions are `reset(env, key)` and `step(env, action)`, which return the next `env`, and `observation(env)` [A, o],
`reward(env)` [A] and `done(env)`. JaxDEM's own episodes end by `system.step_count > env_params["max_steps"]` alone.
That limit is set out of reach, so that the flag is a termination, and Shoal's own limit truncates.
"""

import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.config.arguments import LARGEST_INDEX, mapping, short_repr
from shoal.config.struct import is_traced
from shoal.envs.base import environment, parameter, restart, static, transition
from shoal.envs.parameters import check_parameters, convert_to_declared, declared_types
from shoal.envs.registry import check_count
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import of_types
from shoal.envs.suites.suite import Adapted, Facts, Parameters, Suite, numbers_of
from shoal.types import Array, Environment, PyTree, TimeStep
from shoal.types.spaces import Box

PREFIX = "jaxdem/"
LIMIT = "max_steps"  # the entry of `env_params`, and the parameter of JaxDEM's classes


@environment
class JaxDEM(Adapted):
    """One of JaxDEM's environments; its arrays are data, so that those of different physics step under one `vmap`.

    Observations are [A, o] and rewards [A]; of an environment with one agent they are [o] and a number. JaxDEM has
    no bounds of actions and observations.

    Attributes:
      leaves: the arrays of JaxDEM's own object, which `reset` starts from. Neither it nor a state is a node of Shoal's
        trees, since JaxDEM's `State` computes where its attributes are set, which a tree of shapes cannot.
      structure: its structure.
      low: least number of each action, or a tuple of those of its parts; forces and torques in JaxDEM's units.
      high: largest number of each action, likewise.
      skip_frames: steps of the physics beyond the first with the same action, as JaxDEM's trainer's.
      sum_rewards: whether a step pays the sum of the rewards of its frames; if not, it pays that of the last one, as
        JaxDEM's trainer does.
      ends_terminate: whether JaxDEM's own limit terminates an episode; if not, `reset` sets it out of reach.
      team_return: how the agents' returns add up, "mean" or "sum".
    """

    leaves: Any
    structure: Any = static()
    low: float | tuple[float, ...] = static(-6.0)
    high: float | tuple[float, ...] = static(6.0)
    skip_frames: int = parameter(0, low=0)
    sum_rewards: bool = True
    ends_terminate: bool = False
    team_return: str = "mean"

    @property
    def world(self) -> Any:  # type: ignore[override]
        """JaxDEM's own object, each time another one, into which its functions may write."""
        return jax.tree.unflatten(self.structure, self.leaves)

    @property
    def num_agents(self) -> int:
        """The number of agents."""
        return int(self.world.max_num_agents)

    @property
    def observation_space(self) -> Box:
        """A vector without bounds."""
        return Box(-np.inf, np.inf, (int(self.world.observation_space_size),))

    @property
    def action_space(self) -> Box:
        """A vector with the bounds `low` and `high`."""
        return Box(self.low, self.high, (int(self.world.action_space_size),))

    def reset(self, key: Array) -> tuple[PyTree, TimeStep]:
        """Start a new episode; `info` is zeros."""
        world, (facts, _) = self.world, _facts(self.world)
        if LIMIT in world.env_params and not self.ends_terminate:
            world.env_params[LIMIT] = jnp.full_like(world.env_params[LIMIT], LARGEST_INDEX)
        state = of_types(facts.state, jax.tree.leaves(world.reset(world, key)))
        return state, restart(self._observation(state), num_agents=self.num_agents, info=facts.no_info())

    def step(self, state: PyTree, action: PyTree, key: Array) -> tuple[PyTree, TimeStep]:
        """Make one step, of `1 + skip_frames` steps of the physics, which are deterministic."""
        actions = action if self.num_agents > 1 else action[None]
        frame = (state, jnp.asarray(False), jnp.zeros(self.num_agents))
        after, is_done, reward = jax.lax.fori_loop(
            0, 1 + self.skip_frames, lambda _, x: self._next_frame(actions, x), frame
        )
        return after, transition(
            self._observation(after),
            reward if self.num_agents > 1 else reward[0],
            terminated=is_done,
            info=numbers_of(self.world.info(self._inner(after))),
        )

    def _next_frame(self, actions: Array, frame: tuple[PyTree, Array, Array]) -> tuple[PyTree, Array, Array]:
        """Step the physics. Frames after an end are made too, as by JaxDEM's trainer; their rewards do not count."""
        state, is_done, paid = frame
        world = self.world.step(self._inner(state), actions)
        reward = jnp.asarray(self.world.reward(world), jnp.float32)
        if self.sum_rewards:
            reward = paid + jnp.where(is_done, 0.0, reward)
        after = of_types(_facts(self.world)[0].state, jax.tree.leaves(world))
        return after, is_done | self.world.done(world), reward

    def _inner(self, state: PyTree) -> Any:
        return jax.tree.unflatten(_facts(self.world)[1], state)

    def _observation(self, state: PyTree) -> Array:
        rows = jnp.asarray(self.world.observation(self._inner(state)), jnp.float32)
        return rows if self.num_agents > 1 else rows[0]


SETTINGS: Parameters = {
    name: x.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=declared_types(JaxDEM)[name])
    for name, x in inspect.signature(JaxDEM).parameters.items()
    if name not in ("leaves", "structure")
}


class JaxDEMSuite(Suite):
    """The environments of JaxDEM, by name and from its objects."""

    interface = (
        *("reset", "step", "observation", "reward", "done", "info"),
        *("max_num_agents", "observation_space_size", "action_space_size"),
    )
    needs_hash = False

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return the classes by name, those that are not listed by the name that they were registered by."""
        listed = {name.replace("_", ""): name for name in self.family.names}
        registry: Mapping[str, Any] = _environments().Environment._registry
        return {listed.get(name, name): cls for name, cls in registry.items() if name}

    def maker(self, name: str) -> Callable[..., object]:
        """Return the function that makes the object of a name: the class's own `Create`, if it has one."""
        if ":" in name:
            _environments()  # which a user's module imports too
        maker = super().maker(name)
        return getattr(maker, "Create", maker)

    def parameters(self, name: str) -> Parameters:
        """Return the parameters of the class and those of `JaxDEM`."""
        return self.class_parameters(name) | SETTINGS

    def made(self, name: str, parameters: Mapping[str, object]) -> Environment:
        """Make the environment of a name; floats of the class may be traced."""
        floats = [k for k, x in self.class_parameters(name).items() if x.annotation is float]
        traced = {k: x for k, x in parameters.items() if k in floats and is_traced(x)}
        fixed = self.arguments(name, {k: x for k, x in parameters.items() if k not in traced})
        world: Any = self.maker(name)(**dict(fixed), **traced) if traced else self.world_of(name, fixed)
        return self.environment(world, _settings(parameters))

    def limit_of(self, name: str, parameters: Mapping[str, object]) -> int | None:
        """Return the time limit in steps of a name, for Shoal to keep."""
        values = {k: x for k, x in parameters.items() if not is_traced(x)}
        return self.limit(self.world_of(name, self.arguments(name, values)), _settings(values))

    def limit(self, world: Any, params: Mapping[str, Any] | None = None) -> int | None:
        """Return the time limit in steps: JaxDEM's flag is set in the first step of the physics beyond `max_steps`."""
        env, own = self.environment(world, params), world.env_params.get(LIMIT)
        limit = check_count(type(world).__name__, LIMIT, None if own is None else int(own))
        if limit is None or env.ends_terminate:
            return None
        return min(LARGEST_INDEX, math.ceil((limit + 1) / (1 + env.skip_frames)))

    def with_settings(self, world: Any, settings: Mapping[str, object]) -> tuple[Environment, int | None]:
        """Make the environment of an object with settings, and its time limit."""
        return self.environment(world, settings), self.limit(world, settings)

    def environment(self, world: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Make the environment of an object, with settings of `JaxDEM` by name.

        Raises:
          ShoalError: there is no such setting, one is out of its bounds, or the object's functions are others.
        """
        settings: dict[str, Any] = {}
        for k, value in mapping("the settings", params or {}).items():
            if k not in SETTINGS:
                known = f"{', '.join(SETTINGS)}{nearest(k, SETTINGS)}"
                raise ShoalError(f"JaxDEM's objects have no setting {k!r}, but {known}")
            settings[k] = convert_to_declared(k, value, SETTINGS[k].annotation)
        _facts(world)
        env: Any = JaxDEM(*jax.tree.flatten(world), **settings)
        check_parameters(env)
        size, bounds = int(world.action_space_size), (env.low, env.high)
        if any(np.shape(x) not in ((), (size,)) for x in bounds) or not np.all(np.less(*bounds)):
            raise ShoalError(
                f"low={short_repr(env.low)}, high={short_repr(env.high)} are no bounds of an action of {size}; give "
                f"low below high, each a number or a tuple of {size}"
            )
        return env


JAXDEM = JaxDEMSuite(PREFIX)


def _settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the parameters of `make` that are settings of `JaxDEM`."""
    return {k: x for k, x in parameters.items() if k in SETTINGS}


@functools.cache
def _environments() -> Any:
    """Import JaxDEM's environments, without its trainers where these cannot be imported.

    `jaxdem.rl` imports the trainers too, and with them distrax, which not every version of JAX has; then a package with
    the environments alone stands in its place.
    """
    root = packages.import_suite(PREFIX)
    try:
        packages.import_suite(PREFIX, "jaxdem.rl")
    except ShoalError:
        rest = types.ModuleType("jaxdem.rl", "JaxDEM's `rl` without its trainers, whose import failed.")
        rest.__path__ = [str(Path(root.__file__).parent / "rl")]
        sys.modules[rest.__name__] = rest
    environments = packages.import_suite(PREFIX, "jaxdem.rl.environments")
    sys.modules["jaxdem.rl"].Environment = environments.Environment  # type: ignore[attr-defined]
    return environments


def _facts(world: Any) -> tuple[Facts, Any]:
    """Read the facts about an object, once for all of the same structure and shapes, and its structure after a reset.

    The state of the facts is the leaves.
    """
    leaves, structure = jax.tree.flatten(world)
    shapes = tuple(jax.ShapeDtypeStruct(np.shape(x), jax.dtypes.result_type(x)) for x in leaves)
    return _facts_of(structure, shapes)


@functools.cache
def _facts_of(structure: Any, leaves: tuple[jax.ShapeDtypeStruct, ...]) -> tuple[Facts, Any]:
    """Trace a reset and a step of an object with these shapes.

    Raises:
      ShoalError: its functions are not those of JaxDEM, or it is a batch of environments.
    """
    structures: list[Any] = []

    # Objects are made within the trace, and their leaves alone go in and out, since they compute when they are made.
    def play(leaves: tuple[Array, ...], key: Array) -> tuple[PyTree, ...]:
        world = jax.tree.unflatten(structure, leaves)
        agents, size = world.max_num_agents, world.observation_space_size
        world = world.reset(world, key)
        structures.append(jax.tree.structure(world))
        world = world.step(world, jnp.zeros((agents, world.action_space_size)))
        structures.append(jax.tree.structure(world))
        outputs = {x: getattr(world, x)(world) for x in ("observation", "reward", "done")}
        for (name, x), shape in zip(outputs.items(), ((agents, size), (agents,), ()), strict=True):
            if x.shape != shape:
                one = f"and of one environment that is {list(shape)}"
                raise TypeError(f"`{name}` returns {list(x.shape)}, {one}")
        return jax.tree.leaves(world), outputs["observation"], numbers_of(world.info(world))

    with packages.by_convention(jax.tree.unflatten(structure, [0] * len(leaves))):
        facts = Facts(*jax.eval_shape(play, leaves, jax.eval_shape(lambda: jax.random.key(0))))
        if structures[0] != structures[1]:
            raise TypeError("`step` returns another tree than `reset`")
    return facts, structures[0]
