"""Single transitions for the losses: checks of shapes and dtypes, and the entries that may be read."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.ops import _checks
from shoal.ops._streams import masked, stop_gradient_if

Array = jax.Array
Shape = tuple[int, ...]


class Transition(NamedTuple):
    """Transitions with batch axes [...]; entries that may not be read are 0."""

    r_t: Array
    discount_t: Array
    is_transition: Array  # whether the weight is not 0
    bootstraps: Array  # whether the next value is read: the weight is not 0, and nothing terminated there


def transition(r_t: Array, discount_t: Array, w_tm1: Array | None, **floats: Array) -> Transition:
    """Check the batch axes of the transitions and the dtypes of all arrays, `floats` (by name) included.

    Raises:
      ValueError: shapes disagree.
      TypeError: dtypes disagree.
    """
    weights = {} if w_tm1 is None else {"w_tm1": w_tm1}
    shape = _checks.same_shape("", r_t=r_t, discount_t=discount_t, **weights)
    _checks.real(r_t=r_t, **weights)
    dtype = _checks.common_dtype(r_t, discount_t=discount_t, **floats)
    is_transition = jnp.ones(shape, bool) if w_tm1 is None else jnp.asarray(w_tm1) > 0
    bootstraps = is_transition & (jnp.asarray(discount_t) != 0)
    # Selected here, once: whatever is computed of these has no NaN of an entry of weight 0.
    return Transition(
        masked(is_transition, jnp.asarray(r_t, dtype)),
        masked(is_transition, discount_t),
        is_transition,
        bootstraps,
    )


def action_transition(
    r_t: Array,
    discount_t: Array,
    w_tm1: Array | None,
    a_tm1: Array,
    axes: str,
    selector_t: Array | None = None,
    **floats: Array,
) -> Transition:
    """Return the transitions of actions a_tm1, integers [...]; `axes` are those of `floats` (see `check_axes`).

    Of `selector_t`, where it is given, shape and dtype are checked too.
    """
    if selector_t is not None:
        axes, floats = f"{axes} [..., A]", floats | {"selector_t": selector_t}
    t = transition(r_t, discount_t, w_tm1, **floats)
    check_axes(t.r_t.shape, f"[...] {axes}", a_tm1=a_tm1, **floats)
    _checks.integer(a_tm1=a_tm1)
    return t


def check_axes(batch: Shape, axes: str, **arrays: Array) -> None:
    """Require the axes of each named array, in their order, such as "[..., A, n] [..., A, m] [n]".

    The dots stand for `batch`, and equal letters for equal lengths. Without dots, as in "[n]", the batch axes
    are optional.
    """
    lengths: dict[str, int] = {}
    matches = []
    for array, group in zip(arrays.values(), re.findall(r"\[(.*?)\]", axes), strict=True):
        letters = [word for word in group.split(", ") if word != "..."]
        shape = jnp.shape(array)
        before, own_axes = shape[: len(shape) - len(letters)], shape[len(shape) - len(letters) :]
        matches.append(before == batch or (before == () and "..." not in group))
        matches.append(len(own_axes) == len(letters))
        matches.extend(lengths.setdefault(*pair) == pair[1] for pair in zip(letters, own_axes, strict=False))
    if not all(matches):
        listed = ", ".join(f"{name} {list(jnp.shape(array))}" for name, array in arrays.items())
        raise ValueError(
            f"{listed} must have the axes {axes}, where ... is {list(batch)} and equal letters are equal lengths."
        )


def td_error(t: Transition, prediction: Array, value_t: Array, stop_target_gradients: bool) -> Array:
    """Compute δ_t = r_t + γ_t v_t - v_{t-1} from a value that is masked already; 0 where the weight is 0."""
    target = stop_gradient_if(t.r_t + t.discount_t * value_t, stop_target_gradients)
    return target - masked(t.is_transition, prediction)
