"""The cores and threads of this process, and the rows of a gradient that are chosen by them."""

import os
import subprocess
import sys
import threading

import pytest

from shoal.base import cpu
from shoal.xla.chunked_gradients import default_chunk_rows


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system binds no process to cores")
def test_only_the_cores_that_the_process_may_use_count():
    """Bound to one core of a machine that has more, a process has one, and takes the rows that suit one."""
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); os.cpu_count = lambda: 64;"
        "from shoal.base import cpu; from shoal.xla.chunked_gradients import default_chunk_rows;"
        "print(cpu.cores(), default_chunk_rows(64))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["1", "512"]


@pytest.mark.parametrize(("nproc", "threads"), [(None, 6), ("1", 1), ("4", 4), ("many", 6), ("0", 1)])
def test_a_limit_on_threads_wins(monkeypatch, nproc, threads):
    monkeypatch.setattr(cpu, "cores", lambda: 6)
    monkeypatch.delenv("NPROC", raising=False)
    if nproc is not None:
        monkeypatch.setenv("NPROC", nproc)
    assert cpu.threads() == threads


@pytest.mark.parametrize(
    ("threads", "rows"), [(1, [512, 512, 512]), (2, [2048, 2048, 1024]), (8, [8192, 8192, 4096])]
)
def test_wide_layers_have_fewer_rows_where_there_are_several_threads(monkeypatch, threads, rows):
    monkeypatch.setattr("jax.local_device_count", lambda: 1)
    monkeypatch.setattr(cpu, "threads", lambda: threads)
    assert [default_chunk_rows(width) for width in (64, 128, 256)] == rows


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority of its own")
def test_a_thread_of_low_priority_leaves_the_others_as_they_are():
    priorities = {}

    def note(name):
        priorities[name] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def work():
        cpu.lower_priority()
        note("lowered")
        child = threading.Thread(target=lambda: note("started by it"))
        child.start()
        child.join()

    note("before")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    note("after")
    assert priorities["lowered"] == priorities["started by it"] == cpu.LOWEST_PRIORITY
    assert priorities["before"] == priorities["after"]
