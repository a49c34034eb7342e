"""T steps of N environments over all devices, by random actions or a policy: statistics, or the whole data.

The environments are split over the devices. The keys of actions and resets depend on each environment's
index, so that the data does not depend on the number of devices, and no device waits for another. The steps
are made in chunks by one compiled program, so that the memory of a device and the size of a 32-bit sum do not
grow with T.
"""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from shoal import trees
from shoal.envs.batch import Batch
from shoal.errors import ShoalError
from shoal.files import write_whole_file
from shoal.runtime import team
from shoal.runtime.faults import FirstFaults, explanation, keep_first_faults, no_faults
from shoal.runtime.rollout import EndedEpisodes, count_episodes, no_ended_episodes
from shoal.runtime.run import ENV_AXIS, Episodes
from shoal.types import Array, Environment, Memory, PyTree, TimeStep, for_actor, spec_of
from shoal.xla.backend import compile_ahead, jit_is_disabled

MAX_STEPS_PER_CALL = 2**22  # of all environments: sums of so many ones are exact in float32
MAX_RECORDED_BYTES = 2**26  # of the recorded data, on all devices together
RESET, STEP = 0, 1  # key streams

Actor = tuple  # () for random actions; (config, parameters) for a policy


class EnvironmentStates(NamedTuple):
    """State of the environments between chunks, [N, ...]."""

    state: PyTree
    timestep: TimeStep
    memory: Memory
    episodes: Episodes
    faults: FirstFaults | tuple[()]  # () where the environment explains none


@dataclasses.dataclass(frozen=True)
class RolloutResult:
    """The result of a rollout.

    Attributes:
      num_envs: N.
      num_steps: T, steps of each environment.
      devices: the number of devices that took part.
      episodes: the number of episodes that ended.
      return_mean: over the episodes that ended, of the team where there are several agents; NaN if none did.
      length_mean: over the same episodes, in steps; NaN if there are none.
      terminated: the share of them that terminated; the others were truncated.
      agent_returns: the mean return of each of several agents; () for one.
      steps_per_second: environment steps of all environments divided by `seconds`.
      seconds: wall time of the steps (including the copy to the host, where data is saved).
      compile_seconds: wall time of compiling, which is not in `seconds`.
      data: the saved data, by name; None if nothing was saved.
      path: the file of the saved data.
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
    data: dict[str, np.ndarray] | None = dataclasses.field(default=None, repr=False)
    path: Path | None = None

    @property
    def steps(self) -> int:
        """The environment steps of all environments together."""
        return self.num_envs * self.num_steps


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
) -> RolloutResult:
    """Make T steps of N environments.

    Args:
      environment: its numbers as arrays.
      actor: () for actions drawn uniformly, among the legal ones where there are masks; or the config and
        the parameters of a policy.
      key: of the whole rollout.
      devices: over which the environments are split: the first n of them that divide `num_envs`, or one where JAX's
        jit is disabled.
      num_envs: N.
      num_steps: T.
      greedy: whether a policy takes its mode instead of a sample.
      save: an .npz file for the whole data, which then passes through the host's memory. It has T+1
        `observations`, `rewards`, `discounts`, `first` and `last` (and `action_masks` and `alive`), and T `actions`,
        with the axes [T, N, ...]: action t was taken at observation t, and led to reward t+1.
    Raises:
      ShoalError: the file cannot be written, or a number is not finite for a reason that the environment explains.
    """
    if jit_is_disabled():
        devices = devices[:1]
    num_devices = max(n for n in range(1, len(devices) + 1) if num_envs % n == 0)
    mesh = Mesh(np.asarray(devices[:num_devices]), (ENV_AXIS,), axis_types=(AxisType.Auto,))
    with write_whole_file(save) if save else contextlib.nullcontext() as file:
        start_time = time.perf_counter()
        # Arrays are placed where the programs need them, so that no call has to move them.
        start = compile_ahead(_start, environment, actor, key, num_envs=num_envs, mesh=mesh)
        states = start(environment, actor, key)
        rows = 0 if save is None else _recorded_steps_per_call(states, environment, num_steps)
        steps_per_call = rows or max(1, min(num_steps, MAX_STEPS_PER_CALL // num_envs))
        arguments = (environment, actor, states, key, jnp.int32(0), jnp.int32(0))
        advance = compile_ahead(_advance, *arguments, rows=rows, greedy=greedy, mesh=mesh)
        record = Record(states.timestep, num_steps) if save else None
        compile_seconds = time.perf_counter() - start_time

        start_time = time.perf_counter()
        step = functools.partial(advance, environment, actor)
        chunks = range(0, num_steps, steps_per_call)
        states, ended = _step_in_chunks(step, states, key, chunks, num_steps, record)
        seconds = time.perf_counter() - start_time
        if reason := explanation(environment, states.faults):
            raise ShoalError(f"a number was not finite in {reason}.")
        if file is not None and record is not None:
            np.savez(file, allow_pickle=False, **record.arrays)
    return RolloutResult(
        num_envs=num_envs,
        num_steps=num_steps,
        devices=num_devices,
        steps_per_second=num_envs * num_steps / seconds,
        seconds=seconds,
        compile_seconds=compile_seconds,
        data=record.arrays if record else None,
        path=save,
        **_episode_statistics(*ended),
    )


def _step_in_chunks(
    step: Callable,
    states: EnvironmentStates,
    key: Array,
    starts: range,
    num_steps: int,
    record: "Record | None",
) -> tuple[EnvironmentStates, np.ndarray]:
    """Step in chunks that begin at `starts`; return the states, and the sums of `EndedEpisodes`."""
    ended: Any = 0.0
    for start in starts:
        stop = min(start + starts.step, num_steps)
        states, chunk_ended, recorded = step(states, key, jnp.int32(start), jnp.int32(stop))
        # Waits for the chunk; the sums of the devices, and of several agents after the others.
        sums = [np.sum(np.asarray(x, np.float64), axis=0) for x in jax.tree.leaves(chunk_ended)]
        ended = ended + np.hstack(sums)
        if record is not None:
            record.add(recorded, start, stop)
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


@functools.partial(jax.jit, static_argnames=("num_envs", "mesh"))
def _start(
    environment: Environment, actor: Actor, key: Array, *, num_envs: int, mesh: Mesh
) -> EnvironmentStates:
    """Start all environments, each on its own device."""

    def start(environment: Environment, actor: Actor, key: Array) -> EnvironmentStates:
        batch = Batch(environment, num_envs=num_envs // mesh.size)
        state, timestep = batch.reset(jax.random.fold_in(key, RESET), _first_index(batch))
        episodes = Episodes(team.zeros(environment, batch.num_envs), jnp.zeros(batch.num_envs))
        memory = _initial_memory(environment, actor, batch.num_envs)
        return EnvironmentStates(state, timestep, memory, episodes, no_faults(environment, state.env))

    return _over_devices(start, mesh, P(), P(ENV_AXIS))(environment, actor, key)


@functools.partial(jax.jit, static_argnames=("rows", "greedy", "mesh"), donate_argnames="states")
def _advance(
    environment: Environment,
    actor: Actor,
    states: EnvironmentStates,
    key: Array,
    start: Array,
    stop: Array,
    *,
    rows: int,
    greedy: bool,
    mesh: Mesh,
) -> tuple[EnvironmentStates, EndedEpisodes, PyTree]:
    """Make the steps `start` to `stop - 1`, whose numbers are data.

    Returns:
      the state after them, the sums over the episodes that ended, [devices], and the actions and the time-steps
      that they led to, [rows, N, ...]; () if `rows` is 0.
    """

    def advance(environment, actor, states, key, start, stop):  # type: ignore[no-untyped-def]
        batch = Batch(environment, num_envs=states.timestep.last.shape[0])

        def step(
            states: EnvironmentStates, ended: EndedEpisodes, t: Array
        ) -> tuple[EnvironmentStates, EndedEpisodes, PyTree]:
            act_key, env_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, STEP), t))
            memory, action = _act(batch, actor, states, act_key, greedy)
            state, timestep = batch.step(states.state, action, env_key, _first_index(batch))
            episodes, ended = count_episodes(batch.env, states.episodes, ended, timestep, states.timestep)
            row = (action, _recorded_fields(timestep)) if rows else ()
            faults = keep_first_faults(states.faults, state.env, timestep)
            return EnvironmentStates(state, timestep, memory, episodes, faults), ended, row

        def body(t: Array, carry: tuple) -> tuple:
            states, ended, table = carry
            states, ended, row = step(states, ended, t)
            return states, ended, jax.tree.map(lambda xs, x: xs.at[t - start].set(x), table, row)

        none_ended = no_ended_episodes(environment.num_agents)
        shapes = jax.eval_shape(step, states, none_ended, start)[2]
        table = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), shapes)
        states, ended, table = jax.lax.fori_loop(start, stop, body, (states, none_ended, table))
        return states, jax.tree.map(lambda x: x[None], ended), table

    per_env = P(ENV_AXIS)
    in_specs, out_specs = (P(), P(), per_env, P(), P(), P()), (per_env, per_env, P(None, ENV_AXIS))
    return _over_devices(advance, mesh, in_specs, out_specs)(environment, actor, states, key, start, stop)


def _over_devices(function: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    """Split a function over the devices of a mesh; where jit is disabled, call it as it is, on one device.

    JAX would compile each operation within `shard_map` by itself then, and hide the values from a debugger.
    """
    if jit_is_disabled():
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def _first_index(batch: Batch) -> Array:
    """Return the index of a device's first environment among all."""
    return jnp.int32(0) if jit_is_disabled() else jax.lax.axis_index(ENV_AXIS) * batch.num_envs


def _initial_memory(environment: Environment, actor: Actor, num_envs: int) -> Memory:
    """Make the memory of each environment's policy, which acts as on a batch of one."""
    if not actor:
        return ()
    memory = actor[0].algorithm(spec_of(environment)).memory((1,))
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_envs, *x.shape)), memory)


def _act(
    batch: Batch, actor: Actor, states: EnvironmentStates, key: Array, greedy: bool
) -> tuple[Memory, PyTree]:
    """Choose the actions of a device's environments, each with a key that depends on its environment's index."""
    first_index = _first_index(batch)
    if not actor:
        return (), batch.sample_actions(states.timestep, key, first_index)
    config, parameters = actor
    spec = spec_of(batch.env)
    algorithm = config.algorithm(spec)

    def act_one(memory: Memory, timestep: TimeStep, index: Array) -> tuple[Memory, PyTree]:
        environment_key = jax.random.fold_in(key, index)
        batch_of_one = jax.tree.map(lambda x: x[None], for_actor(timestep, spec))
        memory, action, _ = algorithm.act(parameters, memory, batch_of_one, environment_key, greedy=greedy)
        return memory, jax.tree.map(lambda x: x[0], action)

    indices = first_index + jnp.arange(batch.num_envs)
    return jax.vmap(act_one)(states.memory, states.timestep, indices)


def _recorded_fields(timestep: TimeStep) -> dict[str, PyTree]:
    """Return the recorded parts of a time-step by their names in the file."""
    fields = {
        "observations": timestep.observation,
        "rewards": timestep.reward,
        "discounts": timestep.discount,
        "first": timestep.first,
        "last": timestep.last,
    }
    further = {"action_masks": timestep.action_mask, "alive": timestep.alive}
    return fields | {name: x for name, x in further.items() if x is not None}


def _recorded_steps_per_call(states: EnvironmentStates, environment: Environment, num_steps: int) -> int:
    """Return the number of steps that are recorded on the devices before they are copied to the host."""
    actions = jax.eval_shape(environment.action_space.sample, jax.random.key(0))
    row_bytes = sum(x.nbytes for x in jax.tree.leaves(_recorded_fields(states.timestep)))
    num_envs = states.timestep.last.shape[0]
    row_bytes += sum(num_envs * x.size * x.dtype.itemsize for x in jax.tree.leaves(actions))
    return max(1, min(num_steps, MAX_RECORDED_BYTES // row_bytes, MAX_STEPS_PER_CALL // num_envs))


class Record:
    """The whole data of a rollout in the host's memory, filled in chunk by chunk.

    Attributes:
      arrays: by name; entries of a dictionary of observations are `observations/<name>`.
    """

    def __init__(self, timestep: TimeStep, num_steps: int):
        self.num_steps = num_steps
        self.arrays: dict[str, np.ndarray] = {}
        for name, x in trees.named_leaves(_recorded_fields(timestep)).items():
            self.arrays[name] = np.empty((num_steps + 1, *x.shape), x.dtype)
            self.arrays[name][0] = x

    def add(self, chunk: PyTree, start: int, stop: int) -> None:
        """Store the steps `start` to `stop - 1`."""
        actions, timesteps = chunk
        rows = stop - start
        for name, x in trees.named_leaves(timesteps).items():
            self.arrays[name][start + 1 : stop + 1] = np.asarray(x)[:rows]
        for name, x in trees.named_leaves({"actions": actions}).items():
            if name not in self.arrays:
                self.arrays[name] = np.empty((self.num_steps, *x.shape[1:]), x.dtype)
            self.arrays[name][start:stop] = np.asarray(x)[:rows]
