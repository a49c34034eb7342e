"""Random numbers drawn once per rollout instead of once per step.

A draw of a few numbers costs as much as a draw of thousands, since the key's cipher is a loop of its own.
What a step computes from its key alone can be computed for all steps at once, before the loop over them.
`split_by_key` takes a function of a key and finds that part, so that authors of `act` need not.
"""

from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from shoal.types import Array, PyTree


def split_by_key(function: Callable, key: Array, *args: PyTree) -> tuple[Callable, Callable]:
    """Split a function of a key and other arguments into the part that depends on the key alone, and the rest.

    Args:
      function: `function(key, *args)`, traceable.
      key: an example (or its shape and dtype).
      *args: examples.

    Returns:
      `draw(key) -> draws`, which may be mapped over many keys, and `finish(draws, *args)`, so that
      `finish(draw(key), *args)` is `function(key, *args)`.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(key, *args)
    jaxpr = closed.jaxpr
    structure = jax.tree.structure(shape)
    key_variable, *others = jaxpr.invars
    from_key, constants = {key_variable}, set(jaxpr.constvars)
    early, late = [], []
    for equation in jaxpr.eqns:
        inputs = {x for x in equation.invars if not isinstance(x, Literal)}
        if inputs & from_key and inputs <= from_key | constants and not equation.effects:
            early.append(equation)
            from_key |= set(equation.outvars)
        else:
            late.append(equation)
    needed = {x for equation in late for x in equation.invars if not isinstance(x, Literal)}
    needed |= {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    early_outputs = [
        x for x in (key_variable, *(y for equation in early for y in equation.outvars)) if x in needed
    ]
    early_program = ClosedJaxpr(
        jaxpr.replace(invars=[key_variable], outvars=early_outputs, eqns=early), closed.consts
    )
    late_program = ClosedJaxpr(jaxpr.replace(invars=[*early_outputs, *others], eqns=late), closed.consts)

    def finish(draws: list, *args: PyTree) -> PyTree:
        return jax.tree.unflatten(structure, jaxpr_as_fun(late_program)(*draws, *jax.tree.leaves(args)))

    return jaxpr_as_fun(early_program), finish
