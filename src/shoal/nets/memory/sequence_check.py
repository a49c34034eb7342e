"""Check a network with memory, with one sentence for an error: shapes, clearing, and one step against many."""

from typing import Any

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets.inputs import num_action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.output_check import check_action_values, check_policy, check_value
from shoal.types import EnvSpec, PyTree

Array = jax.Array
STEPS, SEQUENCES, RESET = 6, 2, 3  # of the rollout that is replayed; sequence 0 restarts at step RESET
TOLERANCE = 1e-3


def sequence_modules(network: Any) -> dict[str, Any]:
    """Return the sequence modules of a network by name; empty if it has no memory."""
    parts = {name: getattr(network, name, None) for name in ("actor", "critic")}
    if sequences.is_joint(network):
        return {"it": network} | ({"actor": parts["actor"]} if hasattr(parts["actor"], "apply") else {})
    return parts if any(hasattr(part, "apply") for part in parts.values()) else {}


def check_sequences(
    network: Any, spec: EnvSpec, name: str, kind: str = "", *, action: bool, reward: bool
) -> None:
    """Require that a network's sequence modules keep the protocol of `shoal.nets.memory.sequences`.

    Args:
      kind: of a network of action values, what its settings declare in `values`; empty for an actor-critic.
    Raises:
      ShoalError: a module lacks a method; gives another memory than it takes, or other outputs than its part is for;
        depends on steps from before `first`; or gives other outputs step by step than over several steps.
    """
    modules = sequence_modules(network)
    for part, module in modules.items():
        for method in ("initial", "apply"):
            if not callable(getattr(module, method, None)):
                raise ShoalError(
                    f"{name} lacks the method {_member(part, method)}; a network with memory needs initial and "
                    "apply, of itself or of its actor and its critic."
                )
    key = jax.random.key(0)
    shown = jax.eval_shape(lambda key: _rollout(spec, key, action, reward), key)
    for part, module in modules.items():
        _check_shapes(module, spec, name, part, kind, shown)
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape, x.dtype), network)
    for part, module in sequence_modules(moved).items():
        _check_replay(module, name, part, spec, (action, reward))


def _check_shapes(module: Any, spec: EnvSpec, name: str, part: str, kind: str, shown: NetworkInputs) -> None:
    """Require that a module keeps its memory's shapes, and that its outputs are those that its part is for."""
    memory = jax.eval_shape(lambda module: module.initial((SEQUENCES,)), module)
    for leaf_name, leaf in named_leaves(memory).items():
        if leaf.shape[:1] != (SEQUENCES,):
            raise ShoalError(
                f"{name} has a memory whose {_leaf(part, leaf_name)} is of shape {leaf.shape} for {SEQUENCES} "
                f"sequences; {_member(part, 'initial')}(batch_shape) must give arrays [*batch_shape, ...]."
            )

    def run(module: Any, memory: PyTree, shown: NetworkInputs) -> PyTree:
        result = module.apply(memory, shown, shown.first)
        if not isinstance(result, tuple) or len(result) != 2:
            raise ShoalError(
                f"{name} has a method {_member(part, 'apply')} that returns a {type(result).__name__}; it must return "
                "(memory, output)."
            )
        _check_output(result[1], spec, name, part, kind)
        return result[0]

    _check_memory(memory, jax.eval_shape(run, module, memory, shown), name, part)


def _check_memory(before: PyTree, after: PyTree, name: str, part: str) -> None:
    """Require that a memory has the same structure, shapes and dtypes after the steps as before."""
    then, now = named_leaves(before), named_leaves(after)
    for leaf_name in [*then, *(now.keys() - then.keys())]:
        old, new = then.get(leaf_name), now.get(leaf_name)
        texts = [f"{x.dtype}{list(x.shape)}" if x is not None else "absent" for x in (old, new)]
        if texts[0] != texts[1]:
            raise ShoalError(
                f"{name} has a memory whose {_leaf(part, leaf_name)} is {texts[0]} before a step and {texts[1]} after "
                "it; it must keep its structure, shapes and dtypes."
            )


def _check_output(output: Any, spec: EnvSpec, name: str, part: str, kind: str) -> None:
    """Require that the output of a module is what its part, or a network of action values, is for."""
    where, lead = f"{name}: {_member(part, 'apply')}", (STEPS, SEQUENCES)
    if kind:
        check_action_values(where, output, lead, spec, kind)
        return
    is_pair = isinstance(output, tuple) and len(output) == 2 and not hasattr(output, "sample")
    if part == "it" and not is_pair:
        raise ShoalError(f"{where} gives a {type(output).__name__}; it must be (distribution, value).")
    policy, value = output if is_pair else (output, output)
    if part != "critic":
        check_policy(where, policy, lead, spec)
    if part != "actor":
        check_value(where, value, lead)


def _check_replay(module: Any, name: str, part: str, spec: EnvSpec, shows: tuple[bool, bool]) -> None:
    """Require that `first` clears the memory, and that steps one by one give the same as all at once.

    Outputs are compared and not memories, which may hold what no later step reads.
    """

    @jax.jit
    def run(module: Any, key: Array) -> tuple[Any, ...]:
        inputs = _rollout(spec, key, *shows)
        start = module.initial((SEQUENCES,))
        used, _ = module.apply(start, _rollout(spec, jax.random.fold_in(key, 1), *shows), inputs.first)
        _, whole = module.apply(used, inputs, inputs.first)
        _, fresh = module.apply(start, inputs, inputs.first)
        anew = jax.tree.map(lambda x: x[RESET:], inputs)
        anew_first = anew.first.at[0].set(True)
        _, again = module.apply(used, anew._replace(first=anew_first), anew_first)
        memory, outputs = start, []
        for step in range(STEPS):
            one = jax.tree.map(lambda x, t=step: x[t : t + 1], inputs)
            memory, output = module.apply(memory, one, one.first)
            outputs.append(output)
        return whole, fresh, again, jax.tree.map(lambda *xs: jnp.concatenate(xs), *outputs)

    whole, fresh, again, single = run(module, jax.random.key(2))
    ended = jax.tree.map(lambda x: x[RESET:, 0], fresh), jax.tree.map(lambda x: x[:, 0], again)
    if _differ(whole, fresh) or _differ(*ended):
        raise ShoalError(
            f"{name} does not clear its memory where an episode begins: {_member(part, 'apply')} gave other results "
            "after other steps before; where `first` is true, earlier steps must have no effect."
        )
    if _differ(fresh, single):
        raise ShoalError(
            f"{name} gives other results over {STEPS} steps at once than step by step: {_member(part, 'apply')} must "
            "be the same for any number of steps, and no step may depend on a later one."
        )


def _differ(x: PyTree, y: PyTree) -> bool:
    """Report whether two outputs differ by more than rounding; numbers that are not finite differ."""
    pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    return not all(jnp.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE) for a, b in pairs)


def _rollout(spec: EnvSpec, key: Array, action: bool, reward: bool) -> NetworkInputs:
    """Draw random inputs, [STEPS, SEQUENCES, ...]; an episode begins in the middle of them."""
    keys = jax.random.split(key, 3)
    shape = STEPS, SEQUENCES
    sample = jax.vmap(jax.vmap(spec.observation_space.sample))
    observation = jax.tree.map(_within_reach, sample(jax.random.split(keys[0], shape)))
    first = jnp.zeros(shape, bool).at[0].set(True).at[RESET, 0].set(True)
    width = num_action_features(spec.action_space)
    previous = jax.random.uniform(keys[1], (*shape, width)) if action else ()
    rewards = jnp.where(first, 0.0, jax.random.normal(keys[2], shape)) if reward else ()
    return NetworkInputs(observation, None, first, previous, rewards)


def _within_reach(x: Array) -> Array:
    """Clip floats to the size of usual observations, since a space may be all but unbounded."""
    return jnp.clip(x, -10.0, 10.0) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _member(part: str, method: str) -> str:
    return repr(method) if part == "it" else f"{part}.{method}"


def _leaf(part: str, leaf: str) -> str:
    return f"entry {leaf!r}" if part == "it" else f"{part}'s entry {leaf!r}"
