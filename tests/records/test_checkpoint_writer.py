"""Checkpoints written in the background: nothing that the disk does holds up the thread that submits."""

import gc
import os
import sys
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.records.checkpoint_writer import WRITER_PRIORITY, Writer
from shoal.records.checkpoints import Checkpoints

LEAVES = {"w": np.arange(6, dtype=np.float32)}
SECONDS = 60  # to wait at most for what takes far less


@pytest.fixture
def run(tmp_path):
    return Checkpoints(tmp_path)


@pytest.fixture
def writer(run):
    writer = Writer(run)
    yield writer
    assert writer.close(SECONDS)


def test_a_checkpoint_is_written_between_two_calls(run, writer):
    events = []
    assert (writer.busy, writer.last_seconds) == (False, 0)
    assert writer.submit(
        128,
        LEAVES,
        {"score": 1},
        before=lambda: events.append(("before", run.steps())),
        after=lambda: events.append(("after", run.steps())),
    )
    assert writer.wait(SECONDS) and not writer.busy
    assert events == [("before", []), ("after", [128])]
    assert run.load(128)[1] == {"score": 1}
    assert writer.take_failure() is None
    assert writer.last_seconds > 0


def test_a_write_that_hangs_holds_up_nobody(run, writer):
    hangs, begun = threading.Event(), threading.Event()
    try:
        writer.submit(1, LEAVES, {}, before=lambda: (begun.set(), hangs.wait(SECONDS)))
        assert begun.wait(SECONDS)
        start = time.perf_counter()
        assert writer.busy
        assert not writer.submit(2, LEAVES, {})
        assert not writer.wait(0.01)
        assert writer.take_failure() is None
        assert not writer.close(0.01)
        assert time.perf_counter() - start < SECONDS / 4
        assert run.steps() == []
    finally:
        hangs.set()
    assert writer.wait(SECONDS)
    assert run.steps() == [1]
    assert not writer.submit(3, LEAVES, {})  # it is closed


def refuse():
    raise ShoalError("metrics.jsonl cannot be written: No space left on device.")


def break_down():
    raise RuntimeError("a defect\nof two lines")


def fill():
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("fail", "sentence"),
    [
        (refuse, "metrics.jsonl cannot be written: No space left on device."),
        (fill, "writing the checkpoint at 1 failed: No space left on device."),
        (break_down, "writing the checkpoint at 1 failed: RuntimeError: a defect of two lines."),
    ],
)
def test_failures_are_polled_and_the_writer_goes_on(run, writer, fail, sentence):
    for moment in ("before", "after"):
        assert writer.submit(1, LEAVES, {}, **{moment: fail})
        assert writer.wait(SECONDS)
        failure = writer.take_failure()
        assert isinstance(failure, ShoalError) and str(failure) == sentence
        assert writer.take_failure() is None
        assert run.steps() == ([] if moment == "before" else [1])
    assert writer.last_seconds > 0
    assert writer.submit(2, LEAVES, {}) and writer.wait(SECONDS)
    assert run.steps() == [1, 2]


def test_what_the_disk_refuses_is_a_failure(run, writer, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: fill())
    for steps in (1, 2):
        assert writer.submit(steps, LEAVES, {}) and writer.wait(SECONDS)
    for steps in (1, 2):
        sentence = str(writer.take_failure())
        assert f"/{steps}.safetensors cannot be written: No space left on device" in sentence
    assert not run.path.exists()


@pytest.mark.full
def test_the_writer_forgets_what_it_has_written(writer):
    leaves = {"w": np.zeros(10)}
    array = weakref.ref(leaves["w"])
    assert writer.submit(1, leaves, {}) and writer.wait(SECONDS)
    del leaves
    gc.collect()
    assert array() is None


def test_keys_are_copied(run, writer):
    """The next update may reuse the buffer of the Run's key, of which `jax.device_get` makes no NumPy array."""
    key = jax.random.split(jax.random.key(5), 3)
    words = np.array(jax.random.key_data(key))
    hangs = threading.Event()
    try:
        writer.submit(1, {"key": key}, {}, before=lambda: hangs.wait(SECONDS))
        key._base_array.delete()  # as a donation does
    finally:
        hangs.set()
    assert writer.wait(SECONDS)
    assert writer.take_failure() is None
    np.testing.assert_array_equal(jax.random.key_data(run.load(1)[0]["key"]), words)


def test_arrays_of_numpy_may_be_donated_at_once(run, writer):
    update = jax.jit(lambda x: x + 1, donate_argnums=0)
    weights = update(jnp.zeros(1000))
    hangs = threading.Event()
    try:
        writer.submit(1, {"w": np.array(weights)}, {}, before=lambda: hangs.wait(SECONDS))
        update(weights).block_until_ready()
    finally:
        hangs.set()
    assert writer.wait(SECONDS)
    assert run.load(1)[0]["w"].tolist() == [1] * 1000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives each thread a priority of its own")
def test_the_thread_gives_way_to_all_others(writer):
    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before, seen = priority(), []
    assert writer.submit(1, LEAVES, {}, before=lambda: seen.append(priority())) and writer.wait(SECONDS)
    assert seen == [WRITER_PRIORITY]
    assert priority() == before
