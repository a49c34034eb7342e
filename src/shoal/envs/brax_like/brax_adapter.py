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

from shoal.base.errors import ShoalError
from shoal.envs.base import environment, restart, static, transition
from shoal.envs.brax_like import mujoco_pictures
from shoal.envs.brax_like.model_randomisation import Randomiser, changed_leaves, with_leaves
from shoal.envs.registry import check_count
from shoal.envs.suites.conversion import in_float32, of_types, unbounded
from shoal.envs.suites.packages import by_convention, import_suite, is_one_of
from shoal.envs.suites.static_values import plain_parameters
from shoal.envs.suites.suite import Adapted, Facts, Parameters, Suite, trace
from shoal.types import Array, Environment, PyTree, TimeStep
from shoal.types.spaces import Box, Space

PRIVILEGED = "privileged_state"  # the entry that only a critic is shown
DIVERGED = "diverged"  # the entry of `info`: whether a number was not finite
LIMIT = "episode_length"  # the entry of a config of Playground's
EPISODE_LENGTH = 1000  # of Brax's training
OBSERVES_TIME = (
    "HandOver",
)  # Playground's classes whose observation has the share of the limit that has passed
RANDOMIZE = "randomize"  # the parameter
FIRST_OF_ONE_NUMBER = 2  # of MuJoCo's kinds of joints: slides and hinges


class BraxState(NamedTuple):
    """The package's state, the last finite observation, and the numbers of the model that are this episode's own."""

    inner: PyTree
    observation: PyTree
    model: tuple[Array, ...]  # () without a randomiser


@environment
class BraxLike(Adapted):
    """An environment of MuJoCo Playground, of Brax, or of a class with their functions.

    Where a number of an observation, of a reward or of the positions is not finite the episode terminates with reward 0
    and the last finite observation, and `info["diverged"]` is 1.

    Attributes:
      world: the package's own object.
      randomiser: its function of domain randomisation, `(model, keys) -> (models, in_axes)`, called with one key at the
        start of each episode; None for the model as it is.
    """

    world: Any = static()
    randomiser: Randomiser | None = static(None)

    @property
    def observation_space(self) -> Space:
        """A vector, or a dictionary of what the package observes, without bounds."""
        return unbounded(_entries(_facts(self.world).observation))

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
        terms = {name: "sum" for name in _facts(self.world).info if name.startswith("reward")}
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
        observation = in_float32(_entries(inner.obs))
        return BraxState(inner, observation, model), restart(observation, info=_info(inner, jnp.float32(0.0)))

    def step(self, state: BraxState, action: PyTree, key: Array) -> tuple[BraxState, TimeStep]:
        """Make one step; the package's own state holds its randomness, so that the key is not used."""
        world = with_leaves(self.world, self.randomiser, state.model)
        # A copy of the dictionaries, since the packages write into `info` and `metrics`.
        inner = world.step(jax.tree.map(lambda x: x, state.inner), action)
        inner = of_types(_facts(self.world).state, inner)
        is_finite = _is_finite(inner)
        observation = jax.tree.map(
            lambda x, last: jnp.where(is_finite, x, last), in_float32(_entries(inner.obs)), state.observation
        )
        return BraxState(inner, observation, state.model), transition(
            observation,
            jnp.where(is_finite, inner.reward, 0.0).astype(jnp.float32),
            terminated=~is_finite | (inner.done > 0.5),
            truncated=is_cut(self.world, state.inner),
            info=_info(inner, 1.0 - is_finite.astype(jnp.float32)),
        )

    def render(self, state: BraxState) -> np.ndarray:
        """Draw a state by the package's own renderer, uint8 [height, width, 3].

        Raises:
          ShoalError: MuJoCo cannot draw here.
        """
        return mujoco_pictures.draw(self.world, state.inner)

    def export_metadata(self) -> dict[str, Any]:
        """Return mjlab's entries of an exported policy as far as the model says them; none without a MuJoCo model."""
        model, config = getattr(self.world, "mj_model", None), getattr(self.world, "_config", {})
        if model is None:
            return {}
        joints = [k for k in range(model.njnt) if model.jnt_type[k] >= FIRST_OF_ONE_NUMBER]
        pose = model.key_qpos[0] if model.nkey else model.qpos0
        return {
            "joint_names": [model.joint(k).name for k in joints],
            "default_joint_pos": [float(pose[model.jnt_qposadr[k]]) for k in joints],
            **({"action_scale": config["action_scale"]} if "action_scale" in config else {}),
        }


def observes_time(world: object) -> bool:
    """Report whether the observation holds the time, so that the limit is a part of the task, which keeps it."""
    return is_one_of(world, "mujoco_playground", OBSERVES_TIME)


def is_cut(world: Any, before: PyTree) -> Array | bool:
    """Report whether a step from a state reaches the limit of a task that observes the time.

    The state after that step does not say so: the task sets its count back to 0 there.
    """
    if not observes_time(world):
        return False
    return before.info["_steps"] + world._config.action_repeat >= world._config.episode_length


class BraxSuite(Suite):
    """The environments of Brax, and the convention of Playground too."""

    interface = ("reset", "step", "action_size")

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return Brax's classes by name."""
        return import_suite(self.prefix, "brax.envs")._envs

    def randomiser_of(self, name: str) -> Randomiser | None:
        """Return the function of domain randomisation of a name; None where there is none, as in Brax."""

    def maker(self, name: str) -> Callable[..., object]:
        """Return the class, or the function, that makes the object of a name."""
        mujoco_pictures.draw_without_a_window()
        return super().maker(name)

    def parameters(self, name: str) -> Parameters:
        """Return the parameters of the class, and `randomize`, unless it has its own of that name."""
        known = self.class_parameters(name)
        return {**known, **plain_parameters({RANDOMIZE: False}), **known}

    def made(self, name: str, parameters: Mapping[str, object]) -> Environment:
        """Make the environment of a name, with the package's randomiser if it is asked for.

        Raises:
          ShoalError: it has none.
        """
        known, arguments = self.class_parameters(name), self.arguments(name, parameters)
        world, randomiser = self.world_of(name, arguments), None
        if arguments:  # one with the defaults is traced where it is used
            _facts(world)
        if RANDOMIZE not in known and parameters.get(RANDOMIZE, False):
            randomiser = self.randomiser_of(name)
            if randomiser is None:
                raise ShoalError(f"{self.prefix}{name} has no domain randomiser; leave randomize out")
        return BraxLike(world, randomiser)  # type: ignore[return-value]

    def limit_of(self, name: str, parameters: Mapping[str, object]) -> int | None:
        """Return the time limit in steps: that of the package's own training."""
        return EPISODE_LENGTH

    def limit(self, world: Any, *params: PyTree) -> int | None:
        """Return the time limit of an object: that of its config, or of Brax's training."""
        limit = getattr(getattr(world, "_config", None), LIMIT, EPISODE_LENGTH)
        return check_count(type(world).__name__, LIMIT, limit) or EPISODE_LENGTH

    def environment(self, world: Any, *params: PyTree) -> Environment:
        """Make the environment of an object."""
        return BraxLike(world)  # type: ignore[return-value]


BRAX = BraxSuite("brax/")


@functools.cache
def _facts(world: Any) -> Facts:
    """Read the facts about an object."""

    def play(key: Array) -> tuple[PyTree, PyTree, Mapping[str, Array]]:
        first = world.reset(key)
        after = world.step(jax.tree.map(lambda x: x, first), jnp.zeros(world.action_size))
        _ = after.reward, after.done, after.info, [x.shape for x in _entries(first.obs).values()]
        return after, first.obs, after.metrics

    return trace(world, play)


def _completed(inner: PyTree, state: PyTree) -> PyTree:
    """Return a state after a reset with the entries of `info` and `metrics` that only a step makes, as zeros."""

    def complete(own: Mapping[str, object], shapes: Mapping[str, object]) -> dict[str, object]:
        missing = {
            k: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), x)
            for k, x in shapes.items()
            if k not in own
        }
        return {k: ({**own, **missing})[k] for k in shapes}

    return inner.replace(
        info=complete(dict(inner.info), state.info), metrics=complete(dict(inner.metrics), state.metrics)
    )


def _entries(observation: PyTree) -> dict[str, Array]:
    return dict(observation) if isinstance(observation, Mapping) else {"": observation}


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
