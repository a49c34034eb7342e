"""Start of a population from another run's parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.engine.run import Run, policy_of
from shoal.runs.policies.policy_files import LEARNER, leaves_below
from shoal.types import Learner, PyTree, contract, spec_of

# What a run had learned, as `learner_leaves` returns it: by name, each with a leading axis of members.
SavedLeaves = Mapping[str, np.ndarray]


def check_inherit(member: Run, saved: SavedLeaves, algorithm: str, source: str) -> None:
    """Trace `inherit` for one member, so that a mismatch is known before anything compiles.

    Raises:
      ShoalError: the algorithm has no `inherit`, it refuses the leaves, or it returns another structure.
    """
    inherit = member.config.algorithm(spec_of(member.environment)).inherit
    if inherit is None:
        raise ShoalError(
            f"from={source!r} cannot be used with algorithm={algorithm!r}: its Algorithm has no `inherit`, the "
            "function that says what a learner takes over from another run; leave --from out, or add one."
        )
    shapes = {name: jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for name, x in saved.items()}
    try:
        new = jax.eval_shape(inherit_learner, member, shapes)
    except ShoalError as error:
        raise ShoalError(f"from={source!r} does not fit: {error}") from error
    contract.require_same(inherit, "learner", new, member.learner)


def inherit(population: Run, saved: SavedLeaves, seeds: int) -> Run:
    """Start each member from the learner of a member of another run.

    The member of the k-th of `seeds` seeds starts from the k-th member of the other run; where that has fewer, its
    members are used again from the first on. The best policy so far becomes the inherited one. The leaves must have
    been checked (`check_inherit`).
    """
    members = population.updates.shape[0]
    own: dict[str, Any] = {name: x[np.arange(members) % seeds % len(x)] for name, x in saved.items()}
    learner, policy = jax.vmap(_inherit_with_policy)(population, own)
    placed = jax.tree.map(lambda x: x.sharding, (population.learner, population.best))
    learner, best = jax.device_put((learner, population.best._replace(policy=policy)), placed)
    return dataclasses.replace(population, learner=learner, best=best)


def inherit_learner(run: Run, saved: Mapping[str, Any]) -> Learner:
    """Return the learner of one run as its algorithm takes it over from saved leaves, which must have been checked."""
    return run.config.algorithm(spec_of(run.environment)).inherit(run.learner, saved)  # type: ignore[misc]  # checked before


def _inherit_with_policy(run: Run, saved: Mapping[str, jax.Array]) -> tuple[Learner, PyTree]:
    learner = jax.tree.map(jnp.asarray, inherit_learner(run, saved))
    return learner, policy_of(dataclasses.replace(run, learner=learner))


def learner_leaves(leaves: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    """Return the leaves of the learner that a run saved, by their names within `learner.shared`.

    Raises:
      ShoalError: there are none.
    """
    if not (found := leaves_below(leaves, f"{LEARNER}/")):
        raise ShoalError(f"from={source!r} cannot be used: the run saved nothing of what it had learned.")
    return found
