"""Training of a part of a population: its members dealt out evenly over the devices, or packed into a smaller program.

Where members run one after the other, one that has stopped costs nothing, but a device whose members have all stopped
would be idle. Where they run together, the program computes all of them as long as one continues, so that programs of
fewer members are compiled ahead.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.stages import Compiled, Wrapped

from shoal.base import cpu
from shoal.engine.loop import train
from shoal.engine.nonfinite import NOWHERE, STOPPED, failed_members
from shoal.engine.population import member_layout as populations
from shoal.engine.population.member_layout import MEMBER_AXIS, Layout
from shoal.engine.run import Run
from shoal.records.halving import Halving
from shoal.records.members import Members
from shoal.records.run_config import RunConfig
from shoal.types import PyTree

MOST_SIZES = 3  # of programs for members that run together


def stop_others(
    population: Run,
    run: RunConfig,
    evaluations: Sequence[tuple[int, Mapping[str, np.ndarray]]],
    members: Members,
    halving: Halving,
) -> Run:
    """Mark the members of the settings that do not continue as stopped.

    Args:
      evaluations: (updates, metrics) of each so far, a number per member; the last is that of this rung.
    """
    faults, rungs = np.asarray(population.fault), halving.rungs(run.steps_per_update, run.total_steps)
    at_rungs = np.stack([metrics[halving.metric] for updates, metrics in evaluations if updates in rungs])
    has_failed = np.isin(np.arange(len(faults)), failed_members(faults))
    stops = halving.stops(at_rungs, members, has_failed, faults == STOPPED)
    faults = np.where(stops & (faults == NOWHERE), STOPPED, faults).astype(faults.dtype)
    fault = jax.device_put(faults, population.fault.sharding)
    return dataclasses.replace(population, fault=fault)


def dealt(going_on: Sequence[int], members: int, size: int, shards: int) -> np.ndarray:
    """Return the places of the members that a program of `size` members trains, so that all shards have equal
    work; it is filled up with members that have stopped.
    """
    others = iter(sorted(set(range(members)) - set(going_on)))
    each = size // shards
    rows = [list(going_on)[shard::shards] for shard in range(shards)]
    filled = [[*row, *(next(others) for _ in range(each - len(row)))] for row in rows]
    return np.array(filled, np.int32).ravel()


class Programs(NamedTuple):
    """The programs that train some members of a population."""

    take: Compiled  # (population, places) -> these members
    train: Callable[
        ..., tuple[Run, PyTree]
    ]  # (members, updates, whether an interval begins) -> (members, metrics)
    put: Compiled  # (members, population, places) -> population


class Dealer:
    """Trains those members of a population that continue, in programs that are smaller by `factor` each time."""

    def __init__(self, whole: Callable[..., tuple[Run, PyTree]], shapes: Run, layout: Layout, factor: int):
        self._shapes, self._members = shapes, shapes.updates.shape[0]
        self._shards = layout.mesh.shape[MEMBER_AXIS]
        self._whole, self._options = whole, layout.compiler_options
        self._programs: dict[int, Future[Programs]] = {}
        thread = ThreadPoolExecutor(1)
        if self._shards > 1:
            self._programs[self._members] = thread.submit(self._compile, self._members, None)
        if layout.mapped_by == "vmap":
            program = populations.run_program(train, shapes.settings, layout)
            for power in range(1, MOST_SIZES):
                size = -(-self._members // (factor**power * self._shards)) * self._shards
                if size < self._members and size not in self._programs:
                    self._programs[size] = thread.submit(self._compile, size, program)
        thread.shutdown(wait=False)

    def train(self, population: Run, num_updates: jax.Array, begins_interval: jax.Array) -> Run:
        """Make some updates of the members that continue; the others do not change."""
        going_on = np.flatnonzero(np.asarray(population.fault) == NOWHERE)
        size = min((size for size in self._programs if size >= len(going_on)), default=0)
        work = np.bincount(going_on * self._shards // self._members, minlength=self._shards)
        if not size or (
            size == self._members and np.ptp(work) <= 1
        ):  # nobody moves where devices have equal work
            return self._whole(population, num_updates, begins_interval)[0]
        programs = self._programs[size].result()
        places = dealt(going_on.tolist(), self._members, size, self._shards)
        packed, _ = programs.train(programs.take(population, places), num_updates, begins_interval)
        return programs.put(packed, population, places)

    def _compile(self, size: int, program: Wrapped | None) -> Programs:
        """Compile what trains `size` members; without a program, the one of all members does."""
        cpu.lower_priority()
        some, every = self._shapes_of(size), self._shapes
        placed = [jax.tree.map(lambda x: x.sharding, shapes) for shapes in (some, every)]
        places = jax.ShapeDtypeStruct((size,), jnp.int32)
        train = self._whole
        if program is not None:
            train = program.lower(some, jnp.int32(1), jnp.bool_(True)).compile(self._options)
        take = jax.jit(_take, out_shardings=placed[0]).lower(every, places).compile()
        put = jax.jit(_put, out_shardings=placed[1], donate_argnums=1).lower(some, every, places).compile()
        return Programs(take, train, put)

    def _shapes_of(self, size: int) -> Run:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype, sharding=x.sharding), self._shapes
        )


def _take(population: Run, places: jax.Array) -> Run:
    """Return the members of some places."""
    return jax.tree.map(lambda x: x[places], population)


def _put(packed: Run, population: Run, places: jax.Array) -> Run:
    """Return a population with the members that were packed in their places; the others are not copied."""
    return jax.tree.map(lambda x, y: y.at[places].set(x, unique_indices=True), packed, population)
