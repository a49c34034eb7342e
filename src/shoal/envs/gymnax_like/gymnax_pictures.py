"""Pictures of states by gymnax's and Craftax's own functions."""

import functools
import importlib
import os
from collections.abc import Callable

import jax
import numpy as np

from shoal.envs.gymnax_like.craftax_scores import package_of
from shoal.envs.suites.packages import undisturbed
from shoal.types import State

# The names that gymnax's `Visualizer` draws.
OF_GYMNAX = (
    *(
        "Acrobot-v1",
        "CartPole-v1",
        "Pendulum-v1",
        "MountainCar-v0",
        "MountainCarContinuous-v0",
        "Catch-bsuite",
    ),
    *("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "Seaquest-MinAtar", "SpaceInvaders-MinAtar"),
    *("Pong-misc", "PointRobot-misc", "MetaMaze-misc", "FourRooms-misc"),
)
BLOCK_PIXELS = 16  # of Craftax's pictures


def can_draw(world: object) -> bool:
    """Report whether the package of an object has functions that draw it."""
    is_of_gymnax = type(world).__module__.startswith("gymnax.")
    return bool(package_of(world)) or (is_of_gymnax and getattr(world, "name", "") in OF_GYMNAX)


def draw(world: object, params: object, state: State) -> np.ndarray:
    """Draw a state, uint8 [height, width, 3]."""
    return _drawn_by_craftax(world, state) if package_of(world) else _drawn_by_gymnax(world, params, state)


def _drawn_by_craftax(world: object, state: State) -> np.ndarray:
    return np.clip(np.asarray(_craftax_renderer(package_of(world))(state)), 0, 255).astype(np.uint8)


@functools.cache
def _craftax_renderer(package: str) -> Callable[[State], jax.Array]:
    with undisturbed():
        make = importlib.import_module(f"{package}.renderer").make_craftax_pixel_renderer
        return jax.jit(make(BLOCK_PIXELS))


def _drawn_by_gymnax(world: object, params: object, state: State) -> np.ndarray:
    """Draw by gymnax's `Visualizer`, whose figure is drawn without a window and closed."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (takes a second)
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415

    if not os.environ.get("DISPLAY"):
        # pygame, by which classic control is drawn, prints otherwise.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    visualizer = importlib.import_module("gymnax.visualize.visualizer").Visualizer(world, params, [state])
    try:
        canvas = FigureCanvasAgg(visualizer.fig)
        visualizer.init()
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()
    finally:
        plt.close(visualizer.fig)
