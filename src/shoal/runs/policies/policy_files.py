"""Conversion between a population and its policies on disk."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.engine.nonfinite import failed_members
from shoal.engine.run import Run, policy_of
from shoal.records import arrays
from shoal.records.directory import RunDirectory
from shoal.records.json_files import read_number, report_wrong_types
from shoal.records.members import Members, to_metadata
from shoal.types import Array, PyTree

T = TypeVar("T")
Leaf = TypeVar("Leaf")

POLICY, LEARNER = "policy", "learner"  # the first parts of the names of saved leaves
LOCAL = f"{LEARNER}/local"  # of those of `Learner.local` in a checkpoint


def check_storable(population: Run) -> int:
    """Require that `save_best` and `save_last` will be able to save a population; computes nothing.

    Returns:
      the number of bytes of the policies.
    Raises:
      ShoalError: two leaves have one name, or the format cannot hold a name or a dtype; the sentence names the leaf.
    """
    shapes = jax.eval_shape(lambda run: ({POLICY: run.best.policy}, _last_trees(run)), population)
    files = [_prefixed_leaves(trees) for trees in shapes]
    for leaves in files:
        arrays.check_storable(leaves)
    written = [x for leaves in files for x in leaves.values()]
    storable = [jax.eval_shape(jax.random.key_data, x) if arrays.is_key(x) else x for x in written]
    return sum(x.size * x.dtype.itemsize for x in storable)


def save_best(directory: RunDirectory, population: Run, members: Members) -> None:
    """Save the best policies of all members, with their scores; the normaliser is part of the policy.

    Every leaf has a leading member axis.

    Raises:
      ShoalError: they cannot be written.
    """
    metadata = {
        **_metadata(population, members),
        "scores": np.asarray(population.best.score).tolist(),
        "updates": np.asarray(population.best.updates).tolist(),
    }
    leaves = _prefixed_leaves(jax.device_get({POLICY: population.best.policy}))
    directory.save_policy("best", leaves, metadata)


def save_last(directory: RunDirectory, population: Run, members: Members) -> None:
    """Save the last policies of all members, and the rest of their learners.

    Raises:
      ShoalError: they cannot be written.
    """
    leaves = _prefixed_leaves(jax.device_get(_last_trees(population)))
    metadata = _metadata(population, members) | {"updates": np.asarray(population.updates).tolist()}
    directory.save_policy("last", leaves, metadata)


def _metadata(population: Run, members: Members) -> dict[str, Any]:
    failed = failed_members(population.fault)
    has_masks = population.timestep.action_mask is not None
    return to_metadata(members) | {
        "failed": [k in failed for k in range(len(members))],
        "has_masks": has_masks,
    }


def _last_trees(population: Run) -> dict[str, PyTree]:
    """Return the trees that are saved as "last", by the prefix of their leaves' names; one program."""
    return {POLICY: jax.jit(jax.vmap(policy_of))(population), LEARNER: population.learner.shared}


def _prefixed_leaves(trees_by_prefix: Mapping[str, PyTree]) -> dict[str, Any]:
    # A tree that is one array has no name below its prefix, and the name ends in a slash.
    return {
        f"{prefix}/{name}": leaf
        for prefix, tree in trees_by_prefix.items()
        for name, leaf in struct.named_leaves(tree).items()
    }


def leaves_below(leaves: Mapping[str, Leaf], prefix: str) -> dict[str, Leaf]:
    """Select the leaves whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in leaves.items() if name.startswith(prefix)}


def learner_leaves(checkpoint: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Select the learner's leaves from those of a checkpoint, by the names that `save_last` gives them."""
    return {f"{LEARNER}/{name}": x for name, x in leaves_below(checkpoint, f"{LEARNER}/shared/").items()}


def best_leaves(checkpoint: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """Select the best policies' leaves from those of a checkpoint, by the names that `save_best` gives them."""
    found = leaves_below(checkpoint, f"best/{POLICY}")  # the whole name of a policy that is one array
    return {f"{POLICY}/{name.removeprefix('/')}": x for name, x in found.items()}


def best_scores(directory: RunDirectory) -> list[float]:
    """Return the scores of all members' best policies.

    Raises:
      ShoalError: the policies are missing or damaged.
    """
    metadata = directory.load_policy("best")[1]
    with report_wrong_types(str(directory.path / "best")):
        return [read_number(x) for x in metadata["scores"]]


def with_best_score(
    places: Sequence[int],
    members: Members,
    scores: Sequence[float | None],
    failed: Sequence[int],
    missing: str,
) -> int:
    """Return the place of the member with the highest finite score of those that have not failed.

    Raises:
      ShoalError: no such score is finite.
    """
    values = np.array([read_number(scores[k]) if len(scores) and k not in failed else np.nan for k in places])
    if not np.isfinite(values).any():
        if set(places) <= set(failed):
            missing = "each of them had a number that was not finite"
        names = ", ".join(str(members[k].seed) for k in places)
        raise ShoalError(f"{missing}, so that no seed is the best; name one: seed={names}.")
    return places[int(np.argmax(np.where(np.isfinite(values), values, -np.inf)))]


def restore(template: T, leaves: Mapping[str, Array], prefix: str, member: int) -> T:
    """Restore one member's tree, of the structure of `template`, from saved leaves.

    Raises:
      ShoalError: a leaf is missing, has another shape or is another kind of key: the run was made with other code.
    """
    restored_leaves = {}
    for name, leaf in struct.named_leaves(template).items():
        saved, problem = leaves.get(f"{prefix}/{name}"), ""
        is_key = arrays.is_key(leaf)
        if saved is None:
            problem = f"has no {name!r}; it was made by another version or network"
        elif saved.shape[1:] != leaf.shape:
            problem = f"has {name!r} of shape {saved.shape[1:]}, and {leaf.shape} is expected"
        # Numbers of another dtype are converted, and keys of another kind are other random numbers.
        elif (is_key or arrays.is_key(saved)) and saved.dtype != leaf.dtype:
            problem = f"has {name!r} of dtype {saved.dtype}, and {leaf.dtype} is expected"
        if saved is None or problem:
            raise ShoalError(f"the saved {prefix} {problem}.")
        restored_leaves[name] = saved[member] if is_key else jax.numpy.asarray(saved[member], leaf.dtype)
    return struct.with_named_leaves(template, restored_leaves)
