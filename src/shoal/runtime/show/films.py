"""Films as files: GIF by Pillow, MP4 by ffmpeg, or the first image alone as PNG."""

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from shoal.errors import ShoalError, nearest
from shoal.files import write_whole_file

FORMATS = (".gif", ".mp4", ".png")
LAST_FRAME_SECONDS = 1.0  # seconds for which the last image of an episode stays
MIN_FRAME_MILLISECONDS = 20  # milliseconds: players slow down a GIF of shorter ones
CAPTION_HEIGHT = 24  # pixels, of the caption below an image
FONT_SIZE = 13
CAPTION_COLOUR, TEXT_COLOUR = (24, 26, 32), (214, 218, 226)
TEXT_LEVELS = 8  # levels of the letters' edges: few, so that the colours of a film fit one palette
MAX_COLOURS = 256  # of a GIF
MAX_COLOUR_DIFFERENCE = (
    16  # levels of 256 by which two colours may differ that share a place of a full palette
)


class Frame(NamedTuple):
    """An image and the caption below it."""

    picture: np.ndarray  # uint8 [height, width, 3]
    caption: str
    is_last: bool  # whether it is an episode's last, which stays longer


def check_writable(path: str | Path) -> Path:
    """Require that a film can be written to a path, and return the path.

    Raises:
      ShoalError: its extension is unknown, its directory does not exist or cannot be written to, or a required
        program is missing.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise ShoalError(
            f"render={str(path)!r} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            f"{nearest(path.suffix, FORMATS) if path.suffix else ''}."
        )
    if path.is_dir():
        raise ShoalError(f"render={str(path)!r} cannot be written: it is a directory.")
    if not path.parent.is_dir():
        raise ShoalError(
            f"render={str(path)!r} cannot be written: there is no directory {str(path.parent)!r}."
        )
    if not os.access(path.parent, os.W_OK):
        raise ShoalError(f"render={str(path)!r} cannot be written: {str(path.parent)!r} is read-only.")
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise ShoalError(
            f"render={str(path)!r} needs the program ffmpeg, which is not on the path; .gif does not."
        )
    try:
        import PIL  # noqa: F401, PLC0415
    except ImportError:
        raise ShoalError(f"render={str(path)!r} needs Pillow; `pip install pillow` brings it.") from None
    return path


def write_frames(path: Path, frames: Callable[[], Iterable[Frame]], frames_per_second: float) -> int:
    """Write frames to a file; it is complete or absent.

    Args:
      path: accepted by `check_writable`.
      frames: makes them, the same ones at every call.
      frames_per_second: the frame rate.
    Returns:
      the number of frames.
    Raises:
      ShoalError: the file cannot be written.
    """
    with write_whole_file(path) as file:
        match path.suffix.lower():
            case ".gif":
                return _write_gif(file, frames, frames_per_second)
            case ".mp4":
                return _write_mp4(path, file.name, frames(), frames_per_second)
        _image(add_caption(next(iter(frames())))).save(file, format="PNG")
        return 1


def add_caption(frame: Frame) -> np.ndarray:
    """Add a bar with the caption below the image, uint8 [height + BAR, width, 3]."""
    from PIL import Image, ImageDraw  # noqa: PLC0415 (Pillow is imported where a film is made, and only there)

    text = Image.new("L", (frame.picture.shape[1], CAPTION_HEIGHT))
    ImageDraw.Draw(text).text((8, CAPTION_HEIGHT / 2), frame.caption, 255, _font(), anchor="lm")
    alpha = (np.round(np.asarray(text, np.float32) / 255 * TEXT_LEVELS) / TEXT_LEVELS)[..., None]
    bar, colour = np.asarray(CAPTION_COLOUR, np.float32), np.asarray(TEXT_COLOUR, np.float32)
    return np.concatenate([frame.picture, np.round(bar + alpha * (colour - bar)).astype(np.uint8)])


@functools.cache
def _font() -> Any:
    from PIL import ImageFont  # noqa: PLC0415

    return ImageFont.load_default(FONT_SIZE)


def _image(picture: np.ndarray) -> Any:
    from PIL import Image  # noqa: PLC0415

    return Image.fromarray(picture)


def _write_gif(file: IO[bytes], frames: Callable[[], Iterable[Frame]], frames_per_second: float) -> int:
    """Write a GIF, with one palette for all images if they have few enough colours, else with one for each."""
    usual_duration = max(MIN_FRAME_MILLISECONDS, 10 * round(100 / frames_per_second))
    durations, palette_images = [], PaletteImages()
    for frame in frames():
        durations.append(round(1000 * LAST_FRAME_SECONDS) if frame.is_last else usual_duration)
        palette_images.add(add_caption(frame))
    images = map(_image, map(add_caption, frames())) if palette_images.overflows else palette_images.images()
    first = next(images)
    first.save(file, format="GIF", save_all=True, append_images=images, duration=durations, loop=0)
    return len(durations)


class PaletteImages:
    """Images as indices into a palette of at most 256 colours, compressed.

    New colours, once the palette is full, are replaced by similar ones of the palette.

    Attributes:
      overflows: whether the images have too many different colours; then they are not stored.
    """

    def __init__(self) -> None:
        self.overflows = False
        self.palette = np.zeros(0, np.int32)
        self._indices = np.full(1 << 24, -1, np.int16)  # of each colour, 0xRRGGBB, in the palette
        self._pictures: list[bytes] = []
        self._shape: tuple[int, ...] = ()

    def add(self, picture: np.ndarray) -> None:
        """Add an image, uint8 [height, width, 3]."""
        if self.overflows:
            return
        red, green, blue = np.moveaxis(picture.astype(np.int32), -1, 0)
        colours = red << 16 | green << 8 | blue
        new = np.unique(colours[self._indices[colours] < 0])
        if not self._assign_indices(new):
            self.overflows, self._pictures = True, []
            return
        self._shape = colours.shape
        self._pictures.append(zlib.compress(self._indices[colours].astype(np.uint8).tobytes(), level=1))

    def _assign_indices(self, new: np.ndarray) -> bool:
        """Assign indices to new colours: a new one each, or in a full palette that of a similar colour."""
        room = MAX_COLOURS - len(self.palette)
        self._indices[new[:room]] = len(self.palette) + np.arange(len(new[:room]))
        self.palette = np.concatenate([self.palette, new[:room]])
        if len(new) <= room:
            return True
        difference = np.abs(split_channels(new[room:])[:, None] - split_channels(self.palette)).max(axis=-1)
        self._indices[new[room:]] = difference.argmin(axis=1)
        return bool(difference.min(axis=1).max() <= MAX_COLOUR_DIFFERENCE)

    def images(self) -> Iterator[Any]:
        """Yield the images as Pillow images with this palette."""
        from PIL import Image  # noqa: PLC0415

        palette = split_channels(self.palette).astype(np.uint8).tobytes()
        height, width = self._shape
        for picture in self._pictures:
            image = Image.frombytes("P", (width, height), zlib.decompress(picture))
            image.putpalette(palette)
            yield image


def split_channels(colours: np.ndarray) -> np.ndarray:
    """Split colours 0xRRGGBB [...] into red, green and blue [..., 3]."""
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=-1)


def _write_mp4(path: Path, temporary: str, frames: Iterable[Frame], frames_per_second: float) -> int:
    """Write an MP4 through ffmpeg, with its default codec; sides are padded to even numbers."""
    count, last_repeats = 0, round(LAST_FRAME_SECONDS * frames_per_second)
    frames = iter(frames)
    first = next(frames)
    height, width, _ = add_caption(first).shape
    input_options = (
        f"-f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {frames_per_second:g} -i -"
    )
    output_options = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -pix_fmt yuv420p -movflags +faststart -f mp4"
    command = [
        "ffmpeg",
        "-loglevel",
        "error",
        "-y",
        *input_options.split(),
        *output_options.split(),
        temporary,
    ]
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr)
        assert process.stdin is not None
        try:
            for frame in itertools.chain([first], frames):
                picture = add_caption(frame).tobytes()
                for _ in range(last_repeats if frame.is_last else 1):
                    process.stdin.write(picture)
                count += 1
            process.stdin.close()
        except BrokenPipeError:  # ffmpeg has given up, and says why
            pass
        finally:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
        if process.returncode:
            stderr.seek(0)
            reason = stderr.read().decode(errors="replace").strip().splitlines() or [
                f"status {process.returncode}"
            ]
            raise ShoalError(f"ffmpeg could not make {str(path)!r}: {reason[0]}.")
    return count
