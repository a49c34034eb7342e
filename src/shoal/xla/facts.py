"""Facts of the machine and of the packages that a run's numbers depend on."""

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from shoal.base.cpu import cores
from shoal.base.installation import revision
from shoal.xla import machine
from shoal.xla.plain import PLAIN, USE_PLAIN

# Settings of JAX that change numbers.
JAX_SETTINGS = (
    "jax_enable_x64",
    "jax_default_prng_impl",
    "jax_default_matmul_precision",
    "jax_threefry_partitionable",
)
PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "shoal")


def summary_facts() -> dict[str, Any]:
    """Return what a summary says of the machine, the packages, and the form of the program."""
    return {
        "versions": versions(),
        "revision": revision(),
        "device": device(),
        "plain": USE_PLAIN or list(PLAIN) or False,
    }


def versions(others: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python, of the packages that a run's numbers depend on, and of others."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in (*PACKAGES, *others)
    }


def describe_machine() -> dict[str, str]:
    """Describe the machine for an error report: versions, Shoal's revision and the devices."""
    machine.prepare()
    devices = "{count} of {platform} ({kind})".format(**device())
    return versions() | {"revision": revision() or "not known", "devices": devices}


def machine_facts(devices: int) -> dict[str, Any]:
    """Return the facts that the bits of a run depend on besides its settings: a run resumed elsewhere may differ."""
    return {
        **versions(),
        "device": jax.devices()[0].device_kind,
        "cpu": cpu_model(),
        "devices": devices,
        "threads": cores(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
        "NPROC": os.environ.get("NPROC", ""),
        "plain": USE_PLAIN or list(PLAIN) or False,
        **{name: getattr(jax.config, name) for name in JAX_SETTINGS},
    }


def cpu_model() -> str:
    """Return the name of the CPU, or of its architecture where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def device() -> dict[str, Any]:
    """Return the kind and the number of the devices that JAX finds, and the precision of their matrix products."""
    devices = jax.devices()
    return {
        "kind": devices[0].device_kind,
        "platform": devices[0].platform,
        "count": len(devices),
        "matmul_precision": getattr(jax.config, "jax_default_matmul_precision", None) or "default",
    }
