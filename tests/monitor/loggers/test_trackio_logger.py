"""Trackio's runs on this machine, as its own storage reads them."""

import json
import subprocess
import sys

import pytest
from logging_process import ODD_NAMES, expected_curves, odd_curves

pytest.importorskip("trackio")

READ = """
import json
from trackio import SQLiteStorage as storage
print(json.dumps([
    [run["name"], storage.get_run_config("shoal", run["name"], run_id=run["id"]),
     storage.get_logs("shoal", run["name"], run_id=run["id"])]
    for run in storage.get_run_records("shoal")
]))
"""


@pytest.fixture
def runs(tmp_path):
    """Return a function that returns the runs: name, settings and rows."""

    def read():
        environment = {"TRACKIO_DIR": str(tmp_path / "trackio"), "HOME": str(tmp_path)}
        found = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, check=True)
        return json.loads(found.stdout.splitlines()[-1])

    return read


def test_has_each_row_once_after_a_kill(log, runs, summary):
    told = log("trackio", 0, 20, members=2, kill=True, seconds=3)
    assert told["place"] == "`trackio show --project shoal` shows it"
    log("trackio", 20, 40, members=2, state=told["state"], summary=summary)
    found = runs()
    names = {"first, seed 3": "seed 3", "first, slow, seed 3": "slow, seed 3", "first": "all"}
    assert sorted(name for name, *_ in found) == sorted(names)
    curves = {}
    for name, config, rows in found:
        for row in rows:
            for key in ("train/loss", "evaluation/return_mean"):
                if key in row:
                    curves.setdefault((names[name], key), []).append((row["step"], row[key]))
        assert config["env.gravity"] == 9.8
        assert config["_Group"] == "first"
        assert config["learning_rate"] == (1e-4 if "slow" in name else 1e-3)
    assert curves == expected_curves(40, 2)


def test_another_run_of_the_same_name_is_another(log, runs):
    log("trackio", 0, 10)
    log("trackio", 0, 10)
    assert [(name, len(rows)) for name, _, rows in runs()] == [("first", 10), ("first", 10)]


def test_logs_films_pictures_and_the_policy(log, runs, pictures):
    log("trackio", 0, 10, files=pictures)
    ((_, _, rows),) = runs()
    media = {key: row[key]["_type"] for row in rows for key in ("film", "learning_curve") if key in row}
    assert media == {"film": "trackio.video", "learning_curve": "trackio.image"}


def test_a_resumed_run_continues_itself_where_another_has_its_name(log, runs):
    odd = {"names": ODD_NAMES, "algorithm": {"_private": 1}}
    first = log("trackio", 0, 10, kill=True, seconds=3, **odd)
    log("trackio", 0, 5)
    log("trackio", 10, 20, **odd, state=first["state"])
    ((_, config, rows), (_, _, others)) = sorted(runs(), key=lambda x: -len(x[2]))
    assert (len(rows), len(others), config["private"]) == (20, 5, 1)
    found = {name: [(row["step"], row[name]) for row in rows] for name in ODD_NAMES}
    assert found == odd_curves(20)


def test_a_project_that_trackio_refuses_is_refused_before_a_run(log):
    told = log("trackio", only_check=True, arguments={"project": "model_artifacts"})
    assert told["error"].startswith("trackio.project: Project name 'model_artifacts' is not allowed")
