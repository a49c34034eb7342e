"""Trained policies as callable values, which `shoal.load` returns."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config.arguments import LARGEST_INDEX, one_of, short_repr, whole_number
from shoal.types import (
    Algorithm,
    AlgorithmConfig,
    Array,
    Environment,
    EnvSpec,
    Memory,
    PyTree,
    TimeStep,
    spec_of,
    without_entries,
)
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space


class PolicyMemory(NamedTuple):
    """The memory of a policy that is called step by step, with one row for each environment of the batch."""

    state: Memory  # the algorithm's memory, [N, ...]
    is_new: Array  # [N], whether it is from `initial_memory`; the next call clears it there


@dataclasses.dataclass(frozen=True)
class TrainedPolicy:
    """A trained policy with its normaliser.

    Attributes:
      parameters: the part of the learner that acting needs.
      has_masks: whether its world has masks of legal actions; None asks the environment.
    """

    config: Any
    parameters: PyTree
    environment: Environment
    has_masks: bool | None = None

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """The spaces that it was trained in."""
        return spec_of(self.environment)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's functions."""
        return self.config.algorithm(self.spec)

    def acts_in(self, spec: EnvSpec) -> bool:
        """Report whether the policy can act in a world of this spec: its own, or one that its config says is alike."""
        acts_alike = getattr(self.config, "acts_alike", None)
        return spec == self.spec or (acts_alike is not None and acts_alike(self.spec, spec))

    @functools.cached_property
    def needs_mask(self) -> bool:
        """Whether its world has masks, so that it must be given them."""
        if self.has_masks is not None:
            return self.has_masks
        _, timestep = jax.eval_shape(self.environment.reset, jax.random.key(0))
        return timestep.action_mask is not None

    # Flattened once: for the modules of a network that takes as long as acting.
    @functools.cached_property
    def _flat_parameters(self) -> tuple[list[Array], jax.tree_util.PyTreeDef]:
        return jax.tree.flatten(self.parameters)

    # Traced once, since a policy is called at each step, and compares its memory's structure with this.
    @functools.cached_property
    def _memory_structure(self) -> object:
        return jax.tree.structure(jax.eval_shape(self.initial_memory))

    @property
    def memory_lasts(self) -> str:
        """The duration of its memory, "trial", "episode" or "run"; "none" without memory."""
        has_memory = jax.tree.leaves(self.initial_memory()) and hasattr(self.config, "memory_lasts")
        return self.config.memory_lasts if has_memory else "none"

    def with_memory_lasts(self, memory_lasts: str) -> "TrainedPolicy":
        """Return the same policy with a memory that lasts a whole "trial", or is cleared with every "episode".

        Raises:
          ShoalError: it has no memory, or `memory_lasts` is neither.
        """
        one_of("memory_lasts", memory_lasts, ("trial", "episode"))
        if self.memory_lasts == "none":
            raise ShoalError(
                f"memory_lasts={memory_lasts!r} is for policies with memory, and this one has none."
            )
        return dataclasses.replace(self, config=dataclasses.replace(self.config, memory_lasts=memory_lasts))

    @reports_user_code
    def initial_memory(self, batch_shape: tuple[int, ...] = (1,)) -> PolicyMemory | tuple[()]:
        """Return the memory before an episode's first step; () for a policy without memory.

        It is marked as new, so that the call that receives it begins an episode.

        Raises:
          ShoalError: the shape is not a tuple of whole numbers.
        """
        if not isinstance(batch_shape, tuple | list):
            raise ShoalError(
                f"batch_shape={short_repr(batch_shape)} is not a tuple of whole numbers, such as (1,)."
            )
        shape = tuple(whole_number("batch_shape", n, 1, LARGEST_INDEX) for n in batch_shape)
        state = _memory_of_greedy(self.algorithm, shape)
        return PolicyMemory(state, jnp.ones(shape, bool)) if jax.tree.leaves(state) else ()

    @reports_user_code
    def __call__(
        self,
        memory: PolicyMemory | tuple[()],
        observation: PyTree,
        reward: object = None,
        first: object = False,
        *,
        action_mask: object = None,
        alive: object = None,
        key: Array | None = None,
    ) -> tuple[PolicyMemory | tuple[()], np.ndarray]:
        """Choose the action for one observation, or for a batch with one leading axis.

        The memory is cleared where it is from `initial_memory`, and where `first` is true.

        Args:
          memory: from `initial_memory` (of the batch's shape) at an episode's first step, else from the previous call.
          observation: one element of the observation space, or a batch of them; of several agents, that of each along
            one more axis. Entries for the critic only may be left out.
          reward: of the step that led here; of several agents, one number for all or one for each. Only policies that
            are shown it need it, and not at an episode's first step.
          first: whether the observation begins an episode, where the memory is not new.
          action_mask: the legal actions, needed where the environment has masks; for several agents, of each.
          alive: which of several agents take part; None for all.
          key: samples an action; without it the policy takes its mode.
        Returns:
          memory and action, batched as the observation is.
        Raises:
          ShoalError: the observation or the mask does not have its space's shape; the mask is missing; an observation
            is NaN, infinite where its space has a bound, or not a value of a Discrete or integer space; the mask allows
            no action; the reward is not finite, or missing where the policy needs it; the memory is of another policy
            or another batch; or the key is not a key.
        """
        spec, agents = self.spec, () if self.spec.num_agents == 1 else (self.spec.num_agents,)
        space = spec.of_actor.observation_space
        space = repeated(space, *agents) if agents else space
        observation = as_numbers(without_entries(observation, spec.critic_only), space)
        is_single = batch_axes(observation, space) == 0
        observation = as_arrays(observation, space)
        if is_single:  # a batch of one, so that there is one program
            observation = jax.tree.map(lambda x: x[None], observation)
        size = jax.tree.leaves(observation)[0].shape[0]
        check_memory(memory, size, self._memory_structure)
        first = as_batch("first", first, bool, size)
        self._check_reward(reward, memory, first)
        mask = self._mask(action_mask, () if is_single else (size,), agents)
        fields: dict[str, Any] = {  # NumPy arrays, which are transferred in one call
            "reward": as_batch("reward", 0.0 if reward is None else reward, np.float32, size, agents),
            "discount": np.ones((size, *agents), np.float32),
            "first": first,
            "last": np.zeros(size, bool),
            "alive": None if alive is None else as_batch("alive", alive, bool, size, agents),
        }
        timestep = TimeStep(observation=observation, action_mask=mask, **fields)
        leaves, structure = self._flat_parameters
        memory, action = _act(self.config, spec, structure, leaves, memory, timestep, as_key(key))
        action = jax.device_get(action)  # before a row is taken, which is a program of its own on the device
        return memory, jax.tree.map(lambda x: x[0, ...], action) if is_single else action

    def _check_reward(self, reward: object, memory: PolicyMemory | tuple[()], first: np.ndarray) -> None:
        """Require a reward where the policy is shown it, but for the first step of an episode."""
        needs_reward = reward is None and getattr(self.config, "needs_reward", False)
        if needs_reward and not np.all(memory.is_new | first):  # type: ignore[union-attr]
            raise ShoalError(
                "reward=None: this policy is shown the previous reward; give it, such as reward=0.0."
            )

    def _mask(self, action_mask: object, batch_shape: tuple[int, ...], agents: tuple[int, ...]) -> PyTree:
        """Return a mask of a batch, whose shape is () for one observation; None for a world without masks."""
        if action_mask is None and self.needs_mask:
            raise ShoalError(
                "action_mask=None: the world of this policy has masks, and without one it may choose an illegal "
                "action; give that of the time-step, such as action_mask=timestep.action_mask."
            )
        if action_mask is None:
            return None
        mask = as_mask(action_mask, self.spec.action_space, (*batch_shape, *agents), self.spec.roles)
        return mask if batch_shape else jax.tree.map(lambda x: x[None], mask)

    def act(
        self,
        observation: PyTree,
        *,
        action_mask: object = None,
        alive: object = None,
        key: Array | None = None,
    ) -> np.ndarray:
        """Choose the action of a policy without memory; the arguments are those of a call.

        Raises:
          ShoalError: as a call; or the policy has a memory.
        """
        if self._memory_structure != jax.tree.structure(()):
            raise ShoalError(
                "act(observation) is for policies without memory, and this one has a memory; call it with the memory: "
                "memory, action = policy(memory, observation)."
            )
        return self((), observation, action_mask=action_mask, alive=alive, key=key)[1]


@functools.partial(jax.jit, static_argnums=(1, 2))
def _act(
    config: AlgorithmConfig,
    spec: EnvSpec,
    structure: jax.tree_util.PyTreeDef,
    leaves: list[Array],
    memory: PolicyMemory | tuple[()],
    timestep: TimeStep,
    key: Array | None,
) -> tuple[PolicyMemory | tuple[()], PyTree]:
    algorithm, parameters = config.algorithm(spec), jax.tree.unflatten(structure, leaves)
    greedy = key is None
    if isinstance(memory, PolicyMemory):
        state, timestep = memory.state, timestep._replace(first=timestep.first | memory.is_new)
    else:
        state = _memory_of_greedy(algorithm, timestep.first.shape)
    state, action, _ = algorithm.act(
        parameters, state, timestep, jax.random.key(0) if greedy else key, greedy=greedy
    )
    return PolicyMemory(state, jnp.zeros_like(timestep.first)) if memory else (), action


def _memory_of_greedy(algorithm: Algorithm, batch_shape: tuple[int, ...]) -> Memory:
    """Make the memory before the first step, without what no greedy action reads, such as noise."""
    memory = algorithm.memory(batch_shape)
    return getattr(memory, "of_greedy", memory)


def as_numbers(observation: PyTree, space: Space, name: str = "observation") -> PyTree:
    """Convert an observation, given as numbers or lists, to NumPy arrays.

    Raises:
      ShoalError: a part of it is not an array of numbers, or it lacks an entry of a dictionary.
    """
    if isinstance(space, Dict):
        if not isinstance(observation, dict) or set(observation) != set(space):
            raise ShoalError(f"{name} must be a dictionary with the entries {', '.join(space)}.")
        return {key: as_numbers(observation[key], part, f"{name}[{key!r}]") for key, part in space.items()}
    try:
        array = np.asarray(observation)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if not any(jnp.issubdtype(array.dtype, kind) for kind in (np.floating, np.integer, np.bool_)):
        raise ShoalError(f"{name}={observation!r:.100} is not an array of numbers.")
    return array


def as_arrays(observation: PyTree, space: Space, name: str = "observation") -> PyTree:
    """Convert the arrays of an observation to the space's dtypes.

    Numbers outside a Box's bounds are accepted, since measurements do not always stay within bounds.

    Raises:
      ShoalError: a number is NaN, infinite where its Box has a bound, not representable in an integer Box's dtype, or
        not in a Discrete or MultiDiscrete space.
    """
    if isinstance(space, Dict):
        return {key: as_arrays(observation[key], part, f"{name}[{key!r}]") for key, part in space.items()}
    with np.errstate(invalid="ignore", over="ignore"):  # the error for values that do not fit is raised below
        array = observation.astype(space.dtype)
    if isinstance(space, Box) and jnp.issubdtype(space.dtype, np.floating):
        if np.isfinite(array).all():  # nearly always, at each step of a real system: no more is computed
            return array
        is_bounded = np.where(array > 0, np.isfinite(space.high), np.isfinite(space.low))
        is_wrong = np.isnan(array) | (np.isinf(array) & is_bounded)
        expected = "a policy needs numbers that are finite, or infinite where its space is"
    else:
        # What the cast has changed is no value of the space.
        is_wrong = array != observation if array.dtype != observation.dtype else np.zeros(array.shape, bool)
        expected = f"it must be a value of {space.dtype.name}"
    if not isinstance(space, Box):
        is_wrong = is_wrong | (array < 0) | (array > _largest(space))
        expected = f"it must be one of the values of {space}, which begin with 0"
    if np.any(is_wrong):
        _raise_wrong_value(name, observation, is_wrong, expected)
    return array


def _largest(space: Discrete | MultiDiscrete) -> np.ndarray:
    """Return the largest value of a space, or of each of its parts."""
    return np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1


def _raise_wrong_value(name: str, array: np.ndarray, is_wrong: np.ndarray, expected: str) -> None:
    index = tuple(np.argwhere(is_wrong)[0].tolist())
    position = f"[{', '.join(map(str, index))}]" if index else ""
    raise ShoalError(f"{name}{position} is {array[index]:g}; {expected}.")


def repeated(space: Space, count: int) -> Space:
    """Return the space of one element for each agent, along a first axis."""
    if isinstance(space, Dict):
        return Dict({name: repeated(part, count) for name, part in space.items()})
    if isinstance(space, Box):
        low, high = (np.broadcast_to(bound, (count, *space.shape)) for bound in (space.low, space.high))
        return Box(low, high, dtype=space.dtype)
    largest = _largest(space)
    return Box(0, np.broadcast_to(largest, (count, *largest.shape)), dtype=space.dtype)


def as_batch(name: str, value: object, dtype: type, size: int, agents: tuple[int, ...] = ()) -> np.ndarray:
    """Return one number per observation of a batch, [size], from one number or from `size` numbers.

    With several agents, `(A,)`, it is [size, A], from one number, or one for each agent, in one or in each environment.

    Raises:
      ShoalError: another number of values is given, or one is not finite.
    """
    try:
        if isinstance(value, str):  # which NumPy would read as a number, or as True
            raise TypeError
        array: np.ndarray = np.broadcast_to(np.asarray(value, dtype), (size, *agents))
    except (ValueError, TypeError):
        shape = " x ".join(map(str, (size, *agents)))
        raise ShoalError(
            f"{name}={value!r:.100} must be one number, or {shape}, one for each observation."
        ) from None
    if not np.isfinite(array).all():
        _raise_wrong_value(name, array, ~np.isfinite(array), "it must be finite")
    return array


def _choices(space: Space) -> tuple[int, ...]:
    """Return the number of actions in each part of a mask; of a Box that of its numbers."""
    if isinstance(space, Box):
        return (math.prod(space.shape),)
    return (space.n,) if isinstance(space, Discrete) else space.nvec  # type: ignore[union-attr]


def as_mask(
    mask: PyTree,
    space: Space,
    batch_shape: tuple[int, ...],
    roles: tuple[int, ...] = (),
    name: str = "action_mask",
) -> PyTree:
    """Convert a mask, given as numbers or lists, to boolean arrays.

    Raises:
      ShoalError: it does not have the shape of the action space's mask for each observation, or it allows no action
        for one of them.
    """
    if isinstance(space, Dict):
        if not isinstance(mask, dict) or not set(mask) <= set(space):
            raise ShoalError(f"{name} must be a dictionary with entries among {', '.join(space)}.")
        return {
            key: as_mask(part, space[key], batch_shape, roles, f"{name}[{key!r}]")
            for key, part in mask.items()
        }
    is_of_roles = isinstance(space, Box) and len(set(roles)) > 1
    if not isinstance(space, Discrete | MultiDiscrete) and not is_of_roles:
        raise ShoalError(f"{name} was given, but {space} has no single actions to mask; leave it out.")
    sizes = _choices(space)
    expected = (*batch_shape, sum(sizes))
    array: np.ndarray = np.asarray(as_numbers(mask, space, name), bool)
    if array.shape != expected:
        raise ShoalError(
            f"{name} has shape {array.shape}; for {space} it must be of shape {expected}, one entry an action"
            f"{' and one row an observation' if batch_shape else ''}."
        )
    for index, part in enumerate(np.split(array, np.cumsum(sizes)[:-1], axis=-1)):
        if not part.any(-1).all():
            row = f"[{int(np.argmin(part.any(-1)))}]" if batch_shape else ""
            choice = "action" if isinstance(space, Discrete) else f"value of part {index} of {space}"
            raise ShoalError(f"{name}{row} allows no {choice}; at least one must be legal.")
    return array


def as_key(key: Array | None) -> Array | None:
    """Return a typed random key, from `jax.random.key` or from the words of `PRNGKey`; None stays None.

    Raises:
      ShoalError: it is not one key.
    """
    if key is None:
        return None
    dtype, shape = getattr(key, "dtype", None), np.shape(key) if hasattr(key, "dtype") else ()
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return key
    if dtype == np.uint32 and shape == jax.random.key_data(jax.random.key(0)).shape:
        return jax.random.wrap_key_data(jnp.asarray(key))
    raise ShoalError(f"key={short_repr(key)} is not a random key; give one such as jax.random.key(3).")


def check_memory(memory: Memory, size: int, structure: object) -> None:
    """Raise ShoalError unless the memory has the given structure for `size` environments."""
    if jax.tree.structure(memory) != structure:
        raise ShoalError(
            f"memory={short_repr(memory)} is not a memory of this policy; begin with initial_memory(({size},))."
        )
    for leaf in jax.tree.leaves(memory):
        if np.shape(leaf)[:1] != (size,):
            raise ShoalError(
                f"memory has shape {np.shape(leaf)} and the observations are {size}; begin with "
                f"initial_memory(({size},))."
            )


def batch_axes(observation: PyTree, space: Space) -> int:
    """Count the leading axes that an observation, of arrays, has beyond its space's shape, 0 or 1.

    Raises:
      ShoalError: the shape is neither one element's nor a batch's.
    """
    if isinstance(space, Dict):
        axes = {batch_axes(observation[name], part) for name, part in space.items()}
        if len(axes) != 1:
            raise ShoalError("the entries of observation disagree on whether they are one or a batch.")
        return axes.pop()
    shape = observation.shape
    extra = len(shape) - len(space.shape)
    if extra not in (0, 1) or shape[extra:] != space.shape:
        expected = "an integer" if isinstance(space, Discrete) else f"of shape {space.shape}"
        raise ShoalError(
            f"observation has shape {shape}; one must be {expected}, a batch has one axis before."
        )
    return extra
