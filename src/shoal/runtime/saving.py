"""What of a population goes to disk, and how it comes back."""

from collections.abc import Mapping

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
