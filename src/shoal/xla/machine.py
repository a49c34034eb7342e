"""The machine: devices, memory, the compilation of small loops, and the compilation cache."""

import contextlib
import os
from pathlib import Path

import jax

from shoal.base.cpu import cores
from shoal.base.errors import ShoalError, nearest
from shoal.base.files import cache_folder
from shoal.xla import backend
from shoal.xla.jax_settings import require_platform, require_usable
from shoal.xla.plain import TRICKS, unknown_tricks, uses_plain_form

MAX_DEVICES = (
    32  # for a CPU with fewer cores: each has its own threads and buffers, and more only wait for cores
)
ROWS_WORTH_A_DEVICE = 4096  # per rollout; below, communication costs more than a device saves
FEW_WEIGHTS = 2 * 64**2  # between the hidden layers of actor and critic; more are worth threads at fewer rows

# Bytes that a turn of a loop may touch for XLA to compile the loop as one kernel, not as one for each operation.
# Its own limit, which the plain form leaves, was 1,024 until jaxlib 0.12; the rollout of four CartPoles takes 2.4 times
# as long with that. The loop computes the same, within float32's rounding.
_ONE_KERNEL_FLAG = f"xla_cpu_small_while_loop_byte_threshold={2**20}"


def prepare(devices: int = 0, *, one_thread: bool = False) -> None:
    """Make every core of the CPU a device, compile small loops as single kernels, and enable the compilation cache.

    Each only if it is not too late or set already: the first two if no backend has started (small loops, if
    `XLA_FLAGS` neither has `xla_backend_extra_options` nor is a file), the last if no cache is set
    (`JAX_COMPILATION_CACHE_DIR` has precedence; `SHOAL_CACHE=0` disables it).

    Args:
      one_thread: one device whose programs run on one thread, for the rest of the process (`NPROC` has precedence).
        Threads that pass kernels of a microsecond to each other lose more time than they save.
    Raises:
      ShoalError: `SHOAL_PLAIN` names a trick that does not exist, or Shoal cannot work with a setting of JAX.
    """
    require_usable()
    for name in unknown_tricks():
        raise ShoalError(
            f"SHOAL_PLAIN names {name!r}, which is not a trick; it may be 1 for all, 0 for none, or names, separated "
            f"by commas, of {', '.join(TRICKS)}{nearest(name, TRICKS)}."
        )
    num_devices = 1 if one_thread else devices or cores()
    with contextlib.suppress(RuntimeError):  # a backend is running, with the devices and flags that it has
        for number in (num_devices + 1, num_devices):  # then a change is refused, but the same number is not
            jax.config.update("jax_num_cpu_devices", number)
        flags = os.environ.get("XLA_FLAGS", "").strip()  # read once, when the backend starts
        is_file = flags and not flags.startswith("-")
        if not uses_plain_form("one_kernel") and not is_file and "xla_backend_extra_options" not in flags:
            os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_extra_options={_ONE_KERNEL_FLAG}".strip()
        if one_thread:
            os.environ.setdefault("NPROC", "1")  # this too is read when the backend starts:
            jax.devices()  # now
    cache = getattr(jax.config, "jax_compilation_cache_dir", None)
    if cache is None and os.environ.get("SHOAL_CACHE", "1") != "0":
        keep_programs_in(cache_folder() / "jax")
    require_platform()


def keep_programs_in(folder: Path) -> None:
    """Make a folder the compilation cache, of programs of any size that took a tenth of a second to compile."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def max_devices() -> int:
    """Return the largest number of devices of a CPU: one per core, or `MAX_DEVICES` where it has fewer cores."""
    return max(cores(), MAX_DEVICES)


def devices_note(devices: int) -> str:
    """Return a note if a CPU has more devices than cores that this process may use, else an empty string."""
    if devices <= cores() or not backend.is_cpu():
        return ""
    return f"devices={devices} is more than the {cores()} cores that this process may use, which they share"


def available_memory(device: jax.Device | None = None) -> int | None:
    """Return the bytes that this process may use on a device, None for the host's; None where they are not known.

    On the host this is the least of physical memory, the limits of its control groups, and the limit of its
    address space.
    """
    if device is not None and device.platform != "cpu":
        return (device.memory_stats() or {}).get("bytes_limit")
    limits = [_physical_memory(), _address_space(), *_control_group_limits()]
    return min((limit for limit in limits if limit is not None and limit > 0), default=None)


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not every system provides these
        return None


def _address_space() -> int | None:
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _control_group_limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> list[int]:
    """Return the memory limits of the process's control groups and of their parents, of version 1 or 2."""
    found = []
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in groups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
            own_group = base / path.strip("/")
            for directory in (own_group, *own_group.parents):
                if directory.is_relative_to(base):
                    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                        found.append(int((directory / name).read_text()))
    return found


def is_worth_one_thread(devices: int, seeds: int, rows: int, weights: int = 0) -> bool:
    """Report whether a run is so small that one thread is faster than many: one seed, and few products.

    Args:
      rows: of its rollouts, or of its batches from a replay if they are larger.
      weights: between the hidden layers of its networks.
    """
    products = rows * max(weights, FEW_WEIGHTS)
    return devices in (0, 1) and seeds == 1 and products < ROWS_WORTH_A_DEVICE * FEW_WEIGHTS


def default_groups(devices: int, seeds: int, num_envs: int, num_steps: int) -> int:
    """Return the default number of groups of a seed's environments: one per device for a single seed, else one.

    Several seeds are distributed over the devices themselves, which needs no communication.
    """
    if seeds > 1:
        return 1
    max_groups = max(1, num_envs * num_steps // ROWS_WORTH_A_DEVICE)
    return max(n for n in range(1, devices + 1) if num_envs % n == 0 and n <= max_groups)
