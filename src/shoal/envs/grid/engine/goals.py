"""Goals: the conditions that end an episode with success.

A goal is five bytes, `[kind, ...]`, as in XLand-MiniGrid:

    [kind, tile, colour, 0, 0]                       one tile
    [kind, tile, colour, other tile, other colour]   two tiles
    [kind, tile, colour, row, column]                a tile on a cell
    [kind, row, column, 0, 0]                        the agent on a cell
"""

import enum
from typing import NamedTuple

import jax.numpy as jnp

from shoal.envs.grid.engine import adjacency
from shoal.envs.grid.engine.adjacency import ActionFlags, Neighbourhood
from shoal.envs.grid.engine.agent import Agent
from shoal.envs.grid.engine.board import Board, read
from shoal.envs.grid.engine.tiles import Bytes, pack, unpack
from shoal.types import Array

ENCODED_SIZE = 5  # bytes


class GoalKind(enum.IntEnum):
    """The kinds of goals by number; "near up" means that the (second) tile is above."""

    NONE = 0
    AGENT_HOLD = 1
    AGENT_ON_TILE = 2
    AGENT_NEAR = 3
    TILE_NEAR = 4
    TILE_ON_POSITION = 5
    AGENT_ON_POSITION = 6
    TILE_NEAR_UP = 7
    TILE_NEAR_RIGHT = 8
    TILE_NEAR_DOWN = 9
    TILE_NEAR_LEFT = 10
    AGENT_NEAR_UP = 11
    AGENT_NEAR_RIGHT = 12
    AGENT_NEAR_DOWN = 13
    AGENT_NEAR_LEFT = 14


KIND_BITS = adjacency.kind_table(
    (
        0,
        adjacency.POCKET,
        adjacency.OWN_CELL,
        adjacency.agent_near_bits(),
        adjacency.tile_near_bits(),
        adjacency.CELL_AT,
        adjacency.AGENT_AT,
        *(adjacency.tile_near_bits(direction) for direction in range(4)),
        *(adjacency.agent_near_bits(direction) for direction in range(4)),
    )
)


class Goal(NamedTuple):
    """One goal, decoded."""

    kind: Array  # uint32 [], bits as in `adjacency`
    tile: Array  # uint16 []
    other: Array  # uint16 [], the second tile where there is one
    place: Array  # int32 [], in the board's memory, for goals about a cell


def decode(board: Board, encoded_goal: Bytes) -> Goal:
    """Decode the five bytes of a goal, [5]."""
    numbers = jnp.asarray(encoded_goal).astype(jnp.int32)
    kind = numbers[0]
    row, column = jnp.where(kind == GoalKind.AGENT_ON_POSITION, numbers[1:3], numbers[3:5])
    is_inside = (row < board.height) & (column < board.width)
    place = jnp.where(is_inside, board.place(row, column), 0)
    return Goal(jnp.asarray(KIND_BITS)[kind], pack(encoded_goal[1:3]), pack(encoded_goal[3:5]), place)


def encode(board: Board, goal: Goal) -> Array:
    """Encode a goal as uint8 [5]; a place beyond the grid is written as the first row and column beyond it."""
    kind = (goal.kind >> adjacency.KIND_SHIFT).astype(jnp.uint8)
    outside = jnp.asarray((board.height, board.width))
    cell = jnp.where(goal.place == 0, outside, jnp.stack(board.position(goal.place))).astype(jnp.uint8)
    first = jnp.where(kind == GoalKind.AGENT_ON_POSITION, cell, unpack(goal.tile))
    second = jnp.where(kind == GoalKind.TILE_ON_POSITION, cell, unpack(goal.other))
    return jnp.concatenate([kind[None], first, second])


def make(kind: GoalKind, tile: Array | int = 0, place: Array | int = 0) -> Goal:
    """Make a goal with one tile, a place in the board's memory, or both."""
    return Goal(
        jnp.asarray(KIND_BITS[kind]),
        jnp.asarray(tile, jnp.uint16),
        jnp.zeros((), jnp.uint16),
        jnp.asarray(place, jnp.int32),
    )


def is_reached(
    goal: Goal, cells: Array, agent: Agent, neighbourhood: Neighbourhood | None, flags: ActionFlags
) -> Array:
    """Report whether a goal is reached, from the cells after all rules.

    `neighbourhood` is None where the goal is known not to read it.
    """
    is_held = adjacency.has_any_bit(goal.kind, adjacency.POCKET) & flags.pick & (agent.pocket == goal.tile)
    compared_place = jnp.where(adjacency.has_any_bit(goal.kind, adjacency.CELL_AT), goal.place, agent.place)
    on_tile = adjacency.has_any_bit(goal.kind, adjacency.OWN_CELL) & flags.forward
    is_on_cell = (adjacency.has_any_bit(goal.kind, adjacency.CELL_AT) | on_tile) & (
        read(cells, compared_place) == goal.tile
    )
    is_agent_there = adjacency.has_any_bit(goal.kind, adjacency.AGENT_AT) & (agent.place == goal.place)
    is_reached_alone = is_held | is_on_cell | is_agent_there
    if neighbourhood is None:
        return is_reached_alone
    agent_matched = adjacency.agent_matches(goal.kind, goal.tile, neighbourhood, flags)
    front_matched = adjacency.tile_matches(goal.kind, goal.tile, goal.other, neighbourhood, flags)
    return adjacency.any_true([is_reached_alone, *agent_matched, *front_matched])
