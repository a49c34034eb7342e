"""`--json`: standard output alone is strict JSON, in which numbers that are not finite are null."""

import importlib.util
import json
import math

import pytest

from shoal.base.installation import install_command
from shoal.cli import checkpoints


@pytest.fixture
def path(trained):
    """A small run that was trained."""
    return trained[1]


@pytest.fixture
def printed(command, capsys):
    """A function that runs a command with --json and reads what it prints."""

    def run(*words, status=0):
        assert command(*words, "--json") == status
        return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)

    return run


@pytest.mark.full
def test_eval(path, printed):
    result = printed("eval", path, "--episodes", 4)
    assert list(result["metrics"]) == ["0", "1"] and result["episodes"] == 4


@pytest.mark.full
def test_rollout_without_an_episode(printed):
    result = printed("rollout", "CartPole-v1", "--envs", 2, "--steps", 2)
    assert result["episodes"] == 0 and result["return_mean"] is None and result["path"] is None
    assert "data" not in result


@pytest.mark.full
def test_checkpoints(path, printed, monkeypatch):
    result = printed("checkpoints", path)
    assert result and all(row["problem"] == "" for row in result)
    row = dict(result[0], score=-math.inf)
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda _: [row])
    assert printed("checkpoints", path)[0]["score"] is None


def test_the_list_of_environments(printed, command, capsys):
    listed = {x["name"]: x for x in printed("envs")}
    assert listed["CartPole-v1"]["has_preset"] and listed["CartPole-v1"]["about"].startswith("A pole")
    assert "package" not in listed["CartPole-v1"]
    cheetah = listed["playground/CheetahRun"]
    assert cheetah["package"] == "mujoco_playground" and cheetah["about"] == "MuJoCo Playground"
    assert cheetah["installed"] == (importlib.util.find_spec("mujoco_playground") is not None)
    assert cheetah["install"] == install_command("playground")
    assert command("envs") == 0
    assert len(capsys.readouterr().out.splitlines()) == len(listed)


@pytest.mark.parametrize("name", ["CartPole-v1", "XLand-MiniGrid-R1-9x9", "particles/Roller-v0"])
def test_an_environment(printed, name):
    described = printed("envs", name, "max_episode_steps=7")
    assert described["name"] == name and described["observation"] and described["action"]
    limit = described["parameters"]["max_episode_steps"]
    assert limit == {"value": 7, "required": False, "bounds": "at least 1"}


@pytest.mark.full
def test_runs(path, printed):
    (run,) = printed("runs", path)
    assert (run["path"], run["state"], run["members"]) == (str(path), "finished", 2)
    assert run["settings"]["learning_rate"] == 2e-3 and run["settings"]["gravity"] == 9.9
