"""The memory that a population needs, from the compiled program at two member counts, and its division into parts."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from shoal import device_choices
from shoal.errors import ShoalError
from shoal.experiment import Experiment
from shoal.runtime import limits, machine, population, trainer
from shoal.runtime.members import members_of
from shoal.sweeps.plan import Group

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
          members: of the population.
          shards: the number of devices over which they are distributed.
          shared: whether the devices share one memory, as those of a CPU do.
        """
        whole = self.fixed * shards + self.per_member * members
        return whole if shared else whole / shards


def need_of(group: Group) -> Need:
    """Estimate the bytes of a group's program; it is compiled for that only where memory could be short."""
    devices, placed = device_choices.place(group.experiment)
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
    settings = trainer.settings_of(run, run.env_groups, "return_mean", None)
    sizes = limits.Sizes(
        1, run.num_envs, run.num_steps, run.eval_episodes, settings.pool_size or limits.NO_POOL
    )
    units = limits.unit_bytes(trainer.member_shapes(first.environment, first.config, settings), sizes)
    share = limits.memory_share(population.lay_out(devices[:1], 1, 1))
    return float(limits.peak_bytes(limits.needed_bytes(sizes, units, share)))


def _measured(placed: Experiment, devices: Sequence[jax.Device], count: int) -> float:
    """Return the bytes of the training program of so many members, and of the copies of the population."""
    run = placed.run
    members = members_of(range(count))
    environment, config = placed.solo[0].environment, placed.solo[0].config
    statistics = trainer.memory_of_training(
        trainer.member_keys(members),
        trainer.stack_members(environment, count),
        trainer.stack_members(config, count),
        trainer.settings_of(run, run.env_groups, "return_mean", None),
        population.lay_out(devices, count, run.env_groups, run.members),
    )
    return _total(statistics) + COPIES * statistics.argument_size_in_bytes


def _total(statistics: Any) -> float:
    """Return the bytes of a program: what it is given, what it makes, and what it uses between."""
    made = statistics.output_size_in_bytes - statistics.alias_size_in_bytes
    return float(statistics.argument_size_in_bytes + max(made, 0) + statistics.temp_size_in_bytes)


def split(group: Group, need: Need) -> list[Group]:
    """Divide a group into parts that fit the memory, of nearly equal numbers of settings.

    Raises:
      ShoalError: not even one setting with all its seeds fits.
    """
    devices, _ = device_choices.place(group.experiment)
    available = machine.available_memory(devices[0])
    count = len(group.candidates)
    if available is None:
        return [group]
    shared = devices[0].platform == "cpu"

    def fits(settings: int) -> bool:
        members = settings * group.seeds
        layout = population.lay_out(devices, members, max(group.experiment.run.env_groups, 1))
        return need.of(members, layout.mesh.shape[population.MEMBER_AXIS], shared) <= available

    if fits(count):
        return [group]
    most = next((n for n in range(count - 1, 0, -1) if fits(n)), 0)
    if not most:
        one = limits.format_bytes(int(need.of(1, 1, shared)))
        what = "one member" if need.of(1, 1, shared) > available else f"{group.seeds} members of one setting"
        all_bytes = limits.format_bytes(int(need.of(group.seeds, 1, shared)))
        raise ShoalError(
            f"{group.candidates[0].label}: not even {what} can be trained: one needs {one}, one setting with "
            f"seeds={group.seeds} {all_bytes}, and this process may have {limits.format_bytes(available)}; fewer "
            "seeds, environments or steps need less."
        )
    parts = math.ceil(count / most)
    edges = [count * k // parts for k in range(parts + 1)]
    return [group.part(start, stop) for start, stop in itertools.pairwise(edges)]
