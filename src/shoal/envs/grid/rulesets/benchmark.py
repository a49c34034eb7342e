"""Benchmarks: many rulesets of one shape, to be split, sampled, shuffled and filtered."""

import dataclasses
import hashlib
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.files import user_path
from shoal.envs.grid.rulesets import benchmark_files, distinct, generation
from shoal.envs.grid.rulesets.generation import GenerationConfig, RandomStream
from shoal.envs.grid.rulesets.rulesets import Ruleset
from shoal.types import Array

TRAIN, HELD_OUT = "train", "held-out"
CHECKSUM_DIGITS = 16
SHUFFLE_STREAM, HOLD_OUT_STREAM = 1, 2  # the streams of its draws; that of a ruleset's own is 0


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Many rulesets of one shape, as data.

    Attributes:
      num_held_out: the number of rulesets, the last ones, that are kept for evaluation; 0 if this is not known.
      about: how they were made, as JSON values.
    """

    rulesets: Ruleset
    num_held_out: int = 0
    about: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @classmethod
    def make(
        cls, config: GenerationConfig, count: int, *, seed: int = 0, held_out: float = 0.2
    ) -> "Benchmark":
        """Make a new benchmark of different rulesets; `generation.PUBLISHED` is the paper's config.

        Args:
          held_out: the share of them, the last ones, that are kept for evaluation. No ruleset for training has
            the goal and the rules of one of these.
        Raises:
          ShoalError: as in `generation.generate`; or the share is not possible; or a file cannot hold so many.
        """
        if not 0 <= held_out < 1:
            raise ShoalError(f"held_out={held_out} is not a share of the rulesets, from 0 to less than 1")
        benchmark_files.check_size(count * generation.bytes_per_ruleset(config), f"rulesets={count:,}: they")
        settings = dataclasses.asdict(config)
        about = {"generation": settings | {"goals": list(config.goals) or "all"}, "seed": seed}
        # Shuffled, since rare kinds are found early.
        in_random_order = cls(generation.generate(count, config, seed), about=about).shuffle(seed)
        is_held_out = _held_out_mask(in_random_order.rulesets, min(round(count * held_out), count - 1), seed)
        ordered = in_random_order[np.argsort(is_held_out, kind="stable")]
        return dataclasses.replace(ordered, num_held_out=int(is_held_out.sum()))

    @classmethod
    def load(cls, path: str | Path) -> "Benchmark":
        """Read a file that `save` wrote, or one of the original's; no content of the file is executed.

        Args:
          path: of the file, or the name of a benchmark that is published, such as "small-1m".
        Raises:
          ShoalError: it is missing, damaged, too large, empty or not a benchmark, or a ruleset has a kind or tile
            that does not exist.
        """
        return cls(*benchmark_files.read(benchmark_files.find_file(path)))

    def save(self, path: str | Path) -> None:
        """Write the file; it is complete or does not exist.

        Raises:
          ShoalError: there are no rulesets, `load` would refuse the file, or it cannot be written.
        """
        benchmark_files.write(user_path(path, "benchmark"), self.rulesets, self.num_held_out, self.about)

    def __len__(self) -> int:
        return len(self.rulesets.goal)

    def __getitem__(self, selection: slice | np.ndarray) -> "Benchmark":
        """Select the rulesets of a slice, a mask [n] or indices [k]; the result does not know which were held out."""
        return Benchmark(Ruleset(*(array[selection] for array in self.rulesets)), about=self.about)

    def ruleset(self, number: int) -> Ruleset:
        """Return the ruleset of an index, without a leading axis.

        Raises:
          ShoalError: there is no such index.
        """
        if not 0 <= number < len(self):
            raise ShoalError(
                f"there is no ruleset {number}; the {len(self):,} are numbered from 0 to {len(self) - 1}"
            )
        return Ruleset(*(array[number] for array in self.rulesets))

    def sample(self, key: Array) -> Ruleset:
        """Draw one of the rulesets uniformly; may be traced, and mapped over keys.

        Raises:
          ShoalError: the benchmark is empty.
        """
        if not len(self):
            raise ShoalError("there are no rulesets to sample from; the benchmark is empty")
        number = jax.random.randint(key, (), 0, len(self))
        return Ruleset(*(jnp.asarray(array)[number] for array in self.rulesets))

    def shuffle(self, seed: int) -> "Benchmark":
        """Return the same rulesets in an order drawn by a seed of 0 or more."""
        bits = RandomStream(seed, SHUFFLE_STREAM).bits(len(self))
        return self[np.argsort(bits, kind="stable")]

    def split(self, share: float) -> tuple["Benchmark", "Benchmark"]:
        """Split into the first `share` of the rulesets and the others.

        Raises:
          ShoalError: one of the two would be empty.
        """
        first = round(len(self) * share) if 0 < share < 1 else 0
        if not 0 < first < len(self):
            raise ShoalError(
                f"share={share} of {len(self):,} rulesets leaves nothing on one side; give one between 0 and 1"
            )
        return self[:first], self[first:]

    def filter_split(self, predicate: Callable[[Ruleset], object]) -> tuple["Benchmark", "Benchmark"]:
        """Split into the rulesets for which a predicate is true, and the others; it is mapped over all rulesets."""
        mask = np.asarray(jax.vmap(predicate)(Ruleset(*map(jnp.asarray, self.rulesets)))).astype(bool)
        return self[mask], self[~mask]

    def part(self, name: str) -> "Benchmark":
        """Return the rulesets for training ("train") or the held-out ones ("held-out").

        Raises:
          ShoalError: there is no such part, or it is not known which are held out.
        """
        if name not in (TRAIN, HELD_OUT):
            raise ShoalError(
                f"a benchmark has no part {name!r}, but {TRAIN} and {HELD_OUT}{nearest(name, (TRAIN, HELD_OUT))}"
            )
        if not self.num_held_out:
            example = ":80%" if name == TRAIN else "80%:"
            raise ShoalError(
                f"the benchmark has nothing held out; in place of {name!r} give bounds, such as {example!r}"
            )
        return self[: -self.num_held_out] if name == TRAIN else self[-self.num_held_out :]


def _held_out_mask(rulesets: Ruleset, max_count: int, seed: int) -> np.ndarray:
    """Mark at most `max_count` rulesets, none of which has the goal and the rules of an unmarked one, bool [n].

    The tasks are taken in a random order, each with all its rulesets, so that tasks with many rulesets and
    tasks with few are held out equally often.
    """
    numbers: dict[Hashable, int] = {}
    task = np.asarray(
        [numbers.setdefault(key, len(numbers)) for key in distinct.canonical_keys(rulesets)], int
    )
    order = np.argsort(RandomStream(seed, HOLD_OUT_STREAM).bits(len(numbers)), kind="stable")
    held_out_tasks = order[np.bincount(task)[order].cumsum() <= max_count]
    return np.isin(task, held_out_tasks)


def checksum(rulesets: Ruleset) -> str:
    """Return a checksum of rulesets and their order."""
    digest = hashlib.sha256()
    for array in rulesets:
        digest.update(repr(np.shape(array)).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:CHECKSUM_DIGITS]
