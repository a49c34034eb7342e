"""Rules: objects that turn into others when they are held, or stand beside the agent or another object.

A rule is seven bytes, `[kind, ...]`, as in XLand-MiniGrid (Nikulin et al. 2023, "XLand-MiniGrid: Scalable
Meta-Reinforcement Learning Environments in JAX"):

    [kind, tile, colour, product's tile, product's colour, 0, 0]                    one tile
    [kind, tile, colour, other tile, other colour, product's tile, product's colour]   two tiles

Rules are applied in their order, each to the result of those before it. Where a rule of two tiles holds, the
product replaces the neighbour, and the cell in front of the agent becomes floor.
"""

import enum
from typing import NamedTuple

import jax.numpy as jnp

from shoal.envs.grid.engine import adjacency
from shoal.envs.grid.engine.adjacency import ActionFlags, Neighbourhood
from shoal.envs.grid.engine.tiles import FLOOR, Bytes, pack, unpack
from shoal.types import Array

ENCODED_SIZE = 7  # bytes


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


KIND_BITS = adjacency.kind_table(
    (
        0,
        adjacency.POCKET,
        adjacency.agent_near_bits(),
        adjacency.tile_near_bits(),
        *(adjacency.tile_near_bits(direction) for direction in range(4)),
        *(adjacency.agent_near_bits(direction) for direction in range(4)),
    )
)
TWO_TILE_KINDS = tuple(kind for kind in RuleKind if kind.name.startswith("TILE"))


class RuleTable(NamedTuple):
    """R rules as columns of a table."""

    kind: Array  # uint32 [R], bits as in `adjacency`
    tile: Array  # uint16 [R]
    other: Array  # uint16 [R], the second tile where there is one
    product: Array  # uint16 [R]


def decode(encoded_rules: Bytes) -> RuleTable:
    """Decode rules [R, 7] into a table."""
    encoded_rules = jnp.asarray(encoded_rules)
    kind = encoded_rules[..., 0].astype(jnp.int32)
    second, third = pack(encoded_rules[..., 3:5]), pack(encoded_rules[..., 5:7])
    product = jnp.where(_is_two_tile(kind), third, second)
    return RuleTable(jnp.asarray(KIND_BITS)[kind], pack(encoded_rules[..., 1:3]), second, product)


def encode(rules: RuleTable) -> Array:
    """Encode a table as uint8 [R, 7]; bytes that a kind ignores are 0."""
    kind = rules.kind >> adjacency.KIND_SHIFT
    is_pair = _is_two_tile(kind)[..., None]
    product = unpack(rules.product)
    second = jnp.where(is_pair, unpack(rules.other), product)
    third = jnp.where(is_pair, product, jnp.uint8(0))
    return jnp.concatenate([kind[..., None].astype(jnp.uint8), unpack(rules.tile), second, third], axis=-1)


def _is_two_tile(kind: Array) -> Array:
    return (kind >= min(TWO_TILE_KINDS)) & (kind <= max(TWO_TILE_KINDS))


def match_rules(rules: RuleTable, neighbourhood: Neighbourhood, pocket: Array, flags: ActionFlags) -> Array:
    """Report which rules hold for the cells nearby and the pocket, bool [R]."""
    is_held = adjacency.has_any_bit(rules.kind, adjacency.POCKET) & flags.pick & (pocket == rules.tile)
    agent_matched = adjacency.agent_matches(rules.kind, rules.tile, neighbourhood, flags)
    front_matched = adjacency.tile_matches(rules.kind, rules.tile, rules.other, neighbourhood, flags)
    return adjacency.any_true([is_held, *agent_matched, *front_matched])


def apply_rule(
    rule: RuleTable, neighbourhood: Neighbourhood, pocket: Array, flags: ActionFlags
) -> tuple[Neighbourhood, Array]:
    """Apply one rule to the cells nearby and the pocket; its kind says which of its conditions can hold."""
    is_held = adjacency.has_any_bit(rule.kind, adjacency.POCKET) & flags.pick & (pocket == rule.tile)
    agent_matched = adjacency.agent_matches(rule.kind, rule.tile, neighbourhood, flags)
    front_matched = adjacency.tile_matches(rule.kind, rule.tile, rule.other, neighbourhood, flags)
    front = jnp.where(
        adjacency.any_true([x & y for x, y in zip(agent_matched, flags.is_ahead, strict=True)]),
        rule.product,
        neighbourhood.front,
    )
    changed = Neighbourhood(
        neighbourhood.front,
        _replace_matches(neighbourhood.agent_neighbours, agent_matched, rule.product),
        _replace_matches(neighbourhood.front_neighbours, front_matched, rule.product),
    )
    front = jnp.where(adjacency.any_true(front_matched), FLOOR, front)
    return adjacency.replace_front(changed, front, flags), jnp.where(is_held, rule.product, pocket)


def _replace_matches(cells: tuple[Array, ...], matches: list[Array], product: Array) -> tuple[Array, ...]:
    return tuple(jnp.where(matched, product, cell) for matched, cell in zip(matches, cells, strict=True))
