"""At the edge of the grid: the engine does what xminigrid does on the same grid with tile 0 about it.

xminigrid takes rows and columns outside its grid as indices: -1 is the last row, what it reads beyond the last row is
that row, and what it writes there is lost. With two more rows and columns of tile 0 on every side no index leaves the
grid, and the same code says what happens where nothing lies outside. `docs/grid.md` lists where the two differ.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid_oracle import (
    Seen,
    canonical,
    converted,
    differing,
    original_reset,
    original_seen,
    original_step,
    our_seen,
)

from shoal import envs
from shoal.envs.grid.engine.agent import Action
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import Colour, Tile
from shoal.envs.grid.rulesets.rulesets import Ruleset, check

NAME = "XLand-MiniGrid-R1-9x9"
SIDE, RING = 9, 2
FLOOR, WALL = (Tile.FLOOR, Colour.BLACK), (Tile.WALL, Colour.GREY)
BALL, KEY = (Tile.BALL, Colour.RED), (Tile.KEY, Colour.BLUE)
TILES = np.asarray([WALL, BALL, KEY, FLOOR], np.uint8)  # so few that much meets
NUM_STATES = 3000
PAIR_GOALS = [kind for kind in GoalKind if kind.name.startswith("TILE_NEAR")]
POSITION_GOALS = (GoalKind.TILE_ON_POSITION, GoalKind.AGENT_ON_POSITION)


def random_tasks(rng, num_rules, outermost):
    """Rulesets of all kinds in turn over a wall, two things and floor; cells of goals up to a row and column."""
    kinds = rng.integers(1, len(RuleKind), (NUM_STATES, num_rules))
    first, second, product = (TILES[rng.integers(0, len(TILES), kinds.shape)] for _ in range(3))
    product[rng.random(kinds.shape) < 0.1] = (Tile.EMPTY, Colour.EMPTY)
    two = np.isin(kinds, TWO_TILE_KINDS)[..., None]
    middle, last = np.where(two, second, product), np.where(two, product, 0)
    encoded = np.concatenate([kinds[..., None], first, middle, last], -1)
    goal_kinds = np.arange(NUM_STATES) % len(GoalKind)
    cells = rng.integers(0, outermost + 1, (NUM_STATES, 2))
    one, other = (TILES[rng.integers(0, len(TILES), NUM_STATES)] for _ in range(2))
    one = np.where((goal_kinds == GoalKind.AGENT_ON_POSITION)[:, None], cells, one)
    other = np.where((goal_kinds == GoalKind.TILE_ON_POSITION)[:, None], cells, other)
    reads_other = np.isin(goal_kinds, [*PAIR_GOALS, GoalKind.TILE_ON_POSITION])[:, None]
    goal = np.concatenate([goal_kinds[:, None], one, np.where(reads_other, other, 0)], -1)
    things = np.zeros((NUM_STATES, 1, 2))
    return Ruleset(*(array.astype(np.uint8) for array in (goal, encoded, things)))


def random_grids(rng, opened):
    """Rooms full of things, [N, 9, 9, 2]; a share of the cells of the outer wall is opened."""
    grids = TILES[rng.choice(4, (NUM_STATES, SIDE, SIDE), p=(0.05, 0.2, 0.2, 0.55))]
    border = np.ones((SIDE, SIDE), bool)
    border[1:-1, 1:-1] = False
    stands = border & (rng.random((NUM_STATES, SIDE, SIDE)) >= opened)
    return np.where(stands[..., None], np.asarray(WALL, np.uint8), grids)


def at_the_edge(rng, margin):
    """Places within a number of cells of the edge, a quarter of them in a corner; rows and columns [N, 2]."""
    places = rng.integers(margin, SIDE - margin, (NUM_STATES, 2))
    fixed = np.where(rng.random((NUM_STATES, 2)) < 0.5, margin, SIDE - 1 - margin)
    axis = rng.integers(0, 2, NUM_STATES)
    on_edge = np.arange(2) == axis[:, None]
    corner = rng.random((NUM_STATES, 1)) < 0.25
    return np.where(on_edge | corner, fixed, places)


@functools.cache
def random_states(seed, *, num_rules, opened, margin, outermost):
    """The original's time-steps with the agent at the edge, looking anywhere, and an action for each."""
    rng = np.random.default_rng(seed)
    tasks, places = random_tasks(rng, num_rules, outermost), at_the_edge(rng, margin)
    is_there = (tasks.goal[:, 0] == GoalKind.AGENT_ON_POSITION) & (rng.random(NUM_STATES) < 0.5)
    tasks.goal[is_there, 1:3] = places[is_there]
    check(tasks)
    start = original_reset(NAME, tasks)(jax.random.split(jax.random.key(seed), NUM_STATES))
    grids = random_grids(rng, opened)
    rows = np.arange(NUM_STATES)
    on_floor = rng.random(NUM_STATES) < 0.8
    grids[rows[on_floor], places[on_floor, 0], places[on_floor, 1]] = FLOOR
    pocket = np.where(rng.random((NUM_STATES, 1)) < 0.5, TILES[rng.integers(1, 3, NUM_STATES)], 0)
    agent = start.state.agent.replace(
        position=jnp.asarray(places, jnp.int32),
        direction=jnp.asarray(rng.integers(0, 4, NUM_STATES), jnp.int32),
        pocket=jnp.asarray(pocket, jnp.uint8),
    )
    action = rng.choice(6, NUM_STATES, p=(0.25, 0.05, 0.05, 0.15, 0.4, 0.1)).astype(np.int32)
    return start.replace(state=start.state.replace(grid=jnp.asarray(grids), agent=agent)), action, tasks


def with_ring(timestep):
    """The same states on a grid with tile 0 about it."""
    state = timestep.state
    kind, goal = np.asarray(state.goal_encoding[:, 0]), np.asarray(state.goal_encoding).copy()
    goal[kind == GoalKind.TILE_ON_POSITION, 3:] += RING
    goal[kind == GoalKind.AGENT_ON_POSITION, 1:3] += RING
    around = (0, 0), (RING, RING), (RING, RING), (0, 0)
    return timestep.replace(
        state=state.replace(
            grid=jnp.pad(state.grid, around),
            agent=state.agent.replace(position=state.agent.position + RING),
            goal_encoding=jnp.asarray(goal),
        )
    )


def seen_within_ring(timestep):
    """What the original shows of such states, without what lies about the grid, which is unchanged."""
    seen = original_seen(timestep)
    inner = (slice(None), slice(RING, -RING), slice(RING, -RING))
    outside = seen.grid.copy()
    outside[inner] = 0
    assert not outside.any()
    return seen._replace(grid=seen.grid[inner], row=seen.row - RING, column=seen.column - RING)


world = envs.make(NAME, max_episode_steps=1000)


@pytest.fixture(scope="module")
def our_step():
    return jax.jit(jax.vmap(world.step, (0, 0, None)))


def stepped(our_step, timestep, action):
    """What our engine shows after one step from the original's states."""
    state, after = our_step(converted(world, timestep), action, jax.random.key(0))
    return our_seen(world, state, after)


def the_original(timestep, action):
    return original_step(NAME)(canonical(timestep), action, world.max_episode_steps)


def differs(one, other):
    """In which of the states anything differs, bool [N]."""
    return np.any([(x != y).reshape(NUM_STATES, -1).any(1) for x, y in zip(one, other, strict=True)], 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2, 3])
def test_outside_the_grid_is_nothing_whatever_stands_at_its_edge(our_step, seed):
    """Open borders, agents and things on them and in corners, rules and goals of every kind, cells outside."""
    states, action, tasks = random_states(seed, num_rules=3, opened=0.6, margin=0, outermost=12)
    ours, theirs = (
        stepped(our_step, states, action),
        seen_within_ring(the_original(with_ring(states), action)),
    )
    assert not differing(ours, theirs)
    won = np.bincount(tasks.goal[theirs.terminated, 0], minlength=len(GoalKind))
    assert won[0] == 0 and (won[1:] >= 2).all(), dict(zip(GoalKind, won, strict=True))
    plain = original_seen(the_original(states, action))
    assert differs(ours, plain).sum() > 30  # so these states are about the edge


@pytest.mark.parametrize(
    "seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
@pytest.mark.full
def test_within_an_outer_wall_only_a_wall_beside_a_wall_and_cells_outside_differ(our_step, seed):
    """The agent beside the wall and in the corners, one rule of every kind, against the original as it is."""
    states, action, tasks = random_states(seed, num_rules=1, opened=0.0, margin=1, outermost=12)
    ours, theirs = stepped(our_step, states, action), original_seen(the_original(states, action))
    goal, rule = tasks.goal, tasks.rules[:, 0]
    wall = np.asarray(WALL)

    def of_walls(rows, kinds):
        return np.isin(rows[:, 0], kinds) & (rows[:, 1:3] == wall).all(1) & (rows[:, 3:5] == wall).all(1)

    outside = (goal[:, 0] == GoalKind.TILE_ON_POSITION) & (goal[:, 3:5] >= SIDE).any(1)
    may_differ = of_walls(rule, TWO_TILE_KINDS) | of_walls(goal, PAIR_GOALS) | outside
    assert may_differ.sum() < NUM_STATES / 5
    different = differs(ours, theirs)
    assert not (different & ~may_differ).any()
    assert (different & may_differ).any()
    before = np.asarray(states.state.grid)
    on_wall = (theirs.grid != before).any(-1)
    on_wall[:, 1:-1, 1:-1] = False
    fired = np.bincount(rule[on_wall.any((1, 2)) & ~may_differ, 0], minlength=len(RuleKind))
    at_wall = set(RuleKind) - {RuleKind.NONE, RuleKind.AGENT_HOLD}
    assert all(fired[kind] for kind in at_wall), dict(zip(RuleKind, fired, strict=True))


# ---- each difference by itself


def one_step(our_step, action, *, place, direction, pocket=(0, 0), cells=(), goal=(), rule=()):
    """What both show of one state after a step: a room with some cells replaced, and an agent."""
    states, actions, _ = random_states(0, num_rules=1, opened=0.0, margin=1, outermost=8)
    grid = np.full((SIDE, SIDE, 2), FLOOR, np.uint8)
    grid[[0, -1]] = grid[:, [0, -1]] = WALL
    for row, column, tile in cells:
        grid[row, column] = tile
    state = states.state

    def all_of(value, like):
        """The same value in all states, filled up with zeros."""
        filled = np.zeros(like.shape[1:], like.dtype)
        filled[tuple(slice(size) for size in np.shape(value))] = value
        return jnp.broadcast_to(filled, like.shape)

    agent = state.agent.replace(
        position=all_of(place, state.agent.position),
        direction=all_of(direction, state.agent.direction),
        pocket=all_of(pocket, state.agent.pocket),
    )
    states = states.replace(
        state=state.replace(
            grid=all_of(grid, state.grid),
            agent=agent,
            goal_encoding=all_of(goal, state.goal_encoding),
            rule_encoding=all_of([rule or (0,)], state.rule_encoding),
        )
    )
    actions = np.full_like(actions, action)
    both = stepped(our_step, states, actions), original_seen(the_original(states, actions))
    return tuple(Seen(*(array[0] for array in seen)) for seen in both)


@pytest.mark.full
def test_a_wall_beside_a_wall_is_not_looked_for_on_the_opposite_side(our_step):
    """The agent in the upper left corner, looking up at the wall, as if it had put something down there."""
    where = {"place": (1, 1), "direction": 0}
    ours, theirs = one_step(
        our_step, Action.PUT_DOWN, **where, rule=(RuleKind.TILE_NEAR_UP, *WALL, *WALL, *BALL)
    )
    assert (ours.grid[0, 1] == WALL).all() and (ours.grid[-1, 1] == WALL).all()
    assert (theirs.grid[0, 1] == FLOOR).all() and (theirs.grid[-1, 1] == BALL).all()
    ours, theirs = one_step(our_step, Action.PUT_DOWN, **where, goal=(GoalKind.TILE_NEAR_UP, *WALL, *WALL))
    assert not ours.terminated and theirs.terminated


@pytest.mark.full
def test_what_is_beside_an_open_border_is_not_on_the_opposite_one(our_step):
    """The agent has stepped into a gap in the upper wall; a ball is in the lower one, in the same column."""
    cells = [(0, 4, FLOOR), (8, 4, BALL)]
    where = {"place": (0, 4), "direction": 0, "cells": cells}
    ours, theirs = one_step(our_step, Action.PICK_UP, **where)
    assert not ours.pocket.any() and (theirs.pocket == BALL).all()
    ours, theirs = one_step(our_step, Action.FORWARD, **where, goal=(GoalKind.AGENT_NEAR, *BALL))
    assert not ours.terminated and theirs.terminated
    assert (ours.row, ours.column) == (theirs.row, theirs.column) == (0, 4)


@pytest.mark.full
def test_nothing_is_put_down_outside(our_step):
    """The agent in a gap of the lower wall, looking out, with a key in its pocket."""
    ours, theirs = one_step(
        our_step, Action.PUT_DOWN, place=(8, 4), direction=2, pocket=KEY, cells=[(8, 4, FLOOR)]
    )
    np.testing.assert_array_equal(ours.grid, theirs.grid)
    assert (ours.pocket == KEY).all()
    assert not theirs.pocket.any()  # and the key is nowhere


@pytest.mark.parametrize("cell", [(200, 3), (9, 3), (3, 9), (9, 9)])
@pytest.mark.quick("cell0")
def test_no_tile_lies_on_a_cell_outside(our_step, cell):
    where = {"place": (4, 4), "direction": 0, "goal": (GoalKind.TILE_ON_POSITION, *WALL, *cell)}
    ours, theirs = one_step(our_step, Action.TURN_LEFT, **where)
    assert not ours.terminated and theirs.terminated
    ours, theirs = one_step(
        our_step, Action.TURN_LEFT, **(where | {"goal": (GoalKind.AGENT_ON_POSITION, *cell)})
    )
    assert not ours.terminated and not theirs.terminated
