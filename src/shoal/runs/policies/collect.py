"""Collect T steps of N environments, by random actions or a policy: statistics, or the whole data.

The steps are made in chunks by one compiled program, so that the memory of a device and the size of a 32-bit sum do
not grow with T.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from shoal.base.errors import ShoalError
from shoal.base.files import write_whole_file
from shoal.config import struct
from shoal.engine.nonfinite import explanation
from shoal.engine.rollout import EndedEpisodes
from shoal.engine.rollout_statistics import (
    Actor,
    EnvironmentStates,
    advance_environments,
    recorded_fields,
    start_environments,
)
from shoal.engine.run import ENV_AXIS
from shoal.runs.policies.rollout_parts import PartsWriter, RolloutParts, copy_rows
from shoal.types import Array, Environment, PyTree, TimeStep
from shoal.xla import machine
from shoal.xla.backend import compile_ahead, jit_is_disabled

MAX_STEPS_PER_CALL = 2**22  # of all environments: sums of so many ones are exact in float32
MAX_RECORDED_BYTES = 2**24  # of the recorded data, on all devices together


@dataclasses.dataclass(frozen=True)
class RolloutResult:
    """The result of a rollout.

    Attributes:
      return_mean: over the episodes that ended, of the team where there are several agents; NaN if none did.
      length_mean: over the same episodes, in steps; NaN if there are none.
      terminated: the share of them that terminated; the others were truncated.
      agent_returns: the mean return of each of several agents; () for one.
      steps_per_second: environment steps of all environments divided by `seconds`.
      seconds: wall time of the steps (including the copy to the host, where data is saved).
      compile_seconds: wall time of compiling, which is not in `seconds`.
      data: the saved data, by name, or its parts; None if nothing was saved.
      path: the file or the directory of the data.
    """

    num_envs: int
    num_steps: int
    devices: int
    episodes: int
    return_mean: float
    length_mean: float
    terminated: float
    steps_per_second: float
    seconds: float
    compile_seconds: float
    agent_returns: tuple[float, ...] = ()
    data: dict[str, np.ndarray] | RolloutParts | None = dataclasses.field(default=None, repr=False)
    path: Path | None = None

    @property
    def steps(self) -> int:
        """The environment steps of all environments together."""
        return self.num_envs * self.num_steps

    @property
    def devices_note(self) -> str:
        """A line where devices share the cores of a CPU; else ""."""
        return machine.devices_note(self.devices)


def collect(
    environment: Environment,
    actor: Actor,
    key: Array,
    devices: Sequence[jax.Device],
    *,
    num_envs: int,
    num_steps: int,
    greedy: bool = False,
    save: Path | None = None,
    parts: PartsWriter | None = None,
) -> RolloutResult:
    """Make T steps of N environments.

    Args:
      actor: () for actions drawn uniformly, among the legal ones where there are masks; or the config and
        the parameters of a policy.
      devices: over which the environments are split: the first n of them that divide `num_envs`, or one where JAX's
        jit is disabled.
      save: an .npz file for the whole data, which then passes through the host's memory. It has T+1
        `observations`, `rewards`, `discounts`, `first` and `last` (and `action_masks` and `alive`), and T `actions`,
        with the axes [T, N, ...]: action t was taken at observation t, and led to reward t+1.
      parts: writes the same data part by part instead, so that the host's memory does not grow with T.
    Raises:
      ShoalError: the file cannot be written, or a number is not finite for a reason that the environment explains.
    """
    mesh = _mesh_of(num_envs, devices)
    with write_whole_file(save) if save else parts or contextlib.nullcontext() as file:
        start_time = time.perf_counter()
        # Arrays are placed where the programs need them, so that no call has to move them.
        start = compile_ahead(start_environments, environment, actor, key, num_envs=num_envs, mesh=mesh)
        states = start(environment, actor, key)
        rows = _recorded_steps_per_call(states, environment, num_steps) if save or parts else 0
        steps_per_call = rows or max(1, min(num_steps, MAX_STEPS_PER_CALL // num_envs))
        arguments = (environment, actor, states, key, jnp.int32(0), jnp.int32(0))
        advance = compile_ahead(advance_environments, *arguments, rows=rows, greedy=greedy, mesh=mesh)
        record = Record(states.timestep, num_steps) if save else parts
        if parts:
            parts.start(recorded_fields(states.timestep), _row_bytes(states, environment), num_steps, rows)
        compile_seconds = time.perf_counter() - start_time

        start_time = time.perf_counter()
        step, chunks = functools.partial(advance, environment, actor), range(0, num_steps, steps_per_call)
        states, ended = _step_in_chunks(step, states, key, chunks, num_steps, record)
        seconds = time.perf_counter() - start_time
        if reason := explanation(environment, states.faults):
            raise ShoalError(f"a number was not finite in {reason}.")
        if isinstance(record, Record):
            np.savez(file, allow_pickle=False, **record.data)  # type: ignore[arg-type]
    return RolloutResult(
        num_envs=num_envs,
        num_steps=num_steps,
        devices=mesh.size,
        steps_per_second=num_envs * num_steps / seconds,
        seconds=seconds,
        compile_seconds=compile_seconds,
        data=None if record is None else record.data,
        path=parts.directory if parts else save,
        **_episode_statistics(*ended),
    )


def _mesh_of(num_envs: int, devices: Sequence[jax.Device]) -> Mesh:
    """Return a mesh of the first devices that divide the environments, or of one where JAX's jit is disabled."""
    most = 1 if jit_is_disabled() else len(devices)
    count = max(n for n in range(1, most + 1) if num_envs % n == 0)
    return Mesh(np.asarray(devices[:count]), (ENV_AXIS,), axis_types=(AxisType.Auto,))


def _step_in_chunks(
    step: Callable,
    states: EnvironmentStates,
    key: Array,
    starts: range,
    num_steps: int,
    record: "Record | PartsWriter | None",
) -> tuple[EnvironmentStates, np.ndarray]:
    """Step in chunks that begin at `starts`; return the states, and the sums of `EndedEpisodes`."""
    ended: Any = 0.0

    def take(chunk_ended: EndedEpisodes, recorded: PyTree, start: int, stop: int) -> None:
        """Wait for a chunk and copy it to the host."""
        nonlocal ended
        # The sums of the devices, and of several agents after the others. In float64, since only those of a chunk are
        # exact in float32.
        sums = [np.sum(np.asarray(x, np.float64), axis=0) for x in jax.tree.leaves(chunk_ended)]
        ended = ended + np.hstack(sums)
        if record is not None:
            record.add(recorded, start, stop)

    before: tuple = ()
    for start in starts:
        stop = min(start + starts.step, num_steps)
        # Arrays, so that every chunk runs the same program.
        states, *chunk = step(states, key, jnp.int32(start), jnp.int32(stop))
        if before:  # is copied while the devices make this one
            take(*before)
        before = (*chunk, start, stop)
    take(*before)
    return states, ended


def _episode_statistics(
    episodes: float, returned: float, length: float, terminated: float, *agents: float
) -> dict[str, Any]:
    """Compute the statistics of the episodes that ended from their sums; NaN where none has."""
    mean = (lambda x: float(x / episodes)) if episodes else lambda _: math.nan
    return {
        "episodes": int(episodes),
        "return_mean": mean(returned),
        "length_mean": mean(length),
        "terminated": mean(terminated),
        "agent_returns": tuple(mean(x) for x in agents),
    }


def _row_bytes(states: EnvironmentStates, environment: Environment) -> int:
    """Return the bytes of the data of a step of all environments."""
    actions = jax.eval_shape(environment.action_space.sample, jax.random.key(0))
    num_envs = states.timestep.last.shape[0]
    row_bytes = sum(x.nbytes for x in jax.tree.leaves(recorded_fields(states.timestep)))
    return row_bytes + sum(num_envs * x.size * x.dtype.itemsize for x in jax.tree.leaves(actions))


def _recorded_steps_per_call(states: EnvironmentStates, environment: Environment, num_steps: int) -> int:
    """Return the number of steps that are recorded on the devices before they are copied to the host."""
    num_envs, row_bytes = states.timestep.last.shape[0], _row_bytes(states, environment)
    return max(1, min(num_steps, MAX_RECORDED_BYTES // row_bytes, MAX_STEPS_PER_CALL // num_envs))


class Record:
    """The whole data of a rollout in the host's memory, filled in chunk by chunk.

    Attributes:
      data: by name; entries of a dictionary of observations are `observations/<name>`.
    """

    def __init__(self, timestep: TimeStep, num_steps: int):
        self.num_steps = num_steps
        self.data: dict[str, np.ndarray] = {}
        for name, x in struct.named_leaves(recorded_fields(timestep)).items():
            self.data[name] = np.empty((num_steps + 1, *x.shape), x.dtype)
            self.data[name][0] = x

    def add(self, chunk: PyTree, start: int, stop: int) -> None:
        """Store the steps `start` to `stop - 1`."""
        actions, timesteps = chunk
        for name, x in struct.named_leaves(timesteps).items():
            copy_rows(x, self.data[name][start + 1 : stop + 1])
        for name, x in struct.named_leaves({"actions": actions}).items():
            if name not in self.data:
                self.data[name] = np.empty((self.num_steps, *x.shape[1:]), x.dtype)
            copy_rows(x, self.data[name][start:stop])
