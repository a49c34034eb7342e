"""What a file of a policy says about it: for programs, and as a model card for people."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config import struct
from shoal.envs.base import metadata_of
from shoal.export.program import ACTIONS, NOISE, Program, observation_names
from shoal.records.directory import parameters_sha256
from shoal.records.json_files import read_number
from shoal.runs.policies.load import StoredPolicies
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from shoal.xla.facts import versions

CLEAR = "At an episode's first step feed the values of `memory` as *_in; later each *_out of the step before as *_in."
SIX_MONTHS = "JAX promises that a later release reads it for six months from the release that wrote it."


def describe(policy: TrainedPolicy, program: Program, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a file says of its policy, as values of JSON."""
    spaces = _spaces(policy)
    found: dict[str, Any] = {
        "inputs": {name: _array(x, spaces.get(name)) for name, x in program.inputs.items()},
        "outputs": {name: _array(x, spaces.get(name)) for name, x in program.outputs.items()},
        "memory": {name: _compact(x) for name, x in program.memory.items()},
        "memory_rule": CLEAR if program.memory else "",
        "memory_lasts": policy.memory_lasts,
        "mode": "sampled" if program.draw else "greedy",
        **(
            {NOISE: {"uniform": "uniform on [0, 1)", "normal": "standard normal"}[program.noise]}
            if program.draw
            else {}
        ),
        **origin,
        "versions": versions(),
        "parameters_sha256": parameters_sha256(
            {k: x[None] for k, x in struct.named_leaves(policy.parameters).items()}
        ),
    }
    return found | metadata_of(policy.environment)


def origin_of(stored: StoredPolicies, place: int) -> dict[str, Any]:
    """Return where a stored policy comes from: run, seed, steps and score."""
    directory, experiment, member = stored.directory, stored.experiment, stored.members[place]
    summary: Mapping[str, Any] = {}
    if stored.checkpoint is None and (directory.path / "summary.json").is_file():
        summary = directory.load_summary()
    steps, score, interval = stored.checkpoint, None, None
    if stored.checkpoint is not None and len(stored.scores):
        score = read_number(stored.scores[place])
    elif summary:
        scores = summary.get("absolute" if stored.which == "best" else "final") or {}
        score, interval = scores.get("returns", [None] * (place + 1))[place], scores.get("interval")
        steps = summary.get("steps_per_seed")
    if stored.checkpoint is None and stored.which == "best":
        updates = directory.load_policy("best")[1].get("updates", {})
        steps = int(updates[place]) * experiment.run.steps_per_update if len(updates) else None
    return {
        "environment": experiment.environment_name,
        "algorithm": type(experiment.config).__name__.removesuffix("Config").lower(),
        "run": directory.path.name,
        "policy": stored.title,
        "seed": member.seed,
        "label": member.label,
        "steps": steps,
        "score": score if score is not None and np.isfinite(score) else None,
        "interval_of_seeds": None if interval is None else [float(x) for x in interval],
    }


def _spaces(policy: TrainedPolicy) -> dict[str, Space]:
    """Return the spaces of observations and actions by the names of inputs and outputs."""
    space, of_actions = policy.spec.of_actor.observation_space, policy.spec.action_space
    parts = space if isinstance(space, Dict) else {"": space}
    actions = of_actions if isinstance(of_actions, Dict) else {"": of_actions}
    named = {"_".join(filter(None, (ACTIONS, name))): x for name, x in actions.items()}
    return {name: parts[entry] for entry, name in observation_names(policy).items()} | named


def _array(x: Any, space: Space | None) -> dict[str, Any]:
    """Return shape and dtype of an array, and the bounds of its space, each a number where all are equal."""
    found: dict[str, Any] = {"shape": list(x.shape), "dtype": np.dtype(x.dtype).name}
    if isinstance(space, Box):
        found |= {"low": _compact(space.low), "high": _compact(space.high)}
    elif isinstance(space, Discrete | MultiDiscrete):
        largest = np.asarray(space.n if isinstance(space, Discrete) else space.nvec) - 1
        found |= {"low": 0, "high": _compact(largest)}
    return found


def _compact(x: np.ndarray) -> Any:
    """Return an array as lists, or one number where all are equal; an infinite one is None."""
    array = np.asarray(x)
    if array.size and np.all(array == array.flat[0]):
        array = array.flat[0]
    return json.loads(json.dumps(array.tolist()).replace("-Infinity", "null").replace("Infinity", "null"))


def as_properties(description: Mapping[str, Any]) -> dict[str, str]:
    """Return a description as texts: those of an ONNX file's metadata_props.

    Lists of one axis are separated by commas, as mjlab's are; what is nested is JSON.
    """

    def text(x: Any) -> str:
        if isinstance(x, list) and not any(isinstance(y, list | dict) for y in x):
            return ",".join(map(str, x))
        return x if isinstance(x, str) else json.dumps(x)

    return {name: text(x) for name, x in description.items()}


def model_card(path: Path, description: Mapping[str, Any], check: str) -> str:
    """Return a page for people about a file of a policy."""
    x = description
    title = f"{x.get('environment', 'policy')}, {x.get('algorithm', '')}".rstrip(", ")
    lines = [
        f"# {title}",
        "",
        f"`{path.name}` is one step of a policy ({x['mode']} actions), written by Shoal.",
    ]
    if path.suffix == ".jaxexport":
        lines += ["", f"It is read by `jax.export.deserialize`, on cpu and cuda. {SIX_MONTHS}"]
    score = x.get("score")
    lines += ["", "| | |", "| --- | --- |"]
    of_run = {
        "run": x.get("run"),
        "policy": x.get("policy"),
        "seed": x.get("seed"),
        "label": x.get("label"),
        "environment steps": x.get("steps"),
        "mean return": None if score is None else f"{score:.6g}",
        "95% interval over the seeds": x.get("interval_of_seeds"),
        "steps per second": x.get("rate"),
        "checked": check,
    }
    lines += [f"| {name} | {value} |" for name, value in of_run.items() if value not in (None, "")]
    lines += ["", "| array | shape | dtype |", "| --- | --- | --- |"]
    for kind in ("inputs", "outputs"):
        lines += [f"| {kind[:-1]} `{k}` | {a['shape']} | {a['dtype']} |" for k, a in x[kind].items()]
    lines += ["", CLEAR] if x["memory"] else []
    lines += ["", f"`noise` is {x[NOISE]}, each number drawn anew for each step."] if NOISE in x else []
    packages = ", ".join(f"{name} {version}" for name, version in x["versions"].items())
    return "\n".join(
        [*lines, "", f"Made with {packages}. Parameters: SHA-256 `{x['parameters_sha256']}`.", ""]
    )
