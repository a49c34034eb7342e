"""Which rulesets are equal: by hand, by enumeration, and by what the engine does with them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.envs.grid.engine import adjacency, rules
from shoal.envs.grid.engine.adjacency import Neighbourhood
from shoal.envs.grid.engine.agent import Action
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import RuleKind
from shoal.envs.grid.engine.tiles import PICKABLE, Colour, Tile
from shoal.envs.grid.rulesets.distinct import canonical_keys, canonical_rules, is_new
from shoal.envs.grid.rulesets.generation import GOAL_KINDS, PAIR_GOALS, PUBLISHED, RandomStream, draw_block
from shoal.envs.grid.rulesets.rulesets import Ruleset, ruleset, stack

BALL, KEY, STAR = (Tile.BALL, Colour.RED), (Tile.KEY, Colour.GREY), (Tile.STAR, Colour.BLUE)
HEX = (Tile.HEX, Colour.PINK)
HOLD = (RuleKind.AGENT_HOLD, *STAR, *HEX)
GOAL = (GoalKind.AGENT_HOLD, *STAR)


def pair(kind, first, second, product=STAR):
    return (kind, *first, *second, *product)


def one(goal=GOAL, rules=(), things=(BALL,)):
    return ruleset(goal, rules, things)


EQUAL = {
    "order": (one(rules=[HOLD, pair(3, BALL, KEY)]), one(rules=[pair(3, BALL, KEY), HOLD])),
    "padding": (one(rules=[HOLD]), one(rules=[(), HOLD, (), ()])),
    "repeated": (one(rules=[HOLD]), one(rules=[HOLD, HOLD])),
    "unread bytes": (one(rules=[HOLD]), one((*GOAL, 7, 7), [(*HOLD, 9, 9)])),
    "beside": (one(rules=[pair(3, BALL, KEY)]), one(rules=[pair(3, KEY, BALL)])),
    "above": (one(rules=[pair(4, BALL, KEY)]), one(rules=[pair(6, KEY, BALL)])),
    "right": (one(rules=[pair(5, BALL, KEY)]), one(rules=[pair(7, KEY, BALL)])),
    "goal beside": (one((4, *BALL, *KEY)), one((4, *KEY, *BALL))),
    "goal above": (one((7, *BALL, *KEY)), one((9, *KEY, *BALL))),
    "goal right": (one((8, *BALL, *KEY)), one((10, *KEY, *BALL))),
    "things": (one(things=[BALL]), one(things=[KEY, HEX])),
}
DIFFERENT = {
    "goal": (one(), one((GoalKind.AGENT_NEAR, *STAR))),
    "another colour": (one(), one((GOAL[0], Tile.STAR, Colour.RED))),
    "cell": (one((5, *BALL, 3, 4)), one((5, *BALL, 4, 3))),
    "agent's cell": (one((6, 3, 4)), one((6, 4, 3))),
    "product": (one(rules=[pair(3, BALL, KEY)]), one(rules=[pair(3, BALL, KEY, HEX)])),
    "above and below": (one(rules=[pair(4, BALL, KEY)]), one(rules=[pair(6, BALL, KEY)])),
    "one rule more": (one(rules=[HOLD]), one(rules=[HOLD, pair(3, BALL, KEY)])),
    "no rule": (one(), one(rules=[HOLD])),
}


@pytest.mark.parametrize("case", EQUAL)
def test_what_is_only_written_in_another_way_is_equal(case):
    both = stack(EQUAL[case])
    assert is_new(both, set()).tolist() == [True, False]
    alone = [canonical_keys(Ruleset(*(array[None] for array in task)))[0] for task in EQUAL[case]]
    assert alone == canonical_keys(both)  # however wide the arrays are
    with_objects = canonical_keys(both, with_objects=True)
    assert (with_objects[0] == with_objects[1]) == (case != "things")


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_says_something_else_differs(case):
    assert is_new(stack(DIFFERENT[case]), set()).tolist() == [True, True]


def test_things_are_equal_in_any_order_but_counted():
    three = stack([one(things=[BALL, KEY]), one(things=[KEY, (), BALL]), one(things=[KEY, BALL, BALL])])
    assert is_new(three, set(), with_objects=True).tolist() == [True, False, True]


def test_the_trivial_goals_are_as_many_as_enumeration_says():
    """By a set of frozensets and tuples, with no bytes compared."""
    movable = list(itertools.product(PICKABLE, [c for c in Colour if c not in (Colour.EMPTY, Colour.BLACK)]))
    things = [*movable, *((Tile.GOAL, colour) for _, colour in movable[:10])]
    written, meant = [], []
    for kind in map(GoalKind, GOAL_KINDS):
        for first in movable if kind == GoalKind.AGENT_HOLD else things:
            for second in movable if kind in PAIR_GOALS else [None]:
                written.append((kind, *first, *(second or (0, 0))))
                meaning: object = (kind, first, second)
                if kind == GoalKind.TILE_NEAR:
                    meaning = (kind, frozenset((first, second)))
                elif kind in (GoalKind.TILE_NEAR_UP, GoalKind.TILE_NEAR_RIGHT):
                    meaning = (kind.name[10:], second, "from", first)
                elif kind in (GoalKind.TILE_NEAR_DOWN, GoalKind.TILE_NEAR_LEFT):
                    meaning = ({"DOWN": "UP", "LEFT": "RIGHT"}[kind.name[10:]], first, "from", second)
                meant.append(meaning)
    nothing = np.zeros((len(written), 1, 7), np.uint8)
    found = canonical_keys(Ruleset(np.asarray(written, np.uint8), nothing, nothing[..., :2]))
    assert (len(written), len(set(meant)), len(set(found))) == (21_410, 12_440, 12_440)
    assert len(set(zip(found, meant, strict=True))) == 12_440


def test_rules_written_alike_hold_where_they_held():
    """On random cells nearby and after every action, the engine does the same for both ways of writing."""
    drawn = draw_block(3000, PUBLISHED["small"], RandomStream(4)).rules[:, 0]
    drawn = drawn[drawn[:, 0] > 0]
    rng = np.random.default_rng(0)
    table, alike = rules.decode(drawn), rules.decode(canonical_rules(drawn))
    assert (np.asarray(table.kind) != np.asarray(alike.kind)).sum() > 400
    own = np.stack([table.tile, table.other, np.full(len(drawn), 1 + 256 * Colour.BLACK, np.uint16)])
    cells = own[rng.integers(0, 3, (9, len(drawn))), np.arange(len(drawn))]  # often what the rule is about
    action = rng.choice([Action.FORWARD, Action.PICK_UP, Action.PUT_DOWN], len(drawn))
    direction = rng.integers(0, 4, len(drawn))

    @jax.jit
    @jax.vmap
    def applied(rule, cells, action, direction):
        attends = adjacency.action_flags(action, direction)
        around, beyond = tuple(cells[1:5]), tuple(cells[5:])
        return rules.apply_rule(rule, Neighbourhood(cells[0], around, beyond), cells[0], attends)

    before = [applied(one, jnp.asarray(cells.T), action, direction) for one in (table, alike)]
    changed = (
        sum(np.asarray(x) != y for x, y in zip(before[0][0].front_neighbours, cells[5:], strict=True)) > 0
    )
    assert changed.sum() > 100
    jax.tree.map(np.testing.assert_array_equal, *before)
