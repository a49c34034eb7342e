"""Check that an algorithm reduces shared values over the groups."""

from typing import Any

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.engine.loop import update_once
from shoal.engine.run import ENV_AXIS, ProgramSettings, start
from shoal.types import Environment, PyTree


def check_reduced(environment: Environment, config: Any, settings: ProgramSettings, algorithm: str) -> None:
    """Trace a start and one update of all groups, and require that shared values are the same in each group.

    A value that an algorithm computes from one group's environments differs between groups until it is
    reduced over `axis`. On devices nothing else would detect this: each device would continue with a
    different copy.

    Raises:
      ShoalError: an entry of `learner.shared` or a metric is not reduced.
    """

    def trace_group(environment: Environment, config: Any, _: jax.Array) -> None:
        run = start(jax.random.key(0), environment, config, 1, settings)
        inspect({"shared": run.learner.shared}, "init")
        run, metrics = update_once(run)
        inspect({"shared": run.learner.shared}, "update")
        inspect({"metrics": dict(metrics)}, "update")

    def inspect(tree: PyTree, function: str) -> None:
        for name in _mapped_leaves(tree):
            raise ShoalError(
                f"algorithm={algorithm!r}: {name!r} of what `{function}` returns differs between the {settings.groups} "
                "groups of environments; reduce it over `axis` (such as by jax.lax.psum(x, axis)), or train with "
                "env_groups=1."
            )

    groups = jax.vmap(trace_group, in_axes=(None, None, 0), axis_name=ENV_AXIS)
    jax.eval_shape(
        groups, struct.as_arrays(environment), struct.as_arrays(config), jnp.zeros(settings.groups)
    )


def _mapped_leaves(tree: PyTree) -> list[str]:
    """Return the names of the leaves of a traced tree that differ along the axis of the innermost `vmap`."""
    found: list[str] = []

    @jax.custom_batching.custom_vmap
    def identity(tree: PyTree) -> PyTree:
        return tree

    @identity.def_vmap
    def _(axis_size: int, in_batched: list, tree: PyTree) -> tuple[PyTree, PyTree]:
        found.extend(name for name, mapped in struct.named_leaves(in_batched[0]).items() if mapped)
        return tree, in_batched[0]

    identity(tree)
    return found
