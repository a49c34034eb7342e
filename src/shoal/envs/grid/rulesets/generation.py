"""Generation of random rulesets: a tree of rules with the goal at its root, and distractors.

The goal is drawn first. Each tile of the goal is either there from the start or the product of a rule, whose
tiles again are there from the start or products, down to a maximal depth. No two rules of a tree share a
tile, so that applying the rules from the leaves up always leads to the goal. Then distractors are added:
rules and objects that do not help to reach the goal.

Source: Nikulin et al. 2023, "XLand-MiniGrid: Scalable Meta-Reinforcement Learning Environments in JAX",
section 3, after Adaptive Agent Team 2023, "Human-Timescale Adaptation in an Open-Ended Task Space", appendix
A.2. Many rulesets are drawn at once, each draw one column of a table.
"""

import dataclasses
from collections.abc import Hashable

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.envs.grid.engine import goals, rules
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import TWO_TILE_KINDS, RuleKind
from shoal.envs.grid.engine.tiles import PICKABLE, Colour, Tile
from shoal.envs.grid.rulesets.distinct import is_new
from shoal.envs.grid.rulesets.rulesets import Ruleset

# The tiles of tasks by number: first objects that can be picked up, then goal tiles, then plain floor, which
# stands for an object that disappears, and nothing. Floor is black, so no object is black.
COLOURS = tuple(colour for colour in Colour if colour not in (Colour.EMPTY, Colour.BLACK))
TILES = np.asarray(
    [(tile, colour) for tile in (*PICKABLE, Tile.GOAL) for colour in COLOURS]
    + [(Tile.FLOOR, Colour.BLACK), (Tile.EMPTY, Colour.EMPTY)],
    np.uint8,
)
NUM_MOVABLE, NUM_THINGS = len(PICKABLE) * len(COLOURS), (len(PICKABLE) + 1) * len(COLOURS)
DISAPPEARED, NOTHING = NUM_THINGS, NUM_THINGS + 1
IS_MOVABLE = np.arange(len(TILES)) < NUM_MOVABLE
IS_THING = np.arange(len(TILES)) < NUM_THINGS
IS_PRODUCT = IS_MOVABLE | (np.arange(len(TILES)) == DISAPPEARED)

RULE_KINDS = np.asarray([kind for kind in RuleKind if kind != RuleKind.NONE], int)
DRAWN_GOALS = ("AGENT_HOLD", "AGENT_NEAR", "TILE_NEAR")  # and the latter two with a direction
GOAL_NAMES = {kind.name.lower(): int(kind) for kind in GoalKind if kind.name.startswith(DRAWN_GOALS)}
GOAL_KINDS = np.asarray(list(GOAL_NAMES.values()), int)
PAIR_GOALS = tuple(kind for kind in GoalKind if kind.name.startswith("TILE_NEAR"))
# An object of such a rule cannot be carried.
ON_CONTACT_KINDS = (RuleKind.AGENT_HOLD, RuleKind.AGENT_NEAR)

BLOCK_SIZE = 8192  # rulesets per block
MAX_EMPTY_BLOCKS = 64  # blocks in a row without a new ruleset, after which generation stops
MAX_DEPTH = 3  # a deeper tree may need more tiles than exist


@dataclasses.dataclass(frozen=True)
class GenerationConfig:
    """Settings of the generation of rulesets."""

    chain_depth: int = 0
    """Puts at most this many rules between an initial object and the goal; 0 to 3."""
    sample_depth: bool = False
    """Draws the depth of each ruleset from 0 to chain_depth; without it the depth is chain_depth."""
    prune_prob: float = 0.0
    """Places a tile of the tree at the start with this probability (0 to 1), instead of making it a rule's product."""
    num_distractor_rules: int = 0
    """Adds this many distractor rules, which do not help to reach the goal, and their objects."""
    sample_distractor_rules: bool = False
    """Draws the number of distractor rules from 0 to num_distractor_rules; without it the number is
    num_distractor_rules.
    """
    num_distractor_objects: int = 0
    """Adds this many objects that no rule or goal needs."""
    distinct_objects: bool = False
    """Counts rulesets as different if only their objects differ."""
    goals: tuple[str, ...] = ()
    """Draws goals of these kinds, such as agent_hold and tile_near_up; without it of all kinds."""

    @property
    def goal_kinds(self) -> np.ndarray:
        """The numbers of the kinds of goals that are drawn."""
        return np.asarray([GOAL_NAMES[name] for name in self.goals], int) if self.goals else GOAL_KINDS

    @property
    def max_rules(self) -> int:
        """The largest number of rules that a ruleset can have, at least 1 (of zeros)."""
        return max(2 * (2**self.chain_depth - 1) + self.num_distractor_rules, 1)

    @property
    def max_things(self) -> int:
        """The largest number of objects that an episode can start with."""
        return 2 * 2**self.chain_depth + 2 * self.num_distractor_rules + self.num_distractor_objects

    def validate(self) -> None:
        """Raise ShoalError for the first setting that is out of range."""
        for name, value, high in (
            ("chain_depth", self.chain_depth, MAX_DEPTH),
            ("prune_prob", self.prune_prob, 1),
            ("num_distractor_rules", self.num_distractor_rules, NUM_MOVABLE),
            ("num_distractor_objects", self.num_distractor_objects, NUM_MOVABLE),
        ):
            if not 0 <= value <= high:
                raise ShoalError(f"{name}={value} is not between 0 and {high}")
        for name in self.goals:
            if name not in GOAL_NAMES:
                raise ShoalError(
                    f"goals={self.goals!r}: {name!r} is not a kind of goal that is drawn; "
                    f"there are {', '.join(GOAL_NAMES)}{nearest(name, GOAL_NAMES)}"
                )


# The settings of the paper's benchmarks. A trivial ruleset is a goal alone, of which there are only 12,440,
# so objects count there.
PUBLISHED = {
    "trivial": GenerationConfig(num_distractor_objects=3, distinct_objects=True),
    "small": GenerationConfig(
        chain_depth=1,
        prune_prob=0.3,
        num_distractor_rules=2,
        sample_distractor_rules=True,
        num_distractor_objects=2,
    ),
    "medium": GenerationConfig(
        chain_depth=2,
        prune_prob=0.1,
        num_distractor_rules=3,
        sample_distractor_rules=True,
        num_distractor_objects=2,
    ),
    "high": GenerationConfig(
        chain_depth=3,
        prune_prob=0.1,
        num_distractor_rules=4,
        sample_distractor_rules=True,
        num_distractor_objects=1,
    ),
}


class RandomStream:
    """Random numbers from the bits of PCG64, whose stream is the same on every machine and in every NumPy."""

    def __init__(self, seed: int, stream: int = 0):
        if seed < 0:
            raise ShoalError(f"seed={seed} is less than 0")
        self._bits = np.random.PCG64([seed, stream])

    def bits(self, *shape: int) -> np.ndarray:
        """Draw 32 random bits each, uint64."""
        return self._bits.random_raw(shape) >> np.uint64(32)

    def below(self, limits: np.ndarray) -> np.ndarray:
        """Draw whole numbers from 0 to each limit - 1, int64; limits are less than 2^31."""
        limits = np.asarray(limits)
        return (self.bits(*limits.shape) * limits.astype(np.uint64) >> np.uint64(32)).astype(np.int64)

    def bernoulli(self, probability: float, *shape: int) -> np.ndarray:
        """Draw booleans that are true with a probability."""
        return self.bits(*shape) < np.uint64(round(probability * 2**32))

    def choice(self, allowed: np.ndarray, *more: int) -> np.ndarray:
        """Draw the index of one true entry of each row [n, m], [n, *more]; with replacement."""
        counts = allowed.cumsum(1, dtype=np.uint8)
        rank = self.below(np.broadcast_to(counts[:, -1:], (len(allowed), *(more or (1,)))))
        index = np.stack([(counts > column[:, None]).argmax(1) for column in rank.T], 1)
        return index if more else index[:, 0]


def bytes_per_ruleset(config: GenerationConfig) -> int:
    """Count the bytes of one ruleset, its padding included.

    Raises:
      ShoalError: a setting is out of range.
    """
    config.validate()
    tile = 2  # bytes of a tile: tile and colour
    return goals.ENCODED_SIZE + rules.ENCODED_SIZE * config.max_rules + tile * config.max_things


def generate(count: int, config: GenerationConfig, seed: int = 0) -> Ruleset:
    """Generate different rulesets; `distinct` defines which are equal, and `PUBLISHED` is the paper's config.

    Args:
      seed: the same seed gives the same rulesets on every machine; a larger count begins with the rulesets of a
        smaller one.
    Returns:
      the rulesets, each array with a leading axis; padded to the most rules and objects that `config` can
      make, so that rulesets of one config can be joined.
    Raises:
      ShoalError: a setting is out of range, or so many different rulesets do not exist.
    """
    if count < 1:
        raise ShoalError(f"rulesets={count} is too few; give 1 or more")
    config.validate()
    draws, known_keys = RandomStream(seed), set[Hashable]()
    blocks: list[Ruleset] = []
    num_found, num_empty_blocks = 0, 0
    while num_found < count:
        block = draw_block(BLOCK_SIZE, config, draws)
        is_unseen = is_new(block, known_keys, with_objects=config.distinct_objects)
        num_found += int(is_unseen.sum())
        num_empty_blocks = 0 if is_unseen.any() else num_empty_blocks + 1
        blocks.append(Ruleset(*(array[is_unseen] for array in block)))
        if num_empty_blocks == MAX_EMPTY_BLOCKS:
            raise ShoalError(
                f"rulesets={count:,} is more than these settings make: only {num_found:,} different ones were found "
                f"among {MAX_EMPTY_BLOCKS * BLOCK_SIZE:,} more draws"
            )
    return Ruleset(*(np.concatenate(arrays)[:count] for arrays in zip(*blocks, strict=True)))


def draw_block(count: int, config: GenerationConfig, draws: RandomStream) -> Ruleset:
    """Draw rulesets, some of which may be equal."""
    goal_kind, goal_tiles = _draw_goals(count, config.goal_kinds, draws)
    used = np.zeros((count, len(TILES)), bool)  # tiles of the tree
    _mark_used(used, goal_tiles)
    tree, things = _draw_tree(goal_tiles, used, config, draws)
    objects = np.full((count, 0), NOTHING)
    if config.num_distractor_objects:
        objects = draws.choice(IS_THING & ~used, config.num_distractor_objects)
    more_rows, more_things = _draw_distractors(goal_tiles, used, tree, config, draws)
    first, second = TILES[goal_tiles[:, 0]], TILES[goal_tiles[:, 1]]
    return Ruleset(
        np.concatenate([goal_kind[:, None].astype(np.uint8), first, second], 1),
        _compact(np.concatenate([tree, *more_rows], 1), config.max_rules),
        _compact(TILES[np.concatenate([*things, objects, *more_things], 1)], config.max_things),
    )


def _draw_goals(count: int, kinds: np.ndarray, draws: RandomStream) -> tuple[np.ndarray, np.ndarray]:
    """Draw kinds of goals [n] and the numbers of their tiles [n, 2], the second one NOTHING for a goal of one tile."""
    kind = kinds[draws.below(np.full(count, len(kinds)))]
    is_hold = (kind == GoalKind.AGENT_HOLD)[:, None]
    first = draws.choice(np.where(is_hold, IS_MOVABLE, IS_THING))
    second = np.where(np.isin(kind, PAIR_GOALS), draws.below(np.full(count, NUM_MOVABLE)), NOTHING)
    return kind, np.stack([first, second], 1)


def _draw_tree(
    goal_tiles: np.ndarray, used: np.ndarray, config: GenerationConfig, draws: RandomStream
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Draw the rules that produce the goal's tiles, [n, m, 7], and the objects at the start, each [n, 1].

    Marks the tiles of both as used.
    """
    count = len(goal_tiles)
    depth = np.full(count, config.chain_depth)
    if config.sample_depth:
        depth = draws.below(depth + 1)
    rows, things = [np.zeros((count, 0, rules.ENCODED_SIZE), np.uint8)], []
    required = [goal_tiles[:, 0], goal_tiles[:, 1]]
    for level in range(config.chain_depth + 1):
        inputs = []
        for tile in required:
            is_given = depth <= level
            if level < config.chain_depth:
                is_given = is_given | draws.bernoulli(config.prune_prob, count)
            things.append(np.where(is_given, tile, NOTHING)[:, None])
            if level < config.chain_depth:
                is_made = ~is_given & (tile != NOTHING)
                row, tiles = _draw_rules(np.where(is_made, tile, NOTHING), used, draws)
                rows.append(row[:, None])
                inputs += [np.where(is_made, tiles[:, 0], NOTHING), np.where(is_made, tiles[:, 1], NOTHING)]
                _mark_used(used, np.stack(inputs[-2:], 1))
        required = inputs
    return np.concatenate(rows, 1), things


def _draw_rules(products: np.ndarray, used: np.ndarray, draws: RandomStream) -> tuple[np.ndarray, np.ndarray]:
    """Draw a rule for each product [n], with tiles that are not used yet.

    Returns:
      its bytes, uint8 [n, 7], zeros where the product is NOTHING; the numbers of its tiles [n, 2].
    """
    kind = RULE_KINDS[draws.below(np.full(len(products), len(RULE_KINDS)))]
    is_pair = np.isin(kind, TWO_TILE_KINDS)
    first = draws.choice(np.where(is_pair[:, None], IS_THING, IS_MOVABLE) & ~used)
    second = np.where(is_pair, draws.choice(IS_MOVABLE & ~used), NOTHING)
    product = TILES[products]
    middle, last = np.where(is_pair[:, None], TILES[second], product), np.where(is_pair[:, None], product, 0)
    row = np.concatenate([kind[:, None], TILES[first], middle, last], 1).astype(np.uint8)
    row[products == NOTHING] = 0
    return row, np.stack([first, second], 1)


def _draw_distractors(
    goal_tiles: np.ndarray, used: np.ndarray, tree: np.ndarray, config: GenerationConfig, draws: RandomStream
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draw distractor rules, each [n, 1, 7], and their objects, each [n, 2].

    They may destroy what the tree needs, but the agent can always avoid it.

    Args:
      goal_tiles: the numbers of the goal's tiles, [n, 2]; the second may be NOTHING.
      used: the tiles of goal and tree, bool [n, tiles].
      tree: its rules, uint8 [n, m, 7], zeros between them.
    """
    count = len(used)
    num_rules = np.full(count, config.num_distractor_rules)
    if config.sample_distractor_rules:
        num_rules = draws.below(num_rules + 1)
    none_used = np.zeros_like(used)
    rows, things = [], []
    for index in range(config.num_distractor_rules):
        is_present = index < num_rules
        product = np.where(is_present, draws.choice(IS_PRODUCT & ~used), NOTHING)
        row, tiles = _draw_rules(product, none_used, draws)
        while (retry := np.flatnonzero(_blocks_tree(row, tiles, goal_tiles, used, tree))).size:
            row[retry], tiles[retry] = _draw_rules(product[retry], none_used[retry], draws)
        rows.append(row[:, None])
        things.append(np.where(is_present[:, None], tiles, NOTHING))
    return rows, things


def _blocks_tree(
    row: np.ndarray, tiles: np.ndarray, goal_tiles: np.ndarray, used: np.ndarray, tree: np.ndarray
) -> np.ndarray:
    """Report whether a rule [n, 7] about tiles [n, 2] makes the goal unreachable for every sequence of actions.

    Such rules turn a tile of the tree as soon as it is held or approached; or turn a product at the moment
    when it appears; or concern exactly the tiles of the goal, since rules are applied before the goal is
    checked.
    """
    kind = row[:, 0]
    takes_tile = np.isin(kind, ON_CONTACT_KINDS) & used[np.arange(len(row)), tiles[:, 0]]
    same_kind = ~np.isin(kind, TWO_TILE_KINDS)[:, None] & (tree[..., 0] == kind[:, None])
    replaces_product = (same_kind & (tree[..., 3:5] == row[:, None, 1:3]).all(-1)).any(1)
    is_about_goal = (np.sort(tiles, 1) == np.sort(goal_tiles, 1)).all(1)
    return (kind != RuleKind.NONE) & (takes_tile | replaces_product | is_about_goal)


def _mark_used(used: np.ndarray, tiles: np.ndarray) -> None:
    """Mark the tiles of each row as used."""
    used[np.arange(len(used))[:, None], tiles] = True
    used[:, NOTHING] = False


def _compact(rows: np.ndarray, width: int) -> np.ndarray:
    """Move the rows of zeros in [n, m, k] to the end and return the first `width`, [n, width, k]."""
    order = np.argsort(rows[..., 0] == 0, axis=1, kind="stable")
    compacted = np.take_along_axis(rows, order[..., None], 1)[:, :width]
    return np.pad(compacted, ((0, 0), (0, width - compacted.shape[1]), (0, 0)))
