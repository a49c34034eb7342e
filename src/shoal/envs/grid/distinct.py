"""Which rulesets are equal: those that differ only in how they are written down.

Two rulesets are equal if they have the same goal and the same set of rules (and, where that counts, the same
things). It makes no difference

- where zeros fill up, and what bytes hold that a kind does not read;
- in which order rules stand, or that one is repeated;
- which of two tiles is named first, where "a beside b" is "b beside a" and "b below a" is "a above b".

The order of rules can tell within a step in which several of them hold; such rulesets are equal too.
"""

from collections.abc import Hashable

import numpy as np

from shoal.envs.grid.goals import GoalKind
from shoal.envs.grid.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.rulesets import Ruleset
from shoal.envs.grid.tiles import Bytes

BITS = 8  # of a byte, by which bytes are put together to one number

# How many bytes each kind reads, its own included; kind 0 is none at all.
GOAL_READS = np.asarray([5 if kind.name.startswith("TILE") else 3 if kind else 0 for kind in GoalKind])
RULE_READS = np.asarray([7 if kind in TWO_TILE_KINDS else 5 if kind else 0 for kind in RuleKind])


def is_new(rulesets: Ruleset, seen: set[Hashable], *, with_objects: bool = False) -> np.ndarray:
    """Which of several rulesets are equal to none before, bool [n].

    Args:
      rulesets: with a leading axis, n.
      seen: the `keys` of those before; those that are new are added.
      with_objects: whether the things must be the same too for rulesets to be equal.
    """
    new = np.zeros(len(rulesets.goal), bool)
    for index, key in enumerate(keys(rulesets, with_objects=with_objects)):
        if key not in seen:
            seen.add(key)
            new[index] = True
    return new


def keys(rulesets: Ruleset, *, with_objects: bool = False) -> list[Hashable]:
    """What is the same for equal rulesets and differs for others, [n]; however wide their arrays are."""
    goals = _numbers(goals_written_alike(rulesets.goal))[:, None]
    rules = _as_set(_numbers(rules_written_alike(rulesets.rules)))
    task = _without_padding(np.concatenate([goals, rules], 1))
    if not with_objects:
        return task
    objects = np.sort(_numbers(rulesets.init_tiles), 1)[:, ::-1]
    return list(zip(task, _without_padding(objects), strict=True))


def _without_padding(numbers: np.ndarray) -> list[Hashable]:
    """The bytes of each row [n, m], without the zeros at its end."""
    written = np.ascontiguousarray(numbers, ">u8")
    whole: list[bytes] = written.view(f"V{written.itemsize * written.shape[1]}")[:, 0].tolist()
    return [row.rstrip(b"\0") for row in whole]


def goals_written_alike(goals: Bytes) -> np.ndarray:
    """Goals [..., 5] with one way of writing each; what is not read is 0."""
    kinds = GoalKind.TILE_NEAR, GoalKind.TILE_NEAR_UP, GoalKind.TILE_NEAR_RIGHT, GoalKind.TILE_NEAR_DOWN
    return _written_alike(np.asarray(goals), GOAL_READS, *kinds, GoalKind.TILE_NEAR_LEFT)


def rules_written_alike(rules: Bytes) -> np.ndarray:
    """Rules [..., 7] with one way of writing each; what is not read is 0."""
    kinds = RuleKind.TILE_NEAR, RuleKind.TILE_NEAR_UP, RuleKind.TILE_NEAR_RIGHT, RuleKind.TILE_NEAR_DOWN
    return _written_alike(np.asarray(rules), RULE_READS, *kinds, RuleKind.TILE_NEAR_LEFT)


def _written_alike(
    rows: np.ndarray, reads: np.ndarray, beside: int, up: int, right: int, down: int, left: int
) -> np.ndarray:
    """Rows [..., k] of which the kind is named by the first byte, and two tiles by the next four."""
    kind = rows[..., 0]
    rows = np.where(np.arange(rows.shape[-1]) < reads[kind][..., None], rows, 0).astype(np.uint8)
    first, second = _numbers(rows[..., 1:3]), _numbers(rows[..., 3:5])
    turned = (kind == down) | (kind == left) | ((kind == beside) & (second < first))
    kind = np.select([kind == down, kind == left], [up, right], kind)
    swapped = np.concatenate([rows[..., :1], rows[..., 3:5], rows[..., 1:3], rows[..., 5:]], -1)
    rows = np.where(turned[..., None], swapped, rows)
    rows[..., 0] = kind
    return rows


def _as_set(numbers: np.ndarray) -> np.ndarray:
    """Rows of numbers [n, m] in descending order, repeated ones as 0 at the end."""
    numbers = np.sort(numbers, 1)[:, ::-1].copy()
    numbers[:, 1:][numbers[:, 1:] == numbers[:, :-1]] = 0
    return np.sort(numbers, 1)[:, ::-1]


def _numbers(rows: Bytes) -> np.ndarray:
    """The bytes of each row [..., k] as one number, uint64 [...]."""
    number = np.zeros(np.shape(rows)[:-1], np.uint64)
    for column in np.moveaxis(np.asarray(rows).astype(np.uint64), -1, 0):
        number = number << np.uint64(BITS) | column
    return number
