"""Every start of every grid task can be solved in every size that is accepted, by a search that shares no code."""

import functools

import jax
import numpy as np
import pytest
from grid_solver import CLOSED, FLOOR, KEY, LOCKED, Start, beside, is_solvable

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.grid.engine import goals
from shoal.envs.grid.rulesets.rulesets import NO_RULESET

TASKS = "shoal.envs.grid.tasks.minigrid:"
WALL = 2
NUM_STARTS = 100
SIZES = {  # the smallest of each task, even and odd, wider than high and higher than wide
    "Empty": [(4, 4), (4, 9), (9, 4)],
    "EmptyRandom": [(4, 4), (4, 9), (9, 4)],
    "FourRooms": [(5, 5), (7, 7), (9, 9)],
    "DoorKey": [(4, 5), (4, 6), (4, 9), (5, 9), (6, 8), (9, 5)],
    "Unlock": [(4, 5), (4, 6), (4, 9), (7, 5)],
    "UnlockPickUp": [(4, 5), (4, 6), (4, 9), (7, 5)],
    "BlockedUnlockPickUp": [(4, 6), (4, 7), (4, 9), (5, 6), (6, 6)],
    "LockedRoom": [(9, 9), (10, 10), (12, 12), (15, 15)],
    "Memory": [(7, 8), (7, 9), (7, 12)],
}
CASES = [f"{task} {height} {width}" for task, sizes in SIZES.items() for height, width in sizes]
REFUSED = ["DoorKey 3 5", "DoorKey 4 4", "BlockedUnlockPickUp 5 5", "BlockedUnlockPickUp 3 6", "Unlock 4 4"]
REFUSED += ["UnlockPickUp 3 5", "LockedRoom 8 8", "LockedRoom 9 11", "Memory 7 7", "FourRooms 5 7"]


def starts_of(world, count):
    """Starts in plain numbers."""
    keys = jax.random.split(jax.random.key(0), count)
    states = jax.device_get(jax.jit(jax.vmap(world.reset))(keys)[0])
    encoded = np.asarray(jax.jit(jax.vmap(functools.partial(goals.encode, world.board)))(states.goal))
    margin, stride = world.board.margin, world.board.stride

    def place(number):
        row, column = divmod(int(number) - margin, stride)
        return row - margin, column

    for cells, own, pitfall, goal in zip(
        states.cells, states.agent.place, states.pitfall, encoded, strict=True
    ):
        grid = np.asarray(world.board.grid(cells))
        yield Start(
            np.stack([grid & 255, grid >> 8], -1),
            place(own),
            None if pitfall < 0 else place(pitfall),
            tuple(map(int, goal)),
        )


def has_intact_border(start):
    tiles = start.grid[..., 0]
    return all((edge == WALL).all() for edge in (tiles[0], tiles[-1], tiles[:, 0], tiles[:, -1]))


def has_lost_its_key(start):
    """Whether the key of a locked door lies nowhere, as BlockedUnlockPickUp says of some of its starts."""
    tiles = start.grid[..., 0]
    return (tiles == LOCKED).any() and not (tiles == KEY).any()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick("DoorKey 5 9", "BlockedUnlockPickUp 4 6", "LockedRoom 12 12")
@pytest.mark.rare(
    *(f"{task} {h} {w}" for task, sizes in SIZES.items() for h, w in sizes[1:-1] if w != 12 and h != 5)
)
def test_every_start_can_be_solved(case):
    task, height, width = case.split()
    world = envs.make(TASKS + task, height=int(height), width=int(width), view_size=3)
    starts = list(starts_of(world, NUM_STARTS))
    assert all(map(has_intact_border, starts))
    lost = [start for start in starts if has_lost_its_key(start)]
    assert all(is_solvable(start) for start in starts if not has_lost_its_key(start))
    if (
        task == "BlockedUnlockPickUp"
    ):  # the key is drawn from the left room, whose cell at the door is the obstacle's
        share = 1 / ((int(height) - 2) * (int(width) // 2 - 1))
        assert abs(len(lost) - share * NUM_STARTS) < 5 * np.sqrt(share * NUM_STARTS)
    else:
        assert not lost


@pytest.mark.parametrize("case", REFUSED)
def test_a_size_that_cannot_be_solved_is_refused(case):
    task, height, width = case.split()
    with pytest.raises(ShoalError, match=rf"(height={height}|width={width})\b"):
        envs.make(TASKS + task, height=int(height), width=int(width)).check()


def test_the_search_finds_no_way_where_there_is_none():
    for start in starts_of(envs.make("MiniGrid-DoorKey-5x5"), 3):
        assert is_solvable(start)
        for tile in (KEY, LOCKED):  # the key is taken away, or a wall is in the door's place
            grid = start.grid.copy()
            grid[grid[..., 0] == tile] = (FLOOR, 7) if tile == KEY else (WALL, 6)
            assert not is_solvable(start._replace(grid=grid))


ROOMS = ["R1 8", "R2 5", "R2 9", "R4 5", "R4 9", "R6 9", "R6 10", "R6 11", "R6 12", "R9 7", "R9 10"]


@pytest.mark.parametrize("case", [*ROOMS, "Playground 7", "Playground 13"])
@pytest.mark.quick("R6 12")
@pytest.mark.rare("R1 8", "R2 9", "R4 9", "R6 9", "R6 10", "R6 11", "R9 10", "Playground 13")
def test_every_room_can_be_entered(case):
    rooms, size = case.split()
    size = {"height": int(size), "width": int(size)}
    name = f"{TASKS}Playground" if rooms == "Playground" else "XLand-MiniGrid-R1-9x9"
    things = {"num_objects": 1} if rooms == "Playground" else {"rooms": rooms, "ruleset": NO_RULESET}
    for start in starts_of(envs.make(name, **size, **things), NUM_STARTS):
        tiles = start.grid[..., 0]
        assert has_intact_border(start)
        open_to, waiting = {start.agent}, [start.agent]
        while waiting:
            for place in beside(waiting.pop()):
                if place not in open_to and tiles[place] != WALL:
                    open_to.add(place)
                    waiting.append(place)
        assert len(open_to) == (tiles != WALL).sum()
        assert (tiles == CLOSED).sum() == {"R1": 0, "R2": 1, "R4": 4, "R6": 6}.get(rooms, 12)
