"""One step of a policy as a program on named arrays, which a file holds."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.export.simplify import read_inputs, simplify
from shoal.runs.policies.trained_policy import PolicyMemory, TrainedPolicy, repeated
from shoal.types import Array, PyTree, TimeStep
from shoal.types.spaces import Dict, zeros
from shoal.xla.hoisting import split_by_key

ACTIONS, NOISE = "actions", "noise"
DRAWS = 10_000  # by which the distribution of noise is recognised
Arrays = dict[str, Any]


class Stack(NamedTuple):
    """An array of a policy's memory outside: leaves of the memory, stacked along a first axis, or one by itself."""

    name: str
    leaves: tuple[str, ...]
    is_stacked: bool = False


class Program(NamedTuple):
    """A program of one step: of the batch's observations and the memory before to actions and the memory after.

    Attributes:
      closed: the program, on flat arrays.
      inputs: by name, in its order; only those that are read.
      outputs: by name, in its order.
      memory: the memory before an episode's first step, by the name without `_in` and `_out`.
      stacks: the leaves of the policy's memory that it is made of.
      draw: a key -> the noise of a step; None where actions are greedy.
      noise: "uniform" on [0, 1) or "normal", the distribution of each number of the noise; "" without.
    """

    closed: ClosedJaxpr
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    outputs: Mapping[str, jax.ShapeDtypeStruct]
    memory: Mapping[str, np.ndarray]
    stacks: tuple[Stack, ...]
    draw: Callable[[Array], Array] | None = None
    noise: str = ""

    def memory_of(self, memory: PolicyMemory | tuple[()]) -> Arrays:
        """Return the memory of a policy as the program is given it, by the same names."""
        leaves = struct.named_leaves(memory.state if isinstance(memory, PolicyMemory) else ())
        return {stack.name: np.asarray(stacked(stack, leaves)) for stack in self.stacks}


class _Step(NamedTuple):
    """The step of a policy, greedy or not, as a function of all named inputs that there may be."""

    policy: TrainedPolicy
    greedy: bool
    template: PyTree  # the policy's memory before the first step
    inputs: Arrays  # an example of each input but the memory

    def __call__(
        self, parameters: PyTree, key: Array, leaves: Arrays, inputs: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Return actions and the leaves of the memory after the step, by name."""
        entries = observation_names(self.policy)
        observation = {entry: inputs[name] for entry, name in entries.items()}
        masks = {name.removeprefix("action_mask"): x for name, x in inputs.items() if _is_mask(name)}
        reward = inputs["reward"]
        timestep = TimeStep(
            observation=observation.get("", observation),
            reward=reward,
            discount=jnp.ones_like(reward),
            first=inputs["first"],
            last=jnp.zeros_like(inputs["first"]),
            action_mask=masks.get("", {name[1:]: x for name, x in masks.items()} or None),
            alive=inputs.get("alive"),
        )
        memory = struct.with_named_leaves(self.template, leaves)
        after, action, _ = self.policy.algorithm.act(parameters, memory, timestep, key, greedy=self.greedy)
        actions = struct.named_leaves(action)
        return {"_".join(filter(None, (ACTIONS, k))): x for k, x in actions.items()}, struct.named_leaves(
            after
        )


def _is_mask(name: str) -> bool:
    return name.startswith("action_mask")


def observation_names(policy: TrainedPolicy) -> dict[str, str]:
    """Return the names of the inputs by the entries of an observation; `obs` where it is no dictionary.

    An entry with the name of another input has `obs_` before it.
    """
    space = policy.spec.of_actor.observation_space
    if not isinstance(space, Dict):
        return {"": "obs"}
    taken = re.compile(r"reward|first|alive|noise|action_mask.*|.*_in|.*_out|actions.*")
    return {name: f"obs_{name}" if taken.fullmatch(name) else name for name in space}


def make_program(policy: TrainedPolicy, batch: int = 1, *, sample: bool = False) -> Program:
    """Make the program of a policy's greedy actions, or of those that it samples, for a batch.

    Raises:
      ShoalError: the policy's samples do not come from noise that depends on the key alone.
    """
    memory = policy.initial_memory((batch,))
    template = memory.state if isinstance(memory, PolicyMemory) else _empty_memory(policy, batch)
    initial = struct.named_leaves(template)
    step = _Step(policy, not sample, template, _examples(policy, batch))
    if not _reads_first(step, initial):
        step.inputs.pop("first")
    fixed = {"first": jnp.zeros(batch, bool)} if "first" not in step.inputs else {}
    draw, finish, noise = _noise(step, initial, fixed) if sample else (None, None, None)

    def run(leaves: Arrays, inputs: Arrays) -> tuple[Arrays, Arrays]:
        rest = {name: x for name, x in inputs.items() if name != NOISE} | fixed
        if finish is not None:
            return finish(inputs[NOISE], policy.parameters, leaves, rest)
        return step(policy.parameters, jax.random.key(0), leaves, rest)

    examples = step.inputs | ({} if noise is None else {NOISE: noise})
    needed = _needed_leaves(run, initial, examples)
    stacks = tuple(_stacks(policy, {name: initial[name] for name in needed}))
    before = {stack.name: stacked(stack, initial) for stack in stacks}

    def outer(flat: Arrays) -> Arrays:
        leaves = dict(initial)
        for stack in stacks:
            array = flat[f"{stack.name}_in"]
            leaves |= {leaf: array[k] if stack.is_stacked else array for k, leaf in enumerate(stack.leaves)}
        actions, after = run(leaves, {name: x for name, x in flat.items() if name in examples})
        return actions | {f"{stack.name}_out": stacked(stack, after) for stack in stacks}

    inputs = examples | {f"{name}_in": x for name, x in before.items()}
    named = _read_only(*_traced(outer, inputs))
    kind = "" if draw is None else _distribution(draw)
    return Program(*named, {name: np.asarray(x) for name, x in before.items()}, stacks, draw, kind)


def _traced(function: Callable[[Arrays], Arrays], inputs: Arrays) -> tuple[ClosedJaxpr, list[str], list[str]]:
    """Trace a function of named arrays, and name the inputs and outputs in the order of the program."""
    names: list[str] = list(inputs)
    outputs: dict[str, None] = {}

    def flat(*arrays: Array) -> list[Array]:
        found = function(dict(zip(names, arrays, strict=True)))
        outputs.update(dict.fromkeys(found))
        return list(found.values())

    return simplify(flat, *inputs.values()), names, list(outputs)


def _read_only(
    closed: ClosedJaxpr, names: list[str], outputs: list[str]
) -> tuple[ClosedJaxpr, dict[str, jax.ShapeDtypeStruct], dict[str, jax.ShapeDtypeStruct]]:
    """Drop the inputs that a program does not read, and return it with the shapes of the others and of outputs."""
    read = read_inputs(closed.jaxpr)
    kept = {name: x for name, x, is_read in zip(names, closed.jaxpr.invars, read, strict=True) if is_read}
    jaxpr = closed.jaxpr.replace(invars=list(kept.values()))
    shapes = {name: jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for name, x in kept.items()}
    results = dict(zip(outputs, closed.out_avals, strict=True))
    made = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in results.items()}
    return ClosedJaxpr(jaxpr, closed.consts), shapes, made


def _empty_memory(policy: TrainedPolicy, batch: int) -> PyTree:
    """Return the memory of a policy that remembers nothing, in the structure that acting is given."""
    memory = policy.algorithm.memory((batch,))
    return getattr(memory, "of_greedy", memory)


def _examples(policy: TrainedPolicy, batch: int) -> Arrays:
    """Return an example of each input but the memory, as an environment gives it, [N, ...]."""
    agents = () if policy.spec.num_agents == 1 else (policy.spec.num_agents,)
    _, timestep = jax.eval_shape(policy.environment.reset, jax.random.key(0))
    space = policy.spec.of_actor.observation_space
    element = zeros(space)
    if agents:
        element = zeros(repeated(space, *agents))
    parts = element if isinstance(element, dict) else {"": element}
    inputs = {name: parts[entry] for entry, name in observation_names(policy).items()}
    inputs |= {"reward": jnp.zeros(agents), "first": jnp.ones((), bool)}
    masks = struct.named_leaves(timestep.action_mask) if policy.needs_mask else {}
    inputs |= {
        "_".join(filter(None, ("action_mask", name))): jnp.ones(x.shape, bool) for name, x in masks.items()
    }
    if timestep.alive is not None:
        inputs["alive"] = jnp.ones(agents, bool)
    return {name: jnp.broadcast_to(x, (batch, *x.shape)) for name, x in inputs.items()}


def _reads_first(step: _Step, leaves: Arrays) -> bool:
    """Report whether a policy with its initial memory acts, or remembers, otherwise where it is told `first`."""
    if not leaves:
        return False

    @jax.jit
    def run(observation: PyTree, first: Array) -> tuple[Arrays, Arrays]:
        inputs = step.inputs | observation | {"first": first}
        return step(step.policy.parameters, jax.random.key(0), leaves, inputs)

    names, space = observation_names(step.policy), step.policy.spec.of_actor.observation_space
    for seed in range(3):
        drawn = space.sample(jax.random.key(seed))
        parts = drawn if isinstance(drawn, dict) else {"": drawn}
        observation = {
            name: jnp.broadcast_to(parts[entry], step.inputs[name].shape) for entry, name in names.items()
        }
        of_both = [jax.tree.leaves(run(observation, jnp.full_like(step.inputs["first"], x))) for x in (0, 1)]
        if any(
            not np.array_equal(x, y, equal_nan=True)
            for x, y in zip(*map(jax.device_get, of_both), strict=True)
        ):
            return True
    return False


def _needed_leaves(run: Callable, leaves: Arrays, inputs: Arrays) -> list[str]:
    """Return the leaves of the memory that some action depends on, now or later."""
    closed, names, outputs = _traced(
        lambda flat: _joined(*run({k: flat[f"/{k}"] for k in leaves}, {k: flat[k] for k in inputs})),
        {f"/{name}": x for name, x in leaves.items()} | inputs,
    )
    needed: set[str] = set()
    while True:
        wanted = [not name.startswith("/") or name[1:] in needed for name in outputs]
        live = {
            x
            for x, is_wanted in zip(closed.jaxpr.outvars, wanted, strict=True)
            if is_wanted and not isinstance(x, Literal)
        }
        for equation in reversed(closed.jaxpr.eqns):
            if live.intersection(equation.outvars):
                live |= {x for x in equation.invars if not isinstance(x, Literal)}
        read = {
            name[1:]
            for name, x in zip(names, closed.jaxpr.invars, strict=True)
            if name[0] == "/" and x in live
        }
        if read <= needed:
            return [name for name in leaves if name in needed]
        needed |= read


def _joined(actions: Arrays, after: Arrays) -> Arrays:
    return actions | {f"/{name}": x for name, x in after.items()}


def _stacks(policy: TrainedPolicy, leaves: Arrays) -> list[Stack]:
    """Return the arrays that leaves of a memory make: hidden states and cells of all layers, others by their names."""
    network = getattr(policy.config, "network", None)
    is_own_core = getattr(network, "core", "none") != "none" and not getattr(network, "has_own_parts", False)
    stacks: dict[str, list[str]] = {}
    single = []
    is_one_set = not any(name.startswith("sets/1/") for name in leaves)
    for leaf in leaves:
        name = leaf.removeprefix("sets/0/") if is_one_set else leaf.removeprefix("sets/")
        layer = re.fullmatch(r"((?:\d+/)?)carry/(\d+)/([01])", name)
        if is_own_core and layer and int(layer[2]) < network.core_layers:
            stacks.setdefault(f"{'hc'[int(layer[3])]}{layer[1] and f'_{layer[1][:-1]}'}", []).append(leaf)
        else:
            if is_own_core and layer:
                name = f"{layer[1]}features"
            single.append(Stack(name.replace("/", "_"), (leaf,)))
    return [*(Stack(name, tuple(found), True) for name, found in stacks.items()), *single]


def stacked(stack: Stack, leaves: Mapping[str, Any]) -> Array:
    """Return the array of some leaves."""
    if not stack.is_stacked:
        return leaves[stack.leaves[0]]
    return jnp.stack([leaves[name] for name in stack.leaves])


def _noise(step: _Step, leaves: Arrays, fixed: Arrays) -> tuple[Callable, Callable, jax.ShapeDtypeStruct]:
    """Split the step into the noise of a key, as one array [N, numbers], and the rest.

    Raises:
      ShoalError: what depends on the key alone is not an array of numbers, or nothing does.
    """
    arguments = (step.policy.parameters, leaves, step.inputs | fixed)
    closed = simplify(
        lambda key, *flat: jax.tree.leaves(step(flat[0], key, *flat[1:])), jax.random.key(0), *arguments
    )
    shape = jax.eval_shape(step, arguments[0], jax.random.key(0), *arguments[1:])

    def inlined(key: Array, *flat: Array) -> list[Array]:
        return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, key, *flat)

    draws, finish_flat = split_by_key(inlined, jax.random.key(0), *jax.tree.leaves(arguments))
    drawn, batch = jax.eval_shape(draws, jax.random.key(0)), len(jax.tree.leaves(step.inputs)[0])
    if not drawn or any(not jnp.issubdtype(x.dtype, jnp.floating) for x in drawn):
        what = "draws by its parameters" if drawn else "does not sample"
        raise ShoalError(
            f"sample=True needs actions that are made of noise, and this policy {what}; leave it out."
        )

    def draw(key: Array) -> Array:
        return jnp.concatenate([x.reshape(batch, -1) for x in draws(key)], axis=1)

    def finish(noise: Array, *arguments: PyTree) -> PyTree:
        ends = np.cumsum([x.size // batch for x in drawn])[:-1]
        parts = [part.reshape(x.shape) for part, x in zip(jnp.split(noise, ends, axis=1), drawn, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(shape), finish_flat(parts, *jax.tree.leaves(arguments)))

    return draw, finish, jnp.zeros((batch, sum(x.size for x in drawn) // batch))


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
