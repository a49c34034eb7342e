"""Run directories: names, atomic files, policies that round-trip, and damage told in one sentence."""

import asyncio
import json
import math
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shoal.errors import ShoalError
from shoal.runtime import directory as module
from shoal.runtime.directory import RunDirectory, parameters_sha256

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
    directory = RunDirectory.create(tmp_path / "run", "CartPole-v1", "ppo")
    directory.save_config({"environment": "CartPole-v1"})
    return directory


def assert_same(loaded, saved):
    assert list(loaded) == sorted(saved)
    for name, array in loaded.items():
        expected = np.asarray(saved[name])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), name
        assert array.tobytes() == expected.tobytes(), name


def test_new_directories_have_readable_unique_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [RunDirectory.create(None, "my_package:My Env/v1", "ppo").path for _ in range(3)]
    assert len(set(paths)) == 3
    for path in paths:
        assert path.is_dir()
        assert re.fullmatch(r"runs/my_package-My-Env-v1-ppo-\d{8}-\d{6}(-\d)?", path.as_posix())


def test_a_directory_of_another_run_is_refused(run):
    with pytest.raises(ShoalError, match=r"run' already holds another run; name a new one\.$"):
        RunDirectory.create(run.path, "CartPole-v1", "ppo")


def test_a_directory_that_cannot_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ShoalError, match=r"^run directory '.*file.*' cannot be written to: .*\.$"):
            RunDirectory.create(path, "CartPole-v1", "ppo")
    if Path("/proc").is_dir():  # a file system that refuses even the superuser
        with pytest.raises(ShoalError, match="cannot be written to"):
            RunDirectory.create("/proc/shoal", "CartPole-v1", "ppo")


def test_creating_leaves_nothing_behind(tmp_path):
    assert list(RunDirectory.create(tmp_path / "a" / "b", "x", "y").path.iterdir()) == []


def test_opening_what_is_no_run(run, tmp_path):
    assert RunDirectory.open(str(run.path)) == run
    with pytest.raises(ShoalError, match=r"'.*rum'; did you mean '.*run'\?$"):
        RunDirectory.open(tmp_path / "rum")
    with pytest.raises(ShoalError, match=r"is not a run directory: it has no config\.json\.$"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ShoalError, match=r"there is no run directory '/nowhere/at/all'\.$"):
        RunDirectory.open("/nowhere/at/all")


def test_configs_round_trip(run):
    config = {"gamma": 0.99, "kl": math.inf, "sizes": (64, 64), "path": Path("a/b"), "none": None, "on": True}
    run.save_config(config | {"rate": np.float32(0.1), "gravity": jnp.array([1.0, 2.0])})
    loaded = run.load_config()
    assert loaded["rate"] == float(np.float32(0.1)) and loaded["gravity"] == [1.0, 2.0]
    assert (loaded["gamma"], float(loaded["kl"]), loaded["sizes"]) == (0.99, math.inf, [64, 64])
    assert (loaded["path"], loaded["none"], loaded["on"]) == ("a/b", None, True)
    with pytest.raises(TypeError, match="function"):
        run.save_config({"f": test_configs_round_trip})
    assert run.load_config() == loaded  # what failed has changed nothing
    assert [path.name for path in run.path.iterdir()] == ["config.json"]


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
    run.append_metrics([{"steps": 0, "seed": 0, "loss": np.float32("nan")}, {"steps": 0, "loss": -math.inf}])
    run.append_metrics([{"steps": jnp.int32(128), "loss": jnp.float32(0.5)}])

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
        run.append_metrics(whole)
        with open(run.path / "metrics.jsonl", "a") as file:
            file.write(torn)
        assert run.load_metrics() == whole
    run.append_metrics([{"steps": 2}])
    assert run.load_metrics() == [{"steps": 1}, {"steps": 2}]


def test_damage_before_the_last_line_is_named(run):
    (run.path / "metrics.jsonl").write_text('{"a": 1}\n{"a"\n{"a": 3}\n')
    with pytest.raises(ShoalError, match="line 2 is not JSON"):
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


NAMES = st.text("ab/._0é", max_size=8)
VALUES = hnp.arrays(
    st.sampled_from([np.float32, np.int32, np.uint8, np.bool_, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_any_names_round_trip(run, arrays):
    run.save_policy("best", arrays, {})
    assert_same(run.load_policy("best")[0], arrays)


def test_saving_again_keeps_one_version(run):
    for value in range(3):
        run.save_policy("best", {"w": np.full(2, value)}, {"value": value})
    assert sorted(path.name for path in (run.path / "best").iterdir()) == ["arrays-3", "policy.json"]
    np.testing.assert_array_equal(run.load_policy("best")[0]["w"], [2, 2])


def test_policies_can_be_saved_where_an_event_loop_runs(run):
    async def notebook():
        run.save_policy("best", ARRAYS, {})
        return run.load_policy("best")[0]

    assert_same(asyncio.run(notebook()), ARRAYS)


@pytest.mark.parametrize("moment", ["_write_arrays", "write_json", "shutil.rmtree"])
def test_a_kill_while_saving_leaves_the_old_policy_or_the_new(run, moment):
    """Kills a process at its first, second ... call within a save, and reads what it left."""
    run.save_policy("best", {"w": np.zeros(2)}, {"version": 0})
    code = f"""
        import os, numpy as np
        from shoal.runtime import directory
        def die(*args, **kwargs): os._exit(9)
        whole = directory._write_arrays
        def torn(path, leaves):
            whole(path, leaves)
            for file in path.rglob("*"):
                if file.is_file(): os.truncate(file, 1)
            os._exit(9)
        directory.{moment} = torn if {moment!r} == "_write_arrays" else die
        run = directory.RunDirectory.open({str(run.path)!r})
        run.save_policy("best", {{"w": np.ones(2)}}, {{"version": 1}})
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 9
    leaves, metadata = run.load_policy("best")
    assert metadata["version"] == (1 if moment == "shutil.rmtree" else 0)
    np.testing.assert_array_equal(leaves["w"], np.full(2, metadata["version"]))
    run.save_policy("best", {"w": np.full(2, 2.0)}, {"version": 2})
    np.testing.assert_array_equal(run.load_policy("best")[0]["w"], [2, 2])
    assert len(list((run.path / "best").iterdir())) == 2


def test_a_missing_policy_is_named(run):
    with pytest.raises(ShoalError, match=r"holds no policy 'best'\.$"):
        run.load_policy("best")


def damage_manifest(best):
    (best / "policy.json").write_text((best / "policy.json").read_text()[:-20])


def drop_arrays(best):
    next(best.glob("arrays-*")).rename(best.parent / "elsewhere")


def truncate_arrays(best):
    for file in best.glob("arrays-*/**/*"):
        if file.is_file():
            os.truncate(file, file.stat().st_size // 2)


def change_bits(best):
    manifest = json.loads((best / "policy.json").read_text())
    manifest["sha256"] = parameters_sha256({"w": np.ones(3)})
    (best / "policy.json").write_text(json.dumps(manifest))


def change_shape(best):
    manifest = json.loads((best / "policy.json").read_text())
    manifest["leaves"]["w"]["shape"] = [4]
    (best / "policy.json").write_text(json.dumps(manifest))


def ask_for_objects(best):
    manifest = json.loads((best / "policy.json").read_text())
    manifest["leaves"]["w"]["dtype"] = "object"
    (best / "policy.json").write_text(json.dumps(manifest))


def forget_leaves(best):
    (best / "policy.json").write_text("{}")


@pytest.mark.parametrize(
    "damage",
    [
        damage_manifest,
        drop_arrays,
        truncate_arrays,
        change_bits,
        change_shape,
        ask_for_objects,
        forget_leaves,
    ],
)
def test_damaged_policies_are_named(run, damage):
    run.save_policy("best", {"w": np.arange(300.0)}, {})
    damage(run.path / "best")
    with pytest.raises(ShoalError, match=r"best.* is damaged: .*\.$"):
        run.load_policy("best")


def test_nothing_outside_the_directory_is_read(run, tmp_path):
    run.save_policy("best", {"w": np.ones(2)}, {})
    (run.path / "best" / "arrays-1").rename(tmp_path / "arrays-1")
    manifest = json.loads((run.path / "best" / "policy.json").read_text())
    manifest["arrays"] = str(tmp_path / "arrays-1")
    (run.path / "best" / "policy.json").write_text(json.dumps(manifest))
    with pytest.raises(ShoalError, match="damaged"):
        run.load_policy("best")


def test_a_full_disk_is_one_sentence(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ShoalError, match=r"config\.json cannot be written: No space left on device\.$"):
        run.save_config({"environment": "new"})
    assert run.load_config() == {"environment": "CartPole-v1"}
    assert [path.name for path in run.path.iterdir()] == ["config.json"]


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


def test_reading_a_directory_imports_neither_jax_nor_orbax():
    code = f"import sys, {module.__name__}; print([m for m in ('jax', 'orbax') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
