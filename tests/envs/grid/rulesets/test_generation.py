"""Rulesets drawn at random: what the settings promise, and that every one can be solved, in the real engine."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.grid.engine import goals, rules
from shoal.envs.grid.engine.agent import Action
from shoal.envs.grid.engine.board import DIRECTIONS
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import FLOOR, PICKABLE, Colour, Tile, cell
from shoal.envs.grid.engine.world import make_state
from shoal.envs.grid.rulesets.benchmark import checksum
from shoal.envs.grid.rulesets.distinct import canonical_keys
from shoal.envs.grid.rulesets.generation import (
    PUBLISHED,
    GenerationConfig,
    RandomStream,
    draw_block,
    generate,
)
from shoal.envs.grid.rulesets.rulesets import Ruleset, check, stack

COUNT = 200  # rulesets of each setting that are looked at one by one
MIDDLE = (4, 4)


@functools.cache
def generated(name, count=COUNT):
    return generate(count, PUBLISHED[name], seed=3)


def tiles_of(row):
    """The tiles that a goal's or a rule's row is about."""
    is_rule = len(row) == rules.ENCODED_SIZE
    kind = RuleKind(row[0]) if is_rule else GoalKind(row[0])
    pairs = [tuple(int(x) for x in row[first : first + 2]) for first in (1, 3)]
    return pairs if kind.name.startswith("TILE_NEAR") else pairs[:1]


def product_of(row):
    first = 5 if row[0] in TWO_TILE_KINDS else 3
    return tuple(int(x) for x in row[first : first + 2])


def tree_of(goal, rule_rows, things):
    """The rules that make what the goal is about, each used once as each thing is; None if something is missing."""
    left = [tuple(int(x) for x in thing) for thing in things if thing[0]]
    tree = []

    def get(tile):
        for index, row in enumerate(rule_rows):
            if row[0] and index not in tree and product_of(row) == tile:
                tree.append(index)
                return all([get(needed) for needed in tiles_of(row)])
        if tile not in left:
            return False
        left.remove(tile)
        return True

    return tree if all([get(tile) for tile in tiles_of(goal)]) else None


def test_only_the_goals_that_are_named_are_drawn():
    """And all of them when none is, by the same draws as when all are."""
    some = dataclasses.replace(PUBLISHED["small"], goals=("agent_hold", "tile_near_up"))
    kinds = generate(COUNT, some).goal[:, 0]
    assert set(kinds.tolist()) == {GoalKind.AGENT_HOLD, GoalKind.TILE_NEAR_UP}
    every = tuple(
        kind.name.lower() for kind in GoalKind if set(generated("small").goal[:, 0].tolist()) & {kind}
    )
    assert len(every) == 11
    same = generate(COUNT, dataclasses.replace(PUBLISHED["small"], goals=every), seed=3)
    jax.tree.map(np.testing.assert_array_equal, same, generated("small"))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_ruleset_is_whole_and_its_goal_can_be_made_of_its_things(name):
    tasks, config = generated(name), PUBLISHED[name]
    check(tasks)
    assert tasks.rules.shape == (COUNT, config.max_rules, 7)
    assert tasks.init_tiles.shape == (COUNT, config.max_things, 2)
    sizes = []
    for goal, rule_rows, things in zip(*tasks, strict=True):
        tree = tree_of(goal, rule_rows, things)
        assert tree is not None
        assert sorted(tree) == list(range(len(tree)))  # the tree comes before what distracts
        sizes.append(len(tree))
        named = (rule_rows[:, 0] > 0).sum()
        assert (rule_rows[:named, 0] > 0).all()  # the padding comes last
        assert things[: (things[:, 0] > 0).sum(), 0].all()
        assert set(things[:, 0]) <= {*PICKABLE, Tile.GOAL, 0}
        assert Colour.BLACK not in things[:, 1]
    most = 2 * (2**config.chain_depth - 1)
    assert max(sizes) <= most
    assert max(sizes) > most / 2 or most == 0


def test_every_thing_finds_a_place_in_the_smallest_world():
    for name in PUBLISHED:
        world = envs.make("XLand-MiniGrid-R1-9x9", ruleset=generated(name))
        world.check()


# ---- each step of the tree, played


def scene(row, approach):
    """Tiles about the middle, and where the agent stands two cells off and looks at it, for one rule or goal.

    Returns (cells [9, 9], row, column, direction of the agent, actions), or None where this approach is not
    possible.
    """
    name = (RuleKind if len(row) == rules.ENCODED_SIZE else GoalKind)(row[0]).name
    grid = np.full((9, 9), FLOOR, np.uint16)
    steps = dict(zip(("UP", "RIGHT", "DOWN", "LEFT"), ((-1, 0), (0, 1), (1, 0), (0, -1)), strict=True))
    ahead = list(steps.values())[approach]
    wanted = next((way for way in steps if name.endswith(f"NEAR_{way}")), None)
    tiles = tiles_of(row)
    grid[MIDDLE] = cell(*tiles[-1])  # of two the second, which can always be picked up
    actions = [Action.FORWARD, Action.TOGGLE, Action.TOGGLE]
    if name == "AGENT_HOLD":
        actions[1] = Action.PICK_UP
    elif name.startswith("AGENT_NEAR") and wanted and steps[wanted] != ahead:
        return None
    elif len(tiles) == 2:
        actions[1:] = Action.PICK_UP, Action.PUT_DOWN
        away = steps[wanted] if wanted else ahead  # from the first to the second
        first = (
            (MIDDLE[0] - away[0], MIDDLE[1] - away[1])
            if wanted
            else (MIDDLE[0] + away[0], MIDDLE[1] + away[1])
        )
        if first == (MIDDLE[0] - ahead[0], MIDDLE[1] - ahead[1]):
            return None  # the agent would stand there
        grid[first] = cell(*tiles[0])
    return grid, MIDDLE[0] - 2 * ahead[0], MIDDLE[1] - 2 * ahead[1], approach, actions


@pytest.mark.full
def test_each_step_of_the_tree_can_be_played_whatever_distracts():
    """In a scene for each rule of a tree and for its goal, with all the rules of the ruleset in force."""
    scenes, in_force, aims, owners = [], [], [], []
    for name in PUBLISHED:
        for number, task in enumerate(zip(*generated(name), strict=True)):
            goal, rule_rows, _ = task
            for row in [*rule_rows[tree_of(*task)], goal]:
                found = [scene(row, approach) for approach in range(len(DIRECTIONS))]
                scenes += [one for one in found if one]
                possible = len(found) - found.count(None)
                in_force += [Ruleset(*task)] * possible
                aims += [product_of(row) if len(row) == rules.ENCODED_SIZE else (0, 0)] * possible
                owners += [(name, number, tuple(row))] * possible
    world = envs.make("XLand-MiniGrid-R1-9x9", max_episode_steps=100)
    made, won = played(world, scenes, stack(in_force), [cell(*aim) for aim in aims])
    done = np.where(np.any(aims, axis=1), made, won)
    stuck = set(owners) - {owner for owner, worked in zip(owners, done, strict=True) if worked}
    assert len(set(owners)) > 8 * COUNT
    assert not stuck


def played(world, scenes, tasks, aims):
    """Whether the aimed tile was there (on a cell or in the pocket) or the goal reached, after any action."""
    board = world.board

    @jax.jit
    @jax.vmap
    def play(grid, row, column, direction, actions, goal, rule_rows, aim):
        flat = jnp.zeros(board.size, jnp.uint16).at[board._places()].set(grid)
        begun = make_state(
            flat, board.place(row, column), direction, goals.decode(board, goal),
            rule_table=rules.decode(rule_rows),
        )  # fmt: skip

        def step(state, action):
            state, timestep = world.step(state, action, jax.random.key(0))
            made = (state.cells == aim).any() | (state.agent.pocket == aim)
            return state, (made, timestep.info["success"] > 0)

        _, (made, won) = jax.lax.scan(step, begun, actions)
        return made.any(), won.any()

    columns = [np.asarray(column) for column in zip(*scenes, strict=True)]
    return jax.device_get(play(*columns, tasks.goal, tasks.rules, np.asarray(aims)))


# ---- what the settings promise


def test_trivial_rulesets_have_a_goal_and_three_things_more():
    tasks = generated("trivial")
    assert not tasks.rules.any()
    pairs = np.asarray([len(tiles_of(goal)) for goal in tasks.goal])
    np.testing.assert_array_equal((tasks.init_tiles[..., 0] > 0).sum(1), pairs + 3)
    for goal, _, things in zip(*tasks, strict=True):
        own = tiles_of(goal)
        others = [tuple(thing) for thing in things.tolist() if thing[0]]
        assert [others.remove(tile) for tile in own] and not set(others) & set(own)


@pytest.mark.quick("small")
@pytest.mark.parametrize("name", PUBLISHED)
def test_kinds_and_numbers_are_drawn_as_the_settings_say(name):
    """Of all that is drawn, duplicates included, by chi-squared tests; the seed is fixed."""
    config = PUBLISHED[name]
    tasks = draw_block(4096, config, RandomStream(11))
    kinds = np.bincount(tasks.goal[:, 0], minlength=len(GoalKind))
    assert kinds[[GoalKind.NONE, GoalKind.AGENT_ON_TILE, *(5, 6)]].sum() == 0
    drawn = [kinds[kinds > 0]]
    if config.chain_depth:
        first = tasks.rules[:, 0, 0]
        drawn.append(np.bincount(first[first > 0], minlength=len(RuleKind))[1:])
        trees = [tree_of(*task) for task in zip(*(array[:1000] for array in tasks), strict=True)]
        named = (tasks.rules[:1000, :, 0] > 0).sum(1)
        drawn.append(
            np.bincount(named - [len(tree) for tree in trees], minlength=config.num_distractor_rules + 1)
        )
    for counts in drawn:
        assert stats.chisquare(counts).pvalue > 1e-3, counts
    if config.chain_depth == 1:  # a tile of the goal is there from the start with probability prune_prob
        wanted = sum(len(tiles_of(goal)) for goal in tasks.goal[:1000])
        assert abs(sum(map(len, trees)) / wanted - (1 - config.prune_prob)) < 0.03


def test_a_drawn_depth_lies_between_none_and_the_deepest():
    config = dataclasses.replace(
        PUBLISHED["medium"], sample_depth=True, prune_prob=0.0, num_distractor_rules=0
    )
    tasks = draw_block(2000, config, RandomStream(0))
    sizes = np.asarray([len(tree_of(*task)) for task in zip(*tasks, strict=True)])
    assert stats.binomtest(int((sizes == 0).sum()), len(sizes), 1 / 3).pvalue > 1e-3
    assert sizes.max() == 6


# ---- the same everywhere, and none twice


def test_a_seed_gives_the_same_rulesets_on_every_machine():
    """These are of NumPy 2.4; PCG64's stream is promised to be the same in every version."""
    assert checksum(generate(300, PUBLISHED["small"], seed=5)) == "5f08d3de3b038c85"
    assert checksum(generate(300, PUBLISHED["high"], seed=5)) == "b56ca34184859f7c"


def test_fewer_are_the_first_of_more_and_another_seed_gives_others():
    many, few = generate(9000, PUBLISHED["small"], seed=1), generate(100, PUBLISHED["small"], seed=1)
    assert all(np.array_equal(x[:100], y) for x, y in zip(many, few, strict=True))
    other = generate(100, PUBLISHED["small"], seed=2)
    assert len({*canonical_keys(few), *canonical_keys(other)}) == 200


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_ruleset_comes_twice(name):
    config = PUBLISHED[name]
    made = canonical_keys(generate(9000, config, seed=0), with_objects=config.distinct_objects)
    assert len(set(made)) == 9000


@pytest.mark.full
def test_all_different_trivial_goals_are_found_and_no_more():
    """60 things to hold, 5 ways near 70, and 2 x 4,800 + 2,430 different pairs."""
    assert 60 + 5 * 70 + 2 * 4800 + 2430 == 12_440
    with pytest.raises(ShoalError, match=r"rulesets=12,441 is more than .* only 12,440 different ones"):
        generate(12_441, dataclasses.replace(PUBLISHED["trivial"], distinct_objects=False))
    made = generate(20_000, PUBLISHED["trivial"])
    assert len(set(canonical_keys(made, with_objects=True))) == 20_000 > len(set(canonical_keys(made)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"chain_depth": 4}, "chain_depth=4 is not between 0 and 3"),
        ({"prune_prob": 1.5}, "prune_prob=1.5 is not between 0 and 1"),
        ({"num_distractor_rules": -1}, "num_distractor_rules=-1 is not between 0 and 60"),
    ],
)
def test_settings_that_cannot_be_are_named(change, sentence):
    with pytest.raises(ShoalError, match=sentence):
        generate(10, GenerationConfig(**change))
    with pytest.raises(ShoalError, match="rulesets=0 is too few"):
        generate(0, GenerationConfig())
