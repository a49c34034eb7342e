"""Description of rulesets and benchmarks in words."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import Colour, Tile
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.rulesets import Ruleset

TILE_WORDS = {
    Tile.EMPTY: "nothing",
    Tile.GOAL: "goal tile",
    Tile.HEX: "hexagon",
    Tile.DOOR_LOCKED: "locked door",
    Tile.DOOR_CLOSED: "closed door",
    Tile.DOOR_OPEN: "open door",
}
DIRECTION_WORDS = {"NEAR": "beside", "UP": "above", "RIGHT": "right of", "DOWN": "below", "LEFT": "left of"}


def describe_ruleset(task: Ruleset) -> str:
    """Describe a ruleset in several lines: its goal, its rules in their order, its objects."""
    rules = [describe_rule(row) for row in np.asarray(task.rules) if row[0]]
    things = Counter((int(tile), int(colour)) for tile, colour in np.asarray(task.init_tiles) if tile)
    described = ", ".join(_describe_tile(tile, colour, count) for (tile, colour), count in things.items())
    lines = [
        f"goal    {describe_goal(np.asarray(task.goal))}",
        "rules   " + ("\n        ".join(rules) or "none"),
        f"things  {described or 'none'}",
    ]
    return "\n".join(lines)


def describe_goal(row: Sequence[int] | np.ndarray) -> str:
    """Describe a goal of five bytes: `hold a red ball`, `a grey key above a red ball`."""
    kind, *numbers = (int(x) for x in row)
    match GoalKind(kind):
        case GoalKind.NONE:
            return "none"
        case GoalKind.AGENT_HOLD:
            return f"hold {_describe_tile(*numbers[:2])}"
        case GoalKind.AGENT_ON_TILE:
            return f"stand on {_describe_tile(*numbers[:2])}"
        case GoalKind.TILE_ON_POSITION:
            return f"{_describe_tile(*numbers[:2])} in row {numbers[2]} and column {numbers[3]}"
        case GoalKind.AGENT_ON_POSITION:
            return f"stand in row {numbers[0]} and column {numbers[1]}"
        case known:
            return _describe_adjacency(known.name, numbers)


def describe_rule(row: Sequence[int] | np.ndarray) -> str:
    """Describe a rule of seven bytes: `a red ball beside a grey key: both become a blue star`."""
    kind, *numbers = (int(x) for x in row)
    if kind == RuleKind.NONE:
        return "none"
    is_pair = kind in TWO_TILE_KINDS
    product = numbers[4:6] if is_pair else numbers[2:4]
    subject = "both" if is_pair else "it"
    if product[0] == Tile.FLOOR:
        becomes = "disappear" if is_pair else "disappears"
    else:
        becomes = f"become{'' if is_pair else 's'} {_describe_tile(*product)}"
    if kind == RuleKind.AGENT_HOLD:
        return f"{_describe_tile(*numbers[:2])} that is picked up: {subject} {becomes}"
    return f"{_describe_adjacency(RuleKind(kind).name, numbers)}: {subject} {becomes}"


def describe_benchmark(benchmark: Benchmark) -> str:
    """Describe in several lines what a benchmark holds and how it was made."""
    goals, rules, things = map(np.asarray, benchmark.rulesets)
    held_out = f", {benchmark.num_held_out:,} of them held out" if benchmark.num_held_out else ""
    lines = [
        f"{len(benchmark):,} rulesets{held_out}",
        f"rules   {_describe_range((rules[..., 0] > 0).sum(1))}, room for {rules.shape[1]}",
        f"things  {_describe_range((things[..., 0] > 0).sum(1))}, room for {things.shape[1]}",
    ]
    kinds = np.bincount(goals[:, 0], minlength=len(GoalKind))
    shares = {kind.name.lower(): kinds[kind] / len(goals) for kind in GoalKind if kinds[kind]}
    lines.append("goals   " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    about = {name: value for name, value in benchmark.about.items() if not isinstance(value, dict)}
    generation = benchmark.about.get("generation")
    about |= generation if isinstance(generation, dict) else {}
    if origin := [f"{name} {value}" for name, value in about.items()]:
        lines.append("made by " + ", ".join(filter(str.isprintable, origin)))  # text from a file
    return "\n".join(lines)


def _describe_adjacency(name: str, numbers: Sequence[int]) -> str:
    """Return the words for the kinds whose names end with NEAR or NEAR and a direction."""
    where, first = DIRECTION_WORDS[name.rpartition("_")[2]], _describe_tile(*numbers[:2])
    if name.startswith("AGENT"):
        return f"{first} {where} the agent"
    second = _describe_tile(*numbers[2:4])
    return f"{first} {where} {second}" if where == DIRECTION_WORDS["NEAR"] else f"{second} {where} {first}"


def _describe_tile(tile: int, colour: int, count: int = 1) -> str:
    """Describe a tile: `a red ball`, `2 grey keys`."""
    name = TILE_WORDS.get(Tile(tile), Tile(tile).name.lower())
    if colour:
        name = f"{Colour(colour).name.lower()} {name}"
    if count > 1:
        return f"{count} {name}s"
    return name if tile == Tile.EMPTY else f"a{'n' * (name[0] in 'aeiou')} {name}"


def _describe_range(counts: np.ndarray) -> str:
    return f"{counts.min()} to {counts.max()}, {counts.mean():.1f} on average"
