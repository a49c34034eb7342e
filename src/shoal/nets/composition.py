"""Composition of torsos: in sequence and in parallel.

A torso is any function from arrays with leading axes [...] to features [..., out_features]. If its class has
`noisy = True`, it is also called with a key for its noise; a module that contains such torsos takes the key as
`key=` and passes a different one to each noisy part.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.types import PyTree

Array = jax.Array


class Composable(Protocol):
    """A torso or a head, which may also have `out_features`, `in_features`, and `noisy`."""

    def __call__(self, *inputs: PyTree, **key: PyTree) -> PyTree:
        """Compute features, or the output of a head."""
        ...


def is_noisy(module: object) -> bool:
    """Report whether a module takes a key for its noise."""
    return getattr(module, "noisy", False) is True  # an `nnx.Rngs` has attributes of all names


def apply_module(module: Composable, x: PyTree, *rest: PyTree, key: Array | None) -> PyTree:
    """Compute `module(x, *rest)`, with the key if the module is noisy."""
    return module(x, *rest, key=key) if is_noisy(module) else module(x, *rest)


def keys_for(modules: Sequence[object], key: Array | None) -> list[Array | None]:
    """Return a key for each noisy module, and None for the others; without a key, None for all."""
    noisy = [is_noisy(module) for module in modules]
    if key is None or not any(noisy):
        return [None] * len(modules)
    keys = iter(jax.random.split(key, sum(noisy)))
    return [next(keys) if needs_key else None for needs_key in noisy]


def concatenate_features(modules: Sequence[Composable], inputs: Iterable[PyTree], key: Array | None) -> Array:
    """Apply each module to its own input and concatenate their features."""
    keys = keys_for(modules, key)
    parts = [apply_module(m, x, key=k) for m, x, k in zip(modules, inputs, keys, strict=True)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class Combined(nnx.Module):
    """Modules within one that passes a key to them."""

    @property
    def noisy(self) -> bool:
        """Whether one of the modules takes a key for its noise."""
        members = (x if isinstance(x, nnx.List) else [x] for x in vars(self).values())
        return any(map(is_noisy, itertools.chain.from_iterable(members)))


class Chain(Combined):
    """Modules in sequence: `Chain(f, g)(x)` is `g(f(x))`.

    The last may be a head; further arguments of a call, such as a mask of legal actions, are passed to it.

    Raises:
      ShoalError: the `in_features` of one are not the `out_features` of the one before.
    """

    def __init__(self, *modules: Composable):
        for index, (before, after) in enumerate(itertools.pairwise(modules)):
            given, expected = getattr(before, "out_features", None), getattr(after, "in_features", None)
            # Only where both say their widths: a torso may be any function.
            if None not in (given, expected) and given != expected:
                raise ShoalError(
                    f"{type(after).__name__}, module {index + 1} of a Chain, has in_features={expected}; it must "
                    f"be {given}, the out_features of the {type(before).__name__} before it."
                )
        self.modules: nnx.List[PyTree] = nnx.List(modules)

    @property
    def out_features(self) -> int:
        """Length of the features of the last module."""
        return self.modules[-1].out_features

    def __call__(self, x: PyTree, *rest: PyTree, key: Array | None = None) -> PyTree:
        """Apply the modules in sequence; the last one is also given `rest`."""
        *others, last = self.modules
        *keys, last_key = keys_for(self.modules, key)
        for module, k in zip(others, keys, strict=True):
            x = apply_module(module, x, key=k)
        return apply_module(last, x, *rest, key=last_key)


class Branches(Combined):
    """Several torsos on the same input; their features are concatenated.

    Two MLPs of one and of n outputs, for instance, are the two streams of a dueling network.
    """

    def __init__(self, *modules: Composable):
        self.modules: nnx.List[PyTree] = nnx.List(modules)

    @property
    def out_features(self) -> int:
        """Length of the features of all modules together."""
        return sum(module.out_features for module in self.modules)

    def __call__(self, x: PyTree, key: Array | None = None) -> Array:
        """Compute features [..., out_features] of inputs with leading axes [...]."""
        return concatenate_features(self.modules, [x] * len(self.modules), key)
