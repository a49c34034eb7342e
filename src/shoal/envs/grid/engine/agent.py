"""The agent's actions: move, turn, pick up, put down, and open or close a door."""

import enum
from typing import NamedTuple

import jax.numpy as jnp

from shoal.envs.grid.engine.board import Board, direction_offset
from shoal.envs.grid.engine.tiles import (
    FLOOR,
    NOTHING,
    PICKABLE,
    TILE_MASK,
    WALKABLE,
    Tile,
    is_one_of,
    tile_of,
)
from shoal.types import Array


class Action(enum.IntEnum):
    """The actions by number."""

    FORWARD = 0  # onto the cell in front, if it is walkable
    TURN_RIGHT = 1
    TURN_LEFT = 2
    PICK_UP = 3  # the object in front, if the pocket is empty
    PUT_DOWN = 4  # the object in the pocket, if the cell in front is floor
    TOGGLE = 5  # opens or closes the door in front; a locked one opens to the key of its colour


class Agent(NamedTuple):
    """Place, direction and pocket of the agent."""

    place: Array  # [], int32, in the board's memory
    direction: Array  # [], int32: up, right, down, left
    pocket: Array  # [], uint16: a cell, NOTHING if empty


def move(board: Board, agent: Agent, front: Array, action: Array) -> Agent:
    """Return the agent after a step forward or a turn."""
    is_step = (action == Action.FORWARD) & is_one_of(tile_of(front), WALKABLE)
    turn = jnp.where(action == Action.TURN_RIGHT, 1, jnp.where(action == Action.TURN_LEFT, 3, 0))
    place = agent.place + jnp.where(is_step, direction_offset(board, agent.direction), 0)
    return agent._replace(place=place, direction=(agent.direction + turn) % 4)


def handle_object(agent: Agent, front: Array, action: Array) -> tuple[Agent, Array]:
    """Return the agent and the cell in front after an object was picked up, put down or toggled.

    Picking up leaves black floor; a door keeps its colour.
    """
    tile, held_tile = tile_of(front), tile_of(agent.pocket)
    is_pick_up = (action == Action.PICK_UP) & is_one_of(tile, PICKABLE) & (held_tile == Tile.EMPTY)
    is_put_down = (action == Action.PUT_DOWN) & (tile == Tile.FLOOR) & (held_tile != Tile.EMPTY)
    pocket = jnp.where(is_pick_up, front, jnp.where(is_put_down, NOTHING, agent.pocket))
    new_front = jnp.where(is_pick_up, FLOOR, jnp.where(is_put_down, agent.pocket, front))
    front = jnp.where(action == Action.TOGGLE, toggle(agent.pocket, front), new_front)
    return agent._replace(pocket=pocket), front


def toggle(pocket: Array, front: Array) -> Array:
    """Return the cell in front after a toggle."""
    tile, colour = tile_of(front), front & jnp.uint16(0xFFFF ^ TILE_MASK)
    has_key = pocket == colour | jnp.uint16(Tile.KEY)
    is_opening = (tile == Tile.DOOR_CLOSED) | ((tile == Tile.DOOR_LOCKED) & has_key)
    is_closing = tile == Tile.DOOR_OPEN
    opened, closed = colour | jnp.uint16(Tile.DOOR_OPEN), colour | jnp.uint16(Tile.DOOR_CLOSED)
    return jnp.where(is_opening, opened, jnp.where(is_closing, closed, front))
