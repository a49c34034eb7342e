"""Run directories: names, atomic files, policies that round-trip, and damage told in one sentence."""

import contextlib
import errno
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from forged import forge, record_of
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.base.errors import ShoalError
from shoal.base.files import link_new
from shoal.records import directory as module
from shoal.records import metrics_file
from shoal.records.directory import RunDirectory, parameters_sha256
from shoal.records.lock import Lock

ARRAYS = {
    "actor/mlp/layers/0/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
    "actor/mlp/layers/0/bias": np.array([np.nan, np.inf, -0.0], np.float32),
    "": np.asarray(3, np.int32),
    "..": np.array([True, False]),
    "/root": np.asarray(jnp.ones(2, jnp.bfloat16)),
    "normaliser/größe.x": np.array([1, 2**32 - 1], np.uint32),
    "empty": np.zeros((0, 4), np.float32),
}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", "CartPole-v1", "ppo", {"environment": "CartPole-v1"})


def assert_same(loaded, saved):
    assert list(loaded) == sorted(saved)
    for name, array in loaded.items():
        expected = np.asarray(saved[name])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
        assert array.tobytes() == expected.tobytes(), name


def test_new_directories_have_readable_unique_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [RunDirectory.create(None, "my_package:My Env/v1", "ppo", {}).path for _ in range(3)]
    assert len(set(paths)) == 3
    for path in paths:
        assert path.is_dir()
        assert re.fullmatch(r"runs/my_package-My-Env-v1-ppo-\d{8}-\d{6}(-\d)?", path.as_posix())


def test_a_directory_of_another_run_is_refused(run):
    with pytest.raises(ShoalError, match=r"run' already holds another run; name a new one\.$"):
        RunDirectory.create(run.path, "CartPole-v1", "ppo", {})


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ShoalError, match=r"^run directory '.*file.*' cannot be written to: .*\.$"):
            RunDirectory.create(path, "CartPole-v1", "ppo", {})
    if Path("/proc").is_dir():  # a file system that refuses even the superuser
        with pytest.raises(ShoalError, match="cannot be written to"):
            RunDirectory.create("/proc/shoal", "CartPole-v1", "ppo", {})


def test_a_new_directory_holds_its_config_and_nothing_else(tmp_path):
    created = RunDirectory.create(tmp_path / "a" / "b", "x", "y", {"z": 1})
    assert [path.name for path in created.path.iterdir()] == ["config.json"]
    assert created.load_config() == {"z": 1}


def test_opening_what_is_no_run(run, tmp_path):
    assert RunDirectory.open(str(run.path)) == run
    with pytest.raises(ShoalError, match=r"'.*rum'; did you mean '.*run'\?$"):
        RunDirectory.open(tmp_path / "rum")
    (run.path / "checkpoints").mkdir(exist_ok=True)
    for name in ("best.safetensors", "checkpoints/384.safetensors"):
        (run.path / name).touch()
        with pytest.raises(
            ShoalError, match=rf"{name}' is a file of a run; give the run's directory, '{run.path}'\.$"
        ):
            RunDirectory.open(run.path / name)
    with pytest.raises(ShoalError, match=r"is not a run directory: it has no config\.json\.$"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ShoalError, match=r"there is no run directory '/nowhere/at/all'\.$"):
        RunDirectory.open("/nowhere/at/all")


def test_configs_round_trip(tmp_path):
    config = {"gamma": 0.99, "kl": math.inf, "sizes": (64, 64), "path": Path("a/b"), "none": None, "on": True}
    config |= {"rate": np.float32(0.1), "gravity": jnp.array([1.0, 2.0])}
    loaded = RunDirectory.create(tmp_path / "run", "x", "y", config).load_config()
    assert loaded["rate"] == float(np.float32(0.1)) and loaded["gravity"] == [1.0, 2.0]
    assert (loaded["gamma"], float(loaded["kl"]), loaded["sizes"]) == (0.99, math.inf, [64, 64])
    assert (loaded["path"], loaded["none"], loaded["on"]) == ("a/b", None, True)
    with pytest.raises(ShoalError, match=r"is a function, which JSON cannot hold\.$"):
        RunDirectory.create(tmp_path / "other", "x", "y", {"f": test_configs_round_trip})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_summaries_have_null_for_what_is_not_finite(run):
    run.save_summary({"returns": [1.0, math.nan], "iqm": np.float64("inf")})
    assert run.load_summary() == {"returns": [1.0, None], "iqm": None}


@pytest.mark.parametrize("text", ["", "{", '{"a": 1', "[]", "null", "\x00\x00"])
def test_damaged_files_are_named(run, text):
    (run.path / "summary.json").write_text(text)
    with pytest.raises(ShoalError, match=r"summary\.json is damaged: .*\.$"):
        run.load_summary()


def test_missing_files_are_named(run):
    with pytest.raises(ShoalError, match=r"summary\.json cannot be read: No such file or directory\.$"):
        run.load_summary()
    with pytest.raises(ShoalError, match=r"metrics\.jsonl cannot be read"):
        run.load_metrics()


def test_metrics_are_strict_json_lines(run):
    run.metrics_file().append(
        [{"steps": 0, "seed": 0, "loss": np.float32("nan")}, {"steps": 0, "loss": -math.inf}]
    )
    run.metrics_file().append([{"steps": jnp.int32(128), "loss": jnp.float32(0.5)}])

    def refuse(constant):
        raise AssertionError(f"{constant} is not strict JSON")

    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines] == run.load_metrics()
    assert run.load_metrics() == [
        {"steps": 0, "seed": 0, "loss": None},
        {"steps": 0, "loss": None},
        {"steps": 128, "loss": 0.5},
    ]


@pytest.mark.parametrize("torn", ['{"steps": 12', "{"])
def test_a_torn_last_line_is_dropped(run, torn):
    for whole in ([], [{"steps": 1}]):
        run.metrics_file().append(whole)
        with open(run.path / "metrics.jsonl", "a") as file:
            file.write(torn)
        assert run.load_metrics() == whole
    run.metrics_file().append([{"steps": 2}])
    assert run.load_metrics() == [{"steps": 1}, {"steps": 2}]


def test_damage_before_the_last_line_is_named(run):
    (run.path / "metrics.jsonl").write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(ShoalError, match=r"line 2 of .*metrics\.jsonl is damaged: it is not JSON"):
        run.load_metrics()


def test_policies_round_trip(run):
    run.save_policy("best", ARRAYS, {"steps": 128, "score": np.float32(1.5)})
    leaves, metadata = run.load_policy("best")
    assert_same(leaves, ARRAYS)
    assert metadata == {"steps": 128, "score": 1.5}
    run.save_policy("last", {"w": jnp.arange(3.0)}, {})
    run.save_policy("last", {}, {"nothing": True})
    assert run.load_policy("last") == ({}, {"nothing": True})
    assert_same(run.load_policy("best")[0], ARRAYS)


NAMES = st.text("ab/._0é%", max_size=8)
VALUES = hnp.arrays(
    st.sampled_from([np.float32, np.int32, np.uint8, np.bool_, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=4))
@example({"": np.ones(1, np.float32), "/": np.zeros(1, np.float32), "%": np.full(1, 2), "%/%": np.full(1, 3)})
@example(
    {
        "a": np.ones(1),
        "a/": np.zeros(1),
        "/a": np.full(1, 2.0),
        "a//b": np.full(1, 3.0),
        "a/b": np.full(1, 4.0),
    }
)
def test_any_names_round_trip(run, arrays):
    run.save_policy("best", arrays, {})
    assert_same(run.load_policy("best")[0], arrays)


def test_saving_again_keeps_one_file(run):
    for value in range(3):
        run.save_policy("best", {"w": np.full(2, value)}, {"value": value})
    assert sorted(path.name for path in run.path.iterdir()) == ["best.safetensors", "config.json"]
    np.testing.assert_array_equal(run.load_policy("best")[0]["w"], [2, 2])


@pytest.mark.parametrize("moment", ["fsync", "replace"])
@pytest.mark.quick("replace")
def test_a_kill_while_saving_leaves_the_old_policy(run, moment):
    """Kills a process within a save, and reads what it left."""
    run.save_policy("best", {"w": np.zeros(2)}, {"version": 0})
    code = f"""
        import os, numpy as np
        from shoal.records import directory
        os.{moment} = lambda *_: os._exit(9)
        run = directory.RunDirectory.open({str(run.path)!r})
        run.save_policy("best", {{"w": np.ones(2)}}, {{"version": 1}})
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 9
    leaves, metadata = run.load_policy("best")
    assert metadata["version"] == 0
    np.testing.assert_array_equal(leaves["w"], np.zeros(2))
    run.save_policy("best", {"w": np.full(2, 2.0)}, {"version": 2})
    np.testing.assert_array_equal(run.load_policy("best")[0]["w"], [2, 2])


def test_a_missing_policy_is_named(run):
    with pytest.raises(ShoalError, match=r"holds no policy 'best'\.$"):
        run.load_policy("best")


def truncate(best):
    os.truncate(best, best.stat().st_size // 2)


def flip(best):
    data = bytearray(best.read_bytes())
    data[-3] ^= 1
    best.write_bytes(data)


def drop_metadata(best):
    forge(best, lambda record: record.pop("metadata") and record)


@pytest.mark.parametrize(
    ("damage", "clause"),
    [
        (truncate, "is damaged: it is truncated to"),
        (flip, "is damaged: it was altered"),
        (drop_metadata, "is damaged: it lacks 'metadata'"),
        (lambda best: [best.unlink(), best.mkdir()], "cannot be used: it is a folder"),
    ],
)
def test_damaged_policies_are_named(run, damage, clause):
    run.save_policy("best", {"w": np.arange(300.0)}, {})
    damage(run.path / "best.safetensors")
    with pytest.raises(ShoalError, match=rf"best\.safetensors {clause}.*\.$"):
        run.load_policy("best")


# ---- where there can be no run


def long(tmp_path):
    return tmp_path / ("x" * 300)


def dangling(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    return tmp_path / "link"


def below_dangling(tmp_path):
    return dangling(tmp_path) / "run"


def a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def of_nobody(_):
    return "~nobody-of-that-name/run"


def not_a_path(_):
    return 3


def not_empty(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("")
    return tmp_path / "notes"


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        (long, r"^run directory '.*' cannot be written to: File name too long\.$"),
        (dangling, r"^run directory '.*' cannot be written to: '.*link' is a symbolic link to nothing\.$"),
        (
            below_dangling,
            r"^run directory '.*' cannot be written to: '.*link' is a symbolic link to nothing\.$",
        ),
        (a_file, r"^run directory '.*file' cannot be written to: Not a directory\.$"),
        (of_nobody, r"^run directory '~nobody-of-that-name/run' cannot be found: .*\.$"),
        (not_a_path, r"^run directory 3 is a int, not a path; give it as text\.$"),
        (not_empty, r"^run directory '.*notes' is not empty and holds no run; name a new one\.$"),
    ],
)
def test_a_place_where_no_run_can_be_is_one_sentence(tmp_path, place, sentence):
    path = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for refuse in (RunDirectory.check, lambda path: RunDirectory.create(path, "x", "y", {})):
        with pytest.raises(ShoalError, match=sentence):
            refuse(path)
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", [long, dangling, a_file, of_nobody, not_a_path])
def test_what_cannot_be_opened_is_one_sentence(tmp_path, place):
    with pytest.raises(ShoalError, match=r"^[^\n]*\.$"):
        RunDirectory.open(place(tmp_path))


def test_a_process_killed_before_it_had_made_its_run_is_in_nobodys_way(tmp_path):
    """Its temporary files do not keep the same command from beginning anew, and are removed by it."""
    path = tmp_path / "run"
    program = textwrap.dedent("""
        import os, sys
        from shoal.base import files
        from shoal.records import new_directory
        from shoal.records.directory import RunDirectory
        die = lambda *arguments, **keywords: os.kill(os.getpid(), 9)
        if sys.argv[2] == "probe":
            new_directory.Path.unlink = die
        else:
            files.link_new = die
        RunDirectory.create(sys.argv[1], "x", "y", {})
    """)
    path.mkdir()
    for instant in ("probe", "config"):
        done = subprocess.run(
            [sys.executable, "-c", program, str(path), instant], capture_output=True, check=False
        )
        assert done.returncode == -9, done.stderr
        assert [x.name.split(".")[1] for x in path.iterdir()] == [instant], "killed at another instant"
        RunDirectory.check(path)
        (path / "notes").touch()
        with pytest.raises(ShoalError, match="is not empty and holds no run"):
            RunDirectory.check(path)
        (path / "notes").unlink()
        RunDirectory.create(path, "x", "y", {})
        assert [x.name for x in path.iterdir()] == ["config.json"]
        (path / "config.json").unlink()


def test_the_lock_that_a_removed_run_left_is_in_nobodys_way(tmp_path):
    """It stays, since another process may just have locked it."""
    with Lock(tmp_path):
        before = (tmp_path / ".lock").stat().st_ino
        RunDirectory.check(tmp_path)
        RunDirectory.create(tmp_path, "x", "y", {})
    assert (tmp_path / ".lock").stat().st_ino == before


def test_checking_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (None, tmp_path / "a" / "b", tmp_path):
        RunDirectory.check(path)
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(
        ShoalError, match=r"run' has too little space: .* take 10,0{3},.* bytes, and .* are free\.$"
    ):
        RunDirectory.check(tmp_path / "run", needed=10**19)
    assert list(tmp_path.iterdir()) == []


def test_discarding_removes_what_was_made_and_nothing_else(tmp_path):
    (tmp_path / "runs").mkdir()
    created = RunDirectory.create(tmp_path / "runs" / "a" / "b", "x", "y", {})
    created.metrics_file().append([{"step": 0}])
    created.save_policy("best", {"w": np.ones(2)}, {})
    with Lock(created.path):
        created.discard()
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]  # it was there before
    there = tmp_path / "there"
    there.mkdir()
    RunDirectory.create(there, "x", "y", {}).discard()
    assert list(there.iterdir()) == []
    noted = RunDirectory.create(tmp_path / "c" / "d", "x", "y", {})
    (noted.path / "notes.txt").write_text("mine")
    noted.discard()
    assert [path.name for path in noted.path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("link", [os.link, None])
def test_of_two_processes_one_creates_the_run(tmp_path, monkeypatch, link):
    """The other one wrote its config after this one had looked; also where there are no hard links."""

    def unsupported(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link or unsupported)
    path = tmp_path / "run"
    first = RunDirectory.create(path, "x", "y", {"first": True})
    monkeypatch.setattr(module.new_directory, "check_vacant", lambda *_: None)
    with pytest.raises(ShoalError, match=r"run' already holds another run; name a new one\.$"):
        RunDirectory.create(path, "x", "y", {"first": False})
    assert first.load_config() == {"first": True}
    assert [x.name for x in path.iterdir()] == ["config.json"]


def test_a_link_whose_answer_was_lost_is_made(tmp_path, monkeypatch):
    """A network's disk asks again, and is told that the name exists: by its own first question, or by another."""
    link = os.link

    def link_and_lose_the_answer(source, target):
        with contextlib.suppress(FileExistsError):
            link(source, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link_and_lose_the_answer)
    for name in ("first", "second"):
        (tmp_path / name).write_text(name)
    link_new(tmp_path / "first", tmp_path / "taken")
    with pytest.raises(FileExistsError):
        link_new(tmp_path / "second", tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "first"


@pytest.mark.parametrize("link", [os.link, None])
def test_a_link_of_nothing_leaves_no_empty_file(tmp_path, monkeypatch, link):
    def unsupported(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link or unsupported)
    with pytest.raises(FileNotFoundError):
        link_new(tmp_path / "absent", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


# ---- full disks


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_one_sentence(run, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        ShoalError, match=r"summary\.json cannot be written: No space left on device; it takes 15 bytes\.$"
    ):
        run.save_summary({"new": 1})
    with pytest.raises(ShoalError, match=r"config\.json cannot be written: No space left on device"):
        RunDirectory.create(tmp_path / "a" / "b", "x", "y", {})
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert [path.name for path in run.path.iterdir()] == ["config.json"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_policy_that_cannot_be_written_leaves_the_one_before(run, monkeypatch, moment):
    for before in ([], ["best.safetensors"]):
        if before:
            run.save_policy("best", {"w": np.zeros(2)}, {"version": 0})
        with monkeypatch.context() as patch:
            patch.setattr(os, moment, full)
            with pytest.raises(
                ShoalError, match=r"best\.safetensors cannot be written: No space left on device.*\.$"
            ):
                run.save_policy("best", {"w": np.ones(2)}, {"version": 1})
        assert sorted(path.name for path in run.path.iterdir()) == [*before, "config.json"]
    assert run.load_policy("best")[1] == {"version": 0}


FULL = """
    import resource, signal, sys
    import numpy as np
    from shoal.base.errors import ShoalError
    from shoal.records.directory import RunDirectory
    run = RunDirectory.open(sys.argv[1])
    rows = [{{"step": k}} for k in range(3)]
    run.metrics_file().append(rows)
    run.save_policy("best", {{"w": np.zeros(20)}}, {{}})
    {limit}
    noise = np.random.default_rng(0).random((20, 50_000))
    for attempt in (
        lambda: run.save_policy("best", {{f"w{{k}}": x for k, x in enumerate(noise)}}, {{}}),
        lambda: run.metrics_file().append([{{"numbers": noise[0]}}]),
        lambda: run.save_summary({{"numbers": noise[0]}}),
    ):
        try:
            attempt()
            print("written")
        except ShoalError as error:
            print(error)
    assert run.load_metrics() == rows
    assert (run.load_policy("best")[0]["w"] == np.zeros(20)).all()
    print(*sorted(x.name for x in run.path.iterdir()))
"""
LIMIT = """signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))"""


def assert_one_sentence_each(path, limit, reason):
    code = textwrap.dedent(FULL.format(limit=limit))
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    policy, metrics, summary, left = done.stdout.splitlines()
    assert re.search(
        rf"/best\.safetensors cannot be written: {reason}(; it takes 8,00\d,\d+ bytes)?\.$", policy
    )
    assert re.search(rf"metrics\.jsonl cannot be written: {reason}", metrics)
    assert re.search(rf"summary\.json cannot be written: {reason}", summary)
    assert left == "best.safetensors config.json metrics.jsonl"


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
def test_what_the_system_refuses_is_one_sentence_and_no_noise(run):
    assert_one_sentence_each(run.path, LIMIT, "File too large")


@pytest.mark.full
def test_a_file_system_that_is_full(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", str(small)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount a small file system")
    try:
        created = RunDirectory.create(small / "run", "x", "y", {})
        assert_one_sentence_each(created.path, "", "No space left on device")
        with pytest.raises(ShoalError, match="too little space"):
            RunDirectory.check(small / "other", needed=600_000)
    finally:
        subprocess.run(["umount", str(small)], check=True)


class AlmostFull(io.FileIO):
    """A file on a disk that takes twelve bytes at most from each write, and little more than thirty in all."""

    def write(self, data):
        if self.tell() >= 30:
            full()
        return super().write(data[:12])


def test_metrics_that_cannot_be_written_are_not_written_in_part(tmp_path):
    path = tmp_path / "metrics"
    with AlmostFull(path, "ab+") as file:
        metrics_file._append(file, b"1234567890\n1234567890\n")
        assert path.read_bytes() == b"1234567890\n1234567890\n"
        with pytest.raises(OSError, match="No space"):
            metrics_file._append(file, b"abcdefghij\nabcdefghij\n")
        assert path.read_bytes() == b"1234567890\n1234567890\n"


# ---- typed keys


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.quick("rbg")
def test_typed_keys_round_trip(run, implementation):
    key = jax.random.key(7, impl=implementation)
    saved = {"one": key, "several": jax.random.split(key, 6).reshape(2, 3), "w": np.ones(2)}
    run.save_policy("best", saved, {})
    loaded, _ = run.load_policy("best")
    for name in ("one", "several"):
        assert (loaded[name].dtype, loaded[name].shape) == (saved[name].dtype, saved[name].shape)
        np.testing.assert_array_equal(jax.random.key_data(loaded[name]), jax.random.key_data(saved[name]))
        draw = jax.random.bits(saved[name].ravel()[-1], (3,))
        np.testing.assert_array_equal(jax.random.bits(loaded[name].ravel()[-1], (3,)), draw)
    words = np.shape(jax.random.key_data(key))
    described = record_of(run.path / "best.safetensors")["leaves"]
    assert described["several"] == {"dtype": "uint32", "shape": [2, 3, *words], "key": implementation}
    assert described["w"] == {"dtype": "float64", "shape": [2]}


def test_checksums_tell_keys_from_words():
    keys = {"k": jax.random.key(0)}
    sums = [
        parameters_sha256(leaves)
        for leaves in (
            keys,
            {"k": jax.random.key_data(keys["k"])},
            {"k": jax.random.key(1)},
            {"k": jax.random.key(0)[None]},
            {"k": jax.random.wrap_key_data(jnp.zeros(4, jnp.uint32), impl="rbg")},
            {"k": jax.random.wrap_key_data(jnp.zeros(4, jnp.uint32), impl="unsafe_rbg")},
        )
    ]
    assert len(set(sums)) == len(sums)
    assert parameters_sha256({"k": jax.random.key(0)}) == sums[0]


def test_checksums_tell_every_difference():
    base = {"a": np.zeros(2, np.float32), "b": np.ones((2, 1), np.int32)}
    same = {"b": jnp.ones((2, 1), jnp.int32), "a": np.zeros(4, np.float32)[::2]}
    assert parameters_sha256(base) == parameters_sha256(same)
    different = [
        {"a": base["a"], "c": base["b"]},
        {"a": base["a"], "b": base["b"].T},
        {"a": base["a"], "b": base["b"].astype(np.uint32)},
        {"a": -base["a"], "b": base["b"]},
        {"a": base["a"]},
        {},
    ]
    sums = {parameters_sha256(leaves) for leaves in [base, *different]}
    assert len(sums) == len(different) + 1
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in sums)


def test_reading_a_directory_does_not_import_jax():
    code = f"import sys, {module.__name__}; print([m for m in ('jax', 'ml_dtypes') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
