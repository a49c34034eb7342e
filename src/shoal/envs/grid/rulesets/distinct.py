"""Comparison of rulesets: two are equal if they differ only in how they are written.

Two rulesets are equal if they have the same goal and the same set of rules (and, where that counts, the same
objects). The following makes no difference:

- padding with zeros, and bytes that a kind does not read;
- the order of rules, and repeated rules;
- which of two tiles is named first, where "a beside b" is "b beside a" and "b below a" is "a above b".

The order of rules can matter within a step in which several of them hold; such rulesets count as equal too.
"""

from collections.abc import Hashable

import numpy as np

from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import Bytes
from shoal.envs.grid.rulesets.rulesets import Ruleset

BITS_PER_BYTE = 8  # by which bytes are combined into one number

# The number of bytes that each kind reads, its own included; kind 0 reads none.
GOAL_BYTES_READ = np.asarray([5 if kind.name.startswith("TILE") else 3 if kind else 0 for kind in GoalKind])
RULE_BYTES_READ = np.asarray([7 if kind in TWO_TILE_KINDS else 5 if kind else 0 for kind in RuleKind])


def is_new(rulesets: Ruleset, known_keys: set[Hashable], *, with_objects: bool = False) -> np.ndarray:
    """Report which rulesets [n] are equal to none before, bool [n]; their `canonical_keys` are added to those known.

    Args:
      with_objects: whether equal rulesets must also have the same objects.
    """
    new = np.zeros(len(rulesets.goal), bool)
    for index, key in enumerate(canonical_keys(rulesets, with_objects=with_objects)):
        if key not in known_keys:
            known_keys.add(key)
            new[index] = True
    return new


def canonical_keys(rulesets: Ruleset, *, with_objects: bool = False) -> list[Hashable]:
    """Return keys that are the same for equal rulesets and differ for others, [n]; padding does not matter."""
    goals = _pack_bytes(canonical_goals(rulesets.goal))[:, None]
    rules = _sorted_unique(_pack_bytes(canonical_rules(rulesets.rules)))
    task = _row_bytes(np.concatenate([goals, rules], 1))
    if not with_objects:
        return task
    objects = np.sort(_pack_bytes(rulesets.init_tiles), 1)[:, ::-1]
    return list(zip(task, _row_bytes(objects), strict=True))


def _row_bytes(numbers: np.ndarray) -> list[Hashable]:
    """Return the bytes of each row [n, m], without the zeros at its end."""
    big_endian = np.ascontiguousarray(numbers, ">u8")
    rows: list[bytes] = big_endian.view(f"V{big_endian.itemsize * big_endian.shape[1]}")[:, 0].tolist()
    return [row.rstrip(b"\0") for row in rows]


def canonical_goals(goals: Bytes) -> np.ndarray:
    """Rewrite goals [..., 5] in a canonical form; bytes that are not read are 0."""
    return _canonical_rows(np.asarray(goals), GOAL_BYTES_READ, GoalKind)


def canonical_rules(rules: Bytes) -> np.ndarray:
    """Rewrite rules [..., 7] in a canonical form; bytes that are not read are 0."""
    return _canonical_rows(np.asarray(rules), RULE_BYTES_READ, RuleKind)


def _canonical_rows(
    rows: np.ndarray, bytes_read: np.ndarray, kinds: type[GoalKind] | type[RuleKind]
) -> np.ndarray:
    """Rewrite rows [..., k] in a canonical form; the first byte is the kind, the next four are two tiles."""
    kind = rows[..., 0]
    rows = np.where(np.arange(rows.shape[-1]) < bytes_read[kind][..., None], rows, 0).astype(np.uint8)
    first, second = _pack_bytes(rows[..., 1:3]), _pack_bytes(rows[..., 3:5])
    is_down, is_left = kind == kinds.TILE_NEAR_DOWN, kind == kinds.TILE_NEAR_LEFT
    is_swapped = is_down | is_left | ((kind == kinds.TILE_NEAR) & (second < first))
    kind = np.select([is_down, is_left], [kinds.TILE_NEAR_UP, kinds.TILE_NEAR_RIGHT], kind)
    swapped = np.concatenate([rows[..., :1], rows[..., 3:5], rows[..., 1:3], rows[..., 5:]], -1)
    rows = np.where(is_swapped[..., None], swapped, rows)
    rows[..., 0] = kind
    return rows


def _sorted_unique(numbers: np.ndarray) -> np.ndarray:
    """Sort rows of numbers [n, m] in descending order, and replace repeated ones by 0 at the end."""
    numbers = np.sort(numbers, 1)[:, ::-1].copy()
    numbers[:, 1:][numbers[:, 1:] == numbers[:, :-1]] = 0
    return np.sort(numbers, 1)[:, ::-1]


def _pack_bytes(rows: Bytes) -> np.ndarray:
    """Combine the bytes of each row [..., k] into one number, uint64 [...]."""
    number = np.zeros(np.shape(rows)[:-1], np.uint64)
    for column in np.moveaxis(np.asarray(rows).astype(np.uint64), -1, 0):
        number = number << np.uint64(BITS_PER_BYTE) | column
    return number
