"""Identities of processes: compared with the system's own tools, and with processes that really end."""

import calendar
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal.disk import processes
from shoal.disk.processes import Process, is_running, this_process

HAS_PROC = Path("/proc/self/stat").is_file()
needs_proc = pytest.mark.skipif(not HAS_PROC, reason="needs /proc")
needs_ps = pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")


@pytest.fixture
def start():
    """Starts Python programs; each is ready once it has printed a line."""
    started = []

    def start_program(code):
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "ready\n"
        return child

    yield start_program
    for child in started:
        child.kill()
        child.wait()
        child.stdout.close()


SLEEP = "import time; print('ready', flush=True); time.sleep(60)"


def identity(number):
    """The identity of another process of this host."""
    return dataclasses.replace(this_process(), number=number, start=processes._state_and_start(number)[1])


def state(number):
    """The state of a process by the system's own tool."""
    command = ["ps", "-o", "stat=", "-p", str(number)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout[:1]


def wait_for_state(number, wanted):
    end = time.monotonic() + 5
    while state(number) != wanted and time.monotonic() < end:
        time.sleep(0.01)
    assert state(number) == wanted


def test_this_process_is_running_and_has_one_identity():
    assert this_process() == this_process()
    assert this_process().number == os.getpid()
    assert is_running(this_process())
    assert this_process().numbers_as(this_process())


@needs_ps
def test_a_killed_process_has_ended_whether_or_not_its_parent_knows(start):
    child = start(SLEEP)
    process = identity(child.pid)
    assert is_running(process)
    child.kill()
    wait_for_state(child.pid, "Z")
    assert not is_running(process)
    child.wait()
    assert state(child.pid) == ""
    assert not is_running(process)


def test_a_stopped_process_is_running(start):
    child = start(SLEEP)
    child.send_signal(signal.SIGSTOP)
    assert is_running(identity(child.pid))


@needs_proc
@needs_ps
def test_a_process_whose_first_thread_alone_has_ended_is_running(start):
    child = start(
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    process = identity(child.pid)
    wait_for_state(child.pid, "Z")
    assert is_running(process)


def test_a_later_process_of_the_same_number_is_another(start):
    process = identity(start(SLEEP).pid)
    assert is_running(process)
    assert not is_running(dataclasses.replace(process, start="1"))
    assert is_running(dataclasses.replace(process, start="")), "not known: it may be the same"


@needs_proc
def test_a_name_with_brackets_and_blanks_is_not_taken_for_fields(start):
    child = start("open('/proc/self/comm', 'w').write('a) Z 1 (b'); " + SLEEP)
    assert Path(f"/proc/{child.pid}/comm").read_text() == "a) Z 1 (b\n"
    assert is_running(identity(child.pid))
    seconds = int(identity(child.pid).start) / os.sysconf("SC_CLK_TCK")
    assert seconds == pytest.approx(float(Path("/proc/uptime").read_text().split()[0]), abs=10)


@pytest.mark.parametrize("field", ["host", "boot", "namespace"])
def test_numbers_are_not_compared_between_hosts_boots_and_namespaces(field):
    process = Process("node7", "b1b7", "pid:[1]", 12, "345")
    assert process.numbers_as(dataclasses.replace(process, number=13, start="678"))
    assert not process.numbers_as(dataclasses.replace(process, **{field: "other"}))


def test_numbers_are_not_compared_where_the_boot_is_not_known():
    process = Process("node7", "", "", 12, "")
    assert not process.numbers_as(process)


@needs_proc
def test_a_proc_of_another_namespace_or_without_the_files_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert (this_process().boot, this_process().namespace, this_process().start) == ("", "", "")
    (tmp_path / "self").symlink_to("1")
    assert this_process().boot == ""


@needs_proc
@pytest.mark.parametrize("mount", [True, False])
def test_a_container_counts_its_processes_itself(mount):
    """The boot is this one, since the kernel is; the namespace is another one, or /proc shows that of the host."""
    command = ["unshare", "--pid", "--fork", *(["--mount-proc"] if mount else [])]
    has_tool = shutil.which("unshare") is not None
    if not has_tool or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not make namespaces")
    code = "from shoal.disk.processes import this_process as p; print(*p().__dict__.values(), sep='|')"
    result = subprocess.run(
        [*command, sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    inner = Process(*result.stdout.strip().split("|"))
    here = this_process()
    assert (inner.host, inner.number) == (here.host, "1")
    assert inner.boot == (here.boot if mount else "")
    assert not inner.numbers_as(here)


@needs_ps
def test_systems_without_proc_ask_ps(start):
    """The start that ps prints is now, and it knows a process that was killed."""
    child = start(SLEEP)
    is_dead, text = processes._state_and_start_by_ps(child.pid)
    assert not is_dead
    assert calendar.timegm(time.strptime(text, "%a %b %d %H:%M:%S %Y")) == pytest.approx(time.time(), abs=10)
    child.kill()
    wait_for_state(child.pid, "Z")
    assert processes._state_and_start_by_ps(child.pid)[0]
    child.wait()
    assert processes._state_and_start_by_ps(child.pid) == (False, "")


def test_macos_asks_its_own_tools(monkeypatch):
    answers = {"sysctl": "A-B-C", "ps": "S+   Thu Jan  1 09:30:00 2026"}
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(processes, "_output", lambda *command: answers[command[0]])
    process = this_process()
    assert (process.boot, process.namespace, process.start) == ("A-B-C", "", "Thu Jan 1 09:30:00 2026")
    assert is_running(process)
    assert not is_running(dataclasses.replace(process, start="Thu Jan 1 09:29:59 2026"))
    answers["ps"] = "Z    Thu Jan  1 09:30:00 2026"
    assert not is_running(process)


def test_a_command_that_is_missing_or_fails_tells_nothing():
    assert processes._output("no-such-command") == ""
    assert processes._output("false") == ""
