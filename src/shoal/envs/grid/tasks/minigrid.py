"""The MiniGrid tasks: the start of an episode of each.

Worlds and distributions are those of XLand-MiniGrid's versions of them (Nikulin et al. 2023), which follow
MiniGrid (Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld: Modular & Customizable Reinforcement Learning
Environments for Goal-Oriented Tasks").
"""

import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.base import environment, parameter
from shoal.envs.grid.engine import goals
from shoal.envs.grid.engine.board import write
from shoal.envs.grid.engine.goals import Goal, GoalKind
from shoal.envs.grid.engine.tiles import FLOOR, GOAL, WALL, Colour, Tile, cell, coloured_cells
from shoal.envs.grid.engine.world import MAX_VIEW, MIN_VIEW, GridState, GridWorld, make_state, side_length
from shoal.envs.grid.tasks import layouts
from shoal.envs.grid.tasks.layouts import COLOURS, THINGS, choose, random_bits, sample_distinct, uniform_below
from shoal.types import Array

RIGHT = 1  # the direction
MEMORY_HEIGHT = 7
MEMORY_ROOM_SIDE = 5  # the side of the room in which a memory task shows its object, walls included


def reach_goal_tile() -> Goal:
    """Make the goal of standing on the green goal tile."""
    return goals.make(GoalKind.AGENT_ON_TILE, int(GOAL))


def room_with_goal(world: GridWorld) -> np.ndarray:
    """Make a room with the goal in its lower right corner, cells [height, width]."""
    grid = layouts.room(world.height, world.width)
    grid[-2, -2] = GOAL
    return grid


@environment
class Empty(GridWorld):
    """An empty room: walk from the upper left corner to the goal in the lower right one."""

    height: int = side_length(9, smallest=4)
    width: int = side_length(9, smallest=4)
    changes_cells = False

    def start(self, key: Array) -> GridState:
        """Make the start, always the same."""
        cells = self.board.flat(room_with_goal(self))
        return make_state(cells, self.board.place(1, 1), RIGHT, reach_goal_tile())


@environment
class EmptyRandom(GridWorld):
    """An empty room: walk from anywhere to the goal in the lower right corner."""

    height: int = side_length(9, smallest=4)
    width: int = side_length(9, smallest=4)
    changes_cells = False

    def start(self, key: Array) -> GridState:
        """Draw the agent's cell and direction."""
        grid = room_with_goal(self)
        free = layouts.free_places(self.board, grid)
        bits = random_bits(key, 2)
        place = jnp.asarray(free)[uniform_below(bits[0], len(free))]
        return make_state(self.board.flat(grid), place, uniform_below(bits[1], 4), reach_goal_tile())


@environment
class FourRooms(GridWorld):
    """Four rooms joined by openings: walk from anywhere to the goal, which is anywhere."""

    height: int = side_length(19, smallest=5)
    width: int = side_length(19, smallest=5)

    changes_cells = False

    def check(self) -> None:
        """Require sizes in which each door joins two rooms."""
        GridWorld.check(self)
        layouts.check_rooms("R4", self.height, self.width)

    def start(self, key: Array) -> GridState:
        """Draw an opening in each of the four walls, and two free cells, openings included, for goal and agent."""
        grid = layouts.four_rooms(self.height, self.width)
        bits = random_bits(key, 7)
        openings = layouts.four_rooms_doors(self.board, bits[:4])
        free = jnp.concatenate([jnp.asarray(layouts.free_places(self.board, grid)), openings])
        goal, agent = sample_distinct(bits[4:6], len(free))
        cells = write(jnp.asarray(self.board.flat(grid)), openings, FLOOR)
        cells = write(cells, free[goal], GOAL)
        return make_state(cells, free[agent], uniform_below(bits[6], 4), reach_goal_tile())


@environment
class DoorKey(GridWorld):
    """Two rooms: fetch the key, unlock the door with it, and walk to the goal."""

    height: int = side_length(5, smallest=4)
    width: int = side_length(5, smallest=5)

    def start(self, key: Array) -> GridState:
        """Draw the wall, the door (not in the wall's lowest cell), and the key and the agent left of the wall."""
        board, rows = self.board, self.height - 2
        bits = random_bits(key, 5)
        wall = 2 + uniform_below(bits[0], self.width - 4)
        door = 1 + uniform_below(bits[1], self.height - 3)
        key_rank, agent_rank = sample_distinct(bits[2:4], rows * (wall - 1))
        cells = jnp.asarray(board.flat(room_with_goal(self)))
        cells = write(cells, board.place(np.arange(self.height), wall), WALL)
        cells = write(cells, board.place(door, wall), cell(Tile.DOOR_LOCKED, Colour.YELLOW))
        key_place, agent_place = (
            board.place(1 + rank // (wall - 1), 1 + rank % (wall - 1)) for rank in (key_rank, agent_rank)
        )
        cells = write(cells, key_place, cell(Tile.KEY, Colour.YELLOW))
        return make_state(cells, agent_place, uniform_below(bits[4], 4), reach_goal_tile())


def left_room_place(world: GridWorld, rank: Array) -> Array:
    """Return the place of a cell of the left one of two rooms, by its number."""
    columns = world.width // 2 - 1
    return world.board.place(1 + rank // columns, 1 + rank % columns)


def random_right_room_place(world: GridWorld, bits: Array) -> Array:
    """Draw the place of a cell of the right one of two rooms."""
    first = world.width // 2 + 1
    columns = world.width - 1 - first
    rank = uniform_below(bits, (world.height - 2) * columns)
    return world.board.place(1 + rank // columns, first + rank % columns)


def num_left_room_cells(world: GridWorld) -> int:
    """Count the cells of the left one of two rooms."""
    return (world.height - 2) * (world.width // 2 - 1)


def locked_rooms(world: GridWorld, colour: Array, door: Array, key_place: Array) -> Array:
    """Make two rooms with a locked door between them, and the key to it, as cells in the board's memory."""
    cells = jnp.asarray(world.board.flat(layouts.two_rooms(world.height, world.width)))
    cells = write(cells, door, coloured_cells(Tile.DOOR_LOCKED, colour))
    return write(cells, key_place, coloured_cells(Tile.KEY, colour))


@environment
class Unlock(GridWorld):
    """Two rooms: fetch the key and open the locked door."""

    height: int = side_length(6, smallest=4)
    width: int = side_length(11, smallest=5)

    def start(self, key: Array) -> GridState:
        """Draw key and agent in the left room."""
        bits = random_bits(key, 5)
        colour = choose(bits[0], COLOURS)
        door = layouts.two_rooms_door(self.board, bits[1])
        key_place, place = (
            left_room_place(self, rank) for rank in sample_distinct(bits[2:4], num_left_room_cells(self))
        )
        cells = locked_rooms(self, colour, door, key_place)
        goal = goals.make(GoalKind.TILE_ON_POSITION, coloured_cells(Tile.DOOR_OPEN, colour), door)
        return make_state(cells, place, uniform_below(bits[4], 4), goal)


@environment
class UnlockPickUp(GridWorld):
    """Two rooms: fetch the key, open the locked door, and pick up the object in the other room."""

    height: int = side_length(6, smallest=4)
    width: int = side_length(11, smallest=5)

    def start(self, key: Array) -> GridState:
        """Draw key and agent in the left room, and the object in the right one."""
        bits = random_bits(key, 8)
        thing = random_thing(bits[0], bits[1])
        colour = choose(bits[2], COLOURS)
        key_place, place = (
            left_room_place(self, rank) for rank in sample_distinct(bits[3:5], num_left_room_cells(self))
        )
        cells = locked_rooms(self, colour, layouts.two_rooms_door(self.board, bits[5]), key_place)
        cells = write(cells, random_right_room_place(self, bits[6]), thing)
        return make_state(cells, place, uniform_below(bits[7], 4), goals.make(GoalKind.AGENT_HOLD, thing))


@environment
class BlockedUnlockPickUp(GridWorld):
    """Two rooms: clear the way to the locked door, open it, and pick up the object in the other room.

    As in XLand-MiniGrid, the object in the way may have been put where the key was; such an episode cannot be
    solved. In less than 4 x 6 cells most others could not either.
    """

    height: int = side_length(6, smallest=4)
    width: int = side_length(11, smallest=6)

    def start(self, key: Array) -> GridState:
        """Draw key, agent and the object in the way in the left room, and the other object in the right one."""
        bits = random_bits(key, 10)
        thing, obstacle = random_thing(bits[0], bits[1]), random_thing(bits[2], bits[3])
        colour = choose(bits[4], COLOURS)
        door = layouts.two_rooms_door(self.board, bits[5])
        key_rank = uniform_below(bits[6], num_left_room_cells(self))
        columns = self.width // 2 - 1
        obstacle_rank = (self.board.position(door)[0] - 1) * columns + columns - 1
        cells = locked_rooms(self, colour, door, left_room_place(self, key_rank))
        cells = write(cells, random_right_room_place(self, bits[7]), thing)
        cells = write(cells, left_room_place(self, obstacle_rank), obstacle)
        rank = sample_excluding(bits[8], num_left_room_cells(self), key_rank, obstacle_rank)
        goal = goals.make(GoalKind.AGENT_HOLD, thing)
        return make_state(cells, left_room_place(self, rank), uniform_below(bits[9], 4), goal)


def random_thing(thing_bits: Array, colour_bits: Array) -> Array:
    """Draw an object of any kind and colour, as a cell."""
    thing = choose(thing_bits, THINGS).astype(jnp.uint16)
    return thing | coloured_cells(Tile.EMPTY, choose(colour_bits, COLOURS))


def sample_excluding(bits: Array, total: int, one: Array, other: Array) -> Array:
    """Draw a number from 0 to `total - 1` that is neither of two, which may be equal."""
    low, high = jnp.minimum(one, other), jnp.maximum(one, other)
    are_different = low != high
    rank = uniform_below(bits, total - 1 - are_different.astype(jnp.int32))
    rank = rank + (rank >= low)
    return rank + ((rank >= high) & are_different)


@environment
class LockedRoom(GridWorld):
    """Six rooms along a corridor: fetch the key from one of them and walk to the goal in the locked one."""

    height: int = side_length(19, smallest=9)
    width: int = side_length(19, smallest=9)

    def check(self) -> None:
        """Require sizes in which each door joins two rooms."""
        GridWorld.check(self)
        layouts.check_rooms("R6", self.height, self.width)

    def start(self, key: Array) -> GridState:
        """Draw doors of six colours, and the key, in another room, of the locked door's colour."""
        board = self.board
        bits = random_bits(key, 15)
        doors = jnp.asarray(layouts.six_rooms_doors(board))
        corners = jnp.asarray(layouts.six_rooms_corners(board))
        colours = jnp.asarray(np.asarray(COLOURS, np.int32))[jnp.stack(sample_distinct(bits[:6], 6))]
        goal_room, key_room = sample_distinct(bits[6:8], 6)
        third, middle = self.height // 3, self.width // 2
        # The free cells that all rooms have: the lowest may have fewer rows, those on the right fewer columns.
        rows, columns = min(third - 1, self.height - 2 - 2 * third), self.width - 4 - middle

        def random_place_in(room: Array, row_bits: Array, column_bits: Array) -> Array:
            row, column = 1 + uniform_below(row_bits, rows), 1 + uniform_below(column_bits, columns)
            return corners[room] + row * board.stride + column

        cells = jnp.asarray(board.flat(layouts.six_rooms(self.height, self.width)))
        cells = write(cells, doors, coloured_cells(Tile.DOOR_CLOSED, colours))
        cells = write(cells, doors[goal_room], coloured_cells(Tile.DOOR_LOCKED, colours[goal_room]))
        cells = write(cells, random_place_in(goal_room, bits[8], bits[9]), GOAL)
        key_place = random_place_in(key_room, bits[10], bits[11])
        cells = write(cells, key_place, coloured_cells(Tile.KEY, colours[goal_room]))
        row = 1 + uniform_below(bits[12], self.height - 2)
        column = middle - 1 + uniform_below(bits[13], 2)
        return make_state(cells, board.place(row, column), uniform_below(bits[14], 4), reach_goal_tile())


@environment
class Memory(GridWorld):
    """A corridor: go to the end that shows the same object as the room at the start.

    The other end ends the episode without reward. The objects cannot be picked up.
    """

    height: int = parameter(default=MEMORY_HEIGHT, low=MEMORY_HEIGHT, high=MEMORY_HEIGHT)
    width: int = side_length(13, smallest=8)
    view_size: int = parameter(default=3, low=MIN_VIEW, high=MAX_VIEW)

    changes_cells = False
    shows_goal = False

    def start(self, key: Array) -> GridState:
        """Draw a cell of the room or the corridor before its end for the agent, which looks right."""
        board, end = self.board, self.width - 2
        bits = random_bits(key, 3)
        things = jnp.asarray([cell(Tile.BALL, Colour.GREEN), cell(Tile.KEY, Colour.GREEN)])
        cue_index, upper_index = uniform_below(bits[0], 2), uniform_below(bits[1], 2)
        cells = jnp.asarray(board.flat(memory_walls(self.height, self.width)))
        cells = write(cells, board.place(2, 1), things[cue_index])
        cells = write(cells, board.place(1, end), things[upper_index])
        cells = write(cells, board.place(5, end), things[1 - upper_index])
        ends = jnp.asarray([board.place(2, end), board.place(4, end)])
        success = jnp.where(cue_index == upper_index, ends[0], ends[1])
        return make_state(
            cells,
            board.place(3, 1 + uniform_below(bits[2], end - 1)),
            RIGHT,
            goals.make(GoalKind.AGENT_ON_POSITION, place=success),
            pitfall=ends[0] + ends[1] - success,
        )


def memory_walls(height: int, width: int) -> np.ndarray:
    """Make a room on the left, a corridor, and a crossing at its end."""
    end = width - 2
    grid = layouts.room(height, width)
    grid[[1, MEMORY_ROOM_SIDE], :MEMORY_ROOM_SIDE] = WALL
    grid[1 : MEMORY_ROOM_SIDE + 1, [0, MEMORY_ROOM_SIDE - 1]] = WALL
    grid[height // 2, MEMORY_ROOM_SIDE - 1] = FLOOR
    grid[[2, 4], 4:end] = WALL
    grid[[1, 5], end - 1] = WALL
    return grid


@environment
class Playground(GridWorld):
    """Nine rooms with doors and objects of all kinds, and no goal."""

    height: int = side_length(19, smallest=7)
    width: int = side_length(19, smallest=7)
    num_objects: int = parameter(default=12, low=1)

    def check(self) -> None:
        """Require sizes in which each door joins two rooms, and enough free cells for the objects."""
        GridWorld.check(self)
        layouts.check_rooms("R9", self.height, self.width)
        free = len(layouts.free_places(self.board, layouts.nine_rooms(self.height, self.width)))
        if not self.num_objects < free:
            raise ShoalError(
                f"num_objects={self.num_objects} is more than {free - 1}, the free cells without the agent's"
            )

    def start(self, key: Array) -> GridState:
        """Draw twelve closed doors, and different free cells for objects and agent."""
        board, count = self.board, self.num_objects
        grid = layouts.nine_rooms(self.height, self.width)
        free = jnp.asarray(layouts.free_places(board, grid))
        bits = random_bits(key, 24 + 3 * count + 2)
        doors, door_colours, things, thing_colours, ranks, turn = jnp.split(
            bits, np.cumsum((12, 12, count, count, count + 1))
        )
        places = free[jnp.stack(sample_distinct(ranks, len(free)))]
        kinds = choose(things, (*THINGS, Tile.KEY, Tile.GOAL)).astype(jnp.uint16)
        objects = kinds | coloured_cells(Tile.EMPTY, choose(thing_colours, COLOURS))
        cells = write(
            jnp.asarray(board.flat(grid)),
            layouts.nine_rooms_doors(board, doors),
            coloured_cells(Tile.DOOR_CLOSED, choose(door_colours, COLOURS)),
        )
        cells = write(cells, places[:-1], objects)
        return make_state(cells, places[-1], uniform_below(turn[0], 4), goals.make(GoalKind.NONE))
