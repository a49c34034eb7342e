"""Application of all rules of a step, one after the other."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.grid.engine import rules
from shoal.envs.grid.engine.adjacency import ActionFlags, Neighbourhood, make_neighbourhood
from shoal.envs.grid.engine.board import read, write
from shoal.envs.grid.engine.rules import RuleTable
from shoal.types import Array
from shoal.xla import single_evaluation
from shoal.xla.sparse_updates import with_batch_rule

# In a batch on the CPU a group has this share of the environments, about as many as have a rule that holds.
GROUP_SHARE = 1 / 32
MIN_GROUP_SIZE = 16


class RuleInputs(NamedTuple):
    """The values that rules read in one step."""

    rules: RuleTable  # [R]
    places: Array  # int32 [8], the agent's neighbours and those of the cell in front
    flags: ActionFlags


class RuleOutputs(NamedTuple):
    """The values that rules change."""

    cells: Array  # uint16, all cells of the board's memory
    local_cells: Array  # uint16 [8], the cells at the inputs' places
    pocket: Array  # uint16 []


def apply_rules(inputs: RuleInputs, cells: Array, pocket: Array) -> tuple[Array, Neighbourhood, Array]:
    """Return all cells, the neighbourhood, and the pocket after all rules.

    On the CPU a batch computes only the environments in which a rule holds. A rule that does not hold changes
    nothing, so the first rule that holds is applied, then the first of those after it, until none is left.
    """
    outputs = with_batch_rule(_apply_in_order, _apply_in_batch)(inputs, cells, pocket)
    return outputs.cells, make_neighbourhood(outputs.local_cells, inputs.flags), outputs.pocket


def _apply_rule(
    inputs: RuleInputs, index: Array | int, local_cells: Array, pocket: Array
) -> tuple[Array, Array]:
    """Apply one rule to the cells nearby [8] and the pocket."""
    rule = RuleTable(*(column[index] for column in inputs.rules))
    neighbourhood, pocket = rules.apply_rule(
        rule, make_neighbourhood(local_cells, inputs.flags), pocket, inputs.flags
    )
    return jnp.stack([*neighbourhood.agent_neighbours, *neighbourhood.front_neighbours]), pocket


def _apply_in_order(inputs: RuleInputs, cells: Array, pocket: Array) -> RuleOutputs:
    """Apply one rule after the other."""
    local_cells = read(cells, inputs.places)
    for index in range(inputs.rules.kind.shape[0]):
        local_cells, pocket = _apply_rule(inputs, index, local_cells, pocket)
    return RuleOutputs(write(cells, inputs.places, local_cells), local_cells, pocket)


class Pending(NamedTuple):
    """Progress of an environment through its rules."""

    holds: Array  # bool [], true if one of the remaining rules holds
    start: Array  # int32 [], index of the first remaining rule


def _pending_rules(inputs: RuleInputs, start: Array, local_cells: Array, pocket: Array) -> Array:
    """Report which rules from `start` on hold, bool [R]."""
    hold = rules.match_rules(
        inputs.rules, make_neighbourhood(local_cells, inputs.flags), pocket, inputs.flags
    )
    return hold & (np.arange(hold.shape[0], dtype=np.int32) >= start)


def _apply_next(
    inputs: RuleInputs, start: Array, local_cells: Array, pocket: Array
) -> tuple[Pending, Array, Array]:
    """Apply the first rule that holds, of those from `start` on."""
    index = jnp.argmax(_pending_rules(inputs, start, local_cells, pocket)).astype(jnp.int32)
    local_cells, pocket = _apply_rule(inputs, index, local_cells, pocket)
    start = index + 1
    return (
        Pending(jnp.any(_pending_rules(inputs, start, local_cells, pocket)), start),
        local_cells,
        pocket,
    )


def _apply_in_batch(inputs: RuleInputs, cells: Array, pocket: Array) -> RuleOutputs:
    """Compute the same for a batch, [N, ...], one group of environments with a rule that holds at a time."""
    count, size = cells.shape
    group_size = min(count, max(MIN_GROUP_SIZE, int(count * GROUP_SHARE)))
    local_cells = single_evaluation.compute_once(
        inputs.places[:, 0] >= 0, jax.vmap(read), cells, inputs.places
    )
    start = jnp.zeros(count, jnp.int32)
    pending = Pending(jnp.any(jax.vmap(_pending_rules)(inputs, start, local_cells, pocket), axis=1), start)

    def apply_to_group(carry: tuple) -> tuple:
        pending, flat, local_cells, pocket = carry
        # Writing at `count` is dropped.
        group = jnp.nonzero(pending.holds, size=group_size, fill_value=count)[0]
        group_inputs = jax.tree.map(lambda x: x[group], (inputs, pending.start, local_cells, pocket))
        places = group[:, None] * size + group_inputs[0].places
        group_outputs = jax.vmap(_apply_next)(*group_inputs)
        pending, local_cells, pocket = jax.tree.map(
            lambda x, new: x.at[group].set(new, mode="drop"), (pending, local_cells, pocket), group_outputs
        )
        return pending, flat.at[places].set(group_outputs[1], mode="drop"), local_cells, pocket

    carry = (pending, cells.reshape(-1), local_cells, pocket)
    _, flat, local_cells, pocket = jax.lax.while_loop(
        lambda carry: jnp.any(carry[0].holds), apply_to_group, carry
    )
    return RuleOutputs(flat.reshape(count, size), local_cells, pocket)
