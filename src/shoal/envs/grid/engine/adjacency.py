"""The cells near the agent that rules and goals compare, and the actions after which they do.

A step can make a condition true only if the condition concerns the agent, its four neighbours (one is the
cell in front of it), or the four neighbours of the cell in front (one is the agent's own). Each kind of rule
or goal is a number whose bits say which of these it compares:

    bits  0-3   the agent's neighbours (up, right, down, left), after a step forward
    bits  4-7   the agent's neighbours, after something was put down
    bits  8-11  where the second tile must be, if the first one is in front; after something was put down
    bits 12-15  where the first tile must be, if the second one is in front; after something was put down
    bit  16     the pocket, after something was picked up
    bit  17     the agent's own cell, after a step forward
    bit  18     one cell anywhere, after any action
    bit  19     the agent's place, after any action
    bits 20-    the kind's own number
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.engine.agent import Action
from shoal.envs.grid.engine.board import Board, direction_offset
from shoal.types import Array

ALL_DIRECTIONS = 0b1111
FORWARD_SHIFT, PUT_SHIFT, FIRST_SHIFT, SECOND_SHIFT, KIND_SHIFT = 0, 4, 8, 12, 20
POCKET, OWN_CELL, CELL_AT, AGENT_AT = (1 << bit for bit in (16, 17, 18, 19))


def agent_near_bits(direction: int | None = None) -> int:
    """Return the bits of "the tile is beside the agent", in any direction or in one.

    A tile in any direction is compared after steps forward only, one direction after putting something down as well.
    """
    if direction is None:
        return ALL_DIRECTIONS << FORWARD_SHIFT
    return 1 << direction << FORWARD_SHIFT | 1 << direction << PUT_SHIFT


def tile_near_bits(direction: int | None = None) -> int:
    """Return the bits of "the second tile is beside the first", in any direction or in one from the first."""
    if direction is None:
        return ALL_DIRECTIONS << FIRST_SHIFT | ALL_DIRECTIONS << SECOND_SHIFT
    opposite = (direction + 2) % 4
    return 1 << direction << FIRST_SHIFT | 1 << opposite << SECOND_SHIFT


def kind_table(kinds: tuple[int, ...]) -> np.ndarray:
    """Return the bits of kinds 0, 1, 2, ... with their own numbers, uint32."""
    return np.asarray([bits | kind << KIND_SHIFT for kind, bits in enumerate(kinds)], np.uint32)


class Neighbourhood(NamedTuple):
    """The cells that a step can concern, uint16 [] each."""

    front: Array  # in front of the agent
    agent_neighbours: tuple[Array, ...]  # four; one of them is the cell in front
    front_neighbours: tuple[Array, ...]  # four, of the cell in front; one is the agent's own


class ActionFlags(NamedTuple):
    """The comparisons that the action of a step allows, and the agent's direction; bool [] each."""

    forward: Array
    put: Array
    pick: Array
    is_ahead: tuple[Array, ...]  # four; true for the agent's direction


def action_flags(action: Array, direction: Array) -> ActionFlags:
    """Return the comparisons that an action allows, for an agent with this direction after the action."""
    return ActionFlags(
        action == Action.FORWARD,
        action == Action.PUT_DOWN,
        action == Action.PICK_UP,
        tuple(direction == number for number in range(4)),
    )


def neighbourhood_places(board: Board, place: Array, direction: Array) -> Array:
    """Return the places of the agent's neighbours, and then those of the neighbours of the cell in front, [8]."""
    return jnp.concatenate(
        [
            place + board.neighbour_offsets,
            place + direction_offset(board, direction) + board.neighbour_offsets,
        ]
    )


def make_neighbourhood(cells: Array, flags: ActionFlags) -> Neighbourhood:
    """Make a neighbourhood from the eight cells [8] in the order of their places."""
    each = tuple(cells[index] for index in range(8))
    agent_neighbours, front_neighbours = each[:4], each[4:]
    return Neighbourhood(select_ahead(agent_neighbours, flags.is_ahead), agent_neighbours, front_neighbours)


def select_ahead(four: tuple[Array, ...], is_ahead: tuple[Array, ...]) -> Array:
    """Select the one of four values that belongs to the agent's direction."""
    return jnp.where(
        is_ahead[0] | is_ahead[1],
        jnp.where(is_ahead[0], four[0], four[1]),
        jnp.where(is_ahead[2], four[2], four[3]),
    )


def replace_front(neighbourhood: Neighbourhood, front: Array, flags: ActionFlags) -> Neighbourhood:
    """Replace the cell in front in a neighbourhood."""
    agent_neighbours = tuple(
        jnp.where(is_at_front, front, cell)
        for is_at_front, cell in zip(flags.is_ahead, neighbourhood.agent_neighbours, strict=True)
    )
    return Neighbourhood(front, agent_neighbours, neighbourhood.front_neighbours)


def has_any_bit(bits: Array, flag: int) -> Array:
    """Report whether any bit of a flag is set."""
    return (bits & np.uint32(flag)) != 0


def agent_matches(bits: Array, tile: Array, neighbourhood: Neighbourhood, flags: ActionFlags) -> list[Array]:
    """Compare the tile with each of the agent's neighbours, where the bits ask for it: four booleans."""
    return [
        (
            has_any_bit(bits, 1 << FORWARD_SHIFT + number) & flags.forward
            | has_any_bit(bits, 1 << PUT_SHIFT + number) & flags.put
        )
        & (cell == tile)
        for number, cell in enumerate(neighbourhood.agent_neighbours)
    ]


def tile_matches(
    bits: Array, first: Array, second: Array, neighbourhood: Neighbourhood, flags: ActionFlags
) -> list[Array]:
    """Compare the pair of tiles with the cell in front and each of its neighbours: four booleans."""
    as_first = flags.put & (neighbourhood.front == first)
    as_second = flags.put & (neighbourhood.front == second)
    return [
        as_first & has_any_bit(bits, 1 << FIRST_SHIFT + number) & (cell == second)
        | as_second & has_any_bit(bits, 1 << SECOND_SHIFT + number) & (cell == first)
        for number, cell in enumerate(neighbourhood.front_neighbours)
    ]


def any_true(booleans: list[Array]) -> Array:
    """Report whether any of several booleans is true."""
    return functools.reduce(jnp.bitwise_or, booleans)
