"""Images of the particle worlds: the field from above, with everything to scale.

The image shows a square around the middle of the field, and a larger one while something is outside it. A mobile agent
leaves a trail that is as long as it is fast.
"""

import numpy as np

from shoal.envs.classic.scenes import BACKGROUND, BLUE, DARK_GREY, GREEN, GROUND, LIGHT_GREY, ORANGE
from shoal.envs.drawing import Colour, Point, box, canvas, disc, line, paint, polygon, to_uint8

SIZE = 400  # pixels
VIEW = 1.35  # half the side of the square that is shown
BORDER = 0.05  # between the outermost body and the edge of the image, at least, as a share of its distance
RED: Colour = (206, 76, 68)
LANDMARK_COLOURS: tuple[Colour, ...] = (RED, GREEN, BLUE)  # by number
LANDMARK_RADIUS = 0.05
TRAIL = 0.35  # units of time that a trail goes back
TRAIL_DISCS = 6
AGENT_RADIUS = 0.075  # of speaker and listener


class Field:
    """An image of the field to paint on, in the field's own coordinates.

    Attributes:
      scale: pixels per unit of length.
    """

    def __init__(self, *places: tuple[np.ndarray, float]):
        """Make the empty field, so large that all places [N, 2], each kind with a radius, are in it."""
        reach = [(np.abs(place).max(initial=0) + radius) * (1 + BORDER) for place, radius in places]
        self.picture = canvas(SIZE, SIZE, BACKGROUND)
        self.scale = SIZE / 2 / max(VIEW, *reach)
        left, top = self.pixel((-1, 1))
        right, bottom = self.pixel((1, -1))
        paint(self.picture, box(left, top, right, bottom), GROUND)
        paint(self.picture, box(left + 1.5, top + 1.5, right - 1.5, bottom - 1.5), BACKGROUND)

    def pixel(self, place: np.ndarray | Point) -> Point:
        """Return the pixel of a place; y grows upwards in the field and downwards in the image."""
        x, y = map(float, place)
        return SIZE / 2 + x * self.scale, SIZE / 2 - y * self.scale

    def disc(self, place: np.ndarray, radius: float, colour: Colour) -> None:
        """Paint a disc."""
        paint(self.picture, disc(self.pixel(place), radius * self.scale), colour)

    def ring(self, place: np.ndarray, radius: float, width: float, colour: Colour) -> None:
        """Paint a circle whose outer radius is `radius`, with the background in its middle."""
        self.disc(place, radius, colour)
        self.disc(place, radius - width, BACKGROUND)

    def trail(self, place: np.ndarray, velocity: np.ndarray, radius: float, colour: Colour) -> None:
        """Paint an agent's trail, which fades and narrows."""
        for i in range(TRAIL_DISCS, 0, -1):
            share = i / (TRAIL_DISCS + 1)
            self.disc(place - velocity * TRAIL * share, radius * (1 - 0.7 * share), _blend(colour, share))

    def agent(self, place: np.ndarray, radius: float, colour: Colour) -> None:
        """Paint an agent, with a dark edge."""
        self.disc(place, radius, DARK_GREY)
        self.disc(place, radius - 1.5 / self.scale, colour)

    def image(self) -> np.ndarray:
        """Return the image, uint8 [height, width, 3]."""
        return to_uint8(self.picture)


def _blend(colour: Colour, share: float) -> Colour:
    """Mix a colour with the background; the share of the background is at least a half."""
    share = 0.5 + share / 2
    red, green, blue = (round((1 - share) * x + share * y) for x, y in zip(colour, BACKGROUND, strict=True))
    return red, green, blue


def spread(
    position: np.ndarray,
    velocity: np.ndarray,
    landmarks: np.ndarray,
    *,
    size: float,
    touches: np.ndarray,
    covered: np.ndarray,
) -> np.ndarray:
    """Draw landmarks, filled where they are covered, and agents, orange where they touch."""
    field = Field((position, size), (landmarks, LANDMARK_RADIUS))
    for place, speed in zip(position, velocity, strict=True):
        field.trail(place, speed, size, BLUE)
    for place, is_touching in zip(position, touches, strict=True):
        field.agent(place, size, ORANGE if is_touching else BLUE)
    for place, is_covered in zip(landmarks, covered, strict=True):
        field.disc(place, 1.6 * LANDMARK_RADIUS, BACKGROUND)
        field.ring(place, 1.4 * LANDMARK_RADIUS, 0.4 * LANDMARK_RADIUS, GREEN if is_covered else DARK_GREY)
        if is_covered:
            field.disc(place, 0.8 * LANDMARK_RADIUS, GREEN)
    return field.image()


def speaker_listener(
    position: np.ndarray, velocity: np.ndarray, landmarks: np.ndarray, goal: np.ndarray, message: np.ndarray
) -> np.ndarray:
    """Draw landmarks, a ring around the goal, the listener, and the speaker with its word, one to three dots.

    In the middle of the speaker is the colour of the goal, which it alone sees.
    """
    speaker, listener = position
    field = Field((position, AGENT_RADIUS), (landmarks, LANDMARK_RADIUS))
    field.ring(landmarks[goal], 2.6 * LANDMARK_RADIUS, 0.5 * LANDMARK_RADIUS, ORANGE)
    for place, colour in zip(landmarks, LANDMARK_COLOURS, strict=True):
        field.disc(place, 1.4 * LANDMARK_RADIUS, colour)
    field.trail(listener, velocity[1], AGENT_RADIUS, LIGHT_GREY)
    field.agent(listener, AGENT_RADIUS, LIGHT_GREY)
    field.disc(speaker, AGENT_RADIUS, DARK_GREY)
    field.disc(speaker, 0.55 * AGENT_RADIUS, LANDMARK_COLOURS[int(goal)])
    if message >= 0:
        _paint_bubble(field, speaker, int(message) + 1)
    return field.image()


def _paint_bubble(field: Field, speaker: np.ndarray, dots: int) -> None:
    """Paint a speech bubble with some dots beside the speaker, on the side where there is room."""
    x, y = field.pixel(speaker)
    side = 1 if x < SIZE / 2 else -1
    above = -1 if y > SIZE / 2 else 1
    middle = (x + side * 38, y + above * 30)
    width, height = 27.0, 13.0
    tail = [(x + side * 11, y + above * 9), (middle[0] - side * 14, middle[1]), (middle[0], middle[1])]
    for grow, colour in ((1.5, DARK_GREY), (0.0, (255, 255, 255))):
        left, right = middle[0] - width - grow, middle[0] + width + grow
        top, bottom = middle[1] - height - grow, middle[1] + height + grow
        paint(field.picture, box(left, top, right, bottom, corner=9), colour)
        if grow:
            paint(field.picture, line([*tail[:2]], 2 * grow), colour)
            paint(field.picture, line([tail[0], tail[2]], 2 * grow), colour)
    paint(field.picture, polygon(tail), (255, 255, 255))
    for i in range(dots):
        paint(field.picture, disc((middle[0] + 15 * (i - (dots - 1) / 2), middle[1]), 4.5), DARK_GREY)


def tag(
    position: np.ndarray,
    velocity: np.ndarray,
    obstacles: np.ndarray,
    *,
    sizes: np.ndarray,
    obstacle_size: float,
    is_prey: np.ndarray,
    caught: np.ndarray,
) -> np.ndarray:
    """Draw obstacles, adversaries in red, and prey in green, with a ring around each that is caught."""
    field = Field((position, float(sizes.max())), (obstacles, obstacle_size))
    colours = [GREEN if hunted else RED for hunted in is_prey]
    for place, speed, size, colour in zip(position, velocity, sizes, colours, strict=True):
        field.trail(place, speed, float(size), colour)
    for place in obstacles:
        field.disc(place, obstacle_size, LIGHT_GREY)
    num_adversaries = int((~is_prey).sum())
    for place, size in zip(position[num_adversaries:][caught], sizes[num_adversaries:][caught], strict=True):
        field.ring(place, size + 0.09, 0.025, ORANGE)
    for place, size, colour in zip(position, sizes, colours, strict=True):
        field.agent(place, float(size), colour)
    return field.image()
