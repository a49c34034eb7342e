"""The style that all pictures share: figures, axes, colours and the ticks of environment steps."""

import contextlib
import importlib
import io
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.files import write_whole_file
from shoal.base.user_errors import describe_error

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = "#1f6fb4"
COLOURS = (COLOUR, "#c8553d", "#4f8a3c", "#8a5fb0")  # of several curves
# Of many curves, after Okabe and Ito: colour-blind readers can tell them apart, and each is seen on white and on black.
PALETTE = ("#1f85c8", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#7d8590")
DASHES = ("-", "--", ":", "-.")  # of curves beyond the palette
TEXT = "#333333"
GRID = "#e6e6e6"
FORMATS = {".png": "png", ".pdf": "pdf", ".svg": "svg"}
DATES: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
MAX_LABEL = 60  # letters of a name in a legend
LETTERS_PER_INCH = 13  # of the legend's font
FEW_POINTS = 10  # of a curve, each of which has a marker


def new_figure(width: float = 7, height: float = 4.2) -> "Figure":
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


def set_title(axes: "Axes", title: str) -> None:
    """Write the heading of a picture above its axes, at the left."""
    axes.set_title(title, loc="left", color=TEXT, fontsize=11, fontweight="bold")


def save(figure: "Figure", path: Path) -> None:
    """Write a figure in the format of its path's suffix, in a directory that exists."""
    with write_whole_file(Path(path), parents=False) as file:
        write(figure, file, FORMATS[Path(path).suffix.lower()])


def write(figure: "Figure", file: IO[bytes] | IO[str], kind: str, *, transparent: bool | None = None) -> None:
    """Write a figure to a file, with texts that stay text, and say nothing on the terminal.

    Names are shown as they are, and not as formulae. The same figure gives the same bytes.
    """
    import matplotlib as mpl  # noqa: PLC0415 (takes half a second)
    from matplotlib.text import Text  # noqa: PLC0415

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_usetex(False)
    # Ids of an SVG from a salt, and no date.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": "shoal", "pdf.fonttype": 42}
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks
        figure.savefig(file, format=kind, metadata=DATES.get(kind), transparent=transparent)


def style(axes: "Axes") -> None:
    """Give axes the lines and colours that all pictures have."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=TEXT)
    axes.spines[["top", "right"]].set_visible(False)


def cut(name: str, letters: int = MAX_LABEL) -> str:
    """Cut a name that is longer than some letters."""
    return name if len(name) <= letters else f"{name[: letters - 3]}..."


def add_legend(figure: Any, handles: Sequence["Artist"], labels: Sequence[str]) -> None:
    """Add the one legend of a figure, below all axes; long names are cut."""
    if not labels:
        return
    # matplotlib hides labels that begin with "_".
    texts = [" " * label.startswith("_") + cut(label) for label in labels]
    letters = figure.get_figwidth() * LETTERS_PER_INCH
    columns = max(1, min(len(texts), 4, int(letters / (max(map(len, texts)) + 8))))
    style: Any = {"frameon": False, "fontsize": 9, "labelcolor": TEXT}
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, **style)


def add_legend_of(axes: "Axes") -> None:
    """Add the legend of the only axes of a figure, in the reverse order of drawing."""
    handles, labels = axes.get_legend_handles_labels()
    add_legend(axes.figure, handles[::-1], labels[::-1])


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two positive bounds, with their multiples where there are few of them."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        values = [float(f"{factor}e{k}") for k in exponents for factor in factors]
        inside = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) >= 3:
            return inside[:: math.ceil(len(inside) / 6)]
    return linear_ticks(low, high)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return about four round numbers between two bounds; whole ones between whole ones."""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 (takes half a second)

    values = MaxNLocator(4, integer=isinstance(low, int)).tick_values(low, high)
    return [float(value) for value in values if low - 1e-12 <= value <= high + 1e-12]


def set_log_ticks(axis: Any, form: Callable[[float], str] = "{:.6g}".format) -> None:
    """Make an axis logarithmic, with three labelled ticks or about that between its limits."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    values = log_ticks(*map(float, axis.get_view_interval()))
    axis.set_ticks(values, [form(x) for x in values])
    axis.set_ticks([], minor=True)


def format_steps(steps: float, _: float) -> str:
    """Format 1,500,000 as 1.5M, for the ticks of the horizontal axis."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(steps) >= size:
            return f"{steps / size:g}{unit}"
    return f"{steps:g}"
