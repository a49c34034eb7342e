"""Policies of distrax's and tensorflow-probability's distributions: updates, densities, and what is refused.

Both packages are real; rlax, which other tests need, requires them.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shoal.algos.acting import actions
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import with_settings
from shoal.nets.mlp import MLP
from shoal.nets.network_check import check_network
from shoal.nets.networks import NetworkClass
from shoal.ops.distributions import Beta, Categorical, Foreign, Normal, TanhNormal, adapted, masked
from shoal.types import Clock, EnvSpec, Keys, TimeStep, Trajectory
from shoal.types.spaces import Box, Discrete, MultiDiscrete

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they use parts of JAX that are deprecated
    import distrax
    from tensorflow_probability.substrates import jax as tfp

tfd, tfb = tfp.distributions, tfp.bijectors
OBSERVATION = Box(-1.0, 1.0, (3,))
DISCRETE = EnvSpec(OBSERVATION, Discrete(4))
CONTINUOUS = EnvSpec(OBSERVATION, Box(-2.0, 2.0, (2,)))
T, N = 8, 6


class Net(nnx.Module):
    """Two outputs for each number of the action, the second positive; `make` makes of them a distribution."""

    def __init__(self, spec, *, key):
        space = spec.action_space
        size = space.n if isinstance(space, Discrete) else sum(getattr(space, "nvec", space.shape))
        actor_key, critic_key = jax.random.split(key)
        self.pi = MLP(3, (8,), size, out_scale=0.5, key=actor_key)
        self.v = MLP(3, (8,), 1, key=critic_key)
        self.log_scale = nnx.Param(jnp.full(size, -0.5))

    def policy(self, observation, action_mask=None):
        # The scale has no batch axes, as libraries allow.
        return type(self).make(self.pi(observation), jnp.exp(self.log_scale[...]), action_mask)

    def value(self, observation):
        return self.v(observation)[..., 0]


def net(make):
    """A class of networks whose policy is `make(x, scale, action_mask)`."""
    return type("Mine", (Net,), {"make": staticmethod(make)})


def own_normal(x, scale, mask):
    return Normal(x, jnp.broadcast_to(scale, x.shape))


def own_tanh(x, scale, mask):
    return TanhNormal(x, jnp.broadcast_to(scale, x.shape))


def positive(x, scale):
    return 1.0 + jax.nn.softplus(x), jnp.broadcast_to(1.0 + scale, x.shape)


def own_beta(x, scale, mask):
    return Beta(*positive(x, scale), low=-1.0, high=1.0)


def legal(x, mask):
    return x if mask is None else jnp.where(mask, x, -1e9)


def own_categorical(x, scale, mask):
    return Categorical(x) if mask is None else masked(Categorical(x), mask)


OWN = {
    "categorical": (own_categorical, DISCRETE, "auto"),
    "normal": (own_normal, CONTINUOUS, "auto"),
    "beta": (own_beta, CONTINUOUS, "beta"),
    "tanh": (own_tanh, CONTINUOUS, "tanh_normal"),
}
FOREIGN = {
    "categorical-distrax": lambda x, s, m: distrax.Categorical(logits=legal(x, m)),
    "categorical-tfp": lambda x, s, m: tfd.Categorical(logits=legal(x, m)),
    "normal-distrax": lambda x, s, m: distrax.Normal(x, s),
    "normal-distrax-independent": lambda x, s, m: distrax.Independent(distrax.Normal(x, s), 1),
    "normal-distrax-vector": lambda x, s, m: distrax.MultivariateNormalDiag(x, s),
    "normal-tfp": lambda x, s, m: tfd.Normal(x, s),
    "normal-tfp-independent": lambda x, s, m: tfd.Independent(tfd.Normal(x, s), 1),
    "normal-tfp-vector": lambda x, s, m: tfd.MultivariateNormalDiag(x, s),
    "beta-distrax": lambda x, s, m: distrax.Beta(*positive(x, s)),
    "beta-distrax-independent": lambda x, s, m: distrax.Independent(distrax.Beta(*positive(x, s)), 1),
    "beta-tfp": lambda x, s, m: tfd.Beta(*positive(x, s)),
    "beta-tfp-independent": lambda x, s, m: tfd.Independent(tfd.Beta(*positive(x, s)), 1),
    "tanh-distrax": lambda x, s, m: distrax.Transformed(distrax.Normal(x, s), distrax.Tanh()),
    "tanh-distrax-independent": lambda x, s, m: distrax.Independent(
        distrax.Transformed(distrax.Normal(x, s), distrax.Tanh()), 1
    ),
    "tanh-distrax-vector": lambda x, s, m: distrax.Transformed(
        distrax.MultivariateNormalDiag(x, s), distrax.Block(distrax.Tanh(), 1)
    ),
    "tanh-tfp": lambda x, s, m: tfd.TransformedDistribution(tfd.Normal(x, s), tfb.Tanh()),
    "tanh-tfp-independent": lambda x, s, m: tfd.Independent(
        tfd.TransformedDistribution(tfd.Normal(x, s), tfb.Tanh()), 1
    ),
    "tanh-tfp-vector": lambda x, s, m: tfd.TransformedDistribution(
        tfd.MultivariateNormalDiag(x, s), tfb.Tanh()
    ),
}


def timesteps(spec, with_mask):
    keys = jax.random.split(jax.random.key(1), 4)
    last = jax.random.bernoulli(keys[0], 0.2, (T + 1, N))
    first = jnp.concatenate([jnp.zeros((1, N), bool), last[:-1]])
    mask = jax.random.bernoulli(keys[3], 0.6, (T + 1, N, 4)).at[..., 0].set(True) if with_mask else None
    observation = jax.random.normal(keys[1], (T + 1, N, 3))
    reward = jnp.where(first, 0.0, jax.random.normal(keys[2], (T + 1, N)))
    return TimeStep(observation, reward, jnp.ones((T + 1, N)), first, last & ~first, action_mask=mask)


def config_of(make, kind="auto", **settings):
    settings = {"learning_rate": 1e-3, "ent_coef": 0.01, "update_epochs": 2, "num_minibatches": 2} | settings
    config = with_settings(PPOConfig(network=NetworkClass(net(make), kind)), **settings)
    return config.resolved()


def updated(config, spec, leaves, trajectory):
    """What an update makes of a network of these leaves: leaves, and metrics."""
    algorithm = config.algorithm(spec)

    @jax.jit
    def update(leaves, trajectory):
        learner = algorithm.init(jax.random.key(0), N)
        network = jax.tree.unflatten(jax.tree.structure(learner.shared.network), leaves)
        learner = learner._replace(shared=learner.shared._replace(network=network))
        keys = Keys(jax.random.key(2), jax.random.key(3))
        after, metrics, _ = algorithm.update(learner, trajectory, keys, Clock.zero())
        return jax.tree.leaves(after.shared.network), {k: v.total / v.weight for k, v in metrics.items()}

    return update(leaves, trajectory)


def acted(config, spec, steps):
    """A rollout of steps that are independent of its actions, and the network that acted."""
    algorithm = config.algorithm(spec)
    learner = algorithm.init(jax.random.key(0), N)
    before = jax.tree.map(lambda x: x[:-1], steps)
    policy = algorithm.policy(learner, Clock.zero())
    _, action, extras = jax.jit(algorithm.act)(policy, algorithm.memory((T, N)), before, jax.random.key(4))
    trajectory = Trajectory(steps, action, extras, algorithm.memory((N,)))
    return jax.tree.leaves(learner.shared.network), trajectory


@pytest.mark.parametrize("surrogate", ["clip", "penalty"])
@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.quick("categorical-distrax-clip", "tanh-distrax-vector-penalty")
@pytest.mark.rare(*(f"{name}-penalty" for name in FOREIGN if "independent" in name))
@pytest.mark.rare(
    "beta-tfp-penalty",
    "categorical-tfp-penalty",
    "tanh-tfp-vector-clip",
    "beta-tfp-clip",
    "categorical-distrax-penalty",
)
def test_an_update_is_that_of_shoals_own_distribution(name, surrogate):
    own, spec, kind = OWN[name.split("-")[0]]
    config = config_of(own, kind, surrogate=surrogate)
    leaves, trajectory = acted(config, spec, timesteps(spec, spec is DISCRETE))
    after, metrics = updated(config, spec, leaves, trajectory)
    if not name.startswith("beta"):  # which becomes Shoal's own
        trajectory = trajectory._replace(extras=trajectory.extras._replace(distribution=()))
    theirs, their_metrics = updated(
        config_of(FOREIGN[name], surrogate=surrogate, gradient_chunk=8), spec, leaves, trajectory
    )
    for x, y in zip(after, theirs, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    assert any(np.max(np.abs(x - y)) > 1e-4 for x, y in zip(leaves, theirs, strict=True))
    for key in ("policy_loss", "entropy", "approx_kl", "kl_coef"):
        np.testing.assert_allclose(metrics[key], their_metrics[key], atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.quick("normal-tfp", "beta-distrax", "tanh-tfp-independent")
def test_each_method_is_that_of_shoals_own_distribution(name):
    own, spec, _ = OWN[name.split("-")[0]]
    size = spec.action_space.n if spec is DISCRETE else 2
    x, other = jax.random.normal(jax.random.key(0), (2, 5, size))
    scale = jnp.asarray([0.4, 1.3]) if spec is CONTINUOUS else jnp.ones(size)

    def methods(make):
        one, two = adapted(make(x, scale, None)), adapted(make(other, 1.5 * scale, None))
        mine = own(x, scale, None)
        raw = getattr(mine, "sample_raw", mine.sample)(jax.random.key(1))
        log_prob = getattr(one, "log_prob_raw", one.log_prob)
        values = one.mode(), log_prob(raw), one.log_prob(mine.sample(jax.random.key(1)))
        values = *values, actions.entropy(one), one.kl(two)
        return (*values, getattr(one, "from_raw", lambda x: x)(raw)), one.sample_and_log_prob(
            jax.random.key(2)
        )

    (ours, _), (theirs, (sample, density)) = (jax.jit(lambda f=f: methods(f))() for f in (own, FOREIGN[name]))
    for a, b in zip(ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(own(x, scale, None).log_prob(sample), density, rtol=1e-3, atol=1e-4)


def test_an_entropy_without_closed_form_is_estimated_by_one_sample():
    """Of a chain of bijectors, differentiable, and with other noise for other parameters."""
    bijector = tfb.Chain([tfb.Scale(2.0), tfb.Tanh()])

    @jax.jit
    def entropy(loc):
        base = tfd.Normal(jnp.broadcast_to(loc, (20_000, 2)), jnp.asarray([0.4, 1.3]))
        return adapted(tfd.TransformedDistribution(base, bijector)).entropy()

    right = TanhNormal(jnp.full(2, 0.3), jnp.asarray([0.4, 1.3]), -2.0, 2.0).entropy_estimate()
    estimates = entropy(0.3)
    assert estimates.shape == (20_000,)
    assert abs(estimates.mean() - right) < 5 * estimates.std() / np.sqrt(20_000)
    assert np.abs(entropy(0.3001) - estimates).max() > 0.1
    slope = jax.grad(lambda loc: entropy(loc).mean())(0.3)
    step = 1e-2
    ends = [
        TanhNormal(jnp.full(2, 0.3 + x), jnp.asarray([0.4, 1.3])).entropy_estimate() for x in (-step, step)
    ]
    assert abs(slope - (ends[1] - ends[0]) / (2 * step)) < 0.02


def test_densities_near_the_bounds_are_those_of_the_raw_samples():
    """tanh rounds their actions to one number, from which no inverse would tell them."""
    loc = jnp.full((4, 2), 12.0)
    d = adapted(FOREIGN["tanh-distrax"](loc, jnp.ones(2), None))
    raw = d.sample_raw(jax.random.key(0))
    right = TanhNormal(loc, jnp.ones((4, 2))).log_prob_raw(raw)
    assert isinstance(d, Foreign) and len(np.unique(d.from_raw(raw))) == 1
    np.testing.assert_allclose(d.log_prob_raw(raw), right, rtol=1e-5)


class WithoutLogProb:
    def sample(self, *, seed):
        return jnp.zeros((3, 2), jnp.int32)

    def mode(self):
        return self.sample(seed=None)

    def entropy(self):
        return jnp.zeros((3, 2))


def learned_bijector(x, scale, mask):
    chain = tfb.Chain([tfb.Tanh(), tfb.Shift(x), tfb.Scale(scale)])
    return tfd.TransformedDistribution(tfd.Normal(jnp.zeros_like(x), 1.0), chain)


def in_units_of_the_space(x, scale, mask):
    chain = distrax.Chain([distrax.ScalarAffine(0.0, 2.0), distrax.Tanh()])
    return distrax.Transformed(distrax.Normal(x, scale), chain)


def squashed_to_half(x, scale, mask):
    return distrax.Transformed(distrax.Normal(x, scale), distrax.Sigmoid())


def mixture(x, scale, mask):
    parts = tfd.MultivariateNormalDiag(jnp.stack([x, -x], -2), scale)
    return tfd.MixtureSameFamily(tfd.Categorical(logits=jnp.zeros((*x.shape[:-1], 2))), parts)


def without_kl(x, scale, mask):
    return tfd.Independent(tfd.Logistic(x, scale), 1)


REFUSED = {
    "log_prob": (lambda x, s, m: WithoutLogProb(), DISCRETE, {}, "without the method 'log_prob'"),
    "learned": (learned_bijector, CONTINUOUS, {}, "whose bijector depends on the network"),
    "scaled": (in_units_of_the_space, CONTINUOUS, {}, r"are in \[-2, 2\]; choose action_scaling='clip'"),
    "half": (squashed_to_half, CONTINUOUS, {}, r"are in \[0, 1\]; choose action_scaling='clip'"),
    "joint": (
        lambda x, s, m: distrax.Joint((distrax.Categorical(logits=x), distrax.Categorical(logits=x))),
        EnvSpec(OBSERVATION, MultiDiscrete((2, 2))),
        {},
        "a distribution of actions of 2 values; it must return",
    ),
    "float": (
        lambda x, s, m: tfd.Categorical(logits=x, dtype=jnp.float32),
        DISCRETE,
        {},
        r"a distribution of actions of float32\[3, 2\]; it must return int32\[3, 2\]",
    ),
    "mode": (mixture, CONTINUOUS, {}, "MixtureSameFamily whose mode is not implemented"),
    "beta": (FOREIGN["beta-tfp"], CONTINUOUS, {"action_scaling": "clip"}, "choose action_scaling='rescale'"),
    "kl": (without_kl, CONTINUOUS, {"surrogate": "penalty"}, "needs a KL divergence"),
    "noise": (FOREIGN["normal-tfp"], CONTINUOUS, {"correlated_noise": True}, "correlated_noise=True is for"),
    "kind": (FOREIGN["tanh-tfp"], CONTINUOUS, {"kind": "tanh_normal"}, "distribution='tanh_normal' is for"),
    "parts": (
        lambda x, s, m: distrax.Categorical(logits=x.reshape(*x.shape[:-1], 2, 2)),
        EnvSpec(OBSERVATION, MultiDiscrete((2, 2))),
        {},
        r"log-probabilities of float32\[3, 2, 2\]; it must return float32\[3, 2\]",
    ),
    "choices": (
        lambda x, s, m: tfd.Categorical(probs=jnp.ones((*x.shape[:-1], 5)) / 5),
        DISCRETE,
        {},
        "a distribution over 5 choices; it must return one over",
    ),
    "two of three": (
        lambda x, s, m: distrax.Bernoulli(logits=x[..., 0]),
        EnvSpec(OBSERVATION, Discrete(3)),
        {},
        "a distribution over 2 choices; it must return one over 3",
    ),
    "choices of parts": (
        lambda x, s, m: distrax.Independent(distrax.Categorical(logits=jnp.zeros((*x.shape[:-1], 2, 3))), 1),
        EnvSpec(OBSERVATION, MultiDiscrete((2, 2))),
        {},
        "a distribution over 3 and 3 choices; it must return one over 2 and 2",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.quick("log_prob", "learned", "scaled", "kl")
def test_what_cannot_work_is_refused_in_one_sentence(case):
    make, spec, settings, sentence = REFUSED[case]
    with pytest.raises(ShoalError, match=sentence) as error:
        config_of(make, **settings).validate(spec, 8, 16)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "spec", "settings"),
    [
        (in_units_of_the_space, CONTINUOUS, {"action_scaling": "clip"}),
        (without_kl, CONTINUOUS, {}),
        (
            lambda x, s, m: distrax.Independent(
                distrax.Categorical(logits=jnp.zeros((*x.shape[:-1], 2, 3)).at[..., 0, 2].set(-1e9)), 1
            ),
            EnvSpec(OBSERVATION, MultiDiscrete((2, 3))),
            {},
        ),
        (
            lambda x, s, m: distrax.Independent(
                distrax.Categorical(logits=x.reshape(*x.shape[:-1], 2, 2)), 1
            ),
            EnvSpec(OBSERVATION, MultiDiscrete((2, 2))),
            {"surrogate": "penalty"},
        ),
        (
            lambda x, s, m: distrax.Independent(distrax.Bernoulli(logits=jnp.zeros((*x.shape[:-1], 3))), 1),
            EnvSpec(OBSERVATION, MultiDiscrete((2, 2, 2))),
            {},
        ),
    ],
    ids=["scaled", "logistic", "padded", "parts", "yes or no"],
)
@pytest.mark.quick("scaled")
def test_what_can_work_passes(make, spec, settings):
    config_of(make, **settings).validate(spec, 8, 16)


def test_actors_with_critics_of_actions_refuse_them():
    class Actor(Net):
        make = staticmethod(FOREIGN["tanh-tfp"])

    class Critic(nnx.Module):
        def __init__(self, spec, *, key):
            self.mlp = MLP(5, (4,), 1, key=key)

        def values(self, observation, action):
            return jnp.swapaxes(self.mlp(jnp.concatenate([observation, action], -1)), -1, 0)[None, ..., 0]

    class Both(nnx.Module):
        def __init__(self, spec, *, key):
            self.actor, self.critic = Actor(spec, key=key), Critic(spec, key=key)

    with pytest.raises(ShoalError, match=r"of another package; it must return one of shoal\.ops"):
        check_network(Both, CONTINUOUS, of_action_critics=True)
