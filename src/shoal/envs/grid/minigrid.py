"""The MiniGrid tasks: how an episode of each starts.

Worlds and distributions are those of XLand-MiniGrid's ports of them (Nikulin et al. 2023), which follow
MiniGrid (Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld: Modular & Customizable Reinforcement Learning
Environments for Goal-Oriented Tasks").
"""

import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, parameter
from shoal.envs.grid import goals, layouts
from shoal.envs.grid.board import write
from shoal.envs.grid.goals import Goal, GoalKind
from shoal.envs.grid.layouts import COLOURS, THINGS, below, distinct, draw, one_of
from shoal.envs.grid.tiles import FLOOR, GOAL, WALL, Colour, Tile, cell, coloured_cells
from shoal.envs.grid.world import LARGEST_VIEW, LEAST_VIEW, GridState, GridWorld, begin, side
from shoal.errors import ShoalError
from shoal.types import Array

RIGHT = 1  # the direction
MEMORY_HEIGHT = 7
LEFT_WALL_ROOM = 5  # the side of the room in which a memory task shows its thing, walls included


def at_the_goal() -> Goal:
    """Stand on the green goal."""
    return goals.make(GoalKind.AGENT_ON_TILE, int(GOAL))


def with_goal(grid: np.ndarray) -> np.ndarray:
    """A room with the goal in its lower right corner."""
    grid = grid.copy()
    grid[-2, -2] = GOAL
    return grid


@environment
class Empty(GridWorld):
    """An empty room: walk from the upper left corner to the goal in the lower right one."""

    height: int = side(9, smallest=4)
    width: int = side(9, smallest=4)
    changes_cells = False

    def start(self, key: Array) -> GridState:
        """Always the same."""
        cells = self.board.flat(with_goal(layouts.room(self.height, self.width)))
        return begin(cells, self.board.place(1, 1), RIGHT, at_the_goal())


@environment
class EmptyRandom(GridWorld):
    """An empty room: walk from anywhere to the goal in the lower right corner."""

    height: int = side(9, smallest=4)
    width: int = side(9, smallest=4)
    changes_cells = False

    def start(self, key: Array) -> GridState:
        """The agent stands anywhere and looks anywhere."""
        grid = with_goal(layouts.room(self.height, self.width))
        free = layouts.free_places(self.board, grid)
        bits = draw(key, 2)
        place = jnp.asarray(free)[below(bits[0], len(free))]
        return begin(self.board.flat(grid), place, below(bits[1], 4), at_the_goal())


@environment
class FourRooms(GridWorld):
    """Four rooms joined by openings: walk from anywhere to the goal, which is anywhere."""

    height: int = side(19, smallest=5)
    width: int = side(19, smallest=5)

    changes_cells = False

    def check(self) -> None:
        """Holds the sizes to those in which each door is between two rooms."""
        GridWorld.check(self)
        layouts.check_rooms("R4", self.height, self.width)

    def start(self, key: Array) -> GridState:
        """An opening in each of the four walls; goal and agent on two free cells, openings included."""
        grid = layouts.four_rooms(self.height, self.width)
        bits = draw(key, 7)
        openings = layouts.four_rooms_doors(self.board, bits[:4])
        free = jnp.concatenate([jnp.asarray(layouts.free_places(self.board, grid)), openings])
        goal, agent = distinct(bits[4:6], len(free))
        cells = write(jnp.asarray(self.board.flat(grid)), openings, FLOOR)
        cells = write(cells, free[goal], GOAL)
        return begin(cells, free[agent], below(bits[6], 4), at_the_goal())


@environment
class DoorKey(GridWorld):
    """Two rooms: fetch the key, unlock the door with it, and walk to the goal."""

    height: int = side(5, smallest=4)
    width: int = side(5, smallest=5)

    def start(self, key: Array) -> GridState:
        """Key and agent are left of the wall, which stands anywhere; the door is not in its lowest cell."""
        board, rows = self.board, self.height - 2
        bits = draw(key, 5)
        wall = 2 + below(bits[0], self.width - 4)
        door = 1 + below(bits[1], self.width - 3)
        key_rank, agent_rank = distinct(bits[2:4], rows * (wall - 1))
        cells = jnp.asarray(board.flat(with_goal(layouts.room(self.height, self.width))))
        cells = write(cells, board.place(np.arange(self.height), wall), WALL)
        cells = write(cells, board.place(door, wall), cell(Tile.DOOR_LOCKED, Colour.YELLOW))
        key_place, agent_place = (
            board.place(1 + rank // (wall - 1), 1 + rank % (wall - 1)) for rank in (key_rank, agent_rank)
        )
        cells = write(cells, key_place, cell(Tile.KEY, Colour.YELLOW))
        return begin(cells, agent_place, below(bits[4], 4), at_the_goal())


def left_place(world: GridWorld, rank: Array) -> Array:
    """Where a cell of the left one of two rooms lies, by its number."""
    columns = world.width // 2 - 1
    return world.board.place(1 + rank // columns, 1 + rank % columns)


def right_place(world: GridWorld, bits: Array) -> Array:
    """Where some cell of the right one of two rooms lies."""
    first = world.width // 2 + 1
    columns = world.width - 1 - first
    rank = below(bits, (world.height - 2) * columns)
    return world.board.place(1 + rank // columns, first + rank % columns)


def left_cells(world: GridWorld) -> int:
    """How many cells the left one of two rooms has."""
    return (world.height - 2) * (world.width // 2 - 1)


@environment
class Unlock(GridWorld):
    """Two rooms: fetch the key and open the locked door."""

    height: int = side(6, smallest=4)
    width: int = side(11, smallest=5)

    def start(self, key: Array) -> GridState:
        """Key and agent are in the left room."""
        bits = draw(key, 5)
        colour = one_of(bits[0], COLOURS)
        door = layouts.two_rooms_door(self.board, bits[1])
        key_place, place = (left_place(self, rank) for rank in distinct(bits[2:4], left_cells(self)))
        cells = jnp.asarray(self.board.flat(layouts.two_rooms(self.height, self.width)))
        cells = write(cells, door, coloured_cells(Tile.DOOR_LOCKED, colour))
        cells = write(cells, key_place, coloured_cells(Tile.KEY, colour))
        goal = goals.make(GoalKind.TILE_ON_POSITION, coloured_cells(Tile.DOOR_OPEN, colour), door)
        return begin(cells, place, below(bits[4], 4), goal)


@environment
class UnlockPickUp(GridWorld):
    """Two rooms: fetch the key, open the locked door, and pick up the thing in the other room."""

    height: int = side(6, smallest=4)
    width: int = side(11, smallest=5)

    def start(self, key: Array) -> GridState:
        """Key and agent are in the left room, the thing is in the right one."""
        bits = draw(key, 8)
        thing = coloured_thing(bits[0], bits[1])
        colour = one_of(bits[2], COLOURS)
        key_place, place = (left_place(self, rank) for rank in distinct(bits[3:5], left_cells(self)))
        cells = jnp.asarray(self.board.flat(layouts.two_rooms(self.height, self.width)))
        cells = write(
            cells, layouts.two_rooms_door(self.board, bits[5]), coloured_cells(Tile.DOOR_LOCKED, colour)
        )
        cells = write(cells, key_place, coloured_cells(Tile.KEY, colour))
        cells = write(cells, right_place(self, bits[6]), thing)
        return begin(cells, place, below(bits[7], 4), goals.make(GoalKind.AGENT_HOLD, thing))


@environment
class BlockedUnlockPickUp(GridWorld):
    """Two rooms: clear the way to the locked door, open it, and pick up the thing in the other room.

    As in XLand-MiniGrid, the thing in the way may have been put where the key was; such an episode cannot be
    won.
    """

    height: int = side(6, smallest=5)
    width: int = side(11, smallest=5)

    def start(self, key: Array) -> GridState:
        """Key, agent and what is in the way are in the left room, the thing is in the right one."""
        bits = draw(key, 10)
        thing, obstacle = coloured_thing(bits[0], bits[1]), coloured_thing(bits[2], bits[3])
        colour = one_of(bits[4], COLOURS)
        door = layouts.two_rooms_door(self.board, bits[5])
        key_rank = below(bits[6], left_cells(self))
        columns = self.width // 2 - 1
        obstacle_rank = (self.board.position(door)[0] - 1) * columns + columns - 1
        cells = jnp.asarray(self.board.flat(layouts.two_rooms(self.height, self.width)))
        cells = write(cells, door, coloured_cells(Tile.DOOR_LOCKED, colour))
        cells = write(cells, left_place(self, key_rank), coloured_cells(Tile.KEY, colour))
        cells = write(cells, right_place(self, bits[7]), thing)
        cells = write(cells, left_place(self, obstacle_rank), obstacle)
        rank = apart_from(bits[8], left_cells(self), key_rank, obstacle_rank)
        goal = goals.make(GoalKind.AGENT_HOLD, thing)
        return begin(cells, left_place(self, rank), below(bits[9], 4), goal)


def coloured_thing(thing_bits: Array, colour_bits: Array) -> Array:
    """Any thing of any colour, as a cell."""
    thing = one_of(thing_bits, THINGS).astype(jnp.uint16)
    return thing | coloured_cells(Tile.EMPTY, one_of(colour_bits, COLOURS))


def apart_from(bits: Array, total: int, one: Array, other: Array) -> Array:
    """A number from 0 to `total - 1` that is neither of two, which may be equal."""
    low, high = jnp.minimum(one, other), jnp.maximum(one, other)
    differ = low != high
    rank = below(bits, total - 1 - differ.astype(jnp.int32))
    rank = rank + (rank >= low)
    return rank + ((rank >= high) & differ)


@environment
class LockedRoom(GridWorld):
    """Six rooms along a corridor: fetch the key from one of them and walk to the goal in the locked one."""

    height: int = side(19, smallest=9)
    width: int = side(19, smallest=9)

    def check(self) -> None:
        """Holds the sizes to those in which each door is between two rooms."""
        GridWorld.check(self)
        layouts.check_rooms("R6", self.height, self.width)

    def start(self, key: Array) -> GridState:
        """Doors of six colours; the key, which is in another room, has that of the locked one."""
        board = self.board
        bits = draw(key, 15)
        doors = jnp.asarray(layouts.six_rooms_doors(board))
        corners = jnp.asarray(layouts.six_rooms_corners(board))
        colours = jnp.asarray(np.asarray(COLOURS, np.int32))[jnp.stack(distinct(bits[:6], 6))]
        goal_room, key_room = distinct(bits[6:8], 6)
        room_height, room_width = self.height // 3, self.width // 2 - 2

        def within(room: Array, row_bits: Array, column_bits: Array) -> Array:
            row, column = 1 + below(row_bits, room_height - 1), 1 + below(column_bits, room_width - 1)
            return corners[room] + row * board.stride + column

        cells = jnp.asarray(board.flat(layouts.six_rooms(self.height, self.width)))
        cells = write(cells, doors, coloured_cells(Tile.DOOR_CLOSED, colours))
        cells = write(cells, doors[goal_room], coloured_cells(Tile.DOOR_LOCKED, colours[goal_room]))
        cells = write(cells, within(goal_room, bits[8], bits[9]), GOAL)
        cells = write(
            cells, within(key_room, bits[10], bits[11]), coloured_cells(Tile.KEY, colours[goal_room])
        )
        row, column = 1 + below(bits[12], self.height - 2), self.width // 2 - 1 + below(bits[13], 2)
        return begin(cells, board.place(row, column), below(bits[14], 4), at_the_goal())


@environment
class Memory(GridWorld):
    """A corridor: go to the end that shows the same thing as the room at the start.

    The other end ends the episode without reward. The things cannot be picked up.
    """

    height: int = parameter(default=MEMORY_HEIGHT, low=MEMORY_HEIGHT, high=MEMORY_HEIGHT)
    width: int = side(13, smallest=8)
    view_size: int = parameter(default=3, low=LEAST_VIEW, high=LARGEST_VIEW)

    changes_cells = False
    shows_goal = False

    def start(self, key: Array) -> GridState:
        """The agent looks right, from anywhere in the room or the corridor before its end."""
        board, end = self.board, self.width - 2
        bits = draw(key, 3)
        things = jnp.asarray([cell(Tile.BALL, Colour.GREEN), cell(Tile.KEY, Colour.GREEN)])
        shown, upper = below(bits[0], 2), below(bits[1], 2)
        cells = jnp.asarray(board.flat(memory_walls(self.height, self.width)))
        cells = write(cells, board.place(2, 1), things[shown])
        cells = write(cells, board.place(1, end), things[upper])
        cells = write(cells, board.place(5, end), things[1 - upper])
        ends = jnp.asarray([board.place(2, end), board.place(4, end)])
        success = jnp.where(shown == upper, ends[0], ends[1])
        return begin(
            cells,
            board.place(3, 1 + below(bits[2], end - 1)),
            RIGHT,
            goals.make(GoalKind.AGENT_ON_POSITION, place=success),
            pitfall=ends[0] + ends[1] - success,
        )


def memory_walls(height: int, width: int) -> np.ndarray:
    """A room on the left, a corridor, and a crossing at its end."""
    end = width - 2
    grid = layouts.room(height, width)
    grid[[1, LEFT_WALL_ROOM], :LEFT_WALL_ROOM] = WALL
    grid[1 : LEFT_WALL_ROOM + 1, [0, LEFT_WALL_ROOM - 1]] = WALL
    grid[height // 2, LEFT_WALL_ROOM - 1] = FLOOR
    grid[[2, 4], 4:end] = WALL
    grid[[1, 5], end - 1] = WALL
    return grid


@environment
class Playground(GridWorld):
    """Nine rooms with doors and things of all kinds, and nothing to reach."""

    height: int = side(19, smallest=7)
    width: int = side(19, smallest=7)
    num_objects: int = parameter(default=12, low=1)

    def check(self) -> None:
        """Holds the sizes to those in which each door is between two rooms, with room for the things."""
        GridWorld.check(self)
        layouts.check_rooms("R9", self.height, self.width)
        free = len(layouts.free_places(self.board, layouts.nine_rooms(self.height, self.width)))
        if not self.num_objects < free:
            raise ShoalError(
                f"num_objects={self.num_objects} is more than {free - 1}, for which there is room beside the agent"
            )

    def start(self, key: Array) -> GridState:
        """Twelve closed doors; things and agent on different free cells."""
        board, count = self.board, self.num_objects
        grid = layouts.nine_rooms(self.height, self.width)
        free = jnp.asarray(layouts.free_places(board, grid))
        bits = draw(key, 24 + 3 * count + 2)
        doors, door_colours, things, thing_colours, ranks, turn = jnp.split(
            bits, np.cumsum((12, 12, count, count, count + 1))
        )
        places = free[jnp.stack(distinct(ranks, len(free)))]
        kinds = one_of(things, (*THINGS, Tile.KEY, Tile.GOAL)).astype(jnp.uint16)
        objects = kinds | coloured_cells(Tile.EMPTY, one_of(thing_colours, COLOURS))
        cells = write(
            jnp.asarray(board.flat(grid)),
            layouts.nine_rooms_doors(board, doors),
            coloured_cells(Tile.DOOR_CLOSED, one_of(door_colours, COLOURS)),
        )
        cells = write(cells, places[:-1], objects)
        return begin(cells, places[-1], below(turn[0], 4), goals.make(GoalKind.NONE))
