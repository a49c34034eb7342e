"""Exchanges of population-based training: bad members copy good ones, and change their settings.

Source: Jaderberg et al. 2017, "Population Based Training of Neural Networks" (truncation selection; perturbation by
the factors 0.8 and 1.25, or a new draw with probability 0.25).

Everything here is a pure function of a whole population, with an axis of members first. An exchange is one compiled
program, the only one that moves data between members. Its random numbers are a stream of each member's own key, counted
by exchanges, so that a run that is resumed draws the same; exchange 0 draws the first settings.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled

from shoal.config import struct
from shoal.engine.nonfinite import NOWHERE
from shoal.engine.population import member_layout as populations
from shoal.engine.run import ENV_AXIS, Run, Stream, stream_key
from shoal.records.pbt_settings import LINEAR, ONE_MINUS_LOG, Tuned, magnitude
from shoal.types import AlgorithmConfig, Array

C = TypeVar("C", bound=AlgorithmConfig)
T = TypeVar("T")  # a pytree of arrays

PARTS = 5  # the worst of this many equal parts of the population copies the best
FACTORS = (0.8, 1.25)
REDRAW = 0.25  # the probability of a new draw
# The parts of a Run that stay at a member's place in the population, and those that all members share.
NOT_COPIED = (
    *("key", "best", "evaluated"),
    *("environment", "evaluation_environment", "total_updates", "evaluation", "settings"),
)

Values = dict[str, Array]  # by the names of the tuned settings, [members]
Leaves = Mapping[str, Sequence[str]]  # the leaves of the config that have the value of each tuned setting


class Exchanged(NamedTuple):
    """The result of an exchange, for each member.

    Attributes:
      parent: the member that it continues; itself if it copied none.
    """

    parent: Array
    before: Values
    after: Values


def select_parents(scores: Array, places: Array, ties: Array) -> Array:
    """Choose each member's parent by truncation selection: the worst fifth copies the best fifth.

    Members are sorted by score, equal ones in a random order: where rewards are seldom all scores are 0 at first, and
    the same members would copy each time. A member whose score is not finite has failed: it copies in any case, since
    it would not train any further, and is not copied.

    Args:
      places: uniform in [0, 1), [members]: which of the best fifth a member copies.
      ties: uniform in [0, 1), [members]: of members with equal scores, that with the lower number is the better.
    Returns:
      indices of members, [members]; a member that copies none has its own.
    """
    members = scores.shape[0]
    count = members // PARTS
    scores = jnp.where(jnp.isfinite(scores), scores, -jnp.inf)
    order = jnp.lexsort((ties, -scores))
    rank = jnp.zeros(members, jnp.int32).at[order].set(jnp.arange(members, dtype=jnp.int32))
    has_failed = scores == -jnp.inf
    among = jnp.clip(members - jnp.sum(has_failed), 1, count)  # a parent has not failed
    chosen = order[jnp.minimum((places * among).astype(jnp.int32), among - 1)]
    copies = ((rank >= members - count) | has_failed) & ~has_failed[chosen]
    return jnp.where(copies, chosen, jnp.arange(members))


def from_unit(tuned: Tuned, bounds: tuple[float, float], u: Array) -> Array:
    """Map a number of [0, 1) to a value between bounds, uniform on the setting's scale."""
    is_linear = tuned.scale == LINEAR
    first, last = bounds if is_linear else (math.log(magnitude(tuned.scale, bound)) for bound in bounds)
    value = first + (last - first) * u
    return jnp.clip(value if is_linear else magnitude(tuned.scale, jnp.exp(value)), *bounds)


def perturb(tuned: Tuned, value: Array, factor: Array) -> Array:
    """Multiply a value by a factor, clipped to the bounds of the setting.

    On the scale "one-minus-log" 1-x is divided by it: the factor is that of the horizon 1/(1-x) of a discount, which
    for the discount itself would leave the bounds at once.
    """
    changed = 1.0 - (1.0 - value) / factor if tuned.scale == ONE_MINUS_LOG else value * factor
    return jnp.clip(changed, tuned.low, tuned.high)


def explore(tuned: Tuned, value: Array, draws: Array) -> Array:
    """Change a value: by one of two factors, or by a new draw; `draws` are uniform in [0, 1), [3, ...]."""
    factor = jnp.where(draws[1] < 0.5, *FACTORS)
    drawn = from_unit(tuned, (tuned.low, tuned.high), draws[2])
    return jnp.where(draws[0] < REDRAW, drawn, perturb(tuned, value, factor))


def uniform_draws(keys: Array, number: Array | int, settings: int) -> Array:
    """Draw the random numbers of an exchange.

    Returns:
      uniform in [0, 1), [members, 2 + 3 settings]: one for the parent, three for each setting, one for ties.
    """
    return jax.vmap(
        lambda key: jax.random.uniform(stream_key(key, Stream.EXCHANGE, number), (2 + 3 * settings,))
    )(keys)


def exchange_settings(
    tuned: Sequence[Tuned], values: Values, scores: Array, draws: Array, number: Array | int
) -> Exchanged:
    """Choose parents, and change the settings of the members that copy; exchange 0 draws all members' settings."""
    is_first = jnp.asarray(number) == 0
    own = jnp.arange(scores.shape[0])
    parent = jnp.where(is_first, own, select_parents(scores, draws[:, 0], draws[:, -1]))
    after = {}
    for index, setting in enumerate(tuned):
        of_setting = draws[:, 1 + 3 * index : 4 + 3 * index].T
        value = values[setting.name]
        first = from_unit(setting, setting.start, of_setting[2])
        later = jnp.where(parent == own, value, explore(setting, value[parent], of_setting))
        after[setting.name] = jnp.where(is_first, first, later).astype(value.dtype)
    return Exchanged(parent, values, after)


def exchange(
    population: Run,
    scores: Array,
    number: Array | int,
    tuned: Sequence[Tuned],
    leaves: Leaves,
    mesh: Mesh | None = None,
) -> tuple[Run, Exchanged]:
    """Exchange between the members of a population that has been evaluated.

    A member that copies takes over everything of its parent but the key: learner, environments, memory, counters. Its
    best policy so far, the score of that, and what it had learned at its last evaluation stay.
    """
    values = values_of(population.config, leaves)
    draws = uniform_draws(population.key, number, len(tuned))
    scores = jnp.where(population.fault == NOWHERE, scores, -jnp.inf)
    exchanged = exchange_settings(tuned, values, scores, draws, number)
    copied = [field.name for field in dataclasses.fields(population) if field.name not in NOT_COPIED]
    parts = {name: getattr(population, name) for name in copied}
    copy: Callable = with_copies
    if mesh is not None:
        spec = P(populations.MEMBER_AXIS, ENV_AXIS)
        axis = (populations.MEMBER_AXIS,) if mesh.shape[populations.MEMBER_AXIS] > 1 else ()
        copy = functools.partial(with_copies, axis=axis)
        copy = jax.shard_map(copy, mesh=mesh, in_specs=(spec, P()), out_specs=spec, check_vma=False)
    local = copy(population.learner.local, exchanged.parent)
    parts["learner"] = population.learner._replace(local=())
    parts = jax.tree.map(lambda x: x[exchanged.parent], parts)
    parts["learner"] = parts["learner"]._replace(local=local)
    parts["config"] = with_values(parts["config"], exchanged.after, leaves)
    return dataclasses.replace(population, **parts), exchanged


def with_copies(tree: T, parent: Array, axis: tuple[str, ...] = ()) -> T:
    """Give each member that has another parent, which copies none itself, the values of that parent.

    One member after the other is written in its place, so that no second array is made of a replay.

    Args:
      tree: arrays [members, ...]; those of one device, if an axis is named over which members are distributed.
      parent: of all members, [members].
    """
    copies = parent != jnp.arange(len(parent))
    first_those = jnp.argsort(~copies)

    def copied(x: Array, parent: Array, child: Array) -> Array:
        device = jax.lax.axis_index(axis) if axis else 0
        first = device * len(x)
        taken, kept = (jax.lax.dynamic_index_in_dim(x, k - first, keepdims=False) for k in (parent, child))
        if axis:
            bits, from_bits = _as_bits(taken)
            sent = jnp.where(parent // len(x) == device, bits, jnp.zeros_like(bits))
            taken = from_bits(jax.lax.psum(sent, axis))
            taken = jnp.where(child // len(x) == device, taken, kept)
        return jax.lax.dynamic_update_index_in_dim(x, taken, child - first, 0)

    def copy(index: Array, tree: T) -> T:
        child = first_those[index]
        return jax.tree.map(lambda x: copied(x, parent[child], child), tree)

    return jax.lax.fori_loop(0, jnp.sum(copies), copy, tree)


def _as_bits(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return integers that stand for any values, -0.0 and NaN included, and the function that converts them back."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        implementation = jax.random.key_impl(x)
        return jax.random.key_data(x), lambda bits: jax.random.wrap_key_data(bits, impl=implementation)
    if jnp.issubdtype(x.dtype, jnp.floating):
        bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
        return bits, lambda bits: jax.lax.bitcast_convert_type(bits, x.dtype)
    return x.astype(jnp.uint8) if x.dtype == bool else x, lambda bits: bits.astype(x.dtype)


def values_of(config: AlgorithmConfig, leaves: Leaves) -> Values:
    """Return the values of settings from a config."""
    found = struct.named_leaves(config)
    return {name: found[names[0]] for name, names in leaves.items()}


def with_values(config: C, values: Mapping[str, Array], leaves: Leaves) -> C:
    """Replace the values of settings in all leaves of a config that have them."""
    changed = {leaf: values[name] for name, names in leaves.items() for leaf in names}
    return struct.with_named_leaves(config, struct.named_leaves(config) | changed)


def compile_exchange(
    shapes: Run, layout: populations.Layout, tuned: Sequence[Tuned], leaves: Leaves
) -> Compiled:
    """Compile (population, scores, number) -> (population, Exchanged); the population's buffers are donated."""

    def program(population: Run, scores: Array, number: Array) -> tuple[Run, Exchanged]:
        return exchange(population, scores, number, tuned, leaves, layout.mesh)

    everywhere = jax.sharding.NamedSharding(layout.mesh, P())
    placed = jax.tree.map(lambda x: x.sharding, shapes)
    compiled = jax.jit(program, donate_argnums=0, out_shardings=(placed, everywhere))
    scores = jax.ShapeDtypeStruct(shapes.updates.shape, jnp.float32, sharding=everywhere)
    number = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    return compiled.lower(shapes, scores, number).compile(layout.compiler_options)
