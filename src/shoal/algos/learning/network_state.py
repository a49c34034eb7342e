"""The state of a network (`shoal.nets.stateful`) through the gradient steps of an update."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax

from shoal.algos.learning import optimisers
from shoal.config import struct
from shoal.config.struct import parameter
from shoal.nets import stateful
from shoal.types import Array, PyTree

Loss = Callable[..., tuple]
_STREAM = (
    2**20
)  # the device's key is also split into one for the order of each epoch, of which there are fewer


@struct.struct
class NetworkModeConfig:
    """The setting of networks with state."""

    network_mode: Literal["train", "eval"] = parameter("train", group="optimisation")
    """Computes the loss of a network with state (nnx.Dropout, nnx.BatchNorm) in this mode: train drops units and takes
    the statistics of each minibatch; eval computes as acting does, and leaves running statistics as they are."""


class NetworkState(NamedTuple):
    """Statistics and the key that a gradient step in the mode train reads and changes, besides parameters."""

    statistics: dict[str, Array]
    key: Array  # the next steps' keys are drawn from it


State = NetworkState | tuple[()]
"""() where the network has no state, or its loss is computed in the mode eval."""


def initial(config: NetworkModeConfig, network: PyTree, key: Array) -> State:
    """Return the state before the first gradient step of an update, given the device's own key."""
    if config.network_mode == "eval" or not stateful.has_state(network):
        return ()
    return NetworkState(stateful.statistics_of(network), jax.random.fold_in(key, _STREAM))


def in_mode(loss: Loss, state: State, axis: tuple[str, ...]) -> Loss:
    """Return a loss of a network and rows in the mode train, which returns the new statistics too; or as it is."""
    if not isinstance(state, NetworkState):
        return loss

    def of_copy(network: PyTree, rows: PyTree) -> tuple:
        key = jax.random.fold_in(state.key, 0)
        copy = stateful.training(network, state.statistics, key, rows.weight > 0, axis)
        outputs = loss(copy, rows)
        statistics = stateful.statistics_of(copy)
        # Those of layers that know of no devices differ between them.
        return *outputs, jax.lax.pmean(statistics, axis) if axis else statistics

    return of_copy


def chunk_rows(state: State, rows: int) -> int:
    """Return how many rows' gradient is computed at once: all of a minibatch (0) in the mode train, whose statistics
    and dropped units are those of the whole; else `rows`."""
    return 0 if isinstance(state, NetworkState) else rows


def following(state: State, statistics: list[dict[str, Array]]) -> State:
    """Return the state of the next gradient step, given what a loss `in_mode` returned besides its means."""
    if not isinstance(state, NetworkState):
        return state
    return NetworkState(statistics[0], jax.random.fold_in(state.key, 1))


def of_active(
    active: dict[str, Array], statistics: list[dict[str, Array]], state: State
) -> list[dict[str, Array]]:
    """Keep the statistics of before in the parts that a gradient step does not change (`select_active`)."""
    if not isinstance(state, NetworkState):
        return statistics
    return [optimisers.select_active(active, x, state.statistics) for x in statistics]


def merged(network: PyTree, state: State) -> PyTree:
    """Return a network with the statistics of a state."""
    return stateful.with_statistics(network, state.statistics) if isinstance(state, NetworkState) else network
