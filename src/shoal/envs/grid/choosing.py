"""Rulesets by a word, as the command line and a run's config name them.

    bench.npz           all rulesets of a file
    bench.npz:train     those for training; `bench.npz:held-out` those that are kept for evaluation
    bench.npz:17        one, by its number from 0
    bench.npz:100:200   those from 100 to 199; either bound may be left out, or be a share: `bench.npz:80%:`

`#` and a checksum behind it hold the word to the very rulesets that it meant when it was written down.
"""

import functools
import os
import re
from typing import Any

import numpy as np

from shoal.envs.grid import benchmark_files
from shoal.envs.grid.benchmark import Benchmark, checksum
from shoal.envs.grid.generating import PUBLISHED
from shoal.envs.grid.rulesets import Ruleset
from shoal.errors import ShoalError

_NUMBER = r"[0-9]{1,15}"  # no file holds more rulesets
_BOUND = rf"(?:{_NUMBER}(?:\.{_NUMBER})?%|{_NUMBER})?"
_PART = rf"[A-Za-z][\w-]*|-?{_NUMBER}|{_BOUND}:{_BOUND}"
_WORD = re.compile(rf"(?P<file>.+?)(?::(?P<part>{_PART}))?(?:#(?P<checksum>[0-9a-f]+))?")


def rulesets_of(given: Any) -> Any:
    """What a world was given as its ruleset, as a Ruleset: a word, nested lists of its numbers, or one already.

    Raises:
      ShoalError: a word names no file, or nothing in it; or lists do not have a ruleset's shape.
    """
    if isinstance(given, str):
        return chosen(given)
    if isinstance(given, list | tuple) and not isinstance(given, Ruleset):
        try:
            return Ruleset(*map(_bytes_of, given))
        except (TypeError, ValueError, OverflowError) as error:
            raise ShoalError(
                f"ruleset={given!r} is no goal, rules and init_tiles, each of bytes of its own shape"
            ) from error
    return given


def _bytes_of(part: Any) -> np.ndarray:
    """An array of bytes from nested lists of whole numbers.

    Raises:
      ValueError: a number is not whole, or not from 0 to 255.
    """
    numbers = np.asarray(part)
    if numbers.size and (numbers.dtype.kind not in "iu" or not 0 <= numbers.min() <= numbers.max() <= 255):
        raise ValueError("there are numbers that are no bytes")
    return numbers.astype(np.uint8)


def chosen(word: str) -> Ruleset:
    """The rulesets that a word names; without a leading axis for one by its number.

    Raises:
      ShoalError: there is no such file, it is damaged, or there is nothing of that kind in it.
    """
    file, part, expected = _parsed(word)
    benchmark = _loaded(file)
    try:
        found = _part(benchmark, part)
    except ShoalError as error:
        raise ShoalError(f"ruleset={word!r}: {error}") from error
    if expected and checksum(found) != expected:
        raise ShoalError(
            f"ruleset={word!r}: the file holds other rulesets now, of checksum {checksum(found)}; make it again, or "
            f"name these by ruleset={word.partition('#')[0]!r}"
        )
    return found


def lasting(word: str) -> str:
    """A word for the same rulesets that means the same from any directory, and only them."""
    file, part, _ = _parsed(word)
    path = benchmark_files.path_of(file).absolute()
    return f"{path}{':' * bool(part)}{part}#{checksum(chosen(word))}"


def _parsed(word: str) -> tuple[str, str, str]:
    """File, part and checksum, the last two "" where there are none."""
    found = _WORD.fullmatch(word)
    if found is None:
        raise ShoalError(f"ruleset={word!r} names no file; give one, such as bench.npz or bench.npz:train")
    return found["file"], found["part"] or "", found["checksum"] or ""


def _loaded(file: str) -> Benchmark:
    path = benchmark_files.path_of(file)
    try:
        status = os.stat(path)
    except OSError as error:
        if file in PUBLISHED:
            raise ShoalError(
                f"ruleset={file!r} is no file; `shoal grid make-benchmark {file} --save {file}.npz` makes one"
            ) from error
        return Benchmark.load(path)  # which says why it cannot be read
    return _loaded_once(str(path.absolute()), (status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=2)  # a run makes its environment several times over
def _loaded_once(path: str, stamp: tuple[int, int]) -> Benchmark:
    return Benchmark.load(path)


def _part(benchmark: Benchmark, part: str) -> Ruleset:
    """One ruleset, those between two bounds, those of a named part, or all."""
    if re.fullmatch(r"-?\d{1,18}", part):
        return benchmark.ruleset(int(part))
    if ":" in part:
        return benchmark[_slice(part, len(benchmark))].rulesets
    return (benchmark.part(part) if part else benchmark).rulesets


def _slice(part: str, count: int) -> slice:
    """The slice of "100:200" or "80%:"."""

    def place(bound: str, otherwise: int) -> int:
        if bound.endswith("%"):
            return round(count * float(bound[:-1]) / 100)
        return int(bound) if bound else otherwise

    first, _, last = part.partition(":")
    start, stop = place(first, 0), place(last, count)
    if not start < stop <= count:
        raise ShoalError(
            f"{start} and {stop} bound no part of the {count:,} rulesets; give two numbers from 0 to {count}, the "
            "second above the first"
        )
    return slice(start, stop)
