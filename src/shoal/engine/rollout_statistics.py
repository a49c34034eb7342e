"""Programs of rollouts over all devices: N environments, by random actions or a policy.

The environments are split over the devices. The keys of actions and resets depend on each environment's
index, so that the data does not depend on the number of devices, and no device waits for another.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shoal.engine import team
from shoal.engine.nonfinite import FirstFaults, keep_first_faults, no_faults
from shoal.engine.rollout import EndedEpisodes, count_episodes, no_ended_episodes
from shoal.engine.run import ENV_AXIS, Episodes
from shoal.envs.batch import Batch
from shoal.types import Array, Environment, Memory, PyTree, TimeStep, for_actor, spec_of
from shoal.xla.backend import jit_is_disabled
from shoal.xla.hoisting import split_by_key
from shoal.xla.loops import loop_in_blocks

RESET, STEP = 0, 1  # key streams

Actor = tuple  # () for random actions; (config, parameters) for a policy


class EnvironmentStates(NamedTuple):
    """State of the environments between chunks, [N, ...]."""

    state: PyTree
    timestep: TimeStep
    memory: Memory
    episodes: Episodes
    faults: FirstFaults | tuple[()]  # () where the environment explains none


@functools.partial(jax.jit, static_argnames=("num_envs", "mesh"))
def start_environments(
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
def advance_environments(
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
        indices = _first_index(batch) + jnp.arange(batch.num_envs)
        draw, finish = _split_act(batch, actor, states, key, greedy)

        def draw_step(t: Array) -> tuple[PyTree, Array]:
            act_key, env_key = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, STEP), t))
            return jax.vmap(lambda index: draw(jax.random.fold_in(act_key, index)))(indices), env_key

        def step(
            states: EnvironmentStates, ended: EndedEpisodes, drawn: tuple[PyTree, Array]
        ) -> tuple[EnvironmentStates, EndedEpisodes, PyTree]:
            memory, action = finish(drawn[0], states)
            state, timestep = batch.step(states.state, action, drawn[1], indices[0])
            episodes, ended = count_episodes(batch.env, states.episodes, ended, timestep, states.timestep)
            row = (action, recorded_fields(timestep)) if rows else ()
            faults = keep_first_faults(states.faults, state.env, timestep)
            return EnvironmentStates(state, timestep, memory, episodes, faults), ended, row

        def body(t: Array, drawn: tuple[PyTree, Array], carry: tuple) -> tuple:
            states, ended, table = carry
            states, ended, row = step(states, ended, drawn)
            return states, ended, jax.tree.map(lambda xs, x: xs.at[t - start].set(x), table, row)

        none_ended = no_ended_episodes(environment.num_agents)
        shapes = jax.eval_shape(lambda: step(states, none_ended, draw_step(start)))[2]
        table = jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), shapes)
        states, ended, table = loop_in_blocks(draw_step, body, start, stop, (states, none_ended, table))
        return states, jax.tree.map(lambda x: x[None], ended), table

    per_env = P(ENV_AXIS)
    in_specs, out_specs = (P(), P(), per_env, P(), P(), P()), (per_env, per_env, P(None, ENV_AXIS))
    return _over_devices(advance, mesh, in_specs, out_specs)(environment, actor, states, key, start, stop)


def _over_devices(function: Callable, mesh: Mesh, in_specs: object, out_specs: object) -> Callable:
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


def _split_act(
    batch: Batch, actor: Actor, states: EnvironmentStates, key: Array, greedy: bool
) -> tuple[Callable, Callable]:
    """Split the choice of an environment's action into what its key alone decides, and the rest for all environments.

    Returns:
      `draw(key) -> draws` of one environment, and `finish(draws, states) -> memory, action` of all.
    """
    spec = spec_of(batch.env)
    config, parameters = actor or ((), ())

    def act_one(key: Array, parameters: PyTree, memory: Memory, timestep: TimeStep) -> tuple[Memory, PyTree]:
        if not actor:
            return (), batch.sample_action(key, timestep.action_mask)
        batch_of_one = jax.tree.map(lambda x: x[None], for_actor(timestep, spec))
        memory, action, _ = config.algorithm(spec).act(parameters, memory, batch_of_one, key, greedy=greedy)
        return memory, jax.tree.map(lambda x: x[0], action)

    one = jax.tree.map(lambda x: x[0], (states.memory, states.timestep))
    draw, finish_one = split_by_key(act_one, key, parameters, *one)

    def finish(draws: PyTree, states: EnvironmentStates) -> tuple[Memory, PyTree]:
        return jax.vmap(finish_one, (0, None, 0, 0))(draws, parameters, states.memory, states.timestep)

    return draw, finish


def recorded_fields(timestep: TimeStep) -> dict[str, PyTree]:
    """Return the recorded parts of a time-step by their names in the file."""
    fields = {
        "observations": timestep.observation,
        "rewards": timestep.reward,
        "discounts": timestep.discount,
        "first": timestep.first,
        "last": timestep.last,
    }
    further = {"action_masks": timestep.action_mask, "alive": timestep.alive, "restarted": timestep.restarted}
    return fields | {name: x for name, x in further.items() if x is not None}
