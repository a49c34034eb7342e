"""The style that all pictures share: figures, axes, colours and the ticks of environment steps."""

import contextlib
import importlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.files import write_whole_file
from shoal.base.user_errors import describe_error

COLOUR = "#1f6fb4"
COLOURS = (COLOUR, "#c8553d", "#4f8a3c", "#8a5fb0")  # of several curves
# Of many curves, after Okabe and Ito: colour-blind readers can tell them apart, and each is seen on white and on black.
PALETTE = ("#1f85c8", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#7d8590")
DASHES = ("-", "--", ":", "-.")  # of curves beyond the palette
TEXT = "#333333"
GRID = "#e6e6e6"


def new_figure(width: float = 7, height: float = 4.2) -> Any:
    """Make a figure of a size in inches, of 150 pixels each, without a window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 (takes half a second)
    from matplotlib.figure import Figure  # noqa: PLC0415

    # The canvas is used directly, since pyplot has global state and may open windows.
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def import_early() -> None:
    """Import what draws on a thread of its own, while the caller waits for XLA; an error is raised where one draws."""

    def import_drawing() -> None:
        with contextlib.suppress(Exception):
            importlib.import_module("matplotlib.backends.backend_agg")
            importlib.import_module("matplotlib.figure")

    threading.Thread(target=import_drawing, daemon=True).start()


@contextlib.contextmanager
def as_warning(path: Path) -> Iterator[None]:
    """Report in one warning that a picture of a finished run cannot be drawn: its numbers are saved without it."""
    try:
        yield
    except ShoalError as error:
        signals.say(f"shoal: {error}")
    except Exception as error:  # of matplotlib, its settings, or TeX
        signals.say(f"shoal: {path} cannot be drawn: {_describe_failure(error)}.")


def require_drawing(path: Path) -> None:
    """Require that pictures can be drawn, before anything is computed for one that a user asks for."""
    try:
        figure = new_figure(1, 1)
        set_title(figure.add_subplot(), "1")
        figure.savefig(io.BytesIO(), format="png")
    except Exception as error:
        raise ShoalError(f"{path} cannot be drawn: {_describe_failure(error)}.") from error


def _describe_failure(error: Exception) -> str:
    backend = os.environ.get("MPLBACKEND", "")
    text = describe_error(error)
    return f"{text} (MPLBACKEND={backend})" if backend and "backend" in text else text


def set_title(axes: Any, title: str) -> None:
    """Write the heading of a picture above its axes, at the left."""
    axes.set_title(title, loc="left", color=TEXT, fontsize=11, fontweight="bold")


def save(figure: Any, path: Path) -> None:
    """Write a figure as a PNG, in a directory that exists."""
    with write_whole_file(Path(path), parents=False) as file:
        figure.savefig(file, format="png")


def style(axes: Any) -> None:
    """Give axes the lines and colours that all pictures have."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(axes: Any) -> None:
    """Add the legend, in the reverse order of drawing."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=9, loc="best", labelcolor=TEXT)


def format_steps(steps: float, _: int) -> str:
    """Format 1,500,000 as 1.5M, for the ticks of the horizontal axis."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(steps) >= size:
            return f"{steps / size:g}{unit}"
    return f"{steps:g}"
