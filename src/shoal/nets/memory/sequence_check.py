"""Check a network with memory, with one sentence for an error: shapes, clearing, and one step against many."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.config.struct import named_leaves
from shoal.nets.inputs import num_action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.output_check import check_action_values, check_policy, check_value, require_methods
from shoal.ops.distributions import Foreign, adapted, is_foreign
from shoal.types import EnvSpec, PyTree, contract

Array = jax.Array
STEPS, SEQUENCES, RESET = 6, 2, 3  # of the rollout that is replayed; sequence 0 restarts at step RESET
TOLERANCE = 1e-3


def sequence_modules(network: PyTree) -> dict[str, PyTree]:
    """Return the sequence modules of a network by name; empty if it has no memory."""
    parts = {name: getattr(network, name, None) for name in ("actor", "critic")}
    if sequences.is_joint(network):
        return {"it": network} | ({"actor": parts["actor"]} if hasattr(parts["actor"], "apply") else {})
    return parts if any(hasattr(part, "apply") for part in parts.values()) else {}


def check_sequences(
    network: PyTree, spec: EnvSpec, name: str, kind: str = "", *, action: bool, reward: bool
) -> None:
    """Require that a network's sequence modules keep the protocol of `shoal.nets.memory.sequences`.

    Args:
      kind: of a network of action values, what its settings declare in `values`; empty for an actor-critic.
    Raises:
      ShoalError: a module lacks a method; gives another memory than it takes, or other outputs than its part is for;
        depends on steps from before `first`; or gives other outputs step by step than over several steps.
    """
    modules = sequence_modules(network)
    methods = {
        repr(method) if part == "it" else f"{part}.{method}": getattr(module, method, None)
        for part, module in modules.items()
        for method in ("initial", "apply")
    }
    needs = "a network with memory needs initial and apply, of itself or of its actor and its critic"
    require_methods(name, methods, needs)
    key = jax.random.key(0)
    shown = jax.eval_shape(lambda key: _rollout(spec, key, action, reward), key)
    for part, module in modules.items():
        _check_shapes(module, spec, part, kind, shown)
    # Last layers may begin at or near 0, and would hide what the memory holds.
    moved = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(key, x.shape, x.dtype), network)
    for module in sequence_modules(moved).values():
        _check_replay(module, spec, (action, reward))


def _check_shapes(module: PyTree, spec: EnvSpec, part: str, kind: str, shown: NetworkInputs) -> None:
    """Require that a module keeps its memory's shapes, and that its outputs are those that its part is for."""
    memory = jax.eval_shape(lambda module: module.initial((SEQUENCES,)), module)
    for name, leaf in named_leaves(memory).items():
        if leaf.shape[:1] != (SEQUENCES,):
            memory_leaf = f"a memory whose {name or 'value'!r} is {contract.described(leaf)}"
            right = f"arrays [{SEQUENCES}, ...], for it is given batch_shape=({SEQUENCES},)"
            contract.refuse(module.initial, memory_leaf, right)

    def run(module: PyTree, memory: PyTree, shown: NetworkInputs) -> PyTree:
        result = module.apply(memory, shown, shown.first)
        after, output = contract.require_tuple(module.apply, result, "(memory, output)")
        _check_output(module.apply, output, spec, part, kind)
        return after

    after = jax.eval_shape(run, module, memory, shown)
    contract.require_same(module.apply, "memory", after, memory)


def _check_output(method: Callable, output: PyTree, spec: EnvSpec, part: str, kind: str) -> None:
    """Require that the output of a module is what its part, or a network of action values, is for."""
    lead = STEPS, SEQUENCES
    if kind:
        check_action_values(method, output, lead, spec, kind)
        return
    is_pair = isinstance(output, tuple) and len(output) == 2 and not hasattr(output, "sample")
    if part == "it" and not is_pair:
        returned = f"{contract.described(output)} as the output of its memory"
        contract.refuse(method, returned, "(distribution, value) as the output")
    policy, value = output if is_pair else (output, output)
    if part != "critic":
        check_policy(method, policy, lead, spec)
    if part != "actor":
        check_value(method, value, lead)


def _check_replay(module: PyTree, spec: EnvSpec, shows: tuple[bool, bool]) -> None:
    """Require that `first` clears the memory, and that steps one by one give the same as all at once.

    Outputs are compared and not memories, which may hold what no later step reads.
    """

    @jax.jit
    def run(module: PyTree, key: Array) -> tuple[PyTree, ...]:
        inputs = _rollout(spec, key, *shows)
        start = module.initial((SEQUENCES,))
        # A memory from other steps, which has no effect where `first` clears it.
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
            outputs.append(_as_arrays(output))
        joined = jax.tree.map(lambda *xs: jnp.concatenate(xs), *outputs)
        return *map(_as_arrays, (whole, fresh, again)), joined

    whole, fresh, again, single = run(module, jax.random.key(2))
    ended = jax.tree.map(lambda x: x[RESET:, 0], fresh), jax.tree.map(lambda x: x[:, 0], again)
    if _differ(whole, fresh) or _differ(*ended):
        right = "the same whatever was before, where `first` is true: its memory is cleared where an episode begins"
        contract.refuse(module.apply, "other results after other steps", right)
    if _differ(fresh, single):
        right = "the same for any number of steps, of which none may depend on a later one"
        contract.refuse(module.apply, f"other results over {STEPS} steps at once than step by step", right)


def _as_arrays(output: PyTree) -> PyTree:
    """Replace another package's distribution by what there is of it for each step."""

    def arrays(x: PyTree) -> PyTree:
        x = adapted(x)
        return (x.mode(), x.log_prob_raw(x.mode_raw())) if isinstance(x, Foreign) else x

    return jax.tree.map(arrays, output, is_leaf=is_foreign)


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
