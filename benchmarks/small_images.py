"""PPO on images of 10 x 10 cells and 4 channels, as MinAtar's: `python benchmarks/small_images.py`.

The environment is a game of catching, written here: a ball falls, and a paddle moves. Each way to encode the image
trains on it for some seconds in a process of its own, and the table has the environment steps per second.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ENCODERS = {
    "flatten": {"encoder": "flatten"},
    "cnn": {"encoder": "cnn"},
    "cnn, 32 and 64 channels": {  # as many as for large images
        "encoder": "cnn",
        "encoder_channels": (32, 64),
        "encoder_kernels": (3, 3),
        "encoder_strides": (2, 1),
    },
}
SIZE = 10


def work(encoder: str, steps: int) -> None:
    """Train with one encoder and print a line of JSON."""
    from typing import NamedTuple

    import jax
    import jax.numpy as jnp

    import shoal
    from shoal import envs
    from shoal.types import spaces

    class State(NamedTuple):
        ball: jax.Array  # row and column
        paddle: jax.Array  # column

    @envs.environment
    class Catch:
        """A ball falls by a row a step; 1 for catching it in the last row with a paddle of one cell."""

        observation_space = spaces.Box(0.0, 1.0, (SIZE, SIZE, 4))
        action_space = spaces.Discrete(3)

        def observe(self, state):
            image = jnp.zeros((SIZE, SIZE, 4)).at[state.ball[0], state.ball[1], 0].set(1.0)
            return image.at[SIZE - 1, state.paddle, 1].set(1.0)

        def reset(self, key):
            column = jax.random.randint(key, (), 0, SIZE)
            state = State(jnp.stack([jnp.int32(0), column]), jnp.int32(SIZE // 2))
            return state, envs.restart(self.observe(state))

        def step(self, state, action, key):
            state = State(
                state.ball + jnp.array([1, 0], jnp.int32), jnp.clip(state.paddle + action - 1, 0, SIZE - 1)
            )
            landed = state.ball[0] == SIZE - 1
            caught = landed & (state.ball[1] == state.paddle)
            return state, envs.transition(self.observe(state), caught.astype(jnp.float32), terminated=landed)

    sizes: dict[str, Any] = dict(
        num_envs=64, num_steps=128, num_minibatches=8, update_epochs=4, total_steps=steps, seeds=1
    )
    with tempfile.TemporaryDirectory() as directory:
        run = shoal.train(
            Catch(),
            **ENCODERS[encoder],
            **sizes,
            num_evals=1,
            progress=False,
            run_dir=Path(directory) / "run",
        )
        keys = ("steps_per_second", "absolute", "seconds")
        print(json.dumps({key: run.summary[key] for key in keys}))


def main() -> None:
    """Measure each encoder in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options.work, options.steps)
    print("| encoder | environment steps per second, by round | return |\n| --- | --- | --- |")
    results = {encoder: [] for encoder in ENCODERS}
    for _ in range(options.rounds):
        for encoder in ENCODERS:
            command = [sys.executable, __file__, "--work", encoder, "--steps", str(options.steps)]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results[encoder].append(json.loads(out.strip().splitlines()[-1]))
    for encoder, found in results.items():
        rates = ", ".join(f"{result['steps_per_second']:,.0f}" for result in found)
        print(f"| {encoder} | {rates} | {found[-1]['absolute']['iqm']:.2f} |")


if __name__ == "__main__":
    main()
