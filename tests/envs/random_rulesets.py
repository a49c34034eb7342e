"""Random rulesets in which every kind of rule and of goal occurs."""

import numpy as np

from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import PICKABLE, Colour, Tile
from shoal.envs.grid.rulesets.rulesets import Ruleset

NUM_RULESETS, NUM_RULES, NUM_THINGS = 1000, 3, 9
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
