"""`shoal.rollout`: many environments stepped by random actions or by a policy, and timed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from shoal.base.errors import ShoalError
from shoal.config import arguments, struct
from shoal.config.traced import on_host
from shoal.envs import describing
from shoal.records.directory import parameters_sha256
from shoal.runs.policies import collect
from shoal.runs.policies.collect import RolloutResult
from shoal.runs.policies.load import environment_for, policy_of
from shoal.runs.policies.rollout_parts import PartsWriter
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import memory_limits
from shoal.runs.train.placement import devices_of
from shoal.types import Environment
from shoal.xla import facts


@on_host
def rollout(
    environment: str | Environment | None,
    policy: TrainedPolicy | str | Path | None = None,
    *,
    num_envs: int = 1024,
    num_steps: int = 1000,
    seed: int = 0,
    devices: int = 0,
    save: str | Path | None = None,
    parts: str | Path | None = None,
    overwrite: bool = False,
    greedy: bool = False,
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> RolloutResult:
    """Step many environments over all devices of the machine, by random actions or by a policy.

    The random keys depend on each environment's index: the same seed gives the same episodes on any number of
    devices, up to rounding.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the policy's.
      policy: from `load`, a run directory, or what `train` or `sweep` returned; None draws actions uniformly, the
        legal ones where there are masks.
      num_steps: the number of steps of each; an episode that ends is followed by a new one.
      devices: the number of devices, 0 for all; as many as divide `num_envs` take part.
      save: an .npz file that the whole data is written to (see `shoal.runs.policies.collect.collect`).
      parts: a directory that the same data is written to instead, part by part, so that the host's memory does not
        grow with `num_steps`; an interrupted one of the same settings is continued (see `rollout_parts.py`).
      overwrite: whether another rollout in `parts` is replaced.
      environment_parameters: those parameters of the environment whose names are also arguments here.
    Returns:
      steps per second, and the number, mean return and mean length of the episodes that ended.
    Raises:
      ShoalError: a size is too small, the environment's spaces are not the policy's, or the data cannot be written.
    """
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    num_envs = arguments.whole_number("num_envs", num_envs, 1, arguments.LARGEST_INDEX)
    num_steps = arguments.whole_number("num_steps", num_steps, 1, arguments.LARGEST_INDEX)
    seed, greedy = arguments.seed("seed", seed), arguments.boolean("greedy", greedy)
    file, directory = _outputs(save, parts)
    used_devices, policy = devices_of(devices), None if policy is None else policy_of(policy)
    world = environment_for(policy, environment, parameters)
    environment = struct.as_arrays(world)  # numbers as data, so that others compile nothing again
    sizes = {"num_envs": num_envs, "num_steps": num_steps}
    _check_memory(environment, policy, used_devices[0], **sizes, is_saved=file is not None)
    if directory:
        settings = {**sizes, "seed": seed, "greedy": greedy, **_origin(world, policy, used_devices)}
        writer = PartsWriter(directory, settings, overwrite=arguments.boolean("overwrite", overwrite))
    with memory_limits.report_out_of_memory():
        return collect.collect(
            environment,
            (policy.config, policy.parameters) if policy else (),
            jax.random.key(seed),
            used_devices,
            **sizes,
            greedy=greedy,
            save=file,
            parts=writer if directory else None,
        )


def _outputs(save: str | Path | None, parts: str | Path | None) -> tuple[Path | None, Path | None]:
    """Return the file and the directory that data is written to, at most one of which is given."""
    file, directory = (
        None if x is None or x == "" else arguments.path(name, x)
        for name, x in (("save", save), ("parts", parts))
    )
    if file and directory:
        raise ShoalError(f"save={str(save)!r} and parts={str(parts)!r} are both given; give one of the two.")
    return file, directory


def _check_memory(
    environment: Environment,
    policy: TrainedPolicy | None,
    device: jax.Device,
    num_envs: int,
    num_steps: int,
    is_saved: bool,
) -> None:
    """Refuse sizes that no memory holds, from shapes alone, before anything is allocated."""
    bytes_each = memory_limits.episode_bytes(environment, policy.config if policy else None)
    memory_limits.check_count("num_envs", num_envs, bytes_each, "environments", device)
    if is_saved:
        bytes_each = num_envs * memory_limits.step_bytes(environment)
        memory_limits.check_count("num_steps", num_steps, bytes_each, "the saved data")


def _origin(
    world: Environment, policy: TrainedPolicy | None, devices: Sequence[jax.Device]
) -> dict[str, Any]:
    """Return what makes the data of a rollout besides the arguments of the call, as JSON values."""
    return {
        "devices": [str(device) for device in devices],
        "versions": facts.versions(),
        "environment": describing.description_to_json(describing.describe(world)),
        "policy": policy and parameters_sha256(struct.named_leaves(policy.parameters)),
    }
