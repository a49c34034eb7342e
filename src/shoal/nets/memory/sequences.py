"""Networks with memory: the interface that an algorithm requires, and how it runs them over time.

A sequence module maps T steps of N sequences, [T, N, ...], to outputs [T, N, ...], from the memory before the first
of them to that after the last; acting is the same with T = 1. A network with memory is one of two:

- two sequence modules as attributes: `actor`, whose output is a distribution, and `critic`, whose output is a value (a
  number, or a distribution over numbers);
- one sequence module, whose output is both, `(distribution, value)`. An attribute `actor`, a sequence module
  with the same memory, is then all that is kept of it in order to act.

The methods of a sequence module:

- `initial(batch_shape)`: the memory before the first step, arrays [*batch_shape, ...], whatever the parameters are;
- `apply(memory, inputs, first)` -> the memory after T steps, of the same shapes and dtypes, and the outputs
  [T, N, ...]. `memory` [N, ...] is from before the first step, `inputs` are `NetworkInputs` [T, N, ...]; where `first`
  [T, N] is true, nothing from before the step may have an effect on it or on later steps.

Three further members are used where they are there, and save computation; the results are the same:

- `stores_memories = True` says that a memory is small enough to be stored for each step of a rollout, so that the
  update need not compute it again;
- `unroll(memory, inputs, first)` is `apply` with a third result: the memories from before each step, [T, N, ...];
- `values_after(memories, inputs)`, of a joint module that stores its memories: the values of T+1 steps, where
  `memories` are from after each of the first T.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard, cast

import jax
import jax.numpy as jnp

from shoal.nets.actor_critic import Network, policy_and_value
from shoal.nets.outputs import ActionDistribution, Value
from shoal.ops.distributions import Foreign, adapted
from shoal.types import PyTree
from shoal.xla.plain import uses_plain_form

Array = jax.Array


class NetworkInputs(NamedTuple):
    """The inputs of a network at each step, with leading axes [T, N] if it has a memory; () for absent ones."""

    observation: PyTree
    action_mask: Array | None = None
    first: PyTree = ()  # whether the memory is cleared before the step: one that begins an episode or a trial
    action: PyTree = ()  # the previous action as numbers [..., A], zeros for none
    reward: PyTree = ()  # of the step that led here, 0 where the memory is cleared


class Memories(NamedTuple):
    """The memory of an actor, or of a joint network, and of a critic that has one of its own."""

    actor: PyTree
    critic: PyTree = ()


class Unrolled(NamedTuple):
    """The outputs of a network with memory for T steps."""

    after: Memories  # the memory after the last one, [N, ...]
    distribution: ActionDistribution  # [T, N]
    value: Value  # [T, N]


class SequenceModule(Protocol):
    """A module with a memory, as above."""

    def initial(self, batch_shape: tuple[int, ...]) -> PyTree:
        """Make the memory before the first step."""
        ...

    def apply(self, memory: PyTree, inputs: NetworkInputs, first: Array) -> tuple[PyTree, PyTree]:
        """Return the memory after the last step, and the outputs."""
        ...


def has_memory(inputs: NetworkInputs) -> bool:
    """Report whether these are inputs of a network with memory; one without sees each step separately."""
    return not isinstance(inputs.first, tuple)


def is_joint(network: object) -> TypeGuard[SequenceModule]:
    """Report whether a network with memory is one sequence module, for the policy and the value."""
    return hasattr(network, "apply")


def _actor_and_critic(network: object) -> tuple[SequenceModule, SequenceModule]:
    """Return the two sequence modules of a network with memory that is not one itself."""
    return network.actor, network.critic  # type: ignore[attr-defined]


def initial(network: object, batch_shape: tuple[int, ...]) -> Memories:
    """Make the memories of sequences before their first step; the network's parameters may be arrays or only shapes."""
    if is_joint(network):
        return Memories(network.initial(batch_shape))
    return Memories(*(module.initial(batch_shape) for module in _actor_and_critic(network)))


def unroll(network: object, memories: Memories, inputs: NetworkInputs) -> Unrolled:
    """Run T steps of N sequences from `memories`, [N, ...]; without memory these may have any axes."""
    if not has_memory(inputs):
        output = policy_and_value(cast(Network, network), inputs.observation, inputs.action_mask)
        return Unrolled(Memories(()), *output)
    if is_joint(network):
        after, (distribution, value) = network.apply(memories.actor, inputs, inputs.first)
        return Unrolled(Memories(after), adapted(distribution), value)
    actor, critic = _actor_and_critic(network)
    actor_after, distribution = actor.apply(memories.actor, inputs, inputs.first)
    critic_after, value = critic.apply(memories.critic, inputs, inputs.first)
    return Unrolled(Memories(actor_after, critic_after), adapted(distribution), value)


def policy_step(actor: PyTree, memory: PyTree, inputs: NetworkInputs) -> tuple[PyTree, ActionDistribution]:
    """Run one step of N sequences: the memory after it, and the distribution of the next action, [N]."""
    if not has_memory(inputs):
        return (), adapted(actor.policy(inputs.observation, inputs.action_mask))
    # As T = 1, the one form that a sequence module has.
    inputs = jax.tree.map(lambda x: x[None], inputs)
    memory, output = actor.apply(memory, inputs, inputs.first)
    distribution = adapted(output if hasattr(output, "sample") else output[0])
    if isinstance(distribution, Foreign):
        return memory, dataclasses.replace(distribution, is_step=True)
    return memory, jax.tree.map(lambda x: x[0], distribution)


def stores_memories(actor: object) -> bool:
    """Report whether the memory after each acted step is a part of the rollout."""
    return getattr(actor, "stores_memories", False) and not uses_plain_form("store_memories")


class Replayed(NamedTuple):
    """The outputs of `replay`."""

    value: Value  # [T+1, N]
    starts: Memories  # from before each of the requested steps, [S, N, ...]
    critic: PyTree  # the critic's memory from before step T, [N, ...]


def replay(
    network: object, memories: Memories, after: PyTree, inputs: NetworkInputs, steps: Sequence[int]
) -> Replayed:
    """Compute the values of T+1 steps, and the memories from before some of them, with the parameters that acted.

    Args:
      memories: from before the first step, [N, ...].
      after: the actor's from after each of the first T steps, [T, N, ...]; () where it does not keep them.
      inputs: [T+1, N, ...].
      steps: numbers of steps in ascending order, repeated ones included; () without memory.
    """
    if not has_memory(inputs):
        return Replayed(cast(Network, network).value(inputs.observation), Memories(()), ())
    stored = jax.tree.leaves(after)
    before = (
        jax.tree.map(lambda x, xs: jnp.concatenate([x[None], xs]), memories.actor, after) if stored else ()
    )
    actor = jax.tree.map(lambda x: x[jnp.asarray(steps)], before)
    if is_joint(network):
        if stored and hasattr(network, "values_after"):
            return Replayed(network.values_after(after, inputs), Memories(actor), ())
        (_, value), actor, _ = apply_in_parts(network, memories.actor, inputs, steps)
        return Replayed(value, Memories(actor), ())
    actor_module, critic_module = _actor_and_critic(network)
    if not stored:
        _, actor, _ = apply_in_parts(actor_module, memories.actor, inputs, steps)
    value, critic, last = apply_in_parts(critic_module, memories.critic, inputs, steps)
    return Replayed(value, Memories(actor, critic), last)


def apply_in_parts(
    module: SequenceModule, memory: PyTree, inputs: NetworkInputs, steps: Sequence[int]
) -> tuple[PyTree, PyTree, PyTree]:
    """Compute the outputs of T+1 steps, inputs [T+1, N, ...], and the memories from before `steps` of them,
    ascending and at most T; `memory` is from before the first.

    Returns:
      the outputs [T+1, N, ...]; the memories from before each of `steps`, [len(steps), N, ...]; and that from before
      step T, [N, ...].
    """
    if hasattr(module, "unroll") and not uses_plain_form("unroll_memories"):
        _, outputs, before = module.unroll(memory, inputs, inputs.first)
        chosen = jax.tree.map(lambda x: x[jnp.asarray(steps)], before)
        return outputs, chosen, jax.tree.map(lambda x: x[-1], before)
    # Without `unroll` a module gives the memory after its last step only. So the steps are cut at those that are asked
    # for, and neighbouring parts of equal length are one scan, which compiles once.
    last = len(inputs.first) - 1
    bounds = sorted({0, *steps, last, last + 1})
    places = {step: i for i, step in enumerate(bounds)}
    memories, outputs = [], []
    while len(bounds) > 1:
        length = bounds[1] - bounds[0]
        count = (
            next((k for k in range(1, len(bounds)) if bounds[k] != bounds[0] + k * length), len(bounds)) - 1
        )
        part = jax.tree.map(lambda x, a=bounds[0], b=bounds[count]: x[a:b], inputs)
        part = jax.tree.map(lambda x, n=count: x.reshape(n, -1, *x.shape[1:]), part)

        def run(memory: PyTree, part: NetworkInputs) -> tuple[PyTree, tuple[PyTree, PyTree]]:
            after, output = module.apply(memory, part, part.first)
            return after, (memory, output)

        memory, (before, output) = jax.lax.scan(run, memory, part)
        memories.append(before)
        outputs.append(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), output))
        bounds = bounds[count:]
    before = jax.tree.map(lambda *parts: jnp.concatenate(parts), *memories)
    index = jnp.asarray([places[step] for step in steps])
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)
    return joined, jax.tree.map(lambda x: x[index], before), jax.tree.map(lambda x: x[places[last]], before)
