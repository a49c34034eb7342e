"""Choose devices, groups of environments and all else that depends on the machine, and check the memory."""

import dataclasses
import itertools

import jax

from shoal.base.errors import ShoalError
from shoal.config import arguments
from shoal.config.settings import flat
from shoal.engine.population import member_layout
from shoal.engine.run import ProgramSettings, Run
from shoal.runs.plan.experiment import Experiment, resolve
from shoal.runs.train import compiled_trainer, memory_limits
from shoal.types import AlgorithmConfig
from shoal.xla import machine


def check_memory(
    experiment: Experiment, settings: ProgramSettings, layout: member_layout.Layout, shapes: Run | None = None
) -> None:
    """Require that the least memory of a run is not more than its process may use.

    Args:
      shapes: of one member, where they are known.
    Raises:
      ShoalError: it is more; the sentence names the size that needs the most, and the nearest that fits.
    """
    first = experiment.solo[0]
    sizes = memory_limits.MemorySizes.of(experiment.run, experiment.num_members, settings)
    # As it was before settings were filled in, which a narrower layer or a smaller replay may imply otherwise.
    config = first.config if first.unresolved_config is None else first.unresolved_config

    def member(candidate: AlgorithmConfig) -> Run:
        if candidate is config and shapes is not None:
            return shapes
        return compiled_trainer.member_shapes(first.environment, resolve(candidate), settings)

    memory_limits.check_run(member, config, sizes, layout)


def place(experiment: Experiment) -> tuple[list[jax.Device], Experiment]:
    """Decide the settings that depend on the machine: devices, groups of environments, the algorithm's choices.

    Raises:
      ShoalError: more devices are requested than exist.
    """
    run = experiment.run
    devices = devices_of(run.devices)
    env_groups = run.env_groups
    if env_groups == 0:
        env_groups = machine.default_groups(len(devices), experiment.num_members, run.num_envs, run.num_steps)
    run = dataclasses.replace(run, devices=len(devices), env_groups=env_groups)
    # Both are kept: in `config.json` a setting that follows another one stays None.
    config = resolve(experiment.config)
    return devices, dataclasses.replace(
        experiment, run=run, config=config, unresolved_config=experiment.config
    )


def hidden_weights(config: AlgorithmConfig) -> int:
    """Return the number of weights between the hidden layers that a config names, which need not be valid."""
    named = flat(config)
    actor = named.get("hidden_sizes")
    critic = named.get("critic_hidden_sizes", ())
    layers = [x for x in (actor, actor if critic is None else critic) if isinstance(x, tuple | list)]
    widths = [x for x in layers if all(isinstance(width, int) for width in x)]
    return sum(a * b for x in widths for a, b in itertools.pairwise(x))


def devices_of(requested: int) -> list[jax.Device]:
    """Return the requested number of devices, all of them for 0.

    Raises:
      ShoalError: fewer exist.
    """
    requested = arguments.whole_number("devices", requested, 0)
    # As many devices of the CPU as are asked for, which only a process whose backend has not started can still have.
    machine.prepare(min(requested, machine.max_devices()))
    available = jax.devices()
    if requested > len(available):
        raise ShoalError(
            f"devices={requested} is more than there are: {len(available)} ({available[0].platform})."
        )
    return available[: requested or len(available)]
