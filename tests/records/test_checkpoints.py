"""Checkpoints: what is saved comes back bit for bit, and no kill and no disk harms the one before."""

import contextlib
import errno
import itertools
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.records import array_file, arrays, checkpoints
from shoal.records.checkpoints import Checkpoints

LEAVES = {"learner/w": np.arange(6, dtype=np.float32).reshape(2, 3), "count": np.asarray(3, np.int32)}


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return Checkpoints(path)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def place(run, steps):
    return run.path / f"{steps}.safetensors"


# ---- round trips


def with_every_dtype():
    values = np.array([[-1, 0, 1, 2]], np.float32)
    leaves = {}
    for name in sorted({*arrays.SAFETENSORS_DTYPES, *arrays.FLOAT8}):
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        with np.errstate(invalid="ignore"):
            leaves |= {f"whole/{name}": values.astype(dtype), f"none/{name}": np.zeros((0, 3), dtype)}
            leaves[f"one/{name}"] = np.asarray(1, dtype)
    leaves["nan"] = np.array([0x7FC00001, 0xFF800000, 0x80000000], np.uint32).view(np.float32)
    leaves["strided"] = np.arange(12.0).reshape(3, 4).T[::2]
    return leaves


def with_every_key():
    leaves = {}
    for implementation in ("threefry2x32", "rbg", "unsafe_rbg"):
        key = jax.random.key(7, impl=implementation)
        leaves |= {implementation: key, f"{implementation}/6": jax.random.split(key, 6).reshape(2, 3)}
    return leaves | {"none": jax.random.split(jax.random.key(0), 2)[:0]}


@pytest.mark.parametrize("make", [dict, with_every_dtype, with_every_key], ids=lambda make: make.__name__)
def test_what_is_saved_comes_back_bit_for_bit(run, make):
    saved = make()
    run.save(128, saved, {})
    loaded, _ = run.load(128, saved)
    assert list(loaded) == sorted(saved)
    for name, leaf in saved.items():
        assert (loaded[name].dtype, loaded[name].shape) == (leaf.dtype, leaf.shape), name
        words, again = arrays.to_numpy(leaf)[0], arrays.to_numpy(loaded[name])[0]
        assert words.tobytes() == again.tobytes(), name
        if arrays.is_key(leaf) and leaf.size:
            draw = jax.random.bits(leaf.ravel()[-1], (3,))
            np.testing.assert_array_equal(jax.random.bits(loaded[name].ravel()[-1], (3,)), draw)


def test_records_come_back(run):
    record = {
        "evaluations": [[0, {"return": [0.1, 1e-300, 1 / 3]}]],
        "seconds": 2.5,
        "sha256": "é",
        "n": 2**60,
    }
    run.save(0, {}, record | {"best": -math.inf, "score": np.float32(0.1), "none": None})
    loaded = run.load(0)[1]
    assert loaded == record | {"best": "-inf", "score": float(np.float32(0.1)), "none": None}
    with pytest.raises(ShoalError, match=r"is a function, which JSON cannot hold\.$"):
        run.save(1, {}, {"f": names})
    with pytest.raises(ShoalError, match=r"^'w' cannot be saved: its dtype is object"):
        run.save(1, {"w": np.array([None])}, {})
    assert names(run.path) == ["0.safetensors"]


def test_the_list_has_steps_size_age_record_and_soundness(run, monkeypatch):
    assert run.steps() == []
    written = {steps: run.save(steps, LEAVES, {"at": steps}) for steps in (4096, 512, 10**12)}
    for name in (
        "4096.damaged",
        "007.safetensors",
        "-1.safetensors",
        "٣.safetensors",
        "7",
        "best.safetensors",
    ):
        (run.path / name).write_text("")
    assert run.steps() == [512, 4096, 10**12]
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 60)
    for steps, size in written.items():
        info = run.info(steps)
        assert (info.steps, info.path, info.problem) == (steps, place(run, steps), "")
        assert info.record == {"at": steps}
        assert info.bytes == size == info.path.stat().st_size
        assert 60 <= info.seconds < 90


def test_a_checkpoint_that_does_not_exist_has_a_nearest(run):
    for refuse in (run.load, run.info, run.problem, lambda steps: run.set_aside(steps, "")):
        with pytest.raises(ShoalError, match=r"^run directory '.*run' holds no checkpoint\.$"):
            refuse(3000)
    run.save(1024, {}, {})
    run.save(4096, {}, {})
    for refuse in (run.load, run.info, run.problem, lambda steps: run.set_aside(steps, "")):
        with pytest.raises(ShoalError, match=r"^there is no checkpoint at 3000; the nearest is 4096\.$"):
            refuse(3000)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"learner/w": None}, "it has 'learner/w', which is not expected"),
        ({"learner/v": np.zeros(2)}, "it has no 'learner/v'"),
        (
            {"learner/w": np.zeros((3, 2), np.float32)},
            r"it has 'learner/w' of shape \(2, 3\), and \(3, 2\) is expected",
        ),
        ({"count": np.asarray(3, np.uint32)}, "it has 'count' of dtype int32, and uint32 is expected"),
        (
            {"keys": jax.random.split(jax.random.key(0), 2)},
            r"it has 'keys' of shape \(3,\), and \(2,\) is expected",
        ),
        (
            {"keys": jax.random.split(jax.random.key(0, impl="rbg"), 3)},
            r"it has 'keys' of dtype key<fry>, and key<rbg> is expected",
        ),
        (
            {"keys": np.zeros((3, 2), np.uint32)},
            "it has 'keys' of dtype threefry2x32 keys, and uint32 is expected",
        ),
        ({"count": jax.random.key(0)}, "it has 'count' of dtype int32, and key<fry> is expected"),
    ],
)
def test_leaves_that_do_not_fit_are_named_before_any_is_read(run, monkeypatch, change, clause):
    saved = LEAVES | {"keys": jax.random.split(jax.random.key(0), 3)}
    run.save(4096, saved, {})
    expected = {name: leaf for name, leaf in (saved | change).items() if leaf is not None}
    expected = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in expected.items()}
    monkeypatch.setattr(array_file, "safe_open", None)
    sentence = (
        rf"^the checkpoint at 4096 of run directory '.*run' does not fit: {clause}; it was made with .*\.$"
    )
    with pytest.raises(ShoalError, match=sentence):
        run.load(4096, expected)
    assert run.problem(4096) == ""


# ---- kills, by a file layer that fails on command


def save_version(run, steps, version):
    run.save(steps, {"version": np.full(200, version)}, {"version": version})


def version_of(run, steps):
    """The version of a checkpoint, which is sound and of one piece."""
    leaves, record = run.load(steps)
    assert leaves["version"].tolist() == [record["version"]] * 200
    return record["version"]


class Killed(BaseException):
    """Ends a save as a kill would: no handler of errors runs any more."""


class FileLayer:
    """Counts what is asked of the file system, and fails at one call, or from one call on."""

    STEPS = tuple((os, name) for name in ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir"))

    def __init__(self, monkeypatch, at, error, once=False):
        self.at, self.error, self.once = at, error, once
        self.calls, self.flushed = 0, set()
        for module, name in self.STEPS:
            monkeypatch.setattr(module, name, self.failing(name, getattr(module, name)))
        monkeypatch.setattr(array_file, "write_whole_file", self.writing(array_file.write_whole_file))

    def failing(self, name, action):
        def act(*args, **kwargs):
            self.calls += 1
            if self.calls == self.at or (self.calls > self.at and not self.once):
                raise self.error
            if name == "fsync":  # only noted: to wait for the real disk proves nothing here
                return self.flushed.add(os.fstat(args[0]).st_ino)
            return action(*args, **kwargs)

        return act

    def writing(self, opened):
        """Fail in the middle of what is written, too."""

        class Failing:
            def __init__(self, file):
                self.file = file

            def write(file, data):
                self.failing("write", lambda: file.file.write(data))()

        @contextlib.contextmanager
        def open_failing(*args, **kwargs):
            with opened(*args, **kwargs) as file:
                yield Failing(file)

        return open_failing

    def lose_power(self, folder, before):
        """Empty every new file that was not flushed, as some file systems do."""
        for path in folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.flushed | before:
                os.truncate(path, 0)


def damaged(run, steps):
    save_version(run, steps, 1)
    os.truncate(place(run, steps), 3)


def begin_nothing(run):
    pass


def begin_one(run):
    save_version(run, 100, 1)


def begin_two(run):
    save_version(run, 100, 1)
    save_version(run, 200, 1)


def begin_damaged(run):
    save_version(run, 100, 1)
    damaged(run, 200)


def begin_three(run):
    begin_two(run)
    save_version(run, 300, 1)


def begin_leftovers(run):
    """What kills within a save leave, of a policy too."""
    begin_two(run)
    for leftover in (run.path / ".200.safetensors.17.tmp", run.run_path / ".best.safetensors.17.tmp"):
        leftover.write_bytes(b"x")


def save_200(run):
    save_version(run, 200, 2)


def keep_300(run):
    run.keep([300])


def recover(run):
    run.recover()


# What is there before, what is done, the checkpoints that must be there after a kill, and those that may be.
SCENARIOS = [
    (begin_nothing, save_200, {}, {200: {2}}),
    (begin_one, save_200, {100: {1}}, {200: {2}}),
    (begin_two, save_200, {100: {1}, 200: {1, 2}}, {}),
    (begin_damaged, save_200, {100: {1}}, {200: {2}}),
    (begin_three, keep_300, {300: {1}}, {100: {1}, 200: {1}}),
    (begin_leftovers, recover, {100: {1}, 200: {1}}, {}),
]
scenarios = pytest.mark.parametrize(("begin", "act", "must", "may"), SCENARIOS)


@contextlib.contextmanager
def begun(tmp_path, monkeypatch, begin, number):
    """A fresh copy of what a scenario begins with."""
    template, path = tmp_path / "template", tmp_path / f"run-{number}"
    if not template.exists():
        template.mkdir()
        begin(Checkpoints(template))
    shutil.copytree(template, path)
    with monkeypatch.context() as patch:
        yield Checkpoints(path), patch
    shutil.rmtree(path)


def inodes(folder):
    return {path.stat().st_ino for path in folder.rglob("*")}


def hidden(run):
    return [path.name for path in run.run_path.rglob("*") if path.name.startswith(".")]


def assert_whole(run, begin, must, may):
    """All that must be there is, of one version each; nothing else is, but what was damaged before."""
    found = {steps: version_of(run, steps) for steps in run.steps() if run.problem(steps) == ""}
    assert set(must) <= set(found) <= {*must, *may}
    assert all(version in {**must, **may}[steps] for steps, version in found.items())
    unsound = {steps for steps in run.steps() if run.problem(steps)}
    assert unsound <= ({200} if begin is begin_damaged else set())
    if begin is begin_damaged:
        assert [path.stat().st_size for path in run.path.glob("200*")].count(3) == 1


@scenarios
def test_a_kill_at_any_step_loses_nothing(tmp_path, monkeypatch, begin, act, must, may):
    for at in itertools.count(1):
        with begun(tmp_path, monkeypatch, begin, at) as (run, patch):
            before = inodes(run.run_path)
            layer = FileLayer(patch, at, Killed())
            with contextlib.suppress(Killed):
                act(run)
            patch.undo()
            if layer.calls < at:
                break
            layer.lose_power(run.run_path, before)
            run.recover()
            assert_whole(run, begin, must, may)
            assert hidden(run) == []
            save_200(run)  # the next process goes on
            assert version_of(run, 200) == 2
    assert at >= 3  # it was killed once at least


@scenarios
@pytest.mark.parametrize("once", [True, False], ids=["once", "from then on"])
def test_a_disk_that_fails_at_any_step_harms_nothing(tmp_path, monkeypatch, begin, act, must, may, once):
    failures = 0
    for at in itertools.count(1):
        with begun(tmp_path, monkeypatch, begin, at) as (run, patch):
            layer = FileLayer(patch, at, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), once)
            try:
                act(run)
            except ShoalError as error:
                failures += 1
                assert "No space left on device" in str(error) and "\n" not in str(error)
                assert hidden(run) == [] or not once or act is not save_200
            patch.undo()
            if layer.calls < at:
                break
            run.recover()
            assert_whole(run, begin, must, may)
    assert failures >= 2


@pytest.mark.skipif(sys.platform != "linux", reason="finds by its number what is flushed")
def test_all_is_flushed_before_a_checkpoint_has_its_name(run, monkeypatch):
    flushed, replaced = {}, []
    replace, fsync = os.replace, os.fsync

    def state(path):
        return sorted(os.listdir(path)) if Path(path).is_dir() else Path(path).stat().st_size

    def recording_fsync(descriptor):
        fsync(descriptor)
        flushed[os.fstat(descriptor).st_ino] = state(f"/proc/self/fd/{descriptor}")

    def checking_replace(source, target, **more):
        assert flushed[Path(source).stat().st_ino] == state(source) > 0
        assert run.steps() == []
        replaced.append(Path(target).name)
        replace(source, target, **more)

    monkeypatch.setattr(os, "fsync", recording_fsync)
    monkeypatch.setattr(os, "replace", checking_replace)
    run.save(4096, LEAVES, {})
    assert replaced == ["4096.safetensors"]
    assert all(flushed[path.stat().st_ino] == state(path) for path in (run.path, run.run_path))


# ---- real disks


@contextlib.contextmanager
def small_disk(path):
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def contents(folder):
    return {path.relative_to(folder): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_a_small_disk_that_is_full_or_read_only(tmp_path, capfd):
    noise = {f"w{k}": x for k, x in enumerate(np.random.default_rng(0).random((10, 50_000)))}
    with small_disk(tmp_path / "small") as path:
        run = Checkpoints(path)
        for steps in (1, 5):
            run.save(steps, LEAVES, {})
        before = contents(path)
        attempts = {
            r"No space left on device; it takes 4,0\d\d,\d+ bytes": noise,
            r"No space left on device; it takes 2,000,\d+ bytes": LEAVES,
        }
        for reason, leaves in attempts.items():  # in the arrays, and in the record
            record = {"text": "x" * 1_999_955} if leaves is LEAVES else {"text": "x" * 20_000}
            for steps in (1, 2):
                with pytest.raises(
                    ShoalError, match=rf"/{steps}\.safetensors cannot be written: {reason}\.$"
                ):
                    run.save(steps, leaves, record)
                assert contents(path) == before
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        for steps in (1, 2):
            with pytest.raises(ShoalError, match=r"cannot be written: Read-only file system\.$"):
                run.save(steps, LEAVES, {})
        with pytest.raises(ShoalError, match=r"cannot be deleted: Read-only file system\.$"):
            run.keep([1])
        assert contents(path) == before
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere"
)
def test_a_directory_that_is_read_only(run):
    run.save(1, LEAVES, {})
    before = contents(run.path)
    run.path.chmod(0o500)
    try:
        with pytest.raises(ShoalError, match=r"cannot be written: Permission denied\.$"):
            run.save(2, LEAVES, {})
    finally:
        run.path.chmod(0o700)
    assert contents(run.path) == before


def test_what_a_killed_process_was_writing_is_removed(run):
    for name in ("best.safetensors.17", "summary.json.17", "learning_curve.png.17", "mine"):
        (run.run_path / f".{name}.tmp").touch()
    run.recover()
    assert [x.name for x in run.run_path.glob(".*.tmp")] == [".mine.tmp"]


def test_a_directory_that_is_gone(run):
    run.save(1, LEAVES, {})
    shutil.rmtree(run.run_path)
    with pytest.raises(ShoalError, match=r"/2\.safetensors cannot be written: No such file or directory\.$"):
        run.save(2, LEAVES, {})
    assert not run.run_path.exists()
    assert run.steps() == []
    run.recover()
    run.keep([])


def test_a_first_checkpoint_that_fails_leaves_no_folder(run, monkeypatch):
    def fail(_):
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(checkpoints, "sync_directory", lambda _: None)
    with pytest.raises(ShoalError, match=r"/2\.safetensors cannot be written: File too large\.$"):
        run.save(2, LEAVES, {})
    assert names(run.run_path) == []


# ---- keeping and setting aside


def test_keeping_some_deletes_the_others(run):
    for steps in (0, 100, 200, 300):
        save_version(run, steps, 1)
    (run.path / "50.damaged").write_bytes(b"")
    run.keep({0, 300, 999})
    assert names(run.path) == ["0.safetensors", "300.safetensors", "50.damaged"]


def test_the_last_sound_checkpoint_is_never_deleted(run):
    for steps in (100, 200):
        save_version(run, steps, 1)
    damaged(run, 300)
    run.keep([300])
    assert run.steps() == [200, 300]
    run.keep([])
    assert run.steps() == [200]
    assert version_of(run, 200) == 1


def test_damaged_checkpoints_are_set_aside_under_names_of_their_own(run):
    for number in range(3):
        damaged(run, 200)
        aside = run.set_aside(200, run.problem(200))
        assert aside == run.path / ("200.damaged" if number == 0 else f"200.damaged-{number + 1}")
        assert aside.stat().st_size == 3
        assert "it is truncated to 3 bytes" in (run.path / f"{aside.name}.txt").read_text()
        assert run.steps() == []
    save_version(run, 200, 2)
    damaged(run, 200)
    save_version(run, 200, 3)  # as a save does with one that it finds
    assert version_of(run, 200) == 3
    assert (run.path / "200.damaged-4").stat().st_size == 3


@pytest.mark.full
def test_a_list_of_checkpoints_does_not_import_jax():
    code = f"import sys, {checkpoints.__name__}; print([m for m in ('jax', 'ml_dtypes') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
