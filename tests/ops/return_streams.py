"""Streams with every kind of end, and each function of returns as a plain loop written from its paper.

The loops are forward views in float64: for every step a sum over all that follow it in its episode.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.ops import off_policy, returns, vtrace

GAMMA, ACTIONS = 0.97, 3


class Stream(NamedTuple):
    """Everything that a function of returns may ask for, by the name of its argument."""

    r_t: np.ndarray
    discount_t: np.ndarray
    last_t: np.ndarray
    w_tm1: np.ndarray
    lambda_: np.ndarray
    v_tm1: np.ndarray
    v_t: np.ndarray
    log_rho_tm1: np.ndarray
    targets_tm1: np.ndarray
    q_t: np.ndarray  # [T, A]
    a_t: np.ndarray
    pi_t: np.ndarray  # [T, A]
    mu_t: np.ndarray
    c_t: np.ndarray
    q_a_t: np.ndarray  # [T]: what `q_t` means where only the actions taken have values
    log_rho_t: np.ndarray


BEFORE = ("r_t", "discount_t", "v_tm1", "log_rho_tm1", "targets_tm1")  # not read where the weight is 0
BOOTSTRAP = ("v_t", "q_t", "pi_t")  # nor where the episode terminated
ACTED = ("lambda_", "mu_t", "c_t", "q_a_t", "log_rho_t")  # nor where it ended in any way, or the stream does
FLOATING = BEFORE + BOOTSTRAP + ACTED


def stream(seed: int, kinds: str, poison: bool = True) -> Stream:
    """A stream whose t-th transition is `kinds[t]`.

    o goes on; t terminates; c is cut (truncated); b is both at once; d ends one agent's life, not the world's
    episode; 0 has weight 0. T, C and B are t, c and b in a world that resets on the next step, so that the next
    transition has weight 0; so has the one after a death. With `poison`, what may not be read is NaN or, for an
    action, out of range.
    """
    rng, length = np.random.default_rng(seed), len(kinds)
    kind = np.array(list(kinds))
    silent = np.zeros(length, bool)
    for t in range(1, length):  # what is itself silent ends nothing
        silent[t] = kind[t - 1] in "TCBd" and not silent[t - 1]
    weight = np.where(silent | (kind == "0"), 0.0, 1.0).astype(np.float32)
    terminated, truncated = np.isin(kind, list("tTbBd")), np.isin(kind, list("cCbB"))
    last = (terminated | truncated) & (kind != "d")

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(size=(length, *shape)).astype(np.float32)

    q_t = normal(ACTIONS)
    odds = np.exp(normal(ACTIONS))
    a_t = np.where(rng.uniform(size=length) < 0.5, q_t.argmax(-1), rng.integers(ACTIONS, size=length))
    s = Stream(
        r_t=normal(),
        discount_t=np.where(terminated, 0.0, GAMMA).astype(np.float32),
        last_t=np.where(weight > 0, last, rng.uniform(size=length) < 0.5),
        w_tm1=weight,
        lambda_=rng.uniform(size=length).astype(np.float32),
        v_tm1=normal(),
        v_t=normal(),
        log_rho_tm1=0.5 * normal(),
        targets_tm1=normal(),
        q_t=q_t,
        a_t=a_t.astype(np.int32),
        pi_t=odds / odds.sum(-1, keepdims=True),
        mu_t=rng.uniform(0.05, 1.0, size=length).astype(np.float32),
        c_t=rng.uniform(size=length).astype(np.float32),
        q_a_t=normal(),
        log_rho_t=0.5 * normal(),
    )
    return poisoned(s) if poison else s


def may_be_read(s: Stream) -> dict[str, np.ndarray]:
    """For each floating field which entries count, [T]."""
    counts = s.w_tm1 > 0
    bootstraps = counts & (s.discount_t != 0)
    acted = np.zeros_like(counts)
    for run in episodes(s):
        acted[run.start : run.stop - 1] = True
    kinds = ((BEFORE, counts), (BOOTSTRAP, bootstraps), (ACTED, acted))
    return {name: mask for names, mask in kinds for name in names}


def poisoned(s: Stream) -> Stream:
    """The stream with NaN, or an action out of range, wherever nothing may be read."""
    masks = may_be_read(s)
    made = {name: np.array(getattr(s, name)) for name in FLOATING}
    for name, array in made.items():
        array[~masks[name]] = np.nan
    nowhere = np.resize([99, -1], len(s.a_t))
    return s._replace(**made, a_t=np.where(masks["c_t"], s.a_t, nowhere).astype(np.int32))


def consistent(s: Stream) -> Stream:
    """The stream with one value for each observation, not two, where an episode goes on."""
    v_t = np.array(s.v_t)
    for run in episodes(s):
        v_t[run.start : run.stop - 1] = s.v_tm1[run.start + 1 : run.stop]
    return s._replace(v_t=v_t)


def unbroken(seed: int = 0, length: int = 24) -> Stream:
    """Terminations alone, no steps of weight 0, one value for each observation: what rlax's functions are for."""
    kinds = ["o"] * length
    kinds[6] = kinds[13] = "t"
    s = stream(seed, "".join(kinds), poison=False)
    return s._replace(v_t=np.append(s.v_tm1[1:], s.v_t[-1:]))


def episodes(s: Stream) -> list[range]:
    """Runs of transitions that belong together: none reaches across an end or a transition of weight 0."""
    runs, start = [], None
    for t in range(len(s.w_tm1)):
        if s.w_tm1[t] == 0:
            if start is not None:
                runs.append(range(start, t))
            start = None
            continue
        start = t if start is None else start
        if s.last_t[t] or s.discount_t[t] == 0:
            runs.append(range(start, t + 1))
            start = None
    return runs if start is None else [*runs, range(start, len(s.w_tm1))]


def discounted(s: Stream, t: int, value: np.ndarray) -> float:
    """γ_t times a value at t that may be NaN where nothing follows."""
    return 0.0 if s.discount_t[t] == 0 else float(s.discount_t[t]) * float(value[t])


def each_step(step: Callable[[Stream, range, int], float]) -> Callable[[Stream], list[np.ndarray]]:
    """A loop over all steps of all episodes; what counts for nothing is 0."""

    def loop(s: Stream) -> list[np.ndarray]:
        result = np.zeros(len(s.r_t))
        for run in episodes(s):
            for i in run:
                result[i] = step(s, run, i)
        return [result]

    return loop


def gae(s: Stream, run: range, i: int) -> float:
    """Schulman et al. 2015, eq. 16: the sum of (γλ)^l δ_{i+l}."""
    total, decay = 0.0, 1.0
    for j in range(i, run.stop):
        total += decay * (float(s.r_t[j]) + discounted(s, j, s.v_t) - float(s.v_tm1[j]))
        decay *= float(s.discount_t[j]) * float(s.lambda_[j])
    return total


def n_step(s: Stream, run: range, i: int, n: int, value: np.ndarray) -> float:
    """Sutton and Barto 2018, eq. 7.1: up to n rewards, then the value of where they led."""
    total, decay = 0.0, 1.0
    for j in range(i, min(i + n, run.stop)):
        total += decay * float(s.r_t[j])
        if j + 1 < min(i + n, run.stop):
            decay *= float(s.discount_t[j])
    return total + decay * discounted(s, j, value)


def mixture(s: Stream, run: range, i: int, value: np.ndarray, going_on: Callable, most: int) -> float:
    """Sutton and Barto 2018, eq. 12.18 unrolled: n-step returns, each by the probability of stopping there."""
    total, alive = 0.0, 1.0
    most = min(most, run.stop - i)
    for n in range(1, most + 1):
        on = 0.0 if n == most else float(going_on(i + n - 1))
        total += alive * (1 - on) * n_step(s, run, i, n, value)
        alive *= on
    return total


def off_policy_return(s: Stream, run: range, i: int, q: np.ndarray, v: np.ndarray, c: Callable) -> float:
    """Munos et al. 2016, eq. 3: Q plus the sum of γ^t (prod c) (r + γ E Q - Q), in which the first Q cancels."""
    total, decay = 0.0, 1.0
    for j in range(i, run.stop):
        q_j = 0.0 if j == i else float(q[j - 1])
        total += decay * (float(s.r_t[j]) + discounted(s, j, v) - q_j)
        if j + 1 < run.stop:
            decay *= float(s.discount_t[j]) * float(s.lambda_[j]) * float(c(j))
    return total


def expectation(s: Stream) -> np.ndarray:
    return np.array(
        [sum(p * q for p, q in zip(*row, strict=True)) for row in zip(s.pi_t, s.q_t, strict=True)]
    )


def taken(s: Stream, x: np.ndarray) -> np.ndarray:
    return np.array([row[a] if 0 <= a < ACTIONS else np.nan for row, a in zip(x, s.a_t, strict=True)])


def retrace(s: Stream, run: range, i: int) -> float:
    """Munos et al. 2016, section 3: c = λ min(1, π/μ)."""

    def c(j: int) -> float:
        return min(1.0, float(s.pi_t[j, s.a_t[j]]) / float(s.mu_t[j]))

    return off_policy_return(s, run, i, taken(s, s.q_t), expectation(s), c)


def tree_backup(s: Stream, run: range, i: int) -> float:
    """Sutton and Barto 2018, eq. 7.16: the leaves by their probabilities, and below the action taken the tree.

    With λ, the action's own value stands for the tree below it with probability 1 - λ.
    """
    if s.discount_t[i] == 0:
        return float(s.r_t[i])
    total = 0.0
    for a in range(ACTIONS):
        leaf = float(s.q_t[i, a])
        if i + 1 < run.stop and a == s.a_t[i]:
            leaf += float(s.lambda_[i]) * (tree_backup(s, run, i + 1) - leaf)
        total += float(s.pi_t[i, a]) * leaf
    return float(s.r_t[i]) + float(s.discount_t[i]) * total


def watkins(s: Stream, run: range, i: int) -> float:
    """Sutton and Barto 2018, section 12.10: as far as the first action that was not greedy."""

    def going_on(j: int) -> float:
        return float(s.lambda_[j]) if s.q_t[j, s.a_t[j]] == s.q_t[j].max() else 0.0

    return mixture(s, run, i, s.q_t.max(-1), going_on, len(run))


def importance_corrected(s: Stream, run: range, i: int) -> float:
    """Sutton et al. 2014: δ_j by the product of all ratios and decays up to it."""
    total, decay = 0.0, np.exp(float(s.log_rho_tm1[i]))
    for j in range(i, run.stop):
        total += decay * (float(s.r_t[j]) + discounted(s, j, s.v_t) - float(s.v_tm1[j]))
        if j + 1 < run.stop:
            decay *= float(s.discount_t[j]) * float(s.lambda_[j]) * np.exp(float(s.log_rho_tm1[j + 1]))
    return total


def vtrace_targets(s: Stream, clip_rho: float = 1.0, clip_c: float = 1.0) -> list[np.ndarray]:
    """Espeholt et al. 2018, eq. 1: v_i = V_i + sum_j γ^{j-i} (prod c) δ_j."""
    targets, ratio = s.v_tm1.astype(np.float64), np.exp(s.log_rho_tm1.astype(np.float64))
    for run in episodes(s):
        for i in run:
            decay = 1.0
            for j in range(i, run.stop):
                error = float(s.r_t[j]) + discounted(s, j, s.v_t) - float(s.v_tm1[j])
                targets[i] += decay * min(clip_rho, ratio[j]) * error
                decay *= float(s.discount_t[j]) * float(s.lambda_[j]) * min(clip_c, ratio[j])
    return [targets]


def vtrace_advantage(s: Stream, run: range, i: int) -> float:
    """Espeholt et al. 2018, section 4.2, with (1 - λ) V + λ v for what follows."""
    if i + 1 == run.stop:
        return float(s.r_t[i]) + discounted(s, i, s.v_t) - float(s.v_tm1[i])
    lambda_ = float(s.lambda_[i])
    following = (1 - lambda_) * float(s.v_t[i]) + lambda_ * float(s.targets_tm1[i + 1])
    return float(s.r_t[i]) + float(s.discount_t[i]) * following - float(s.v_tm1[i])


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A function with its options, its loop, and the fields of a stream that are its arguments."""

    function: Callable[..., Any]
    loop: Callable[[Stream], list[np.ndarray]]
    options: dict[str, Any]
    renamed: dict[str, str]

    @property
    def arguments(self) -> tuple[str, ...]:
        positional = [
            p for p in inspect.signature(self.function).parameters.values() if p.kind != p.KEYWORD_ONLY
        ]
        return tuple(self.renamed.get(p.name, p.name) for p in positional)

    def __call__(self, s: Stream, **options: Any) -> list[Any]:
        """The results as a list of arrays."""
        values = (getattr(s, name) for name in self.arguments)
        return jax.tree.leaves(self.function(*values, **self.options, **options))


def case(function: Callable, loop: Callable, renamed: dict[str, str] | None = None, **options: Any) -> Case:
    return Case(function, loop, options, renamed or {})


def n_steps(n: int) -> Callable[[Stream, range, int], float]:
    return lambda s, run, i: mixture(s, run, i, s.v_t, lambda j: s.lambda_[j], n)


ONLY_TAKEN = {"q_t": "q_a_t"}
CASES = {
    "gae": case(returns.gae, each_step(gae)),
    "lambda_returns": case(returns.lambda_returns, each_step(n_steps(1000))),
    "discounted_returns": case(
        returns.discounted_returns, each_step(lambda s, run, i: n_step(s, run, i, 1000, s.v_t))
    ),
    "n_step_returns_3": case(returns.n_step_returns, each_step(n_steps(3)), n=3),
    "n_step_returns_100": case(returns.n_step_returns, each_step(n_steps(100)), n=100),
    "vtrace_targets": case(
        vtrace.vtrace_targets, lambda s: vtrace_targets(s, 1.4, 0.8), clip_rho=1.4, clip_c=0.8
    ),
    "vtrace_advantages": case(vtrace.vtrace_advantages, each_step(vtrace_advantage)),
    "general_off_policy_returns_from_q_and_v": case(
        off_policy.general_off_policy_returns_from_q_and_v,
        each_step(lambda s, run, i: off_policy_return(s, run, i, s.q_a_t, s.v_t, lambda j: s.c_t[j])),
        ONLY_TAKEN,
    ),
    "general_off_policy_returns_from_action_values": case(
        off_policy.general_off_policy_returns_from_action_values,
        each_step(
            lambda s, run, i: off_policy_return(
                s, run, i, taken(s, s.q_t), expectation(s), lambda j: s.c_t[j]
            )
        ),
    ),
    "retrace": case(off_policy.retrace, each_step(retrace)),
    "retrace_continuous": case(
        off_policy.retrace_continuous,
        each_step(
            lambda s, run, i: off_policy_return(
                s, run, i, s.q_a_t, s.v_t, lambda j: min(1.0, np.exp(float(s.log_rho_t[j])))
            )
        ),
        ONLY_TAKEN,
    ),
    "tree_backup": case(off_policy.tree_backup, each_step(tree_backup)),
    "q_lambda_peng": case(
        off_policy.q_lambda_peng,
        each_step(lambda s, run, i: mixture(s, run, i, s.q_t.max(-1), lambda j: s.lambda_[j], len(run))),
    ),
    "q_lambda_watkins": case(off_policy.q_lambda_watkins, each_step(watkins)),
    "importance_corrected_td_errors": case(
        off_policy.importance_corrected_td_errors, each_step(importance_corrected)
    ),
}
