"""Files of arrays: what is written comes back, other programs read it, and damage is named before anything is read."""

import hashlib
import json
import os
import re
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from forged import forge, record_of
from safetensors import safe_open

from shoal.base.errors import ShoalError
from shoal.records import array_file, arrays
from shoal.records.array_file import DamageError, UnusableError
from shoal.records.checkpoints import Checkpoints

LEAVES = {
    "learner/w": np.random.default_rng(0).random((30, 40)).astype(np.float32),
    "key": jax.random.key(3),
    "count": np.asarray(3, np.int32),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run with two checkpoints."""
    path = tmp_path_factory.mktemp("originals") / "run"
    path.mkdir()
    for steps in (4096, 8192):
        Checkpoints(path).save(steps, LEAVES | {"count": np.asarray(steps, np.int32)}, {"score": steps / 2})
    return path


@pytest.fixture
def run(originals, tmp_path):
    return Checkpoints(shutil.copytree(originals, tmp_path / "run"))


def place(run, steps):
    return run.path / f"{steps}.safetensors"


# ---- what is written


def write(path, leaves, **entries):
    return array_file.write(path, {name: arrays.to_numpy(leaf) for name, leaf in leaves.items()}, entries)


def test_another_program_reads_what_is_written(tmp_path):
    leaves = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
        "transposed": np.arange(6).reshape(2, 3).T,
        "big-endian": np.arange(3, dtype=">i4"),
        "none": np.zeros((0, 3), np.float64),
        "one": np.asarray(True),
    }
    assert write(tmp_path / "x", leaves, a=1) == (tmp_path / "x").stat().st_size
    with safe_open(tmp_path / "x", framework="numpy") as file:
        assert set(file.keys()) == set(leaves)
        for name, array in leaves.items():
            loaded = file.get_tensor(name)
            assert (loaded.shape, loaded.dtype) == (array.shape, array.dtype.newbyteorder("=")), name
            np.testing.assert_array_equal(loaded, array)
        record = json.loads(file.metadata()["shoal"])
    assert record["a"] == 1 and record["leaves"]["transposed"] == {"dtype": "int64", "shape": [3, 2]}
    data = (tmp_path / "x").read_bytes()
    zeroed = data.replace(record["sha256"].encode(), b"0" * 64)
    assert record["sha256"] == hashlib.sha256(zeroed).hexdigest()


def test_numbers_are_aligned_for_those_who_map_the_file(tmp_path):
    write(tmp_path / "x", {"a": np.zeros(3, np.int8), "b": np.zeros(3), "c": np.zeros(5, np.float16)})
    data = (tmp_path / "x").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    starts = {name: header[name]["data_offsets"][0] for name in "abc"}
    assert size % 8 == 0 and starts == {"b": 0, "c": 24, "a": 34}


def test_the_same_arrays_make_the_same_bytes(tmp_path):
    write(tmp_path / "x", LEAVES, first=1, second={"b": 1, "a": np.nan})
    write(tmp_path / "y", dict(reversed(LEAVES.items())), second={"a": np.nan, "b": 1}, first=1)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_a_link_is_followed_and_a_mode_stays(tmp_path):
    (tmp_path / "there").write_bytes(b"")
    (tmp_path / "there").chmod(0o640)
    (tmp_path / "x").symlink_to("there")
    write(tmp_path / "x", LEAVES)
    assert (tmp_path / "x").is_symlink() and (tmp_path / "there").stat().st_mode & 0o777 == 0o640
    assert (
        array_file.read(tmp_path / "x", array_file.verify(tmp_path / "x")["leaves"])["key"] == LEAVES["key"]
    )


# ---- damage


def truncate(length=0.5):
    return lambda here, there: os.truncate(here, int(here.stat().st_size * length) if length < 1 else length)


def flip(where):
    def damage(here, there):
        data = bytearray(here.read_bytes())
        data[int(len(data) * where) if where < 1 else where] ^= 1
        here.write_bytes(data)

    return damage


def append(here, there):
    with open(here, "ab") as file:
        file.write(b"more")


def replace(data):
    return lambda here, there: here.write_bytes(data)


def replace_by_folder(here, there):
    here.unlink()
    here.mkdir()


def replace_by_link(here, there):
    here.unlink()
    here.symlink_to("nowhere")


def replace_by_pipe(here, there):
    here.unlink()
    os.mkfifo(here)


def copy_other(here, there):
    shutil.copy(there, here)


def header_of_other(here, there):
    data, other = here.read_bytes(), there.read_bytes()
    assert data[:8] == other[:8]
    size = 8 + int.from_bytes(data[:8], "little")
    here.write_bytes(other[:size] + data[size:])


def numbers_of_other(here, there):
    data, other = here.read_bytes(), there.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    here.write_bytes(data[:size] + other[size:])


def change(**changes):
    """Change entries of the record, and the checksum with them."""

    def damage(here, there):
        forge(here, lambda record: record.update({name: value(record[name]) if callable(value) else value
                                                  for name, value in changes.items()}))  # fmt: skip

    return damage


ALTERED = "it was altered"
FIRST_EIGHT = r"it is truncated to [\d,]+ bytes, or its first eight were altered"
DAMAGE = {
    "emptied": (truncate(0.0), "it is empty"),
    "truncated to its length": (truncate(8), FIRST_EIGHT),
    "truncated to less": (truncate(5), FIRST_EIGHT),
    "truncated in the header": (truncate(100), FIRST_EIGHT),
    "truncated in the numbers": (truncate(0.5), r"it is truncated to 2,\d+ of 5,\d+ bytes"),
    "longer": (append, r"it has 5,\d+ bytes instead of 5,\d+"),
    "length of the header flipped": (flip(3), FIRST_EIGHT),
    "length of the header shorter": (flip(0), ALTERED),
    "start flipped": (flip(9), ALTERED),
    "checksum flipped": (flip(60), ALTERED),
    "header flipped": (flip(200), ALTERED),
    "numbers flipped": (flip(0.9), ALTERED),
    "header of other steps": (header_of_other, ALTERED),
    "numbers of other steps": (numbers_of_other, ALTERED),
    "zeros": (replace(bytes(500)), ALTERED),
    "text": (replace(b"[" * 100_000), FIRST_EIGHT),
    "deeply nested": (replace((100_000).to_bytes(8, "little") + b"[" * 100_000), ALTERED),
    "of another program": (replace((2).to_bytes(8, "little") + b"{}"), ALTERED),
}
UNUSABLE = {
    "a folder": (replace_by_folder, "it is a folder, not a file"),
    "a link to nothing": (replace_by_link, "it cannot be read: No such file or directory"),
    "a pipe": (replace_by_pipe, "it is not a regular file"),
    "another checkpoint": (copy_other, "it is the checkpoint at 8192"),
    "other steps": (change(steps=8192), "it is the checkpoint at 8192"),
    "newer schema": (
        change(schema=2),
        "its schema is 2, of a newer version of Shoal, and this one reads schema 1",
    ),
    "a policy": (lambda here, there: write(here, LEAVES, metadata={}), "it holds no checkpoint"),
}
if not hasattr(os, "mkfifo"):
    del UNUSABLE["a pipe"]


@pytest.mark.parametrize("kind", [*DAMAGE, *UNUSABLE])
def test_damage_is_named_before_anything_is_read(run, monkeypatch, kind):
    damage, clause = (DAMAGE | UNUSABLE)[kind]
    damage(place(run, 4096), place(run, 8192))
    monkeypatch.setattr(array_file, "safe_open", None)
    monkeypatch.setattr(array_file, "from_numpy", None)
    problem = run.problem(4096)
    assert re.fullmatch(clause, problem), problem
    assert run.problem(8192) == ""
    info = run.info(4096)
    assert (info.problem, info.record, info.steps) == (problem, {}, 4096) and info.seconds < 600
    assert (info.is_damaged, info.is_newer) == (kind in DAMAGE, kind == "newer schema")
    with pytest.raises(ShoalError) as failure:
        run.load(4096, LEAVES)
    assert str(failure.value) == (
        f"the checkpoint at 4096 of run directory {str(run.run_path)!r} cannot be used: {problem}."
    )
    assert run.steps() == [4096, 8192]


@pytest.mark.parametrize("kind", ["numbers flipped", "a folder", "newer schema"])
def test_a_damaged_checkpoint_is_never_overwritten(run, kind):
    (DAMAGE | UNUSABLE)[kind][0](place(run, 4096), place(run, 8192))
    damaged = state(place(run, 4096))
    run.save(4096, LEAVES, {"again": True})
    assert run.load(4096)[1] == {"again": True}
    assert state(run.path / "4096.damaged") == damaged
    run.keep([4096])
    assert state(run.path / "4096.damaged") == damaged


def state(path):
    return path.read_bytes() if path.is_file() else {x.name: state(x) for x in path.iterdir()}


def test_every_changed_byte_is_found(tmp_path):
    """At each place in turn, another bit each time; and each shorter file, and one that is longer."""
    path = tmp_path / "x"
    write(path, {"w": np.arange(3.0), "k": jax.random.key(0)}, steps=3)
    whole = path.read_bytes()
    for where in range(len(whole)):
        for changed in (
            whole[:where] + bytes([whole[where] ^ 1 << where % 8]) + whole[where + 1 :],
            whole[:where],
        ):
            path.write_bytes(changed)
            with pytest.raises(DamageError):
                array_file.verify(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(DamageError, match=r"^it has [\d,]+ bytes instead of"):
        array_file.verify(path)
    path.write_bytes(whole)
    assert array_file.verify(path)["steps"] == 3


def overlapping(header):
    header["count"]["data_offsets"] = header["learner/w"]["data_offsets"][:1] * 2


def beyond(header):
    header["learner/w"]["data_offsets"] = [0, 10**15]


def huge(header):
    header["learner/w"] |= {"shape": [2**40, 2**40]}


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda here, there, edit=edit: forge(here, change_header=edit)
          for edit in (overlapping, beyond, huge)),
    ],
    ids=["overlapping", "beyond", "huge"],
)  # fmt: skip
def test_a_record_that_is_not_of_its_arrays_is_one_sentence(run, damage):
    """Its checksum is right, so that only reading the arrays shows it."""
    damage(place(run, 4096), None)
    assert run.problem(4096) == ""
    with pytest.raises(
        ShoalError, match=r"^the checkpoint at 4096 .* cannot be used: its arrays cannot be read\.$"
    ):
        run.load(4096)


def test_what_cannot_be_read_is_named(run, monkeypatch):
    def refuse(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", refuse)
        assert run.problem(4096) == "it cannot be read: Input/output error"
    if os.geteuid() == 0:
        return
    place(run, 4096).chmod(0)
    assert run.problem(4096) == "it cannot be read: Permission denied"


def test_the_record_is_what_the_tests_say(run):
    assert record_of(place(run, 4096)) == array_file.verify(place(run, 4096))
    with pytest.raises(UnusableError):
        array_file.verify(run.path / "nothing")
