"""Images of the tasks from above: agents, their targets, walls, rays and trails, to scale.

An agent and its target have one colour; a target is a ring, filled where it is held. Rays that meet a disc are dark,
those that meet a wall are lighter, both with a dot at their end, and those that meet nothing are faint. A trail is the
way of an agent in the last seconds. Spheres are shaded, with light from the upper left.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from shoal.envs.particles.tasks import lidar

if TYPE_CHECKING:  # the tasks import this module, and Pillow is slow to import
    from PIL.Image import Image

    from shoal.envs.particles.tasks.particle_task import ParticleTask, TaskState

SIZE = 480  # pixels
MARGIN = 12  # pixels around the box
SMOOTH = 2  # pixels are drawn this many times finer along each axis
BACKGROUND, FLOOR, WALL = (245, 246, 248), (255, 255, 255), (74, 80, 92)
MISS, MET_WALL, MET_DISC = (230, 233, 239), (196, 202, 213), (140, 148, 164)
TOUCHING, SHADOW = (32, 35, 42), (222, 225, 231)
TRAIL_DECISIONS, TRAIL_STRIDE = 40, 2  # the length of a trail, and of each of its straight pieces
SHADOW_SHIFT = np.array([0.18, -0.18])  # radii, to the lower right
LIGHT = np.array([-0.45, 0.45, 0.77])  # the direction to the light; y is upwards and z towards the viewer
AMBIENT, GLOSS, GLOSS_POWER = 0.45, 0.55, 24
COLOURS = (
    *((66, 114, 196), (222, 132, 52), (70, 158, 98), (200, 74, 74)),
    *((136, 98, 188), (140, 104, 84), (214, 120, 180), (92, 164, 178)),
)

_scan = jax.jit(lidar.scan, static_argnames=("kind", "boundaries", "num_rays"))


def draw(env: ParticleTask, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
    """Draw a state of a `ParticleTask`, and trails from its earlier states, uint8 [480, 480, 3]."""
    from PIL import Image  # noqa: PLC0415  (a picture alone needs it)

    side = float(np.max(np.asarray(state.world.box)[:2]))
    pixels = SIZE * SMOOTH
    image = Image.new("RGB", (pixels, pixels), BACKGROUND)
    canvas = Canvas(image, (pixels - 2 * MARGIN * SMOOTH) / side, side)
    place, radius = _places(state), np.asarray(state.world.radius)
    canvas.box(env.boundary == "walls")
    if env.sensing == "rays":
        _paint_rays(canvas, env, state, place, radius)
    _paint_trails(canvas, [*map(_places, past[-TRAIL_DECISIONS::TRAIL_STRIDE]), place], radius)
    _paint_targets(canvas, state, radius)
    touched = _touched(place, radius, side if env.boundary == "periodic" else 0.0)
    for i, at in enumerate(place):
        if env.dimensions == 3:
            canvas.disc(at + radius[i] * SHADOW_SHIFT, radius[i], SHADOW)
    for i, at in enumerate(place):
        colour = COLOURS[i % len(COLOURS)]
        if env.dimensions == 3:
            canvas.sphere(at, radius[i], colour)
        else:
            canvas.disc(at, radius[i], colour)
        if touched[i]:
            canvas.disc(at, radius[i], None, TOUCHING)
    own = len(state.target.T) == len(place)
    for i, at in enumerate(np.asarray(state.target).T):
        canvas.disc(at, 0.15 * radius.max(), _blend(_colour(i, own), 0.0 if own else 0.2))
    return np.asarray(image.reduce(SMOOTH), np.uint8)


class Canvas:
    """A drawing in the coordinates of the box, y upwards.

    Attributes:
      scale: pixels per unit of length.
      side: of the box.
    """

    def __init__(self, image: Image, scale: float, side: float):
        from PIL import ImageDraw  # noqa: PLC0415

        self.image, self.scale, self.side = image, scale, side
        self._stretch = np.array([scale, -scale])
        self._origin = np.array([0, side * scale]) + MARGIN * SMOOTH
        self._pen = ImageDraw.Draw(image)

    def pixel(self, place: np.ndarray) -> np.ndarray:
        """Return the pixels of places, [..., 2]."""
        return place * self._stretch + self._origin

    def disc(
        self, place: np.ndarray, radius: object, colour: tuple | None, edge: tuple | None = None
    ) -> None:
        """Paint a disc, or many with places [N, 2] and radii [N]; an edge, or both."""
        r = np.asarray(radius)[..., None] * self.scale
        at = self.pixel(place)
        for corners in np.concatenate([at - r, at + r], -1).reshape(-1, 4).tolist():
            self._pen.ellipse(corners, fill=colour, outline=edge, width=2 * SMOOTH if edge else 0)

    def sphere(self, place: np.ndarray, radius: float, colour: tuple) -> None:
        """Paint a shaded sphere."""
        from PIL import Image  # noqa: PLC0415

        x, y = self.pixel(place).tolist()
        shaded, mask = shaded_sphere(max(1, round(float(radius) * self.scale)), colour)
        corner = round(x) - len(mask) // 2, round(y) - len(mask) // 2
        self.image.paste(Image.fromarray(shaded), corner, Image.fromarray(mask))

    def line(self, start: np.ndarray, end: np.ndarray, colour: tuple, width: float = 0.0) -> None:
        """Paint a line, or many [N, 2], as thin as possible or with a width."""
        thickness = max(SMOOTH, round(width * self.scale))
        for corners in np.concatenate([self.pixel(start), self.pixel(end)], -1).reshape(-1, 4).tolist():
            self._pen.line(corners, fill=colour, width=thickness)

    def box(self, has_walls: bool) -> None:
        """Paint the floor and, where there are walls, its edge."""
        left, bottom = self.pixel(np.zeros(2)).tolist()
        right, top = self.pixel(np.full(2, self.side)).tolist()
        self._pen.rectangle(
            (left, top, right, bottom),
            fill=FLOOR,
            outline=WALL if has_walls else MET_WALL,
            width=3 if has_walls else 1,
        )


@functools.lru_cache(maxsize=256)
def shaded_sphere(radius: int, colour: tuple) -> tuple[np.ndarray, np.ndarray]:
    """Return the image of a sphere under diffuse light with a gloss, and its mask, uint8 [2 r, 2 r, 3] and [2 r, 2 r].

    Source: Phong 1975, "Illumination for computer generated pictures".
    """
    across = (np.arange(2 * radius) + 0.5) / radius - 1
    x, y = across[None], -across[:, None]
    height = np.sqrt(np.maximum(1 - x**2 - y**2, 0))
    direction = LIGHT / np.linalg.norm(LIGHT)
    towards = np.maximum(x * direction[0] + y * direction[1] + height * direction[2], 0)
    mirrored = np.maximum(2 * towards * height - direction[2], 0)  # towards the viewer
    diffuse = (AMBIENT + (1.15 - AMBIENT) * towards)[..., None] * np.asarray(colour)
    image = diffuse + (255 - np.minimum(diffuse, 255)) * GLOSS * (mirrored**GLOSS_POWER)[..., None]
    mask = np.where(x**2 + y**2 <= 1, 255, 0)
    return np.clip(image, 0, 255).astype(np.uint8), mask.astype(np.uint8)


def _places(state: TaskState) -> np.ndarray:
    """Return the places of the agents in the plane, [A, 2]."""
    return np.asarray(state.particles.position)[:2].T


def _paint_trails(canvas: Canvas, places: Sequence[np.ndarray], radius: np.ndarray) -> None:
    """Paint the ways of agents, places [T, A, 2]; they become thinner and fainter with their age."""
    for age in range(len(places) - 1, 0, -1):
        share = age * TRAIL_STRIDE / TRAIL_DECISIONS
        for i, (start, end) in enumerate(zip(places[-1 - age], places[-age], strict=True)):
            if np.abs(end - start).max() < canvas.side / 2:  # not through a periodic boundary
                colour = _blend(COLOURS[i % len(COLOURS)], 0.35 + 0.6 * min(share, 1.0))
                canvas.line(start, end, colour, 0.35 * radius[i] * (1 - 0.7 * min(share, 1.0)))


def _paint_targets(canvas: Canvas, state: TaskState, radius: np.ndarray) -> None:
    held, own = np.asarray(state.held) > 0, len(state.target.T) == len(radius)
    for i, at in enumerate(np.asarray(state.target).T):
        colour = _colour(i, own)
        canvas.disc(at, radius.max(), _blend(colour, 0.55 if held[i] else 0.9), colour)


def _paint_rays(
    canvas: Canvas, env: ParticleTask, state: TaskState, place: np.ndarray, radius: np.ndarray
) -> None:
    """Paint those that meet nothing first, so that they hide no other."""
    world = state.world
    box, kinds = world.box[:2], env.boundaries[:2]
    found = _scan("rays", state.particles.position[:2], world.radius, box, kinds, env.num_rays, env.reach)
    distance, is_disc, is_wall = map(np.asarray, found)
    ends = place[:, None] + distance[..., None] * lidar.directions(env.num_rays).T
    for colour, meets in ((MISS, ~is_disc & ~is_wall), (MET_WALL, is_wall), (MET_DISC, is_disc)):
        agent, ray = np.nonzero(meets)
        canvas.line(place[agent], ends[agent, ray], colour)
        if colour != MISS:
            canvas.disc(ends[agent, ray], 0.09 * radius[agent], colour)


def _colour(target: int, is_own: bool) -> tuple:
    """Return the colour of a target: its agent's, or grey where targets are shared."""
    return COLOURS[target % len(COLOURS)] if is_own else WALL


def _touched(place: np.ndarray, radius: np.ndarray, period: float) -> np.ndarray:
    """Return which agents overlap another one; the side of a periodic box is its period, and that of others 0."""
    offset = place[:, None] - place[None]
    if period:
        offset -= period * np.round(offset / period)
    near = np.hypot(offset[..., 0], offset[..., 1]) < radius[:, None] + radius
    return (near & ~np.eye(len(place), dtype=bool)).any(1)


def _blend(colour: tuple, share: float) -> tuple:
    """Mix a colour with white."""
    return tuple(round((1 - share) * x + share * 255) for x in colour)
