"""Numbers that are not finite: noticed in the update in which they appear, and located when it is made again."""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.config import struct
from shoal.envs.base import can_explain_faults, explain_fault
from shoal.types import Array, Environment, Learner, PyTree, State, TimeStep, Trajectory, transitions
from shoal.types.agent_axis import fold_trajectory, observations_of_agents, trajectory_of_streams, unfold

NOWHERE = -1  # the index of an environment where none is at fault, and the update of a run without fault
# In the place of the update of a run that was stopped early: it makes no further one, and has no fault.
STOPPED = -2


def failed_members(faults: object) -> list[int]:
    """List the members that made an update in which something was not finite, by their `Run.fault`, [members]."""
    return np.flatnonzero(~np.isin(np.asarray(faults), (NOWHERE, STOPPED))).tolist()


def find_faults(trajectory: Trajectory, learner: Learner, checks: Mapping[str, object]) -> dict[str, Array]:
    """Report which quantities of an update are not finite, by name, in the order in which they are computed.

    Observations count where an action was taken at them in a transition, or a value is bootstrapped from them; rewards
    and the algorithm's extras where the transition has weight 1 (for several agents: the world's). Everything else may
    hold anything. Extras and parameters may be infinite (the logits of illegal actions are), but not NaN.

    Returns:
      whether each is at fault: [N] for those of environments, else scalars.
    """
    found = _timestep_faults(trajectory)
    counts = ~trajectory.timesteps.last[:-1]
    for name, x in _floats(trajectory.extras, "extras").items():
        found[name] = _any_step(counts, _any_entry(jnp.isnan(x)))
    found |= {name: jnp.any(jnp.asarray(x)) for name, x in checks.items()}
    for name, x in _floats(learner.shared, "learner/shared").items():
        found[name] = jnp.any(jnp.isnan(x))
    return found


def _timestep_faults(trajectory: Trajectory) -> dict[str, Array]:
    """Report which observations and rewards are not finite, of each environment, [N]."""
    alone = trajectory._replace(actions=(), extras=(), memory=())
    num_agents = trajectory.timesteps.reward.shape[-1] if trajectory.timesteps.has_agents else 0
    if num_agents:
        timesteps = alone.timesteps._replace(observation=observations_of_agents(alone.timesteps))
        alone = fold_trajectory(trajectory_of_streams(alone._replace(timesteps=timesteps)))
    steps = transitions(alone)
    counts = steps.weight > 0
    bootstraps = counts & (steps.discount > 0)
    found: dict[str, Array] = {}
    for name, x in _floats(alone.timesteps.observation, "observation").items():
        faulty = _any_entry(~jnp.isfinite(x))
        found[name] = _any_step(counts, faulty[:-1]) | _any_step(bootstraps, faulty[1:])
    found["reward"] = _any_step(counts, ~jnp.isfinite(alone.timesteps.reward[1:]))
    return {name: jnp.any(unfold(x, num_agents), axis=1) if num_agents else x for name, x in found.items()}


def has_fault(found: Mapping[str, Array], axis: tuple[str, ...] = ()) -> Array:
    """Report whether anything is at fault, in any group of environments."""
    any_fault = jnp.any(jnp.stack([jnp.any(x) for x in found.values()]))
    return jax.lax.pmax(any_fault.astype(jnp.int32), axis) > 0 if axis else any_fault


def locate(found: Mapping[str, Array], axis: tuple[str, ...] = ()) -> dict[str, tuple[Array, Array]]:
    """Return whether each quantity is at fault, and the first environment in which it is (NOWHERE if in none).

    Their names begin with a number, since a compiled program sorts them.
    """
    located = {}
    for number, (name, x) in enumerate(found.items()):
        index = jnp.int32(NOWHERE)
        if x.ndim:
            first = jax.lax.axis_index(axis) * len(x) if axis else 0
            index = jnp.where(jnp.any(x), first + jnp.argmax(x), jnp.iinfo(jnp.int32).max)
            index = jax.lax.pmin(index, axis) if axis else index
            index = jnp.where(index == jnp.iinfo(jnp.int32).max, NOWHERE, index)
        at_fault = jnp.any(x).astype(jnp.int32)
        located[f"{number:04} {name}"] = (
            jax.lax.pmax(at_fault, axis) if axis else at_fault,
            index.astype(jnp.int32),
        )
    return located


class FirstFaults(NamedTuple):
    """The state of each environment in which a number that it returned was first not finite."""

    state: State  # [N, ...]; anything where there was none
    is_faulty: Array  # whether there was one, [N]


def no_faults(environment: Environment, state: State) -> FirstFaults | tuple[()]:
    """Return the initial value for `keep_first_faults`; () for an environment that explains no faults."""
    if not can_explain_faults(environment):
        return ()
    return FirstFaults(state, jnp.zeros(jax.tree.leaves(state)[0].shape[0], bool))


def keep_first_faults(
    faults: FirstFaults | tuple[()], state: State, timestep: TimeStep
) -> FirstFaults | tuple[()]:
    """Keep the states of the environments whose observation or reward is not finite for the first time."""
    if not isinstance(faults, FirstFaults):
        return faults
    returned = [x for x in jax.tree.leaves((timestep.observation, timestep.reward)) if _is_float(x)]
    is_faulty = jnp.zeros_like(faults.is_faulty)
    for x in returned:
        is_faulty |= jnp.any(~jnp.isfinite(x), axis=tuple(range(1, x.ndim)))
    is_new = is_faulty & ~faults.is_faulty
    return FirstFaults(struct.where(is_new, state, faults.state), faults.is_faulty | is_faulty)


def explanation(environment: Environment, faults: FirstFaults | tuple[()]) -> str | None:
    """Return the environment's explanation of the first fault that it can explain, with that environment's number."""
    if not isinstance(faults, FirstFaults):
        return None
    for index in np.flatnonzero(np.asarray(faults.is_faulty)):
        if sentence := explain_fault(environment, jax.tree.map(lambda x, i=index: x[i], faults.state)):
            return f"environment {index}: {sentence}"
    return None


def _is_float(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def _floats(tree: PyTree, prefix: str) -> dict[str, Array]:
    """Return the leaves of floating-point numbers by name."""
    leaves = struct.named_leaves(tree)
    return {f"{prefix}/{name}" if name else prefix: x for name, x in leaves.items() if _is_float(x)}


def _any_entry(faulty: Array) -> Array:
    """Reduce [T, N, ...] to [T, N]."""
    return jnp.any(faulty, axis=tuple(range(2, faulty.ndim)))


def _any_step(counts: Array, faulty: Array) -> Array:
    """Reduce [T, N] to [N]: whether anything is faulty at a step that counts."""
    return jnp.any(counts & faulty, axis=0)
