"""The files of benchmarks.

Our own is an .npz of `goals` [n, 5], `rules` [n, R, 7] and `init_tiles` [n, O, 2], uint8, and `about`, JSON
that says how many of the last rulesets are held out and how all were made. Nothing in it is code.

The original's (xminigrid's `save_bz2_pickle`) is a pickle, compressed by bz2, of a dictionary that holds the same
three arrays, `num_rules` and `generation_config`. It is read without running anything (see `unpickling`).
"""

import bz2
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.envs.grid import rulesets
from shoal.envs.grid.rulesets import Ruleset
from shoal.envs.grid.unpickling import PickledArray, unpickled
from shoal.errors import ShoalError
from shoal.files import whole_file

FORMAT = "shoal-rulesets-1"
ARRAYS = ("goals", "rules", "init_tiles")  # in the order of a Ruleset's
ABOUT = "about"
ZIP, BZ2 = b"PK", b"BZ"  # how an .npz, and what is compressed by bz2, begin

# The rulesets, how many of the last ones are held out, and how they were made.
Contents = tuple[Ruleset, int, Mapping[str, Any]]


def write(path: Path, tasks: Ruleset, num_held_out: int, about: Mapping[str, Any]) -> None:
    """Writes a benchmark's file, which is whole or not there.

    Raises:
      ShoalError: it cannot be written.
    """
    told = json.dumps({"format": FORMAT, "num_held_out": num_held_out, "about": dict(about)})
    arrays = dict(zip(ARRAYS, map(np.asarray, tasks), strict=True))
    with whole_file(path) as file:
        np.savez_compressed(file, allow_pickle=False, **{ABOUT: np.asarray(told)}, **arrays)


def read(path: Path) -> Contents:
    """Reads a benchmark's file; nothing that it may hold is run.

    Raises:
      ShoalError: it is missing, damaged or no benchmark, or a ruleset has a kind or tile that does not exist.
    """
    try:
        with open(path, "rb") as file:
            start = file.read(len(ZIP))
    except OSError as error:
        raise ShoalError(f"benchmark {str(path)!r} cannot be read: {error.strerror or error}") from error
    if start not in (ZIP, BZ2):
        raise ShoalError(f"{str(path)!r} is no benchmark; `shoal grid make-benchmark` makes one")
    tasks, num_held_out, about = _read_own(path) if start == ZIP else _read_original(path)
    try:
        rulesets.check(tasks)
    except ShoalError as error:
        raise ShoalError(f"benchmark {str(path)!r}: {error}") from error
    count = len(tasks.goal) if tasks.goal.ndim > 1 else 0
    if not count or not 0 <= num_held_out < count:
        raise ShoalError(
            f"benchmark {str(path)!r} is damaged: {num_held_out} of {count} rulesets are held out"
        )
    return tasks, num_held_out, about


def _read_own(path: Path) -> Contents:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            tasks = Ruleset(*(archive[name] for name in ARRAYS))
            told = json.loads(str(archive[ABOUT]))
        if told["format"] != FORMAT:
            raise ValueError(f"its format is {told['format']!r}, not {FORMAT!r}")
        return tasks, int(told["num_held_out"]), dict(told["about"])
    except KeyError as error:
        raise ShoalError(f"{str(path)!r} is no benchmark: it lacks {error}") from error
    except Exception as error:  # of zipfile, zlib, tokenize, ...: reading a header goes wrong in many ways
        why = " ".join(str(error).split()) or type(error).__name__
        raise ShoalError(f"benchmark {str(path)!r} is damaged: {why}") from error


def _read_original(path: Path) -> Contents:
    try:
        content = bz2.decompress(path.read_bytes())
    except (OSError, ValueError, EOFError) as error:
        raise ShoalError(f"benchmark {str(path)!r} is damaged: {error}") from error
    try:
        held = unpickled(content)
    except ShoalError as error:
        raise ShoalError(f"benchmark {str(path)!r} {error}") from error
    if not isinstance(held, dict):
        raise ShoalError(f"{str(path)!r} is no benchmark: it holds a {type(held).__name__}, not a dictionary")
    config = held.get("generation_config")
    known = {str(key): x for key, x in config.items() if _is_plain(x)} if isinstance(config, dict) else {}
    tasks = Ruleset(*(_bytes_of(path, name, held.get(name)) for name in ARRAYS))
    return tasks, 0, {"generation": known} if known else {}


def _bytes_of(path: Path, name: str, given: Any) -> np.ndarray:
    """An array of bytes, from one of whole numbers."""
    array = given.array if isinstance(given, PickledArray) else None
    if array is None:
        raise ShoalError(f"{str(path)!r} is no benchmark: it has no array {name!r}")
    narrow = array.astype(np.uint8)
    if not np.array_equal(narrow, array):
        raise ShoalError(f"benchmark {str(path)!r}: {name!r} holds numbers that are not from 0 to 255")
    return narrow


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str) or value is None
