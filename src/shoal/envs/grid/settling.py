"""All rules of a step, one after the other, and what they leave."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.batching import on_batch
from shoal.envs.grid import batching, near, rules
from shoal.envs.grid.board import read, write
from shoal.envs.grid.near import Attention, Nearby
from shoal.envs.grid.rules import Rules
from shoal.types import Array

# In a batch on the CPU this share of the environments is looked at at once, about as many as rules hold in.
SHARE_AT_ONCE = 1 / 32
LEAST_AT_ONCE = 16


class Scene(NamedTuple):
    """What rules look at in one step."""

    rules: Rules  # [R]
    places: Array  # int32 [8], the agent's neighbours and those of the cell in front
    attends: Attention


class Settled(NamedTuple):
    """What rules change."""

    cells: Array  # uint16, all that lie in the board's memory
    found: Array  # uint16 [8], those at the scene's places
    pocket: Array  # uint16 []


def settle(scene: Scene, cells: Array, pocket: Array) -> tuple[Array, Nearby, Array]:
    """All cells, those nearby, and the pocket after all rules.

    On the CPU a batch looks only at the environments in which a rule holds: a rule that does not hold
    changes nothing, so the first that does is found and done, and then the first of those after it, until
    none is left.
    """
    settled = on_batch(_every_rule, _rules_that_hold)(scene, cells, pocket)
    return settled.cells, _nearby(settled.found, scene.attends), settled.pocket


def _nearby(found: Array, attends: Attention) -> Nearby:
    return near.nearby_of([found[index] for index in range(8)], attends)


def _done(scene: Scene, index: Array | int, found: Array, pocket: Array) -> tuple[Array, Array]:
    """The cells nearby [8] and the pocket after one of the rules."""
    rule = Rules(*(column[index] for column in scene.rules))
    nearby, pocket = rules.apply_one(rule, _nearby(found, scene.attends), pocket, scene.attends)
    return jnp.stack([*nearby.around, *nearby.beyond]), pocket


def _every_rule(scene: Scene, cells: Array, pocket: Array) -> Settled:
    """Does one rule after the other."""
    found = read(cells, scene.places)
    for index in range(scene.rules.kind.shape[0]):
        found, pocket = _done(scene, index, found, pocket)
    return Settled(write(cells, scene.places, found), found, pocket)


class Waiting(NamedTuple):
    """How far the rules of an environment have been done."""

    holds: Array  # bool [], whether one of those that are left holds
    start: Array  # int32 [], the first that is left


def _left(scene: Scene, start: Array, found: Array, pocket: Array) -> Array:
    """Which rules from `start` on hold, bool [R]."""
    hold = rules.holding(scene.rules, _nearby(found, scene.attends), pocket, scene.attends)
    return hold & (np.arange(hold.shape[0], dtype=np.int32) >= start)


def _next_rule(scene: Scene, start: Array, found: Array, pocket: Array) -> tuple[Waiting, Array, Array]:
    """Does the first rule that holds, of those from `start` on."""
    chosen = jnp.argmax(_left(scene, start, found, pocket)).astype(jnp.int32)
    found, pocket = _done(scene, chosen, found, pocket)
    start = chosen + 1
    return Waiting(jnp.any(_left(scene, start, found, pocket)), start), found, pocket


def _rules_that_hold(scene: Scene, cells: Array, pocket: Array) -> Settled:
    """The same for a batch, [N, ...], a group of environments in which a rule holds at a time."""
    count, size = cells.shape
    at_once = min(count, max(LEAST_AT_ONCE, int(count * SHARE_AT_ONCE)))
    found = batching.once(scene.places[:, 0] >= 0, jax.vmap(read), cells, scene.places)
    start = jnp.zeros(count, jnp.int32)
    waiting = Waiting(jnp.any(jax.vmap(_left)(scene, start, found, pocket), axis=1), start)

    def group(carry: tuple) -> tuple:
        waiting, flat, found, pocket = carry
        chosen = jnp.nonzero(waiting.holds, size=at_once, fill_value=count)[
            0
        ]  # writing at `count` is dropped
        own = jax.tree.map(lambda x: x[chosen], (scene, waiting.start, found, pocket))
        places = chosen[:, None] * size + own[0].places
        changed = jax.vmap(_next_rule)(*own)
        waiting, found, pocket = jax.tree.map(
            lambda x, new: x.at[chosen].set(new, mode="drop"), (waiting, found, pocket), changed
        )
        return waiting, flat.at[places].set(changed[1], mode="drop"), found, pocket

    carry = (waiting, cells.reshape(-1), found, pocket)
    _, flat, found, pocket = jax.lax.while_loop(lambda carry: jnp.any(carry[0].holds), group, carry)
    return Settled(flat.reshape(count, size), found, pocket)
