"""What early stopping itself takes in a sweep: choosing at the rungs, and dealing members out in every piece."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax

import shoal
from shoal.engine.population import compaction
from shoal.runs.train import compiled_trainer


def main() -> None:
    """Run a sweep with early stopping, and print the seconds of each rung and of all training."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=27)
    parser.add_argument("--total-steps", type=int, default=250_000)
    parser.add_argument("--devices", type=int, default=2)
    parsed = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", parsed.devices)
    print(json.dumps(measure(parsed.samples, parsed.total_steps)))


def measure(samples: int, total_steps: int) -> dict[str, Any]:
    """Return the seconds of each choice at a rung, of each dealing out or in, and of training and evaluation."""
    choosing: list[float] = []
    dealing_out: list[float] = []
    compile_programs = compaction.Dealer._compile

    def compile_timed(*arguments: Any) -> compaction.Programs:
        programs = compile_programs(*arguments)
        return programs._replace(take=timed(programs.take, dealing_out), put=timed(programs.put, dealing_out))

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(compiled_trainer, "stop_others", timed(compiled_trainer.stop_others, choosing)),
        mock.patch.object(compaction.Dealer, "_compile", compile_timed),
    ):
        swept = shoal.sweep(
            "CartPole-v1",
            random={"learning_rate": "log:1e-5:1e-1"},
            samples=samples,
            halving=3,
            min_steps=total_steps // 27,
            total_steps=total_steps,
            seeds=1,
            confirm_seeds=0,
            progress=False,
            run_dir=str(Path(folder) / "sweep"),
        )
        summary = json.loads(next(swept.path.glob("runs/*/summary.json")).read_text())
    return {"choosing": choosing, "dealing": dealing_out, "seconds": summary["seconds"]}


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    """Return the function, which adds the seconds of each call to a list."""

    def call(*arguments: Any) -> Any:
        start_time = time.perf_counter()
        result = jax.block_until_ready(function(*arguments))
        seconds.append(time.perf_counter() - start_time)
        return result

    return call


if __name__ == "__main__":
    main()
