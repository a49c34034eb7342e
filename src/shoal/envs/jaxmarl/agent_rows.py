"""Conversion of JaxMARL's dictionaries of agents to arrays with an axis of agents, and of several spaces to one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import jax.numpy as jnp
import numpy as np

from shoal.types import Array, PyTree
from shoal.types.spaces import Box, Dict, Discrete, Space

Row = TypeVar("Row", np.ndarray, Array)


def widest(spaces: Sequence[Space]) -> Space | None:
    """Return the space that holds the elements of several, padded with zeros; None where there is none.

    Vectors may differ in length, and integers in the number of their values.
    """
    first = spaces[0]
    if all(space == first for space in spaces):
        return first
    if all(isinstance(space, Discrete) for space in spaces):
        return Discrete(max(space.n for space in spaces))  # type: ignore[union-attr]
    boxes = [space for space in spaces if isinstance(space, Box)]
    shapes = {box.shape for box in boxes}
    if len(boxes) < len(spaces) or len({box.dtype for box in boxes}) > 1:
        return None
    if len(shapes) > 1 and any(len(shape) != 1 for shape in shapes):
        return None
    shape = max(shapes)
    low = np.min([padded(box.low, shape) for box in boxes], axis=0)
    high = np.max([padded(box.high, shape) for box in boxes], axis=0)
    return Box(low, high, dtype=boxes[0].dtype)


def stack(space: Space, rows: Sequence[PyTree]) -> PyTree:
    """Stack the elements of each agent on a first axis, [A, ...], vectors padded with zeros to the space's length."""
    if isinstance(space, Dict):
        return {name: stack(part, [row[name] for row in rows]) for name, part in space.items()}
    return jnp.stack([padded(jnp.asarray(row, space.dtype), space.shape) for row in rows])


def padded(row: Row, shape: tuple[int, ...]) -> Row:
    """Append zeros, or False, to a vector up to a length; what has the shape already stays."""
    # Bounds stay NumPy's, since spaces are compared and hashed while a program is traced.
    pad = np.pad if isinstance(row, np.ndarray) else jnp.pad
    return row if row.shape == shape else cast(Row, pad(row, (0, shape[0] - row.shape[0])))


def rows_of(values: Any, agents: Sequence[Any]) -> list[Any]:
    """Return the entry of each agent: of a dictionary by agent, or of a sequence in their order, as in some worlds."""
    return [values[agent if isinstance(values, Mapping) else i] for i, agent in enumerate(agents)]


def roles_of(agents: Sequence[object], spaces: Sequence[object]) -> tuple[int, ...]:
    """Number the kinds of agents: those with equal spaces whose names are equal without their number.

    Returns:
      the number of each agent, in the order of first appearance; () if all are of one kind.
    """
    kinds = [(re.sub(r"_?\d+$", "", str(agent)), space) for agent, space in zip(agents, spaces, strict=True)]
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return tuple(numbers[kind] for kind in kinds) if len(numbers) > 1 else ()


def numeric_info(info: Mapping[str, object], agents: Sequence[object]) -> dict[str, Array]:
    """Return the arrays of JaxMARL's `info`; a dictionary by agent becomes one array, [A, ...]."""
    entries = {
        name: jnp.stack(rows_of(value, agents)) if _is_by_agent(value, agents) else value
        for name, value in info.items()
    }
    return {
        name: jnp.asarray(value, value.dtype) for name, value in entries.items() if hasattr(value, "dtype")
    }


def _is_by_agent(value: object, agents: Sequence[object]) -> bool:
    return isinstance(value, Mapping) and set(value) == set(agents)
