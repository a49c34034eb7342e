"""Weights and Biases, offline: what its service has written is read back from its own files."""

import json
import os
import struct
import subprocess
import sys

import pytest
from logging_process import LONG, ODD_NAMES, START, expected_curves, odd_curves
from wandb_stand_in import history, stand_in

pytest.importorskip("wandb")

from shoal.monitor.loggers.wandb_logger import WandbLogger

NAMES = ("train/loss", "evaluation/return_mean")
KEY = {"WANDB_MODE": None, "WANDB_API_KEY": 40 * "a"}


def records(path):
    """Read the records of a file of W&B: a log of LevelDB, in blocks of 32 KiB, after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, part = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        rest = 32768 - position % 32768
        if rest < 7:
            position += rest
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        if position + 7 + size > len(data):
            return  # the process was killed while it was written
        part += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(part)
            part = b""


class Stored:
    """What all files of one run of W&B hold, the oldest first."""

    def __init__(self, path, number):
        self.history, self.artifacts, self.metrics = [], [], []
        self.config, self.summary, self.exit = {}, {}, None
        for file in sorted(path.glob(f"**/run-{number}.wandb")):
            for record in records(file):
                getattr(self, f"_{record.WhichOneof('record_type')}", lambda _: None)(record)

    def _run(self, record):
        self.run = record.run
        self.config |= {x.key: json.loads(x.value_json) for x in record.run.config.update}

    def _history(self, record):
        self.history.append({x.key or x.nested_key[0]: json.loads(x.value_json) for x in record.history.item})

    def _metric(self, record):
        self.metrics.append((record.metric.glob_name, record.metric.step_metric))

    def _artifact(self, record):
        self.artifacts.append(record.artifact)

    def _summary(self, record):
        self.summary |= {x.key or x.nested_key[0]: json.loads(x.value_json) for x in record.summary.update}

    def _exit(self, record):
        self.exit = record.exit.exit_code

    def curve(self, name):
        return [(row["global_step"], row[name]) for row in self.history if name in row]


def stored(path, told):
    return {name: Stored(path, number) for name, number in told["state"]["ids"].items()}


@pytest.mark.full
def test_has_a_run_for_each_series_in_a_group_with_its_settings(log, run_path, summary):
    arguments = {"project": "fish", "entity": "sea", "tags": "small, blue", "notes": "Trying."}
    told = log("wandb", 0, 20, members=2, arguments=arguments, summary=summary)
    assert told["place"].startswith(f"offline, in {run_path}/loggers/wandb/offline-run-*; `wandb sync ")
    runs = stored(run_path, told)
    assert set(runs) == {"seed 3", "slow, seed 3", "all"}
    found = {
        (series, name): run.curve(name)
        for series, run in runs.items()
        for name in ("train/loss", "evaluation/return_mean")
    }
    assert found == expected_curves(20, 2)
    slow, main = runs["slow, seed 3"], runs["all"]
    assert (slow.run.project, slow.run.entity, slow.run.run_group) == ("fish", "sea", "first")
    assert list(slow.run.tags) == ["small", "blue"]
    assert slow.run.notes == "Trying."
    assert [x.run.display_name for x in (slow, main)] == ["first, slow, seed 3", "first"]
    assert (slow.run.job_type, main.run.job_type) == ("member", "all")
    assert (slow.config["learning_rate"], main.config["learning_rate"]) == (1e-4, 1e-3)
    assert (main.config["env.gravity"], main.config["algorithm"], main.config["env_id"]) == (
        9.8,
        "ppo",
        "CartPole-v1",
    )
    assert main.config["hidden_sizes"] == [64, 64]
    assert (slow.config["seed"], slow.config["label"]) == (3, "slow")
    assert ("*", "global_step") in main.metrics
    assert main.history[0]["_timestamp"] == START
    assert main.summary["absolute/iqm"] == 2.5
    assert main.exit == slow.exit == 0


@pytest.mark.parametrize(
    "result", [None, {"steps_per_seed": 1, "failed": [{}]}], ids=["interrupted", "failed"]
)
@pytest.mark.full
def test_a_run_without_a_result_has_crashed(log, run_path, result):
    told = log("wandb", 0, 10, summary=result)
    assert stored(run_path, told)[""].exit == 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 1000])
def test_a_kill_loses_no_row_that_has_settled(log, run_path, rows):
    first = log("wandb", 0, rows, members=2, seconds=WandbLogger.settle_seconds, kill=True)
    second = log("wandb", rows, rows + 20, members=2, state=first["state"])
    assert second["state"]["ids"] == first["state"]["ids"]
    runs = stored(run_path, second)
    found = {(series, name): run.curve(name) for series, run in runs.items() for name in NAMES}
    assert found == expected_curves(rows + 20, 2)


@pytest.mark.slow
def test_wandb_sync_sends_what_was_logged_offline(log, run_path, tmp_path):
    first = log("wandb", 0, 20, seconds=WandbLogger.settle_seconds, kill=True)
    log("wandb", 20, 40, state=first["state"])
    folders = sorted(map(str, run_path.glob("loggers/wandb/offline-run-*")))
    assert len(folders) == 2
    with stand_in() as server:
        environment = os.environ | {"HOME": str(tmp_path), "WANDB_API_KEY": 40 * "a"}
        environment |= {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
        command = [sys.executable, "-m", "wandb", "sync", "--yes", *folders]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        rows = history(server, first["state"]["ids"][""])
    assert [row["global_step"] for row in rows] == [100 * row for row in range(40)]


@pytest.mark.full
@pytest.mark.parametrize("environment", [{"WANDB_SWEEP_ID": "s"}, {"WANDB_RUN_ID": "agents"}], ids=str)
def test_an_agent_has_one_run(log, environment, run_path):
    told = log("wandb", 0, 10, members=2, env=environment)
    assert list(told["state"]["ids"]) == ["all"]
    assert told["state"]["ids"]["all"] == "agents" or "WANDB_RUN_ID" not in environment
    curve = stored(run_path, told)["all"].curve("train/loss")
    assert curve == expected_curves(10, 2)["all", "train/loss"]


@pytest.mark.full
def test_logs_films_pictures_and_the_best_policy(log, run_path, pictures):
    told = log("wandb", 0, 10, files=pictures)
    run = stored(run_path, told)[""]
    media = {
        key: row for row in run.history for key in ("film", "learning_curve") if any(key in x for x in row)
    }
    assert media["film"]["global_step"] == 1000
    assert [(x.name, x.type) for x in run.artifacts] == [(f"policy-{told['state']['ids']['']}", "model")]
    assert list(run_path.glob("loggers/wandb/*/files/media/videos/film*.gif"))
    assert list(run_path.glob("loggers/wandb/*/files/media/images/learning_curve*.png"))


@pytest.mark.slow
def test_requires_a_key_before_anything_is_logged(log):
    told = log("wandb", only_check=True, env={"WANDB_MODE": None})
    assert told["error"].startswith("W&B has no API key for https://")
    assert "`wandb login`" in told["error"]
    assert "WANDB_MODE=offline" in told["error"]
    assert log("wandb", only_check=True, env=KEY) == {}
    assert log("wandb", only_check=True, env={"WANDB_MODE": None}, arguments={"mode": "offline"}) == {}
    told = log("wandb", only_check=True, arguments={"mode": "ofline"})
    assert told["error"].endswith("did you mean 'offline'?")


@pytest.mark.full
def test_finds_a_key_in_netrc(log, tmp_path):
    from wandb import Settings

    host = Settings().base_url.removeprefix("https://")
    (tmp_path / ".netrc").write_text(f"machine {host} login user password {40 * 'a'}\n")
    assert log("wandb", only_check=True, env={"WANDB_MODE": None}) == {}


@pytest.mark.slow
def test_logs_offline_where_the_server_cannot_be_reached(log, run_path):
    environment = KEY | {"WANDB_INIT_TIMEOUT": "3", "WANDB_BASE_URL": "http://127.0.0.1:9"}
    told = log("wandb", 0, 10, members=2, env=environment)
    assert told["place"].startswith("offline (")
    assert f"in {run_path}/loggers/wandb/offline-run-*; `wandb sync " in told["place"]
    assert stored(run_path, told)["all"].curve("train/loss") == expected_curves(10, 2)["all", "train/loss"]


@pytest.mark.slow
def test_sends_rows_to_a_server_and_stops_where_it_asks_to(log):
    with stand_in() as server:
        environment = KEY | {"WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}"}
        told = log("wandb", 0, 30, members=2, seconds=18, env=environment)  # it asks every 15 s
        numbers = told["state"]["ids"]
        assert told["place"] == f"{environment['WANDB_BASE_URL']}/me/shoal/runs/{numbers['all']}"
        assert told["stop"] == "stopped in W&B"
        rows = {series: history(server, number) for series, number in numbers.items()}
    for (series, name), points in expected_curves(30, 2).items():
        found = [(row["global_step"], row[name]) for row in rows[series] if name in row]
        assert found == [(step, pytest.approx(value)) for step, value in points]
    assert {x["groupName"] for x in server.upserts if x.get("groupName")} == {"first"}


def test_what_wandb_refuses_is_changed_and_stays_distinct(log, run_path):
    arguments = {"project": "a/b#?%:c", "tags": f"{LONG},b", "group": LONG, "name": LONG, "job_type": LONG}
    told = log("wandb", 0, 10, names=ODD_NAMES, arguments=arguments)
    run, named = stored(run_path, told)[""], told["state"]["names"]
    assert run.run.project == "a_b____c"
    assert list(run.run.tags) == [f"{31 * 'w'}..{31 * 'w'}", "b"]
    long = f"{63 * 'w'}..{63 * 'w'}"
    assert (run.run.run_group, run.run.display_name, run.run.job_type) == (long, long, run.run.tags[0])
    for name, points in odd_curves(10).items():
        assert run.curve(named.get(name, name)) == points
    assert named["train/success (%)"] == "train/success____"
    assert (
        len({x.casefold() for row in run.history for x in row if x.startswith("train/")})
        == len(ODD_NAMES) + 1
    )


@pytest.mark.slow
def test_an_agent_stays_in_its_project(log, run_path):
    told = log("wandb", 0, 1, env={"WANDB_PROJECT": "agents"})
    assert stored(run_path, told)[""].run.project == "agents"
