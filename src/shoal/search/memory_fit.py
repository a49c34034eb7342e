"""The memory that a population needs, from the compiled program at two member counts, and its division into parts."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from shoal.base.errors import ShoalError
from shoal.engine.population import member_layout
from shoal.records.members import members_of
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import compiled_trainer, memory_limits, placement
from shoal.search.grouping import Group
from shoal.xla import machine

COUNTS = (2, 4)  # members of the programs that are measured; one member has a program without a map
ROOM = 8  # the program is measured where the lower bound times this exceeds the memory
COPIES = 2  # of a population on the host: for a checkpoint that is written, and for one that waits


class Need(NamedTuple):
    """Bytes of a population's program, as a number of members needs them on one device."""

    fixed: float
    per_member: float
    is_measured: bool  # else the lower bound of `limits`

    def of(self, members: int, shards: int, shared: bool) -> float:
        """Return the bytes of a population.

        Args:
          shared: whether the devices share one memory, as those of a CPU do.
        """
        whole = self.fixed * shards + self.per_member * members
        return whole if shared else whole / shards


def need_of(group: Group) -> Need:
    """Estimate the bytes of a group's program; it is compiled for that only where memory could be short."""
    devices, placed = placement.place(group.experiment)
    available = machine.available_memory(devices[0])
    bound = _lower_bound(placed, devices)
    members = placed.num_members
    if available is None or ROOM * bound * members <= available or members <= COUNTS[1]:
        return Need(0.0, bound, False)
    few, more = (_measured(placed, devices[:1], count) for count in COUNTS)
    per_member = max((more - few) / (COUNTS[1] - COUNTS[0]), 1.0)
    return Need(max(few - COUNTS[0] * per_member, 0.0), per_member, True)


def _lower_bound(placed: Experiment, devices: Sequence[jax.Device]) -> float:
    """Return the least bytes of one member (see `limits`)."""
    run, first = placed.run, placed.solo[0]
    settings = compiled_trainer.program_settings(run, run.env_groups, "return_mean", None)
    sizes = memory_limits.MemorySizes.of(run, 1, settings)
    units = memory_limits.unit_bytes(
        compiled_trainer.member_shapes(first.environment, first.config, settings), sizes
    )
    share = memory_limits.memory_share(member_layout.lay_out(devices[:1], 1, 1))
    return float(memory_limits.peak_bytes(memory_limits.needed_bytes(sizes, units, share)))


def _measured(placed: Experiment, devices: Sequence[jax.Device], count: int) -> float:
    """Return the bytes of the training program of some members, and of the copies of the population."""
    run = placed.run
    members = members_of(range(count))
    environment, config = placed.solo[0].environment, placed.solo[0].config
    statistics = compiled_trainer.memory_of_training(
        compiled_trainer.member_keys(members),
        compiled_trainer.stack_members(environment, count),
        compiled_trainer.stack_members(config, count),
        compiled_trainer.program_settings(run, run.env_groups, "return_mean", None),
        member_layout.lay_out(devices, count, run.env_groups, run.seed_batching),
    )
    return _total(statistics) + COPIES * statistics.argument_size_in_bytes


def _total(statistics: Any) -> float:
    """Return the bytes of a program: of its arguments, its results, and its temporary arrays."""
    made = statistics.output_size_in_bytes - statistics.alias_size_in_bytes
    return float(statistics.argument_size_in_bytes + max(made, 0) + statistics.temp_size_in_bytes)


def split(group: Group, need: Need) -> list[Group]:
    """Divide a group into parts that fit the memory, of nearly equal numbers of settings.

    Raises:
      ShoalError: not even one setting with all its seeds fits.
    """
    devices, _ = placement.place(group.experiment)
    available = machine.available_memory(devices[0])
    count = len(group.candidates)
    if available is None:
        return [group]
    shared = devices[0].platform == "cpu"

    def fits(settings: int) -> bool:
        members = settings * group.seeds
        layout = member_layout.lay_out(devices, members, max(group.experiment.run.env_groups, 1))
        return need.of(members, layout.mesh.shape[member_layout.MEMBER_AXIS], shared) <= available

    if fits(count):
        return [group]
    most = next((n for n in range(count - 1, 0, -1) if fits(n)), 0)
    if not most:
        one = memory_limits.format_bytes(int(need.of(1, 1, shared)))
        what = "one member" if need.of(1, 1, shared) > available else f"{group.seeds} members of one setting"
        all_bytes = memory_limits.format_bytes(int(need.of(group.seeds, 1, shared)))
        raise ShoalError(
            f"{group.candidates[0].label}: not even {what} can be trained: one needs {one}, one setting with "
            f"seeds={group.seeds} {all_bytes}, and this process may have {memory_limits.format_bytes(available)}; "
            "fewer seeds, environments or steps need less."
        )
    parts = math.ceil(count / most)
    edges = [count * k // parts for k in range(parts + 1)]
    return [group.part(start, stop) for start, stop in itertools.pairwise(edges)]
