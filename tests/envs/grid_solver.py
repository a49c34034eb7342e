"""Breadth-first search for a way to a grid world's goal, by the rules of the page about grid worlds alone.

A search state is the cells, what is held, and the set of cells that the agent can walk to: turning and walking change
nothing else. Every door that can be opened from there is open, since an open door can be walked through and closing one
makes nothing possible. So an edge of the search picks up or puts down what lies beside that set.
"""

from collections import deque
from typing import Any, NamedTuple

import numpy as np

FLOOR, GOAL, KEY, LOCKED, CLOSED, OPEN = 1, 6, 7, 8, 9, 10  # tiles by number
OBJECTS = (3, 4, 5, KEY, 11, 12)
WALKABLE = (FLOOR, GOAL, OPEN)
HOLD, ON_TILE, TILE_AT, AGENT_AT = 1, 2, 5, 6  # kinds of goals
EMPTY = (0, 0)
BLACK_FLOOR = (FLOOR, 7)

Place = tuple[int, int]
Cells = dict[Place, tuple[int, int]]


class Start(NamedTuple):
    """One start, as plain numbers: cells [H, W, 2], places as rows and columns, and the five bytes of the goal."""

    grid: np.ndarray
    agent: Place
    pitfall: Place | None
    goal: tuple[int, ...]


def beside(place: Place) -> list[Place]:
    """The four cells about a place."""
    row, column = place
    return [(row - 1, column), (row, column + 1), (row + 1, column), (row, column - 1)]


def within_reach(
    cells: Cells, held: Any, agent: Place, pitfall: Place | None
) -> tuple[Cells, frozenset[Place]]:
    """Open every door that can be opened, and return the cells and those of them that the agent can walk to."""
    cells, reached, waiting = dict(cells), {agent}, [agent]
    while waiting:
        for place in beside(waiting.pop()):
            tile, colour = cells.get(place, EMPTY)
            if tile == CLOSED or (tile == LOCKED and held == (KEY, colour)):
                tile = OPEN
                cells[place] = (tile, colour)
            if place not in reached and place != pitfall and tile in WALKABLE:
                reached.add(place)
                waiting.append(place)
    return cells, frozenset(reached)


def changes(cells: Cells, held: Any, reached: frozenset[Place]) -> Any:
    """What can be picked up or put down: (where from, the cell, its content after it, what is held then)."""
    for own in reached:
        for place in beside(own):
            tile, colour = cells.get(place, EMPTY)
            if tile in OBJECTS and held == EMPTY:
                yield own, place, BLACK_FLOOR, (tile, colour)
            elif tile == FLOOR and held != EMPTY:
                yield own, place, held, EMPTY


def is_solved(goal: tuple[int, ...], cells: Cells, held: Any, reached: frozenset[Place]) -> bool:
    kind, first, second = goal[0], tuple(goal[1:3]), tuple(goal[3:5])
    if kind == HOLD:
        return held == first
    if kind == ON_TILE:
        return any(cells[place] == first for place in reached)
    if kind == TILE_AT:
        return cells[second] == first
    assert kind == AGENT_AT, f"no search for goals of kind {kind}"
    return first in reached


def is_solvable(start: Start, most: int = 100_000) -> bool:
    """Whether some actions lead from a start to its goal."""
    rows, columns = start.grid.shape[:2]
    cells = {(i, j): tuple(map(int, start.grid[i, j])) for i in range(rows) for j in range(columns)}
    cells, reached = within_reach(cells, EMPTY, start.agent, start.pitfall)
    seen, waiting = set(), deque([(cells, EMPTY, reached)])
    while waiting:
        cells, held, reached = waiting.popleft()
        if is_solved(start.goal, cells, held, reached):
            return True
        for own, place, content, holding in changes(cells, held, reached):
            after, reached_after = within_reach({**cells, place: content}, holding, own, start.pitfall)
            name = (tuple(after.values()), holding, reached_after)
            if name not in seen:
                seen.add(name)
                waiting.append((after, holding, reached_after))
        assert len(seen) < most, "the search is too large"
    return False
