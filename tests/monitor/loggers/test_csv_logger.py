"""The table in a CSV file."""

import csv
import math
from pathlib import Path

from logging_process import expected


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def points(rows):
    return [(x["series"], int(x["step"]), x["name"], float(x["value"])) for x in rows]


def test_has_a_line_for_each_number_which_a_kill_does_not_lose_or_repeat(log, run_path):
    told = log("csv", 0, 25, members=2, kill=True)
    path = Path(told["place"])
    assert path == run_path / "loggers" / "csv" / "first.csv"
    assert told["rows"] == 20
    with open(path, "ab") as file:
        file.write(b"seed 3,member,3,,2000,17")  # half a line, of a kill while it was written
    log("csv", told["rows"], 40, members=2, state=told["state"])
    found = rows_of(path)
    wanted = expected(40, 2)
    assert [x[:3] for x in points(found)] == [x[:3] for x in wanted]
    for (*_, value), (*_, right) in zip(points(found), wanted, strict=True):
        assert value == right or (math.isnan(value) and math.isnan(right))
    assert list(found[0]) == ["series", "kind", "seed", "label", "step", "time", "name", "value"]
    assert {x["series"]: (x["kind"], x["seed"], x["label"]) for x in found} == {
        "seed 3": ("member", "3", ""),
        "slow, seed 3": ("member", "3", "slow"),
        "all": ("all", "", ""),
    }
    assert found[0]["time"] == "1700000000.0"
    assert "NaN" in {x["value"] for x in found}


def test_leaves_a_file_of_another_run_as_it_is(log, tmp_path):
    log("csv", 0, 10, arguments={"dir": "numbers"})
    before = (tmp_path / "numbers" / "first.csv").read_bytes()
    told = log("csv", 0, 20, arguments={"dir": "numbers"})
    assert Path(told["place"]).name == "first-2.csv"
    assert (tmp_path / "numbers" / "first.csv").read_bytes() == before


def test_names_a_directory_that_cannot_be_written(log, tmp_path):
    (tmp_path / "numbers").write_text("")
    told = log("csv", 0, 10, arguments={"dir": "numbers"})
    assert "csv.dir='numbers' cannot be used, since " in told["error"]
