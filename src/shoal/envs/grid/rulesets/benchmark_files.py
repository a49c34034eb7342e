"""Files of benchmarks: reading and writing.

Shoal's own format is an .npz of `goals` [n, 5], `rules` [n, R, 7] and `init_tiles` [n, O, 2], uint8, and
`about`, JSON with the number of the last rulesets that are held out and how all were made. Nothing in it is
code.

The original's format (xminigrid's `save_bz2_pickle`) is a pickle, compressed by bz2, of a dictionary with the
same three arrays, `num_rules` and `generation_config`. It is read without executing anything (see
`unpickling`).

Both are compressed, so that a small file may unpack to any size; neither is unpacked beyond `MAX_BYTES`.
"""

import bz2
import json
import math
import os
import stat
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import cache_folder, user_path, write_whole_file
from shoal.envs.grid.rulesets import rulesets
from shoal.envs.grid.rulesets.rulesets import Ruleset
from shoal.envs.grid.rulesets.unpickling import unpickle

FORMAT = "shoal-rulesets-1"
ARRAYS = ("goals", "rules", "init_tiles")  # in the order of a Ruleset's fields
ABOUT = "about"
ZIP, BZ2 = b"PK", b"BZ"  # the first bytes of an .npz, and of a file compressed by bz2

# The most bytes that a file is unpacked to, and that one is written with. XLand-MiniGrid's largest published
# file, high_3m_v3, has 3,000,000 rulesets of a goal (5 bytes), 18 rules (126), 25 objects (50) and num_rules
# (1): 546 MB, or 591 MB if its goals have four bytes per number, as some of the original's encodings do. The
# bound is the next power of two above both.
MAX_BYTES = 2**30

# XLand-MiniGrid's published benchmarks, what it calls their files, and where it downloads them (xminigrid 0.9.3).
ORIGINALS = {
    "trivial-21k": "trivial_21k",
    "small-1m": "small_1m_v3",
    "medium-1m": "medium_1m_v3",
    "medium-3m": "medium_3m_v3",
    "high-1m": "high_1m_v3",
    "high-3m": "high_3m_v3",
}
ORIGINALS_URL = "https://huggingface.co/datasets/Howuhh/xland_minigrid/resolve/main"

PLAIN_LIMIT = 2**63  # `about` keeps only numbers of a pickle that are smaller
MAX_REASON_LENGTH = 200  # characters of an error that quotes the file
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}

# The rulesets, the number of the last ones that are held out, and how they were made.
Contents = tuple[Ruleset, int, Mapping[str, Any]]


def find_file(file: str | Path) -> Path:
    """Return the path of a benchmark's file, which has a path or, as a text, the name of a published benchmark.

    Raises:
      ShoalError: the name is not valid for a file; or the published benchmark is in neither folder.
    """
    name = ORIGINALS.get(file) if isinstance(file, str) else None
    if name is None:
        return user_path(file, "benchmark")
    own = os.environ.get("SHOAL_DATA") or cache_folder() / "data"
    original = os.environ.get("XLAND_MINIGRID_DATA") or "~/.xland_minigrid"
    paths = [user_path(folder, f"folder of benchmark {file}") / name for folder in (own, original)]
    for path in paths:
        if path.exists():
            return path
    raise ShoalError(
        f"benchmark {file} is a file that Shoal does not download; get {ORIGINALS_URL}/{name} as {paths[0]} or "
        f"{paths[1]}, in whose place SHOAL_DATA and XLAND_MINIGRID_DATA name other folders"
    )


def check_size(num_bytes: int, what: str) -> None:
    """Require that rulesets fit into a file that can be read again."""
    if num_bytes > MAX_BYTES:
        raise ShoalError(
            f"{what} take {num_bytes:,} bytes, and the most that a file may hold is {MAX_BYTES:,}"
        )


def write(path: Path, tasks: Ruleset, num_held_out: int, about: Mapping[str, object]) -> None:
    """Write a benchmark's file; it is complete or does not exist.

    Raises:
      ShoalError: `read` would refuse the file, or it cannot be written.
    """
    label = f"benchmark {str(path)!r}"
    _check(label, "cannot be written", tasks, num_held_out)
    arrays = dict(zip(ARRAYS, map(np.asarray, tasks), strict=True))
    check_size(sum(array.nbytes for array in arrays.values()), f"the rulesets for {str(path)!r}")
    try:
        description = json.dumps(
            {"format": FORMAT, "num_held_out": num_held_out, "about": dict(about)}, allow_nan=False
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ShoalError(f"{label} cannot be written: JSON cannot hold its `about`: {error}") from error
    with write_whole_file(path) as file:
        np.savez_compressed(file, allow_pickle=False, **{ABOUT: np.asarray(description)}, **arrays)


def read(path: Path) -> Contents:
    """Read a benchmark's file; no content of the file is executed.

    Raises:
      ShoalError: it is missing, damaged, too large, empty or not a benchmark, or a ruleset has a kind or tile that
        does not exist.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not path.is_dir():  # opening a pipe may never end
            raise ShoalError(f"benchmark {str(path)!r} cannot be read: it is not an ordinary file")
        with open(path, "rb") as file:
            start = file.read(len(ZIP))
            file.seek(0)
            if start not in (ZIP, BZ2):
                what = "is not a benchmark" if start else "is empty"
                raise ShoalError(f"{str(path)!r} {what}; `shoal grid make-benchmark` makes one")
            contents = _read_own(path, file) if start == ZIP else _read_original(path, file)
    except OSError as error:
        raise ShoalError(f"benchmark {str(path)!r} cannot be read: {error.strerror or error}") from error
    tasks, num_held_out, _ = contents
    _check(f"benchmark {str(path)!r}", "is damaged", tasks, num_held_out)
    return contents


def _check(label: str, verdict: str, tasks: Ruleset, num_held_out: int) -> None:
    """Require rulesets with a leading axis, of which some but not all may be held out.

    Raises:
      ShoalError: they are not; the message begins with the label, and has the verdict where they contradict
        themselves.
    """
    if np.ndim(tasks.goal) > 1 and len(tasks.goal) == 0:
        raise ShoalError(f"{label} holds no rulesets; it needs 1 or more")
    try:
        rulesets.check(tasks)
    except ShoalError as error:
        raise ShoalError(f"{label}: {error}") from error
    if np.ndim(tasks.goal) == 1:
        raise ShoalError(f"{label} holds one ruleset without a leading axis, which is needed even for one")
    count = len(tasks.goal)
    if type(num_held_out) is not int or not 0 <= num_held_out < count:
        raise ShoalError(
            f"{label} {verdict}: {num_held_out!r} of {count} rulesets are held out, where 0 to {count - 1} can be"
        )


def _read_own(path: Path, file: IO[bytes]) -> Contents:
    try:
        with warnings.catch_warnings(), zipfile.ZipFile(file) as archive:
            warnings.simplefilter("ignore")  # warnings of a damaged header about its format
            names = (*ARRAYS, ABOUT)
            members = set(archive.namelist())
            missing = [name for name in names if f"{name}.npy" not in members]
            if missing:
                raise ShoalError(f"{str(path)!r} is not a benchmark: it lacks {missing[0]!r}")
            size = sum(archive.getinfo(f"{name}.npy").file_size for name in names)
            check_size(size, f"benchmark {str(path)!r}: unpacked, its arrays")
            tasks = Ruleset(*(_read_member(archive, name) for name in ARRAYS))
            about = _read_member(archive, ABOUT)
        return tasks, *_parse_about(about)
    except ShoalError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and others raise many kinds of errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ShoalError(f"benchmark {str(path)!r} is damaged: {reason[:MAX_REASON_LENGTH]}") from error


def _read_member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read an array of an archive; its header must agree with the size of its data before memory is allocated."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name!r} is compressed in a way that NumPy does not use")
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in HEADERS:
            raise ValueError(f"{name!r} is an array of the unknown version {version}")
        shape, _, dtype = HEADERS[version](member)
        size = math.prod(shape) * max(dtype.itemsize, 1)
        if not dtype.hasobject and not 0 <= size <= info.file_size:  # arrays of objects are refused below
            raise ValueError(f"{name!r} has fewer bytes than its shape {shape} says")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):  # reads to the end, where the checksum is compared
            raise ValueError(f"{name!r} has more bytes than its shape {shape} says")
    return array


def _parse_about(array: np.ndarray) -> tuple[int, Mapping[str, Any]]:
    """Read the number of held-out rulesets and how all were made, from JSON in an array."""
    if array.dtype.kind != "U" or array.ndim:
        raise ValueError(f"{ABOUT!r} is not a text")
    about = json.loads(str(array))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        found_format = about.get("format") if isinstance(about, dict) else None
        raise ValueError(f"its format is {found_format!r}, not {FORMAT!r}")
    if not isinstance(about.get("about"), dict) or "num_held_out" not in about:
        raise ValueError(f"{ABOUT!r} does not say how its rulesets were made and how many are held out")
    return about["num_held_out"], about["about"]


def _read_original(path: Path, file: IO[bytes]) -> Contents:
    try:
        with bz2.BZ2File(file) as packed:
            content = unpickle(packed, MAX_BYTES, ARRAYS)
    except ShoalError as error:
        raise ShoalError(f"benchmark {str(path)!r} {error}") from error
    if not isinstance(content, dict):
        kind = type(content).__name__.lower()
        raise ShoalError(f"{str(path)!r} is not a benchmark: it holds a {kind}, not a dictionary")
    config = content.get("generation_config")
    if not isinstance(config, dict):
        config = {}
    settings = {key: x for key, x in config.items() if isinstance(key, str) and _is_plain(x)}
    tasks = Ruleset(*(_to_bytes(path, name, content.pop(name, None)) for name in ARRAYS))
    return tasks, 0, {"generation": settings} if settings else {}


def _to_bytes(path: Path, name: str, value: object) -> np.ndarray:
    """Convert an array of whole numbers to bytes."""
    if not isinstance(value, np.ndarray):
        raise ShoalError(f"{str(path)!r} is not a benchmark: it has no array {name!r}")
    if value.size and not 0 <= value.min() <= value.max() <= np.iinfo(np.uint8).max:
        raise ShoalError(f"benchmark {str(path)!r}: {name!r} holds numbers that are not from 0 to 255")
    return value.astype(np.uint8, copy=False)


def _is_plain(value: object) -> bool:
    """Report whether JSON can hold a value in little space."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, int):
        return abs(value) < PLAIN_LIMIT
    return isinstance(value, str) or value is None
