"""Many runs as one program: members over devices, mapped within each device, environments in groups.

A population is a Run whose every leaf has a leading member axis. Its members are distributed over a mesh of
devices by `shard_map`, which needs no communication between them, and within a device one after the other or by `vmap`.
The environments of one run may be split into groups, which are placed on separate devices or mapped on one
device by the same function, so that the number of devices does not change the mathematics.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

from shoal.engine.run import ENV_AXIS, ProgramSettings, Run, placement
from shoal.types import PyTree

MEMBER_AXIS = "member"


class Layout(NamedTuple):
    """The layout of a population on the machine."""

    mesh: Mesh
    mapped_by: str  # "map" or "vmap": one after the other or together, for the members of one device

    @property
    def devices(self) -> int:
        """The number of devices that take part."""
        return self.mesh.size

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The compiler's options for the devices."""
        return compiler_options(self.mesh.devices.flat[0].platform == "cpu")


def compiler_options(for_cpu: bool) -> dict[str, Any]:
    """Return options of the compiler: on a CPU its widest vectors (4% faster), and one module (a fifth less to do)."""
    return {"xla_cpu_prefer_vector_width": 512, "xla_cpu_parallel_codegen_split_count": 1} if for_cpu else {}


def lay_out(devices: Sequence[jax.Device], members: int, groups: int, mapped_by: str = "auto") -> Layout:
    """Distribute members over devices, and the groups of each over those that remain.

    Only as many devices take part as divide the work evenly. Members of one device run one after the other on
    the CPU (batched matrix products are slow there) and together elsewhere (`vmap`).
    """
    member_shards, devices_per_member = mesh_shape(len(devices), members, groups)
    placed = [
        devices[shard * devices_per_member : (shard + 1) * devices_per_member]
        for shard in range(member_shards)
    ]
    axes = (AxisType.Auto, AxisType.Auto)
    mesh = Mesh(placed, (MEMBER_AXIS, ENV_AXIS), axis_types=axes)
    if mapped_by == "auto":
        mapped_by = "map" if devices[0].platform == "cpu" else "vmap"
    return Layout(mesh, mapped_by)


def mesh_shape(devices: int, members: int, groups: int) -> tuple[int, int]:
    """Return over how many devices members are distributed, and over how many the groups of each."""
    devices_per_member = groups if devices >= groups else 1
    return max(n for n in range(1, devices // devices_per_member + 1) if members % n == 0), devices_per_member


def map_members(function: Callable, mapped_by: str) -> Callable:
    """Map a function of one run over the leading axis of a population; further arguments are shared."""

    def map_population(population: PyTree, *args: PyTree) -> PyTree:
        if jax.tree.leaves(population)[0].shape[0] == 1:
            outputs = function(jax.tree.map(lambda x: x[0], population), *args)
            return jax.tree.map(lambda x: x[None], outputs)

        one_member = (lambda run: function(run, *args)) if args else function
        return jax.lax.map(one_member, population) if mapped_by == "map" else jax.vmap(one_member)(population)

    return map_population


def change_members(function: Callable, mapped_by: str) -> Callable:
    """Map a function Run -> (Run, output) likewise, one member after the other in its place.

    `lax.map` would make a second population, with each member's replay.
    """

    def change_population(population: PyTree, *args: PyTree) -> tuple[PyTree, PyTree]:
        members = jax.tree.leaves(population)[0].shape[0]
        if members == 1 or mapped_by == "vmap":
            return map_members(function, mapped_by)(population, *args)

        def change(population: PyTree, index: jax.Array) -> tuple[PyTree, PyTree]:
            run, output = function(take_member(population, index), *args)
            place = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
            return jax.tree.map(place, population, run), output

        return jax.lax.scan(change, population, jnp.arange(members))

    return change_population


def map_groups(function: Callable, settings: ProgramSettings) -> Callable:
    """Map a function Run -> (Run, output) over the groups of a run's environments on one device."""

    def split(x: jax.Array) -> jax.Array:
        size = x.shape[0] // settings.groups  # which -1 does not find where another axis is 0
        return x.reshape(settings.groups, size, *x.shape[1:])

    def join(x: jax.Array) -> jax.Array:
        return jax.lax.collapse(x, 0, 2)

    axes = placement(settings, 0, None)

    def map_run(run: Run, *args: PyTree) -> tuple[Run, PyTree]:
        group = jax.vmap(
            lambda run: function(run, *args), in_axes=(axes,), out_axes=(axes, None), axis_name=ENV_AXIS
        )
        run, output = group(map_local_leaves(split, run))
        return map_local_leaves(join, run), output

    return map_run


def map_local_leaves(function: Callable, run: Run) -> Run:
    """Apply a function to the leaves of a run that belong to its groups."""
    is_local = placement(run.settings, True, False)
    return jax.tree.map(lambda local, part: jax.tree.map(function, part) if local else part, is_local, run)


def partition_specs(settings: ProgramSettings) -> Run:
    """Return the partition of a population: every leaf by members, those of the groups by environments too."""
    return placement(settings, P(MEMBER_AXIS, ENV_AXIS), P(MEMBER_AXIS))


def start_program(function: Callable, settings: ProgramSettings, layout: Layout) -> Wrapped:
    """Compile (keys, environments, configs, numbers of updates) -> population, each with a leading member axis.

    Args:
      function: as `loop.start_training`.
    """
    start: Callable[[tuple], Run] = functools.partial(function, settings=settings)
    if settings.groups > 1 and layout.mesh.shape[ENV_AXIS] == 1:
        start_group = jax.vmap(
            start,
            out_axes=placement(settings, 0, None),
            axis_name=ENV_AXIS,
            axis_size=settings.groups,
            in_axes=None,
        )

        def start(arguments: tuple) -> Run:
            return map_local_leaves(lambda x: jax.lax.collapse(x, 0, 2), start_group(arguments))

    # Members are initialised one after the other, since only training gains from a batch.
    mapped = map_members(start, "map")
    sharded = jax.shard_map(
        mapped,
        mesh=layout.mesh,
        in_specs=P(MEMBER_AXIS),
        out_specs=partition_specs(settings),
        check_vma=False,
    )
    return jax.jit(sharded)


def population_shapes(program: Wrapped, arguments: tuple, settings: ProgramSettings, layout: Layout) -> Run:
    """Return the shapes, dtypes and placement of a start program's result, without running it, to compile for."""

    shapes = jax.eval_shape(program, arguments)
    return jax.tree.map(
        lambda spec, part: _with_placement(part, spec, layout), partition_specs(settings), shapes
    )


def placed_by_members(shapes: PyTree, layout: Layout) -> PyTree:
    """Return shapes with a leading member axis as those of arrays that are distributed by members."""
    return _with_placement(shapes, P(MEMBER_AXIS), layout)


def _with_placement(shapes: PyTree, spec: P, layout: Layout) -> PyTree:
    """Return shapes with their placement; a compiled program returns arrays without entries as replicated ones."""

    def placed(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(layout.mesh, spec if x.size else P())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(placed, shapes)


def run_program(
    function: Callable, settings: ProgramSettings, layout: Layout, *, grouped: bool = True
) -> Wrapped:
    """Compile a function Run -> (Run, output) for a population, whose buffers are donated.

    Further arguments are shared by all members. With `grouped=False` the function is not given the groups and
    does not change their part of the Run.
    """
    if grouped and settings.groups > 1 and layout.mesh.shape[ENV_AXIS] == 1:
        function = map_groups(function, settings)
    mapped = change_members(function, layout.mapped_by)

    def sharded(population: Run, *args: PyTree) -> tuple[Run, PyTree]:
        return jax.shard_map(
            mapped,
            mesh=layout.mesh,
            in_specs=(partition_specs(settings), *(P() for _ in args)),
            out_specs=(partition_specs(settings), P(MEMBER_AXIS)),
            check_vma=False,
        )(population, *args)

    return jax.jit(sharded, donate_argnums=0)


def member_program(function: Callable, settings: ProgramSettings, layout: Layout) -> Wrapped:
    """Compile a function Run -> output for a population; the population stays as it is."""
    mapped = map_members(function, layout.mapped_by)
    return jax.jit(
        jax.shard_map(
            mapped,
            mesh=layout.mesh,
            in_specs=(partition_specs(settings),),
            out_specs=P(MEMBER_AXIS),
            check_vma=False,
        )
    )


def take_member(population: PyTree, index: int | jax.Array) -> PyTree:
    """Return one member of a population."""
    return jax.tree.map(lambda x: x[index], population)
