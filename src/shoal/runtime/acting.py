"""A trained policy as a callable value: what `shoal.load` returns."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.arguments import LARGEST_INDEX, shown, whole
from shoal.errors import ShoalError
from shoal.spaces import Dict, Discrete, MultiDiscrete, Space
from shoal.types import Array, Environment, EnvSpec, Memory, PyTree, TimeStep, spec_of


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """A policy with its normaliser, ready to act.

    Attributes:
      config: the algorithm's, whose `act` is used.
      parameters: what acting needs.
      environment: the one that it was trained in.
    """

    config: Any
    parameters: PyTree
    environment: Environment

    @property
    def spec(self) -> EnvSpec:
        """The spaces that it was trained in."""
        return spec_of(self.environment)

    @property
    def algorithm(self) -> Any:
        """The algorithm's functions."""
        return self.config.algorithm(self.spec)

    @functools.cached_property
    def _memory_structure(self) -> Any:
        return jax.tree.structure(jax.eval_shape(self.initial_memory))

    @property
    def memory_lasts(self) -> str:
        """How long its memory lasts in trials, "trial" or "episode"; "none" without one."""
        remembers = jax.tree.leaves(self.initial_memory()) and hasattr(self.config, "memory_lasts")
        return self.config.memory_lasts if remembers else "none"

    def remembering(self, memory_lasts: str) -> "TrainedPolicy":
        """The same policy with a memory that lasts a whole "trial", or is cleared with every "episode" of one.

        Raises:
          ShoalError: it has no memory, or the word is neither.
        """
        if memory_lasts not in ("trial", "episode"):
            raise ShoalError(f"memory_lasts={memory_lasts!r} must be 'trial' or 'episode'.")
        if self.memory_lasts == "none":
            raise ShoalError(
                f"memory_lasts={memory_lasts!r} is of policies with memory, and this one has none."
            )
        return dataclasses.replace(self, config=dataclasses.replace(self.config, memory_lasts=memory_lasts))

    def initial_memory(self, batch_shape: tuple[int, ...] = (1,)) -> Memory:
        """The memory before an episode's first step; () for a policy without memory.

        Raises:
          ShoalError: the shape is no tuple of whole numbers.
        """
        if not isinstance(batch_shape, tuple | list):
            raise ShoalError(f"batch_shape={shown(batch_shape)} is no tuple of whole numbers, such as (1,).")
        return self.algorithm.memory(tuple(whole("batch_shape", n, 1, LARGEST_INDEX) for n in batch_shape))

    def __call__(
        self,
        memory: Memory,
        observation: PyTree,
        reward: Any = 0.0,
        first: Any = True,
        *,
        action_mask: Any = None,
        key: Array | None = None,
    ) -> tuple[Memory, np.ndarray]:
        """Acts on one observation, or on a batch with one leading axis.

        Args:
          memory: from `initial_memory` (of the batch's shape) or the previous call.
          observation: one element of the observation space, or a batch of them.
          reward: of the step that led here.
          first: whether the observation begins an episode.
          action_mask: the legal actions, where the environment has them.
          key: samples an action; without it the policy takes its mode.

        Returns:
          memory and action, batched as the observation is.

        Raises:
          ShoalError: the observation or the mask does not have its space's shape, the memory is not of the policy
            or of another batch, or the reward, `first` or the key is none.
        """
        single = batch_axes(observation, self.spec.observation_space) == 0
        observation = as_arrays(observation, self.spec.observation_space)
        if single:
            observation = jax.tree.map(lambda x: x[None], observation)
        size = jax.tree.leaves(observation)[0].shape[0]
        check_memory(memory, size, self._memory_structure)
        if action_mask is not None:
            batch_shape = () if single else (size,)
            action_mask = as_mask(action_mask, self.spec.action_space, batch_shape)
            action_mask = jax.tree.map(lambda x: x[None], action_mask) if single else action_mask
        timestep = TimeStep(
            observation=observation,
            reward=for_each("reward", reward, jnp.float32, size),
            discount=jnp.ones(size),
            first=for_each("first", first, jnp.bool_, size),
            last=jnp.zeros(size, bool),
            action_mask=action_mask,
        )
        memory, action = _act(self.config, self.spec, self.parameters, memory, timestep, as_key(key))
        if single:
            action = jax.tree.map(lambda x: x[0], action)
        return memory, jax.tree.map(np.asarray, action)


@functools.partial(jax.jit, static_argnums=1)
def _act(
    config: Any, spec: EnvSpec, parameters: PyTree, memory: Memory, timestep: TimeStep, key: Array | None
) -> tuple[Memory, PyTree]:
    algorithm = config.algorithm(spec)
    greedy = key is None
    memory, action, _ = algorithm.act(
        parameters, memory, timestep, jax.random.key(0) if greedy else key, greedy=greedy
    )
    return memory, action


def as_arrays(observation: PyTree, space: Space) -> PyTree:
    """An observation as arrays of the space's dtypes, whatever numbers or lists it was given as.

    Raises:
      ShoalError: it holds something else than numbers.
    """
    if isinstance(space, Dict):
        return {name: as_arrays(observation[name], part) for name, part in space.items()}
    try:
        return jnp.asarray(np.asarray(observation), space.dtype)
    except (TypeError, ValueError):
        raise ShoalError(f"observation={shown(observation)} holds what is no number.") from None


def as_mask(mask: PyTree, space: Space, batch_shape: tuple[int, ...], name: str = "action_mask") -> PyTree:
    """A mask as boolean arrays, whatever numbers or lists it was given as.

    Raises:
      ShoalError: it is not of the shape that the actions' space has a mask of, for each observation.
    """
    if isinstance(space, Dict):
        if not isinstance(mask, dict) or not set(mask) <= set(space):
            raise ShoalError(f"{name} must be a dictionary with entries among {', '.join(space)}.")
        return {key: as_mask(part, space[key], batch_shape, f"{name}[{key!r}]") for key, part in mask.items()}
    if not isinstance(space, Discrete | MultiDiscrete):
        raise ShoalError(f"{name} was given, but {space} has no single actions to mask; leave it out.")
    right = (*batch_shape, space.n if isinstance(space, Discrete) else sum(space.nvec))
    try:
        array = np.asarray(mask, bool)
    except ValueError as error:  # lists of different lengths
        raise ShoalError(f"{name}={mask!r} is no array; it must be of shape {right}.") from error
    if array.shape != right:
        raise ShoalError(
            f"{name} has shape {array.shape}; for {space} it must be of shape {right}, one entry an action"
            f"{' and one row an observation' if batch_shape else ''}."
        )
    return jnp.asarray(array)


def as_key(key: Any) -> Array | None:
    """A random key, made of words by `jax.random.key` or `PRNGKey`; None stays None.

    Raises:
      ShoalError: it is no single key.
    """
    if key is None:
        return None
    dtype, shape = getattr(key, "dtype", None), np.shape(key) if hasattr(key, "dtype") else ()
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return key
    if dtype == np.uint32 and shape == jax.random.key_data(jax.random.key(0)).shape:
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise ShoalError(f"key={shown(key)} is no key of random numbers; give one such as jax.random.key(3).")


def for_each(name: str, value: Any, dtype: Any, size: int) -> Array:
    """One number for each of `size` observations, from one for all or from as many.

    Raises:
      ShoalError: it is none, or they are not as many.
    """
    try:
        array = np.asarray(value).astype(dtype)
    except (TypeError, ValueError):
        array = None
    if array is None or isinstance(value, str) or array.shape not in ((), (size,)):
        raise ShoalError(f"{name}={shown(value)} must be one number, or one for each of {size} observations.")
    return jnp.broadcast_to(jnp.asarray(array), (size,))


def check_memory(memory: Memory, size: int, structure: Any) -> None:
    """Raises ShoalError unless the memory is built like that, and of `size` environments."""
    if jax.tree.structure(memory) != structure:
        raise ShoalError(
            f"memory={shown(memory)} is no memory of this policy; begin with initial_memory(({size},))."
        )
    for leaf in jax.tree.leaves(memory):
        if np.shape(leaf)[:1] != (size,):
            raise ShoalError(
                f"memory has shape {np.shape(leaf)} and the observations are {size}; begin with "
                f"initial_memory(({size},))."
            )


def batch_axes(observation: PyTree, space: Space) -> int:
    """How many leading axes an observation has beyond its space's shape, 0 or 1.

    Raises:
      ShoalError: the shape is neither one element's nor a batch's.
    """
    if isinstance(space, Dict):
        if not isinstance(observation, dict) or set(observation) != set(space):
            raise ShoalError(f"observation must be a dictionary with the entries {', '.join(space)}.")
        axes = {batch_axes(observation[name], part) for name, part in space.items()}
        if len(axes) != 1:
            raise ShoalError("the entries of observation disagree on whether they are one or a batch.")
        return axes.pop()
    try:
        shape = np.shape(observation)
    except ValueError as error:  # lists of different lengths
        raise ShoalError(f"observation={shown(observation)} is no array of one shape.") from error
    extra = len(shape) - len(space.shape)
    if extra not in (0, 1) or shape[extra:] != space.shape:
        wanted = "an integer" if isinstance(space, Discrete) else f"of shape {space.shape}"
        raise ShoalError(f"observation has shape {shape}; one must be {wanted}, a batch has one axis before.")
    return extra
