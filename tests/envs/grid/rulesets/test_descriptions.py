"""Rulesets in words: every kind is told, and the words say what the engine does."""

import re

import numpy as np
import pytest

from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import Colour, Tile
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import (
    describe_benchmark,
    describe_goal,
    describe_rule,
    describe_ruleset,
)
from shoal.envs.grid.rulesets.generation import PUBLISHED
from shoal.envs.grid.rulesets.rulesets import ruleset

BALL, KEY, HEX = (Tile.BALL, Colour.ORANGE), (Tile.KEY, Colour.GREY), (Tile.HEX, Colour.RED)
GONE = (Tile.FLOOR, Colour.BLACK)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((GoalKind.NONE, 0, 0, 0, 0), "none"),
        ((GoalKind.AGENT_HOLD, *BALL, 0, 0), "hold an orange ball"),
        ((GoalKind.AGENT_ON_TILE, Tile.GOAL, Colour.GREEN, 0, 0), "stand on a green goal tile"),
        ((GoalKind.AGENT_NEAR, *KEY, 0, 0), "a grey key beside the agent"),
        ((GoalKind.AGENT_NEAR_LEFT, *KEY, 0, 0), "a grey key left of the agent"),
        ((GoalKind.TILE_NEAR, *KEY, *BALL), "a grey key beside an orange ball"),
        ((GoalKind.TILE_NEAR_UP, *KEY, *BALL), "an orange ball above a grey key"),  # the other is above
        ((GoalKind.TILE_NEAR_RIGHT, *KEY, *BALL), "an orange ball right of a grey key"),
        ((GoalKind.TILE_ON_POSITION, *KEY, 3, 4), "a grey key in row 3 and column 4"),
        ((GoalKind.AGENT_ON_POSITION, 3, 4, 0, 0), "stand in row 3 and column 4"),
    ],
)
def test_goals_in_words(row, text):
    assert describe_goal(row) == text


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((RuleKind.NONE, *[0] * 6), "none"),
        ((RuleKind.AGENT_HOLD, *BALL, *HEX, 0, 0), "an orange ball that is picked up: it becomes a red hexagon"),
        ((RuleKind.AGENT_NEAR, *BALL, *GONE, 0, 0), "an orange ball beside the agent: it disappears"),
        ((RuleKind.AGENT_NEAR_DOWN, *KEY, *HEX, 0, 0), "a grey key below the agent: it becomes a red hexagon"),
        ((RuleKind.TILE_NEAR, *KEY, *BALL, *GONE), "a grey key beside an orange ball: both disappear"),
        ((RuleKind.TILE_NEAR_DOWN, *KEY, *BALL, *HEX),
            "an orange ball below a grey key: both become a red hexagon"),
    ],
)  # fmt: skip
def test_rules_in_words(row, text):
    assert describe_rule(row) == text


def test_every_kind_and_every_tile_has_words_of_its_own():
    rules = {
        describe_rule((kind, *BALL, *KEY, *(HEX if kind in TWO_TILE_KINDS else (0, 0)))) for kind in RuleKind
    }
    assert len(rules) == len(RuleKind)
    assert len({describe_goal((kind, *BALL, *KEY)) for kind in GoalKind}) == len(GoalKind)
    tiles = {describe_goal((GoalKind.AGENT_HOLD, tile, 1, 0, 0)) for tile in Tile}
    assert len(tiles) == len(Tile) and not any(re.search("[_A-Z]", text) for text in tiles)


def test_a_ruleset_and_a_benchmark_in_words():
    task = ruleset(
        (GoalKind.AGENT_HOLD, *HEX), [(), (RuleKind.TILE_NEAR, *BALL, *KEY, *HEX)], [BALL, KEY, (), KEY]
    )
    assert describe_ruleset(task).splitlines() == [
        "goal    hold a red hexagon",
        "rules   an orange ball beside a grey key: both become a red hexagon",
        "things  an orange ball, 2 grey keys",
    ]
    assert describe_ruleset(ruleset()).splitlines() == ["goal    none", "rules   none", "things  none"]
    made = Benchmark.make(PUBLISHED["small"], 50)
    told = describe_benchmark(made)
    assert told.startswith("50 rulesets, 10 of them held out\n")
    assert "made by seed 0, chain_depth 1," in told and "room for 10" in told
    shares = [int(share) for share in re.findall(r"(\d+)%", told)]
    assert len(shares) == len(np.unique(made.rulesets.goal[:, 0])) and abs(sum(shares) - 100) < 6
    assert "held out" not in describe_benchmark(made[:5])
    assert "\033" not in describe_benchmark(
        Benchmark(made.rulesets, about={"seed": "\033[2J", "generation": {"x": 1}})
    )
