"""Settings of JAX with which Shoal cannot work: refused by their names, before anything compiles."""

import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error

MOVES = "Shoal moves numbers between the host and its devices without asking for each"
REFUSED: dict[str, Mapping[Any, str]] = {
    "eager_constant_folding": {True: "Shoal names axes of programs, with which JAX does not fold constants"},
    "jax_compilation_cache_check_contents": {True: "Shoal compiles programs whose bytes vary"},
    "jax_default_prng_impl": dict.fromkeys(
        ("philox2x32", "philox4x32"), "Shoal has programs that XLA does not compile with these keys"
    ),
    "jax_debug_key_reuse": {
        True: "Shoal folds numbers into one key for many uses, which this takes for reuse"
    },
    "jax_enable_x64": {True: "Shoal computes with 32-bit numbers"},
    "jax_no_execution": {True: "Shoal runs the programs that it compiles"},
    "jax_no_tracing": {True: "Shoal traces a program before it compiles it"},
    "jax_numpy_dtype_promotion": {"strict": "Shoal relies on the standard promotion of types"},
    "jax_numpy_rank_promotion": {"raise": "Shoal relies on the broadcasting of arrays"},
    "jax_scan3": {True: "Shoal maps loops over environments, which loops of this kind do not support"},
    **{
        f"jax_error_checking_behavior_{kind}": {
            "raise": "Shoal maps programs over environments, which these checks do not support"
        }
        for kind in ("divide", "nan", "oob")
    },
    **{
        f"jax_transfer_guard_{direction}": dict.fromkeys(("disallow", "disallow_explicit"), MOVES)
        for direction in ("host_to_device", "device_to_host", "device_to_device")
    },
}
REFUSED_IN_TRAINING: dict[str, Mapping[Any, str]] = {
    "jax_debug_infs": {True: "numbers that are masked are infinite in every sound run"},
    "jax_disable_jit": {
        True: "training compiles its programs before it runs them; debug with `shoal check`, `rollout` or `eval`"
    },
}
PRECISIONS = (
    None,
    "default",
    "high",
    "highest",
    "bfloat16",
    "tensorfloat32",
    "float32",
)  # that each platform has


def require_usable(*, training: bool = False) -> None:
    """Require that JAX's settings, of its environment variables or of `jax.config`, are some that Shoal works with.

    Raises:
      ShoalError: they are not; the sentence names the setting.
    """
    for name, reasons in (REFUSED | REFUSED_IN_TRAINING if training else REFUSED).items():
        value = getattr(jax.config, name, None)
        reason = reasons.get(getattr(value, "value", value))  # some are members of enumerations
        if reason:
            raise ShoalError(
                f"JAX's setting {_as_given(name, value)} cannot be used here: {reason}; unset it."
            )
    for name in ("jax_platforms", "jax_platform_name", "jax_default_device"):
        # `jax_platform_name` is no attribute.
        value = getattr(jax.config, name, None) or jax.config.values.get(name)
        if isinstance(value, str) and value.partition(",")[0] not in ("", "cpu"):
            _try_to_compute(name, value)


def require_platform() -> None:
    """Require the platforms besides the CPU, and the precision of products, that JAX is set to.

    This may start the backend, and so comes after the number of the CPU's devices is set.
    """
    if (value := getattr(jax.config, "jax_platforms", None)) and value.startswith("cpu,"):
        _try_to_compute("jax_platforms", value)
    name = "jax_default_matmul_precision"
    if (value := getattr(jax.config, name, None)) not in PRECISIONS:
        _try_to_compute(name, value)


def _try_to_compute(name: str, value: object) -> None:
    try:
        jax.block_until_ready(_product(np.ones((2, 2), np.float32)))
    except Exception as error:
        works = "default" if "precision" in name else "cpu"
        raise ShoalError(
            f"JAX cannot compute with {_as_given(name, value)} on this machine: {describe_error(error)}; {works!r} "
            "always works."
        ) from error


@jax.jit
def _product(x: jax.Array) -> jax.Array:
    return x @ x


def _as_given(name: str, value: object) -> str:
    """Name a setting by its environment variable where that is set, else as `jax.config` has it."""
    variables = [name.upper()] + (["JAX_TRANSFER_GUARD"] if "transfer_guard" in name else [])
    given = next((x for x in variables if x in os.environ), "")
    return f"{given}={os.environ[given]}" if given else f"{name}={getattr(value, 'value', value)}"
