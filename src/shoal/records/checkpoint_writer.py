"""Writing of checkpoints in the background, off the path of the training."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from shoal.base import cpu
from shoal.base.errors import ShoalError
from shoal.records.arrays import Leaf, copy_of_keys, is_key
from shoal.records.checkpoints import Checkpoints

WRITER_PRIORITY = 5  # as `nice` counts


def _nothing() -> None:
    pass


class Job(NamedTuple):
    """A checkpoint to be written; the fields are the arguments of `Writer.submit`."""

    steps: int
    leaves: Mapping[str, Leaf]
    record: Mapping[str, object]
    before: Callable[[], None]
    after: Callable[[], None]


class Writer:
    """A thread of low priority that writes one checkpoint at a time.

    The main thread submits, and polls for failures; nothing that the disk does, hanging included, makes it wait,
    but for `wait` and `close`. The thread is a daemon, so that it does not hold up the end of the process.

    Attributes:
      last_seconds: the duration of the last write, whether it succeeded or not; 0 before the first.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.last_seconds = 0.0
        self._checkpoints = checkpoints
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._failures: queue.SimpleQueue[ShoalError] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return not self._idle.is_set()

    def submit(
        self,
        steps: int,
        leaves: Mapping[str, Leaf],
        record: Mapping[str, object],
        before: Callable[[], None] = _nothing,
        after: Callable[[], None] = _nothing,
    ) -> bool:
        """Begin to write a checkpoint, unless one is being written or the writer is closed.

        Args:
          leaves: by name, NumPy arrays that nobody else changes from now on (a view of a buffer that JAX holds
            keeps that buffer from being donated), and typed PRNG keys, which are copied here.
          record: as in `Checkpoints.save`; nobody else changes it from now on.
          before: called in the thread first; if it raises an error, nothing is written.
          after: called in the thread once the checkpoint is complete.
        Returns:
          whether it was accepted; if not, try again later.
        """
        if self.busy or self._closed:
            return False
        owned = {name: copy_of_keys(leaf) if is_key(leaf) else leaf for name, leaf in leaves.items()}
        # Before the thread can see the job, at whose end it sets this again.
        self._idle.clear()
        self._jobs.put(Job(steps, owned, record, before, after))
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is being written, for at most `timeout` seconds; report whether that is so."""
        return self._idle.wait(timeout)

    def take_failure(self) -> ShoalError | None:
        """Return the oldest failure that was not taken yet, or None."""
        try:
            return self._failures.get_nowait()
        except queue.Empty:
            return None

    def close(self, timeout: float | None = None) -> bool:
        """Accept nothing more, and wait for the write under way, for at most `timeout` seconds.

        Returns:
          whether it has ended.
        """
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        cpu.lower_priority(WRITER_PRIORITY)
        while (job := self._jobs.get()) is not None:
            start_time = time.perf_counter()
            try:
                self._write(job)
            except ShoalError as error:
                self._failures.put(error)
            except Exception as error:  # it must neither end the thread nor be lost
                self._failures.put(_as_failure(job, error))
            del job  # its arrays are as large as the run
            self.last_seconds = time.perf_counter() - start_time
            self._idle.set()

    def _write(self, job: Job) -> None:
        job.before()
        self._checkpoints.save(job.steps, job.leaves, job.record)
        job.after()


def _as_failure(job: Job, error: Exception) -> ShoalError:
    reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    failure = ShoalError(f"writing the checkpoint at {job.steps} failed: {' '.join(reason.split())}.")
    failure.__cause__ = error
    return failure
