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
from random_rulesets import NUM_RULESETS, OF_ONE_KIND, random_rulesets

from shoal import envs
from shoal.envs.grid.engine import rules
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import RuleKind
from shoal.envs.grid.engine.tiles import PICKABLE, Tile
from shoal.envs.grid.rulesets.rulesets import check

NAME = "XLand-MiniGrid-R1-9x9"
FORWARD, PICK_UP, PUT_DOWN = 0, 3, 4


def meddling(rng, seen):
    """Picks up what is in front, puts it down elsewhere, and walks about."""
    tile, held = seen.observation[:, -2, 2, 0], seen.pocket[:, 0]
    beside = np.isin(seen.observation[:, (-3, -2, -2), (2, 1, 3), 0], PICKABLE).any(1)
    fitting = np.full(len(tile), FORWARD)
    fitting[np.isin(tile, PICKABLE) & (held == 0)] = PICK_UP
    fitting[(tile == Tile.FLOOR) & (held != 0) & (beside | (rng.random(len(tile)) < 0.1))] = PUT_DOWN
    return np.where(rng.random(len(tile)) < 0.6, fitting, rng.integers(0, 6, len(tile))).astype(np.int32)


@pytest.mark.full
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


@pytest.mark.full
def test_the_table_keeps_the_bytes():
    tasks = random_rulesets(np.random.default_rng(1))
    np.testing.assert_array_equal(rules.encode(rules.decode(tasks.rules)), tasks.rules)
