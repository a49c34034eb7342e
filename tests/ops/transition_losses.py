"""Each loss of single transitions with its arguments and, as its oracle, a plain loop written from its paper.

The loops take one transition, in float64. Names of arguments say their axes, so that one table serves all tests.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.ops import distributional, q_losses, value_losses

GAMMA, ACTIONS, ATOMS, OTHER_ATOMS = 0.9, 3, 6, 5
BATCH = (4, 5)


class Loss(NamedTuple):
    function: Callable[..., jax.Array]
    axes: dict[str, str]  # of each argument, in order; "" is [...], and a * before says: shared, [n]
    predictions: tuple[str, ...]  # the arguments that always get a gradient
    oracle: Callable[..., float]  # of one transition


def td(v_tm1, r_t, discount_t, v_t):
    return r_t + discount_t * v_t - v_tm1


def q_learning(q_tm1, a_tm1, r_t, discount_t, q_t):
    best = -np.inf
    for value in q_t:
        best = max(best, value)
    return r_t + discount_t * best - q_tm1[a_tm1]


def greedy(values):
    best = 0
    for action in range(1, len(values)):
        if values[action] > values[best]:
            best = action
    return best


def double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t, selector_t):
    return r_t + discount_t * q_t[greedy(selector_t)] - q_tm1[a_tm1]


TEMPERATURE, ALPHA, LOWEST = 0.3, 0.9, -0.8


def softmax(x):
    return np.exp(x - np.max(x)) / np.sum(np.exp(x - np.max(x)))


def munchausen(q_tm1, a_tm1, r_t, discount_t, q_t, policy_q_tm1):
    bonus = TEMPERATURE * np.log(softmax(policy_q_tm1 / TEMPERATURE)[a_tm1])
    soft_value = 0.0
    for probability, value in zip(softmax(q_t / TEMPERATURE), q_t, strict=True):
        soft_value += probability * (value - TEMPERATURE * np.log(probability))
    return r_t + ALPHA * max(bonus, LOWEST) + discount_t * soft_value - q_tm1[a_tm1]


def project(atoms, probabilities, onto):
    """Mass by mass, to the two atoms that it lies between."""
    projected = np.zeros(len(onto))
    for z, mass in zip(atoms, probabilities, strict=True):
        if z <= onto[0]:
            projected[0] += mass
        elif z >= onto[-1]:
            projected[-1] += mass
        else:
            right = next(i for i in range(len(onto)) if onto[i] > z)
            part = (z - onto[right - 1]) / (onto[right] - onto[right - 1])
            projected[right] += mass * part
            projected[right - 1] += mass * (1 - part)
    return projected


def categorical_td(atoms_tm1, logits_tm1, r_t, discount_t, atoms_t, logits_t):
    target = project(r_t + discount_t * atoms_t, softmax(logits_t), atoms_tm1)
    return -np.sum(target * np.log(softmax(logits_tm1)))


def categorical_q(atoms_tm1, logits_tm1, a_tm1, r_t, discount_t, atoms_t, logits_t):
    means = [np.sum(softmax(logits) * atoms_t) for logits in logits_t]
    return categorical_double_q(atoms_tm1, logits_tm1, a_tm1, r_t, discount_t, atoms_t, logits_t, means)


def categorical_double_q(atoms_tm1, logits_tm1, a_tm1, r_t, discount_t, atoms_t, logits_t, selector_t):
    chosen = logits_t[greedy(selector_t)]
    return categorical_td(atoms_tm1, logits_tm1[a_tm1], r_t, discount_t, atoms_t, chosen)


DELTA = 0.7


def quantile_regression(quantiles, fractions, samples, delta=DELTA):
    total = 0.0
    for theta, tau in zip(quantiles, fractions, strict=True):
        for x in samples:
            error = x - theta
            weight = tau if error >= 0 else 1 - tau
            quadratic = abs(error) <= delta
            huber = error**2 / 2 if quadratic else delta * (abs(error) - delta / 2)
            total += weight * huber / delta / len(samples)
    return total


def quantile_q(quantiles_tm1, fractions, a_tm1, r_t, discount_t, quantiles_t):
    means = [np.mean(quantiles) for quantiles in quantiles_t]
    return quantile_double_q(quantiles_tm1, fractions, a_tm1, r_t, discount_t, quantiles_t, means)


def quantile_double_q(quantiles_tm1, fractions, a_tm1, r_t, discount_t, quantiles_t, selector_t):
    samples = r_t + discount_t * quantiles_t[greedy(selector_t)]
    return quantile_regression(quantiles_tm1[a_tm1], fractions, samples)


def munchausen_q_learning(*args: Any, **keywords: Any) -> jax.Array:
    fixed = {"temperature": TEMPERATURE, "alpha": ALPHA, "lowest": LOWEST}
    return q_losses.munchausen_q_learning(*args, **fixed, **keywords)


def quantile_q_learning(*args: Any, **keywords: Any) -> jax.Array:
    return distributional.quantile_q_learning(*args, delta=DELTA, **keywords)


STEP = {"a_tm1": "", "r_t": "", "discount_t": ""}
CATEGORICAL = {"atoms_tm1": "*n", "logits_tm1": "An", **STEP, "atoms_t": "*m", "logits_t": "Am"}
QUANTILES = {"quantiles_tm1": "An", "fractions": "*n", **STEP, "quantiles_t": "Am"}
STATE = {"atoms_tm1": "*n", "logits_tm1": "n", "r_t": "", "discount_t": "", "atoms_t": "*m", "logits_t": "m"}
Q = {"q_tm1": "A", **STEP, "q_t": "A"}
SELECTOR = {"selector_t": "A"}
LOSSES = {
    "td": Loss(
        value_losses.td_learning, {"v_tm1": "", "r_t": "", "discount_t": "", "v_t": ""}, ("v_tm1",), td
    ),
    "q": Loss(q_losses.q_learning, Q, ("q_tm1",), q_learning),
    "double_q": Loss(q_losses.q_learning, Q | SELECTOR, ("q_tm1",), double_q_learning),
    "munchausen": Loss(munchausen_q_learning, Q | {"policy_q_tm1": "A"}, ("q_tm1",), munchausen),
    "categorical_td": Loss(distributional.categorical_td_learning, STATE, ("logits_tm1",), categorical_td),
    "categorical_q": Loss(distributional.categorical_q_learning, CATEGORICAL, ("logits_tm1",), categorical_q),
    "categorical_double_q": Loss(
        distributional.categorical_q_learning,
        CATEGORICAL | SELECTOR,
        ("logits_tm1",),
        categorical_double_q,
    ),
    "quantile_q": Loss(quantile_q_learning, QUANTILES, ("quantiles_tm1",), quantile_q),
    "quantile_double_q": Loss(
        quantile_q_learning, QUANTILES | SELECTOR, ("quantiles_tm1",), quantile_double_q
    ),
}


def arguments(loss: Loss, seed: int, batch: tuple[int, ...] = BATCH) -> dict[str, np.ndarray]:
    """Random arguments of a loss, some of whose transitions terminate."""
    rng = np.random.default_rng(seed)
    lengths = {"A": ACTIONS, "n": ATOMS, "m": OTHER_ATOMS}
    made = {}
    for name, axes in loss.axes.items():
        shape = tuple(lengths[letter] for letter in axes.lstrip("*"))
        shape = shape if axes.startswith("*") else (*batch, *shape)
        made[name] = rng.normal(size=shape).astype(np.float32)
        if name.startswith("atoms"):  # neither evenly spaced, nor the same, nor as wide as what is put there
            made[name] = np.sort(made[name] + np.linspace(-1.5, 1.5, *shape), axis=-1).astype(np.float32)
    made["discount_t"] = np.where(rng.uniform(size=batch) < 0.3, 0.0, GAMMA).astype(np.float32)
    if "a_tm1" in made:
        made["a_tm1"] = rng.integers(ACTIONS, size=batch).astype(np.int32)
    if "fractions" in made:
        made["fractions"] = np.sort(rng.uniform(0.05, 0.95, size=ATOMS)).astype(np.float32)
    return made


def poisoned(loss: Loss, made: dict[str, np.ndarray], weight: np.ndarray) -> dict[str, np.ndarray]:
    """The same with NaN, or an action out of range, in all that may not be read."""
    silent, ended = weight == 0, (weight == 0) | (made["discount_t"] == 0)
    poisoned = {}
    for name, array in made.items():
        poisoned[name] = array.copy()
        if not loss.axes[name].startswith("*"):
            follows = name in ("v_t", "q_t", "logits_t", "quantiles_t", "selector_t")
            unread = ended if follows else silent
            poisoned[name][unread] = np.resize([99, -1], unread.sum()) if name == "a_tm1" else np.nan
    return poisoned


def expected(loss: Loss, made: dict[str, np.ndarray]) -> np.ndarray:
    """What the oracle says of each transition."""
    exact = {name: a if name == "a_tm1" else a.astype(np.float64) for name, a in made.items()}
    shared = {name for name, axes in loss.axes.items() if axes.startswith("*")}
    batch = made["r_t"].shape
    result = np.zeros(batch)
    for index in np.ndindex(*batch):
        one = {name: array if name in shared else array[index] for name, array in exact.items()}
        result[index] = loss.oracle(**one)
    return result
