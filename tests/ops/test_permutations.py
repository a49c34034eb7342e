"""A permutation has to be one, and to look like one drawn uniformly to tests that a weak one fails."""

import itertools
import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from shoal.ops import permutations

SIGNIFICANCE = 1e-4  # of each test below; the keys are fixed, so a pass stays a pass


def draw(n: int, count: int) -> np.ndarray:
    """[count, n]: the permutations of `count` seeds in a row; each is one."""
    permute = jax.jit(jax.vmap(lambda seed: permutations.permutation(jax.random.key(seed), n)))
    drawn = np.asarray(permute(jnp.arange(count)))
    assert drawn.dtype == np.int32
    np.testing.assert_array_equal(np.sort(drawn, axis=1), np.broadcast_to(np.arange(n), drawn.shape))
    return drawn


def of_words(words: np.ndarray, n: int) -> np.ndarray:
    """[count, n]: the permutations of keys that are given by their two words, [count, 2]."""

    def one(word: jax.Array) -> jax.Array:
        return permutations.permutation(jax.random.wrap_key_data(word), n)

    return np.asarray(jax.jit(lambda words: jax.lax.map(one, words, batch_size=64))(words))


def landing_p_value(drawn: np.ndarray) -> float:
    """Chi-square of where every index lands: n * n cells whose rows and columns have equal sums."""
    count, n = drawn.shape
    cells = np.bincount((np.arange(n) * n + drawn).ravel(), minlength=n * n)
    statistic = np.sum((cells - count / n) ** 2) / (count / n)
    return scipy.stats.chi2.sf(statistic, (n - 1) ** 2)


def pair_p_value(drawn: np.ndarray, apart: int) -> float:
    """Chi-square of the cyclic distance between the images of indices that are `apart`."""
    n = drawn.shape[1]
    # Only disjoint pairs: within one permutation the distances of overlapping ones depend on each other.
    starts = np.array([i for i in range(n - apart) if (i // apart) % 2 == 0])
    distance = (drawn[:, starts + apart] - drawn[:, starts]) % n
    cells = np.bincount(distance.ravel(), minlength=n)
    assert cells[0] == 0
    return scipy.stats.chisquare(cells[1:]).pvalue


def joint_pair_p_value(drawn: np.ndarray, i: int, j: int) -> float:
    """Chi-square of (image of i, image of j) over all n * (n - 1) values."""
    n = drawn.shape[1]
    cells = np.bincount(drawn[:, i] * n + drawn[:, j], minlength=n * n).reshape(n, n)
    assert np.trace(cells) == 0
    return scipy.stats.chisquare(cells[~np.eye(n, dtype=bool)]).pvalue


def coarse_landing_p_value(drawn: np.ndarray, tiles: int = 32) -> float:
    """Chi-square of the tile where each index lands against the tile that it comes from, for many indices.

    In each permutation all rows and columns have fixed sums, so the statistic has (tiles - 1)**2 degrees of
    freedom, and is larger by n / (n - 1) than for independent counts, which is nothing here.
    """
    count, n = drawn.shape
    tile = np.arange(n) * tiles // n
    sizes = np.bincount(tile)
    cells = np.bincount((tile * tiles + tile[drawn]).ravel(), minlength=tiles**2).reshape(tiles, tiles)
    expected = count * np.outer(sizes, sizes) / n
    return scipy.stats.chi2.sf(np.sum((cells - expected) ** 2 / expected), (tiles - 1) ** 2)


def poisson_p_value(counts: np.ndarray) -> float:
    """Chi-square of counts that should be Poisson(1), as the fixed points of a permutation are."""
    observed = np.bincount(np.minimum(counts, 6), minlength=7)
    expected = scipy.stats.poisson.pmf(np.arange(6), 1.0)
    return scipy.stats.chisquare(observed, len(counts) * np.append(expected, 1 - expected.sum())).pvalue


@pytest.mark.parametrize("n", [1, 2, 3, 67, 129, 1001])
@pytest.mark.quick("1", "2")
def test_is_a_bijection(n):
    draw(n, 200)


@pytest.mark.parametrize("n", [32770, 1_000_003])
@pytest.mark.quick("32770")
def test_is_a_bijection_of_many(n):
    draw(n, 1)


@pytest.mark.parametrize(
    ("n", "dtype"), [(5, jnp.uint32), (64, jnp.int32), (66, jnp.uint32), (2**31 - 1, jnp.int32)]
)
@pytest.mark.quick("66-uint32", "2147483647-int32")
def test_an_index_alone_goes_where_it_goes_among_all(n, dtype):
    key = jax.random.key(3)
    indices = jnp.asarray([0, 1, 4, n // 2, n - 1], dtype)

    @jax.jit
    def permute(key, indices):
        everywhere = permutations.permutation(key, n) if n < 2**31 - 1 else None
        return permutations.permute(key, indices, n), permutations.permute(key, indices[2], n), everywhere

    images, alone, everywhere = permute(key, indices)
    assert images.dtype == dtype
    assert np.all(np.asarray(images) >= 0) and np.all(np.asarray(images) < n)
    assert len(np.unique(images)) == len(np.unique(indices))
    assert alone == images[2]
    if everywhere is not None:
        np.testing.assert_array_equal(everywhere[indices], images)


@pytest.mark.parametrize("n", [16, 96, 97])
@pytest.mark.quick("97")
def test_under_vmap_and_in_scan(n):
    keys = jax.random.split(jax.random.key(0), 20)
    one = jax.jit(lambda key: permutations.permutation(key, n))
    alone = np.stack([one(key) for key in keys])
    mapped, scanned = jax.jit(lambda keys: (jax.vmap(one)(keys), jax.lax.map(one, keys)))(keys)
    np.testing.assert_array_equal(mapped, alone)
    np.testing.assert_array_equal(scanned, alone)


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.quick("6")
def test_of_few_every_permutation_is_equally_likely(n):
    drawn = draw(n, 40_000)
    numbers = {p: i for i, p in enumerate(itertools.permutations(range(n)))}
    cells = np.bincount([numbers[tuple(p)] for p in drawn.tolist()], minlength=math.factorial(n))
    assert scipy.stats.chisquare(cells).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("n", [7, 16, 64, 65, 100, 128])
@pytest.mark.quick("7", "65", "128")
def test_looks_like_one_drawn_uniformly(n):
    """Every index lands everywhere, pairs are torn apart, and neighbouring seeds agree as unrelated ones do."""
    drawn = draw(n, 20_000)
    assert landing_p_value(drawn) > SIGNIFICANCE
    for apart in (1, 2, n // 2):
        assert pair_p_value(drawn, apart) > SIGNIFICANCE
    assert joint_pair_p_value(drawn, 0, 1) > SIGNIFICANCE
    assert joint_pair_p_value(drawn, 0, n - 1) > SIGNIFICANCE
    if n > 7:
        assert poisson_p_value(np.sum(drawn == np.arange(n), axis=1)) > SIGNIFICANCE
        assert poisson_p_value(np.sum(drawn[1:] == drawn[:-1], axis=1)) > SIGNIFICANCE
    if n > permutations.SMALL:  # two indices with the same right digit, which only every other round parts
        _, right = permutations._radices(n)
        assert joint_pair_p_value(drawn, 0, right) > SIGNIFICANCE
        assert pair_p_value(drawn, right) > SIGNIFICANCE


@pytest.mark.parametrize("n", [96, 1000, 1024, 32_768])
@pytest.mark.quick("96", "1000")
@pytest.mark.rare("32768")
def test_avalanche_when_one_bit_of_the_key_flips(n):
    """Each of the key's 64 bits moves all but one index in the mean, as an unrelated key would: Poisson(1)."""
    words = np.random.default_rng(5).integers(2**32, size=(20, 1, 2), dtype=np.uint32)
    bits = np.zeros((64, 2), np.uint32)
    bits[np.arange(64), np.arange(64) // 32] = np.uint32(1) << (np.arange(64, dtype=np.uint32) % 32)
    drawn = of_words(np.concatenate([words, words ^ bits], axis=1).reshape(-1, 2), n).reshape(20, 65, n)
    agree = np.sum(drawn[:, 1:] == drawn[:, :1], axis=2)
    assert poisson_p_value(agree.ravel()) > SIGNIFICANCE
    apart = (drawn[:, 1:] - drawn[:, :1]) % n  # how far an index lands from where it landed: anywhere
    cells = np.bincount((apart * 16 // n).ravel(), minlength=16)
    expected = apart.size * np.bincount(np.arange(n) * 16 // n) / n
    assert scipy.stats.chisquare(cells, expected).pvalue > SIGNIFICANCE


@pytest.mark.parametrize("n", [1000, 1024, 32_768, 32_770])
@pytest.mark.quick("1000", "32768")
def test_of_many_every_index_lands_everywhere(n):
    drawn = draw(n, 4_000 if n < 30_000 else 100)
    assert coarse_landing_p_value(drawn) > SIGNIFICANCE
    assert pair_p_value(drawn, 1) > SIGNIFICANCE
    if n < 30_000:
        assert poisson_p_value(np.sum(drawn == np.arange(n), axis=1)) > SIGNIFICANCE
        assert poisson_p_value(np.sum(drawn[1:] == drawn[:-1], axis=1)) > SIGNIFICANCE


def affine(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """(a i + b) mod n with a random a prime to n and a random b: every index lands everywhere."""
    factors = np.array([a for a in range(1, n) if math.gcd(a, n) == 1])
    a, b = rng.choice(factors, size=(count, 1)), rng.integers(n, size=(count, 1))
    return (a * np.arange(n) + b) % n


def rotation(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Everyone moves by the same random distance."""
    return (np.arange(n) + rng.integers(n, size=(count, 1))) % n


def same_for_all(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """One good permutation, whatever the key."""
    return np.broadcast_to(rng.permutation(n), (count, n))


def same_for_two(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Good permutations whose key loses its last bit."""
    return np.repeat(np.stack([rng.permutation(n) for _ in range(-(-count // 2))]), 2, axis=0)[:count]


def riffle(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """One random swap for each two indices, which leaves a third of them where they were."""
    drawn = np.tile(np.arange(n), (count, 1))
    rows = np.arange(count)
    for _ in range(n // 2):
        i, j = rng.integers(n, size=(2, count))
        drawn[rows, i], drawn[rows, j] = drawn[rows, j], drawn[rows, i]
    return drawn


def no_fixed_point(rng: np.random.Generator, n: int, count: int) -> np.ndarray:
    """Good permutations, drawn again until nothing stays in its place (a third of all are so)."""
    drawn = np.stack([rng.permutation(n) for _ in range(4 * count)])
    return drawn[np.all(drawn != np.arange(n), axis=1)][:count]


def p_values(drawn: np.ndarray) -> dict[str, float]:
    """Each of the statistics above, of permutations that belong to keys in a row."""
    n = drawn.shape[1]
    return {
        "landing": landing_p_value(drawn),
        "coarse": coarse_landing_p_value(drawn),
        "pairs": pair_p_value(drawn, 1),
        "joint": joint_pair_p_value(drawn, 0, 1),
        "fixed": poisson_p_value(np.sum(drawn == np.arange(n), axis=1)),
        "avalanche": poisson_p_value(np.sum(drawn[1:] == drawn[:-1], axis=1)),
    }


WEAK = {
    affine: {"pairs", "avalanche"},
    rotation: {"pairs", "joint", "fixed", "avalanche"},
    same_for_all: {"landing", "coarse", "pairs", "joint", "fixed", "avalanche"},
    same_for_two: {"avalanche"},
    riffle: {"landing", "coarse", "pairs", "joint", "fixed", "avalanche"},
    no_fixed_point: {"fixed"},
}


@pytest.mark.full
def test_these_tests_catch_weak_permutations():
    """Each is caught by the tests that should catch it; good ones, from a sort, by none."""
    n, rng = 97, np.random.default_rng(97)
    good = np.argsort(rng.random(size=(20_000, n)), axis=1)
    assert min(p_values(good).values()) > SIGNIFICANCE
    for weak, caught_by in WEAK.items():
        found = p_values(weak(rng, n, 20_000))
        assert caught_by <= {name for name, p in found.items() if p < 1e-9}, (weak.__name__, found)


@pytest.mark.parametrize("n", [100, 128])
@pytest.mark.full
def test_these_tests_catch_a_weak_network(n, monkeypatch):
    monkeypatch.setattr(permutations, "ROUNDS", 4)
    drawn = draw(n, 50_000)
    _, right = permutations._radices(n)
    assert min(joint_pair_p_value(drawn, 0, right), joint_pair_p_value(drawn, 0, 1)) < 1e-9
    monkeypatch.setattr(permutations, "ROUNDS", 2)
    assert landing_p_value(draw(n, 20_000)) > SIGNIFICANCE  # two rounds are enough for an index alone
    monkeypatch.setattr(permutations, "ROUNDS", 1)
    assert landing_p_value(draw(n, 20_000)) < 1e-9


@pytest.mark.full
def test_bad_input_is_named():
    key = jax.random.key(0)
    for n in (0, -3, 2**31):
        with pytest.raises(ValueError, match=f"n={n} must"):
            permutations.permute(key, jnp.arange(3), n)
    with pytest.raises(TypeError, match="index is float32"):
        permutations.permute(key, jnp.zeros(3), 3)
    with pytest.raises(ValueError, match=r"index is int8.*n-1=299"):
        permutations.permute(key, jnp.zeros(3, jnp.int8), 300)
    with pytest.raises(TypeError, match="index is float32"):
        permutations.permute(key, jnp.zeros(3), 3)


MEASURE = """
import time, jax, jax.numpy as jnp
from shoal.ops import permutations

def seconds_each(shuffle, keys):  # several in one program, as an update does them; the fastest of some runs
    run = jax.jit(lambda keys: jax.lax.scan(lambda _, k: (shuffle(k, 32_768), None), jnp.arange(32_768), keys)[0])
    times = []
    for _ in range(8):
        start = time.perf_counter()
        run(keys).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times[1:]) / len(keys)

keys = jax.random.split(jax.random.key(0), 100)
print(seconds_each(jax.random.permutation, keys[:4]) / seconds_each(permutations.permutation, keys))
"""


@pytest.mark.slow
def test_is_twenty_times_faster_than_a_sort_on_the_cpu():
    """In a process of its own: the suite compiles without optimisations, which is no measure."""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", MEASURE]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert float(printed) > 20
