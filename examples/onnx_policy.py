"""Play an exported policy in Gymnasium by onnxruntime: nothing of Shoal or JAX is imported.

    shoal train CartPole-v1 --core gru --run-dir runs/gru
    shoal export runs/gru policy.onnx
    python examples/onnx_policy.py policy.onnx CartPole-v1

With --reference it is run by `onnx.reference`, which is written in Python: slow, and good for reading.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

EPISODES = 20

Step = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def by_onnxruntime(path: Path) -> Step:
    """Return the step of a file: its inputs by name -> its outputs by name."""
    import onnxruntime  # noqa: PLC0415

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def by_reference(path: Path) -> Step:
    """Return the same, computed by ONNX's evaluator in Python."""
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415

    evaluator = ReferenceEvaluator(str(path))
    return lambda inputs: dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))


def initial_memory(description: dict) -> dict[str, np.ndarray]:
    """Return the memory before an episode's first step, as the file beside the policy lists it."""
    memory = {}
    for name, value in description["memory"].items():
        x = description["inputs"][f"{name}_in"]
        memory[f"{name}_in"] = np.broadcast_to(np.asarray(value, x["dtype"]), x["shape"])
    return memory


def play(step: Step, description: dict, environment: gymnasium.Env, seed: int) -> float:
    """Play one episode and return its return."""
    observation, _ = environment.reset(seed=seed)
    memory, total, is_over = initial_memory(description), 0.0, False
    while not is_over:
        obs = np.asarray(observation, description["inputs"]["obs"]["dtype"])[None]
        outputs = step({"obs": obs, **memory})
        memory = {name: outputs[name.removesuffix("_in") + "_out"] for name in memory}
        observation, reward, terminated, truncated, _ = environment.step(outputs["actions"][0])
        total, is_over = total + float(reward), terminated or truncated
    return total


def main(policy: str, name: str, *options: str) -> float:
    """Play the episodes, and print and return the mean of their returns."""
    path = Path(policy)
    description = json.loads(path.with_suffix(".json").read_text())
    step = by_reference(path) if "--reference" in options else by_onnxruntime(path)
    environment = gymnasium.make(name)
    returns = [play(step, description, environment, seed) for seed in range(EPISODES)]
    print(f"{name}, {EPISODES} episodes: mean return {np.mean(returns):.1f}, worst {np.min(returns):.1f}")
    return float(np.mean(returns))


if __name__ == "__main__":
    main(*sys.argv[1:])
