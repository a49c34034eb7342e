"""Pictures of states by MuJoCo's renderer, which needs OpenGL."""

import contextlib
import ctypes.util
import functools
import io
import os
import sys
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error
from shoal.envs.suites.packages import import_suite
from shoal.types import State

HEIGHT, WIDTH = 240, 320
VARIABLE = "MUJOCO_GL"


@functools.cache  # the search for a library is a process
def draw_without_a_window() -> None:
    """Let MuJoCo draw by EGL where there is no window system; MuJoCo reads this when it is imported."""
    is_bare = sys.platform == "linux" and not os.environ.get("DISPLAY") and VARIABLE not in os.environ
    if is_bare and ctypes.util.find_library("EGL"):
        os.environ[VARIABLE] = "egl"


def draw(world: Any, inner: State) -> np.ndarray:
    """Draw a state of Playground or Brax, uint8 [height, width, 3].

    Raises:
      ShoalError: MuJoCo cannot draw here.
    """
    try:
        if hasattr(world, "mj_model"):
            with contextlib.redirect_stderr(io.StringIO()):  # Playground shows a bar for each picture
                picture = world.render([inner], height=HEIGHT, width=WIDTH)[0]
        else:
            image = import_suite("brax/", "brax.io.image")
            picture = image.render_array(world.sys, inner.pipeline_state, height=HEIGHT, width=WIDTH)
    except Exception as error:
        raise ShoalError(
            f"MuJoCo cannot draw here: {describe_error(error).rstrip('.')}; it needs OpenGL, such as "
            f"{VARIABLE}=egl or {VARIABLE}=osmesa with their libraries."
        ) from error
    return np.asarray(picture, np.uint8)[..., :3]
