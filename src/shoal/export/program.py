"""One step of a policy as a program on named arrays, which a file holds."""

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.export.simplify import simplify
from shoal.runs.policies.trained_policy import PolicyMemory, TrainedPolicy, repeated
from shoal.types import EPISODE_ENDED, Array, PyTree, TimeStep
from shoal.types.spaces import Dict, zeros
from shoal.xla.hoisting import split_by_key

ACTIONS, MASK, NOISE = "actions", "action_mask", "noise"
# Names of other arrays.
OF_OTHERS = re.compile(r"(obs_)*(reward|first|alive|noise|action_mask.*|actions.*|.*_in|.*_out)")
DRAWS = 10_000  # by which the distribution of noise is recognised
Arrays = dict[str, Any]
# Of a key or noise, parameters, the memory's leaves, and inputs, to actions and the leaves after it.
Step = Callable[..., tuple[Arrays, Arrays]]


class Stack(NamedTuple):
    """An array of a policy's memory in a file: leaves of the memory stacked along a first axis, or one by itself."""

    name: str
    leaves: tuple[str, ...]
    is_stacked: bool = False

    def of(self, leaves: Mapping[str, Any]) -> Any:
        """Return the array of the leaves of a memory."""
        return jnp.stack([leaves[x] for x in self.leaves]) if self.is_stacked else leaves[self.leaves[0]]

    def split(self, array: Array) -> Arrays:
        """Return the leaves of an array, the reverse of `of`."""
        return dict(zip(self.leaves, array if self.is_stacked else [array], strict=True))


class Program(NamedTuple):
    """A program of one step: of observations [N, ...] and the memory before it to actions and the memory after it.

    Attributes:
      closed: the program, on flat arrays.
      inputs: shapes and dtypes by name, in its order; only of those that are read.
      outputs: by name, in its order.
      memory: the memory before an episode's first step, by the name without `_in` and `_out`.
      stacks: the leaves of the policy's memory that it is made of.
      draw: a key -> the noise of a step, [N, numbers]; None where actions are greedy.
      noise: "uniform" on [0, 1) or "normal", the distribution of each number of the noise; "" without.
    """

    closed: ClosedJaxpr
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    memory: Mapping[str, np.ndarray] = {}
    stacks: tuple[Stack, ...] = ()
    draw: Callable[[Array], Array] | None = None
    noise: str = ""

    def memory_of(self, memory: PolicyMemory | tuple[()]) -> Arrays:
        """Return the memory of a policy as the program is given it."""
        leaves = struct.named_leaves(memory.state if isinstance(memory, PolicyMemory) else ())
        return {stack.name: np.asarray(stack.of(leaves)) for stack in self.stacks}


def named(prefix: str, tree: PyTree) -> Arrays:
    """Return the leaves of a tree by names that begin with a prefix, which alone is the name of a tree of one leaf."""
    return {f"{prefix}_{name}" if name else prefix: x for name, x in struct.named_leaves(tree).items()}


def entries(policy: TrainedPolicy, observation: PyTree) -> Arrays:
    """Return an observation (or a space) by the names of inputs: `obs`, or a name for each entry of a dictionary.

    An entry with the name of another array has `obs_` before it.
    """
    space = policy.spec.of_actor.observation_space
    if not isinstance(space, Dict):
        return {"obs": observation}
    return {f"obs_{name}" if OF_OTHERS.fullmatch(name) else name: observation[name] for name in space}


def _step_of(policy: TrainedPolicy, template: PyTree, greedy: bool) -> Step:
    """Return the step of a policy; an input `first` that it is not given is false.

    Args:
      template: the memory before the first step.
    """
    space = policy.spec.of_actor.observation_space

    def step(key: Array, parameters: PyTree, leaves: Arrays, inputs: Arrays) -> tuple[Arrays, Arrays]:
        masks = {name.removeprefix(MASK)[1:]: x for name, x in inputs.items() if name.startswith(MASK)}
        observation, reward = inputs.get("obs"), inputs["reward"]
        if isinstance(space, Dict):
            names = entries(policy, {entry: entry for entry in space})
            observation = {entry: inputs[name] for name, entry in names.items()}
        first = inputs.get("first", jnp.zeros(len(reward), bool))
        timestep = TimeStep(
            observation=observation,
            reward=reward,
            discount=jnp.ones_like(reward),
            first=first,
            last=jnp.zeros_like(first),
            action_mask=masks.get("", masks or None),
            alive=inputs.get("alive"),
        )
        memory = struct.with_named_leaves(template, leaves)
        after, action, _ = policy.algorithm.act(parameters, memory, timestep, key, greedy=greedy)
        return named(ACTIONS, action), struct.named_leaves(after)

    return step


def make_program(policy: TrainedPolicy, batch: int = 1, *, sample: bool = False) -> Program:
    """Make the program of a policy's greedy actions, or of those that it samples, for a batch.

    Raises:
      ShoalError: the policy's samples do not come from noise that depends on the key alone.
    """
    memory = policy.algorithm.memory((batch,))
    template = getattr(memory, "of_greedy", memory)
    initial, inputs = struct.named_leaves(template), _examples(policy, batch)
    act, draw, noise = _step_of(policy, template, not sample), None, {}
    if not _reads_first(policy, act, initial, inputs):
        del inputs["first"]
    if sample:
        draw, act = _split(act, batch, policy.parameters, initial, inputs)
        noise = {NOISE: draw(jax.random.key(0))}

    def run(leaves: Arrays, arrays: Arrays) -> tuple[Arrays, Arrays]:
        source = arrays[NOISE] if sample else jax.random.key(0)
        return act(source, policy.parameters, leaves, {name: arrays[name] for name in inputs})

    examples = inputs | noise
    needed = _needed(_traced(run, initial, examples, tuple(Stack(name, (name,)) for name in initial)))
    program = _traced(run, initial, examples, _stacks(policy, [name for name in initial if name in needed]))
    return program._replace(draw=draw, noise=_distribution(draw) if draw else "")


def _traced(run: Callable, initial: Arrays, examples: Arrays, stacks: tuple[Stack, ...]) -> Program:
    """Trace a function of leaves of the memory and inputs, with the memory in stacks; other leaves stay as at first."""
    before = {stack.name: stack.of(initial) for stack in stacks}
    inputs = examples | {f"{name}_in": x for name, x in before.items()}
    outputs: list[str] = []

    def flat(*arrays: Array) -> list[Array]:
        by_name, leaves = dict(zip(inputs, arrays, strict=True)), dict(initial)
        for stack in stacks:
            leaves |= stack.split(by_name[f"{stack.name}_in"])
        actions, after = run(leaves, by_name)
        results = actions | {f"{stack.name}_out": stack.of(after) for stack in stacks}
        outputs[:] = results
        return list(results.values())

    closed = simplify(flat, *inputs.values())
    jaxpr, read = dce_jaxpr(closed.jaxpr, [True] * len(outputs))
    closed, names = ClosedJaxpr(jaxpr, closed.consts), itertools.compress(inputs, read)
    shapes = dict(zip(names, closed.in_avals, strict=True)), dict(zip(outputs, closed.out_avals, strict=True))
    return Program(closed, *shapes, {name: np.asarray(x) for name, x in before.items()}, stacks)


def _needed(program: Program) -> set[str]:
    """Return the names in the memory that some action depends on, now or later."""
    needed = set[str]()
    while True:
        unneeded = {f"{name}_out" for name in program.memory if name not in needed}
        _, read = dce_jaxpr(program.closed.jaxpr, [name not in unneeded for name in program.outputs])
        inputs = set(itertools.compress(program.inputs, read))
        names = {name for name in program.memory if f"{name}_in" in inputs}
        if names == needed:
            return needed
        needed = names


def _examples(policy: TrainedPolicy, batch: int) -> Arrays:
    """Return an example of each input but the memory, as an environment gives it, [N, ...]."""
    agents = () if policy.spec.num_agents == 1 else (policy.spec.num_agents,)
    _, timestep = jax.eval_shape(policy.environment.reset, jax.random.key(0))
    space = policy.spec.of_actor.observation_space
    inputs = entries(policy, zeros(repeated(space, *agents) if agents else space))
    inputs |= {"reward": jnp.zeros(agents), "first": jnp.ones((), bool)}
    inputs |= {"alive": jnp.ones(agents, bool)} if timestep.alive is not None else {}
    masks = named(MASK, timestep.action_mask) if policy.needs_mask else {}
    inputs |= {name: jnp.ones(x.shape, bool) for name, x in masks.items()}
    return {name: jnp.broadcast_to(x, (batch, *x.shape)) for name, x in inputs.items()}


def _reads_first(policy: TrainedPolicy, step: Step, leaves: Arrays, inputs: Arrays) -> bool:
    """Report whether a policy with its initial memory acts, or remembers, otherwise where it is told `first`."""
    run, first = jax.jit(step), inputs["first"]
    for key in map(jax.random.key, range(3)):
        drawn = entries(policy, policy.spec.of_actor.observation_space.sample(key))
        given = inputs | {name: jnp.broadcast_to(x, inputs[name].shape) for name, x in drawn.items()}
        if EPISODE_ENDED in given:  # where it is 1, the step is a first one whatever it is told
            given[EPISODE_ENDED] = jnp.zeros_like(given[EPISODE_ENDED])
        told = run(key, policy.parameters, leaves, given)
        untold = run(key, policy.parameters, leaves, given | {"first": jnp.zeros_like(first)})
        if not all(map(np.array_equal, jax.tree.leaves(told), jax.tree.leaves(untold))):
            return True
    return False


def _stacks(policy: TrainedPolicy, leaves: list[str]) -> tuple[Stack, ...]:
    """Return the arrays that leaves of a memory make: hidden states and cells of all layers, others by their names."""
    network = getattr(policy.config, "network", None)
    is_own_core = getattr(network, "core", "none") != "none" and not getattr(network, "has_own_parts", False)
    several_sets = any(name.startswith("sets/1/") for name in leaves)
    stacks: dict[str, list[str]] = {}
    for leaf in leaves:
        name = leaf.removeprefix("sets/" if several_sets else "sets/0/")
        layer = re.fullmatch(r"(?:(\d+)/)?carry/(\d+)/([01])", name) if is_own_core else None
        if layer:  # what follows the layers of the core are the features of the step before
            is_layer = int(layer[2]) < network.core_layers  # type: ignore[union-attr]
            name = "_".join(filter(None, ("hc"[int(layer[3])] if is_layer else "features", layer[1])))
        stacks.setdefault(name.replace("/", "_"), []).append(leaf)
    return tuple(
        Stack(k, tuple(x), re.fullmatch(r"[hc](_\d+)?", k) is not None and is_own_core)
        for k, x in stacks.items()
    )


def _split(step: Step, batch: int, *arguments: PyTree) -> tuple[Callable[[Array], Array], Step]:
    """Split a step into the noise of a key, [N, numbers], and the step that is given the noise in place of a key.

    Raises:
      ShoalError: what depends on the key alone is not numbers, or nothing does.
    """
    key = jax.random.key(0)
    structure = jax.tree.structure(jax.eval_shape(step, key, *arguments))
    # Without calls, in which the key and other inputs come together.
    flat = jaxpr_as_fun(simplify(step, key, *arguments))
    draws, finish_flat = split_by_key(flat, key, *jax.tree.leaves(arguments))
    drawn = jax.eval_shape(draws, key)
    if not drawn or any(not jnp.issubdtype(x.dtype, jnp.floating) for x in drawn):
        what = "draws by its parameters" if drawn else "does not sample"
        raise ShoalError(
            f"sample=True needs actions that are made of noise, and this policy {what}; leave it out."
        )

    def draw(key: Array) -> Array:
        return jnp.concatenate([x.reshape(batch, -1) for x in draws(key)], axis=1)

    def finish(noise: Array, *arguments: PyTree) -> tuple[Arrays, Arrays]:
        ends = np.cumsum([x.size // batch for x in drawn])[:-1]
        parts = [part.reshape(x.shape) for part, x in zip(jnp.split(noise, ends, axis=1), drawn, strict=True)]
        return jax.tree.unflatten(structure, finish_flat(parts, *jax.tree.leaves(arguments)))

    return draw, finish


def _distribution(draw: Callable[[Array], Array]) -> str:
    """Return the distribution of each number of the noise, "uniform" or "normal", as draws of it say.

    Raises:
      ShoalError: it is neither.
    """
    keys = jax.random.split(jax.random.key(0), DRAWS)
    drawn = np.asarray(jax.jit(jax.vmap(draw))(keys), np.float64)
    numbers = np.sort(drawn.reshape(DRAWS, -1), axis=0)
    shares = (np.arange(DRAWS)[:, None] + 0.5) / DRAWS
    largest = 3.0 / np.sqrt(DRAWS)  # Kolmogorov and Smirnov: exceeded by chance once in 30 million columns
    for name, of in {"uniform": lambda x: np.clip(x, 0, 1), "normal": jax.scipy.stats.norm.cdf}.items():
        if np.abs(np.asarray(of(numbers)) - shares).max() < largest:
            return name
    raise ShoalError(
        "sample=True needs noise that is uniform or normal, and this policy draws otherwise; leave it out."
    )
