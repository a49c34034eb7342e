"""Damage to real checkpoints: each kind is named in one clause, before anything is read for its content."""

import hashlib
import json
import os
import random
import re
import shutil

import jax
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.disk import checkpoint_folder, checksums
from shoal.disk.checkpoints import Checkpoints

MANIFEST, RECORD = "manifest.json", "record.json"
LEAVES = {
    "learner/w": np.random.default_rng(0).random((30, 40)).astype(np.float32),
    "key": jax.random.key(3),
    "count": np.asarray(3, np.int32),
}


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A run with two checkpoints, made by Orbax."""
    path = tmp_path_factory.mktemp("originals") / "run"
    path.mkdir()
    for steps in (4096, 8192):
        Checkpoints(path).save(steps, LEAVES | {"count": np.asarray(steps, np.int32)}, {"score": steps / 2})
    return path


@pytest.fixture
def run(originals, tmp_path):
    return Checkpoints(shutil.copytree(originals, tmp_path / "run"))


def array_file(folder):
    """The path within a checkpoint of the file that holds the most numbers."""
    files = [path for path in (folder / "arrays").rglob("*") if path.is_file()]
    return str(max(files, key=lambda path: path.stat().st_size).relative_to(folder))


def truncate(name):
    return lambda here, there: os.truncate(here / name(here), (here / name(here)).stat().st_size // 2)


def empty(name):
    return lambda here, there: os.truncate(here / name(here), 0)


def remove(name):
    return lambda here, there: (here / name(here)).unlink()


def flip(name, where=0.5):
    def damage(here, there):
        path = here / name(here)
        data = bytearray(path.read_bytes())
        data[int(len(data) * where)] ^= 1
        path.write_bytes(data)

    return damage


def append(name):
    def damage(here, there):
        with open(here / name(here), "ab") as file:
            file.write(b"more")

    return damage


def swap(name):
    def damage(here, there):
        data = (here / name(here)).read_bytes(), (there / name(there)).read_bytes()
        (here / name(here)).write_bytes(data[1])
        (there / name(there)).write_bytes(data[0])

    return damage


def manifest(_):
    return MANIFEST


def record(_):
    return RECORD


def numbers(folder):
    return array_file(folder)


def small(_):
    return "arrays/commit_success.txt"


def change(**changes):
    """Change entries of the manifest, and its own checksum with them, as a program would."""

    def damage(here, there):
        entries = json.loads((here / MANIFEST).read_text())
        for name, value in changes.items():
            entries[name] = value(entries[name]) if callable(value) else value
        del entries["sha256"]
        text = json.dumps(entries, indent=2) + "\n"
        entries["sha256"] = hashlib.sha256(text.encode()).hexdigest()
        (here / MANIFEST).write_text(json.dumps(entries, indent=2) + "\n")

    return damage


def with_leaf(**changes):
    return change(leaves=lambda leaves: leaves | {"learner/w": leaves["learner/w"] | changes})


def write(name, data):
    return lambda here, there: (here / name).write_bytes(data)


def half_delete(here, there):
    shutil.rmtree(here / "arrays")


def half_delete_with_manifest(here, there):
    half_delete(here, there)
    (here / MANIFEST).unlink()


def delete_content(here, there):
    shutil.rmtree(here)
    here.mkdir()


def replace_by_file(here, there):
    shutil.rmtree(here)
    here.write_text("")


def replace_by_link(here, there):
    here.rename(here.parent / "elsewhere")
    here.symlink_to("elsewhere")


def replace_by_dangling_link(here, there):
    shutil.rmtree(here)
    here.symlink_to("nowhere")


def replace_by_other(here, there):
    shutil.rmtree(here)
    shutil.copytree(there, here)


def link_record(here, there):
    (here / RECORD).rename(here.parent / "elsewhere.json")
    (here / RECORD).symlink_to("../elsewhere.json")


def link_arrays(here, there):
    (here / "arrays").rename(here.parent / "arrays")
    (here / "arrays").symlink_to("../arrays")


def pipe_for_record(here, there):
    (here / RECORD).unlink()
    os.mkfifo(here / RECORD)


def replace_arrays_by_file(here, there):
    half_delete(here, there)
    (here / "arrays").write_text("")


CUT_OFF = "since it was not written or not deleted to the end"
ALTERED = r"its manifest\.json was altered"
ENTRIES = r"its manifest\.json does not have the entries of a checkpoint"
NO_JSON = r"its manifest\.json is not JSON"
SECOND = r"its manifest\.json is that of the checkpoint at 8192"

DAMAGE = {
    "manifest truncated": (truncate(manifest), NO_JSON),
    "manifest emptied": (empty(manifest), r"its manifest\.json is empty"),
    "manifest missing": (remove(manifest), rf"it has no manifest\.json, {CUT_OFF}"),
    "manifest of other steps": (swap(manifest), SECOND),
    "manifest longer": (append(manifest), NO_JSON),
    "manifest not Unicode": (write(MANIFEST, b"{\xff}"), NO_JSON),
    "manifest deeply nested": (write(MANIFEST, b"[" * 100_000), NO_JSON),
    "manifest a list": (write(MANIFEST, b"[]"), r"its manifest\.json is not a JSON object"),
    "manifest of nothing": (write(MANIFEST, b"{}"), ALTERED),
    "manifest of zeros": (write(MANIFEST, bytes(500)), NO_JSON),
    "record truncated": (truncate(record), r"'record\.json' is truncated to 11 of 22 bytes"),
    "record emptied": (empty(record), r"'record\.json' is empty"),
    "record flipped": (flip(record), r"'record\.json' was altered"),
    "record missing": (remove(record), r"'record\.json' is missing"),
    "record of other steps": (swap(record), r"'record\.json' was altered"),
    "record longer": (append(record), r"'record\.json' has 26 bytes instead of 22"),
    "numbers truncated": (truncate(numbers), r"'arrays/.*' is truncated to [\d,]+ of [\d,]+ bytes"),
    "numbers emptied": (empty(numbers), r"'arrays/.*' is empty"),
    "numbers flipped at the start": (flip(numbers, 0), r"'arrays/.*' was altered"),
    "numbers flipped": (flip(numbers), r"'arrays/.*' was altered"),
    "numbers missing": (remove(numbers), r"'arrays/.*' is missing"),
    "numbers longer": (append(numbers), r"'arrays/.*' has [\d,]+ bytes instead of [\d,]+"),
    "numbers of other steps": (swap(numbers), r"'arrays/.*' (was altered|is truncated .*|has .*)"),
    "file of Orbax missing": (remove(small), r"'arrays/commit_success\.txt' is missing"),
    "file of Orbax swapped": (swap(small), r"'arrays/commit_success\.txt' was altered"),
    "file added": (write("arrays/state/more", b""), r"'arrays/state/more' is not one of its files"),
    "file added beside": (write("notes.txt", b"mine"), r"'notes\.txt' is not one of its files"),
    "half deleted": (half_delete, r"'arrays/.*' is missing, and \d+ of its other files are"),
    "half deleted with manifest": (half_delete_with_manifest, rf"it has no manifest\.json, {CUT_OFF}"),
    "emptied": (delete_content, rf"it is empty, {CUT_OFF}"),
    "a file": (replace_by_file, "it is a file, not a folder"),
    "a link": (replace_by_link, "it is a symbolic link, not a folder"),
    "a link to nothing": (replace_by_dangling_link, "it is a symbolic link, not a folder"),
    "another checkpoint": (replace_by_other, SECOND),
    "record a link": (link_record, r"'record\.json' is a symbolic link"),
    "arrays a link": (link_arrays, "'arrays' is a symbolic link"),
    "record a pipe": (pipe_for_record, r"'record\.json' is no regular file"),
    "arrays a file": (replace_arrays_by_file, r"'arrays/.*' is missing, and \d+ of its other files are"),
    "newer schema": (
        change(schema=2),
        "its schema is 2, of a newer version of Shoal, and this one reads schema 1",
    ),
    "other steps": (change(steps=8192), SECOND),
    "no schema": (change(schema=None), ENTRIES),
    "no leaves": (change(leaves=[]), ENTRIES),
    "no files": (change(files={"record.json": None}), ENTRIES),
    "objects": (with_leaf(dtype="object"), ENTRIES),
    "shape of text": (with_leaf(shape="ab"), ENTRIES),
    "negative shape": (with_leaf(shape=[-1, 40]), ENTRIES),
    "key of nothing": (with_leaf(key=3), ENTRIES),
}
if not hasattr(os, "mkfifo"):
    del DAMAGE["record a pipe"]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_named_before_anything_is_read(run, monkeypatch, kind):
    damage, clause = DAMAGE[kind]
    here, there = run.path / "4096", run.path / "8192"
    damage(here, there)
    for reader in ("read_arrays", "from_numpy", "read_record"):
        monkeypatch.setattr(checkpoint_folder, reader, None)
    problem = run.problem(4096)
    assert re.fullmatch(clause, problem), problem
    assert (run.problem(8192) != "") == (damage.__qualname__.startswith("swap."))
    info = run.info(4096)
    assert (info.problem, info.record, info.steps) == (problem, {}, 4096) and info.seconds < 600
    with pytest.raises(ShoalError) as failure:
        run.load(4096, LEAVES)
    assert str(failure.value) == (
        f"the checkpoint at 4096 of run directory {str(run.run_path)!r} cannot be used: {problem}."
    )
    assert run.steps() == [4096, 8192]


@pytest.mark.parametrize("kind", ["numbers flipped", "a file", "a link", "newer schema"])
def test_a_damaged_checkpoint_is_never_overwritten(run, kind):
    DAMAGE[kind][0](run.path / "4096", run.path / "8192")
    damaged = state(run.path / "4096")
    run.save(4096, LEAVES, {"again": True})
    assert run.load(4096)[1] == {"again": True}
    assert state(run.path / "4096.damaged") == damaged
    run.keep([4096])
    assert state(run.path / "4096.damaged") == damaged


def state(path):
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else {x.name: state(x) for x in path.iterdir()}


def test_a_changed_bit_anywhere_is_found(run):
    here = run.path / "4096"
    generator = random.Random(0)
    for path in [path for path in here.rglob("*") if path.is_file() and path.stat().st_size]:
        whole = path.read_bytes()
        for place in generator.sample(
            range(len(whole)), min(len(whole), 100 if path.name == MANIFEST else 5)
        ):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << generator.randrange(8)
            path.write_bytes(damaged)
            assert run.problem(4096) != "", (path, place)
        path.write_bytes(whole)
    assert run.problem(4096) == ""


@pytest.mark.parametrize(
    "damage",
    [
        with_leaf(shape=[40, 30]),
        with_leaf(shape=[30, 39]),
        with_leaf(key="none"),
        change(leaves=lambda leaves: leaves | {"learner/v": leaves["learner/w"]}),
    ],
    ids=["transposed", "narrower", "keys", "additional"],
)
def test_a_manifest_that_is_not_of_its_arrays_is_one_sentence(run, damage):
    """Its checksum is right, so that only reading the arrays shows it."""
    damage(run.path / "4096", None)
    assert run.problem(4096) == ""
    with pytest.raises(
        ShoalError, match=r"^the checkpoint at 4096 .* cannot be used: its arrays cannot be read\.$"
    ):
        run.load(4096)


def test_a_record_that_is_no_object_is_one_sentence(run):
    (run.path / "4096" / RECORD).write_text("[]")
    entry = {"bytes": 2, "sha256": hashlib.sha256(b"[]").hexdigest()}
    change(files=lambda files: files | {RECORD: entry})(run.path / "4096", None)
    assert run.info(4096).problem == "its record.json is not a JSON object"
    with pytest.raises(ShoalError, match=r"cannot be used: its record\.json is not a JSON object\.$"):
        run.load(4096)


def test_what_cannot_be_read_is_named(run, monkeypatch):
    def refuse(path):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_folder, "file_sha256", refuse)
        assert "' cannot be read: Input/output error" in run.problem(4096)
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        assert run.problem(4096) == "it cannot be read: Input/output error"
        assert run.info(4096).bytes == 0
    if os.geteuid() == 0:
        return
    (run.path / "4096" / RECORD).chmod(0)
    assert run.problem(4096) == "'record.json' cannot be read: Permission denied"


def test_checksums_are_those_of_the_files(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c").write_bytes(b"abc")
    (tmp_path / "d").write_bytes(bytes(10**6))
    assert checksums.folder_sha256(tmp_path) == {
        "a/b/c": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",  # FIPS 180-2, B.1
        "d": hashlib.sha256(bytes(10**6)).hexdigest(),
    }
