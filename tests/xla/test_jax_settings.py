"""Settings of JAX under which Shoal cannot work: by their names, at once, and before anything is blamed for them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.xla.jax_settings import REFUSED, REFUSED_IN_TRAINING


@contextlib.contextmanager
def setting(name, value):
    former = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, former)


CASES = [  # of the settings that this version of JAX has
    (name, value) for name, reasons in REFUSED.items() for value in reasons if hasattr(jax.config, name)
]
IN_TRAINING = [(name, value) for name, reasons in REFUSED_IN_TRAINING.items() for value in reasons]


@pytest.mark.parametrize(("name", "value"), CASES)
def test_a_setting_with_which_nothing_works_is_refused_everywhere(name, value, tmp_path):
    path = str(tmp_path / "run")
    with setting(name, value):
        for call in (
            lambda: shoal.train("CartPole-v1", run_dir=path),
            lambda: shoal.sweep("CartPole-v1", grid={"gamma": [0.9, 0.99]}, run_dir=path),
            lambda: shoal.rollout("CartPole-v1"),
            lambda: shoal.check("CartPole-v1"),
        ):
            with pytest.raises(
                ShoalError, match=rf"^JAX's setting {name}={value} cannot be used here: Shoal "
            ):
                call()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), IN_TRAINING)
def test_a_setting_for_debugging_is_refused_in_training_alone(name, value, tmp_path):
    path = str(tmp_path / "run")
    with setting(name, value):
        for call in (
            lambda: shoal.train("CartPole-v1", run_dir=path),
            lambda: shoal.sweep("CartPole-v1", grid={"gamma": [0.9, 0.99]}, run_dir=path),
            lambda: shoal.tune("CartPole-v1", random={"gamma": "uniform:0.9:0.99"}, run_dir=path),
            lambda: shoal.pbt(
                "CartPole-v1", tune={"gamma": "uniform:0.9:0.99"}, ready_every=8192, run_dir=path
            ),
        ):
            with pytest.raises(ShoalError, match=rf"^JAX's setting {name}={value} cannot be used here: "):
                call()
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_jit_may_be_disabled_to_debug(tmp_path):
    """The same numbers, within rounding, from programs that are not compiled."""
    paths = [str(tmp_path / f"{name}.npz") for name in ("compiled", "called")]
    for disabled, path in zip((False, True), paths, strict=True):
        with setting("jax_disable_jit", disabled):
            shoal.rollout("CartPole-v1", num_envs=4, num_steps=8, save=path)
    compiled, called = (np.load(path) for path in paths)
    assert compiled.files == called.files
    for name in compiled.files:
        np.testing.assert_allclose(called[name], compiled[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_environment_is_checked_while_jit_is_disabled():
    with setting("jax_disable_jit", True):
        assert shoal.check("CartPole-v1", keys=2, steps=8, max_steps=32) == []


def test_a_platform_beside_the_cpu_leaves_the_cpu_its_devices():
    code = "import jax; from shoal.xla import machine; machine.prepare(3); print(len(jax.devices()))"
    env = os.environ | {"JAX_PLATFORMS": "cpu,cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "3\n"


def test_the_variable_that_was_set_is_named(monkeypatch):
    monkeypatch.setenv("JAX_TRANSFER_GUARD", "disallow")
    with (
        setting("jax_transfer_guard_host_to_device", "disallow"),
        pytest.raises(ShoalError, match=r"^JAX's setting JAX_TRANSFER_GUARD=disallow cannot be used here"),
    ):
        shoal.rollout("CartPole-v1")


@pytest.mark.quick("platform")
@pytest.mark.parametrize(
    ("variable", "value", "start"),
    [
        (
            "JAX_DEFAULT_MATMUL_PRECISION",
            "ANY_F8_ANY_F8_F32",
            "JAX cannot compute with JAX_DEFAULT_MATMUL_PRECISION=ANY_F8_ANY_F8_F32 on ",
        ),
        (
            "JAX_PLATFORMS",
            "nonsense",
            "JAX cannot compute with JAX_PLATFORMS=nonsense on this machine: RuntimeError: ",
        ),
        (
            "JAX_PLATFORM_NAME",
            "nonsense",
            "JAX cannot compute with JAX_PLATFORM_NAME=nonsense on this machine: RuntimeError: ",
        ),
        (
            "JAX_NUMPY_DTYPE_PROMOTION",
            "nonsense",
            "JAX cannot be imported with JAX_NUMPY_DTYPE_PROMOTION=nonsense: ",
        ),
    ],
    ids=["precision", "platform", "platform name", "promotion"],
)
def test_jax_itself_does_not_start(variable, value, start):
    command = [Path(sys.executable).with_name("shoal"), "rollout", "CartPole-v1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {variable: value}
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == "" and done.stderr.startswith(f"shoal: {start}")
    assert done.stderr.count("\n") == 1
