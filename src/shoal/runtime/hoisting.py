"""Randomness drawn once per rollout in place of once per step.

A draw of a few numbers costs as much as a draw of thousands: the key's cipher is a loop of its own. What a step
computes from its key alone can be computed for all steps at once, before the loop over them. `ahead` takes
a function of a key and finds that part, so that whoever writes `act` need not.
"""

from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from shoal.types import Array, PyTree


def ahead(function: Callable, key: Array, *args: PyTree) -> tuple[Callable, Callable]:
    """Splits a function of a key and more into what the key alone decides, and the rest.

    Args:
      function: `function(key, *args)`, traceable.
      key: an example (or its shape and dtype).
      *args: examples.

    Returns:
      `draw(key) -> drawn`, which may be mapped over many keys, and `finish(drawn, *args)`, so that
      `finish(draw(key), *args)` is `function(key, *args)`.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(key, *args)
    jaxpr = closed.jaxpr
    structure = jax.tree.structure(shape)
    first, *others = jaxpr.invars
    drawn, fixed = {first}, set(jaxpr.constvars)
    early, late = [], []
    for equation in jaxpr.eqns:
        inputs = {x for x in equation.invars if not isinstance(x, Literal)}
        if inputs & drawn and inputs <= drawn | fixed and not equation.effects:
            early.append(equation)
            drawn |= set(equation.outvars)
        else:
            late.append(equation)
    needed = {x for equation in late for x in equation.invars if not isinstance(x, Literal)}
    needed |= {x for x in jaxpr.outvars if not isinstance(x, Literal)}
    handed = [x for x in (first, *(y for equation in early for y in equation.outvars)) if x in needed]
    draw = ClosedJaxpr(jaxpr.replace(invars=[first], outvars=handed, eqns=early), closed.consts)
    rest = ClosedJaxpr(jaxpr.replace(invars=[*handed, *others], eqns=late), closed.consts)

    def finish(drawn: list, *args: PyTree) -> PyTree:
        return jax.tree.unflatten(structure, jaxpr_as_fun(rest)(*drawn, *jax.tree.leaves(args)))

    return jaxpr_as_fun(draw), finish
