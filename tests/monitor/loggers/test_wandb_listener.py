"""The listener that logs to a user's own run of W&B, in a real run."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("wandb")

PROGRAM = """
import json, shoal, wandb
from shoal.monitor.loggers.wandb_listener import WandbListener
run = wandb.init(project="mine", config={"mine": 1}, settings=wandb.Settings(console="off"))
logged = []
log = run.log
run.log = lambda row, *rest, **more: (logged.append(dict(row)), log(row, *rest, **more))
trained = shoal.train("CartPole-v1", seeds=2, total_steps=4096, num_envs=8, num_steps=32, num_evals=2, eval_episodes=4,
    absolute_episodes=4, run_dir="mine", progress=False, listeners=[WandbListener()])
print(json.dumps({"logged": logged, "config": dict(run.config), "summary": dict(run.summary),
    "is_open": wandb.run is run}))
run.finish()
"""


@pytest.mark.slow
def test_logs_training_evaluations_and_the_result(tmp_path):
    from test_wandb_logger import Stored

    environment = os.environ | {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (tmp_path / "mine" / "metrics.jsonl").read_text().splitlines()]
    wanted = {
        (step, kind): sum(x["return_mean"] for x in rows if x["step"] == step and x["kind"] == kind) / 2
        for step, kind in {(x["step"], x["kind"]) for x in rows if x["kind"] == "evaluation"}
    }
    seen = {
        (row["global_step"], "evaluation"): row["evaluation/return_mean"]
        for row in told["logged"]
        if "evaluation/return_mean" in row
    }
    assert seen == pytest.approx(wanted)
    assert any("train/policy_loss" in row for row in told["logged"])
    assert (told["config"]["mine"], told["config"]["algorithm"], told["config"]["num_envs"]) == (1, "ppo", 8)
    summary = json.loads((tmp_path / "mine" / "summary.json").read_text())
    assert told["summary"]["absolute/iqm"] == pytest.approx(summary["absolute"]["iqm"])
    assert told["is_open"]
    stored = Stored(tmp_path, "*")
    assert [x.type for x in stored.artifacts] == ["model"]
    assert len(stored.history) == len(told["logged"])


def test_says_that_it_has_no_run():
    from shoal.base.errors import ShoalError
    from shoal.monitor.loggers.wandb_listener import WandbListener

    with pytest.raises(
        ShoalError, match=r"^WandbListener has no run of W&B; call wandb.init\(\) before training.$"
    ):
        WandbListener().on_start(None)
