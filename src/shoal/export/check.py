"""Comparison of an exported file with its policy, step by step in the real environment."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.export.program import ACTIONS, NOISE, Program, observation_names
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Array, TimeStep, without_entries

TOLERANCE = 1e-5  # of numbers and of the distance of two logits, relative where they are above 1
EARLY_RESET = 0.02  # probability at each step

Runner = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class Check(NamedTuple):
    """How far a file is from its policy.

    Attributes:
      steps: that were compared.
      episodes: that began meanwhile.
      actions: the largest difference of continuous actions, relative where they are above 1.
      memory: the largest difference of the memory, alike.
      other: steps with another discrete action.
      ties: steps with another discrete action whose logits are as good as the best; they are not in `other`.
    """

    steps: int
    episodes: int
    actions: float
    memory: float
    other: int
    ties: int

    @property
    def is_same(self) -> bool:
        """Whether it is the same policy."""
        return max(self.actions, self.memory) < TOLERANCE and not self.other

    def __str__(self) -> str:
        return (
            f"{self.steps:,} steps in {self.episodes:,} episodes: largest difference of actions {self.actions:.1e}, of "
            f"memory {self.memory:.1e}; {self.other:,} other actions, {self.ties:,} of equal logits"
        )


def compare(policy: TrainedPolicy, program: Program, run: Runner, steps: int, seed: int = 0) -> Check:
    """Play steps of the policy's environment, and feed a file and the policy the same.

    The policy acts. Both have their own memory, which begins anew with each episode; some episodes are cut early.

    Args:
      run: the inputs of a step by name -> its outputs.
    """
    environment, key = policy.environment, jax.random.key(seed)
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    early, scores = np.random.default_rng(seed), _scores(program)
    state, timestep = reset(key)
    result = Check(steps, 1, 0.0, 0.0, 0, 0)
    expected_memory, memory = policy.initial_memory(), dict(program.memory)
    for number in range(steps):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, number))
        feed = inputs_of(policy, program, timestep, act_key) | {f"{k}_in": x for k, x in memory.items()}
        found = run({name: feed[name] for name in program.inputs})
        expected_memory, action = policy(
            expected_memory,
            timestep.observation,
            timestep.reward,
            timestep.first,
            action_mask=timestep.action_mask,
            alive=timestep.alive,
            key=act_key if program.draw else None,
        )
        result, differs = _with_step(
            result, struct.named_leaves(action), found, lambda feed=feed: scores(feed)
        )
        memory = {name: found[f"{name}_out"] for name in memory}
        expected = program.memory_of(expected_memory)
        if differs:  # a memory may hold the action: from here on both remember the one that was taken
            memory = expected
        gaps = [_difference(memory[name], expected[name]) for name in memory]
        result = result._replace(memory=max([result.memory, *gaps]))
        ends = bool(timestep.last) or early.random() < EARLY_RESET
        state, timestep = reset(step_key) if ends else step(state, action, step_key)
        if ends:
            expected_memory, memory = policy.initial_memory(), dict(program.memory)
            result = result._replace(episodes=result.episodes + 1)
    return result


def inputs_of(
    policy: TrainedPolicy, program: Program, timestep: TimeStep, key: Array
) -> dict[str, np.ndarray]:
    """Return the inputs of a step but the memory, by name, for a batch of one."""
    observation = without_entries(timestep.observation, policy.spec.critic_only)
    parts = observation if isinstance(observation, dict) else {"": observation}
    values: dict[str, Any] = {name: parts[entry] for entry, name in observation_names(policy).items()}
    values |= {"reward": timestep.reward, "first": timestep.first, "alive": timestep.alive}
    masks = struct.named_leaves(timestep.action_mask)
    values |= {"_".join(filter(None, ("action_mask", name))): x for name, x in masks.items()}
    feed = {
        name: np.asarray(values[name], x.dtype)[None] for name, x in program.inputs.items() if name in values
    }
    return feed | ({NOISE: np.asarray(program.draw(key))} if program.draw else {})


def _with_step(
    result: Check,
    action: Mapping[str, Any],
    found: Mapping[str, np.ndarray],
    scores: Callable[[], list[np.ndarray]],
) -> tuple[Check, bool]:
    """Add a step to a result; return also whether a discrete action differs."""
    differs = False
    for name, expected in action.items():
        got = found["_".join(filter(None, (ACTIONS, name)))][0]
        if jnp.issubdtype(got.dtype, np.floating):
            result = result._replace(actions=max(result.actions, _difference(got, expected)))
        else:
            differs |= not np.array_equal(got, expected)
    if differs:
        is_tie = any(_has_tie(x) for x in scores())
        result = result._replace(ties=result.ties + is_tie, other=result.other + (not is_tie))
    return result, differs


def _difference(found: Any, expected: Any) -> float:
    """Return the largest difference of two arrays, relative where a number is above 1; infinite where one is NaN."""
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    gap = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    gap = np.where((found == expected) | (np.isnan(found) & np.isnan(expected)), 0.0, gap)
    return float(np.where(np.isnan(gap), np.inf, gap).max(initial=0.0))


def _scores(program: Program) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]:
    """Return a function of a step's inputs: the numbers of which the actions are the largest, [..., choices]."""
    jaxpr = program.closed.jaxpr
    picks = [x for x in jaxpr.eqns if x.primitive.name == "argmax"]
    inner = ClosedJaxpr(jaxpr.replace(outvars=[x.invars[0] for x in picks]), program.closed.consts)
    axes = [x.params["axes"][0] for x in picks]

    def scores(feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        numbers = jaxpr_as_fun(inner)(*(feed[name] for name in program.inputs))
        return [np.moveaxis(np.asarray(x), axis, -1) for x, axis in zip(numbers, axes, strict=True)]

    return scores


def _has_tie(numbers: np.ndarray) -> bool:
    """Report whether the two best of some row are as good as equal."""
    best = np.sort(numbers, axis=-1)[..., -2:]
    return bool(np.any(best[..., -1] - best[..., 0] <= TOLERANCE * np.maximum(1.0, np.abs(best[..., -1]))))


def require_same(check: Check) -> None:
    """Require that a file is its policy.

    Raises:
      DifferentPolicy: it is not.
    """
    if not check.is_same:
        raise DifferentPolicy(f"the file is not the same policy, and was not written: {check}.")


class DifferentPolicy(ShoalError):
    """The error of a file that acts otherwise than its policy."""
