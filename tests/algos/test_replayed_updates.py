"""Whole updates of SAC, TD3 and DDPG against losses that are written plainly, with Adam and targets in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_optimiser import Optimizer
from value_rollouts import BOX, SPEC, clock_at, config_of, history_of, rollout_for

from shoal.algos.learning import replay
from shoal.algos.replayed_steps import SHARED_STREAM
from shoal.config.struct import named_leaves
from shoal.types import Keys
from shoal.types.spaces import Box

NUM_ENVS, NUM_STEPS, UPDATES, BATCH = 4, 6, 3, 16
GAMMA, RATE, CRITIC_RATE = 0.9, 0.01, 0.02
MINIMUM_STD, INITIAL_STD = 1e-3, 1.0
NAMES = ("layers/0/kernel", "layers/0/bias", "projection/0/kernel", "projection/0/bias")


def arrays(network, part):
    leaves = named_leaves(jax.device_get(network))
    names = [next((x for x in leaves if x.startswith(part) and x.endswith(name)), None) for name in NAMES]
    return [np.asarray(leaves[name], np.float64) for name in names if name]


def layers(parameters, x):
    w1, b1, w2, b2 = parameters
    return jax.nn.relu(x @ w1.T + b1) @ w2.T + b2


def critics(parameters, x, action):
    """Values of K critics, [K, B, m]; of actions, or where these are numbers of all, [K, B, A, m]."""
    if action is not None:
        return jax.vmap(lambda p: layers(p, jnp.concatenate([x, action], -1)))(parameters)
    return jax.vmap(lambda p: layers(p, x).reshape(len(x), 3, -1))(parameters)


ATOMS = np.linspace(-3.0, 3.0, 7)


def expectation(values, kind):
    """The expected returns of outputs [..., m]: distributions over atoms, quantiles, or one number."""
    return jax.nn.softmax(values) @ ATOMS if kind == "categorical" else values.mean(-1)


def projected(reward, discount, logits):
    """A distribution moved and projected onto the atoms: equation 7 of Bellemare et al. 2017."""
    places = np.clip(reward + discount * ATOMS, -3.0, 3.0)[:, None]
    shares = np.clip(1.0 - np.abs(places - ATOMS), 0.0, 1.0)  # atoms are 1 apart
    return np.asarray(jax.nn.softmax(logits), np.float64) @ shares


class Reference:
    """The whole history of a run, and what an algorithm makes of it."""

    def __init__(self, config, spec, history, shared):
        self.config, self.history, self.is_box = config, history, isinstance(spec.action_space, Box)
        self.is_sac = config.name == "sac"
        self.actor, self.critic = arrays(shared.network, "actor"), arrays(shared.network, "critic")
        self.target, self.target_actor = ([x.copy() for x in part] for part in (self.critic, self.actor))
        norm = config.optimization.max_grad_norm
        self.optimizers = [
            Optimizer(x, rectified=False, epsilon=1e-3, max_norm=norm) for x in (self.actor, self.critic)
        ]
        self.temperature = Optimizer([0.0], rectified=False, epsilon=1e-8, max_norm=np.inf)
        learns = self.is_sac and config.autotune
        self.log_alpha = [np.log(config.alpha) if self.is_sac else -np.inf]
        self.learns = learns
        quantiles, dropped = getattr(config.network, "num_quantiles", 0), config.drop_quantiles
        self.kind = config.network.values
        self.num_samples = {
            "quantile": config.network.num_critics * (quantiles - dropped),
            "categorical": len(ATOMS),
            "expected": 1,
        }[self.kind]
        self.since_target = self.since_actor = 0

    def policy(self, parameters, x, mask, noise):
        """The action of a noise and minus its log-probability; or of a Discrete all probabilities, and entropy."""
        out = layers(parameters, x)
        if not self.is_box:
            log_probability = jax.nn.log_softmax(jnp.where(mask, out, -1e9))
            probability = mask * jnp.exp(log_probability)
            return probability, -jnp.sum(probability * jnp.where(mask, log_probability, 0.0), -1)
        if not self.is_sac:
            return mask * jnp.clip(jnp.tanh(out) + noise, -1, 1), jnp.zeros(len(x))
        shift = np.log(np.expm1(INITIAL_STD - MINIMUM_STD))
        loc, scale = out[:, :3], MINIMUM_STD + jax.nn.softplus(out[:, 3:] + shift)
        raw = loc + scale * noise
        return mask * jnp.tanh(raw), -self.log_density(loc, scale, raw, mask)

    @staticmethod
    def log_density(loc, scale, raw, mask):
        normal = -0.5 * ((raw - loc) / scale) ** 2 - jnp.log(scale) - 0.5 * np.log(2 * np.pi)
        return jnp.sum(mask * (normal - jnp.log(1 - jnp.tanh(raw) ** 2)), -1)

    def worth(self, parameters, x, policy, combine):
        """What `combine` makes of the critics' values of a policy's actions."""
        if self.is_box:
            return combine(critics(parameters, x, policy))
        # Of a Discrete, the expectation.
        return jnp.sum(policy * combine(critics(parameters, x, None)), -1)

    def pessimistic(self, values):
        values, c = np.asarray(values), self.config
        if c.target_critics is not None:
            chosen = np.argsort(-np.asarray(jax.random.uniform(self.members_key, values.shape[:1])))
            values = values[chosen[: c.target_critics]]
        if c.network.values == "quantile":
            pooled = np.sort(np.concatenate(list(values), -1), -1)
            return pooled[:, : len(values) * (values.shape[-1] - c.drop_quantiles)]
        if c.network.values == "categorical":
            least = np.asarray(expectation(values, "categorical")).argmin(0)
            return values[least, np.arange(values.shape[1])]
        return values.min(0)[..., 0]

    def alpha(self):
        return np.exp(self.log_alpha[0])

    def follow(self, observation, mask, noise):
        """What the target's critics say of the policy there, [n] each."""
        c = self.config
        if not self.is_sac:
            noise = np.clip(c.policy_noise * noise, -c.noise_clip, c.noise_clip)
        actor = self.actor if self.is_sac else self.target_actor
        policy, entropy = self.policy(actor, observation, mask, noise)
        worth = self.worth(self.target, observation, policy, self.pessimistic)
        return np.asarray(worth, np.float64), self.alpha() * np.asarray(
            entropy, np.float64
        ) if self.is_sac else 0.0

    def steps_of(self, t, e, newest):
        """The time-steps that the transition of several steps leads to."""
        steps = [t + 1]
        while not (self.history.last[steps[-1], e] or steps[-1] == newest):
            if len(steps) == self.config.replay.n_step:
                break
            steps.append(steps[-1] + 1)
        return steps

    def goal(self, t, e, newest, noise):
        """The target of one transition: a number, or quantiles."""
        h, c = self.history, self.config
        steps = self.steps_of(t, e, newest)

        def parts(step, k):
            predicted, bonus = self.follow(
                h.observation[step, e][None], h.mask[step, e][None], noise[k][None]
            )
            return predicted[0], np.ravel(bonus)[0]

        def there(step, k):
            return sum(parts(step, k))

        if not c.corrects:
            factors = np.cumprod([1.0, *(GAMMA * h.discount[s, e] for s in steps)])
            reward = sum(f * c.reward_scale * h.reward[s, e] for f, s in zip(factors, steps, strict=False))
            if self.kind == "categorical":
                logits, bonus = parts(steps[-1], 0) if factors[-1] else (np.zeros(len(ATOMS)), 0.0)
                return projected(reward + factors[-1] * bonus, factors[-1], logits)
            return reward + (factors[-1] * there(steps[-1], 0) if factors[-1] else 0.0)
        result = 0.0
        for k, s in reversed(list(enumerate(steps))):
            following = 0.0
            if h.discount[s, e]:
                following = there(s, k)
                if k + 1 < len(steps):
                    following += self.trace(s, e) * (result - self.taken(s, e))
            result = c.reward_scale * h.reward[s, e] + GAMMA * h.discount[s, e] * following
        return result

    def taken(self, s, e):
        h, x = self.history, self.history.observation[s, e][None]
        if self.is_box:
            return self.pessimistic(critics(self.target, x, h.number[s, e][None]))[0]
        return self.pessimistic(critics(self.target, x, None))[0, h.action[s, e]]

    def trace(self, s, e):
        h, c, x = self.history, self.config, self.history.observation[s, e][None]
        if c.multistep == "uncorrected":
            return c.q_lambda
        mask = h.mask[s, e][None]
        if self.is_box:
            out, shift = layers(self.actor, x), np.log(np.expm1(INITIAL_STD - MINIMUM_STD))
            scale = MINIMUM_STD + jax.nn.softplus(out[:, 3:] + shift)
            log_prob = self.log_density(out[:, :3], scale, np.arctanh(h.number[s, e]), mask)[0]
        else:
            log_prob = np.log(self.policy(self.actor, x, mask, None)[0][0, h.action[s, e]])
        return c.q_lambda * min(1.0, np.exp(float(log_prob) - h.log_prob[s, e]))

    def step(self, rows, newest, keys):
        """A step of the critics, and what follows it; returns what metrics say of it."""
        h, c = self.history, self.config
        target_key, actor_key, self.members_key = keys
        count = BATCH * (c.replay.n_step if c.corrects else 1)
        noise = np.asarray(jax.random.normal(target_key, (count, 3))).reshape(-1, BATCH, 3)
        goals = np.zeros((BATCH, self.num_samples))
        weight = np.zeros(BATCH)
        at = np.full((BATCH, 2), rows[0][1:])  # where there is no transition, any with weight 0
        for row, t, e in rows:
            goals[row], at[row], weight[row] = self.goal(t, e, newest, noise[:, row]), (t, e), 1.0 / len(rows)
        observation, mask = h.observation[tuple(at.T)], h.mask[tuple(at.T)]
        action = h.number[tuple(at.T)] if self.is_box else h.action[tuple(at.T)]

        def critic_loss(parameters):
            values = critics(parameters, observation, action if self.is_box else None)
            if not self.is_box:
                values = jnp.take_along_axis(values, action[None, :, None, None], 2)[:, :, 0]
            if c.network.values == "expected":
                return jnp.sum(weight[:, None] * 0.5 * (values - goals) ** 2)
            if c.network.values == "categorical":
                return -jnp.sum(weight[:, None] * goals * jax.nn.log_softmax(values))
            error = goals[None, :, None, :] - values[..., None]  # [K, B, m, samples]
            part = (np.arange(values.shape[-1]) + 0.5)[:, None] / values.shape[-1]
            huber = jnp.where(jnp.abs(error) <= 1, 0.5 * error**2, jnp.abs(error) - 0.5)
            return jnp.sum(weight[:, None] * jnp.mean(jnp.abs(part - (error < 0)) * huber, 3))

        loss, norm = self.descend(critic_loss, self.critic, 1, CRITIC_RATE)
        result = {"q_loss": loss / len(self.critic[0]), "grad_norm": norm}
        self.since_actor += 1
        if self.since_actor == c.policy_frequency:
            self.since_actor = 0
            result |= self.actor_step(observation, mask, weight, jax.random.fold_in(actor_key, 0))
        self.since_target += c.replay.train_frequency
        while self.since_target >= c.targets.target_network_frequency * c.replay.gradient_steps:
            self.since_target -= c.targets.target_network_frequency * c.replay.gradient_steps
            for old, new in ((self.target, self.critic), (self.target_actor, self.actor)):
                old[:] = [x + c.targets.tau * (y - x) for x, y in zip(old, new, strict=True)]
        return result

    def actor_step(self, observation, mask, weight, key):
        """A step of the actor against the new critics, and of the temperature."""
        c = self.config
        noise = jax.random.normal(key, (BATCH, 3)) if self.is_sac else 0.0
        takes_mean = c.target_critics is not None or c.network.values == "quantile"

        def combine(values):
            values = expectation(values, self.kind)
            return values[0] if not self.is_sac else values.mean(0) if takes_mean else values.min(0)

        def loss(parameters):
            policy, entropy = self.policy(parameters, observation, mask, noise)
            worth = self.worth(self.critic, observation, policy, combine)
            return -jnp.sum(weight * (worth + self.alpha() * entropy))

        entropy = np.sum(weight * self.policy(self.actor, observation, mask, noise)[1])
        value, norm = self.descend(loss, self.actor, 0, RATE)
        if self.learns:
            share = mask.sum(-1)
            aim = c.target_entropy * share if self.is_box else c.target_entropy_share * np.log(share)
            gradient = self.alpha() * (entropy - np.sum(weight * aim))
            self.temperature.step(self.log_alpha, [np.asarray(gradient)], CRITIC_RATE)
        return {"actor_loss": value, "actor_grad_norm": norm, "entropy": entropy}

    def descend(self, loss, parameters, index, rate):
        value, gradient = jax.value_and_grad(loss)([jnp.asarray(x) for x in parameters])
        gradient = [np.asarray(x, np.float64) for x in gradient]
        self.optimizers[index].step(parameters, gradient, rate)
        return float(value), np.sqrt(sum((g**2).sum() for g in gradient))


DISTRIBUTIONS = {"values": "categorical", "num_atoms": 7, "v_min": -3.0, "v_max": 3.0}
CASES = {
    "sac": ("sac", BOX, {}),
    "sac of a Discrete": ("sac", SPEC, {"n_step": 2, "target_entropy_share": 0.9}),
    "sac at a fixed temperature": ("sac", BOX, {"autotune": False, "alpha": 0.3, "reward_scale": 2.0}),
    "sac by two of three": ("sac", BOX, {"num_critics": 3, "target_critics": 2, "policy_frequency": 2}),
    "sac with retrace": ("sac", BOX, {"multistep": "retrace", "n_step": 3, "q_lambda": 0.9}),
    "sac with retrace of a Discrete": ("sac", SPEC, {"multistep": "retrace", "n_step": 3}),
    "sac, uncorrected": ("sac", BOX, {"multistep": "uncorrected", "n_step": 3, "q_lambda": 0.8}),
    "sac of quantiles": ("sac", BOX, {"values": "quantile", "num_quantiles": 5, "drop_quantiles": 2}),
    "sac of distributions": ("sac", BOX, DISTRIBUTIONS),
    "ddpg of distributions": ("ddpg", BOX, DISTRIBUTIONS | {"n_step": 3, "reward_scale": 2.0}),
    "td3": ("td3", BOX, {"n_step": 2, "max_grad_norm": 0.1, "policy_noise": 0.5, "noise_clip": 0.3}),
    "ddpg": ("ddpg", BOX, {"gradient_steps": 2}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.quick("sac")
@pytest.mark.rare("sac at a fixed temperature", "ddpg", "sac of quantiles")
def test_updates_are_those_of_losses_that_are_written_plainly(case):
    """Three updates with a ring that wraps, a warm-up, and counts of which none divides another."""
    name, spec, settings = CASES[case]
    sizes = {"buffer_size": 40, "learning_starts": 20, "train_frequency": 7, "target_network_frequency": 11}
    rates = {"learning_rate": RATE, "critic_learning_rate": CRITIC_RATE, "optimizer_args": ("eps=1e-3",)}
    config = config_of(name, **sizes | rates | {"tau": 0.3, "gamma": GAMMA} | settings)
    algorithm = config.algorithm(spec)
    learner, update = algorithm.init(jax.random.key(3), NUM_ENVS), jax.jit(algorithm.update)
    history = history_of(5, UPDATES * NUM_STEPS, NUM_ENVS)
    reference, num_rows = Reference(config, spec, history, learner.shared), config.replay.num_rows(NUM_ENVS)
    all_steps = []
    for u in range(UPDATES):
        memory = algorithm.memory((NUM_ENVS,))
        trajectory = rollout_for(config, spec, history, u * NUM_STEPS, NUM_STEPS, memory)
        key = jax.random.key(100 + u)
        learner, metrics, checks = update(learner, trajectory, Keys.of_one_group(key), clock_at(u, UPDATES))
        newest, results = (u + 1) * NUM_STEPS, []
        for index in range(int(metrics["gradient_steps"].value)):
            sample_key, *keys = jax.random.split(jax.random.fold_in(key, index), 3)
            keys.append(jax.random.fold_in(jax.random.fold_in(key, SHARED_STREAM), index))
            window = replay.sample(
                sample_key, learner.local, learner.shared.written, BATCH, config.replay.n_step
            )
            rows = []
            for row, (e, start) in enumerate(
                zip(np.asarray(window.env), np.asarray(window.start), strict=True)
            ):
                t = next(t for t in range(newest - 1, newest - num_rows, -1) if t % num_rows == start)
                if not history.last[t, e]:
                    rows.append((row, t, e))
            results.append(reference.step(rows, newest, keys))
        all_steps += results
        for metric in {x for result in results for x in result}:
            expected = np.mean([result[metric] for result in results if metric in result])
            np.testing.assert_allclose(metrics[metric].value, expected, rtol=3e-4, atol=1e-6, err_msg=metric)
        assert not any(checks.values())
        of_target = [("actor", reference.target_actor)] * (name != "sac") + [("critic", reference.target)]
        for tree, parts in (
            ("network", [("actor", reference.actor), ("critic", reference.critic)]),
            ("target", of_target),
        ):
            for part, expected in parts:
                for ours, theirs in zip(arrays(getattr(learner.shared, tree), part), expected, strict=True):
                    np.testing.assert_allclose(ours, theirs, rtol=5e-4, atol=5e-5, err_msg=f"{tree} {part}")
        if reference.learns:
            np.testing.assert_allclose(metrics["alpha"].value, reference.alpha(), rtol=1e-4)
    assert len(all_steps) >= 6 and sum("actor_loss" in x for x in all_steps) >= 2
