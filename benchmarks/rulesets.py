"""Rulesets for a comparison, as bytes in XLand-MiniGrid's encoding; needs nothing but NumPy."""

import numpy as np

NUM_RULES, NUM_THINGS = 10, 9
THINGS = (3, 4, 5, 7, 11, 12)  # ball, square, pyramid, key, hexagon, star
NUM_COLOURS = 11  # 1 to 11
TWO_TILES = range(3, 8)  # the kinds of rules about two tiles
GOALS = (1, 3, 4, *range(7, 15))  # hold, near, and near in one direction


def random_rulesets(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Goals [count, 5], rules [count, 10, 7] of which each has 1 to 10, things [count, 9, 2]; all uint8."""
    rng = np.random.default_rng(seed)

    def tiles(*shape: int) -> np.ndarray:
        return np.stack([rng.choice(THINGS, shape), rng.integers(1, NUM_COLOURS + 1, shape)], -1)

    things = tiles(count, NUM_THINGS)

    def present(*shape: int) -> np.ndarray:
        return things[
            np.arange(count).reshape(-1, *[1] * (len(shape) - 1)), rng.integers(0, NUM_THINGS, shape)
        ]

    kinds = rng.integers(1, 12, (count, NUM_RULES))
    kinds[np.arange(NUM_RULES) >= rng.integers(1, NUM_RULES + 1, (count, 1))] = 0
    two = np.isin(kinds, TWO_TILES)[..., None]
    first, other, product = present(*kinds.shape), present(*kinds.shape), tiles(*kinds.shape)
    columns = [kinds[..., None], first, np.where(two, other, product), np.where(two, product, 0)]
    rules = np.where(kinds[..., None] == 0, 0, np.concatenate(columns, -1))
    goal_kinds = rng.choice(GOALS, count)
    pair = np.isin(goal_kinds, (4, 7, 8, 9, 10))[:, None]
    goals = np.concatenate([goal_kinds[:, None], tiles(count), np.where(pair, tiles(count), 0)], -1)
    return goals.astype(np.uint8), rules.astype(np.uint8), things.astype(np.uint8)
