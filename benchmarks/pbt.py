"""Population-based training from a bad range of learning rates, against random search: `python benchmarks/pbt.py`.

Both begin with the same members: seeds, and learning rates drawn from a range that is about 30 times too high, or 30
times too low. Only population-based training may leave it. Each repetition has other seeds and other draws. The best
member is chosen by the evaluations during training, and its score is from new episodes. The best fixed setting is the
best of some learning rates by the interquartile mean over as many seeds. The budget is one in which a good learning
rate just learns the task. On DoorKey actions are sampled in evaluations: the reward is seldom, and a policy that takes
its most probable actions reaches none until it has learned nearly all, so that selection would see nothing.

A score counts by its distance from that of the untrained policies: 0 is theirs, 1 is that of the best fixed setting.
Results are kept in the folder, so that the command goes on with what is missing.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np

import shoal
from shoal.engine.population import pbt_exchange
from shoal.records import scores
from shoal.records.directory import RunDirectory
from shoal.records.json_files import read_number
from shoal.runs.policies.policy_files import best_scores

BOUNDS = (1e-6, 1.0)  # of the tuned learning rate
# A range is from 30 / 2 to 30 * 2 times the preset's learning rate, or as many times below.
AWAY, WIDTH = 30.0, 2.0
GRID = (0.1, 0.3, 1.0, 3.0, 10.0)  # fixed learning rates, in units of the preset's
SETTINGS: dict[str, Any] = {
    "progress": False,
    "on_nan": "freeze",
    "env_groups": 1,
    "checkpoint_seconds": 600.0,
}


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, its preset's learning rate, the budget of a member, and other settings than the preset's."""

    environment: str
    learning_rate: float
    total_steps: int
    exchanges: int = 20
    others: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its runs."""
        return SETTINGS | self.others

    @property
    def ready_every(self) -> int:
        """Environment steps between two exchanges."""
        return self.total_steps // self.exchanges

    def range(self, direction: str) -> tuple[float, float]:
        """The range of the first learning rates."""
        centre = self.learning_rate * (AWAY if direction == "high" else 1 / AWAY)
        return centre / WIDTH, min(centre * WIDTH, BOUNDS[1])


TASKS = {
    "CartPole-v1": Task("CartPole-v1", 1e-3, 50_000),
    "Pendulum-v1": Task("Pendulum-v1", 3e-4, 500_000),
    "MiniGrid-DoorKey-5x5": Task(
        *("MiniGrid-DoorKey-5x5", 1e-3, 500_000),
        exchanges=40,
        others={"eval_mode": "sampled", "eval_episodes": 128},
    ),
}


def best_of(run: Any) -> dict[str, float]:
    """Return the score of the member that the evaluations during training chose, and what all members reached.

    `middle` is the interquartile mean of the last policies of all members; `untrained` is the mean before any update.
    """
    chosen = np.array([read_number(x) for x in best_scores(RunDirectory.open(run.path))], np.float64)
    chosen = np.where(np.isfinite(chosen), chosen, -np.inf)
    untrained = float(np.nanmean(run.evaluations[0][1]["return_mean"]))
    score = run.summary["absolute"]["returns"][int(np.argmax(chosen))]
    return {"score": score, "untrained": untrained, "middle": run.summary["final"]["iqm"]}


def train_pbt(task: Task, path: Path, direction: str, repetition: int, members: int) -> dict[str, float]:
    """Train a population that exchanges."""
    low, high = task.range(direction)
    run = shoal.pbt(
        task.environment,
        tune={"learning_rate": f"log:{BOUNDS[0]}:{BOUNDS[1]}"},
        start={"learning_rate": f"log:{low}:{high}"},
        ready_every=task.ready_every,
        members=members,
        total_steps=task.total_steps,
        seed=1000 * repetition,
        run_dir=str(path),
        **task.settings,
    )
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    took = {row["updates"]: row["exchange_seconds"] for row in rows if row["kind"] == "exchange"}
    between = (run.summary["seconds"]["train"] + run.summary["seconds"]["evaluate"]) / max(len(took), 1)
    share = float(np.median(list(took.values())[1:])) / between  # the first is also the program's first call
    return best_of(run) | {"exchange_share": share}


def train_random(task: Task, path: Path, direction: str, repetition: int, members: int) -> dict[str, float]:
    """Train the same members, with the same first settings, that never copy: random search within the range."""

    def nobody_copies(scores: Any, *_: Any) -> Any:
        return jnp.arange(len(scores))

    with mock.patch.object(pbt_exchange, "select_parents", nobody_copies):
        return train_pbt(task, path, direction, repetition, members)


def train_fixed(task: Task, path: Path, factor: float, repetitions: int) -> list[dict[str, float]]:
    """Train one fixed learning rate, with a seed for each repetition."""
    run = shoal.train(
        task.environment,
        learning_rate=factor * task.learning_rate,
        seeds=repetitions,
        seed=500,
        total_steps=task.total_steps,
        eval_every=task.ready_every,
        run_dir=str(path),
        **task.settings,
    )
    untrained = float(np.nanmean(run.evaluations[0][1]["return_mean"]))
    return [{"score": x, "untrained": untrained} for x in run.summary["absolute"]["returns"]]


def kept(path: Path, compute: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a file holds, or compute it and write it there."""
    file = path.parent / f"{path.name}.json"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        result = compute(*arguments)
        file.write_text(json.dumps(result))
    return json.loads(file.read_text())


def interval(values: np.ndarray) -> str:
    """Format an interquartile mean and its 95% interval."""
    low, high = scores.stratified_bootstrap_interval(values, scores.iqm)
    return f"{scores.iqm(values):.2f} [{low:.2f}, {high:.2f}]"


def measure(task: Task, folder: Path, directions: list[str], repetitions: int, members: int) -> list[dict]:
    """Measure one environment, and return a row for each direction."""
    place = folder / task.environment
    paths = {factor: place / f"fixed-{factor:g}" for factor in GRID}
    fixed = {x: kept(path, train_fixed, task, path, x, repetitions) for x, path in paths.items()}
    of_factor = {x: np.array([y["score"] for y in found], np.float64) for x, found in fixed.items()}
    means = {x: float(scores.iqm(y)) for x, y in of_factor.items() if np.isfinite(y).all()}
    best = max(means, key=lambda factor: means[factor])
    rows = []
    for direction in directions:
        row: dict[str, Any] = {"environment": task.environment, "range": direction}
        row |= {"learning_rate": best * task.learning_rate, "fixed": of_factor[best]}
        for name, train in (("random", train_random), ("pbt", train_pbt)):
            found = []
            for k in range(repetitions):
                path = place / f"{name}-{direction}-{k}"
                found.append(kept(path, train, task, path, direction, k, members))
            row[name] = np.array([x["score"] for x in found], np.float64)
            row[f"{name}_middle"] = np.array([x["middle"] for x in found], np.float64)
            row["untrained"] = float(np.mean([x["untrained"] for x in found]))
            row["exchange_share"] = max((x.get("exchange_share", 0.0) for x in found), default=0.0)
        reached = float(scores.iqm(row["pbt"])) - row["untrained"]
        row["share"] = reached / (means[best] - row["untrained"])
        rows.append(row)
        print(line(row), flush=True)
    return rows


def line(row: dict) -> str:
    """Format a row of the table."""
    cells = [row["environment"], row["range"], f"{row['learning_rate']:g}", interval(row["fixed"])]
    cells += [interval(row["random"]), interval(row["pbt"]), f"{row['share']:.3f}"]
    cells += [interval(row["random_middle"]), interval(row["pbt_middle"]), f"{row['exchange_share']:.2%}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure the environments, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("environments", nargs="*", default=[], help=", ".join(TASKS))
    parser.add_argument("--folder", type=Path, default=Path("runs/pbt"))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--members", type=int, default=16)
    parser.add_argument("--directions", nargs="*", default=["low", "high"])
    chosen = parser.parse_args()
    head = ["environment", "range", "best fixed rate", "its score", "random search", "PBT"]
    head += [
        "PBT, of the best fixed",
        "random search, all members",
        "PBT, all members",
        "an exchange, of the time between two",
    ]
    print(f"| {' | '.join(head)} |\n| {' | '.join(['---'] * len(head))} |", flush=True)
    for name in chosen.environments or TASKS:
        measure(TASKS[name], chosen.folder, chosen.directions, chosen.repetitions, chosen.members)


if __name__ == "__main__":
    sys.exit(main())
