"""Progress: live on a terminal, plain elsewhere, and never in the way of a run."""

import io
import itertools
import os
import pty
import subprocess
import sys
import threading

import pytest

from shoal.monitor.progress import Activity, Progress, format_duration, format_short, is_terminal


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Broken(Terminal):
    def write(self, text):
        raise BrokenPipeError


def clock_of(*seconds):
    return iter(seconds).__next__


def test_the_first_line_that_knows_the_speed_has_the_time_left():
    stream = io.StringIO()
    with Progress(4000, "x", members=3, stream=stream, clock=clock_of(100, 110)) as progress:
        progress.update(0, 400.0)
        progress.update(2000, 400.0)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("400 steps/s  0:30 left") and second.endswith("0:10 left")


def test_plain_lines():
    stream = io.StringIO()
    with Progress(4000, "CartPole-v1", members=3, stream=stream, clock=clock_of(100, 110, 130)) as progress:
        progress.update(0, return_mean=21.07)
        progress.note("evaluated")
        progress.update(1000, 412_345, return_mean=187.31, loss=float("nan"))
        progress.update(4000, 1_500_000, return_mean=500)
    assert stream.getvalue().splitlines() == [
        "CartPole-v1  0 of 4,000 steps of 3 seeds (0%)  return mean 21.07",
        "evaluated",
        "CartPole-v1  1,000 of 4,000 steps of 3 seeds (25%)  412k steps/s  return mean 187.3  loss -  0:30 left",
        "CartPole-v1  4,000 of 4,000 steps of 3 seeds (100%)  1.5M steps/s  return mean 500.0",
    ]


def lines_of(seconds, *, total=None):
    """The steps at which a plain run, whose log points come at these seconds, has a line."""
    stream = io.StringIO()
    with Progress(total or len(seconds), stream=stream, clock=clock_of(*seconds)) as progress:
        for step in range(1, len(seconds) + 1):
            progress.update(step)
    return [int(line.split()[0].replace(",", "")) for line in stream.getvalue().splitlines()]


def test_a_short_run_has_two_plain_lines():
    """Forty log points within half a second: the first and the last."""
    assert lines_of([100 + k / 80 for k in range(40)]) == [1, 40]
    assert lines_of([100.0]) == [1]


def test_plain_lines_are_some_seconds_apart():
    assert lines_of(range(100, 117), total=1000) == [1, 6, 11, 16]
    assert lines_of([0, 7, 14, 21], total=1000) == [1, 2, 3, 4]  # what is slow is all shown


def test_a_long_run_does_not_fill_a_file():
    """Ten hours with a log point every second: between a line each five seconds and one each six minutes."""
    lines = lines_of(range(36_000))
    assert 200 < len(lines) < 600
    gaps = [after - before for before, after in itertools.pairwise(lines[:-1])]
    assert min(gaps) >= 5 and max(gaps) <= 361


class Noticing(io.StringIO):
    """Says when it was written to."""

    def __init__(self, terminal=False):
        super().__init__()
        self.written, self.terminal = threading.Event(), terminal

    def isatty(self):
        return self.terminal

    def write(self, text):
        count = super().write(text)
        self.written.set()
        return count


def test_what_takes_long_is_said():
    stream = Noticing()
    with Activity(stream=stream, silent_seconds=0.01, interval_seconds=0.01) as activity:
        activity.describe("drawing picture 1 of 3")
        assert stream.written.wait(30)
    assert stream.getvalue().splitlines()[0] == "drawing picture 1 of 3  0:00"


def test_a_terminal_has_the_line_only_while_it_lasts(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Noticing(terminal=True)
    with Activity(stream=stream, silent_seconds=0.01) as activity:
        activity.describe("drawing")
        assert stream.written.wait(30)
    assert stream.getvalue().startswith("\r\x1b[2Kdrawing  0:00") and stream.getvalue().endswith("\r\x1b[2K")


def test_what_is_quick_is_silent(monkeypatch):
    stream = Noticing()
    with Activity(stream=stream) as activity:
        activity.describe("drawing")
    assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    with Activity() as activity:
        activity.describe("drawing")


def test_a_broken_stream_does_not_end_the_activity():
    stream = Broken()
    with Activity(stream=stream, silent_seconds=0.001, interval_seconds=0.001) as activity:
        activity.describe("drawing")
        activity._ended.wait(0.1)


def test_a_terminal_has_one_live_line(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    stream = Terminal()
    with Progress(4000, "Env [v1]", stream=stream, clock=clock_of(0, 10)) as progress:
        progress.update(1000, 2000, **{"return": 5})
        progress.note("[kept]")
        progress.update(2000, 2000, **{"return": 7})
    text = stream.getvalue()
    assert "Env [v1]" in text and "50%" in text and "2,000 of 4,000 steps" in text and "return 7" in text
    assert "0:20 left" in text and "[kept]" in text
    assert text.split("0:20 left")[-1].startswith("\n")  # the last line stays
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # and the cursor is back


def test_the_live_line_is_ended_by_an_error(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), Progress(10, stream=stream) as progress:
        progress.update(1)
        raise KeyboardInterrupt
    assert "\x1b[?25h" in stream.getvalue()


def test_nothing_is_shown_when_not_asked_for(monkeypatch):
    stream = io.StringIO()
    with Progress(10, quiet=True, stream=stream) as progress:
        progress.update(1)
        progress.note("x")
    assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(10) as progress:
        progress.update(1)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_broken_stream_does_not_end_the_run(monkeypatch, term):
    monkeypatch.setenv("TERM", term)
    closed = io.StringIO()
    closed.close()
    for stream in (Broken(), closed):
        with Progress(10, stream=stream) as progress:
            progress.update(1)
            progress.note("x")
            progress.update(2)


def test_what_is_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert is_terminal(Terminal()) and not is_terminal(io.StringIO()) and not is_terminal(object())
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())


CODE = """
import sys
from shoal.monitor.progress import Progress
with Progress(10, "run") as progress:
    progress.update(5, 1000, score=1)
print("rich" in sys.modules)
"""


def test_without_stdin_and_terminal_the_lines_are_plain_and_rich_is_not_imported():
    process = subprocess.run(
        [sys.executable, "-c", CODE], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert process.stderr == "run  5 of 10 steps (50%)  1k steps/s  score 1.000  0:00 left\n"
    assert process.stdout == "False\n"


def test_on_a_real_terminal():
    ours, theirs = pty.openpty()
    chunks = []

    def read():
        try:
            while chunk := os.read(ours, 4096):
                chunks.append(chunk)
        except OSError:  # how Linux says that the other end is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.run(
        [sys.executable, "-c", CODE],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment, text=True, check=True,
    )  # fmt: skip
    os.close(theirs)
    reader.join(timeout=10)
    os.close(ours)
    assert process.stdout == "True\n"
    assert "5 of 10 steps" in b"".join(chunks).decode()


def test_numbers_are_short():
    assert [format_short(x) for x in (0, 12.3456, 999.7, 12_345, 2.5e6, 3e9)] == [
        "0",
        "12.3",
        "1k",
        "12.3k",
        "2.5M",
        "3G",
    ]
    assert [format_duration(x) for x in (0.4, 59.6, 3725)] == ["0:00", "1:00", "1:02:05"]
