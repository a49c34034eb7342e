"""Rulesets and benchmarks in words."""

from collections.abc import Sequence

import numpy as np

from shoal.envs.grid.benchmark import Benchmark
from shoal.envs.grid.goals import GoalKind
from shoal.envs.grid.rules import OF_TWO_TILES, RuleKind
from shoal.envs.grid.rulesets import Ruleset
from shoal.envs.grid.tiles import Colour, Tile

NAMES = {
    Tile.EMPTY: "nothing",
    Tile.GOAL: "goal tile",
    Tile.HEX: "hexagon",
    Tile.DOOR_LOCKED: "locked door",
    Tile.DOOR_CLOSED: "closed door",
    Tile.DOOR_OPEN: "open door",
}
WHERE = {"NEAR": "beside", "UP": "above", "RIGHT": "right of", "DOWN": "below", "LEFT": "left of"}
LABELS = ("goal", "rules", "things")


def ruleset_told(task: Ruleset) -> str:
    """A ruleset in some lines: its goal, its rules in their order, its things."""
    rules = [rule_told(row) for row in np.asarray(task.rules) if row[0]]
    things = [(int(tile), int(colour)) for tile, colour in np.asarray(task.init_tiles) if tile]
    counted = {thing: things.count(thing) for thing in things}
    parts = (
        [goal_told(np.asarray(task.goal))],
        rules or ["none"],
        [", ".join(_thing(tile, colour, count) for (tile, colour), count in counted.items()) or "none"],
    )
    lines = []
    for label, texts in zip(LABELS, parts, strict=True):
        lines += [f"{label if not index else '':<8}{text}" for index, text in enumerate(texts)]
    return "\n".join(lines)


def goal_told(row: Sequence[int] | np.ndarray) -> str:
    """A goal of five bytes: `hold a red ball`, `a grey key above a red ball`."""
    kind, *numbers = (int(x) for x in row)
    match GoalKind(kind):
        case GoalKind.NONE:
            return "none"
        case GoalKind.AGENT_HOLD:
            return f"hold {_thing(*numbers[:2])}"
        case GoalKind.AGENT_ON_TILE:
            return f"stand on {_thing(*numbers[:2])}"
        case GoalKind.TILE_ON_POSITION:
            return f"{_thing(*numbers[:2])} in row {numbers[2]} and column {numbers[3]}"
        case GoalKind.AGENT_ON_POSITION:
            return f"stand in row {numbers[0]} and column {numbers[1]}"
        case known:
            return _met(known.name, numbers)


def rule_told(row: Sequence[int] | np.ndarray) -> str:
    """A rule of seven bytes: `a red ball beside a grey key: both become a blue star`."""
    kind, *numbers = (int(x) for x in row)
    if kind == RuleKind.NONE:
        return "none"
    pair = kind in OF_TWO_TILES
    product = numbers[4:6] if pair else numbers[2:4]
    who = "both" if pair else "it"
    if product[0] == Tile.FLOOR:
        becomes = "disappear" if pair else "disappears"
    else:
        becomes = f"become{'' if pair else 's'} {_thing(*product)}"
    if kind == RuleKind.AGENT_HOLD:
        return f"{_thing(*numbers[:2])} that is picked up: {who} {becomes}"
    return f"{_met(RuleKind(kind).name, numbers)}: {who} {becomes}"


def benchmark_told(benchmark: Benchmark) -> str:
    """What a benchmark holds, and how it was made, in some lines."""
    goals, rules, things = map(np.asarray, benchmark.rulesets)
    held_out = f", {benchmark.num_held_out:,} of them held out" if benchmark.num_held_out else ""
    lines = [
        f"{len(benchmark):,} rulesets{held_out}",
        f"rules   {_spread((rules[..., 0] > 0).sum(1))}, room for {rules.shape[1]}",
        f"things  {_spread((things[..., 0] > 0).sum(1))}, room for {things.shape[1]}",
    ]
    kinds = np.bincount(goals[:, 0], minlength=len(GoalKind))
    shares = {kind.name.lower(): kinds[kind] / len(goals) for kind in GoalKind if kinds[kind]}
    lines.append("goals   " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))
    made = [f"{name} {value}" for name, value in benchmark.about.items() if not isinstance(value, dict)]
    made += [f"{name} {value}" for name, value in benchmark.about.get("generation", {}).items()]
    if made:
        lines.append("made by " + ", ".join(filter(str.isprintable, made)))  # they are a file's words
    return "\n".join(lines)


def _met(name: str, numbers: Sequence[int]) -> str:
    """What the kinds say that end on NEAR or NEAR and a direction."""
    where, first = WHERE[name.rpartition("_")[2]], _thing(*numbers[:2])
    if name.startswith("AGENT"):
        return f"{first} {where} the agent"
    second = _thing(*numbers[2:4])
    return f"{first} {where} {second}" if where == WHERE["NEAR"] else f"{second} {where} {first}"


def _thing(tile: int, colour: int, count: int = 1) -> str:
    """`a red ball`, `2 grey keys`."""
    name = " ".join(
        [*([Colour(colour).name.lower()] if colour else []), NAMES.get(Tile(tile), Tile(tile).name.lower())]
    )
    if count > 1:
        return f"{count} {name}s"
    return name if tile == Tile.EMPTY else f"a{'n' * (name[0] in 'aeiou')} {name}"


def _spread(counts: np.ndarray) -> str:
    return f"{counts.min()} to {counts.max()}, {counts.mean():.1f} on average"
