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
import os
import stat
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import cache_folder, user_path, write_whole_file
from shoal.envs.grid.rulesets import published, rulesets
from shoal.envs.grid.rulesets.rulesets import Ruleset
from shoal.envs.grid.rulesets.unpickling import damage, unpickle

FORMAT = "shoal-rulesets-1"
ARRAYS = ("goals", "rules", "init_tiles")  # in the order of a Ruleset's fields
ABOUT = "about"
ZIP, BZ2 = b"PK", b"BZ"  # the first bytes of an .npz, and of a file compressed by bz2

# The most bytes that a file is unpacked to, and that one is written with. XLand-MiniGrid's largest published
# file, high_3m_v3, has 3,000,000 rulesets of a goal (5 bytes), 18 rules (126), 25 objects (50) and num_rules
# (1): 546 MB, or 591 MB if its goals have four bytes per number, as some of the original's encodings do. The
# bound is the next power of two above both.
MAX_BYTES = 2**30

PLAIN_LIMIT = 2**63  # `about` keeps only numbers of a pickle that are smaller
# Ways to compress that Python unpacks piece by piece; of others one read may take any memory.
BOUNDED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# The rulesets, the number of the last ones that are held out, and how they were made.
Contents = tuple[Ruleset, int, Mapping[str, object]]


def find_file(file: str | Path) -> Path:
    """Return the path of a benchmark's file, which has a path or, as a text, the name of a published benchmark.

    A published one that is in neither folder is downloaded into the first.

    Raises:
      ShoalError: the name is not valid for a file; or the published benchmark cannot be downloaded, or its file is
        not the one that was.
    """
    name = published.FILES.get(file) if isinstance(file, str) else None
    if name is None:
        return user_path(file, "benchmark")
    own = os.environ.get("SHOAL_DATA") or cache_folder() / "data"
    original = os.environ.get("XLAND_MINIGRID_DATA") or "~/.xland_minigrid"
    paths = [user_path(folder, f"folder of benchmark {file}") / name for folder in (own, original)]
    for path in paths:
        if path.exists():
            published.check_downloaded(path)
            return path
    published.download(str(file), paths, MAX_BYTES)
    return paths[0]


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
    _check(label, tasks, num_held_out)
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
    _check(f"benchmark {str(path)!r}", tasks, num_held_out)
    return contents


def _check(label: str, tasks: Ruleset, num_held_out: int) -> None:
    """Require rulesets with a leading axis, of which some but not all may be held out.

    Raises:
      ShoalError: they are not; the message begins with the label.
    """
    try:
        rulesets.check(tasks)
    except ShoalError as error:
        raise ShoalError(f"{label}: {error}") from error
    if np.ndim(tasks.goal) == 1:
        raise ShoalError(f"{label} holds one ruleset without a leading axis, which is needed even for one")
    count = len(tasks.goal)
    if not 0 <= num_held_out < count:
        raise ShoalError(
            f"{label}: {num_held_out} of {count} rulesets are held out, where 0 to {count - 1} can be"
        )


def _read_own(path: Path, file: IO[bytes]) -> Contents:
    try:
        with warnings.catch_warnings(), np.load(file, allow_pickle=False) as archive:
            warnings.simplefilter("ignore")  # warnings of a damaged header about its format
            missing = [name for name in (*ARRAYS, ABOUT) if name not in archive.files]
            if missing:
                raise ShoalError(f"{str(path)!r} is not a benchmark: it lacks {missing[0]!r}")
            members = archive.zip.infolist()
            size = sum(member.file_size for member in members)
            check_size(size, f"benchmark {str(path)!r}: unpacked, its arrays")
            if not all(member.compress_type in BOUNDED for member in members):
                raise ValueError("it is compressed in a way that NumPy does not use")
            tasks = Ruleset(*(archive[name] for name in ARRAYS))
            return tasks, *_parse_about(str(archive[ABOUT]))
    except ShoalError:
        raise
    except Exception as error:  # zipfile, zlib, tokenize and others raise many kinds of errors
        raise ShoalError(f"benchmark {str(path)!r} {damage(error)}") from error


def _parse_about(text: str) -> tuple[int, Mapping[str, object]]:
    """Read the number of held-out rulesets and how all were made, from JSON."""
    match json.loads(text):
        case {"format": str(name), "num_held_out": int(num_held_out), "about": dict(about)} if name == FORMAT:
            return num_held_out, about
    raise ValueError(f"{ABOUT!r} is not of the format {FORMAT!r}")


def _read_original(path: Path, file: IO[bytes]) -> Contents:
    try:
        with bz2.BZ2File(file) as packed:
            content = unpickle(packed, MAX_BYTES, ARRAYS)
    except ShoalError as error:
        raise ShoalError(f"benchmark {str(path)!r} {error}") from error
    if not isinstance(content, dict):
        raise ShoalError(f"{str(path)!r} is not a benchmark: it holds no dictionary")
    config = content.get("generation_config")
    items = config.items() if isinstance(config, dict) else ()
    settings = {key: x for key, x in items if isinstance(key, str) and _is_plain(x)}
    tasks = Ruleset(*(_array_of(content, name, path) for name in ARRAYS))
    return tasks, 0, {"generation": settings} if settings else {}


def _array_of(content: dict[str, object], name: str, path: Path) -> np.ndarray:
    """Take an array of whole numbers out of a file's content, as bytes."""
    array = content.pop(name, None)  # may be large
    if not isinstance(array, np.ndarray):
        raise ShoalError(f"{str(path)!r} is not a benchmark: it has no array {name!r}")
    try:
        return rulesets.to_bytes(array)
    except ValueError as error:
        raise ShoalError(f"benchmark {str(path)!r}: {name!r} holds {error}") from error


def _is_plain(value: object) -> bool:
    """Report whether JSON can hold a value in little space; no infinity and no NaN."""
    return (
        value is None
        or isinstance(value, str)
        or (isinstance(value, int | float) and abs(value) < PLAIN_LIMIT)
    )
