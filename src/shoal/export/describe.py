"""What a file of a policy says about it: for programs, and as a model card for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config import struct
from shoal.envs.base import metadata_of
from shoal.export.program import ACTIONS, NOISE, Program, entries
from shoal.records.directory import SUMMARY, parameters_sha256
from shoal.records.json_files import to_jsonable, to_null
from shoal.runs.policies.load import StoredPolicies
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import EPISODE_ENDED
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from shoal.xla.facts import versions

MEMORY_RULE = (
    "At the first step of {} feed the values of `memory` as *_in; at others each *_out of the step before."
)
SIX_MONTHS = (
    "`jax.export.deserialize` reads it, for cpu and cuda; JAX promises this for six months from its release."
)
NOISES = {"uniform": "uniform on [0, 1)", "normal": "standard normal"}


def describe(
    policy: TrainedPolicy, program: Program, origin: Mapping[str, Any], packages: Sequence[str] = ()
) -> dict[str, Any]:
    """Return what a file says of its policy, as values of JSON.

    Args:
      packages: the names of those that write the file, besides Shoal's own.
    """
    actions = policy.spec.action_space
    of_actions = (
        {f"{ACTIONS}_{k}": x for k, x in actions.items()} if isinstance(actions, Dict) else {ACTIONS: actions}
    )
    spaces = entries(policy, policy.spec.of_actor.observation_space) | of_actions
    leaves, lasts = struct.named_leaves(policy.parameters), policy.memory_lasts
    in_trials = EPISODE_ENDED in spaces  # of one episode where the environment has no others
    description = {
        "inputs": {name: _array(x, spaces.get(name)) for name, x in program.inputs.items()},
        "outputs": {name: _array(x, spaces.get(name)) for name, x in program.outputs.items()},
        "memory": {name: _compact(x) for name, x in program.memory.items()},
        "memory_rule": MEMORY_RULE.format("a trial" if in_trials else "an episode") if program.memory else "",
        "memory_lasts": "episode" if lasts == "trial" and not in_trials else lasts,
        "mode": "sampled" if program.draw else "greedy",
        **({NOISE: NOISES[program.noise]} if program.draw else {}),
        **origin,
        "versions": versions(packages),
        "parameters_sha256": parameters_sha256(leaves),
        **metadata_of(policy.environment),
    }
    return {name: to_jsonable(x, not_finite=to_null) for name, x in description.items()}


def origin_of(stored: StoredPolicies, place: int, path: Path) -> dict[str, Any]:
    """Return where a stored policy comes from: run, seed, steps and score.

    Args:
      path: the directory of the run, or of the sweep that it is a part of.
    """
    directory, experiment, member = stored.directory, stored.experiment, stored.members[place]
    steps, interval = stored.checkpoint, None
    # Those of a run that has not finished are of its best policies.
    scores = stored.scores if stored.which != "last" else ()
    if steps is None:
        summary = directory.load_summary() if (directory.path / SUMMARY).is_file() else {}
        part = "absolute" if stored.which == "best" else "final"
        scores = (summary.get(part) or {}).get("returns", ())
        own = [x for x in summary.get("members", ()) if member.label and x["label"] == member.label]
        interval = ((*own, summary)[0].get(part) or {}).get("interval")  # of a setting over its own seeds
        # Of the member itself, since one that was stopped has made fewer than the others.
        steps = directory.load_policy(stored.which)[1]["updates"][place] * experiment.run.steps_per_update
    return {
        "environment": experiment.environment_name,
        "algorithm": experiment.algorithm,
        "run": path.expanduser().resolve().name,
        "policy": stored.title,
        **member.columns,
        "steps": steps,
        "score": scores[place] if len(scores) else None,
        "interval_of_seeds": interval,
    }


def _array(x: Any, space: Space | None) -> dict[str, Any]:
    """Return shape and dtype of an array, and the bounds of its space, each a number where all are equal."""
    bounds = {}
    if isinstance(space, Box):
        bounds = {"low": _compact(space.low), "high": _compact(space.high)}
    elif isinstance(space, Discrete | MultiDiscrete):
        sizes = space.n if isinstance(space, Discrete) else space.nvec
        bounds = {"low": 0, "high": _compact(np.asarray(sizes) - 1)}
    return {"shape": list(x.shape), "dtype": x.dtype.name, **bounds}


def _compact(x: object) -> Any:
    """Return an array, or one number where all are equal."""
    array = np.asarray(x)
    return array.reshape(-1)[0] if array.size and np.all(array == array.reshape(-1)[0]) else array


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
    x, nested = {**description, "checked": check}, ("inputs", "outputs", "memory", "versions")
    facts = [f"| {k} | {v} |" for k, v in x.items() if k not in nested and v not in (None, "")]
    arrays = [
        f"| {kind[:-1]} `{name}` | {array['shape']} | {array['dtype']} |"
        for kind in ("inputs", "outputs")
        for name, array in x[kind].items()
    ]
    lines = [
        f"# {x.get('environment', 'A policy')}",
        "",
        f"`{path.name}` is one step of a policy, written by Shoal.",
        *([SIX_MONTHS] if path.suffix == ".jaxexport" else []),
        *("", "| array | shape | dtype |", "| --- | --- | --- |", *arrays),
        *("", "| | |", "| --- | --- |", *facts),
        *("", f"Made with {', '.join(f'{name} {version}' for name, version in x['versions'].items())}.", ""),
    ]
    return "\n".join(lines)
