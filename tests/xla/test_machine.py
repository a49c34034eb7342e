"""What depends on the machine: devices, groups of environments, the compile cache."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from shoal.xla import machine


@pytest.mark.parametrize(
    "devices,seeds,num_envs,num_steps,groups",
    [
        (2, 10, 1024, 128, 1),  # several seeds share out over the devices themselves
        (2, 1, 1024, 32, 2),
        (1, 1, 1024, 32, 1),
        (2, 1, 4, 128, 1),  # 512 rows are not worth a second device
        (2, 1, 1023, 128, 1),  # does not divide
        (8, 1, 1024, 32, 8),
        (8, 1, 1024, 16, 4),  # 16,384 rows keep four busy
        (8, 1, 1000, 128, 8),
        (8, 1, 1002, 128, 6),
    ],
)
def test_environments_are_split_where_it_is_worth_it(devices, seeds, num_envs, num_steps, groups):
    assert machine.default_groups(devices, seeds, num_envs, num_steps) == groups
    assert num_envs % groups == 0


def test_the_cores_are_those_that_this_process_may_use():
    assert machine.cores() == len(os.sched_getaffinity(0))


def test_a_backend_that_runs_keeps_its_devices():
    before = len(jax.devices())
    machine.prepare(before + 3)
    assert len(jax.devices()) == before


def test_a_backend_that_runs_keeps_its_flags(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    for devices in (0, 1, len(jax.devices()), len(jax.devices()) - 1):
        machine.prepare(devices)
        assert os.environ["XLA_FLAGS"] == ""  # what nobody reads would only change keys of the compile cache


def test_devices_above_the_cores_are_noted_and_as_many_as_cores_are_always_possible(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 3)
    assert machine.devices_note(3) == ""
    assert (
        machine.devices_note(4)
        == "devices=4 is more than the 3 cores that this process may use, which they share"
    )
    assert machine.max_devices() == 32
    monkeypatch.setattr(machine, "cores", lambda: 64)
    assert machine.max_devices() == 64


def printed_by(program, environment):
    """What a fresh process prints, with nothing set that decides how the machine is prepared but `environment`."""
    unset = ("SHOAL_CACHE", "JAX_COMPILATION_CACHE_DIR", "XDG_CACHE_HOME", "XLA_FLAGS", "NPROC")
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout.strip()


ASK_FOR_A_LOOP = """
import jax, jax.numpy as jnp
from shoal.xla import machine
machine.prepare()
def loop(x):
    return jax.lax.scan(lambda x, _: (jnp.sin(x) * x, x.sum()), x, None, length=50)
print("xla_cpu_small_call" in jax.jit(loop).lower(jnp.ones(1000)).compile().as_text())
"""


MY_LIMIT = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=10"


@pytest.mark.full
@pytest.mark.parametrize(
    "own,answer", [("", "True"), (MY_LIMIT, "False"), ("file", "False")], ids=["none", "own", "file"]
)
def test_a_fresh_process_compiles_a_small_loop_as_one_kernel(own, answer, tmp_path):
    if own == "file":
        own = str(tmp_path / "flags")
        Path(own).write_text(MY_LIMIT)
    assert printed_by(ASK_FOR_A_LOOP, {"SHOAL_CACHE": "0", "XLA_FLAGS": own}) == answer


ASK = """
import jax
from shoal.xla import machine
machine.prepare({devices})
print(len(jax.devices()), jax.config.jax_compilation_cache_dir)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "devices,environment,answer",
    [
        (3, {"XDG_CACHE_HOME": "/tmp/somewhere"}, "3 /tmp/somewhere/shoal/jax"),
        (0, {"SHOAL_CACHE": "0"}, f"{machine.cores()} None"),
        (1, {"JAX_COMPILATION_CACHE_DIR": "/tmp/mine"}, "1 /tmp/mine"),
    ],
    ids=["default", "off", "own"],
)
def test_a_fresh_process_gets_its_devices_and_its_cache(devices, environment, answer):
    assert printed_by(ASK.format(devices=devices), environment) == answer


@pytest.mark.parametrize(
    "devices,seeds,num_envs,num_steps,expected",
    [
        (0, 1, 4, 128, True),
        (1, 1, 4, 128, True),
        (2, 1, 4, 128, False),  # two devices were asked for
        (0, 10, 4, 128, False),  # ten seeds keep every core busy
        (0, 1, 64, 128, False),  # kernels worth sharing
    ],
)
def test_only_a_small_run_of_one_seed_is_worth_one_thread(devices, seeds, num_envs, num_steps, expected):
    assert machine.is_worth_one_thread(devices, seeds, num_envs * num_steps) is expected
    assert machine.is_worth_one_thread(devices, seeds, num_envs * num_steps, 2 * 64**2) is expected
    assert not machine.is_worth_one_thread(devices, seeds, num_envs * num_steps, 2 * 256**2)


@pytest.mark.full
def test_one_thread_starts_a_backend_with_one_device_and_a_pool_of_one():
    ask = (
        "import jax, os; from shoal.xla import machine; machine.prepare(one_thread=True);"
        "machine.prepare(0); print(len(jax.devices()), os.environ['NPROC'])"
    )
    assert printed_by(ask, {"SHOAL_CACHE": "0"}) == "1 1"
