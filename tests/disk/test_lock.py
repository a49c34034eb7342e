"""The lock of a run directory: real processes, killed and racing; locks of other hosts; damaged files and disks."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from shoal.base.errors import ShoalError
from shoal.disk import lock as module
from shoal.disk.lock import Lock
from shoal.disk.processes import this_process

WORKER = """
import sys
from shoal.base.errors import ShoalError
from shoal.disk import lock as module
module.SETTLE_SECONDS = 0.02
held = {}
print("ready", flush=True)
for line in sys.stdin:
    command, path = line.rstrip("\\n").split(" ", 1)
    try:
        if command == "acquire":
            lock = module.Lock(path, print)
            lock.acquire()
            held[path] = lock
        else:
            held.pop(path).release()
        print("done", flush=True)
    except ShoalError as error:
        print(error, flush=True)
"""
ENDED = 2**22 + 1  # more than the largest number of a process on Linux
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


class Worker:
    """A process that acquires and releases locks on command."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, command, path):
        self.process.stdin.write(f"{command} {path}\n")
        self.process.stdin.flush()

    def answer(self):
        assert select.select([self.process.stdout], [], [], 30)[0], "no answer in 30 s"
        return self.process.stdout.readline().rstrip("\n")

    def ask(self, command, path):
        self.send(command, path)
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def workers():
    started = [Worker() for _ in range(8)]
    assert [worker.answer() for worker in started] == ["ready"] * 8
    yield started
    for worker in started:
        worker.end()


@pytest.fixture(autouse=True)
def settle_soon(monkeypatch):
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.001)


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


class Time:
    """A clock that moves when somebody sleeps; `events` happen at the end of the sleeps of their numbers."""

    def __init__(self, **events):
        self.now, self.sleeps, self.events = 100.0, 0, events

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps += 1
        self.events.get(f"after_{self.sleeps}", lambda: None)()


@pytest.fixture
def make():
    """Makes locks, which are released at the end of the test."""
    with contextlib.ExitStack() as stack:

        def make_lock(path, notes=None, time=None):
            given = {"clock": time.clock, "sleep": time.sleep} if time else {}
            lock = Lock(path, [].append if notes is None else notes.append, **given)
            stack.callback(lock.release)
            return lock

        yield make_lock


def write_lock(run, age=0.0, **changes):
    """Write a lock file that was touched some seconds ago: of an ended process of this host, but for the changes."""
    fields = dataclasses.asdict(this_process()) | {"number": ENDED, "token": "theirs"} | changes
    return write_content(run, json.dumps(fields).encode(), age)


def write_content(run, content, age=0.0):
    path = run / ".lock"
    path.write_bytes(content)
    touch(path, -age)
    return path


def touch(path, seconds=0.0):
    now = time.time() + seconds
    os.utime(path, (now, now))


def names(run):
    return sorted(path.name for path in run.iterdir())


def content(run):
    return json.loads((run / ".lock").read_text())


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    assert condition()


# ---- two processes


def test_a_second_process_is_refused_until_the_first_has_released(run, workers):
    first, second = workers[:2]
    assert first.ask("acquire", run) == "done"
    here = this_process()
    expected = (
        f"run directory {str(run)!r} is in use by process {first.process.pid} of host {here.host!r}; "
        "wait until that has ended, or name another directory."
    )
    assert second.ask("acquire", run) == expected
    assert names(run) == [".lock"], "the refused one leaves nothing"
    found = content(run)
    assert found.pop("token") and found.pop("start")
    assert found == {
        "host": here.host,
        "boot": here.boot,
        "namespace": here.namespace,
        "number": first.process.pid,
    }
    assert first.ask("release", run) == "done"
    assert names(run) == []
    assert second.ask("acquire", run) == "done"
    assert second.ask("release", run) == "done"


@pytest.mark.parametrize("reaped", [True, False])
def test_the_lock_of_a_killed_process_is_taken_over_at_once(run, make, reaped):
    worker = Worker()
    assert worker.answer() == "ready"
    assert worker.ask("acquire", run) == "done"
    with pytest.raises(ShoalError, match=rf"process {worker.process.pid} of host"):
        make(run).acquire()
    worker.process.send_signal(signal.SIGKILL)
    if reaped:
        worker.process.wait()
    else:
        assert worker.process.stdout.read() == "", "its files are closed, so it has ended"
        os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
    notes, time = [], Time()
    make(run, notes, time).acquire()
    assert (notes, time.now < 101) == ([], True)
    assert content(run)["number"] == os.getpid()
    assert names(run) == [".lock"]
    worker.end()


def test_a_reused_number_is_not_taken_for_the_owner(run, workers, make):
    """The lock names a process that is running, but that was started at another time."""
    assert workers[0].ask("acquire", run) == "done"
    fields = content(run)
    workers[0].ask("release", run)
    write_lock(run, **fields)
    with pytest.raises(ShoalError, match="is in use by process"):
        make(run).acquire()
    write_lock(run, **fields | {"start": "1"})
    make(run).acquire()
    assert content(run)["number"] == os.getpid()


def test_a_process_takes_a_directory_once(run, make):
    first = make(run)
    with first:
        with pytest.raises(ShoalError, match=r"run' is in use by another call of this process; wait until"):
            make(run).acquire()
        with pytest.raises(RuntimeError, match="acquired once"):
            first.acquire()
        assert content(run)["number"] == os.getpid(), "the refused ones have removed nothing"
    assert names(run) == []


@posix
def test_a_forked_copy_does_not_release(run):
    code = f"""
    import os, time
    from shoal.disk.lock import Lock
    with Lock({str(run)!r}, print):
        if (child := os.fork()) == 0:
            raise SystemExit(0)
        os.waitpid(child, 0)
        print(os.listdir({str(run)!r}))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    assert output.stdout == "['.lock']\n"
    assert names(run) == []


def race(workers, path):
    for worker in workers:
        worker.send("acquire", path)
    answers = [worker.answer() for worker in workers]
    winners = [worker for worker, answer in zip(workers, answers, strict=True) if answer == "done"]
    assert len(winners) == 1, answers
    refusal = rf"run directory '.*' is in use by process {winners[0].process.pid} of host '.*'; .*\."
    assert all(answer == "done" or re.fullmatch(refusal, answer) for answer in answers), answers
    assert content(path)["number"] == winners[0].process.pid
    assert names(path) == [".lock"]
    assert winners[0].ask("release", path) == "done"
    assert names(path) == []


@pytest.mark.parametrize("kind", ["none", "ended", "other host", "damaged"])
def test_of_eight_processes_that_want_a_stale_lock_one_wins(run, workers, kind):
    for _ in range(20):
        if kind == "ended":
            write_lock(run)
        elif kind == "other host":
            write_lock(run, age=61, host="node7")
        elif kind == "damaged":
            write_content(run, b"", age=61)
        race(workers, run)


# ---- locks of other hosts

ELSEWHERE = [
    {"host": "node7"},
    {"boot": "another"},
    {"namespace": "pid:[1]"},
    {"boot": ""},
]


@pytest.mark.parametrize("identity", ELSEWHERE)
def test_an_old_lock_of_another_host_is_taken_over_at_once(run, make, identity):
    """Whatever process has that number here."""
    write_lock(run, age=61, number=os.getpid(), **identity)
    notes, time = [], Time()
    make(run, notes, time).acquire()
    assert content(run)["number"] == os.getpid() and content(run)["token"] != "theirs"
    assert (notes, names(run), time.now < 101) == ([], [".lock"], True)


@pytest.mark.parametrize("identity", ELSEWHERE)
def test_a_young_lock_of_another_host_is_waited_for(run, make, identity):
    """Even if its process has ended as far as this host can tell."""
    write_lock(run, age=20, **identity)
    notes, time = [], Time()
    make(run, notes, time).acquire()
    host = identity.get("host", this_process().host)
    assert notes == [
        f"waiting up to 40 s for the lock of process {ENDED} of host {host!r} on run directory {str(run)!r}, "
        "which is taken over unless it is touched"
    ]
    assert time.now == pytest.approx(140, abs=1)
    assert content(run)["number"] == os.getpid()


def test_a_lock_that_is_touched_meanwhile_is_refused(run, make):
    path = write_lock(run, age=5, host="node7", number=12)
    before = path.read_bytes()
    notes, time = [], Time(after_3=lambda: touch(path))
    sentence = r"^run directory '.*run' is in use by process 12 of host 'node7'; wait until .*\.$"
    with pytest.raises(ShoalError, match=sentence):
        make(run, notes, time).acquire()
    assert (len(notes), time.sleeps) == (1, 3)
    assert (names(run), path.read_bytes()) == ([".lock"], before)


def test_a_lock_that_another_takes_meanwhile_is_refused(run, make):
    write_lock(run, age=5, host="node7", number=12)
    time = Time(after_2=lambda: write_lock(run, host="node8", number=13))
    with pytest.raises(ShoalError, match="is in use by process 13 of host 'node8'"):
        make(run, time=time).acquire()


def test_a_lock_that_is_released_meanwhile_is_free(run, make):
    path = write_lock(run, age=5, host="node7")
    time = Time(after_2=path.unlink)
    make(run, time=time).acquire()
    assert time.sleeps == 2


def test_a_lock_of_the_future_is_waited_for_as_a_new_one(run, make):
    """The disk's clock was set back, or the file was copied with its time."""
    write_lock(run, age=-86400, host="node7")
    time = Time()
    make(run, time=time).acquire()
    assert time.now == pytest.approx(160, abs=1)


def test_age_is_measured_by_the_clock_of_the_disk(run, make, monkeypatch):
    """Here the disk's clock is an hour behind this host's."""
    utime = os.utime

    def utime_of_the_disk(path, times=None):
        utime(path, times or (time.time() - 3600, time.time() - 3600))

    monkeypatch.setattr(os, "utime", utime_of_the_disk)
    write_lock(run, age=3630, host="node7")
    hours = Time()
    make(run, time=hours).acquire()
    assert hours.now == pytest.approx(130, abs=1)


def test_waiting_with_the_clock_of_the_system(run, make, monkeypatch):
    monkeypatch.setattr(module, "STALE_SECONDS", 0.4)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    write_lock(run, host="node7")
    start = time.monotonic()
    make(run).acquire()
    assert time.monotonic() - start > 0.3


def test_the_lock_of_a_live_process_of_another_host_is_refused(run, make, monkeypatch):
    """A process and another one to which it looks as one of another host; it touches its lock."""
    monkeypatch.setattr(module, "TOUCH_SECONDS", 0.05)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    owner = make(run)
    owner.acquire()
    other = make(run)
    other._process = dataclasses.replace(other._process, host="node7")
    with pytest.raises(ShoalError, match=rf"is in use by process {os.getpid()} of host"):
        other.acquire()
    assert not owner.lost


# ---- damaged files

FIELDS = {"host": "h", "boot": "b", "namespace": "", "number": 12, "start": "1", "token": "t"}
DAMAGED = {
    "empty": b"",
    "truncated": json.dumps(FIELDS).encode()[:-9],
    "zeros": bytes(100),
    "not unicode": b"\xff\xfe{}",
    "a list": b"[]",
    "null": b"null",
    "a number": b"12",
    "nested": b"[" * 60000,
    "large": b'"' + b"x" * 100000 + b'"',
    "without token": json.dumps({k: v for k, v in FIELDS.items() if k != "token"}).encode(),
    "without host": json.dumps({k: v for k, v in FIELDS.items() if k != "host"}).encode(),
    "more fields": json.dumps(FIELDS | {"more": 1}).encode(),
    **{
        f"{field} {value!r}": json.dumps(FIELDS | {field: value}).encode()
        for field, value in [
            ("number", 0),
            ("number", -1),
            ("number", 2**31),
            ("number", 10**30),
            ("number", True),
            ("number", "12"),
            ("number", 1.5),
            ("host", None),
            ("token", 7),
            ("start", []),
        ]
    },
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_lock_counts_as_one_of_another_host(run, make, kind):
    write_content(run, DAMAGED[kind], age=61)
    with make(run, time=(old := Time())):
        assert old.now < 101
        assert content(run)["number"] == os.getpid()
    path = write_content(run, DAMAGED[kind], age=50)
    notes = []
    with make(run, notes, young := Time()):
        assert young.now == pytest.approx(110, abs=1)
        assert (
            len(notes) == 1
            and "the lock of a process that its damaged lock file '.lock' does not" in notes[0]
        )
    write_content(run, DAMAGED[kind], age=50)
    sentence = r"is in use by a process that its damaged lock file '\.lock' does not name; "
    with pytest.raises(ShoalError, match=sentence):
        make(run, time=Time(after_1=lambda: touch(path))).acquire()
    assert path.read_bytes() == DAMAGED[kind]


# ---- takeover against others, step by step, where the processes cannot take turns


@pytest.fixture
def no_turns(monkeypatch):
    monkeypatch.setattr(module, "_in_turn", lambda _: contextlib.nullcontext())


def before_rename(monkeypatch, *events):
    """Let something happen before each of the next renames."""
    rename, events = os.rename, list(events)

    def rename_later(source, target):
        if events:
            events.pop(0)()
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_later)


@pytest.mark.parametrize("links", [True, False])
def test_the_slower_of_two_puts_the_lock_of_the_faster_back(run, make, monkeypatch, no_turns, links):
    if not links:
        monkeypatch.setattr(os, "link", unsupported)
    write_lock(run)
    faster, slower = make(run), make(run)
    before_rename(monkeypatch, faster.acquire)
    with pytest.raises(ShoalError, match="is in use by another call of this process"):
        slower.acquire()
    assert content(run)["token"] == faster._token
    assert names(run) == [".lock"]


def test_a_lock_that_another_has_taken_over_is_not_moved(run, make, monkeypatch, no_turns):
    """The slower one looks once more before it moves anything."""
    write_lock(run)
    faster, slower = make(run), make(run)
    stale_at, rename, renamed = Lock._stale_at, os.rename, []

    def stale_at_slowly(self, found):
        result = stale_at(self, found)
        if self is slower and not renamed:
            faster.acquire()
        return result

    def rename_and_say(source, target):
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(Lock, "_stale_at", stale_at_slowly)
    monkeypatch.setattr(os, "rename", rename_and_say)
    with pytest.raises(ShoalError, match="is in use by another call of this process"):
        slower.acquire()
    assert [path.name for path in renamed] == [f".lock.{faster._token}.stale"]
    assert content(run)["token"] == faster._token


def test_a_lock_that_is_touched_at_the_last_moment_is_put_back(run, make, monkeypatch, no_turns):
    path = write_lock(run, age=61, host="node7", number=12)
    before_rename(monkeypatch, lambda: touch(path))
    notes, time = [], Time(after_2=lambda: touch(path, 1))
    with pytest.raises(ShoalError, match="is in use by process 12 of host 'node7'"):
        make(run, notes, time).acquire()
    assert (content(run)["token"], names(run), len(notes)) == ("theirs", [".lock"], 1)


def test_a_lock_that_is_released_at_the_last_moment_is_free(run, make, monkeypatch, no_turns):
    path = write_lock(run, age=61, host="node7")
    before_rename(monkeypatch, path.unlink)
    make(run).acquire()
    assert (content(run)["number"], names(run)) == (os.getpid(), [".lock"])


def test_a_third_that_finds_no_lock_for_a_moment_wins_and_the_faster_learns_it(
    run, make, monkeypatch, no_turns
):
    """The window that remains, which the module's text names."""
    quick(monkeypatch)
    write_lock(run)
    faster, slower, third = make(run), make(run), make(run)
    look = module._look

    def look_late(path):
        if path.name.endswith(f"{slower._token}.stale"):
            third.acquire()
        return look(path)

    monkeypatch.setattr(module, "_look", look_late)
    before_rename(monkeypatch, faster.acquire)
    with pytest.raises(ShoalError, match="is in use by another call of this process"):
        slower.acquire()
    assert content(run)["token"] == third._token
    wait_until(lambda: faster.lost)
    assert not third.lost
    faster.release()
    assert content(run)["token"] == third._token
    assert names(run) == [".lock"]


def test_a_lock_that_cannot_be_compared_is_put_back(run, make, monkeypatch):
    write_lock(run)
    look = module._look

    def fail(path):
        if path.name.endswith(".stale"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return look(path)

    monkeypatch.setattr(module, "_look", fail)
    with pytest.raises(ShoalError, match=r"^run directory '.*run' cannot be locked: Input/output error\.$"):
        make(run).acquire()
    assert (names(run), content(run)["token"]) == ([".lock"], "theirs")


def test_a_lock_that_is_robbed_soon_after_a_takeover_is_noticed_at_once(run, make):
    write_lock(run)
    third = make(run)

    def rob():
        (run / ".lock").unlink()
        third.acquire()

    with pytest.raises(ShoalError, match="is in use by another call of this process"):
        make(run, time=Time(after_1=rob)).acquire()
    assert (content(run)["token"], names(run)) == (third._token, [".lock"])


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_lock_that_is_moved_aside_soon_after_a_takeover_is_held(run, make, monkeypatch, comes_back):
    write_lock(run)
    lock = make(run, time=Time(after_1=lambda: (run / ".lock").rename(run / "aside")))
    has_settled = Lock._has_settled

    def has_settled_before(self):
        result = has_settled(self)
        if comes_back:
            (run / "aside").rename(run / ".lock")
        return result

    monkeypatch.setattr(Lock, "_has_settled", has_settled_before)
    lock.acquire()
    assert content(run)["token"] == lock._token
    lock.release()
    assert not (run / ".lock").exists()


@posix
def test_processes_of_a_host_take_turns(run, workers):
    import fcntl

    write_lock(run)
    descriptor = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        workers[0].send("acquire", run)
        assert not select.select([workers[0].process.stdout], [], [], 0.2)[0]
        assert content(run)["token"] == "theirs"
    finally:
        os.close(descriptor)
    assert workers[0].answer() == "done"
    assert workers[0].ask("release", run) == "done"


@posix
def test_a_process_that_was_stopped_in_its_turn_does_not_stop_the_others(run, make, monkeypatch):
    import fcntl

    monkeypatch.setattr(module, "TURN_SECONDS", 0.05)
    descriptor = os.open(run, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with make(run):
            assert names(run) == [".lock"]
        assert names(run) == []
    finally:
        os.close(descriptor)


def test_old_leftovers_of_killed_processes_are_removed(run, make):
    for name, age in (
        (".lock.a.tmp", 100),
        (".lock.b.stale", 100),
        (".lock.c.tmp", 10),
        ("config.json", 100),
    ):
        (run / name).write_text("x")
        touch(run / name, -age)
    make(run).acquire()
    assert names(run) == [".lock", ".lock.c.tmp", "config.json"]


# ---- while it is held


def quick(monkeypatch):
    monkeypatch.setattr(module, "TOUCH_SECONDS", 0.03)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)


def test_it_is_touched_while_it_is_held(run, make, monkeypatch):
    quick(monkeypatch)
    with make(run) as lock:
        before = lock.path.stat().st_mtime_ns
        wait_until(lambda: lock.path.stat().st_mtime_ns > before)
        assert not lock.lost
        thread = lock._thread
    assert not thread.is_alive()
    assert names(run) == []


def test_it_is_released_when_the_run_fails(run):
    with pytest.raises(ZeroDivisionError), Lock(run, print):
        raise ZeroDivisionError
    assert names(run) == []


def test_a_relative_directory_is_found_after_a_change_of_the_working_directory(run, make, monkeypatch):
    quick(monkeypatch)
    monkeypatch.chdir(run.parent)
    with make("run") as lock:
        monkeypatch.chdir("/")
        before = lock.path.stat().st_mtime_ns
        wait_until(lambda: lock.path.stat().st_mtime_ns > before)
    assert names(run) == []


@pytest.mark.parametrize("deed", ["removed", "replaced", "emptied", "moved"])
def test_a_lock_that_is_gone_is_lost(run, make, monkeypatch, deed):
    quick(monkeypatch)
    lock = make(run)
    lock.acquire()
    assert not lock.lost
    if deed == "removed":
        lock.path.unlink()
    elif deed == "replaced":
        write_lock(run, host="node7")
    elif deed == "emptied":
        lock.path.write_text("")
    else:
        run.rename(run.parent / "elsewhere")
        run.mkdir()
    wait_until(lambda: lock.lost)
    lock._thread.join(5)
    assert not lock._thread.is_alive()
    before = names(run)
    lock.release()
    assert lock.lost
    assert names(run) == before, "what is not its own is not removed"


def test_a_lock_that_is_put_back_is_not_lost(run, make, monkeypatch):
    """It was moved aside by another process that had judged an earlier lock."""
    quick(monkeypatch)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.3)
    lock = make(run)
    lock.acquire()
    looked, look = [], module._look

    def look_and_say(path):
        looked.append(look(path))
        return looked[-1]

    monkeypatch.setattr(module, "_look", look_and_say)
    aside = run / "aside"
    lock.path.rename(aside)
    wait_until(lambda: None in looked)
    aside.rename(lock.path)
    before = lock.path.stat().st_mtime_ns
    wait_until(lambda: lock.path.stat().st_mtime_ns > before)
    assert not lock.lost


def test_a_disk_that_fails_for_a_while_does_not_lose_the_lock(run, make, monkeypatch):
    quick(monkeypatch)
    failures, look = [], module._look

    def fail(_):
        failures.append(1)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    lock = make(run)
    lock.acquire()
    monkeypatch.setattr(module, "_look", fail)
    wait_until(lambda: len(failures) >= 3)
    monkeypatch.setattr(module, "_look", look)
    before = lock.path.stat().st_mtime_ns
    wait_until(lambda: lock.path.stat().st_mtime_ns > before)
    assert not lock.lost


def test_the_lock_of_a_directory_that_is_removed_is_lost(run, make, monkeypatch):
    quick(monkeypatch)
    with make(run) as lock:
        shutil.rmtree(run)
        wait_until(lambda: lock.lost)
    assert not run.exists()


def test_nothing_stays_where_the_thread_cannot_be_started(run, make, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module.threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make(run).acquire()
    assert names(run) == []


def test_a_release_that_fails_is_quiet(run, make, monkeypatch):
    lock = make(run)
    lock.acquire()
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", read_only)
        lock.release()
    assert names(run) == [".lock"]


# ---- disks


def unsupported(*_, **__):
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def read_only(*_, **__):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_file_system_without_links(run, make, monkeypatch):
    monkeypatch.setattr(os, "link", unsupported)
    write_lock(run)
    with make(run):
        assert content(run)["number"] == os.getpid()
        with pytest.raises(ShoalError, match="is in use by another call"):
            make(run).acquire()
        assert names(run) == [".lock"]
    assert names(run) == []


def test_a_directory_that_cannot_be_written_to_is_one_sentence(run, make, monkeypatch, tmp_path):
    sentence = r"^run directory '{}' cannot be locked: {}\.$"
    with pytest.raises(ShoalError, match=sentence.format(".*absent", "No such file or directory")):
        make(tmp_path / "absent").acquire()
    (tmp_path / "file").write_text("")
    with pytest.raises(ShoalError, match=sentence.format(".*file", "Not a directory")):
        make(tmp_path / "file").acquire()
    if Path("/proc").is_dir():  # a file system that refuses even the superuser
        with pytest.raises(ShoalError, match=sentence.format("/proc", ".*")):
            make("/proc").acquire()
    monkeypatch.setattr(Path, "write_text", read_only)
    with pytest.raises(ShoalError, match=sentence.format(".*run", "Read-only file system")):
        make(run).acquire()
    assert names(run) == []


def test_a_stale_lock_in_a_directory_that_cannot_be_written_to_stays(run, make, monkeypatch):
    write_lock(run)
    monkeypatch.setattr(os, "rename", read_only)
    with pytest.raises(ShoalError, match=r"cannot be locked: Read-only file system\.$"):
        make(run).acquire()
    assert (names(run), content(run)["token"]) == ([".lock"], "theirs")


@posix
def test_what_is_no_file_is_not_followed_and_does_not_hang(run, make, tmp_path):
    (tmp_path / "secret").write_text("x")
    for target in (tmp_path / "secret", tmp_path / "nowhere"):
        (run / ".lock").symlink_to(target)
        with pytest.raises(ShoalError, match=r"cannot be locked: Too many levels of symbolic links\.$"):
            make(run).acquire()
        (run / ".lock").unlink()
    (run / ".lock").mkdir()
    with pytest.raises(ShoalError, match=r"cannot be locked: Is a directory\.$"):
        make(run).acquire()
    (run / ".lock").rmdir()
    os.mkfifo(run / ".lock")
    touch(run / ".lock", -61)
    make(run).acquire()
    assert content(run)["number"] == os.getpid()


def test_a_note_that_cannot_be_printed_is_not_told_as_a_failure_of_the_disk(run):
    write_lock(run, host="node7")

    def note(_):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with pytest.raises(BrokenPipeError):
        Lock(run, note).acquire()
    assert (names(run), content(run)["token"]) == ([".lock"], "theirs")


def test_importing_it_is_light():
    code = "import sys, shoal.disk.lock; print([x for x in ('jax', 'numpy', 'orbax') if x in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "[]\n"
