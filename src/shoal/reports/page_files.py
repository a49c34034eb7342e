"""Films and pictures of a run inside a page, as data: URLs."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from shoal.base.files import report_os_errors
from shoal.records.directory import FILMS
from shoal.reports.markup import Markup, element, join, void

MEDIA_TYPES = {".gif": "image/gif", ".mp4": "video/mp4", ".png": "image/png"}
PICTURES = {  # of runs and sweeps, and what they show
    "lineage.png": "Settings of the members over time, coloured by score, with the ancestors of the best policy",
    "settings.png": "Scores of the settings over each setting that varies",
    "importances.png": "How much of the differences between scores each setting explains alone",
}


class MediaFile(NamedTuple):
    """A film or a picture.

    Attributes:
      text: what it shows.
    """

    path: Path
    text: str

    @property
    def bytes(self) -> int:
        """The size of the file."""
        with report_os_errors(f"{self.path} cannot be read"):
            return self.path.stat().st_size


def films_of(path: Path) -> list[MediaFile]:
    """Find the films of a run: those in `films/`, by environment steps, and those beside its files."""
    during = [x for x in (path / FILMS).glob("*") if x.suffix in MEDIA_TYPES]
    during.sort(key=lambda x: (int(x.stem) if x.stem.isdecimal() else 0, x.name))
    beside = sorted(x for x in path.glob("*") if x.suffix in (".gif", ".mp4"))
    return [
        MediaFile(x, f"Film of a policy after {int(x.stem):,} environment steps")
        if x.stem.isdecimal()
        else MediaFile(x, f"Film {x.name}")
        for x in [*during, *beside]
    ]


def pictures_of(path: Path) -> list[MediaFile]:
    """Find the pictures of a run or a sweep that show more than its curve."""
    return [MediaFile(path / name, text) for name, text in PICTURES.items() if (path / name).is_file()]


def inline(files: Sequence[MediaFile], most_bytes: float) -> tuple[Markup, float]:
    """Put files into a page, the last ones first of all, as long as their sizes together are within a bound.

    Returns:
      the figures in the order of the files, with a sentence about those that are left out; and the bytes that remain.
    """
    shown, left_out = [], []
    for file in reversed(files):
        if file.bytes <= most_bytes:
            most_bytes -= file.bytes
            shown.append(_figure(file))
        else:
            left_out.append(f"{file.path} ({file.bytes / 1e6:,.1f} MB)")
    parts = [element("div", *reversed(shown), class_="media")] if shown else []
    if left_out:
        listed = ", ".join(reversed(left_out))
        parts.append(
            element("p", f"Left out, since they exceed the page's size of films (--film-size): {listed}.")
        )
    return join(parts), most_bytes


def _figure(file: MediaFile) -> Markup:
    with report_os_errors(f"{file.path} cannot be read"):
        data = base64.b64encode(file.path.read_bytes()).decode()
    source = f"data:{MEDIA_TYPES[file.path.suffix]};base64,{data}"
    if file.path.suffix == ".mp4":
        media = element("video", src=source, controls=True, loop=True, muted=True, aria_label=file.text)
    else:
        media = void("img", src=source, alt=file.text)
    return element("figure", media, element("figcaption", file.text))
