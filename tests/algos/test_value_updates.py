"""Whole updates of DQN, C51, QR-DQN and PQN against an independent implementation in NumPy, in float64."""

import functools

import jax
import numpy as np
import pytest
from numpy_optimiser import Optimizer
from value_rollouts import NUM_ACTIONS, SPEC, clock_at, config_of, history_of, rollout_of

from shoal.algos.acting.memories import Memory
from shoal.algos.learning import minibatches, priorities, replay
from shoal.config.struct import named_leaves
from shoal.types import Keys

NUM_ENVS, NUM_STEPS, UPDATES = 4, 6, 3
GAMMA = 0.9
RATE = {"learning_rate": 0.01, "optimizer_args": ("eps=1e-3",)}  # so that no rounding decides a step's sign
NAMES = ("layers/0/kernel", "layers/0/bias", "projection/0/kernel", "projection/0/bias")


def arrays(network):
    leaves = named_leaves(jax.device_get(network))
    return [np.asarray(leaves[f"layers/mlp/{name}"], np.float64) for name in NAMES]


class Network:
    """Two layers in NumPy, with their gradient; outputs [B, A, m]."""

    def __init__(self, parameters):
        self.parameters = [x.copy() for x in parameters]

    def __call__(self, x):
        w1, b1, w2, b2 = self.parameters
        self.x, self.hidden = x, np.maximum(x @ w1.T + b1, 0)
        out = self.hidden @ w2.T + b2
        return out.reshape(*out.shape[:-1], NUM_ACTIONS, -1)

    def gradient(self, slope):
        """Of all parameters, for the slopes of the loss in the outputs of the latest call."""
        slope = slope.reshape(len(slope), -1)
        behind = (slope @ self.parameters[2]) * (self.hidden > 0)
        return [behind.T @ self.x, behind.sum(0), slope.T @ self.hidden, slope.sum(0)]


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


class Reference:
    """The whole history of a run, and what each algorithm makes of it."""

    def __init__(self, config, history, parameters):
        self.config, self.history = config, history
        self.network, self.target = Network(parameters), Network(parameters)
        self.is_pqn = not hasattr(config, "replay")
        optimization = config.optimization
        epsilon = float(optimization.optimizer_args[0].removeprefix("eps="))
        self.optimizer = Optimizer(
            parameters, rectified=self.is_pqn, epsilon=epsilon, max_norm=optimization.max_grad_norm
        )
        self.kind, self.atoms = config.network.values, np.linspace(-3, 3, 7)
        self.seen = None
        self.since_target = 0
        self.leaves, self.greatest = np.zeros((NUM_ENVS, 1)), 1.0  # priorities of rows

    def observe(self, end):
        """Take the moments of the observations before time-step `end` at which an action was taken."""
        h = self.history
        self.seen = h.observation[:end][~h.last[:end]]

    def shown(self, observation):
        if not self.config.norm_obs or self.seen is None:
            return observation
        return np.clip((observation - self.seen.mean(0)) / np.maximum(self.seen.std(0), 1e-4), -10, 10)

    def values(self, output):
        """The expected values of an output, [B, A]."""
        return softmax(output) @ self.atoms if self.kind == "categorical" else output.mean(-1)

    def best(self, output, mask):
        return np.where(mask, self.values(output), -np.inf).argmax(-1)

    def slope(self, output, t, e, newest):
        """The slope of the loss of one transition, from time-step t of environment e, in its output [A, m]."""
        h, c = self.history, self.config
        a = h.action[t, e]
        reward, factor, steps = 0.0, 1.0, []
        while True:
            reward += factor * c.reward_scale * h.reward[t + 1 + len(steps), e]
            factor *= GAMMA * h.discount[t + 1 + len(steps), e]
            steps.append(t + 1 + len(steps))
            end = steps[-1]
            if h.last[end, e] or end == newest or len(steps) == c.replay.n_step:
                break
        if c.multistep != "n_step":
            reward, factor = self.corrected(steps, e), 0.0
        atoms = np.zeros(output.shape[-1])
        if factor:
            following = self.target(self.shown(h.observation[end, e])[None])[0]
            chosen_by = self.network if c.double else self.target
            best = self.best(chosen_by(self.shown(h.observation[end, e])[None])[0], h.mask[end, e])
            atoms = following[best]
            if c.munchausen:
                atoms = np.array([self.soft_maximum(following[:, 0], h.mask[end, e])])
        if c.munchausen:
            values = self.target(self.shown(h.observation[t, e])[None])[0][:, 0]
            log_policy = values[a] - self.soft_maximum(values, h.mask[t, e])
            reward += 0.9 * max(log_policy, -1.0)
        return self.loss(output, a, reward, factor, atoms)

    def loss(self, output, a, reward, factor, atoms):
        """The slope and the loss for the target of which `atoms` are logits, quantiles, or one value."""
        slope, c = np.zeros_like(output), self.config
        if self.kind == "categorical":
            target = np.zeros(7)
            probability = softmax(atoms)
            for z, p in zip(self.atoms, probability, strict=True):  # equation 7 of Bellemare et al. 2017
                b = (np.clip(reward + factor * z, -3, 3) + 3) / 1.0
                low, high = int(np.floor(b + 1e-12)), int(np.ceil(b - 1e-12))
                if low == high:
                    target[low] += p
                else:
                    target[low] += p * (high - b)
                    target[high] += p * (b - low)
            slope[a] = softmax(output[a]) - target
            loss = -(target * np.log(softmax(output[a]))).sum()
        elif self.kind == "quantile":
            loss, samples, m = 0.0, reward + factor * atoms, len(atoms)
            for i in range(m):
                for x in samples:
                    error, part = x - output[a, i], (2 * i + 1) / (2 * m)
                    weight = abs(part - (error < 0)) / m
                    slope[a, i] -= weight * (np.clip(error, -1, 1) if c.huber else np.sign(error))
                    size = abs(error)
                    huber = 0.5 * error**2 if size <= 1 else size - 0.5
                    loss += weight * (huber if c.huber else size)
        else:
            error = output[a, 0] - (reward + factor * atoms[0])
            delta = c.huber_delta if c.huber else np.inf
            slope[a, 0] = np.clip(error, -delta, delta)
            loss = 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - delta / 2)
        return slope, loss

    @staticmethod
    def soft_maximum(values, mask):
        return 0.03 * np.log(np.exp((values - values[mask].max()) / 0.03)[mask].sum()) + values[mask].max()

    def corrected(self, steps, e):
        """The return of several steps with traces, from the last step to the first."""
        h, c, result = self.history, self.config, 0.0
        for k, t in reversed(list(enumerate(steps))):
            value, trace, taken = 0.0, 0.0, 0.0
            if h.discount[t, e]:
                output = self.target(self.shown(h.observation[t, e])[None])[0]
                chosen_by = self.network if c.double else self.target
                best = self.best(chosen_by(self.shown(h.observation[t, e])[None])[0], h.mask[t, e])
                value = self.values(output)[best]
                if k + 1 < len(steps):
                    a = h.action[t, e]
                    taken, is_best = self.values(output)[a], float(a == best)
                    trace = (
                        c.q_lambda
                        * {
                            "retrace": min(1.0, is_best / np.exp(h.log_prob[t, e])),
                            "tree_backup": is_best,
                            "q_lambda_watkins": float(taken >= value),  # of equals, each is greedy
                            "uncorrected": 1.0,
                        }[c.multistep]
                    )
            result = c.reward_scale * h.reward[t, e] + GAMMA * h.discount[t, e] * (
                value + trace * (result - taken)
            )
        return result

    def write(self, begin, newest, num_rows):
        """Give rows of time-steps the greatest priority so far where a transition starts, in a ring of so many."""
        if self.leaves.shape[1] != num_rows:
            self.leaves = np.zeros((NUM_ENVS, num_rows))
        for t in range(begin, newest + 1):
            starts = ~self.history.last[t] & (t < newest)
            self.leaves[:, t % num_rows] = np.where(starts, self.greatest, 0.0)

    def drawn_by(self):
        """Our trees of these priorities."""
        env, row = (x.ravel() for x in np.indices(self.leaves.shape))
        leaves = np.float32(self.leaves).ravel()
        return priorities.updated(priorities.empty(*self.leaves.shape), env, row, leaves)

    def importance(self, env, row, progress):
        share = self.leaves[env, row] / self.leaves.sum()
        beta = self.config.replay.prioritized_replay_beta
        weight = (self.leaves.size * share) ** -(beta + (1 - beta) * progress)
        return weight / weight.max()

    def set_priorities(self, env, row):
        c = self.config.replay
        new = (self.errors + c.prioritized_replay_eps) ** c.prioritized_replay_alpha
        self.greatest = max(self.greatest, new.max())
        self.leaves[env, row] = new

    def descend(self, rows, rate, importance=1.0):
        """Make a gradient step on rows (observation, function from its output to slope and loss), weighted."""
        observations, functions = zip(*rows, strict=True)
        output = self.network(np.array(observations))
        kept = self.network.x, self.network.hidden
        slopes, losses = zip(*(f(x) for f, x in zip(functions, output, strict=True)), strict=True)
        self.network.x, self.network.hidden = kept
        self.errors = np.array(losses) if self.kind != "expected" else np.abs(slopes).sum((1, 2))
        slopes, losses = ((np.array(x).T * importance).T for x in (slopes, losses))
        gradient = self.network.gradient(slopes / len(rows))
        norm = np.sqrt(sum((g**2).sum() for g in gradient))
        self.optimizer.step(self.network.parameters, gradient, rate)
        return sum(losses) / len(rows), norm

    def move_target(self):
        c = self.config
        self.since_target += c.replay.train_frequency
        while self.since_target >= c.targets.target_network_frequency * c.replay.gradient_steps:
            self.since_target -= c.targets.target_network_frequency * c.replay.gradient_steps
            pairs = zip(self.target.parameters, self.network.parameters, strict=True)
            self.target.parameters = [old + c.targets.tau * (new - old) for old, new in pairs]


def compare(learner, reference, metrics, expected):
    for tree, network in (("network", reference.network), ("target", reference.target)):
        if not reference.is_pqn or tree == "network":
            for ours, theirs in zip(arrays(getattr(learner.shared, tree)), network.parameters, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5, err_msg=tree)
    for name, numbers in zip(("q_loss", "grad_norm"), np.array(expected).T, strict=True):
        np.testing.assert_allclose(metrics[name].value, numbers.mean(), rtol=2e-4, err_msg=name)


def started(config):
    algorithm = config.algorithm(SPEC)
    learner = algorithm.init(jax.random.key(3), NUM_ENVS)
    history = history_of(5, UPDATES * NUM_STEPS, NUM_ENVS)
    return jax.jit(algorithm.update), learner, Reference(config, history, arrays(learner.shared.network))


DQN = {
    "plain": ("dqn", {}),
    "double": ("dqn", {"double": True}),
    "three steps": ("dqn", {"n_step": 3, "double": True}),
    "normalised": ("dqn", {"norm_obs": True, "reward_scale": 3.0, "n_step": 2}),
    "clipped": ("dqn", {"max_grad_norm": 0.05, "gradient_steps": 2}),
    "huber": ("dqn", {"huber": True, "huber_delta": 0.4}),
    "munchausen": ("dqn", {"munchausen": True, "reward_scale": 0.5}),
    "retrace": ("dqn", {"multistep": "retrace", "n_step": 4, "q_lambda": 0.9}),
    "retrace and double": ("dqn", {"multistep": "retrace", "n_step": 3, "double": True, "norm_obs": True}),
    "tree backup": ("dqn", {"multistep": "tree_backup", "n_step": 3}),
    "watkins": ("dqn", {"multistep": "q_lambda_watkins", "n_step": 3, "q_lambda": 0.8}),
    "uncorrected": ("dqn", {"multistep": "uncorrected", "n_step": 3, "reward_scale": 2.0}),
    "prioritized": ("dqn", {"prioritized_replay": True, "n_step": 3, "double": True}),
    "c51": ("c51", {}),
    "c51, prioritized": ("c51", {"prioritized_replay": True, "prioritized_replay_alpha": 0.9, "n_step": 2}),
    "c51, double of two steps": ("c51", {"double": True, "n_step": 2, "norm_obs": True}),
    "qr_dqn": ("qr_dqn", {"double": True, "n_step": 2}),
    "qr_dqn without huber": ("qr_dqn", {"huber": False}),
}


@pytest.mark.parametrize("case", DQN)
@pytest.mark.quick("retrace and double", "c51", "prioritized", "qr_dqn")
def test_updates_from_a_replay_are_those_of_numpy(case):
    """Three updates with a ring that wraps, a warm-up, and counts of which none divides another."""
    name, settings = DQN[case]
    sizes = {"buffer_size": 40, "learning_starts": 20, "train_frequency": 7, "target_network_frequency": 11}
    config = config_of(name, **sizes | RATE | {"tau": 0.3, "gamma": GAMMA} | settings)
    update, learner, reference = started(config)
    num_rows = config.replay.num_rows(NUM_ENVS)
    expected_steps = 0
    for u in range(UPDATES):
        trajectory = rollout_of(
            reference.history, u * NUM_STEPS, NUM_STEPS, extras=config.multistep == "retrace"
        )
        key = jax.random.key(100 + u)
        new, metrics, checks = update(learner, trajectory, Keys.of_one_group(key), clock_at(u, UPDATES))
        newest, h = (u + 1) * NUM_STEPS, reference.history
        reference.observe(newest)
        reference.write(u * NUM_STEPS, newest, num_rows)
        numbers = range(u * NUM_STEPS * NUM_ENVS, newest * NUM_ENVS)
        due = sum(s > 20 and s % 7 == 0 for s in numbers) * config.replay.gradient_steps
        assert metrics["gradient_steps"].value == due
        results = []
        for index in range(due):
            ring, written = new.local, new.shared.written
            is_prioritized = config.replay.prioritized_replay
            ring = ring._replace(priorities=reference.drawn_by() if is_prioritized else None)
            window = replay.sample(jax.random.fold_in(key, index), ring, written, 16, config.replay.n_step)
            rows, weights = [], []
            env, start = np.asarray(window.env), np.asarray(window.start)
            for e, row in zip(env, start, strict=True):
                t = next(t for t in range(newest - 1, newest - num_rows, -1) if t % num_rows == row)
                weights.append(not h.last[t, e])
                if weights[-1]:
                    slope = functools.partial(reference.slope, t=t, e=e, newest=newest)
                    rows.append((reference.shown(h.observation[t, e]), slope))
            factors = reference.importance(env, start, u / UPDATES) if is_prioritized else 1.0
            results.append(reference.descend(rows, 0.01, factors))
            if is_prioritized:
                assert all(weights)
                reference.set_priorities(env, start)
            reference.move_target()
        expected_steps += due
        if due:
            compare(new, reference, metrics, results)
        assert not any(checks.values())
        learner = new
        if config.replay.prioritized_replay:
            leaves = np.asarray(new.local.priorities.tree)
            leaves = leaves[:, leaves.shape[1] // 2 :][:, :num_rows]
            np.testing.assert_allclose(leaves, reference.leaves, rtol=1e-3)
            np.testing.assert_allclose(
                np.maximum(new.local.priorities.greatest, 1.0), reference.greatest, rtol=1e-3
            )
    assert expected_steps >= 6
    assert all(np.isfinite(x).all() for x in arrays(learner.shared.network))


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"norm_obs": True, "reward_scale": 2.0, "max_grad_norm": 0.1}])
def test_updates_of_pqn_are_those_of_numpy(settings):
    config = config_of(
        "pqn",
        **{
            "layer_norm": False,
            "gamma": GAMMA,
            "learning_rate": 0.01,
            "optimizer_args": RATE["optimizer_args"],
            "q_lambda": 0.7,
            "update_epochs": 2,
        }
        | {"num_minibatches": 3}
        | settings,
    )
    update, learner, reference = started(config)
    for u in range(UPDATES):
        begin, h = u * NUM_STEPS, reference.history
        trajectory = rollout_of(h, begin, NUM_STEPS, Memory(), extras=False)
        key = jax.random.key(50 + u)
        new, metrics, _ = update(learner, trajectory, Keys.of_one_group(key), clock_at(u, UPDATES))
        targets = np.zeros((NUM_STEPS, NUM_ENVS))
        for e in range(NUM_ENVS):
            following = None
            for k in reversed(range(NUM_STEPS)):
                t = begin + k
                if h.last[t, e]:
                    following = None
                    continue
                value = 0.0
                if h.discount[t + 1, e]:
                    output = reference.network(reference.shown(h.observation[t + 1, e])[None])[0]
                    value = output[reference.best(output, h.mask[t + 1, e]), 0]
                following = value if following is None else 0.3 * value + 0.7 * following
                following = (
                    config.reward_scale * h.reward[t + 1, e] + GAMMA * h.discount[t + 1, e] * following
                )
                targets[k, e] = following
        shown = reference.shown(h.observation)
        rows = type("Rows", (), {"weight": np.zeros(NUM_STEPS * NUM_ENVS)})
        orders = np.asarray(minibatches.shuffled_rows(rows, 2, 3, key)).reshape(6, -1)
        assert all(sorted(orders[k : k + 3].ravel()) == list(range(NUM_STEPS * NUM_ENVS)) for k in (0, 3))
        results = []
        for order in orders:
            batch = []
            for index in order:
                k, e = divmod(int(index), NUM_ENVS)
                if h.last[begin + k, e]:
                    continue

                def slope(output, a=h.action[begin + k, e], target=targets[k, e]):
                    error = np.zeros_like(output)
                    error[a] = output[a] - target
                    return error, 0.5 * error[a, 0] ** 2

                batch.append((shown[begin + k, e], slope))
            results.append(reference.descend(batch, 0.01 * (1 - u / UPDATES)))
        reference.observe(begin + NUM_STEPS)
        compare(new, reference, metrics, results)
        learner = new
