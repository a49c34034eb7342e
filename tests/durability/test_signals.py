"""Real signals to real `shoal train` processes, in each phase; two processes on one directory."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from killing import Workplace, names_in, train

from shoal.records.checkpoints import Checkpoints
from shoal.records.lock import Lock

# A background job of a shell script ignores Ctrl-C, and so do the processes that it starts.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
RUN = f"{HEED}; import sys; from shoal.cli import main; sys.exit(main())"
COMMAND = (sys.executable, "-c", RUN)
ENDLESS = train(seeds=1, devices=1, total_steps=50_000_000, num_evals=0)
EVALUATES = train("Pendulum-v1", seeds=1, devices=1, eval_episodes=200_000)
ENDS = train(seeds=1, devices=1)
RESUMABLE, INTERRUPTED, REFUSED = 75, 130, 2
LIMIT_SECONDS = 30.0  # from a signal to the end of the process
ANSWER_SECONDS = 5.0  # to the first line; it takes one on a machine that does nothing else


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    return Workplace(folder, folder / "cache")


@pytest.fixture
def start(place):
    """Starts commands, and ends those that a failed test leaves."""
    commands = []

    def start(*arguments, **environment):
        commands.append(Command(place, *arguments, **environment))
        return commands[-1]

    yield start
    for command in commands:
        command.close()


class Command:
    """A process of the command, whose standard error is read line by line as it comes."""

    def __init__(self, place, arguments, run_path, command=COMMAND, **environment):
        self.run_path = run_path
        self.lines, self.times, self.first_signalled = [], [], 0.0
        self.process = subprocess.Popen(
            [*command, *arguments, "--run-dir", str(run_path)],
            cwd=place.folder,
            env=place.environment() | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            self.times.append(time.monotonic())

    def wait_until(self, is_so, limit=90.0):
        deadline = time.monotonic() + limit
        while not is_so():
            assert self.process.poll() is None, "".join(self.lines[-30:])
            assert time.monotonic() < deadline, "".join(self.lines[-30:])
            time.sleep(0.01)

    def find(self, pattern):
        return next((k for k, line in enumerate(self.lines) if re.search(pattern, line)), None)

    def wait_for(self, pattern):
        self.wait_until(lambda: self.find(pattern) is not None)

    def signal(self, number):
        self.signalled = time.monotonic()
        self.first_signalled = self.first_signalled or self.signalled
        self.process.send_signal(number)

    def end(self, what, limit=LIMIT_SECONDS):
        """Wait for the end, print how long it took since the signal, and return the status."""
        status = self.process.wait(120)
        seconds = time.monotonic() - self.signalled
        self.close()
        answer = self.find("shoal: interrupted")
        answered = self.times[answer] - self.first_signalled if answer is not None else float("nan")
        print(
            f"\n{what}: answered after {answered:.2f} s, ended with {status} after {seconds:.2f} s",
            flush=True,
        )
        assert seconds < limit
        if answer is not None:
            assert answered < ANSWER_SECONDS
        return status

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.process.stderr.close()


def rows(run_path):
    path = run_path / "metrics.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def checkpoint_steps(run_path):
    names = names_in(run_path / "checkpoints")
    return sorted(int(name.partition(".")[0]) for name in names if re.fullmatch(r"\d+\.safetensors", name))


def is_training(command, since=-1):
    """Whether it has reached a log point after `since`, and its first checkpoint is there."""
    return lambda: (
        bool(checkpoint_steps(command.run_path))
        and any(
            '"train"' in line and json.loads(line)["step"] > since for line in rows(command.run_path)[-1:]
        )
    )


def assert_resumable(run_path):
    checkpoints = Checkpoints(run_path)
    assert checkpoints.steps()
    assert all(checkpoints.problem(steps) == "" for steps in checkpoints.steps())
    assert not (run_path / "summary.json").exists()
    with Lock(run_path):
        pass


BOTH = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])


@pytest.mark.quick("SIGTERM")
@BOTH
def test_while_importing(place, start, number):
    command = start(
        ENDLESS, place.folder / f"importing-{number}", (sys.executable, "-X", "importtime", "-c", RUN)
    )
    command.wait_for(r"\| +jaxlib\._jax")
    command.signal(number)
    assert command.end(f"importing, {number.name}", limit=5) == RESUMABLE
    assert command.find("compil") is not None
    assert not command.run_path.exists()


@pytest.mark.full
@pytest.mark.rare("SIGINT")
@BOTH
def test_while_compiling(place, start, number):
    run_path = place.folder / f"compiling-{number}"
    command = start(ENDLESS, run_path, SHOAL_CACHE="0", JAX_LOG_COMPILES="1")
    command.wait_for(r"MLIR module conversion jit\(map_population")
    command.signal(number)
    assert command.end(f"compiling, {number.name}", limit=5) == RESUMABLE
    assert not command.run_path.exists()


@pytest.mark.slow
def test_while_training_beside_a_second_process_and_then_again(place, start):
    """SIGTERM saves; meanwhile the directory is refused to others; afterwards only a name is in the lock."""
    run_path = place.folder / "training"
    command = start(ENDLESS, run_path)
    command.wait_until(is_training(command))
    second = start(ENDLESS, run_path)
    second.signalled = time.monotonic()
    assert second.end("the second process", limit=120) == REFUSED
    refusals = [line for line in second.lines if line.startswith("shoal:")]
    assert len(refusals) == 1
    assert f"is in use by process {command.process.pid} of host" in refusals[0]
    assert (run_path / ".lock").exists()
    command.wait_until(is_training(command, since=json.loads(rows(run_path)[-1])["step"]))
    command.signal(signal.SIGTERM)
    assert command.end("training, SIGTERM") == RESUMABLE
    assert_resumable(run_path)

    saved = checkpoint_steps(run_path)[-1]
    (run_path / ".lock").write_text(f"process 12 of host 'node7'\n{'0' * 16}\n")
    again = start(ENDLESS, run_path)
    again.wait_until(is_training(again, since=saved))
    assert again.find(f"resuming from the checkpoint at {saved:,} environment steps") is not None
    again.signal(signal.SIGINT)
    assert again.end("training, Ctrl-C") == RESUMABLE
    assert_resumable(run_path)
    assert checkpoint_steps(run_path)[-1] > saved


@pytest.mark.full
@pytest.mark.rare("SIGINT")
@BOTH
@pytest.mark.rare("SIGTERM")
def test_while_evaluating(place, start, number):
    run_path = place.folder / f"evaluating-{number}"
    command = start(EVALUATES, run_path)
    command.wait_until((run_path / ".lock").exists)
    time.sleep(1.0)
    command.signal(number)
    assert command.end(f"evaluating, {number.name}") == RESUMABLE
    assert command.find("finishing the current piece of the evaluation") is not None
    assert_resumable(run_path)
    assert rows(run_path) == []  # the evaluation is begun anew


SLOW = """
import sys, time
from shoal.cli import main
from shoal.records import array_file
write = array_file.write
def slow(path, *more):
    if path.parent.name == "checkpoints" and path.stem != "0":
        time.sleep({seconds})
    return write(path, *more)
array_file.write = slow
sys.exit(main())
"""


def slow_disk(seconds):
    return (sys.executable, "-c", HEED + SLOW.format(seconds=seconds))


@pytest.mark.full
@pytest.mark.rare("SIGINT")
@BOTH
def test_while_saving(place, start, number):
    """The last checkpoint of a run is written slowly; the scores of the end are then left to the next process."""
    run_path = place.folder / f"saving-{number}"
    command = start(ENDS, run_path, slow_disk(4))
    command.wait_until((run_path / "last.safetensors").exists)
    command.signal(number)
    assert command.end(f"saving, {number.name}") == RESUMABLE
    assert command.find("finishing what is being written") is not None
    assert_resumable(run_path)
    assert checkpoint_steps(run_path)[-1] == 12800


@pytest.mark.full
def test_a_second_ctrl_c_ends_at_once_and_harms_nothing(place, start):
    run_path = place.folder / "second"
    command = start(ENDLESS, run_path, slow_disk(60))
    command.wait_until(is_training(command))
    command.signal(signal.SIGINT)
    command.wait_for("Ctrl-C again ends at once")
    time.sleep(0.3)
    command.signal(signal.SIGINT)
    assert command.end("second Ctrl-C", limit=5) == INTERRUPTED
    checkpoints = Checkpoints(run_path)
    assert checkpoints.steps() == [0]
    assert checkpoints.problem(0) == ""


@pytest.mark.slow
def test_a_disk_that_hangs_does_not_keep_the_process(place, start):
    run_path = place.folder / "hangs"
    command = start(ENDLESS, run_path, slow_disk(600))
    command.wait_until(is_training(command))
    command.signal(signal.SIGTERM)
    assert command.end("a disk that hangs") == RESUMABLE
    assert command.find("saving has not ended in 22 seconds") is not None
    assert Checkpoints(run_path).problem(0) == ""
    shutil.rmtree(run_path)
