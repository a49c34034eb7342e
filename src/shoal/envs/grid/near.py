"""What rules and goals have in common: which of the cells nearby they compare, and after which action.

A step can make true only what concerns the agent, its four neighbours (one is the cell in front of it), and
the four neighbours of the cell in front (one is the agent's own). Each kind of rule or goal is a number
whose bits say what of these it looks at:

    bits  0-3   the agent's neighbours (up, right, down, left), after a step forward
    bits  4-7   the same, after something was put down
    bits  8-11  where the second tile must be, if the first one is in front; after something was put down
    bits 12-15  where the first tile must be, if the second one is in front; after something was put down
    bit  16     the pocket, after something was picked up
    bit  17     the agent's own cell, after a step forward
    bit  18     one cell anywhere, after any action
    bit  19     the agent's place, after any action
    bits 20-    the kind's own number
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.actions import Action
from shoal.envs.grid.board import Board, read, step_of
from shoal.types import Array

ALL = 0b1111
FORWARD_SHIFT, PUT_SHIFT, FIRST_SHIFT, SECOND_SHIFT, KIND_SHIFT = 0, 4, 8, 12, 20
POCKET, OWN_CELL, CELL_AT, AGENT_AT = (1 << bit for bit in (16, 17, 18, 19))


def agent_near(direction: int | None = None) -> int:
    """The bits of "the tile is beside the agent", anywhere or in one direction.

    Anywhere is looked at after steps forward only, one direction after putting something down as well.
    """
    if direction is None:
        return ALL << FORWARD_SHIFT
    return 1 << direction << FORWARD_SHIFT | 1 << direction << PUT_SHIFT


def tile_near(direction: int | None = None) -> int:
    """The bits of "the second tile is beside the first", anywhere or in one direction from the first."""
    if direction is None:
        return ALL << FIRST_SHIFT | ALL << SECOND_SHIFT
    return 1 << direction << FIRST_SHIFT | 1 << opposite(direction) << SECOND_SHIFT


def opposite(direction: int) -> int:
    """The direction behind one that looks in a direction."""
    return (direction + 2) % 4


def numbered(kinds: tuple[int, ...]) -> np.ndarray:
    """The bits of kinds 0, 1, 2, ... with their own numbers, uint32."""
    return np.asarray([bits | kind << KIND_SHIFT for kind, bits in enumerate(kinds)], np.uint32)


class Nearby(NamedTuple):
    """The cells that a step can concern, uint16."""

    front: Array  # [], in front of the agent
    around: Array  # [4], the agent's neighbours; the one in front is stale, `front` counts
    beyond: Array  # [4], the neighbours of the cell in front; one is the agent's own


class Attention(NamedTuple):
    """What the action of a step lets rules and goals look at."""

    forward: Array  # []
    put: Array
    pick: Array
    ahead: Array  # [4], whether that direction is the agent's


def attention(action: Array, direction: Array) -> Attention:
    """What is looked at after an action, for an agent that now looks in a direction."""
    return Attention(
        action == Action.FORWARD,
        action == Action.PUT_DOWN,
        action == Action.PICK_UP,
        np.arange(4, dtype=np.int32) == direction,
    )


def places_nearby(board: Board, place: Array, direction: Array) -> tuple[Array, Array, Array]:
    """Where the cells of `Nearby` lie: front [], around [4], beyond [4]."""
    front = place + step_of(board, direction)
    return front, place + board.steps, front + board.steps


def look(cells: Array, places: tuple[Array, Array, Array]) -> Nearby:
    """Reads the cells nearby, in one gather."""
    front, around, beyond = places
    found = read(cells, jnp.concatenate([front[None], around, beyond]))
    return Nearby(found[0], found[1:5], found[5:9])


def directions(bits: Array, shift: int) -> Array:
    """Four of the bits as booleans, one a direction: [...] to [..., 4]."""
    return ((bits[..., None] >> (shift + np.arange(4, dtype=np.uint32))) & 1).astype(bool)


def has(bits: Array, flag: int) -> Array:
    """Whether a bit is set."""
    return (bits & np.uint32(flag)) != 0


def agent_hits(bits: Array, tile: Array, near: Nearby, attends: Attention) -> tuple[Array, Array]:
    """Which of the agent's neighbours is the tile: of the three others [4], and the one in front []."""
    looked = (directions(bits, FORWARD_SHIFT) & attends.forward) | (directions(bits, PUT_SHIFT) & attends.put)
    found = looked & ~attends.ahead & (near.around == tile)
    in_front = jnp.any(looked & attends.ahead) & (near.front == tile)
    return found, in_front


def tile_hits(bits: Array, first: Array, second: Array, near: Nearby, attends: Attention) -> Array:
    """Which neighbours of the cell in front make up the pair with it, [4]."""
    as_first = directions(bits, FIRST_SHIFT) & (near.front == first) & (near.beyond == second)
    as_second = directions(bits, SECOND_SHIFT) & (near.front == second) & (near.beyond == first)
    return (as_first | as_second) & attends.put
