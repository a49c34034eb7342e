"""Grid worlds as images: what is drawn, that it tells all that the symbols tell, and the picture of a whole grid."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.envs.base import can_render, frames_per_second, render
from shoal.envs.grid import pictures
from shoal.envs.grid.engine.tiles import NUM_COLOURS, NUM_TILES, WALKABLE, Colour, Tile
from shoal.envs.grid.pictures import AGENT_UP, NO_AGENT, NUM_FIGURES, RGB, atlas

COLOURS = [colour for colour in Colour if colour != Colour.EMPTY]
TILES = [tile for tile in Tile if tile != Tile.EMPTY]
WORLDS = {
    "MiniGrid-Playground": {"see_through_walls": False},
    "MiniGrid-MemoryS8": {},
    "XLand-MiniGrid-R4-13x13": {},
}


@pytest.mark.parametrize("size", [4, 8, 32])
@pytest.mark.quick("4")
def test_all_tiles_of_all_colours_look_different(size):
    seen = set()
    for tile in TILES:
        for figure in range(NUM_FIGURES if tile in WALKABLE else 1):
            seen |= {atlas(size)[tile, colour, figure].tobytes() for colour in COLOURS}
    expected = sum(NUM_FIGURES if tile in WALKABLE else 1 for tile in TILES) * len(COLOURS)
    assert len(seen) == expected
    assert all(picture.any() for picture in atlas(size)[Tile.EMPTY].reshape(-1, size, size, 3))


@pytest.mark.parametrize(
    ("tile", "at", "expected"),
    [
        (Tile.FLOOR, (16, 16), (127, 0, 0)),
        (Tile.FLOOR, (0, 16), (100, 100, 100)),  # the lines above and on the left
        (Tile.FLOOR, (16, 0), (100, 100, 100)),
        (Tile.FLOOR, (31, 31), (127, 0, 0)),
        (Tile.WALL, (0, 0), (255, 0, 0)),
        (Tile.GOAL, (20, 5), (255, 0, 0)),
        (Tile.BALL, (16, 16), (255, 0, 0)),
        (Tile.BALL, (4, 4), (0, 0, 0)),
        (Tile.SQUARE, (9, 9), (255, 0, 0)),
        (Tile.PYRAMID, (7, 8), (0, 0, 0)),
        (Tile.PYRAMID, (24, 8), (255, 0, 0)),
        (Tile.KEY, (9, 18), (0, 0, 0)),  # its hole
        (Tile.KEY, (9, 14), (255, 0, 0)),
        (Tile.KEY, (26, 13), (255, 0, 0)),  # a tooth
        (Tile.KEY, (23, 13), (0, 0, 0)),  # between the teeth
        (Tile.DOOR_LOCKED, (16, 20), (255, 0, 0)),  # the lock
        (Tile.DOOR_LOCKED, (8, 8), (127, 0, 0)),
        (Tile.DOOR_CLOSED, (16, 24), (255, 0, 0)),  # the handle
        (Tile.DOOR_CLOSED, (16, 16), (0, 0, 0)),
        (Tile.DOOR_OPEN, (16, 16), (0, 0, 0)),
        (Tile.DOOR_OPEN, (16, 31), (255, 0, 0)),
        (Tile.HEX, (16, 25), (255, 0, 0)),
        (Tile.STAR, (9, 16), (255, 0, 0)),
        (Tile.STAR, (8, 8), (0, 0, 0)),
    ],
)
def test_pixels_at_known_places(tile, at, expected):
    assert tuple(atlas(32)[tile, Colour.RED, NO_AGENT][at]) == expected


def test_the_agent_is_a_triangle_that_points_where_it_looks():
    ahead = {0: (6, 16), 1: (16, 25), 2: (25, 16), 3: (16, 6)}
    for direction in range(4):
        picture = atlas(32)[Tile.FLOOR, Colour.BLACK, AGENT_UP + direction]
        assert tuple(picture[16, 16]) == RGB[Colour.RED]
        red = (picture == RGB[Colour.RED]).all(-1)
        rows, columns = np.nonzero(red)
        thirds = {0: rows, 1: 31 - columns, 2: 31 - rows, 3: columns}[direction]
        assert (thirds < 16).sum() < 0.35 * red.sum()  # its tip is the narrow end
        assert red[ahead[direction]]


@pytest.mark.full
def test_tiles_look_as_those_of_the_original():
    """Nearest to each of ours is the same one of xminigrid's, whose star has six points and grey goal is a wall."""
    from xminigrid.rendering.rgb_render import render_tile

    kinds = [(tile, colour) for tile in TILES[:-1] for colour in COLOURS[::5]]
    theirs = np.stack([render_tile((int(tile), int(colour))) for tile, colour in kinds]).astype(int)
    for kind in (kind for kind in kinds if kind != (Tile.GOAL, Colour.GREY)):
        difference = np.abs(theirs - atlas(32)[(*kind, NO_AGENT)].astype(int)).mean((1, 2, 3))
        assert kinds[difference.argmin()] == kind
        assert difference.min() < 25
    for direction in range(4):
        ours = atlas(32)[Tile.FLOOR, Colour.BLACK, AGENT_UP + direction].astype(int)
        assert np.abs(render_tile((1, 7), direction) - ours).mean() < 3


class Steps(NamedTuple):
    """192 states of a world, and what is seen of them."""

    world: Any
    states: Any
    symbols: np.ndarray
    images: np.ndarray


@functools.cache
def some_steps(name):
    """12 random steps of 16 environments."""
    world = envs.make(name, **WORLDS[name])
    as_images = envs.make(name, **WORLDS[name], observe_image=True)

    @jax.jit
    def play(keys):
        def step(state, key):
            action = jax.random.randint(key, (16,), 0, 6)
            state, timestep = jax.vmap(world.step, (0, 0, None))(state, action, key)
            return state, (state, timestep.observation, jax.vmap(as_images.observe)(state))

        return jax.lax.scan(step, jax.vmap(world.reset)(keys)[0], jax.random.split(jax.random.key(1), 12))[1]

    played = play(jax.random.split(jax.random.key(0), 16))
    return Steps(as_images, *jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), played))


@pytest.mark.full
@pytest.mark.parametrize("name", WORLDS)
def test_an_image_is_the_symbols_tile_for_tile(name):
    world, _, symbols, images = some_steps(name)
    view, size = world.view_size, world.image_tile_size
    assert images.shape == (192, view * size, view * size, 3) and images.dtype == np.uint8
    assert world.observation_space.shape == images.shape[1:] and world.observation_space.dtype == np.uint8
    assert bool(world.observation_space.contains(jnp.asarray(images[0])))
    assert len(np.unique(symbols.reshape(-1, 2), axis=0)) > 4
    for image, cells in zip(images[::6], symbols[::6], strict=True):
        for row in range(view):
            for column in range(view):
                figure = AGENT_UP if (row, column) == (view - 1, view // 2) else NO_AGENT
                shown = image[row * size :, column * size :][:size, :size]
                assert (shown == atlas(size)[(*cells[row, column], figure)]).all()


def test_the_symbols_can_be_read_off_an_image():
    world, _, symbols, images = some_steps("MiniGrid-Playground")
    size = world.image_tile_size
    kinds = {}
    for tile in range(NUM_TILES):
        for colour in range(NUM_COLOURS):
            for figure in (NO_AGENT, AGENT_UP):
                kinds.setdefault(atlas(size)[tile, colour, figure].tobytes(), (tile, colour))
    tiles = images.reshape(len(images), world.view_size, size, world.view_size, size, 3).swapaxes(2, 3)
    read = [[[kinds[tile.tobytes()] for tile in row] for row in image] for image in tiles]
    np.testing.assert_array_equal(read, symbols)


@pytest.mark.full
@pytest.mark.parametrize("name", ["MiniGrid-Playground", "XLand-MiniGrid-R4-13x13"])
def test_the_whole_grid_is_shown_with_what_the_agent_sees_in_light(name):
    world, states, symbols, _ = some_steps(name)
    assert can_render(world) and frames_per_second(world) == 10
    rendered = jax.jit(jax.vmap(world.render))(jax.tree.map(lambda x: x[::20], states))
    for k, picture in zip(range(0, 192, 20), np.asarray(rendered), strict=True):
        state = jax.tree.map(lambda x, k=k: x[k], states)
        seen = seen_cells(world, state, symbols[k])
        grid = np.asarray(world.board.grid(state.cells))
        row, column = map(int, world.board.position(state.agent.place))
        for i in range(world.height):
            for j in range(world.width):
                figure = AGENT_UP + int(state.agent.direction) if (i, j) == (row, column) else NO_AGENT
                tile = atlas(32)[grid[i, j] & 255, grid[i, j] >> 8, figure].astype(float)
                tile = tile + np.round(0.3 * (255 - tile)) if (i, j) in seen else tile
                assert np.abs(picture[32 * i :, 32 * j :][:32, :32] - tile).max() <= 1
    np.testing.assert_array_equal(render(world, jax.tree.map(jnp.asarray, state)), picture)


def seen_cells(world, state, symbols):
    """The rows and columns of what is not hidden in a view, by turning it back into the grid."""
    row, column = map(int, world.board.position(state.agent.place))
    ahead = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    forward, right = ahead[int(state.agent.direction)], ahead[(int(state.agent.direction) + 1) % 4]
    seen = set()
    for i in range(world.view_size):
        for j in range(world.view_size):
            up, aside = world.view_size - 1 - i, j - world.view_size // 2
            if symbols[i, j, 0]:
                seen.add(
                    tuple(
                        p + up * f + aside * r for p, f, r in zip((row, column), forward, right, strict=True)
                    )
                )
    return seen


def test_images_stand_beside_what_is_told():
    world = envs.make("MiniGrid-Empty-5x5", observe_image=True, observe_direction=True, image_tile_size=5)
    _, timestep = jax.jit(world.reset)(jax.random.key(0))
    assert timestep.observation["view"].shape == (35, 35, 3) == world.observation_space["view"].shape
    assert timestep.observation["direction"] == 1


@pytest.mark.full
def test_large_grids_are_shown_in_small_tiles():
    world = envs.make("MiniGrid-MemoryS128")
    state, _ = jax.jit(world.reset)(jax.random.key(0))
    assert render(world, state).shape == (70, 1280, 3)


def test_a_drawn_tile_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        pictures.atlas(8)[0, 0, 0, 0, 0, 0] = 1
