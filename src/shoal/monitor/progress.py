"""Progress of long work: a live line on a terminal, else a plain line every few seconds.

It is written to standard error, so that standard output has only a command's result.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

from shoal.base.numbers import format_duration, format_number
from shoal.base.terminal import harmless

LINE_INTERVAL_SECONDS = 5.0  # between two plain lines, at least
LINE_INTERVAL_SHARE = 0.01  # and of the time since the first: a run of ten hours has a line every six minutes
CLEAR_LINE = "\r\x1b[2K"  # moves to the start of a terminal's line and clears it
SILENT_SECONDS = 3.0  # seconds before an `Activity` shows its first line


class Progress:
    """The progress of a run; a context manager, so that the live line is always ended.

    Plain lines are written for the first and the last log point, and between them at least
    `LINE_INTERVAL_SECONDS` apart (in long runs, at least `LINE_INTERVAL_SHARE` of the time since the first).

    If the stream breaks (a closed pipe, a notebook that was closed), nothing more is written: progress output
    may not end a run.
    """

    def __init__(
        self,
        total_steps: int,
        title: str = "",
        *,
        members: int = 1,
        unit: str = "seeds",
        quiet: bool = False,
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._total, self._title, self._clock = total_steps, harmless(title), clock
        self._members = members
        self._unit = "steps" if members == 1 else f"steps of {members} {unit}"
        self._stream = sys.stderr if stream is None else stream
        self._silent = quiet or self._stream is None  # a process without a console has no stderr
        self._first_update: tuple[int, float] | None = None  # steps and time of the first update
        self._last_line_time = -math.inf  # time of the last plain line
        self._live: Any = None  # rich's progress bar, on a terminal

    def __enter__(self) -> "Progress":
        if not self._silent and is_terminal(self._stream):
            with self._silence_broken_stream():
                self._live = _progress_bar(self._stream, self._title, self._total, self._unit)
                self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._silence_broken_stream():
            if self._live is not None:
                self._live.stop()

    def update(self, steps: int, steps_per_second: float = math.nan, **metrics: float) -> None:
        """Show a log point: environment steps of each seed, the speed of all together, and numbers by name;
        NaN is shown as "-".
        """
        if self._silent:
            return
        numbers = [f"{format_short(steps_per_second)} steps/s"] if math.isfinite(steps_per_second) else []
        for name, value in metrics.items():
            numbers.append(f"{name.replace('_', ' ')} {'-' if math.isnan(value) else format_number(value)}")
        now = self._clock()
        seconds_left = self._seconds_left(steps, now, steps_per_second)
        if seconds_left is not None and steps < self._total:
            numbers.append(f"{format_duration(seconds_left)} left")
        with self._silence_broken_stream():
            if self._live is not None:
                task = self._live.task_ids[0]
                self._live.update(task, completed=steps, numbers="  ".join(numbers), refresh=True)
            elif steps >= self._total or self._is_due(now):
                self._last_line_time = now
                share = steps / max(1, self._total)
                heading = f"{self._title}  {steps:,} of {self._total:,} {self._unit} ({share:.0%})".strip()
                print("  ".join([heading, *numbers]), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """Write a line of information that stays, above the live line where there is one."""
        if not self._silent:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Write a line about what went wrong, which is shown where nothing else is too."""
        text = harmless(text)
        if self._stream is None:
            return
        with self._silence_broken_stream():
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=self._stream, flush=True)

    def _is_due(self, now: float) -> bool:
        """Report whether enough time has passed since the last plain line."""
        start_time = now if self._first_update is None else self._first_update[1]
        interval = max(LINE_INTERVAL_SECONDS, LINE_INTERVAL_SHARE * (now - start_time))
        return now - self._last_line_time >= interval

    def _seconds_left(self, steps: int, now: float, steps_per_second: float) -> float | None:
        """Estimate the remaining seconds from the speed since the first update, which excludes compilation; at the
        first one from its own speed.
        """
        if self._first_update is None:
            self._first_update = steps, now
        first_steps, start_time = self._first_update
        if steps > first_steps:
            return (now - start_time) / (steps - first_steps) * (self._total - steps)
        return (self._total - steps) * self._members / steps_per_second if steps_per_second > 0 else None

    @contextlib.contextmanager
    def _silence_broken_stream(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError):  # ValueError: the stream was closed
            self._silent, self._live = True, None


class Activity:
    """A report of a command's current work, shown once it takes long; a context manager.

        with Activity() as activity:
            activity.describe("drawing picture 12 of 603")

    Nothing is written in the first seconds, so that short work shows nothing. After that a terminal shows one
    line, which is removed at the end; elsewhere a line is written every few seconds. A thread writes it, so
    that it appears while the main thread waits for a compiled program.
    """

    def __init__(
        self,
        *,
        stream: IO[str] | None = None,
        silent_seconds: float = SILENT_SECONDS,
        interval_seconds: float = LINE_INTERVAL_SECONDS,
    ):
        self._stream = sys.stderr if stream is None else stream
        self._silent_seconds, self._interval_seconds = silent_seconds, interval_seconds
        self._text, self._has_written = "", False
        self._live = is_terminal(self._stream)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write, daemon=True)

    def __enter__(self) -> "Activity":
        if self._stream is not None:  # a process without a console has no stderr
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._has_written and self._live:
            with contextlib.suppress(OSError, ValueError):
                print(CLEAR_LINE, end="", file=self._stream, flush=True)

    def describe(self, text: str) -> None:
        """Set the description of the current work; fast enough to be called for every small part of it."""
        self._text = harmless(text)

    def _write(self) -> None:
        start_time, pause = time.monotonic(), self._silent_seconds
        while not self._ended.wait(pause):
            line = f"{self._text}  {format_duration(time.monotonic() - start_time)}"
            with contextlib.suppress(OSError, ValueError):  # progress output may not end the work
                if self._text and self._live:
                    print(f"{CLEAR_LINE}{line}", end="", file=self._stream, flush=True)
                elif self._text:
                    print(line, file=self._stream, flush=True)
                self._has_written = self._has_written or bool(self._text)
            pause = 0.5 if self._live else self._interval_seconds


def ignore_text(text: str) -> None:
    """Replace `Activity.describe` where nothing is shown."""


def is_terminal(stream: IO[str] | None) -> bool:
    """Report whether a stream is a terminal on which a line can be overwritten."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):
        return False


def format_short(value: float) -> str:
    """Format 1,234,567 as 1.23M: three digits and a unit."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 0.9995 * size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _progress_bar(stream: IO[str], title: str, total: int, unit: str) -> Any:
    from rich import progress  # noqa: PLC0415 (a tenth of a second that plain lines do not need)
    from rich.console import Console  # noqa: PLC0415

    class RaisingConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich's own would end the process

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.completed:,} of {task.total:,} {task.fields[unit]}", markup=False),
        progress.TextColumn("{task.fields[numbers]}", markup=False),
        console=RaisingConsole(file=stream, force_jupyter=False),
        auto_refresh=False,  # no thread: the line is redrawn when it changes
    )
    bar.add_task(title, total=total, unit=unit, numbers="")
    return bar
