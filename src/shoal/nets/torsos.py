"""Torsos as modules: one of Shoal's own kinds of encoder, a class of your own, or several in a row."""

import dataclasses
from typing import Protocol

import jax
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError, nearest
from shoal.nets.composition import Chain
from shoal.nets.encoders.kinds import Encoder, Flatten, OneHot, Perceptron, PerceptronOfEach, SetEncoder
from shoal.nets.encoders.pictures import Convolutions, Residual
from shoal.nets.headed import HeadStyle
from shoal.nets.mlp import MLP
from shoal.nets.torso_choice import Kind, torsos_of
from shoal.nets.torso_config import CoreConfig, TorsoConfig
from shoal.types import Array, PyTree
from shoal.types.spaces import Box, Dict, Space

ENCODERS: dict[str, type[Encoder]] = {
    encoder.kind: encoder
    for encoder in (Flatten, OneHot, Perceptron, PerceptronOfEach, Convolutions, Residual, SetEncoder)
}


class UserModule(Protocol):
    """A torso of a user's own."""

    @property
    def num_features(self) -> int:
        """Length of the features."""
        ...

    def __call__(self, observation: PyTree) -> Array:
        """Compute the features [..., num_features] of observations with leading axes [...]."""
        ...


class UserTorso(nnx.Module):
    """A torso of a user's own, which is shown the entries of its space only."""

    def __init__(self, torso: UserModule, space: Space):
        # It may be a pytree of any class, which NNX would take for static.
        self.torso = nnx.data(torso)
        self.names = tuple(space) if isinstance(space, Dict) else ()

    @property
    def num_features(self) -> int:
        """Length of the features."""
        return self.torso.num_features

    @property
    def expects_repeats(self) -> bool:
        """Whether equal observations are worth a search; see `Encoder`."""
        return False

    def __call__(self, observation: PyTree) -> Array:
        """Compute the torso's features [..., num_features]."""
        return self.torso({x: observation[x] for x in self.names} if self.names else observation)


class TorsoRow(Chain):
    """Torsos in a row: the first encodes the observation, each other the features of the one before."""

    @property
    def num_features(self) -> int:
        """Length of the features of the last one."""
        return self.modules[-1].num_features

    @property
    def expects_repeats(self) -> bool:
        """Whether equal observations are worth a search; see `Encoder`."""
        return self.modules[0].expects_repeats


Torso = Encoder | UserTorso | TorsoRow


def encoder_of(kind: Kind, setting: str = "encoder") -> type[Encoder]:
    """Return the class of one of Shoal's own torsos.

    Raises:
      ShoalError: there is none of that name.
    """
    if kind.name not in ENCODERS:
        names = f"{', '.join(ENCODERS)}{nearest(kind.name, ENCODERS)}"
        raise ShoalError(f"{setting}={kind.name!r} is none of {names}.")
    return ENCODERS[kind.name]


def build(space: Space, encoder: object, config: TorsoConfig | None = None, *, key: Array) -> Torso:
    """Build one or several torsos, with `num_features` and a call from observations [...] to [..., num_features].

    Args:
      encoder: as `shoal.nets.torso_choice.choose` takes it.
      config: the settings of Shoal's own; None for the defaults.
    Raises:
      ShoalError: one cannot be built for the space.
    """
    torsos, built = torsos_of(encoder), list[Torso]()
    keys = jax.random.split(key, len(torsos)) if len(torsos) > 1 else [key]
    for torso, own_key, own_config in zip(
        torsos, keys, configs_of(torsos, config or TorsoConfig()), strict=True
    ):
        if isinstance(torso, Kind):
            built.append(encoder_of(torso)(space, own_config, key=own_key))
        else:
            built.append(UserTorso(torso.build(space, own_key), space))
        # These features are the observation of the next one.
        space = Box(-np.inf, np.inf, (built[-1].num_features,))
    return built[0] if len(built) == 1 else TorsoRow(*built)


def before_head(space: Space, config: CoreConfig, *, key: Array) -> tuple[Torso, tuple[int, ...], HeadStyle]:
    """Build the torso of a network without memory; return it, and the widths and the style of the layers of its head.

    The hidden layers are the head's. Where others follow them (`head_sizes`), they are a part of the torso.
    """
    torso = build(space, config.encoder, config, key=jax.random.split(key)[0])
    if not config.head_sizes:
        return torso, config.hidden_sizes, config.head_style
    layers = MLP(torso.num_features, config.hidden_sizes, key=jax.random.fold_in(key, 2), **config.style)
    return TorsoRow(torso, layers), config.head_sizes, config.style_after_torso


def configs_of(torsos: list, config: TorsoConfig) -> list[TorsoConfig]:
    """Return the settings of each torso of a row: only the last may end without an activation.

    With "mlp" among several, `encoder_features` are its widths only.
    """
    if len(torsos) == 1:
        return [config]
    is_mlp = [torso == Kind("mlp") for torso in torsos]
    widths = config.encoder_features
    inner = dataclasses.replace(config, torso_final_activation=True)
    return [
        dataclasses.replace(own, encoder_features=widths if mlp or not any(is_mlp) else None)
        for mlp, own in zip(is_mlp, [*[inner] * (len(torsos) - 1), config], strict=True)
    ]
