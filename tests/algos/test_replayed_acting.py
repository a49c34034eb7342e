"""How SAC and TD3 act, at random and by their policies, and in which units they learn."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from quadratic import Quadratic
from tiny_worlds import assert_equal, populate, values
from value_rollouts import BOX, HIGH, LOW, SPEC, clock_at, config_of, history_of, rollout_for

from shoal.algos.acting.memories import Memory
from shoal.config.struct import as_arrays, named_leaves, with_named_leaves
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Clock, Keys, TimeStep, spec_of

N = 4096
CORRELATED = {"correlated_noise": True, "noise_correlation": 0.5}
MIDDLE, HALF = (np.array(HIGH) + LOW) / 2, (np.array(HIGH) - LOW) / 2


def at(steps):
    return Clock.zero()._replace(steps=jnp.float32(steps))


def acted(name, spec=BOX, steps=0, mask=None, noise=0.5, greedy=False, behaves=True, **settings):
    """What is acted in N environments of one observation: the environment's actions, and what the replay keeps."""
    config = config_of(name, learning_starts=64, **settings)
    algorithm = config.algorithm(spec)
    learner = algorithm.init(jax.random.key(0), 1)
    policy = (algorithm.behaviour if behaves else algorithm.policy)(learner, at(steps))
    memory = algorithm.memory((N,))
    held = jax.random.normal(jax.random.key(5), (N, 3)) if config.correlated_noise else ()
    assert jax.tree.map(jnp.shape, memory) == Memory(noise=jax.tree.map(jnp.shape, held))
    flags, mask = jnp.zeros(N, bool), jnp.asarray(np.broadcast_to(True if mask is None else mask, (N, 3)))
    timestep = TimeStep(jnp.full((N, 3), 0.3), jnp.zeros(N), jnp.ones(N), flags, flags, mask)
    act = jax.jit(functools.partial(algorithm.act, greedy=greedy))
    _, action, kept = act(policy, Memory(noise=held), timestep, jax.random.key(1))
    return np.asarray(action, np.float64), jax.tree.map(np.asarray, kept)


@pytest.mark.parametrize("settings", [{}, CORRELATED], ids=["white", "correlated"])
@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.quick("sac-correlated")
def test_random_actions_are_uniform_within_the_bounds_and_leave_out_what_an_agent_has_not(name, settings):
    action, (number, kept) = acted(name, mask=[True, True, False], **settings)
    unit = (action - MIDDLE) / HALF
    np.testing.assert_allclose(unit, number, atol=1e-5)
    for entry in (0, 1):
        assert scipy.stats.kstest(unit[:, entry], scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01
    np.testing.assert_array_equal(action[:, 2], MIDDLE[2])
    assert (action >= LOW).all() and (action <= HIGH).all()
    np.testing.assert_allclose(np.tanh(kept.raw), number, atol=1e-5)
    np.testing.assert_allclose(kept.log_prob, -2 * np.log(2), rtol=1e-6)


@pytest.mark.full
def test_random_actions_of_a_discrete_are_legal_and_all_alike():
    action, (_, kept) = acted("sac", SPEC, mask=[True, False, True])
    assert set(action) == {0, 2} and abs((action == 0).mean() - 0.5) < 0.03
    np.testing.assert_allclose(kept.log_prob, -np.log(2), rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, CORRELATED], ids=["white", "correlated"])
def test_noise_of_td3_is_in_units_of_the_range_and_of_collecting_alone(settings):
    best, _ = acted("td3", steps=64, greedy=True, **settings)
    assert (best == best[0]).all()
    action, (number, _) = acted("td3", steps=64, exploration_noise=0.05, **settings)
    np.testing.assert_allclose(((action - best) / HALF).std(0), 0.05, rtol=0.05)
    np.testing.assert_allclose((action - MIDDLE) / HALF, number, atol=1e-5)
    np.testing.assert_array_equal(acted("td3", behaves=False, **settings)[0], best)
    wide, _ = acted("td3", steps=64, exploration_noise=5.0, **settings)
    assert (wide >= LOW).all() and (wide <= HIGH).all() and (wide == np.float32(HIGH)).any()


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, CORRELATED], ids=["white", "correlated"])
def test_sac_acts_by_its_distribution_while_it_collects_and_where_it_is_sampled(settings):
    action, (_, kept) = acted("sac", steps=64, **settings)
    sampled, _ = acted("sac", behaves=False, **settings)
    best, _ = acted("sac", behaves=False, greedy=True, **settings)
    assert (best == best[0]).all()
    for entry in range(3):
        assert scipy.stats.ks_2samp(action[:, entry], sampled[:, entry]).pvalue > 0.01
        assert abs((sampled[:, entry] < best[0, entry]).mean() - 0.5) < 0.03  # the mode is its median
    unit = (action - MIDDLE) / HALF
    std, log_slope = kept.raw.std(0), np.log1p(-np.square(unit)).sum(-1)
    normal = scipy.stats.norm(kept.raw.mean(0), std).logpdf(kept.raw).sum(-1)
    np.testing.assert_allclose((normal - log_slope).mean(), kept.log_prob.mean(), atol=0.05)


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.quick("td3")
def test_random_actions_are_of_the_budget_and_come_before_all_others(name):
    """64 environments: 32 steps of each at random, the others by a policy that is certain; all are in the replay."""
    config = config_of(
        name,
        **{"learning_starts": 2048, "buffer_size": 64 * 50, "train_frequency": 64, "learning_rate": 1e-30},
        **{"exploration_noise": 0.01} if name == "td3" else {"initial_std": 0.01},
    )
    sizes = {"num_envs": 64, "num_steps": 4, "total_updates": 10}
    population, compiled = populate(Quadratic(), config, **sizes)
    population, _ = compiled.train(population, jnp.int32(10))
    ring = jax.tree.map(lambda x: np.asarray(x[0]), population.learner.local)
    # An episode of one step and its end are two rows; the second's action is not acted.
    actions = np.where(ring.last[..., None], np.nan, ring.action)
    at_random = actions[:, :32].reshape(-1, 2)
    at_random = at_random[~np.isnan(at_random[:, 0])]
    assert len(at_random) > 500
    for entry in (0, 1):
        assert scipy.stats.kstest(at_random[:, entry], scipy.stats.uniform(-1, 2).cdf).pvalue > 0.01
    assert np.nanstd(actions[:, 32:40], axis=(0, 1)).max() < 0.05


@pytest.mark.full
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_run_that_resumed_without_its_replay_acts_by_its_policy(name):
    algorithm = config_of(name, learning_starts=64).algorithm(BOX)
    full = jax.tree.map(lambda x: x + jnp.ones_like(x), algorithm.init(jax.random.key(0), 4))
    learner = algorithm.without_replay(full)
    assert not any(x.any() for x in jax.tree.leaves(learner.local)) and learner.shared.written == 0
    assert_equal(learner.shared, full.shared._replace(written=learner.shared.written))
    assert algorithm.behaviour(learner, at(63)).random
    assert not algorithm.behaviour(learner, at(64)).random


@pytest.mark.full
@pytest.mark.parametrize("name", ["sac", "td3"])
def test_a_policy_of_correlated_noise_acts_without_a_memory(name):
    env, config = Quadratic(), as_arrays(config_of(name, **CORRELATED))
    algorithm = config.algorithm(spec_of(env))
    parameters = algorithm.policy(algorithm.init(jax.random.key(0), 1), Clock.zero())
    policy = TrainedPolicy(config, parameters, env)
    assert policy.initial_memory() == ()
    best, sampled = policy.act(np.ones(1)), policy.act(np.ones((500, 1)), key=jax.random.key(1))
    assert best.shape == (2,) and sampled.shape == (500, 2)
    assert (sampled == best).all() == (name == "td3")


@pytest.mark.full
@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.rare("td3")
def test_the_units_of_actions_change_nothing(name):
    """Bounds [-2, 6] and [0, 0.5] as [-1, 1]: densities, entropies and noise are of the policy's own numbers."""
    learned = []
    for bounds in ({}, {"low": (-1.0, -1.0), "high": (1.0, 1.0)}):
        config = config_of(name, train_frequency=32, critic_learning_rate=1e-3, learning_starts=64)
        population, compiled = populate(Quadratic(**bounds), config, total_updates=20)
        population, metrics = compiled.train(population, jnp.int32(20))
        learned.append(values((population.learner.shared, metrics["q_loss"], metrics.get("alpha"))))
    for entry, x in learned[0].items():
        np.testing.assert_allclose(x, learned[1][entry], rtol=2e-3, atol=2e-5, err_msg=entry)


def updated(config, spec, history, change=lambda learner: learner):
    algorithm = config.algorithm(spec)
    learner = change(algorithm.init(jax.random.key(1), 4))
    trajectory = rollout_for(config, spec, history, 0, 6, algorithm.memory((4,)))
    new, metrics, checks = jax.jit(algorithm.update)(
        learner, trajectory, Keys.of_one_group(jax.random.key(2)), clock_at(0, 8)
    )
    assert not any(checks.values())
    return learner.shared, new.shared, metrics


@pytest.mark.quick("one legal")
@pytest.mark.parametrize(
    "settings", [{}, {"n_step": 3, "multistep": "retrace"}], ids=["one legal", "retrace"]
)
def test_an_illegal_action_may_have_any_value_and_one_legal_action_no_entropy(settings):
    """Of probability 0, whose logarithm is infinite, and so may be its value: 0 times either would be NaN."""
    config, history = config_of("sac", **settings), history_of(0, 12, 4)
    legal = np.broadcast_to(np.arange(3) == 1, history.mask.shape)
    history = history._replace(mask=legal, action=np.ones_like(history.action))

    def with_value(value):
        def change(learner):
            def of_illegal(network):
                leaves = named_leaves(network)
                name = next(x for x in leaves if x.endswith("critic/members/layers/mlp/projection/0/bias"))
                bias = leaves[name].at[:, ::2].set(value)
                return with_named_leaves(network, leaves | {name: bias})

            shared = learner.shared
            network, target = of_illegal(shared.network), of_illegal(shared.target)
            return learner._replace(shared=shared._replace(network=network, target=target))

        old, new, metrics = updated(config, SPEC, history, change)
        assert metrics["entropy"].value == 0 and new.log_alpha == old.log_alpha
        leaves = named_leaves((new.network.actor, new.network.critic, metrics))
        name = next(x for x in leaves if x.startswith("1/") and x.endswith("projection/0/bias"))
        return leaves | {name: leaves[name][:, 1]}

    expected = with_value(0.0)
    assert all(np.isfinite(x).all() for x in expected.values())
    for value in (jnp.inf, -jnp.inf, 50.0):
        assert_equal(with_value(value), expected)


@pytest.mark.full
@pytest.mark.parametrize("name, spec", [("sac", BOX), ("sac", SPEC), ("td3", BOX)])
@pytest.mark.rare("sac-spec1")
def test_each_loss_moves_its_own_part(name, spec):
    """Of the actor and the critics, whichever does not learn stays as it is."""
    still = {"optimizer": "sgd", "optimizer_args": (), "critic_optimizer": "sgd"}
    for moves, rate, critic_rate in (("actor", 0.1, 1e-37), ("critic", 1e-37, 0.1)):
        rates = {"learning_rate": rate, "critic_learning_rate": critic_rate, "policy_frequency": 1}
        old, new, _ = updated(config_of(name, **still, **rates), spec, history_of(0, 12, 4))
        for part in ("actor", "critic"):
            first, second = (values(getattr(x.network, part)) for x in (old, new))
            greatest = max(np.abs(first[x] - second[x]).max() for x in first)
            assert greatest > 1e-4 if part == moves else greatest < 1e-30
