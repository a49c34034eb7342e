"""Networks with state: statistics of minibatches (`nnx.BatchStat`) and keys (`nnx.RngState`), as those of
`nnx.BatchNorm` and `nnx.Dropout`.

A network stands in a learner at rest: in the mode eval, with its statistics among its leaves, and without keys. It is
in the mode train only while a loss is computed, as a copy that is given keys, and whose new statistics are returned
beside the loss. A network without state is never changed.
"""

import abc
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.config.struct import path_name
from shoal.types import Array, PyTree

T = TypeVar("T")


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class KeySlot:
    """The place of a key, or of the count of its draws, in a network at rest; it has no leaves."""

    variable: type[nnx.RngState]
    tag: str

    def __getattr__(self, name: str) -> Any:
        why = "no random numbers are drawn in acting, evaluation and the mode eval; draw none where `deterministic`"
        raise AttributeError(f"{why} is true" if not name.startswith("__") else name)

    def filled(self, key: Array) -> nnx.RngState:
        """Return the variable with a key that was not drawn from."""
        is_key = issubclass(self.variable, nnx.RngKey)
        return self.variable(key if is_key else jnp.zeros((), jnp.uint32), tag=self.tag)


class State(abc.ABC):  # noqa: B024
    """What a network has besides parameters: statistics, keys, and the places of keys."""


for kind in (nnx.BatchStat, nnx.RngState, KeySlot):
    State.register(kind)
# The method of `isinstance` itself, since it is called for each node of a network.
_is_state = State.__instancecheck__


class BatchNormOfRows(nnx.BatchNorm):
    """An `nnx.BatchNorm` in the mode train, whose statistics are those of the rows that count, of all devices.

    Flax takes the mean of the devices' means, which is that of all rows only where each device has as many.
    """

    counts: Any  # which rows do, boolean, the leading axes of the inputs; others are taken whole

    def __call__(
        self, x: Array, use_running_average: bool | None = None, *, mask: Array | None = None
    ) -> Array:
        """Normalise by the statistics of a minibatch, which are merged into the running ones if any row counts."""
        if use_running_average:
            return super().__call__(x, True)
        feature_axes = jax.tree.map(lambda i: i % x.ndim, jax.tree.leaves(self.axis))
        axes = tuple(i for i in range(x.ndim) if i not in feature_axes)
        if mask is None:
            leading = self.counts if x.shape[: self.counts.ndim] == self.counts.shape else jnp.bool_(True)
            mask = leading.reshape(*leading.shape, *[1] * (x.ndim - leading.ndim))
        mask = jnp.broadcast_to(mask, x.shape)

        def total(numbers: Array) -> Array:
            found = jnp.sum(numbers, axes)
            return jax.lax.psum(found, self.axis_name) if self.axis_name else found

        inputs = jnp.where(mask, x.astype(jnp.promote_types(x.dtype, jnp.float32)), 0.0)
        count = total(mask.astype(inputs.dtype))
        mean = total(inputs) / jnp.maximum(count, 1.0)
        centred = jnp.where(mask, inputs - jnp.expand_dims(mean, axes), 0.0)
        variance = total(jnp.square(centred)) / jnp.maximum(count, 1.0)
        old = self.mean[...], self.var[...]
        self.mean[...], self.var[...] = mean, variance
        normalised = super().__call__(x, True)
        for variable, before, of_rows in ((self.mean, old[0], mean), (self.var, old[1], variance)):
            merged = self.momentum * before + (1 - self.momentum) * of_rows
            variable[...] = jnp.where(count > 0, merged, before)
        return normalised


def has_state(network: PyTree) -> bool:
    """Report whether a network has statistics or keys, at rest or as it was built."""
    leaves = jax.tree.leaves(network, is_leaf=_is_state)
    return any(map(_is_state, leaves))


def at_rest(network: T) -> T:
    """Return a network as it stands in a learner; one without state as it is."""
    if not has_state(network):
        return network

    def without_key(x: Any) -> Any:
        return KeySlot(type(x), x.tag) if isinstance(x, nnx.RngState) else x

    resting = jax.tree.map(without_key, network, is_leaf=_is_state)
    _set_mode(resting, is_training=False)
    return resting


def training(
    network: T, statistics: Mapping[str, Array], key: Array, counts: Array, axis: tuple[str, ...] = ()
) -> T:
    """Return a copy of a network at rest in the mode train; its calls change the copy's `statistics_of`.

    Args:
      statistics: of before, by name.
      key: each layer's key is `fold_in(key, i)`, where i is its number among the network's keys.
      counts: the rows whose statistics count, boolean; the leading axes of the network's inputs.
      axis: names of the axes of devices, over which the statistics of a `nnx.BatchNorm` are taken.
    """
    leaves, structure = jax.tree.flatten(with_statistics(network, statistics), is_leaf=_is_state)
    slots = [i for i, x in enumerate(leaves) if isinstance(x, KeySlot) and issubclass(x.variable, nnx.RngKey)]
    keys = {i: jax.random.fold_in(key, number) for number, i in enumerate(slots)}
    filled = [x.filled(keys.get(i, key)) if isinstance(x, KeySlot) else x for i, x in enumerate(leaves)]
    copy = jax.tree.unflatten(structure, filled)
    _set_mode(copy, is_training=True)
    for module in _modules(copy):
        if isinstance(module, nnx.BatchNorm):
            module.axis_name = axis or None  # type: ignore[assignment]
        if type(module) is nnx.BatchNorm:  # a class of the user's own may compute something else
            module.__class__ = BatchNormOfRows
            module.counts = nnx.data(counts)  # type: ignore[attr-defined]
    return copy


def statistics_of(network: PyTree) -> dict[str, Array]:
    """Return the leaves of a network that are statistics, by the names of their paths."""
    found: dict[str, Array] = {}
    for path, x in jax.tree_util.tree_leaves_with_path(network, is_leaf=_is_state):
        if isinstance(x, nnx.BatchStat):
            found |= {path_name((*path, *rest)): y for rest, y in jax.tree_util.tree_leaves_with_path(x)}
    return found


def with_statistics(network: T, statistics: Mapping[str, Array]) -> T:
    """Return a network with other statistics, given by name."""
    if not statistics:
        return network
    return jax.tree_util.tree_map_with_path(lambda path, x: statistics.get(path_name(path), x), network)


def _modules(tree: PyTree) -> Iterator[nnx.Module]:
    """Return the modules in a pytree, itself included, also those within nodes of other kinds."""
    if isinstance(tree, nnx.Module):
        yield tree
    parts = jax.tree.leaves(tree, is_leaf=lambda x: x is not tree and isinstance(x, nnx.Module))
    for part in parts:
        if isinstance(part, nnx.Module):
            yield from _modules(part)


def _set_mode(network: PyTree, *, is_training: bool) -> None:
    """Set what `nnx.Module.train` and `eval` do, in every module of a pytree."""
    for module in _modules(network):
        for name in ("deterministic", "use_running_average"):
            if hasattr(module, name):
                setattr(module, name, not is_training)
