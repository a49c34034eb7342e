"""Rules: what turns into what when it is held, or stands beside the agent or beside something else.

A rule is seven bytes, `[kind, ...]`, as in XLand-MiniGrid (Nikulin et al. 2023, "XLand-MiniGrid: Scalable
Meta-Reinforcement Learning Environments in JAX"):

    [kind, tile, colour, product's tile, product's colour, 0, 0]                    one tile
    [kind, tile, colour, other tile, other colour, product's tile, product's colour]   two tiles

They are applied in their order, each to what those before it left. Where a rule of two tiles holds, the
product takes the place of the neighbour, and the cell in front of the agent becomes floor.
"""

import enum
from typing import Any, NamedTuple

import jax.numpy as jnp

from shoal.envs.grid import near
from shoal.envs.grid.near import Attention, Nearby
from shoal.envs.grid.tiles import FLOOR, Bytes, packed, unpacked
from shoal.types import Array

ENCODED = 7  # bytes


class RuleKind(enum.IntEnum):
    """The kinds of rules by number; "near up" means that the (second) tile is above."""

    NONE = 0
    AGENT_HOLD = 1
    AGENT_NEAR = 2
    TILE_NEAR = 3
    TILE_NEAR_UP = 4
    TILE_NEAR_RIGHT = 5
    TILE_NEAR_DOWN = 6
    TILE_NEAR_LEFT = 7
    AGENT_NEAR_UP = 8
    AGENT_NEAR_RIGHT = 9
    AGENT_NEAR_DOWN = 10
    AGENT_NEAR_LEFT = 11


KINDS = near.numbered(
    (
        0,
        near.POCKET,
        near.agent_near(),
        near.tile_near(),
        *(near.tile_near(direction) for direction in range(4)),
        *(near.agent_near(direction) for direction in range(4)),
    )
)
OF_TWO_TILES = tuple(kind for kind in RuleKind if kind.name.startswith("TILE"))


class Rules(NamedTuple):
    """R rules as columns of a table."""

    kind: Array  # uint32 [R], bits as in `near`
    tile: Array  # uint16 [R]
    other: Array  # uint16 [R], the second tile where there is one
    product: Array  # uint16 [R]


def table(encoded: Bytes) -> Rules:
    """The table of encoded rules [R, 7]."""
    encoded = jnp.asarray(encoded)
    kind = encoded[..., 0].astype(jnp.int32)
    second, third = packed(encoded[..., 3:5]), packed(encoded[..., 5:7])
    product = jnp.where(_of_two_tiles(kind), third, second)
    return Rules(jnp.asarray(KINDS)[kind], packed(encoded[..., 1:3]), second, product)


def encoded(rules: Rules) -> Array:
    """The bytes of a table, uint8 [R, 7]; what they ignore is 0."""
    kind = rules.kind >> near.KIND_SHIFT
    two = _of_two_tiles(kind)[..., None]
    product = unpacked(rules.product)
    second = jnp.where(two, unpacked(rules.other), product)
    third = jnp.where(two, product, jnp.uint8(0))
    return jnp.concatenate([kind[..., None].astype(jnp.uint8), unpacked(rules.tile), second, third], axis=-1)


def _of_two_tiles(kind: Array) -> Array:
    return (kind >= min(OF_TWO_TILES)) & (kind <= max(OF_TWO_TILES))


def holding(rules: Rules, nearby: Nearby, pocket: Array, attends: Attention) -> Array:
    """Which rules hold for the cells nearby and the pocket, bool [R]."""
    held = near.has(rules.kind, near.POCKET) & attends.pick & (pocket == rules.tile)
    around = near.agent_hits(rules.kind, rules.tile, nearby, attends)
    beyond = near.tile_hits(rules.kind, rules.tile, rules.other, nearby, attends)
    return near.any_of([held, *around, *beyond])


def apply_one(rule: Rules, nearby: Nearby, pocket: Array, attends: Attention) -> tuple[Nearby, Array]:
    """The cells nearby and the pocket after one rule. Which of its parts can hold is said by its kind."""
    held = near.has(rule.kind, near.POCKET) & attends.pick & (pocket == rule.tile)
    around = near.agent_hits(rule.kind, rule.tile, nearby, attends)
    beyond = near.tile_hits(rule.kind, rule.tile, rule.other, nearby, attends)
    front = jnp.where(
        near.any_of([x & y for x, y in zip(around, attends.ahead, strict=True)]), rule.product, nearby.front
    )
    changed = Nearby(
        nearby.front,
        _replaced(nearby.around, around, rule.product),
        _replaced(nearby.beyond, beyond, rule.product),
    )
    front = jnp.where(near.any_of(beyond), FLOOR, front)
    return near.with_front(changed, front, attends), jnp.where(held, rule.product, pocket)


def _replaced(cells: tuple[Array, ...], hits: list[Array], product: Array) -> Any:
    return tuple(jnp.where(hit, product, cell) for hit, cell in zip(hits, cells, strict=True))
