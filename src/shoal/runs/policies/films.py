"""Films as files: GIF by Pillow, MP4 by ffmpeg, or the first image alone as PNG."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.files import write_whole_file

FORMATS = (".gif", ".mp4", ".png")
LAST_FRAME_SECONDS = 1.0  # seconds for which the last image of an episode stays
MIN_FRAME_MILLISECONDS = 20  # milliseconds: players slow down a GIF of shorter ones
CAPTION_HEIGHT = 24  # pixels, of the caption below an image
FONT_SIZE = 13
FRAMES_AHEAD = 4  # frames of a GIF that wait for their palette while the next ones are drawn
CAPTION_COLOUR, TEXT_COLOUR = (24, 26, 32), (214, 218, 226)
TEXT_LEVELS = 8  # levels of the letters' edges: few, so that the colours of an image fit the palette of a GIF


class FilmFrame(NamedTuple):
    """An image and the caption below it."""

    picture: np.ndarray  # uint8 [height, width, 3]
    caption: str
    is_last: bool  # whether it is an episode's last, which stays longer


def check_writable(path: str | Path) -> Path:
    """Require that a film can be made in the format of a path, and return the path.

    Raises:
      ShoalError: its extension is unknown, or a required program is missing.
    """
    path = Path(path).expanduser()
    if path.suffix.lower() not in FORMATS:
        raise ShoalError(
            f"render={str(path)!r} must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            f"{nearest(path.suffix, FORMATS) if path.suffix else ''}."
        )
    if path.suffix.lower() == ".mp4" and shutil.which("ffmpeg") is None:
        raise ShoalError(
            f"render={str(path)!r} needs the program ffmpeg, which is not on the path; .gif does not."
        )
    return path


def write_frames(path: Path, frames: Iterable[FilmFrame], frames_per_second: float) -> int:
    """Write frames, at least one, to a file that `check_writable` accepts; it is complete or absent.

    Returns:
      the number of frames.
    """
    with write_whole_file(path) as file:
        match path.suffix.lower():
            case ".gif":
                return _write_gif(file, frames, frames_per_second)
            case ".mp4":
                return _write_mp4(path, file.name, frames, frames_per_second)
        _image(add_caption(next(iter(frames)))).save(file, format="PNG")
        return 1


def add_caption(frame: FilmFrame) -> np.ndarray:
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


def _write_gif(file: IO[bytes], frames: Iterable[FilmFrame], frames_per_second: float) -> int:
    """Write a GIF; Pillow chooses the palettes, which are exact for images of at most 256 colours."""
    from PIL import Image  # noqa: PLC0415

    duration = max(MIN_FRAME_MILLISECONDS, 10 * round(100 / frames_per_second))
    count = 0

    def encode(frame: FilmFrame) -> Any:
        image = _image(add_caption(frame)).convert("P", palette=Image.Palette.ADAPTIVE)
        image.info["duration"] = round(1000 * LAST_FRAME_SECONDS) if frame.is_last else duration
        return image

    def images() -> Iterator[Any]:
        nonlocal count
        for image in _map_ahead(encode, frames):
            count += 1
            yield image

    film = images()
    next(film).save(file, format="GIF", save_all=True, append_images=film, loop=0)
    return count


def _map_ahead(function: Callable[[FilmFrame], Any], frames: Iterable[FilmFrame]) -> Iterator[Any]:
    """Apply a function to frames in another thread, some frames ahead of the consumer.

    The next frame is drawn meanwhile: Pillow holds no lock while it chooses a palette, which takes as long as drawing.
    """
    waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for frame in frames:
            waiting.append(pool.submit(function, frame))
            if len(waiting) > FRAMES_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _write_mp4(path: Path, temporary: str, frames: Iterable[FilmFrame], frames_per_second: float) -> int:
    """Write an MP4 through ffmpeg, with its default codec; sides are padded to even numbers."""
    count, last_repeats = 0, round(LAST_FRAME_SECONDS * frames_per_second)
    frames = iter(frames)
    first = next(frames)  # ffmpeg is told the size of all images before it receives one
    height, width, _ = add_caption(first).shape
    options = (
        f"-loglevel error -y -f rawvideo -pix_fmt rgb24 -video_size {width}x{height} -framerate {frames_per_second:g} "
        "-i - -vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -pix_fmt yuv420p -movflags +faststart -f mp4"
    )
    command = ["ffmpeg", *options.split(), temporary]
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
            lines = stderr.read().decode(errors="replace").strip().splitlines()
            reason = lines[0] if lines else f"status {process.returncode}"
            raise ShoalError(f"ffmpeg could not make {str(path)!r}: {reason}.")
    return count
