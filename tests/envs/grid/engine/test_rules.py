"""Rules and goals of every kind, in random rulesets, against xminigrid."""

import jax
import numpy as np
import pytest
from grid_oracle import (
    converted,
    differing,
    original_reset,
    original_seen,
    original_step,
    our_seen,
    without_rules,
)

from shoal import envs
from shoal.envs.grid.engine import rules
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import PICKABLE, Colour, Tile
from shoal.envs.grid.rulesets.rulesets import Ruleset, check

NAME = "XLand-MiniGrid-R1-9x9"
NUM_RULESETS, NUM_RULES, NUM_THINGS = 1000, 3, 9
FORWARD, PICK_UP, PUT_DOWN = 0, 3, 4
THINGS = np.asarray([(tile, colour) for tile in PICKABLE for colour in list(Colour)[1:]])
OF_ONE_KIND = 700  # rulesets whose rules are all of one kind, so that what changes tells which fired


def random_rulesets(rng):
    """Rulesets over three tiles each, so that much meets; the kinds of goals and of the first rules take turns."""
    palettes = THINGS[rng.integers(0, len(THINGS), (NUM_RULESETS, 3))]

    def tiles(*shape):
        """Of each ruleset's own three."""
        own = np.arange(NUM_RULESETS).reshape(-1, *[1] * (len(shape) - 1))
        return palettes[own, rng.integers(0, 3, shape)]

    things = tiles(NUM_RULESETS, NUM_THINGS)
    things[::3, -2:] = 0  # padding
    kinds = rng.integers(0, len(RuleKind), (NUM_RULESETS, NUM_RULES))
    kinds[:OF_ONE_KIND] = (np.arange(OF_ONE_KIND) % (len(RuleKind) - 1) + 1)[:, None]
    shape = kinds.shape
    product = tiles(*shape)
    product[rng.random(shape) < 0.2] = (Tile.FLOOR, Colour.BLACK)
    two = np.isin(kinds, TWO_TILE_KINDS)[..., None]
    second = np.where(two, tiles(*shape), product)
    encoded = np.concatenate([kinds[..., None], tiles(*shape), second, np.where(two, product, 0)], -1)
    encoded[kinds == RuleKind.NONE] = 0
    goal_kinds = np.arange(NUM_RULESETS) % len(GoalKind)
    cells = rng.integers(1, 8, (NUM_RULESETS, 2))
    on_cell, of_cell = goal_kinds == GoalKind.AGENT_ON_POSITION, goal_kinds == GoalKind.TILE_ON_POSITION
    of_two = np.isin(goal_kinds, [kind for kind in GoalKind if kind.name.startswith("TILE_NEAR")])
    first = np.where(on_cell[:, None], cells, tiles(NUM_RULESETS))
    first[goal_kinds == GoalKind.AGENT_ON_TILE] = (Tile.FLOOR, Colour.BLACK)
    second = np.where(of_cell[:, None], cells, np.where(of_two[:, None], tiles(NUM_RULESETS), 0))
    goal = np.concatenate([goal_kinds[:, None], first, second], -1)
    goal[goal_kinds == GoalKind.NONE] = 0
    return Ruleset(*(array.astype(np.uint8) for array in (goal, encoded, things)))


def meddling(rng, seen):
    """Picks up what is in front, puts it down elsewhere, and walks about."""
    tile, held = seen.observation[:, -2, 2, 0], seen.pocket[:, 0]
    beside = np.isin(seen.observation[:, (-3, -2, -2), (2, 1, 3), 0], PICKABLE).any(1)
    fitting = np.full(len(tile), FORWARD)
    fitting[np.isin(tile, PICKABLE) & (held == 0)] = PICK_UP
    fitting[(tile == Tile.FLOOR) & (held != 0) & (beside | (rng.random(len(tile)) < 0.1))] = PUT_DOWN
    return np.where(rng.random(len(tile)) < 0.6, fitting, rng.integers(0, 6, len(tile))).astype(np.int32)


@pytest.mark.parametrize(
    "num_steps", [pytest.param(40, id="some"), pytest.param(250, id="many", marks=pytest.mark.slow)]
)
def test_rules_and_goals_of_every_kind_do_what_the_originals_do(num_steps):
    rng = np.random.default_rng(7)
    tasks = random_rulesets(rng)
    check(tasks)
    world = envs.make(NAME, max_episode_steps=10_000)
    theirs = original_reset(NAME, tasks)(jax.random.split(jax.random.key(3), NUM_RULESETS))
    state, seen = converted(world, theirs), original_seen(theirs)
    our_step = jax.jit(jax.vmap(world.step, (0, 0, None)))
    action_alone = jax.jit(without_rules)
    fired, won = np.zeros(len(RuleKind), int), np.zeros(len(GoalKind), int)
    for _ in range(num_steps):
        action = meddling(rng, seen)
        grid, pocket = action_alone(theirs, action)
        theirs = original_step(NAME)(theirs, action, world.max_episode_steps)
        state, timestep = our_step(state, action, jax.random.key(0))
        seen = original_seen(theirs)
        assert not differing(our_seen(world, state, timestep), seen)
        changed = (seen.grid != grid).any((1, 2, 3)) | (seen.pocket != pocket).any(1)
        np.add.at(fired, tasks.rules[:OF_ONE_KIND, 0, 0], changed[:OF_ONE_KIND])
        np.add.at(won, tasks.goal[:, 0], seen.terminated)
    print(fired, won)
    assert fired[RuleKind.NONE] == won[GoalKind.NONE] == 0
    assert (fired[1:] >= 5).all(), dict(zip(RuleKind, fired, strict=True))
    assert (won[1:] >= 5).all(), dict(zip(GoalKind, won, strict=True))


def test_the_table_keeps_the_bytes():
    tasks = random_rulesets(np.random.default_rng(1))
    np.testing.assert_array_equal(rules.encode(rules.decode(tasks.rules)), tasks.rules)
