"""Neighbours of many particles by a cell list of fixed capacity, and the tangential springs of their contacts.

The box is cut into cells whose sides are at least the greatest distance at which two particles are neighbours. A
particle's neighbours are then in its own cell or in one beside it. The list holds the indices of at most K
neighbours of each particle, [K, N]; an empty place holds N. It is made again when a particle has moved by half of
the `skin` by which the list reaches beyond contact, so that no contact is missed in between. Springs belong to a
partner's index and move with it to its new place in the list.

Nothing is left out in silence: where a cell or a list is too small, `needed` says what capacity would have been enough.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.envs.particles.physics.bodies import World
from shoal.envs.particles.physics.boxes import nearest_image
from shoal.envs.particles.physics.vectors import dot
from shoal.types import Array

MIN_PERIODIC_CELLS = 3  # with fewer, one cell would be beside another twice


@dataclasses.dataclass(frozen=True)
class CellLayout:
    """The sizes of a cell list; static."""

    cells: tuple[int, ...]  # along each axis
    cell_capacity: int  # particles in a cell
    max_neighbours: int  # K, particles in a list

    @property
    def num_cells(self) -> int:
        """The number of cells."""
        return math.prod(self.cells)


class NeighbourList(NamedTuple):
    """The partners of all particles, and where the particles were when these were found."""

    partner: Array  # [K, N], int32; N where there is none
    position: Array  # [D, N], m
    needed: Array  # int32 [2]: particles in a cell, neighbours in a list; 0 while all have fitted


def cell_layout(
    box: tuple[float, ...],
    boundaries: tuple[str, ...],
    largest_radius: float,
    skin: float,
    cell_capacity: int,
    max_neighbours: int,
) -> CellLayout:
    """Choose the cells for a box; lengths are in m.

    Args:
      skin: by how much lists reach beyond contact, m.
    Raises:
      ShoalError: a periodic axis has fewer than three cells.
    """
    reach = 2 * largest_radius + skin
    cells = tuple(max(1, int(side / reach * (1 + 1e-6))) for side in box)
    for axis, (side, number) in enumerate(zip(box, cells, strict=True)):
        if boundaries[axis] == "periodic" and number < MIN_PERIODIC_CELLS:
            raise ShoalError(
                f"box[{axis}]={side:g} has room for {number} cells of {reach:g} (the largest diameter and "
                f"skin={skin:g}); a periodic axis needs {MIN_PERIODIC_CELLS}, so a side "
                f"of {MIN_PERIODIC_CELLS * reach:g} or more."
            )
    return CellLayout(cells, cell_capacity, max_neighbours)


def find_neighbours(
    layout: CellLayout,
    position: Array,
    world: World,
    boundaries: tuple[str, ...],
    needed: Array | None = None,
) -> NeighbourList:
    """Find all pairs of particles at [D, N] whose surfaces are less than the world's `skin` apart.

    Args:
      needed: what earlier lists would have needed, int32 [2]; None for nothing.
    """
    number, radius = position.shape[1], world.radius
    cell = _cells_of(layout, position, world.box)
    members, most_in_cell = _members(layout, cell)
    candidates = _candidates(layout, cell, members, boundaries)
    found = candidates < number
    safe = jnp.where(found, candidates, 0)
    offset = nearest_image(position[:, safe] - position[:, None], world.box, boundaries)
    reach = radius[safe] + radius[None] + world.skin
    is_near = found & (dot(offset, offset) < reach**2) & (candidates != jnp.arange(number))
    place = jnp.where(is_near, jnp.cumsum(is_near, axis=0) - 1, layout.max_neighbours)
    empty = jnp.full((layout.max_neighbours, number), number, jnp.int32)
    partner = empty.at[place, jnp.arange(number)].set(candidates, mode="drop")
    most = jnp.stack([most_in_cell, jnp.max(jnp.sum(is_near, axis=0))]).astype(jnp.int32)
    too_many = most > jnp.asarray([layout.cell_capacity, layout.max_neighbours])
    needed = jnp.zeros(2, jnp.int32) if needed is None else needed
    return NeighbourList(partner, position, jnp.maximum(needed, jnp.where(too_many, most, 0)))


def _cells_of(layout: CellLayout, position: Array, box: Array) -> Array:
    """Return the cell of each particle along each axis, int32 [D, N]; particles outside are in the outermost cells."""
    count = jnp.asarray(layout.cells)[:, None]
    index = jnp.floor(position / box[:, None] * count).astype(jnp.int32)
    return jnp.clip(index, 0, count - 1)


def _flat_index(layout: CellLayout, cell: Array) -> Array:
    """Return the number of a cell from its indices along the axes [D, ...]."""
    index = cell[0]
    for axis in range(1, len(layout.cells)):
        index = index * layout.cells[axis] + cell[axis]
    return index


def _members(layout: CellLayout, cell: Array) -> tuple[Array, Array]:
    """Return the particles of each cell, [cells + 1, capacity] (the last row is empty), and their largest number."""
    number = cell.shape[1]
    index = _flat_index(layout, cell)
    order = jnp.argsort(index).astype(jnp.int32)
    ordered = index[order]
    count = jnp.zeros(layout.num_cells, jnp.int32).at[index].add(1)
    first = jnp.cumsum(count) - count
    rank = jnp.arange(number) - first[ordered]
    table = jnp.full((layout.num_cells + 1, layout.cell_capacity), number, jnp.int32)
    return table.at[ordered, rank].set(order, mode="drop"), jnp.max(count)


def _candidates(layout: CellLayout, cell: Array, members: Array, boundaries: tuple[str, ...]) -> Array:
    """Return the particles in each particle's cell and those beside it, [3^D capacity, N]; N where there is none.

    Along an axis of one cell there is none beside it.
    """
    along = [(0,) if count == 1 else (-1, 0, 1) for count in layout.cells]
    steps = np.stack(np.meshgrid(*along, indexing="ij")).reshape(len(cell), -1)
    beside = cell[:, None] + steps[:, :, None]
    count = jnp.asarray(layout.cells)[:, None, None]
    is_periodic = np.asarray([kind == "periodic" for kind in boundaries])[:, None, None]
    exists = jnp.all(is_periodic | ((beside >= 0) & (beside < count)), axis=0)
    index = jnp.where(exists, _flat_index(layout, beside % count), layout.num_cells)
    candidates = members[index]
    return jnp.moveaxis(candidates, -1, 1).reshape(-1, cell.shape[1])


def carry_springs(springs: Array, before: Array, after: Array, number: int) -> Array:
    """Move tangential springs [D, K, N] from the places of their partners `before` to those `after`, [K, N];
    a new partner gets a spring of zero.
    """
    is_same = (after[:, None] == before[None]) & (after[:, None] < number)
    return jnp.sum(jnp.where(is_same, springs[:, None], 0.0), axis=2)


def is_outdated(
    neighbours: NeighbourList, position: Array, world: World, boundaries: tuple[str, ...]
) -> Array:
    """Return whether a particle has moved so far that a list may lack a contact."""
    moved = nearest_image(position - neighbours.position, world.box, boundaries)
    return jnp.max(dot(moved, moved)) >= (world.skin / 2) ** 2


def update_neighbours(
    layout: CellLayout,
    neighbours: NeighbourList,
    springs: Array,
    position: Array,
    world: World,
    boundaries: tuple[str, ...],
) -> tuple[NeighbourList, Array]:
    """Make the list again if it is outdated, and move the springs [D, K, N] with it, or [D, 0, N] if there are none."""

    def renew(_: None) -> tuple[NeighbourList, Array]:
        new = find_neighbours(layout, position, world, boundaries, neighbours.needed)
        if springs.shape[1] == 0:  # without friction there are none
            return new, springs
        return new, carry_springs(springs, neighbours.partner, new.partner, position.shape[1])

    outdated = is_outdated(neighbours, position, world, boundaries)
    return jax.lax.cond(outdated, renew, lambda _: (neighbours, springs), None)


def overflow_message(layout: CellLayout, needed: np.ndarray) -> str | None:
    """Say what capacity a list would have needed, in a sentence without its full stop; None if all have fitted."""
    cell, neighbours = (int(x) for x in np.asarray(needed).reshape(-1, 2).max(axis=0))
    if cell:
        few, found = f"cell_capacity={layout.cell_capacity}", f"a cell held {cell} particles"
    elif neighbours:
        few, found = f"max_neighbours={layout.max_neighbours}", f"a particle had {neighbours} neighbours"
    else:
        return None
    unknown = "so the forces are unknown and were set to NaN"
    return f"{few} is too few: {found}, {unknown}; give {cell or neighbours} or more"
