"""Two fake CPU devices for every test, and quick compilation, set before the backend starts.

Nearly all of the suite's time is compilation, so the fast tests compile without LLVM's optimisations and by
the emitter that takes half as long (the mathematics is the same); `XLA_FLAGS` in the environment wins. Of
the time of algorithms' contracts a sixth were full collections of garbage and the lines of source in each operation.
"""

import ctypes
import fcntl
import gc
import importlib.util
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    "--xla_cpu_use_fusion_emitters=false",
)


def known(flag: str) -> bool:
    """Whether this version of XLA has a flag; one that it does not know would end the process."""
    spec = importlib.util.find_spec("jaxlib")
    library = Path(spec.origin).with_name("libjax_common.so") if spec and spec.origin else Path()
    if not library.is_file():
        return False
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        name = flag.strip("-").split("=")[0].encode()
        return content.find(b"\0" + name + b"\0") >= 0  # a removed flag lives on in the message's description


os.environ.setdefault("XLA_FLAGS", " ".join(flag for flag in QUICK if known(flag)))

os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
gc.set_threshold(700, 50, 100)  # a full one after 3.5 million new objects, not after 70,000

# Of the processes that tests start: one that is killed while it writes a program would leave a part of it.
os.environ.setdefault("SHOAL_CACHE", "0")

import jax  # noqa: E402
import pytest  # noqa: E402

from shoal.xla import machine  # noqa: E402

# Each worker has a cache of its own, since JAX does not write a program atomically. Tests train the same programs again
# and again, each time from functions that JAX has not seen; and the next run of the suite has them too.
if jax.config.jax_compilation_cache_dir is None:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    machine.keep_programs_in(Path(__file__).parents[1] / ".pytest_cache" / "compiled" / worker)

machine.prepare(2)
jax.devices()  # from here on their number is fixed, whatever a test asks for


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks the cases of a test as full that its mark `quick` does not name, and as slow those that `rare` names.

    Beside `quick`, a `rare` that names none makes slow what would be full.
    """
    cases = {}
    for item in items:
        for mark in [mark for mark in item.iter_markers() if mark.name in ("quick", "rare")]:
            cases.setdefault((item.path, item.originalname, mark.name, mark.args), set()).add(
                item.callspec.id
            )
            is_named = item.callspec.id in mark.args
            if mark.name == "quick" and not is_named:
                item.add_marker(pytest.mark.full)
                if any(not rare.args for rare in item.iter_markers("rare")):
                    item.add_marker(pytest.mark.slow)
            if mark.name == "rare" and is_named:
                item.add_marker(pytest.mark.slow)
    asked_by_id = any("[" in argument for argument in config.args)
    for (path, name, mark, named), found in cases.items():
        if (unknown := set(named) - found) and not asked_by_id:
            raise pytest.UsageError(
                f"{path.name}::{name}: {mark} names {sorted(unknown)}, of {sorted(found)}"
            )


MANY_MAPPINGS, MUCH_MEMORY = 30_000, 2**30
PROCESS = Path("/proc/self")  # of Linux


@pytest.fixture(autouse=True, scope="module")
def small_process():
    """Forgets compiled programs before they are too many, and gives their memory back.

    Each maps memory a few times, and Linux lets a process have 65,530 mappings; beyond, XLA's compiler crashes. What
    XLA has freed stays with the process, in many pieces, until it is trimmed: that would be several GB for each worker.
    """
    yield
    if not PROCESS.exists():
        return
    pages = int((PROCESS / "statm").read_text().split()[1])
    is_large = pages * mmap.PAGESIZE > MUCH_MEMORY
    if is_large or len((PROCESS / "maps").read_bytes().splitlines()) > MANY_MAPPINGS:
        jax.clear_caches()
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # of glibc
            libc.malloc_trim(0)


@pytest.fixture(scope="module")
def undrawn():
    """Pictures are not drawn: one takes longer than the rest of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.reports.figures.save", lambda figure, path: path.write_text("not drawn"))
        yield


TINY = "--seeds=2 --total-steps=4096 --num-evals=2 --eval-episodes=8 --eval-max-steps=200".split()  # noqa: SIM905


def run_shoal(*arguments: str, **more) -> subprocess.CompletedProcess:
    command = [str(Path(sys.executable).with_name("shoal")), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, **more)


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """(the finished process of `shoal train`, its run); made once for all workers, and not to be changed."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    path, told = folder / "cli" / "run", folder / "cli.json"
    with open(folder / "cli.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            words = ["CartPole-v1", "gravity=9.9", "--run-dir", path, "--learning-rate", "2e-3", *TINY]
            done = run_shoal("train", *words)
            assert done.returncode == 0, done.stderr
            told.write_text(json.dumps([done.stdout, done.stderr]))
    return subprocess.CompletedProcess([], 0, *json.loads(told.read_text())), path
