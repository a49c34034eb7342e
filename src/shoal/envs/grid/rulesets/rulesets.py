"""Rulesets: the goal, the rules and the objects of a task, as bytes in XLand-MiniGrid's encoding."""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.grid.engine import goals, rules
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import NUM_COLOURS, NUM_TILES, Bytes, Tile

STACKED_RULE_AXES = 3  # axes of the rules of several rulesets
MAX_QUOTE_LENGTH = 100  # characters of a wrong value in a message


class Ruleset(NamedTuple):
    """One task, or N of them with a leading axis.

    Rules and objects are padded with rows of zeros; there is at least one row of each.
    """

    goal: Bytes  # uint8 [5]; see `goals`
    rules: Bytes  # uint8 [R, 7]; see `rules`
    init_tiles: Bytes  # uint8 [O, 2]: tile and colour of the objects at the start of an episode


NO_RULESET = Ruleset(
    np.zeros(goals.ENCODED_SIZE, np.uint8),
    np.zeros((1, rules.ENCODED_SIZE), np.uint8),
    np.zeros((1, 2), np.uint8),
)


def ruleset(
    goal: Sequence[int] = (), rules: Sequence[Sequence[int]] = (), init_tiles: Sequence[Sequence[int]] = ()
) -> Ruleset:
    """Make a ruleset from numbers; a goal or rule may leave out the zeros at its end.

        ruleset(
            goal=(GoalKind.AGENT_HOLD, Tile.STAR, Colour.BLUE),
            rules=[(RuleKind.TILE_NEAR, Tile.BALL, Colour.RED, Tile.KEY, Colour.GREY, Tile.STAR, Colour.BLUE)],
            init_tiles=[(Tile.BALL, Colour.RED), (Tile.KEY, Colour.GREY)],
        )

    Raises:
      ShoalError: a kind, tile or colour is unknown, or a row is too long.
    """
    result = Ruleset(
        _pad_rows("goal", [goal], NO_RULESET.goal.shape[-1])[0],
        _pad_rows("rule", rules or [()], NO_RULESET.rules.shape[-1]),
        _pad_rows("init_tiles", init_tiles or [()], NO_RULESET.init_tiles.shape[-1]),
    )
    check(result)
    return result


def _pad_rows(name: str, rows: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Pad rows of bytes with zeros.

    Raises:
      ShoalError: a row is too long, or holds something other than whole numbers from 0 to 255.
    """
    filled = np.zeros((len(rows), length), np.uint8)
    for index, row in enumerate(rows):
        try:
            filled[index, : len(row)] = to_bytes(row)
        except (TypeError, ValueError) as error:
            # Kinds and tiles as numbers.
            quoted = repr(np.asarray(row, object).tolist())[:MAX_QUOTE_LENGTH]
            raise ShoalError(
                f"{name} {quoted} is not at most {length} numbers from 0 to 255, all whole"
            ) from error
    return filled


def to_bytes(numbers: object) -> np.ndarray:
    """Convert an array, or nested lists, of whole numbers to bytes.

    Raises:
      ValueError: a number is not whole, or not from 0 to 255; or lists have different lengths.
    """
    array = np.asarray(numbers)
    if array.size and (array.dtype.kind not in "iu" or not 0 <= array.min() <= array.max() <= 255):
        raise ValueError("numbers that are not from 0 to 255")
    return array.astype(np.uint8, copy=False)


def stack(tasks: Sequence[Ruleset]) -> Ruleset:
    """Stack rulesets on a leading axis, padded to the longest."""

    def pad(arrays: Sequence[Bytes]) -> np.ndarray:
        rows = max(len(array) for array in arrays)
        return np.stack([np.pad(array, ((0, rows - len(array)), (0, 0))) for array in arrays])

    return Ruleset(
        np.stack([task.goal for task in tasks]),
        pad([task.rules for task in tasks]),
        pad([task.init_tiles for task in tasks]),
    )


def check(tasks: Ruleset) -> None:
    """Validate rulesets for the engine; traced values are not checked.

    Raises:
      ShoalError: an array has the wrong shape, or a kind, tile or colour is unknown.
    """
    check_shapes(tasks)
    if any(isinstance(array, jax.core.Tracer) for array in tasks):
        return
    goal, rule, things = (np.asarray(array).reshape(-1, array.shape[-1]) for array in tasks)
    _check_kinds("goal", goal, GoalKind)
    _check_kinds("rule", rule, RuleKind)
    is_pair = np.isin(goal[:, 0], [kind for kind in GoalKind if kind.name.startswith("TILE_NEAR")])
    has_tile = ~np.isin(goal[:, 0], (GoalKind.NONE, GoalKind.AGENT_ON_POSITION))
    _check_tiles("goal", goal[has_tile], 1)
    _check_tiles("goal", goal[is_pair], 3)
    is_pair, has_tile = np.isin(rule[:, 0], TWO_TILE_KINDS), rule[:, 0] != RuleKind.NONE
    _check_tiles("rule", rule[has_tile], 1)
    _check_tiles("rule", rule[is_pair], 3)
    _check_tiles("rule", rule[has_tile & ~is_pair], 3, may_be_empty=True)  # the products
    _check_tiles("rule", rule[is_pair], 5, may_be_empty=True)
    _check_tiles("init_tiles", things, 0, may_be_empty=True)


def check_shapes(tasks: Ruleset) -> None:
    """Validate the shapes and dtypes of a ruleset, which are known while tracing.

    Raises:
      ShoalError: it is not a Ruleset, or an array has another shape or dtype.
    """
    if not isinstance(tasks, Ruleset):
        raise ShoalError(
            f"the ruleset is of type {type(tasks).__name__}; make it by shoal.envs.grid.rulesets.rulesets"
        )
    leading = np.shape(tasks.goal)[:-1]
    if 0 in leading:
        raise ShoalError(
            "there are no rulesets: their leading axis is of length 0, where 1 or more are needed"
        )
    for name, array, example, row in zip(
        Ruleset._fields, tasks, NO_RULESET, ("5", "n, 7", "n, 2"), strict=True
    ):
        *outer, size = np.shape(array) or (0,)
        fits = size == example.shape[-1] and outer[: len(leading)] == [*leading] and 0 not in outer
        fits &= len(outer) == len(leading) + example.ndim - 1 and len(leading) <= 1
        dtype = getattr(array, "dtype", type(array).__name__)
        if not fits or dtype != np.uint8:
            raise ShoalError(
                f"the ruleset's {name} is {dtype}{list(np.shape(array))}, where uint8[{row}] is needed, or the "
                "same with one leading axis in all three for several rulesets"
            )


def _check_kinds(name: str, rows: np.ndarray, kinds: type[enum.IntEnum]) -> None:
    unknown = rows[rows[:, 0] >= len(kinds), 0]
    if len(unknown):
        raise ShoalError(
            f"there is no {name} of kind {unknown[0]}; the kinds of {name}s are 0 to {len(kinds) - 1}"
        )


def _check_tiles(name: str, rows: np.ndarray, column: int, may_be_empty: bool = False) -> None:
    """Require that the tiles and colours in two columns exist; tile 0 is the outside of the grid."""
    tile, colour = rows[:, column], rows[:, column + 1]
    unknown = rows[(tile >= NUM_TILES) | (colour >= NUM_COLOURS)]
    if len(unknown):
        raise ShoalError(
            f"the {name} {unknown[0].tolist()} has tile {unknown[0][column]} of colour "
            f"{unknown[0][column + 1]}; tiles are 0 to {NUM_TILES - 1}, colours 0 to {NUM_COLOURS - 1}"
        )
    empty = rows[tile == Tile.EMPTY]
    if len(empty) and not may_be_empty:
        raise ShoalError(f"the {name} {empty[0].tolist()} is about tile 0, which is nothing; give 1 to 12")
