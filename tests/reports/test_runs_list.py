"""The list of runs: filters, orders, the table and JSON; and the command."""

import json

import pytest

from shoal.base.errors import ShoalError
from shoal.cli import runs
from shoal.reports.runs_list import entries, entry_of, in_order, table, to_json


@pytest.fixture
def listed(write_run, write_sweep, tmp_path):
    """A directory with runs of all states, a sweep, and one that is damaged."""
    write_run("best", [9.0] * 5, run={"name": "it", "tag": ["x", "y"], "note": "two\nlines"})
    write_run("killed", (1.0, 3.0), finished=False, run={"tag": ["x"]})
    write_run("nan", (1.0, 3.0), failed=[0, 1], config={"environment": {"name": "MiniGrid-Empty-8x8"}})
    (write_run("torn") / "config.json").write_text("{")
    write_sweep("grid")
    return tmp_path


def test_filters(listed):
    def names(**filters):
        return [entry.path.name for entry in entries(listed, **filters)]

    assert names() == ["best", "grid", "killed", "nan", "torn"]
    assert names(tags=["x"]) == ["best", "killed"] and names(tags=["x", "y"]) == ["best"]
    assert names(environment="MiniGrid-*") == ["nan"]
    assert names(state="failed") == ["nan"] and names(state="damaged") == ["torn"]
    with pytest.raises(ShoalError, match=r"no run in .* has tag x, environment Acrobot-v1\."):
        names(tags=["x"], environment="Acrobot-v1")
    with pytest.raises(ShoalError, match=r"has environment CartPole-v2; did you mean 'CartPole-v1'\?"):
        names(environment="CartPole-v2")


def test_what_has_no_score_is_last(listed):
    def names(order):
        return [entry.path.name for entry in in_order(entries(listed), order)]

    assert names("score") == ["best", "grid", "killed", "nan", "torn"]
    assert names("environment") == ["best", "grid", "killed", "nan", "torn"]
    assert names("date") == ["best", "nan", "grid", "killed", "torn"]
    assert names("steps")[-1] == "torn"
    sizes = [entry.bytes for entry in in_order(entries(listed), "size")]
    assert sizes == sorted(sizes, reverse=True)


def test_the_table(listed):
    head, *lines = table(in_order(entries(listed), "score")).splitlines()
    columns = "run kind environment algorithm state members steps score date size"
    assert head.split() == columns.split()
    best, grid, killed, nan, torn = lines
    assert "finished" in best and "9.0 [8.0, 10.0]" in best and "2026-01-31 09:30" in best
    assert best.endswith("it; #x #y; learning_rate=0.001; two lines")
    assert "sweep" in grid and " 8.000 (1 failed)  " in grid and grid.endswith("mine; #s; best: 1 b")
    assert "interrupted" in killed and " 2.000  " in killed
    assert "failed" in nan and "damaged" in torn and "is not JSON" in torn
    assert "kind" not in table(entries(listed / "best"))


def test_many_settings_do_not_fill_the_line(write_run):
    settings = {f"setting_{k}": [64, 64] for k in range(20)}
    path = write_run("run", summary={"settings": settings})
    assert "setting_0=64x64" in table(entries(path)) and len(table(entries(path)).splitlines()[1]) < 300


def test_json_has_null_for_no_score(listed):
    values = {entry.path.name: to_json(entry) for entry in entries(listed)}
    assert values["best"]["score"] == 9.0 and values["best"]["interval"] == (8.0, 10.0)
    assert "problem" not in values["best"] and "is damaged" in values["torn"]["problem"]
    assert values["grid"]["kind"] == "sweep" and values["grid"]["best"] == "1 b"


def test_a_summary_of_another_type_is_damage(write_run):
    path = write_run("odd", summary={"absolute": 3})
    assert entry_of(path).state == "damaged" and "damaged" in entry_of(path).problem


def strict(text):
    return json.loads(text, parse_constant=pytest.fail)


def test_the_command(listed, capsys, monkeypatch):
    assert runs.main([str(listed), "--json", "--sort", "score"]) == 0
    values = strict(capsys.readouterr().out)
    assert [x["score"] for x in values] == [9.0, 8.0, 2.0, None, None]
    monkeypatch.chdir(listed)
    with pytest.raises(ShoalError, match="there is no directory 'runs'"):
        runs.main([])
    assert runs.main(["best", "--tag", "x", "y"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    with pytest.raises(ShoalError, match="lists one directory"):
        runs.main(["best", "nan"])
    (listed / "empty").mkdir()
    with pytest.raises(ShoalError, match="'empty' holds no run, sweep or study"):
        runs.main(["empty", "--json"])
