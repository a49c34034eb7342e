"""Images of the tasks from above: agents, their targets, walls, rays and trails, to scale.

An agent and its target have one colour; a target is a ring, filled where its agent is. Rays that hit end in a dot,
rays that do not are faint. A trail is as long as its agent is fast. Spheres are shaded, with light from the upper left.
"""

from typing import Any

import numpy as np

from shoal.envs.particles.tasks import lidar

SIZE = 480  # pixels
MARGIN = 12  # pixels around the box
SMOOTH = 2  # pixels are drawn so many times finer along each axis
BACKGROUND, FLOOR, WALL = (245, 246, 248), (255, 255, 255), (74, 80, 92)
RAY, HIT = (214, 219, 228), (150, 158, 172)
TOUCHING = (32, 35, 42)
TRAIL_SECONDS, TRAIL_DISCS = 1.0, 5
COLOURS = (
    *((66, 114, 196), (222, 132, 52), (70, 158, 98), (200, 74, 74)),
    *((136, 98, 188), (140, 104, 84), (214, 120, 180), (92, 164, 178)),
)


def draw(env: Any, state: Any) -> np.ndarray:
    """Draw a state of a `ParticleTask`, uint8 [480, 480, 3]."""
    from PIL import Image, ImageDraw  # noqa: PLC0415  (a picture alone needs it)

    side = float(np.max(np.asarray(state.world.box)[:2]))
    pixels = SIZE * SMOOTH
    image = Image.new("RGB", (pixels, pixels), BACKGROUND)
    canvas = Canvas(ImageDraw.Draw(image), (pixels - 2 * MARGIN * SMOOTH) / side, side)
    place = np.asarray(state.particles.position)[:2].T
    velocity = np.asarray(state.particles.velocity)[:2].T
    radius, target = np.asarray(state.world.radius), np.asarray(state.target).T
    held = np.asarray(state.held) > 0
    canvas.box(env.boundary == "walls")
    if env.sensing == "rays":
        _paint_rays(canvas, env, state, place, radius)
    for i, (at, v) in enumerate(zip(place, velocity, strict=True)):
        for step in range(TRAIL_DISCS, 0, -1):
            share = step / (TRAIL_DISCS + 1)
            ghost = _blend(COLOURS[i % len(COLOURS)], 0.55 + 0.4 * share)
            canvas.disc(at - TRAIL_SECONDS * share * v, radius[i] * (1 - 0.6 * share), ghost)
    own = len(target) == len(place)
    for i, at in enumerate(target):
        colour = _colour(i, own)
        canvas.disc(at, radius.max(), _blend(colour, 0.55 if held[i] else 0.9), colour)
    touched = _touched(place, radius)
    for i, at in enumerate(place):
        colour = COLOURS[i % len(COLOURS)]
        canvas.disc(at, radius[i], colour, TOUCHING if touched[i] else None)
        if env.dimensions == 3:
            _paint_sphere(canvas, at, radius[i], colour)
    for i, at in enumerate(target):
        canvas.disc(at, 0.15 * radius.max(), _colour(i, own))
    small = image.resize((SIZE, SIZE), Image.Resampling.BOX)
    return np.asarray(small, np.uint8)


class Canvas:
    """A drawing in the coordinates of the box, y upwards.

    Attributes:
      pen: Pillow's.
      scale: pixels per unit of length.
      side: of the box.
    """

    def __init__(self, pen: Any, scale: float, side: float):
        self.pen, self.scale, self.side = pen, scale, side

    def pixel(self, place: np.ndarray) -> tuple[float, float]:
        """Return the pixel of a place."""
        x, y = (float(p) * self.scale for p in place)
        return x + MARGIN * SMOOTH, (self.side * self.scale - y) + MARGIN * SMOOTH

    def disc(self, place: np.ndarray, radius: float, colour: tuple, edge: tuple | None = None) -> None:
        """Paint a disc, with an edge if asked for."""
        x, y = self.pixel(place)
        r = float(radius) * self.scale
        self.pen.ellipse(
            (x - r, y - r, x + r, y + r), fill=colour, outline=edge, width=2 * SMOOTH if edge else 0
        )

    def line(self, start: np.ndarray, end: np.ndarray, colour: tuple) -> None:
        """Paint a thin line."""
        self.pen.line((*self.pixel(start), *self.pixel(end)), fill=colour, width=SMOOTH)

    def box(self, has_walls: bool) -> None:
        """Paint the floor and, where there are walls, its edge."""
        left, bottom = self.pixel(np.zeros(2))
        right, top = self.pixel(np.full(2, self.side))
        self.pen.rectangle(
            (left, top, right, bottom),
            fill=FLOOR,
            outline=WALL if has_walls else HIT,
            width=3 if has_walls else 1,
        )


def _paint_rays(canvas: Canvas, env: Any, state: Any, place: np.ndarray, radius: np.ndarray) -> None:
    kinds, reach = env.boundaries[:2], float(env.reach)
    found = lidar.scan(
        state.particles.position[:2], state.world.radius, state.world.box[:2], kinds, env.num_rays, reach
    )
    distance = np.asarray(found.distance)
    hits = np.asarray(found.is_disc | found.is_wall)
    for i, at in enumerate(place):
        for k, direction in enumerate(lidar.directions(env.num_rays).T):
            end = at + distance[i, k] * direction
            canvas.line(at, end, HIT if hits[i, k] else RAY)
            if hits[i, k]:
                canvas.disc(end, 0.09 * radius[i], HIT)


def _paint_sphere(canvas: Canvas, place: np.ndarray, radius: float, colour: tuple) -> None:
    """Paint the light of a sphere: discs that shrink towards the highlight and become brighter."""
    for step in range(1, 9):
        share = step / 9
        at = place + radius * share * 0.4 * np.array([-1.0, 1.0])
        canvas.disc(at, radius * (1 - share) * 0.95, _blend(colour, 0.75 * share**1.5))


def _colour(target: int, is_own: bool) -> tuple:
    """Return the colour of a target: its agent's, or grey where targets are shared."""
    return COLOURS[target % len(COLOURS)] if is_own else WALL


def _touched(place: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return which agents overlap another one."""
    offset = place[:, None] - place[None]
    near = np.hypot(offset[..., 0], offset[..., 1]) < radius[:, None] + radius
    return (near & ~np.eye(len(place), dtype=bool)).any(1)


def _blend(colour: tuple, share: float) -> tuple:
    """Mix a colour with white."""
    return tuple(round((1 - share) * x + share * 255) for x in colour)
