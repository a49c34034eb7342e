"""Check that an algorithm reduces shared values over the groups."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.config import struct
from shoal.engine.loop import update_once
from shoal.engine.run import ENV_AXIS, ProgramSettings, start
from shoal.types import AlgorithmConfig, Environment, PyTree, spec_of
from shoal.types.contract import refuse


def check_reduced(environment: Environment, config: AlgorithmConfig, settings: ProgramSettings) -> None:
    """Trace a start and one update of all groups, and require that shared values are the same in each group.

    A value that an algorithm computes from one group's environments differs between groups until it is
    reduced over `axis`. On devices nothing else would detect this: each device would continue with a
    different copy.

    Raises:
      ShoalError: an entry of `learner.shared` or a metric is not reduced.
    """

    def trace_group(environment: Environment, config: AlgorithmConfig, _: jax.Array) -> None:
        algorithm = config.algorithm(spec_of(environment), settings.axis)
        run = start(jax.random.key(0), environment, config, 1, settings)
        inspect({"shared": run.learner.shared}, algorithm.init)
        run, metrics = update_once(run)[:2]
        inspect({"shared": run.learner.shared}, algorithm.update)
        inspect({"metrics": dict(metrics)}, algorithm.update)

    def inspect(tree: PyTree, function: Callable) -> None:
        for name in _mapped_leaves(tree):
            returned = f"{name!r} that differs between the {settings.groups} groups of environments"
            right = "what is reduced over `axis`, such as by jax.lax.psum(x, axis), or be trained with env_groups=1"
            refuse(function, returned, right)

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
