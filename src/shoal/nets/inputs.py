"""Input layers: arrays, dictionaries of arrays, and discrete actions as vectors.

`shoal.nets.encoders.Encoder` makes one vector of an observation of any space; these layers are for networks that
are composed by hand.
"""

import math
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets.composition import Combined, Composable, concatenate_features
from shoal.types import PyTree
from shoal.types.spaces import Discrete, MultiDiscrete, Space

Array = jax.Array


class ArrayInput(nnx.Module):
    """An array converted to float32, divided by a number and optionally flattened.

    Args:
      divisor: the number; 255 scales the bytes of an image to [0, 1].
    """

    def __init__(self, shape: Sequence[int] = (), *, divisor: float = 1.0, flatten: bool = True):
        self.shape = tuple(shape)
        self.divisor = float(divisor)
        self.flatten = flatten

    @property
    def out_features(self) -> int:
        """Number of entries of one input."""
        return math.prod(self.shape)

    def __call__(self, x: Array) -> Array:
        """Convert [..., *shape] of any real dtype to float32 [..., out_features], or of the same shape."""
        x = jnp.asarray(x)
        batch_shape = leading_shape("x", x, self.shape)
        x = x.astype(jnp.float32) / self.divisor
        return x.reshape(*batch_shape, self.out_features) if self.flatten else x


class OneHotInput(nnx.Module):
    """A discrete action encoded as one-hot vectors, one for each of its parts.

    A value out of range, such as -1 for "no action yet", gives zeros.

    Args:
      sizes: the number of values, or one such number for each part of a multi-discrete action.
    """

    def __init__(self, sizes: int | Sequence[int]):
        self.several = not isinstance(sizes, int)
        self.sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)

    @property
    def out_features(self) -> int:
        """Sum of the sizes."""
        return sum(self.sizes)

    def columns(self, x: Array) -> list[Array]:
        """Return the integers of each part, [...] each.

        Raises:
          ShoalError: x is not of integers, or lacks the axis of parts.
        """
        x = jnp.asarray(x)
        # A float that is no whole number would be encoded as zeros.
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ShoalError(f"x is {x.dtype}; one-hot vectors and embeddings need integers.")
        if not self.several:
            return [x]
        leading_shape("x", x, (len(self.sizes),))
        return [x[..., i] for i in range(len(self.sizes))]

    def __call__(self, x: Array) -> Array:
        """Encode integers [...] ([..., parts] if there are several sizes) as float32 [..., out_features]."""
        return one_hots(self.columns(x), self.sizes)


class EmbeddingInput(OneHotInput):
    """A discrete action encoded as learned vectors, from one table for each of its parts.

    A value out of range, such as -1 for "no action yet", gives zeros. The lookup is the product of a one-hot
    vector and the table, so that its gradient is a product too; the gradient of a gather would be a scatter.

    Args:
      sizes: the number of values, or one such number for each part of a multi-discrete action.
      scale: standard deviation of the initial entries, which are normal.
    """

    def __init__(self, sizes: int | Sequence[int], features: int, *, scale: float = 1.0, key: Array):
        super().__init__(sizes)
        self.features = features
        table = scale * jax.random.normal(key, (sum(self.sizes), features))
        # Each part's rows are a parameter of their own, but drawn together.
        self.tables = nnx.List(map(nnx.data, jnp.split(table, np.cumsum(self.sizes)[:-1].tolist())))

    @property
    def out_features(self) -> int:
        """Length of the vectors of all parts together."""
        return len(self.sizes) * self.features

    def __call__(self, x: Array) -> Array:
        """Encode integers [...] ([..., parts] if there are several sizes) as float32 [..., out_features]."""
        tables = zip(self.columns(x), self.sizes, self.tables, strict=True)
        parts = [jax.nn.one_hot(column, n, dtype=jnp.float32) @ table for column, n, table in tables]
        return jnp.concatenate(parts, axis=-1)


class Inputs(Combined):
    """Several arguments with a torso for each; their features are concatenated in the order of the arguments.

    `Inputs(MLP(...), EmbeddingInput(...))` takes an observation and a previous action.

    Raises:
      ShoalError: in a call, a number of arguments that is not the number of torsos.
    """

    def __init__(self, *torsos: Composable):
        self.torsos: nnx.List[PyTree] = nnx.List(torsos)

    @property
    def out_features(self) -> int:
        """Length of the features of all torsos together."""
        return sum(torso.out_features for torso in self.torsos)

    def __call__(self, *inputs: PyTree, key: Array | None = None) -> Array:
        """Encode inputs with the same leading axes [...] as features [..., out_features]."""
        if len(inputs) != len(self.torsos):
            raise ShoalError(
                f"{len(inputs)} inputs were given; they must be {len(self.torsos)}, one for each torso."
            )
        return concatenate_features(self.torsos, inputs, key)


class DictInput(Inputs):
    """A dictionary of inputs with a torso for each; their features are concatenated in the order of the
    names. An input without a torso is ignored.
    """

    def __init__(self, torsos: Mapping[str, Composable]):
        self.names = tuple(sorted(torsos))
        super().__init__(*(torsos[name] for name in self.names))

    def __call__(  # type: ignore[override]
        self, inputs: Mapping[str, PyTree], key: Array | None = None
    ) -> Array:
        """Encode a dictionary of inputs with leading axes [...] as features [..., out_features]."""
        return super().__call__(*(inputs[name] for name in self.names), key=key)


def leading_shape(name: str, x: Array, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the leading axes of an array whose last axes are `shape`.

    Raises:
      ShoalError: the array's last axes are not `shape`.
    """
    split = x.ndim - len(shape)
    if split < 0 or x.shape[split:] != shape:
        raise ShoalError(f"{name} has shape {x.shape}, which must end in {shape}.")
    return x.shape[:split]


def one_hots(columns: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Encode integers [...] as concatenated one-hot vectors of these sizes, float32 [..., sum(sizes)]."""
    parts = [jax.nn.one_hot(column, n, dtype=jnp.float32) for column, n in zip(columns, sizes, strict=True)]
    return jnp.concatenate(parts, axis=-1)


def num_action_features(space: Space) -> int:
    """Count the numbers that `action_features` makes of an action."""
    if isinstance(space, Discrete):
        return space.n
    return sum(space.nvec) if isinstance(space, MultiDiscrete) else math.prod(space.shape)  # type: ignore[union-attr]


def action_features(space: Space, raw: Array) -> Array:
    """Show raw actions [...] to a network, [..., num_action_features]: one-hot, or the numbers of a Box as they are."""
    # The numbers of discrete actions have no order and no distances.
    if isinstance(space, Discrete):
        return one_hots([raw], [space.n])
    if isinstance(space, MultiDiscrete):
        return one_hots([raw[..., i] for i in range(len(space.nvec))], space.nvec)
    return raw
