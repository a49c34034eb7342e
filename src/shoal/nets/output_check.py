"""Check what a network's method returned, where it is traced; `lead` are the leading axes of what it was given."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.nets.outputs import ActionDistribution, Value
from shoal.nets.value_heads import expectation
from shoal.ops.distributions import adapted
from shoal.types import EnvSpec, PyTree
from shoal.types.contract import described, refuse, require_array
from shoal.types.spaces import Box, Discrete, Space, zeros

LEAD = (3, 2)  # the leading axes of what a network or a part of one is traced with


def leading_axes(spec: EnvSpec) -> tuple[int, ...]:
    """Return leading axes of observations; the last is of the agents where a network is shown all of them."""
    return LEAD if spec.num_agents == 1 else (*LEAD[:-1], spec.num_agents)


def zero_batch(space: Space, lead: tuple[int, ...]) -> PyTree:
    """Return the zero element of a space with leading axes."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), zeros(space))


def require_methods(name: str, methods: Mapping[str, object], needs: str) -> None:
    """Require that the methods of a network are there, given by what they are called in the sentence.

    Raises:
      ShoalError: the first is not; the sentence says what the network needs.
    """
    for method, function in methods.items():
        if not callable(function):
            raise ShoalError(f"{name} lacks the method {method}; {needs}.")


def check_policy(method: Callable, output: ActionDistribution, lead: tuple[int, ...], spec: EnvSpec) -> None:
    """Require a distribution whose samples fit the action space, with a log-probability of each in float32."""
    entropy = "entropy_estimate" if hasattr(output, "entropy_estimate") else "entropy"
    right = "a distribution, as those of shoal.ops.distributions"
    for name in ("sample", "log_prob", "mode", entropy):
        if not callable(getattr(output, name, None)):
            refuse(method, f"{described(output)} without the method {name!r}", right)
    given, output = output, adapted(output)
    try:
        output.mode()
    except NotImplementedError:  # as that of a mixture
        refuse(method, f"{described(given)} whose mode is not implemented", right)
    action, space = output.sample(jax.random.key(0)), spec.action_space
    # A policy's actions of a Box are flat.
    own = (math.prod(space.shape),) if isinstance(space, Box) else space.shape  # type: ignore[union-attr]
    is_integer = jnp.issubdtype(getattr(action, "dtype", jnp.int32), jnp.integer)
    dtype = "" if is_integer or isinstance(space, Box) else "int32"
    require_array(method, action, (*lead, *own), dtype, what="a distribution of actions")
    why = "one for each action"
    require_array(method, output.log_prob(action), lead, what="log-probabilities", why=why)
    counts = () if isinstance(space, Box) else getattr(space, "nvec", None) or (space.n,)  # type: ignore[union-attr]
    if counts and (found := _numbers_of_choices(output, counts, action.shape)) != counts:
        there, right = (" and ".join(map(str, x)) for x in (found, counts))
        refuse(method, f"a distribution over {there} choices", f"one over {right}, as {space} has")


def _numbers_of_choices(
    distribution: Any, counts: tuple[int, ...], shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the numbers of choices of a distribution of actions; `counts` where its logits do not tell."""
    inner = getattr(distribution, "distribution", distribution)  # another package's
    inner = getattr(inner, "distribution", inner)  # within its `Independent`
    logits: Any = getattr(inner, "logits", None)
    logits = getattr(inner, "probs", None) if logits is None else logits
    if isinstance(logits, tuple):
        return tuple(x.shape[-1] for x in logits)
    given = getattr(logits, "shape", None)
    if given == shape:
        return (2,) * len(counts)  # a Bernoulli of each action
    # Several actions of one array have as many entries each, of which the illegal ones are masked.
    is_told = given is not None and given[:-1] == shape and given[-1] != max(counts)
    return (given[-1],) * len(counts) if is_told else counts  # type: ignore[index]


def check_value(method: Callable, output: Value, lead: tuple[int, ...]) -> None:
    """Require numbers, or distributions over numbers, one of each step."""
    require_array(method, expectation(output), lead, what="values", why="one for each observation")


def check_action_values(
    method: Callable,
    output: Value,
    lead: tuple[int, ...],
    spec: EnvSpec,
    kind: str,
    *,
    of_critics: bool = False,
) -> None:
    """Require a number of each action, or of the one that was given, in a Box.

    Args:
      kind: what the settings of the network declare in `values`.
      of_critics: whether there is an axis of critics, of any length, before the leading ones.
    """
    values: Any = output if kind == "expected" else expectation(output)
    all_actions = (spec.action_space.n,) if isinstance(spec.action_space, Discrete) else ()
    shape = (*lead, *all_actions)
    axes = of_critics + len(shape) + (kind == "quantile")
    size: tuple[int, ...] = getattr(values, "shape", ())
    if kind == "quantile":
        if len(size) != axes:
            refuse(
                method, f"{described(output)} as values", "quantiles of each action, since values='quantile'"
            )
        values = jnp.mean(values, axis=-1)
    if kind == "categorical" and not (hasattr(output, "atoms") and hasattr(output, "logits")):
        right = "distributions over atoms, as shoal.ops.distributions.DiscreteValued"
        refuse(method, f"{described(output)} as values", f"{right}, since values='categorical'")
    if of_critics:
        shape = (size[0] if len(size) == axes else 1, *shape)
    each = " and ".join(["critic"] * of_critics + ["action"] * bool(all_actions or not of_critics))
    require_array(method, values, shape, what="values", why=f"one for each {each}")
