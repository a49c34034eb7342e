"""Check what a network gives, with one sentence for an error; called where it is traced.

`where` begins the sentence: the network and its method. `lead` are the leading axes of what it was given.
"""

import math
from typing import Any

import jax

from shoal.base.errors import ShoalError
from shoal.nets.value_heads import expectation
from shoal.types import EnvSpec
from shoal.types.spaces import Box


def check_policy(where: str, output: Any, lead: tuple[int, ...], spec: EnvSpec) -> None:
    """Require a distribution whose samples fit the action space, with a log-probability of each in float32."""
    for method in ("sample", "log_prob", "mode"):
        if not callable(getattr(output, method, None)):
            raise ShoalError(
                f"{where} gives a {type(output).__name__} without the method {method!r}; it must be a distribution, as "
                "those of shoal.ops.distributions."
            )
    action, space = output.sample(jax.random.key(0)), spec.action_space
    # A policy's actions of a Box are flat.
    own = (math.prod(space.shape),) if isinstance(space, Box) else space.shape  # type: ignore[union-attr]
    if getattr(action, "shape", None) != (*lead, *own):
        raise ShoalError(
            f"{where} samples actions of {_describe(action)}; their shape must be {(*lead, *own)}."
        )
    _require(f"{where} gives log-probabilities", output.log_prob(action), lead, "one for each action")


def check_value(where: str, output: Any, lead: tuple[int, ...]) -> None:
    """Require numbers, or distributions over numbers, one of each step."""
    _require(f"{where} gives values", expectation(output), lead, "one for each observation")


def check_action_values(where: str, output: Any, lead: tuple[int, ...], spec: EnvSpec, kind: str) -> None:
    """Require a number of each action; `kind` is what the settings of the network declare in `values`."""
    values = output if kind == "expected" else expectation(output)
    _require(f"{where} gives values", values, (*lead, spec.action_space.n), "one for each action")  # type: ignore[union-attr]


def _require(what: str, x: Any, shape: tuple[int, ...], why: str) -> None:
    right = f"float32{list(shape)}"
    if _describe(x) != right:
        raise ShoalError(f"{what} of {_describe(x)}; they must be {right}, {why}.")


def _describe(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else f"the type {type(x).__name__}"
