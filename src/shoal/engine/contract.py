"""The runtime's requirements of an algorithm's functions, checked while they are traced."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.envs.batch import Batch
from shoal.types import Algorithm, Array, EnvSpec, Learner, Memory, Metrics, PyTree
from shoal.types.spaces import Box, Discrete, MultiDiscrete


def checked_algorithm(config: Any, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
    """Return the functions of a config.

    Raises:
      ShoalError: its `algorithm` returns anything else.
    """
    algorithm = config.algorithm(spec, axis)
    if not isinstance(algorithm, Algorithm):
        raise ShoalError(
            f"{type(config).__name__}.algorithm returns {_describe(algorithm)}; it must return a "
            "shoal.types.Algorithm."
        )
    return algorithm


def checked_learner(algorithm: Algorithm, key: Array, num_envs: int) -> Learner:
    """Return an algorithm's first learner.

    Raises:
      ShoalError: its `init` returns something other than a learner.
    """
    learner = algorithm.init(key, num_envs)
    if not isinstance(learner, Learner):
        raise ShoalError(
            f"{_function_name(algorithm.init, 'init')} returns {_describe(learner)}; it must return a "
            "shoal.types.Learner."
        )
    return learner


def checked_act(
    algorithm: Algorithm, result: Any, memory: Memory, batch: Batch
) -> tuple[Memory, PyTree, PyTree]:
    """Return the memory, the actions and the extras that `act` returned.

    Raises:
      ShoalError: it returned something else, a memory of another structure, or no action for each environment.
    """
    name = _function_name(algorithm.act, "act")
    if not isinstance(result, tuple) or len(result) != 3:
        raise ShoalError(f"{name} returns {_describe(result)}; it must return (memory, action, extras).")
    require_same_structure(name, "memory", result[0], memory)
    space = batch.action_space
    if isinstance(space, Discrete | MultiDiscrete | Box):
        agents = () if batch.num_agents == 1 else (batch.num_agents,)
        shape, expected = getattr(result[1], "shape", None), (batch.num_envs, *agents, *space.shape)
        if shape != expected:
            got = _describe(result[1]) if shape is None else f"actions of shape {shape}"
            raise ShoalError(
                f"{name} returns {got} for {batch.num_envs} environments with action_space={space}; "
                f"it must be {expected}."
            )
    return result  # type: ignore[return-value]


def checked_update(
    algorithm: Algorithm, result: Any, learner: Learner
) -> tuple[Learner, Metrics, Mapping[str, Any]]:
    """Return the learner, the metrics and the checks that `update` returned, none where it has no checks.

    `metrics.py` checks the content of the metrics and checks.

    Raises:
      ShoalError: it returned something else, or a learner of another structure.
    """
    name = _function_name(algorithm.update, "update")
    if not isinstance(result, tuple) or len(result) not in (2, 3) or isinstance(result, Learner):
        raise ShoalError(
            f"{name} returns {_describe(result)}; it must return (learner, metrics) or (learner, metrics, checks)."
        )
    require_same_structure(name, "learner", result[0], learner)
    return (*result, {}) if len(result) == 2 else result  # type: ignore[return-value]


def require_same_structure(name: str, what: str, after: PyTree, before: PyTree) -> None:
    """Require that a function returns a tree of the structure, shapes and dtypes that it was given.

    Raises:
      ShoalError: it does not; the sentence names the first leaf that differs.
    """
    old, new = (
        {path: _dtype_and_shape(x) for path, x in struct.named_leaves(tree).items()}
        for tree in (before, after)
    )
    for path in [*old, *(path for path in new if path not in old)]:
        if old.get(path) != new.get(path):
            raise ShoalError(
                f"{name} returns a {what} whose {path or 'value'!r} is {new.get(path, 'missing')}, and was given "
                f"{old.get(path, 'none')}; the {what} must keep its structure, shapes and dtypes."
            )
    structures: list[Any] = [jax.tree.structure(tree) for tree in (before, after)]
    if structures[0] != structures[1]:
        raise ShoalError(
            f"{name} returns a {what} of the structure {structures[1]}, and was given {structures[0]}; it must keep "
            "its structure."
        )


def _dtype_and_shape(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else type(x).__name__


def _describe(value: Any) -> str:
    if type(value) is tuple:
        return f"{len(value)} values"
    return "None" if value is None else f"a {type(value).__name__}"


def _function_name(function: Callable, role: str) -> str:
    """Return a function's name as its author knows it, such as `MyConfig.algorithm.update`."""
    return getattr(function, "__qualname__", role).replace(".<locals>", "")
