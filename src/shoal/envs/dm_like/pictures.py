"""Pictures of states by Jumanji's viewers, which draw by matplotlib."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from shoal.types import State

DOTS_PER_INCH = 40  # pictures of about 400 pixels; larger ones take most of a film's time


def draw(world: Any, state: State) -> np.ndarray:
    """Draw a state, uint8 [height, width, 3], by the viewer, which writes a file and shows no window."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  (takes a second)

    plt.switch_backend("Agg")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state.png")
        with plt.rc_context({"savefig.dpi": DOTS_PER_INCH}):
            world._viewer.render(state, save_path=str(path))
        plt.close("all")
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
