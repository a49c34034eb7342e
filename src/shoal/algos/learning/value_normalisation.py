"""Normalisation of the critic by running moments of its targets (`norm_value`).

With it the critic's output is a value in units of the targets' standard deviation, from their mean. Advantages,
targets and metrics are computed from denormalised outputs, in the units of the rewards; the value loss, its clip
included, compares outputs with normalised targets.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shoal.nets.networks import rescale_value_layer
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array

if TYPE_CHECKING:
    from shoal.algos.ppo import Shared
    from shoal.algos.ppo_config import PPOConfig


def denormalise(moments: RunningMoments | None, output: Array) -> Array:
    """Convert the critic's outputs to the units of the rewards; without moments they are in these."""
    return output if moments is None else statistics.denormalise(moments, output)


def normalise(moments: RunningMoments | None, value: Array) -> Array:
    """Convert values to the units of the critic's outputs, unbounded; without moments these are those of the rewards.

    The standard deviation is at least 1e-4, as in Hessel et al. 2018.
    """
    return value if moments is None else statistics.normalise(moments, value, clip=math.inf)


def normalise_targets(
    config: PPOConfig, axis: tuple[str, ...], shared: Shared, output: Array, target: Array, weight: Array
) -> tuple[Shared, Array, Array]:
    """Add a rollout's targets to the moments, and return outputs and targets as the value loss compares them.

    As in the code of Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", the
    targets enter the moments first and are normalised by the new ones. With "popart" the value's last layer is rescaled
    so that no denormalised output changes (van Hasselt et al. 2016, "Learning Values across Many Orders of Magnitude";
    Hessel et al. 2018, "Multi-task Deep Reinforcement Learning with PopArt").

    Args:
      shared: of the learner; returned with the new moments, and with "popart" another network.
      output: of the critic, [T, N].
      target: in the units of the rewards, [T, N].
      weight: of the transitions, [T, N].
    """
    if shared.value is None:
        return shared, output, target
    # Before they normalise, so that the first rollout is not normalised by moments of nothing.
    moments = statistics.update_moments(shared.value, target, weight, axis_name=axis)
    if config.norm_value == "popart":
        shared = shared._replace(network=rescale_value_layer(shared.network, shared.value, moments))
        output = normalise(moments, denormalise(shared.value, output))
    return shared._replace(value=moments), output, normalise(moments, target)
