"""Pictures of states by Jumanji's viewers, which draw by matplotlib."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shoal.types import State

DOTS_PER_INCH = 40  # pictures of about 400 pixels; larger ones take most of a film's time
VIEWERS = ("_viewer", "_env_viewer", "viewer")  # the names of the attribute in Jumanji's classes
WITHOUT_WINDOWS = "agg"


def viewer_of(world: object) -> Any:
    """Return the viewer of an object; None where it has none."""
    viewers = (getattr(world, name, None) for name in VIEWERS)
    return next((viewer for viewer in viewers if hasattr(viewer, "render")), None)


def draw(world: object, state: State) -> np.ndarray:
    """Draw a state, uint8 [height, width, 3], by the viewer, which writes a file and shows no window."""
    with tempfile.TemporaryDirectory() as folder, _own_figures():
        path = Path(folder, "state.png")
        viewer_of(world).render(state, save_path=str(path))
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))


@contextlib.contextmanager
def _own_figures() -> Iterator[None]:
    """Draw without windows, then close the figures that were made, and no others, and restore the backend."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (takes a second)

    backend = plt.get_backend()
    if backend.lower() != WITHOUT_WINDOWS:
        plt.switch_backend(WITHOUT_WINDOWS)
    others = set(plt.get_fignums())
    try:
        with plt.rc_context({"savefig.dpi": DOTS_PER_INCH}):
            yield
    finally:
        for number in set(plt.get_fignums()) - others:
            plt.close(number)
        if backend.lower() != WITHOUT_WINDOWS:
            plt.switch_backend(backend)
