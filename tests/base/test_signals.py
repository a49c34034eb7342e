"""Real signals to real processes whose main thread is inside C, as it is while a compiled program runs."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from shoal.base import signals
from shoal.base.signals import Interrupted, Phase

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are sent as POSIX does")

SIGNALS = [signal.SIGINT, signal.SIGTERM]
OF_SCHEDULERS = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]
PYTHONS_OWN = (130, -signal.SIGINT)  # exit statuses after KeyboardInterrupt
LATER = [Phase.TRAINING, Phase.EVALUATING, Phase.SAVING]
PRELUDE = """
import ctypes, hashlib, os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
from shoal.base import signals
from shoal.base.signals import Phase

def inside_c(word):
    # Write the word when the main thread is inside C, and stay there until the test writes to standard input: no
    # handler of Python's runs, and the interpreter's lock is released. The signals go to other threads, since they
    # would end the reading.
    read, inside = ctypes.CDLL(None).read, threading.Lock()
    arguments = 0, ctypes.create_string_buffer(1), ctypes.c_size_t(1)
    inside.acquire()
    threading.Thread(target=lambda: inside.acquire() and os.write(1, f"{word}\\n".encode())).start()
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    sys.setswitchinterval(1000)  # so that the thread gets the interpreter's lock from `read`, and not before
    inside.release()
    read(*arguments)
    sys.setswitchinterval(0.005)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)

def tell(*words):
    print(*words, flush=True)
"""
RUN = """
with signals.handle(command_line={command_line}) as stop:
    stop.phase(Phase.{phase})
    inside_c("ready")
    while not stop.requested:
        time.sleep(0.001)
    tell("requested")
"""


class Child:
    """A process that runs a script; it is ended with the test."""

    def __init__(self, script, stderr=subprocess.PIPE):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self.last_signal = 0.0
        self.await_line("ready")

    def await_line(self, expected):
        assert self.process.stdout.readline() == f"{expected}\n"

    def send(self, number):
        """Send a signal, long after the one before: two within a moment are one."""
        time.sleep(max(0, self.last_signal + 2 * signals.ONE_PRESS_SECONDS - time.monotonic()))
        self.process.send_signal(number)
        self.last_signal = time.monotonic()

    def answer(self):
        """The next line on standard error, and the seconds until it came."""
        start = time.monotonic()
        return self.process.stderr.readline(), time.monotonic() - start

    def go_on(self):
        """Let the main thread return from C."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """The exit status, and what else was written: while the main thread is still inside C, unless it went on."""
        status = self.process.wait(60)
        rest = [stream.read() if stream else "" for stream in (self.process.stdout, self.process.stderr)]
        return status, *rest


@pytest.fixture
def child():
    with contextlib.ExitStack() as stack:

        def start(script, **more):
            child = Child(script, **more)
            stack.enter_context(child.process)
            stack.callback(child.process.kill)
            return child

        yield start


@pytest.fixture(autouse=True)
def default_handlers():
    """As in a foreground process; a shell's background job ignores Ctrl-C, and `nohup` lets ignore SIGHUP.

    The processes that a test starts inherit what is ignored.
    """
    former = {number: signal.signal(number, signal.SIG_DFL) for number in OF_SCHEDULERS}
    former[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def in_phase(phase, command_line=True):
    return RUN.format(phase=phase.name, command_line=command_line)


# The command line.


@pytest.mark.quick("Phase.UNSAVED-2")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("phase", list(Phase))
def test_a_command_answers_within_a_second_in_each_phase(child, phase, number):
    for _ in range(3):  # since other processes may have the cores
        process = child(in_phase(phase))
        process.send(number)
        line, seconds = process.answer()
        if seconds < 1:
            break
    assert seconds < 1
    if phase in LATER:
        assert phase.value in line
        assert ("Ctrl-C again ends at once" in line) == (number == signal.SIGINT)
        assert ("SIGTERM" in line) == (number == signal.SIGTERM)
        process.go_on()
        assert process.end() == (0, "requested\n", "")
    else:  # the main thread is inside C until the end
        assert line == f"{phase.value}\n"
        status = 75 if phase is Phase.STARTING else 128 + number
        assert process.end() == (status, "", "")


@pytest.mark.quick("24")
@pytest.mark.parametrize("number", OF_SCHEDULERS[1:])
def test_the_signals_of_schedulers_save_as_sigterm_does(child, number):
    process = child(in_phase(Phase.TRAINING))
    process.send(number)
    assert process.answer()[0] == f"shoal: interrupted by {number.name}; {Phase.TRAINING.value}.\n"
    process.send(number)  # changes nothing
    process.go_on()
    assert process.end() == (0, "requested\n", "")
    process = child(in_phase(Phase.UNSAVED))
    process.send(number)
    assert process.end() == (128 + number, "", f"{Phase.UNSAVED.value}\n")


def test_a_signal_that_reaches_a_computing_main_thread_is_answered(child):
    """Most signals interrupt the main thread itself, which goes on computing."""
    process = child(
        "with signals.handle(command_line=True) as stop:\n"
        "    stop.phase(Phase.TRAINING)\n"
        "    tell('ready')\n"
        "    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
    )
    process.send(signal.SIGINT)
    assert "finishing" in process.answer()[0]
    process.send(signal.SIGINT)
    assert process.end()[0] == 130


def test_a_second_ctrl_c_ends_at_once(child):
    process = child(in_phase(Phase.TRAINING))
    process.send(signal.SIGINT)
    process.answer()
    process.send(signal.SIGINT)
    status, _, line = process.end()
    assert status == 130
    assert line == (
        "shoal: ended by a second Ctrl-C without saving; the last checkpoint, if there is one, stands.\n"
    )


def test_a_ctrl_c_that_arrives_twice_is_one(child):
    process = child("signals.ONE_PRESS_SECONDS = 60\n" + in_phase(Phase.TRAINING))
    process.send(signal.SIGINT)
    process.process.send_signal(signal.SIGINT)
    process.answer()
    process.go_on()
    assert process.end() == (0, "requested\n", "")


def test_only_ctrl_c_ends_a_run_that_sigterm_has_interrupted(child):
    process = child(in_phase(Phase.TRAINING))
    process.send(signal.SIGTERM)
    assert "SIGTERM" in process.answer()[0]
    process.send(signal.SIGTERM)  # changes nothing: the next line is that of Ctrl-C
    process.send(signal.SIGINT)
    assert "Ctrl-C again ends at once" in process.answer()[0]
    process.send(signal.SIGINT)
    assert process.end()[0] == 130


def test_a_process_that_cannot_save_ends_nevertheless(child):
    script = """
signals.SAVING_SECONDS = 0.2
with signals.handle(command_line=True) as stop:
    stop.phase(Phase.TRAINING)
    stop.saving()  # nobody has asked for it: there is no limit
    inside_c("ready")
    stop.saving()
    inside_c("inside again")
"""
    process = child(script)
    time.sleep(0.3)
    process.send(signal.SIGTERM)
    process.answer()
    time.sleep(0.3)
    process.go_on()
    status, _, line = process.end()
    assert status == 75
    assert line == (
        "shoal: saving has not ended in 0.2 seconds; the last checkpoint, if there is one, stands.\n"
    )


@pytest.mark.parametrize("how", ["a second Ctrl-C", "the limit"])
def test_a_saved_run_whose_process_does_not_end_is_resumable(child, how):
    script = f"""
signals.SAVING_SECONDS = {0.2 if how == "the limit" else 60}
with signals.handle(command_line=True) as stop:
    stop.phase(Phase.TRAINING)
    inside_c("ready")
    stop.saving()
    stop.saved("my runs/first")
    inside_c("saved")
"""
    process = child(script)
    process.send(signal.SIGINT)
    process.answer()
    process.go_on()
    process.await_line("saved")
    if how == "a second Ctrl-C":
        process.send(signal.SIGINT)
    sentence = "shoal: interrupted; the run is saved, and `shoal resume 'my runs/first'` continues it.\n"
    assert process.end() == (75, "", sentence)


def test_an_end_at_once_flushes(child):
    script = """
with signals.handle(command_line=True):
    sys.stdout = open(1, "w")  # with a buffer, whatever the environment asks for
    print("buffered")
    inside_c("ready")
"""
    process = child(script)
    process.send(signal.SIGTERM)
    assert process.end() == (75, "buffered\n", f"{Phase.STARTING.value}\n")


BROKEN = {
    "closed by its reader": "",
    "closed by the process": "sys.stderr.close()",
    "none": "sys.stderr = None",
    "read by nobody": """
signals.WRITING_SECONDS = 0.2
os.set_blocking(2, False)
for size in (1000, 1):
    try:
        while True:
            os.write(2, bytes(size))
    except BlockingIOError:
        pass
os.set_blocking(2, True)
""",
}


@pytest.mark.quick("none-Phase.TRAINING-True")
@pytest.mark.parametrize(
    ("phase", "command_line"), [(Phase.STARTING, True), (Phase.TRAINING, True), (Phase.TRAINING, False)]
)
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_standard_error_does_no_harm(child, how, phase, command_line):
    process = child(BROKEN[how] + in_phase(phase, command_line))
    if how == "closed by its reader":
        process.process.stderr.close()
        process.process.stderr = None
    process.send(signal.SIGINT)
    if phase is Phase.STARTING:
        assert process.process.wait(60) == 75
    else:
        process.go_on()
        process.await_line("requested")


def test_a_terminal_gets_its_cursor_back(child):
    import pty  # only POSIX has it

    terminal, end = pty.openpty()
    process = child("signals.WRITING_SECONDS = 60\n" + in_phase(Phase.STARTING), stderr=end)
    os.close(end)
    process.send(signal.SIGINT)
    assert process.process.wait(60) == 75
    written = b""
    with contextlib.suppress(OSError):  # of Linux at the end; the kernel may pass the text on in parts
        while part := os.read(terminal, 1000):
            written += part
    os.close(terminal)
    assert written.decode().split() == [*Phase.STARTING.value.split(), "\x1b[?25h"]


@pytest.mark.parametrize("command_line", [True, False])
def test_a_forked_child_has_the_handlers_from_before(child, command_line):
    script = f"""
with signals.handle(command_line={command_line}) as stop:
    stop.phase(Phase.TRAINING)
    tell("ready")
    if os.fork() == 0:
        before = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        before = before and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.set_wakeup_fd(-1) == -1
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            sys.exit(3 if before else 4)  # it leaves the block, as the parent does
    status = os.wait()[1]
    time.sleep(0.1)
    tell(os.waitstatus_to_exitcode(status), stop.requested, signal.set_wakeup_fd(-1) != -1)
"""
    process = child(script)
    assert process.end()[:2] == (0, f"3 False {command_line}\n")


# The command line's `main`.

COMMAND = """
import types
from shoal.cli import main
def run(arguments):
    with signals.handle() as stop:
        tell("ready")
        {body}
        return 0
module = types.ModuleType("shoal.cli.train")
module.main = run
sys.modules["shoal.cli.train"] = sys.modules["shoal.cli.envs"] = module
sys.argv = ["shoal", "{command}"]
sys.exit(main())
"""
SAVED = "shoal: interrupted; the run is saved, and `shoal resume runs/x` continues it.\n"


@pytest.mark.parametrize(
    ("body", "number", "status", "line"),
    [
        ("inside_c('inside')", signal.SIGINT, 75, f"{Phase.STARTING.value}\n"),
        ("inside_c('inside')", signal.SIGTERM, 75, f"{Phase.STARTING.value}\n"),
        ("threading.Thread(target=time.sleep, args=(60,)).start(); raise stop.saved('runs/x')", 0, 75, SAVED),
        ("raise KeyboardInterrupt", 0, 130, "shoal: interrupted.\n"),
        ("pass", 0, 0, ""),
    ],
)
def test_the_exit_status_of_a_command(child, body, number, status, line):
    process = child(COMMAND.format(body=body, command="train"))
    if number:
        process.await_line("inside")
        process.send(number)
    assert process.end() == (status, "", line)


def test_a_command_that_saves_nothing_is_interrupted_as_before(child):
    # Many short waits: Python calls no handler between its last look and the beginning of a long one.
    body = "tell(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL); [time.sleep(0.01) for _ in range(6000)]"
    process = child(COMMAND.format(body=body, command="envs"))
    process.await_line("True")
    process.send(signal.SIGINT)
    assert process.end() == (130, "", "shoal: interrupted.\n")


# From Python.


def test_while_starting_ctrl_c_is_pythons_own():
    with pytest.raises(KeyboardInterrupt) as end, signals.handle():
        signal.raise_signal(signal.SIGINT)
    assert type(end.value) is KeyboardInterrupt


@pytest.mark.parametrize("phase", LATER)
def test_ctrl_c_is_requested_and_a_second_one_raises(capsys, monkeypatch, phase):
    monkeypatch.setattr(signals, "ONE_PRESS_SECONDS", 0)
    with signals.handle() as stop:
        stop.phase(phase)
        assert not stop.requested
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    line = f"shoal: interrupted; {phase.value}. Ctrl-C again ends at once without saving.\n"
    assert capsys.readouterr().err == line


def test_a_call_within_c_is_answered_when_it_is_back(child):
    process = child(in_phase(Phase.TRAINING, command_line=False) + "    while True: time.sleep(0.01)")
    process.send(signal.SIGINT)
    process.send(signal.SIGINT)  # two before it is back are one
    process.go_on()
    assert "finishing the current piece" in process.answer()[0]
    process.await_line("requested")
    process.last_signal = time.monotonic()
    process.send(signal.SIGINT)
    status, _, trace = process.end()
    assert status in PYTHONS_OWN and trace.endswith("\nKeyboardInterrupt\n")


def test_a_call_within_c_that_is_starting_raises_when_it_is_back(child):
    process = child(in_phase(Phase.STARTING, command_line=False))
    process.send(signal.SIGINT)
    time.sleep(0.1)
    assert process.process.poll() is None
    process.go_on()
    status, told, trace = process.end()
    assert status in PYTHONS_OWN and told == ""
    assert trace.startswith("Traceback") and trace.endswith("\nKeyboardInterrupt\n")


def test_only_ctrl_c_is_received_from_python():
    with signals.handle():
        assert callable(signal.getsignal(signal.SIGINT))
        assert all(signal.getsignal(number) is signal.SIG_DFL for number in OF_SCHEDULERS)


@pytest.mark.parametrize("former", [signal.SIG_IGN, signal.SIG_DFL])
def test_what_a_process_chose_to_ignore_or_to_end_by_stays(former):
    signal.signal(signal.SIGINT, former)
    with signals.handle() as stop:
        assert signal.getsignal(signal.SIGINT) is former
        assert signal.set_wakeup_fd(-1) == -1
        assert not stop.requested


@pytest.mark.parametrize("ignored", [signal.SIGINT, *OF_SCHEDULERS])
def test_what_a_command_ignores_stays_ignored(ignored):
    """SIGINT of a shell's background job, SIGHUP under nohup."""
    former = signal.signal(ignored, signal.SIG_IGN)
    try:
        with signals.handle(command_line=True):
            assert signal.getsignal(ignored) is signal.SIG_IGN
            received = {signal.SIGINT, *OF_SCHEDULERS} - {ignored}
            assert all(callable(signal.getsignal(number)) for number in received)
        assert signal.getsignal(signal.SIGXCPU) is (
            signal.SIG_IGN if ignored is signal.SIGXCPU else signal.SIG_DFL
        )
    finally:
        signal.signal(ignored, former)


def test_a_thread_receives_nothing():
    seen = []

    def call():
        with signals.handle() as stop, signals.handle(command_line=True):
            stop.phase(Phase.TRAINING)
            stop.saving()
            seen.append((signal.getsignal(signal.SIGINT) is signal.default_int_handler, stop.requested))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    with signals.handle() as stop:  # a thread has no part in what the main thread handles either
        stop.phase(Phase.TRAINING)
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        former, thread = signal.getsignal(signal.SIGINT), threading.Thread(target=call)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGINT) == former
    assert seen == [(True, False), (False, False)]


def test_another_interpreter_receives_nothing():
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters = pytest.importorskip(name)
    other = interpreters.create()
    script = "with signals.handle(command_line={}) as stop: assert not stop.requested\n"
    script = "from shoal.base import signals\n" + script.format(True) + script.format(False)
    assert interpreters.run_string(other, script) is None
    interpreters.destroy(other)


def test_a_line_needs_no_lock_that_an_interrupted_thread_may_hold(capsys):
    with threading._active_limbo_lock:  # as while the main thread starts a thread
        signals.say("said")
        assert capsys.readouterr().err == "said\n"


def test_a_call_within_a_command_goes_by_the_commands_rules():
    with signals.handle(command_line=True) as command, signals.handle() as call:
        assert call is command
    with signals.handle() as later:
        assert later is not command


# What is restored, and what is passed on.


@pytest.fixture
def wakeup():
    """The end to read of a wakeup file descriptor that an event loop might have set."""
    reader, writer = socket.socketpair()
    reader.settimeout(10)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    yield reader
    assert signal.set_wakeup_fd(-1) == writer.fileno()  # restored
    reader.close()
    writer.close()


def test_everything_is_restored(wakeup):
    def state():
        handlers = [signal.getsignal(number) for number in SIGNALS]
        return handlers, threading.active_count(), len(os.listdir("/dev/fd"))

    before = state()
    for command_line in (True, False):
        with contextlib.suppress(ZeroDivisionError), signals.handle(command_line=command_line):
            assert state() != before
            raise ZeroDivisionError
        assert state() == before


def test_handlers_are_restored_though_a_ctrl_c_is_pending(wakeup, monkeypatch):
    """`signal.signal` handles what is pending before it changes anything."""
    original, pending = signal.signal, [KeyboardInterrupt]

    def restore(*arguments):
        if pending:
            raise pending.pop()
        return original(*arguments)

    with pytest.raises(KeyboardInterrupt), signals.handle():
        monkeypatch.setattr(signal, "signal", restore)
    assert not pending
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_call_leaves_the_wakeup_descriptor_to_others(wakeup):
    former = signal.signal(signal.SIGUSR1, lambda *_: None)
    with signals.handle() as stop:
        stop.phase(Phase.TRAINING)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
        assert wakeup.recv(10) == bytes([signal.SIGINT, signal.SIGUSR1])
    signal.signal(signal.SIGUSR1, former)


def test_a_handler_of_the_users_own_is_called_while_starting():
    seen = []
    signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    with signals.handle():
        signal.raise_signal(signal.SIGINT)
    assert seen == [signal.SIGINT]


def test_an_event_loop_within_a_call_may_set_a_wakeup_descriptor():
    with signals.handle() as stop:
        stop.phase(Phase.TRAINING)
        loop = asyncio.new_event_loop()
        loop.add_signal_handler(signal.SIGUSR1, loop.stop)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGUSR1)
        loop.run_forever()  # the loop's own signal still arrives
        loop.close()
        assert stop.requested
    assert signal.set_wakeup_fd(-1) == -1


def test_an_event_loop_around_a_call_keeps_its_signals(capsys):
    async def cell():
        loop, seen = asyncio.get_running_loop(), []
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "during")
        with signals.handle() as stop:
            stop.phase(Phase.TRAINING)
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGINT)
            assert stop.requested
        while not seen:
            await asyncio.sleep(0.001)
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "after")
        signal.raise_signal(signal.SIGUSR1)
        while len(seen) < 2:
            await asyncio.sleep(0.001)
        return seen

    assert asyncio.run(cell()) == ["during", "after"]
    assert capsys.readouterr().err.startswith("shoal: interrupted; finishing")


def test_the_exception_names_the_run(tmp_path):
    end = signals.Interruption().saved(tmp_path)
    assert isinstance(end, Interrupted) and isinstance(end, KeyboardInterrupt)
    assert end.path == tmp_path
    assert f"`shoal resume {tmp_path}` continues it." in str(end)
