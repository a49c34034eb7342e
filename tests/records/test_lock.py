"""The lock of a run directory: real processes, killed, stopped, forked and racing; damaged files and disks."""

import contextlib
import errno
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from shoal.base.errors import ShoalError
from shoal.records.directory import RunDirectory
from shoal.records.lock import Lock

fcntl = pytest.importorskip("fcntl", reason="needs POSIX")

WORKER = """
import sys
from shoal.base.errors import ShoalError
from shoal.records.lock import Lock
held = {}
print("ready", flush=True)
for line in sys.stdin:
    command, path = line.rstrip("\\n").split(" ", 1)
    try:
        if command == "acquire":
            lock = Lock(path)
            lock.__enter__()
            held[path] = lock
        else:
            held.pop(path).__exit__(None, None, None)
        print("done", flush=True)
    except ShoalError as error:
        print(error, flush=True)
"""


class Worker:
    """A process that acquires and releases locks on command."""

    def __init__(self, *prefix):
        command = [*prefix, sys.executable, "-c", WORKER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.answer() == "ready"

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


@pytest.fixture
def worker():
    with contextlib.ExitStack() as stack:

        def start(*prefix):
            started = Worker(*prefix)
            stack.callback(started.end)
            return started

        yield start


@pytest.fixture
def run(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


def refusal(run, holder):
    return (
        f"run directory {str(run)!r} is in use by {holder}; "
        "wait until that has ended, or name another directory."
    )


def name_of(number):
    return f"process {number} of host {platform.node()!r}"


def names(run):
    return sorted(path.name for path in run.iterdir())


def content(run):
    return (run / ".lock").read_text()


def is_free(run):
    """Whether this process can lock a directory."""
    try:
        with Lock(run):
            return True
    except ShoalError:
        return False


# ---- two processes


def test_a_second_process_is_refused_until_the_first_has_released(run, worker):
    first, second = worker(), worker()
    assert first.ask("acquire", run) == "done"
    assert second.ask("acquire", run) == refusal(run, name_of(first.process.pid))
    assert names(run) == [".lock"], "the refused one leaves nothing"
    assert content(run).startswith(f"{name_of(first.process.pid)}\n"), "the refused one writes nothing"
    assert first.ask("release", run) == "done"
    assert second.ask("acquire", run) == "done"
    assert first.ask("acquire", run) == refusal(run, name_of(second.process.pid))
    assert second.ask("release", run) == "done"


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_process_releases_at_once(run, worker, reaped):
    killed = worker()
    assert killed.ask("acquire", run) == "done"
    assert not is_free(run)
    killed.process.send_signal(signal.SIGKILL)
    if reaped:
        killed.process.wait()
    else:
        os.waitid(os.P_PID, killed.process.pid, os.WEXITED | os.WNOWAIT)
    with Lock(run):
        assert content(run).startswith(f"{name_of(os.getpid())}\n")


def test_a_stopped_process_keeps_it(run, worker):
    stopped = worker()
    assert stopped.ask("acquire", run) == "done"
    stopped.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED)
    with pytest.raises(ShoalError, match=re.escape(refusal(run, name_of(stopped.process.pid)))), Lock(run):
        pass
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.ask("release", run) == "done"
    assert is_free(run)


def test_of_eight_processes_that_want_a_directory_one_wins(run, worker):
    workers = [worker() for _ in range(8)]
    for _ in range(20):
        for each in workers:
            each.send("acquire", run)
        answers = [each.answer() for each in workers]
        (winner,) = [x for x, answer in zip(workers, answers, strict=True) if answer == "done"]
        # Before the winner has written its name, the one before stands there, perhaps the refused one's own.
        holders = [
            "another process",
            "another call of this process",
            *(name_of(x.process.pid) for x in workers),
        ]
        assert set(answers) - {"done"} <= {refusal(run, holder) for holder in holders}, answers
        assert content(run).startswith(f"{name_of(winner.process.pid)}\n")
        assert winner.ask("release", run) == "done"


def test_equal_numbers_in_two_containers_are_two_processes(run, worker):
    alone = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this user may not make namespaces")
    first, second = worker(*alone), worker(*alone)
    assert first.ask("acquire", run) == "done"
    assert second.ask("acquire", run) == refusal(run, name_of(1))
    assert first.ask("acquire", run) == refusal(run, "another call of this process")


# ---- one process


def test_a_process_takes_a_directory_once(run):
    with Lock(run):
        with (
            pytest.raises(ShoalError, match=re.escape(refusal(run, "another call of this process"))),
            Lock(run),
        ):
            pass
        assert not is_free(run), "the refused one has released nothing"
    assert is_free(run)


def test_of_two_threads_one_is_refused(run):
    told = []

    def take():
        try:
            with Lock(run):
                pass
        except ShoalError as error:
            told.append(str(error))

    with Lock(run):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert told == [refusal(run, "another call of this process")]


def test_it_is_released_when_the_run_fails(run):
    for error in (ZeroDivisionError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error), Lock(run):
            raise error
        assert is_free(run)


@pytest.mark.parametrize("moment", ["write", "fsync"])
def test_it_is_released_where_its_name_cannot_be_written(run, monkeypatch, worker, moment):
    def fail(*_):
        raise error

    error = KeyboardInterrupt()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, moment, fail)
        Lock(run).__enter__()
    assert is_free(run)
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as patch, pytest.raises(ShoalError) as told:
        patch.setattr(os, moment, fail)
        Lock(run).__enter__()
    assert str(told.value) == f"run directory {str(run)!r} cannot be locked: No space left on device."
    assert worker().ask("acquire", run) == "done"


def test_a_relative_directory_is_released_after_a_change_of_the_working_directory(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    with Lock("run"):
        monkeypatch.chdir("/")
        assert not is_free(run)
    assert is_free(run)


# ---- processes that the holder starts or forks


def start_holder(run, code):
    """Start a process that locks a directory, runs code, prints a line, and waits to be killed."""
    program = f"""
    import os, subprocess, sys, time
    from shoal.records.lock import Lock
    with Lock({str(run)!r}):
        {code}
        print(child, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return holder, int(holder.stdout.readline())


@pytest.mark.parametrize(
    "code",
    [
        # The parent waits until the copy runs: before, that has not closed the file.
        "r, w = os.pipe(); child = os.fork() or (os.write(w, b'x'), time.sleep(60)); os.read(r, 1)",
        "child = subprocess.Popen(['sleep', '60'], close_fds=False).pid",
    ],
    ids=["forked", "started"],
)
def test_a_child_does_not_hold_it_beyond_its_parent(run, code):
    holder, child = start_holder(run, code)
    try:
        assert not is_free(run)
        holder.kill()
        holder.wait()
        os.kill(child, 0)  # it is still running
        assert is_free(run)
    finally:
        holder.kill()
        holder.stdout.close()
        holder.wait()
        os.kill(child, signal.SIGKILL)


def test_a_forked_copy_does_not_release(run):
    """Neither at the end of the block nor at its own."""
    code = f"""
    import os
    from shoal.base.errors import ShoalError
    from shoal.records.lock import Lock
    with Lock({str(run)!r}):
        child = os.fork()
    if not child:
        raise SystemExit(7)
    """
    held = f"""
    with Lock({str(run)!r}):
        if (child := os.fork()) == 0:
            raise SystemExit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if (child := os.fork()) == 0:
            try:
                with Lock({str(run)!r}):
                    os._exit(0)
            except ShoalError as error:
                print(error, flush=True)
                os._exit(8)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.getpid())
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code) + textwrap.dedent(held)]
    output = subprocess.run(command, capture_output=True, text=True, check=True)
    first, told, last = output.stdout.splitlines()
    status, number = last.split()
    assert (first, status, output.stderr) == ("7", "8", "")
    assert told == refusal(run, name_of(number)), "the parent still holds it"


# ---- the file


def test_the_file_is_never_removed(run, worker):
    with Lock(run):
        first = (run / ".lock").stat().st_ino
    killed = worker()
    assert killed.ask("acquire", run) == "done"
    killed.end()
    with Lock(run):
        pass
    assert (run / ".lock").stat().st_ino == first
    assert names(run) == [".lock"]


NAME = b"process 12 of host 'vm'\n"
TOKEN = b"0123456789abcdef\n"
DAMAGED = {
    "empty": b"",
    "truncated": NAME,
    "within the name": NAME[:15],
    "within the token": NAME + TOKEN[:9],
    "zeros": bytes(100),
    "not unicode": b"process 12 of host '\xff\xfe'\n" + TOKEN,
    "a control sequence": b"process 12 of host '\x1b[2J'\n" + TOKEN,
    "another line": b"process 12 of host 'a\nb'\n" + TOKEN,
    "no number": b"process x of host 'vm'\n" + TOKEN,
    "number 0": b"process 0 of host 'vm'\n" + TOKEN,
    "a large number": b"process " + b"9" * 30 + b" of host 'vm'\n" + TOKEN,
    "more": NAME + TOKEN + b"x",
    "large": NAME + TOKEN + b"x" * 100000,
}


@pytest.mark.quick("no number")
@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_names_nobody(run, kind):
    (run / ".lock").write_bytes(DAMAGED[kind])
    with Lock(run):
        assert content(run).startswith(f"{name_of(os.getpid())}\n")
        (run / ".lock").write_bytes(DAMAGED[kind])
        with pytest.raises(ShoalError, match=re.escape(refusal(run, "another process"))), Lock(run):
            pass
        assert (run / ".lock").read_bytes() == DAMAGED[kind]


def test_what_is_no_file_is_not_followed_and_does_not_hang(run, tmp_path):
    (tmp_path / "secret").write_text("x")
    sentence = rf"^run directory '{run}' cannot be locked: {{}}\.$"
    for target in (tmp_path / "secret", tmp_path / "nowhere"):
        (run / ".lock").symlink_to(target)
        with pytest.raises(ShoalError, match=sentence.format("Too many levels of symbolic links")), Lock(run):
            pass
        (run / ".lock").unlink()
    assert (tmp_path / "secret").read_text() == "x" and not (tmp_path / "nowhere").exists()
    (run / ".lock").mkdir()
    with pytest.raises(ShoalError, match=sentence.format("Is a directory")), Lock(run):
        pass
    (run / ".lock").rmdir()
    os.mkfifo(run / ".lock")
    # The oldest filelock truncates it before it can be looked at.
    reason = r"('\.lock' in it is not a regular file|Invalid argument)"
    with pytest.raises(ShoalError, match=sentence.format(reason)), Lock(run):
        pass


# ---- directories and disks


def test_a_directory_that_is_none_is_one_sentence(tmp_path):
    sentence = r"^run directory '{}' cannot be locked: {}\.$"
    with pytest.raises(ShoalError, match=sentence.format(".*absent", "No such file or directory")):
        Lock(tmp_path / "absent").__enter__()
    (tmp_path / "file").write_text("")
    with pytest.raises(ShoalError, match=sentence.format(".*file", "Not a directory")):
        Lock(tmp_path / "file").__enter__()
    assert names(tmp_path) == ["file"]
    if os.path.isdir("/proc"):  # a file system that refuses even the superuser
        with pytest.raises(ShoalError, match=sentence.format("/proc", ".*")):
            Lock("/proc").__enter__()


def test_a_read_only_disk_is_one_sentence(run):
    mount = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(run)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only the superuser may mount a file system")
    try:
        with pytest.raises(ShoalError, match=r"cannot be locked: Read-only file system\.$"), Lock(run):
            pass
        assert names(run) == []
    finally:
        subprocess.run(["umount", str(run)], check=True)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_disk_without_locks_is_refused(run, monkeypatch, number):
    """By the lock, and before a new run is made."""

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ShoalError) as told, Lock(run):
        pass
    assert str(told.value) == f"run directory {str(run)!r} cannot be locked: {os.strerror(number)}."
    (run / ".lock").unlink()
    with pytest.raises(ShoalError) as told:
        RunDirectory.check(run / "new")
    assert str(told.value) == f"directory {str(run)!r} cannot be locked: {os.strerror(number)}."
    assert names(run) == []


def test_a_directory_that_is_removed_meanwhile_is_not_made_again(run):
    with Lock(run):
        shutil.rmtree(run)
    assert not run.exists()


def test_a_release_that_fails_is_quiet(run, monkeypatch):
    def fail(descriptor, operation):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, Lock(run):
        patch.setattr(fcntl, "flock", fail)


def test_importing_it_is_light():
    code = "import sys, shoal.records.lock; print([x for x in ('jax', 'numpy', 'orbax') if x in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout == "[]\n"
