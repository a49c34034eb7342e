"""When a target network is moved, and how far: the settings and the step that algorithms with a replay share."""

from typing import ClassVar

import jax.numpy as jnp

from shoal.algos.learning.replay import ReplayConfig
from shoal.config import struct
from shoal.config.struct import parameter
from shoal.nets.targets import polyak
from shoal.types import Array, PyTree


@struct.struct
class TargetConfig:
    """Settings of the network from which targets are computed."""

    group: ClassVar[str] = "targets"

    target_network_frequency: int = parameter(500, low=1, high=100_000, group="most used")
    """Moves the target network once in this many environment steps, of all environments together."""
    tau: float = parameter(1.0, above=0.0, high=1.0)
    """Moves the target network this far towards the one that learns; 1 makes it a copy."""


def move(
    config: TargetConfig, replay: ReplayConfig, since: Array, target: PyTree, network: PyTree
) -> tuple[PyTree, Array]:
    """Move the target after a gradient step, as often as is due; return it and `since`.

    Args:
      since: environment steps times `gradient_steps` since it was moved, int32.
    """
    # Environment steps between two gradient steps and between two moves of the target, both times gradient_steps.
    since = since + replay.train_frequency
    period = config.target_network_frequency * replay.gradient_steps
    moves = since // period
    share = jnp.where(moves > 0, -jnp.expm1(moves * jnp.log1p(-config.tau)), 0.0)  # 1 - (1 - τ)^moves
    return polyak(target, network, share), since % period
