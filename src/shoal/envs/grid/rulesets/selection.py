"""Parse `FILE:part` and select rulesets, as the command line and a run's config name them.

FILE is a path, or the name of one of XLand-MiniGrid's published benchmarks (`published.FILES`).

    bench.npz           all rulesets of a file
    bench.npz:train     those for training; `bench.npz:held-out` those that are kept for evaluation
    bench.npz:17        one, by its index from 0
    bench.npz:100:200   those from 100 to 199; either bound may be left out, or be a share: `bench.npz:80%:`

A selector may end with `#` and a checksum; it is then refused if the file holds other rulesets than before.
"""

import functools
import os
import re

from shoal.base.errors import ShoalError, nearest
from shoal.envs.grid.rulesets import benchmark_files, published
from shoal.envs.grid.rulesets.benchmark import Benchmark, checksum
from shoal.envs.grid.rulesets.generation import PUBLISHED
from shoal.envs.grid.rulesets.rulesets import Ruleset, to_bytes

_NUMBER_PATTERN = r"[0-9]{1,15}"  # no file holds more rulesets
_BOUND_PATTERN = rf"(?:{_NUMBER_PATTERN}(?:\.{_NUMBER_PATTERN})?%|{_NUMBER_PATTERN})?"
_PART_PATTERN = rf"[A-Za-z][\w-]*|-?{_NUMBER_PATTERN}|{_BOUND_PATTERN}:{_BOUND_PATTERN}"
_SELECTOR = re.compile(rf"(?P<file>.+?)(?::(?P<part>{_PART_PATTERN}))?(?:#(?P<checksum>[0-9a-f]+))?")


def resolve_rulesets(ruleset: object) -> object:
    """Convert the ruleset that a world was given to a Ruleset: a selector, nested lists of numbers, or a Ruleset.

    Raises:
      ShoalError: the selector's file or part does not exist; or lists do not have a ruleset's shape.
    """
    if isinstance(ruleset, str):
        return select_rulesets(ruleset)
    if isinstance(ruleset, list | tuple) and not isinstance(ruleset, Ruleset):
        try:
            return Ruleset(*map(to_bytes, ruleset))
        except (TypeError, ValueError, OverflowError) as error:
            raise ShoalError(
                f"ruleset={ruleset!r} is not a goal, rules and init_tiles, each of bytes of its own shape"
            ) from error
    return ruleset


def select_rulesets(selector: str) -> Ruleset:
    """Load the rulesets that a selector names; without a leading axis for one by its index.

    Raises:
      ShoalError: there is no such file, it is damaged, or it has no such part.
    """
    file, part, expected = _parse(selector)
    benchmark = _load(file)
    try:
        rulesets = _select_part(benchmark, part)
    except ShoalError as error:
        raise ShoalError(f"ruleset={selector!r}: {error}") from error
    if expected and checksum(rulesets) != expected:
        raise ShoalError(
            f"ruleset={selector!r}: the file holds other rulesets now, of checksum {checksum(rulesets)}; make it "
            f"again, or name these by ruleset={selector.partition('#')[0]!r}"
        )
    return rulesets


def portable_selector(selector: str) -> str:
    """Return a selector for exactly the same rulesets that is valid from any directory."""
    file, part, _ = _parse(selector)
    lasting = file if file in published.FILES else benchmark_files.find_file(file).absolute()
    return f"{lasting}{':' * bool(part)}{part}#{checksum(select_rulesets(selector))}"


def _parse(selector: str) -> tuple[str, str, str]:
    """Split a selector into file, part and checksum; the last two are "" where they are missing."""
    match = _SELECTOR.fullmatch(selector)
    if match is None:
        raise ShoalError(
            f"ruleset={selector!r} names no file; give one, such as bench.npz or bench.npz:train"
        )
    return match["file"], match["part"] or "", match["checksum"] or ""


def _load(file: str) -> Benchmark:
    path = benchmark_files.find_file(file)
    try:
        status = os.stat(path)
    except OSError as error:
        advice = nearest(file, published.FILES)
        if file in PUBLISHED:
            advice = f"; `shoal grid make-benchmark {file} --save {file}.npz` makes one"
        if advice:
            raise ShoalError(f"ruleset={file!r} is not a file{advice}") from error
        return Benchmark.load(path)  # raises the error for a file that cannot be read
    return _load_cached(str(path.absolute()), (status.st_mtime_ns, status.st_size))


@functools.lru_cache(maxsize=2)  # a run makes its environment several times
def _load_cached(path: str, stamp: tuple[int, int]) -> Benchmark:
    return Benchmark.load(path)


def _select_part(benchmark: Benchmark, part: str) -> Ruleset:
    """Select one ruleset, those between two bounds, those of a named part, or all."""
    if re.fullmatch(r"-?\d{1,18}", part):
        return benchmark.ruleset(int(part))
    if ":" in part:
        return benchmark[_parse_slice(part, len(benchmark))].rulesets
    return (benchmark.part(part) if part else benchmark).rulesets


def _parse_slice(part: str, count: int) -> slice:
    """Parse the slice "100:200" or "80%:"."""

    def index_of(bound: str, default: int) -> int:
        if bound.endswith("%"):
            return round(count * float(bound[:-1]) / 100)
        return int(bound) if bound else default

    first, _, last = part.partition(":")
    start, stop = index_of(first, 0), index_of(last, count)
    if not start < stop <= count:
        raise ShoalError(
            f"{start} and {stop} bound no part of the {count:,} rulesets; give two numbers from 0 to {count}, the "
            "second above the first"
        )
    return slice(start, stop)
