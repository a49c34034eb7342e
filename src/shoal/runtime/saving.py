"""What of a population goes to disk, and how it comes back."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shoal import trees
from shoal.errors import ShoalError
from shoal.runtime.directory import RunDirectory
from shoal.runtime.run import Run
from shoal.types import PyTree, spec_of

POLICY, LEARNER = "policy", "learner"  # what the names of saved leaves begin with


def save_policies(directory: RunDirectory, population: Run, seeds: list[int]) -> None:
    """Saves the best and the last policies of all seeds, and with the last what else was learned.

    Every leaf has a leading seed axis; the normaliser is part of the policy.
    """
    algorithm = population.config.algorithm(spec_of(population.environment))
    best, last = population.best.policy, algorithm.policy(population.learner)
    metadata = {
        "seeds": seeds,
        "scores": np.asarray(population.best.score).tolist(),
        "updates": np.asarray(population.best.updates).tolist(),
    }
    directory.save_policy("best", named(best, POLICY), metadata)
    learner = named(population.learner.shared, LEARNER)
    directory.save_policy("last", named(last, POLICY) | learner, {"seeds": seeds})


def named(tree: PyTree, prefix: str) -> dict[str, np.ndarray]:
    """The leaves of a tree as NumPy arrays by name."""
    return {f"{prefix}/{name}": np.asarray(x) for name, x in trees.named_leaves(jax.device_get(tree)).items()}


def restored(template: PyTree, leaves: Mapping[str, np.ndarray], prefix: str, member: int) -> PyTree:
    """One member's tree, of the structure of `template`, from saved leaves.

    Raises:
      ShoalError: a leaf is missing or has another shape: the run was made with other code.
    """
    found = {}
    for name, leaf in trees.named_leaves(template).items():
        saved = leaves.get(f"{prefix}/{name}")
        if saved is None:
            raise ShoalError(
                f"the saved {prefix} has no {name!r}; it was made by another version or network."
            )
        if saved.shape[1:] != leaf.shape:
            raise ShoalError(
                f"the saved {prefix} has {name!r} of shape {saved.shape[1:]}, and {leaf.shape} is expected."
            )
        found[name] = jax.numpy.asarray(saved[member], leaf.dtype)
    return trees.with_named_leaves(template, found)


def takeable(shared: PyTree, leaves: Mapping[str, Any], source: str) -> set[str]:
    """The names of what one member can take over from what another run saved: all but the optimiser's state.

    Args:
      shared: what the member learns, as arrays or their shapes.
      leaves: the other run's last policies.
      source: its name, for the message.

    Raises:
      ShoalError: a parameter has another shape there, or there is none in common.
    """
    names = set()
    for name, leaf in trees.named_leaves(shared).items():
        saved = leaves.get(f"{LEARNER}/{name}")
        if saved is None or name.startswith("optimizer"):
            continue
        if saved.shape[1:] != leaf.shape:
            raise ShoalError(
                f"from={source!r}: {name!r} has shape {saved.shape[1:]} there and {leaf.shape} here; "
                "train with the same spaces and network."
            )
        names.add(name)
    if not names:
        raise ShoalError(f"from={source!r} holds nothing that this algorithm learns.")
    return names


def take_over(population: Run, leaves: Mapping[str, Any], source: str) -> Run:
    """Puts what another run learned into a new population (see `takeable`).

    Seed k takes over from the k-th seed of the other run, which start again from the first where it has fewer.

    Raises:
      ShoalError: as `takeable`.
    """
    shared = population.learner.shared
    names = takeable(jax.eval_shape(lambda tree: jax.tree.map(lambda x: x[0], tree), shared), leaves, source)

    def take(path: tuple, leaf: jax.Array) -> jax.Array:
        name = trees.path_name(path)
        if name not in names:
            return leaf
        saved = leaves[f"{LEARNER}/{name}"]
        members = np.arange(leaf.shape[0]) % saved.shape[0]
        return jax.device_put(saved[members].astype(leaf.dtype), leaf.sharding)

    shared = jax.tree_util.tree_map_with_path(take, shared)
    return dataclasses.replace(population, learner=population.learner._replace(shared=shared))
