"""Comparison of an exported file with its policy, step by step in the real environment."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from shoal.base.errors import ShoalError
from shoal.export.program import ACTIONS, MASK, NOISE, Arrays, Program, entries, named
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Array, TimeStep

TOLERANCE = 1e-5  # of numbers and of the distance of two logits, relative where they are above 1
EARLY_RESET = 0.02  # probability at each step

Runner = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class DifferentPolicy(ShoalError):
    """The error of a file that acts otherwise than its policy."""


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


def require_same(check: Check) -> None:
    """Require that a file is its policy.

    Raises:
      DifferentPolicy: it is not.
    """
    if not check.is_same:
        raise DifferentPolicy(f"the file is not the same policy, and was not written: {check}.")


def compare(policy: TrainedPolicy, program: Program, run: Runner, steps: int, seed: int = 0) -> Check:
    """Play steps of the policy's environment, and feed a file and the policy the same.

    The policy acts. Both have their own memory, which begins anew with each episode; some episodes are cut early.

    Args:
      run: the inputs of a step by name -> its outputs.
    """
    key, early = jax.random.key(seed), np.random.default_rng(seed)
    reset, step = jax.jit(policy.environment.reset), jax.jit(policy.environment.step)
    tied = _tied_actions(program)
    episodes, gaps, memory_gaps, other, ties, is_over = 0, [0.0], [0.0], 0, 0, True
    for number in range(steps):
        act_key, step_key = jax.random.split(jax.random.fold_in(key, number))
        if is_over:
            episodes, (state, timestep) = episodes + 1, reset(act_key)
            own, memory = policy.initial_memory(), dict(program.memory)
        feed = inputs_of(policy, program, timestep, memory, act_key)
        found = run(feed)
        own, action = policy(
            own,
            timestep.observation,
            timestep.reward,
            timestep.first,
            action_mask=timestep.action_mask,
            alive=timestep.alive,
            key=act_key if program.draw else None,
        )
        choices, expected = named(ACTIONS, action), program.memory_of(own)
        of_floats = {name: x for name, x in choices.items() if jnp.issubdtype(x.dtype, np.floating)}
        gaps += [_difference(found[name][0], x) for name, x in of_floats.items()]
        wrong = {k: found[k][0] != x for k, x in choices.items() if k not in of_floats}
        differs = any(map(np.any, wrong.values()))
        as_good = tied(feed) if differs else {}
        is_tie = differs and not any(np.any(x & (found[k] != as_good[k])[0]) for k, x in wrong.items())
        other, ties = other + (differs and not is_tie), ties + is_tie
        # A memory may hold the action: after another one both remember that which was taken.
        memory = expected if differs else {name: found[f"{name}_out"] for name in memory}
        memory_gaps += [_difference(memory[name], expected[name]) for name in memory]
        is_over = bool(timestep.last) or early.random() < EARLY_RESET
        state, timestep = (state, timestep) if is_over else step(state, action, step_key)
    return Check(steps, episodes, max(gaps), max(memory_gaps), other, ties)


def inputs_of(
    policy: TrainedPolicy, program: Program, timestep: TimeStep, memory: Arrays, key: Array
) -> dict[str, np.ndarray]:
    """Return the inputs of a step by name, for a batch of one."""
    values = entries(policy, timestep.observation) | named(MASK, timestep.action_mask)
    values |= {"reward": timestep.reward, "first": timestep.first, "alive": timestep.alive}
    rows = {name: x[None] for name, x in jax.device_get(values).items() if name in program.inputs}
    rows |= {f"{name}_in": x for name, x in memory.items()}
    rows |= {NOISE: program.draw(key)} if program.draw else {}
    return {name: np.asarray(rows[name], x.dtype) for name, x in program.inputs.items()}


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference of two arrays, relative where a number is above 1; infinite where one is NaN."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    with np.errstate(invalid="ignore"):
        gap = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return float(np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap)).max(initial=0.0))


def _tied_actions(program: Program) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    """Return a function of a step's inputs: its outputs by name, if each tie of logits were decided the other way.

    Where the best two are not as good as equal, the best is taken: a tie of one agent excuses no other agent.
    """
    jaxpr = program.closed.jaxpr
    picks = [x for x in jaxpr.eqns if x.primitive.name == "argmax"]
    others = [x for x in jaxpr.eqns if x.primitive.name != "argmax"]
    scores = jaxpr_as_fun(
        ClosedJaxpr(jaxpr.replace(outvars=[x.invars[0] for x in picks]), program.closed.consts)
    )
    picked = jaxpr.replace(
        invars=[*jaxpr.invars, *(x.outvars[0] for x in picks)],
        eqns=others,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    finish = jaxpr_as_fun(ClosedJaxpr(picked, program.closed.consts))

    def run(feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        numbers = map(np.asarray, scores(*feed.values()))
        taken = [_runner_up(x, pick.params) for x, pick in zip(numbers, picks, strict=True)]
        return dict(zip(program.outputs, map(np.asarray, finish(*feed.values(), *taken)), strict=True))

    return run


def _runner_up(numbers: np.ndarray, pick: Mapping[str, Any]) -> np.ndarray:
    """Return the index of the second of each row, where it is as good as the best; else that of the best."""
    rows = np.moveaxis(numbers, pick["axes"][0], -1)
    # The first of equals is the best, as `argmax` has it.
    order = np.argsort(-rows, axis=-1, kind="stable")[..., :2]
    best = np.take_along_axis(rows, order, axis=-1)
    is_tie = best[..., 0] - best[..., -1] <= TOLERANCE * np.maximum(1.0, np.abs(best[..., 0]))
    return np.where(is_tie, order[..., -1], order[..., 0]).astype(pick["index_dtype"])
