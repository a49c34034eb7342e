"""Putting torsos together: one after the other, side by side, and before and after a recurrent core.

A torso is anything that maps arrays with leading axes [...] to features [..., out_features]. One whose
class has `noisy = True` is called with a key for its noise as well; what is built of such a torso takes the
key as `key=` and hands each noisy part one of its own.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.errors import ShoalError
from shoal.types import Memory, PyTree

Array = jax.Array


class Torso(Protocol):
    """What every torso is."""

    @property
    def out_features(self) -> int:
        """Length of the feature vector."""
        ...

    def __call__(self, x: PyTree) -> Array:
        """Inputs with leading axes [...] -> [..., out_features]."""
        ...


@runtime_checkable
class Core(Protocol):
    """What stands between two torsos and remembers; time is the first axis."""

    @property
    def out_features(self) -> int:
        """Length of what comes out at each step."""
        ...

    def initial(self, batch_shape: tuple[int, ...]) -> Memory:
        """The memory of a core that has just begun, with leading axes `batch_shape`."""
        ...

    def __call__(self, memory: Memory, x: Array, first: Array) -> tuple[Memory, Array]:
        """Memory [...], x [T, ..., in], first [T, ...] -> memory after the last step, [T, ..., out]."""
        ...


def is_noisy(module: Any) -> bool:
    """Whether a module takes a key for its noise."""
    return bool(getattr(module, "noisy", False))


def apply_module(module: Any, x: PyTree, *rest: Any, key: Array | None) -> Any:
    """`module(x, *rest)`, with the key where the module is noisy."""
    return module(x, *rest, key=key) if is_noisy(module) else module(x, *rest)


def keys_for(modules: Sequence[Any], key: Array | None) -> list[Array | None]:
    """A key for each noisy module, None for the others; None for all without a key."""
    noisy = [is_noisy(module) for module in modules]
    if key is None or not any(noisy):
        return [None] * len(modules)
    keys = iter(jax.random.split(key, sum(noisy)))
    return [next(keys) if needs_key else None for needs_key in noisy]


def concatenate_features(modules: Sequence[Any], inputs: Iterable[PyTree], key: Array | None) -> Array:
    """Each input through its own module, and the features one after the other."""
    keys = keys_for(modules, key)
    parts = [apply_module(m, x, key=k) for m, x, k in zip(modules, inputs, keys, strict=True)]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


class Chain(nnx.Module):
    """Modules one after the other: `Chain(f, g)(x)` is `g(f(x))`.

    The last may be a head; what is given beside x, such as a mask of legal actions, goes to it.

    Args:
      modules: at least one.

    Raises:
      ShoalError: no module, or one whose `in_features` are not the `out_features` of the one before.
    """

    def __init__(self, *modules: Any):
        if not modules:
            raise ShoalError("a Chain has 0 modules; it must have 1 or more.")
        for index, (before, after) in enumerate(itertools.pairwise(modules)):
            given, expected = getattr(before, "out_features", None), getattr(after, "in_features", None)
            if None not in (given, expected) and given != expected:
                raise ShoalError(
                    f"{type(after).__name__}, module {index + 1} of a Chain, has in_features={expected}; it must "
                    f"be {given}, the out_features of the {type(before).__name__} before it."
                )
        self.modules = nnx.List(modules)

    @property
    def noisy(self) -> bool:
        """Whether one of the modules is."""
        return any(is_noisy(module) for module in self.modules)

    @property
    def out_features(self) -> int:
        """Of the last module."""
        return self.modules[-1].out_features

    def __call__(self, x: PyTree, *rest: Any, key: Array | None = None) -> Any:
        """What the last module gives, which is called with `rest` too."""
        *others, last = self.modules
        *keys, last_key = keys_for(self.modules, key)
        for module, k in zip(others, keys, strict=True):
            x = apply_module(module, x, key=k)
        return apply_module(last, x, *rest, key=last_key)


class Branches(nnx.Module):
    """Several torsos upon the same input, their features one after the other.

    Two MLPs of one and of n outputs, for instance, are the two streams of a dueling network.

    Args:
      modules: at least one.

    Raises:
      ShoalError: no module.
    """

    def __init__(self, *modules: Any):
        if not modules:
            raise ShoalError("Branches have 0 modules; they must have 1 or more.")
        self.modules = nnx.List(modules)

    @property
    def noisy(self) -> bool:
        """Whether one of the modules is."""
        return any(is_noisy(module) for module in self.modules)

    @property
    def out_features(self) -> int:
        """Of all together."""
        return sum(module.out_features for module in self.modules)

    def __call__(self, x: PyTree, key: Array | None = None) -> Array:
        """Inputs with leading axes [...] -> [..., out_features]."""
        return concatenate_features(self.modules, [x] * len(self.modules), key)


class IdentityCore(nnx.Module):
    """The core of a network that remembers nothing: what comes in goes out."""

    def __init__(self, in_features: int):
        self.in_features = in_features
        self.out_features = in_features

    def initial(self, batch_shape: tuple[int, ...]) -> Memory:
        """Nothing: ()."""
        return ()

    def __call__(self, memory: Memory, x: Array, first: Array) -> tuple[Memory, Array]:
        """The same memory and x."""
        return memory, x


class RecurrentChain(nnx.Module):
    """A torso before a core and one after it (a head, if it likes).

    The torsos take all steps at once, [T, ...]; only the core goes through them in order.

    Args:
      before: from observations to what the core takes.
      core: a `Core`.
      after: from what the core gives to what is wanted.
    """

    def __init__(self, before: Any, core: Any, after: Any):
        Chain(before, core, after)  # checks that the widths fit
        self.before = before
        self.core = core
        self.after = after

    @property
    def noisy(self) -> bool:
        """Whether one of the torsos is."""
        return is_noisy(self.before) or is_noisy(self.after)

    @property
    def out_features(self) -> int:
        """Of the torso after the core."""
        return self.after.out_features

    def initial(self, batch_shape: tuple[int, ...]) -> Memory:
        """The core's."""
        return self.core.initial(batch_shape)

    def __call__(
        self, memory: Memory, x: PyTree, first: Array, *rest: Any, key: Array | None = None
    ) -> tuple[Memory, Any]:
        """Memory [...], inputs [T, ...], first [T, ...] -> memory and what `after` gives of [T, ...]."""
        before_key, after_key = keys_for((self.before, self.after), key)
        memory, x = self.core(memory, apply_module(self.before, x, key=before_key), first)
        return memory, apply_module(self.after, x, *rest, key=after_key)
