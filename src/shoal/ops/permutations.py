"""Pseudo-random permutations by a key, computed for each index separately and without sorting.

`permutation(key, n)` stands for `jax.random.permutation(key, n)` where a shuffle only has to mix well
(minibatches), not to be secret. An index i < n is written as two digits, i = left * radix + right, and
rounds of a Feistel network change one digit by a keyed hash of the other. Each round can be undone, so
the whole is a bijection, whatever the hash. Where the digits span a little more than n, an index that
lands outside is sent through again until it is back inside (cycle-walking), which is a bijection too.

Sources: Mitchell et al. 2021, "Bandwidth-Optimal Random Shuffling for GPUs" (the idea and its use for
shuffling); Black and Rogaway 2002, "Ciphers with Arbitrary Finite Domains", section 5 (digits of any
radix, so that the domain is hardly larger than n; cycle-walking).
"""

import math
from typing import cast

import jax
import jax.numpy as jnp

from shoal.ops import _checks

Array = jax.Array

ROUNDS = 10
SMALL = 64  # up to here a Feistel network of ten rounds is measurably not uniform, and ranking is as fast


def permute(key: Array, index: Array, n: int) -> Array:
    """Compute the images of indices in the permutation of 0..n-1 that belongs to the key.

    `permute(key, permute_of_all, n)` over all indices gives each of 0..n-1 once. Up to n = 64 every one
    of the n! permutations is equally likely; above, positions and pairs of positions are uniform within
    what tests over a million permutations can see (but only 2**320 permutations can come up at all).

    Args:
      index: integers in 0..n-1, of any shape and of a dtype that holds n - 1.
      n: how many there are, static, 1 to 2**31 - 1.
    Returns:
      the images, of the shape and dtype of `index`.
    Raises:
      ValueError: n is out of range, or the dtype of `index` does not hold n - 1.
      TypeError: `index` is not of an integer dtype.
    """
    index = jnp.asarray(index)
    _checks.integer(index=index)
    if not 1 <= n < 2**31:
        raise ValueError(f"n={n} must be at least 1 and at most 2147483647.")
    if jnp.iinfo(index.dtype).max < n - 1:
        raise ValueError(f"index is {index.dtype}, which does not hold n-1={n - 1}; int32 does.")
    if n <= SMALL:
        return _ranks(key, n)[index].astype(index.dtype)
    left, right = _radices(n)
    round_keys = jax.random.bits(key, (ROUNDS,), jnp.uint32)
    image = _feistel(round_keys, index.astype(jnp.uint32), left, right)
    if left * right > n:
        inside = _walk(round_keys, n, left, right)
        # A loop of at most one iteration, so that XLA does not fuse the rounds into the slow loop of the
        # look-up.
        image = jax.lax.while_loop(
            lambda i: jnp.any(i >= n),
            lambda i: jnp.where(i < n, i, inside[jnp.where(i < n, 0, i - n)]),
            image,
        )
    return image.astype(index.dtype)


def permutation(key: Array, n: int) -> Array:
    """Compute a pseudo-random permutation of 0..n-1, int32 [n]; see `permute`."""
    return permute(key, jnp.arange(n, dtype=jnp.int32), n)


def _ranks(key: Array, n: int) -> Array:
    """Rank each of n random words, ties in order of position: a uniform permutation."""
    words = jax.random.bits(key, (n,), jnp.uint32)
    earlier = jnp.tri(n, k=-1, dtype=bool)
    before = (words[None, :] < words[:, None]) | ((words[None, :] == words[:, None]) & earlier)
    return jnp.sum(before, axis=1, dtype=jnp.int32)


def _radices(n: int) -> tuple[int, int]:
    """Return the sizes of two digits whose product is n, or the least above it; neither is over twice the other.

    The excess over n is below the larger radix, so about one index in sqrt(n) has to walk, and none for
    a power of two or any other n with two divisors near its square root.
    """
    root = math.isqrt(n - 1) + 1  # the ceiling of the square root
    smallest = math.isqrt((n - 1) // 2) + 1  # of the square root of n / 2
    candidates = (left for left in range(root, smallest - 1, -1))
    left = min(candidates, key=lambda left: -(-n // left) * left)
    return left, -(-n // left)


def _feistel(round_keys: Array, index: Array, left_radix: int, right_radix: int) -> Array:
    left, right = index // right_radix, index % right_radix
    for i in range(ROUNDS):
        if i % 2 == 0:
            left = _add(left, _hash(right, round_keys[i], left_radix), left_radix)
        else:
            right = _add(right, _hash(left, round_keys[i], right_radix), right_radix)
    return left * right_radix + right


def _walk(round_keys: Array, n: int, left: int, right: int) -> Array:
    """Walk from each of the few places outside, n to left * right - 1, to the place where it comes back inside.

    Only these places are walked from, for any number of indices; an index that lands on one looks up its end.
    A walk that closes a cycle outside stops there: no index from inside can lead to it.
    """
    outside = jnp.arange(n, left * right, dtype=jnp.uint32)

    def is_outside(i: Array) -> Array:
        return (i >= n) & (i != outside)

    return jax.lax.while_loop(
        lambda i: jnp.any(is_outside(i)),
        lambda i: jnp.where(is_outside(i), _feistel(round_keys, i, left, right), i),
        _feistel(round_keys, outside, left, right),
    )


def _add(digit: Array, amount: Array, radix: int) -> Array:
    total = digit + amount
    return jnp.where(total >= radix, total - radix, total)


def _hash(digit: Array, round_key: Array, radix: int) -> Array:
    """Hash a digit with a key to 0..radix-1 (a finaliser of two multiplications, then scaling)."""
    x = digit + round_key
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    # x * radix // 2**32 without 64-bit integers; exact for radix <= 2**16.
    low = ((x & 0xFFFF) * jnp.uint32(radix)) >> 16
    return cast(Array, ((x >> 16) * jnp.uint32(radix) + low) >> 16)
