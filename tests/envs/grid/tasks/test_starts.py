"""Episodes start as xminigrid's do: the same things, in the same places, together as often."""

import functools

import jax
import numpy as np
import pytest
from grid_oracle import converted, original_reset

from shoal import envs
from shoal.envs.grid.engine import goals
from shoal.envs.grid.engine.tiles import Colour, Tile
from shoal.envs.grid.rulesets.rulesets import ruleset
from shoal.envs.grid.tasks import layouts

NUM_STARTS = 4000
LEAST_COUNT = 60  # what happens less often in the two together is not compared
LARGEST_SCORE = 6.0  # two in a billion for one comparison; there are up to a million
THINGS = ruleset(
    init_tiles=[(Tile.BALL, Colour.RED), (Tile.KEY, Colour.BLUE), (0, 0), (Tile.STAR, Colour.PINK)]
)
NAMES = (
    "MiniGrid-BlockedUnlockPickUp", "MiniGrid-DoorKey-5x5", "MiniGrid-DoorKey-8x8", "MiniGrid-Empty-5x5",
    "MiniGrid-EmptyRandom-5x5", "MiniGrid-FourRooms", "MiniGrid-LockedRoom", "MiniGrid-MemoryS8",
    "MiniGrid-Playground", "MiniGrid-Unlock", "MiniGrid-UnlockPickUp", "XLand-MiniGrid-R1-9x9",
    "XLand-MiniGrid-R2-9x9", "XLand-MiniGrid-R4-9x9", "XLand-MiniGrid-R6-13x13", "XLand-MiniGrid-R9-16x16",
)  # fmt: skip


def facts(world, state):
    """What a state says, as integers [N, ...]: the cells, the agent, the goal."""
    goal = np.asarray(jax.vmap(functools.partial(goals.encode, world.board))(state.goal))
    others = (state.agent.place, state.agent.direction, state.agent.pocket, state.pitfall)
    return np.concatenate([np.asarray(state.cells), *(np.asarray(x)[:, None] for x in others), goal], 1)


def together(columns, values, counted):
    """How often each two facts (a column has a value) hold at once."""
    held = (counted[:, columns] == values).astype(np.float32)
    return (held.T @ held).astype(np.float64)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.rare(
    *("MiniGrid-BlockedUnlockPickUp", "MiniGrid-DoorKey-8x8", "MiniGrid-Empty-5x5", "MiniGrid-FourRooms"),
    *("MiniGrid-Playground", "MiniGrid-Unlock", "MiniGrid-UnlockPickUp", "XLand-MiniGrid-R1-9x9"),
    *("XLand-MiniGrid-R2-9x9", "XLand-MiniGrid-R9-16x16"),
)
@pytest.mark.rare("XLand-MiniGrid-R6-13x13")
def test_starts_are_distributed_as_the_originals(name):
    world = envs.make(name, **({"ruleset": THINGS} if name.startswith("XLand") else {}))
    tasks = None
    if name.startswith("XLand"):
        tasks = [np.repeat(np.asarray(array)[None], NUM_STARTS, 0) for array in THINGS]
    theirs = original_reset(name, tasks)(jax.random.split(jax.random.key(1), NUM_STARTS))
    theirs = facts(world, converted(world, theirs))
    ours = jax.jit(jax.vmap(world.reset))(jax.random.split(jax.random.key(2), NUM_STARTS))[0]
    ours = facts(world, ours)
    both = np.concatenate([theirs, ours])
    columns, values = [], []
    for column in range(both.shape[1]):
        found, counts = np.unique(both[:, column], return_counts=True)
        columns += [column] * (counts >= LEAST_COUNT).sum()
        values += found[counts >= LEAST_COUNT].tolist()
    a, b = (together(np.asarray(columns), np.asarray(values), counted) for counted in (theirs, ours))
    share = (a + b) / (2 * NUM_STARTS)
    spread = np.sqrt(2 * NUM_STARTS * share * (1 - share))
    often = (a + b >= LEAST_COUNT) & (spread > 0)
    score = np.abs(a - b)[often] / spread[often]
    assert (a == b)[spread == 0].all()
    assert score.size == 0 or score.max() < LARGEST_SCORE, f"{score.max()} of {score.size}"


@pytest.mark.parametrize("most", [2, 3])
def test_distinct_numbers_come_in_every_order_equally_often(monkeypatch, most):
    monkeypatch.setattr(layouts, "MAX_WITHOUT_TABLE", most)
    bits = jax.random.bits(jax.random.key(0), (24_000, 3))
    drawn = np.stack(jax.jit(jax.vmap(lambda bits: layouts.sample_distinct(bits, 4)))(bits), 1)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert counts.shape == (24,)  # 4 * 3 * 2 orders
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_a_random_number_below_a_limit_is_the_exact_product():
    bits = np.random.default_rng(0).integers(0, 2**32, 1000, np.uint32)
    for limit in (1, 2, 3, 169, 65535):
        expected = (bits.astype(np.uint64) * limit) >> 32
        np.testing.assert_array_equal(layouts.uniform_below(jax.numpy.asarray(bits), limit), expected)
