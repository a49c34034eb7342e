"""Normalisation of the critic by running moments of its targets: functions with one signature, by name.

With it the critic's output is a value in units of the targets' standard deviation, from their mean. Advantages,
targets and metrics are computed from denormalised outputs, in the units of the rewards; the value loss, its clip
included, compares outputs with normalised targets.

A function is called once for each rollout. It takes the axis that statistics are reduced over, the learner's shared
part, the critic's outputs [T, N], the targets in the units of the rewards [T, N], and the weights of the transitions.
It returns the shared part with what has changed, and outputs and targets as the value loss compares them. As in the
code of Yu et al. 2022, "The Surprising Effectiveness of PPO in Cooperative Multi-Agent Games", the targets enter the
moments first and are normalised by the new ones.
"""

import math
from typing import Any

import jax

from shoal.config import struct
from shoal.ops import statistics
from shoal.ops.statistics import RunningMoments
from shoal.types import Array, PyTree

# The last layer of the value in each of Shoal's own networks, by the name of its leaves.
VALUE_LAYER = "critic/mlp/projection/0/"


def denormalise(moments: RunningMoments | None, output: Array) -> Array:
    """Convert the critic's outputs to the units of the rewards; without moments they are in these."""
    return output if moments is None else statistics.denormalise(moments, output)


def normalise(moments: RunningMoments | None, value: Array) -> Array:
    """Convert values to the units of the critic's outputs, unbounded; without moments these are those of the rewards.

    The standard deviation is at least 1e-4, as in Hessel et al. 2018.
    """
    return value if moments is None else statistics.normalise(moments, value, clip=math.inf)


def none(
    axis: tuple[str, ...], shared: Any, output: Array, target: Array, weight: Array
) -> tuple[Any, Array, Array]:
    """Change nothing: the critic's outputs are values."""
    return shared, output, target


def running(
    axis: tuple[str, ...], shared: Any, output: Array, target: Array, weight: Array
) -> tuple[Any, Array, Array]:
    """Add the targets to the moments and normalise them; what the same output means changes with the moments."""
    moments = statistics.update_moments(shared.value, target, weight, axis_name=axis)
    return shared._replace(value=moments), output, normalise(moments, target)


def popart(
    axis: tuple[str, ...], shared: Any, output: Array, target: Array, weight: Array
) -> tuple[Any, Array, Array]:
    """Add the targets to the moments, and rescale the value's last layer so that no denormalised output changes.

    Source: van Hasselt et al. 2016, "Learning Values across Many Orders of Magnitude"; Hessel et al. 2018, "Multi-task
    Deep Reinforcement Learning with PopArt".
    """
    moments = statistics.update_moments(shared.value, target, weight, axis_name=axis)
    network = rescale_value_layer(shared.network, shared.value, moments)
    output = normalise(moments, denormalise(shared.value, output))
    return shared._replace(value=moments, network=network), output, normalise(moments, target)


NORMALISATIONS = {"none": none, "running": running, "popart": popart}


def rescale_value_layer(network: PyTree, old: RunningMoments, new: RunningMoments) -> PyTree:
    """Change the last layer of the value so that its denormalised outputs stay the same under new moments.

        W' = W σ/σ',   b' = (b σ + μ - μ')/σ',   so that   σ' (W' x + b') + μ' = σ (W x + b) + μ

    The optimiser's state stays as it is.

    Args:
      network: one of Shoal's own.
      old: moments with mean μ and standard deviation σ, by which outputs were denormalised.
      new: those of μ' and σ', by which they will be.

    Returns:
      the network with other parameters in that layer.
    """
    deviation = statistics.standard_deviation(new)
    ratio = statistics.standard_deviation(old) / deviation
    shift = ((old.mean - new.mean) + (old.residual[1] - new.residual[1])) / deviation

    def rescale(path: tuple, leaf: Array) -> Array:
        name = struct.path_name(path)
        if name == f"{VALUE_LAYER}kernel":
            return leaf * ratio
        return leaf * ratio + shift if name == f"{VALUE_LAYER}bias" else leaf

    return jax.tree_util.tree_map_with_path(rescale, network)
