"""Logs rows by a logger in a process of its own, as the follower of a run does, and kills itself if it is asked to.

It is given a request as JSON, and prints what happened as JSON, one line each.
"""

import json
import math
import os
import signal
import sys
import time
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.monitor.loggers import logger_names
from shoal.monitor.loggers.logger import LoggedRun, Series

SERIES = {
    1: (Series("", "member", 3),),
    2: (
        Series("seed 3", "member", 3),
        Series("slow, seed 3", "member", 3, "slow", {"learning_rate": 1e-4}),
        Series("all", "all"),
    ),
    # Names of one file, and names that a tool cuts to the same one.
    3: (
        *(Series(f"{label}, seed 3", "member", 3, label) for label in ("a/b", "a:b", "A_b", 300 * "s")),
        Series("all", "all"),
    ),
}
# Names of numbers that one tool or another refuses, or takes for one.
ODD = (
    *(
        "success (%)",
        "hit@1",
        "a,b",
        "a_b",
        "A_B",
        "a b",
        "a//b",
        "a/../b",
        "./c",
        "d/",
        "e:f",
        "l\u00e4nge",
        "\u221e",
    ),
    *(f"{300 * 'n'}{k}" for k in range(2)),
)
ODD_NAMES = [f"train/{name}" for name in ODD]
LONG = 300 * "w"
START = 1.7e9  # seconds since the epoch of the first row


def numbers(row, series):
    """Return the numbers of a row of a series; one of them is missing every third time."""
    missing = float("nan") if row % 3 == 2 else float(row)
    return {"train/loss": 0.1 * row + len(series.name), "evaluation/return_mean": missing}


def expected(rows, members=1):
    """Return the points that are logged: series, step, name and value."""
    return [
        (series.name, 100 * row, name, value)
        for row in range(rows)
        for series in SERIES[members]
        for name, value in numbers(row, series).items()
    ]


def expected_curves(rows, members=1):
    """Return steps and values by series and name, without those that are missing."""
    curves = {}
    for series, step, name, value in expected(rows, members):
        if not math.isnan(value):
            curves.setdefault((series, name), []).append((step, value))
    return curves


def odd_curves(rows):
    """Return the points of each of `ODD_NAMES`."""
    return {name: [(100 * row, row + k / 8) for row in range(rows)] for k, name in enumerate(ODD_NAMES)}


def run(request):
    config = {
        "environment": {"name": "CartPole-v1", "parameters": {"gravity": 9.8, "trial_episodes": None}},
        "algorithm": {
            "name": "ppo",
            "learning_rate": 0.001,
            "hidden_sizes": [64, 64],
            **request.get("algorithm", {}),
        },
        "run": {"seeds": request.get("members", 1), "seed": 3, "total_steps": 1000, "name": ""},
    }
    series = SERIES[request.get("members", 1)]
    names = {"env_id": "CartPole-v1"}
    return LoggedRun(Path(request["path"]), config, series, request.get("process"), names)


def main(request):
    logger = logger_names.make(request["logger"], request.get("arguments", {}))
    logger.check()
    if request.get("only_check"):
        return
    logged = run(request)
    print(json.dumps({"place": logger.open(logged, request.get("state"))}))
    for kind, path, step in request.get("files", ()):
        logger.add_file(kind, Path(path), step)
    for row in range(*request["rows"]):
        for series in logged.series:
            further = {name: row + k / 8 for k, name in enumerate(request.get("names", ()))}
            logger.add_scalars(series, 100 * row, numbers(row, series) | further, START + row)
        if (row + 1) % request.get("flush_every", 10) == 0:
            print(json.dumps({"state": logger.flush(), "rows": row + 1}), flush=True)
    time.sleep(request.get("seconds", 0))
    print(json.dumps({"jax": "jax" in sys.modules, "stop": logger.stop}), flush=True)
    if request.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    print(json.dumps({"state": logger.flush(), "note": logger.note}), flush=True)
    logger.close(request.get("summary"))


if __name__ == "__main__":
    try:
        main(json.loads(sys.argv[1]))
    except ShoalError as error:
        print(json.dumps({"error": str(error)}))
