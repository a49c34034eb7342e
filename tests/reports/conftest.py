"""Run directories: a real one, and others written by hand in its form."""

import json

import pytest

import shoal
from shoal.records.json_files import json_text
from shoal.records.summary import score_statistics


@pytest.fixture(scope="session")
def real_run(tmp_path_factory):
    """A run of two seeds that was trained."""
    path = tmp_path_factory.mktemp("trained") / "first"
    sizes = {"total_steps": 512, "num_envs": 8, "num_steps": 32, "eval_episodes": 2, "num_evals": 2}
    return shoal.train("CartPole-v1", seeds=2, run_dir=path, name="real", tag=("a", "b"), note="why", **sizes)


def row(step, seed, value, kind="evaluation", **entries):
    """A row of metrics."""
    numbers = {"return_mean": value, "score": value} if kind == "evaluation" else {"episode_return": value}
    return {
        "kind": kind,
        "step": step,
        "updates": step // 100,
        "time": 1e9 + step,
        "seed": seed,
        **entries,
        **numbers,
    }


@pytest.fixture
def write_run(tmp_path):
    """A function that writes the directory of a run, whose evaluations are at 0, 100 and 200 steps."""

    def write(name, returns=(1.0, 3.0), *, finished=True, failed=(), config=(), run=(), summary=(), **parts):
        path = tmp_path / name
        path.mkdir(parents=True)
        seeds = list(range(len(returns)))
        saved = {
            "schema": 3,
            "environment": {"name": "CartPole-v1", "parameters": {}},
            "algorithm": {"name": "ppo", "gamma": 0.99},
            "run": {"name": "", "tag": [], "note": "", "seed": 0, "seeds": len(seeds), **dict(run)},
            "settings": {"learning_rate": 0.001},
            **dict(config),
        }
        (path / "config.json").write_text(json_text(saved, not_finite=str))
        rows = [row(step, seed, step / 200 * returns[seed]) for step in (0, 100, 200) for seed in seeds]
        rows.insert(len(seeds), row(50, 0, 7.0, "train"))
        (path / "metrics.jsonl").write_text("".join(json_text(x).replace("\n", "") + "\n" for x in rows))
        if finished:
            mean = sum(returns) / len(returns)
            statistics = {"returns": list(returns), "iqm": mean, "interval": [mean - 1, mean + 1]}
            statistics = score_statistics(returns, failed) if failed else statistics
            content = {
                "schema": 1,
                "environment": "CartPole-v1",
                "algorithm": "ppo",
                "seeds": seeds,
                "steps_per_seed": 200,
                "failed": [{"seed": seed, "update": 1, "last_policy_step": 100} for seed in failed],
                "final": statistics,
                "absolute": statistics,
                "evaluation": {"return_mean": list(returns), "length_mean": [x + 1 for x in returns]},
                "name": "",
                "settings": {"learning_rate": 0.001},
                "started_time": "2026-01-31T09:30:00+00:00",
                **dict(summary),
            }
            (path / "summary.json").write_text(json_text(content))
        for part, content in parts.items():
            (path / f"{part}.json").write_text(json.dumps(content))
        return path

    return write


@pytest.fixture
def write_sweep(tmp_path, write_run):
    """A function that writes a sweep with one run of two settings, and the run of its confirmation."""

    def write(name, *, finished=True, options=(), runs=("runs/000",)):
        path = tmp_path / name
        variants = [
            {"label": label, "settings": {"learning_rate": x}} for label, x in (("0 a", 0.1), ("1 b", 0.2))
        ]
        for k, place in enumerate((runs[0], "confirmation/000")):
            saved = {"variants": variants[: 2 - k]}
            run = write_run(f"{name}/{place}", (1.0, 3.0), finished=False, config=saved)
            labelled = [
                row(200, seed, 10.0 * seed + j, label=x["label"])
                for j, x in enumerate(saved["variants"])
                for seed in (0, 1)
            ]
            (run / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in labelled))
        named = {"name": "mine", "tag": ["s"], "note": ""}
        experiment = {"environment": {"name": "CartPole-v1"}, "algorithm": {"name": "ppo"}, "run": named}
        content = {
            "schema": 1,
            "asked": {"experiment": experiment, "options": {"objective": "absolute", **dict(options)}},
            "runs": [{"path": place, "labels": ["0 a", "1 b"]} for place in runs],
        }
        (path / "sweep.json").write_text(json.dumps(content))
        if finished:
            score = {"iqm": 8.0, "interval": [7.0, 9.0], "seeds": list(range(10)), "failed": [7]}
            best = {"label": "1 b", "run": runs[0], "settings": {"learning_rate": 0.2}, "score": score}
            (path / "summary.json").write_text(json.dumps({"best": best, "members": []}))
        return path

    return write
