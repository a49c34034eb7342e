"""A pure training function learns what `shoal.train` learns, and is compiled and mapped as any function of JAX."""

import contextlib
import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_worlds import Breaks
from tiny_bandit import BanditConfig

import shoal
from shoal.algos.catalogue import algorithms, config_class
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct
from shoal.config.settings import settings_of, with_settings
from shoal.envs import registry
from shoal.envs.base import unwrapped
from shoal.envs.probes import ActionReward
from shoal.records.directory import RunDirectory
from shoal.records.run_config import RunConfig
from shoal.runs.policies.evaluate import evaluate_run
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import pure_training
from shoal.runs.train.pure_training import SETTINGS
from shoal.xla.costs import _programs

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {"num_envs": 4, "num_steps": 8, "eval_episodes": 4, "eval_max_steps": 30}
PPO = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 2, "lr_schedule": "linear"}
CARTPOLE = with_settings(PPOConfig(), **PPO, norm_obs=True)
KEY = jax.random.key(3)
CONTINUOUS = ("ddpg", "td3")


def trained(path, environment, config, **settings):
    """One seed, with a row of metrics for each update."""
    return shoal.train(
        environment,
        algorithm=config,
        **{"seeds": 1, "seed": 3, "devices": 1, "progress": False, "run_dir": path, "log_every": 32},
        **SMALL | settings,
    )


def assert_equal(tree, expected):
    jax.tree.map(np.testing.assert_array_equal, tree, expected)


def assert_close(tree, expected):
    """Equal but for the rounding of a batch of matrix products, over four updates."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), tree, expected)


def member(tree, k):
    return jax.tree.map(lambda x: x[k], tree)


CASES = {
    "cartpole": ("CartPole-v1", CARTPOLE),
    "recurrent": ("CartPole-v1", with_settings(CARTPOLE, core="gru", core_size=8, chunk_length=4)),
    "several agents": ("mpe/Spread-v0", with_settings(PPOConfig(), **PPO)),
    "own algorithm": (ActionReward(), BanditConfig()),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_evals", [0, 3])
@pytest.mark.rare("0-recurrent", "0-cartpole", "0-several agents", "3-recurrent")
def test_what_is_learned_is_that_of_a_run_bit_for_bit(tmp_path, name, num_evals):
    """The learner, metrics and evaluations; within a caller's program too, where numbers are constants."""
    environment, config = CASES[name]
    run = trained(tmp_path, environment, config, num_updates=7, num_evals=3)
    train = shoal.make_train(environment, config, **SMALL, num_updates=7, num_evals=num_evals)
    learner, metrics = train(KEY)
    assert_equal(learner, member(run.learner, 0))
    if name in ("cartpole", "own algorithm"):
        assert_equal(jax.jit(train, compiler_options=train.compiler_options)(KEY)[0], learner)
    evaluations = metrics.pop("evaluations", None)
    rows = [row for row in RunDirectory.open(tmp_path).load_metrics() if row["kind"] == "train"]
    assert {x.shape for x in metrics.values()} == {(7,)}
    for metric, values in metrics.items():
        expected = [np.nan if row[metric] is None else row[metric] for row in rows]
        np.testing.assert_array_equal(values, np.float32(expected), err_msg=metric)
    assert (evaluations is None) == (num_evals == 0)
    if evaluations is not None:
        assert [steps for steps, _ in run.evaluations] == [
            32 * n for n in evaluations.pop("updates").tolist()
        ]
        for metric, values in evaluations.items():
            np.testing.assert_array_equal(values, [float(x[metric][0]) for _, x in run.evaluations])


@pytest.mark.full
def test_without_a_config_the_preset_is_taken_and_its_policy_acts(tmp_path):
    run = trained(tmp_path, "CartPole-v1", "", num_updates=2, num_minibatches=2)
    train = shoal.make_train("CartPole-v1", **SMALL, total_steps=70, num_minibatches=2)
    learner, _ = jax.jit(train)(KEY)
    assert train.config.optimization.learning_rate == np.float32(1e-3)
    policy, expected = train.policy(learner), run.policy("last")
    assert_equal(policy.parameters, expected.parameters)
    observations = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)
    assert_equal(policy((), observations), expected((), observations))


@pytest.mark.full
def test_keys_are_mapped_and_nothing_is_written(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    train = shoal.make_train("CartPole-v1", CARTPOLE, **SMALL, num_updates=4, num_evals=2)
    learners, metrics = jax.jit(jax.vmap(train))(jax.random.split(KEY, 3))
    assert metrics["entropy"].shape == (3, 4)
    assert metrics["evaluations"]["return_mean"].shape == (3, 3)
    for k, key in enumerate(jax.random.split(KEY, 3)):
        assert_close(member(learners, k), train(key)[0])
    assert not np.array_equal(metrics["entropy"][0], metrics["entropy"][1])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.full
def test_configs_are_mapped():
    """Single floats, and all of them; each member is its own run."""

    def train(config, key):
        return shoal.make_train("CartPole-v1", config, **SMALL, num_updates=4)(key)[0].shared.network

    rates = jnp.float32([1e-4, 1e-3, 1e-2])
    by_rate = jax.vmap(lambda rate: train(with_settings(CARTPOLE, learning_rate=rate), KEY))(rates)
    configs = [with_settings(CARTPOLE, learning_rate=float(rate), gamma=0.9) for rate in rates]
    whole = [config.resolved() for config in configs]
    stacked = jax.tree.map(lambda *xs: jnp.float32(xs), *whole)
    by_config = jax.vmap(train, in_axes=(0, None))(stacked, KEY)
    for k, rate in enumerate(rates):
        assert_close(member(by_rate, k), train(with_settings(CARTPOLE, learning_rate=rate), KEY))
        assert_close(member(by_config, k), train(configs[k], KEY))
    assert not np.allclose(jax.tree.leaves(by_rate)[0][0], jax.tree.leaves(by_rate)[0][1])


def test_training_is_differentiated_by_a_setting():
    """Forward through the loop of updates and the map over directions; the reference is a difference quotient."""

    def preferences(step_size):
        train = shoal.make_train(
            "probe/action", BanditConfig(step_size), num_envs=2, num_steps=4, num_updates=2
        )
        return train(jax.random.key(0))[0].shared.actions

    found = jax.jit(jax.jacfwd(preferences))(jnp.float32(0.3))
    low, high = map(jax.jit(preferences), (jnp.float32(0.29), jnp.float32(0.31)))
    np.testing.assert_allclose(found, (high - low) / 0.02, rtol=1e-2)
    assert np.abs(found).min() > 0.1


def test_equal_shapes_compile_once():
    """Of one function, and of two that are made alike."""
    settings = {**SMALL, "num_updates": 2}
    program = pure_training._compiled(pure_training._train, True)
    before = program._cache_size()
    for step_size in (0.5, 0.25):
        train = shoal.make_train(ActionReward(), BanditConfig(step_size=step_size), **settings)
        for seed in (0, 1):
            train(jax.random.key(seed))
    assert program._cache_size() == before + 1
    compiled = jax.jit(train)
    first, second = compiled(jax.random.key(0)), compiled(jax.random.key(1))
    assert compiled._cache_size() == 1
    assert not np.array_equal(first[0].shared.actions, second[0].shared.actions)


def test_a_seed_at_fault_makes_no_further_update():
    train = shoal.make_train(Breaks(reward=1.0, within=1500.0), BanditConfig(), **SMALL, num_updates=20)
    keys = jax.random.split(KEY, 4)
    _, metrics = jax.jit(jax.vmap(train))(keys)
    ended = np.isnan(metrics["episodes"])
    assert ended.any()
    assert not ended.all()
    assert (np.sort(ended, axis=1) == ended).all()  # none goes on


@pytest.mark.parametrize(
    ("environment", "config", "settings", "sentence"),
    [
        ("CartPole", None, {}, "did you mean 'CartPole-v1'"),
        ("CartPole-v1", None, {"gama": 0.9}, "there is no setting 'gama'; did you mean 'gamma'"),
        (
            "CartPole-v1",
            PPOConfig(),
            {"seeds": 3},
            "seeds=3 has no effect in make_train, which trains one seed on",
        ),
        ("CartPole-v1", None, {"run_dir": "x"}, "run_dir='x' has no effect in make_train"),
        ("CartPole-v1", None, {"num_minibatches": 7}, "num_minibatches=7 does not divide"),
        ("CartPole-v1", with_settings(PPOConfig(), gamma=2.0), {}, "gamma=2 is out of bounds"),
        ("CartPole-v1", PPOConfig, {"total_steps": 1}, "total_steps=1 is less than one rollout"),
        ("CartPole-v1", 3, {}, "config=3"),
        (
            gymnasium.make("CartPole-v1"),
            None,
            {},
            "it is an environment of gymnasium, and Shoal runs its own",
        ),
        (ActionReward, None, {}, "ActionReward'> is a class; give an environment"),
    ],
)
def test_what_cannot_work_is_refused_where_the_function_is_made(environment, config, settings, sentence):
    with pytest.raises(shoal.ShoalError, match=sentence):
        shoal.make_train(environment, config, **settings)


def test_what_is_no_key_is_refused():
    train = shoal.make_train(ActionReward(), BanditConfig(), **SMALL, num_updates=2)
    with pytest.raises(shoal.ShoalError, match="key=0 is not a random key"):
        train(0)


def traced(function):
    """Trace a function of one number."""
    jax.eval_shape(lambda x: (function(x), x)[1], jnp.float32(1))


@pytest.mark.full
def test_each_setting_is_data_or_refused_by_name():
    """Refused before anything is traced, and no later training of the process suffers from it."""
    owners, run = set(), settings_of(RunConfig())
    for algorithm in algorithms():
        environment = "MountainCarContinuous-v0" if algorithm in CONTINUOUS else "CartPole-v1"
        for name, setting in (settings_of(config_class(algorithm)()) | {x: run[x] for x in SETTINGS}).items():
            if (setting.owner, name) in owners:
                continue
            owners.add((setting.owner, name))

            def make(x, environment=environment, algorithm=algorithm, name=name):
                shoal.make_train(environment, algorithm, preset=False, **{name: x})

            def make_with(x, environment=environment, algorithm=algorithm, name=name):
                shoal.make_train(environment, with_settings(config_class(algorithm)(), **{name: x}))

            if setting.is_data:
                traced(make_with)
            else:
                with pytest.raises(shoal.ShoalError, match=rf"^{name}( is traced|=\S+ is (neither|not) )"):
                    traced(make)
    assert len(owners) > 300
    shoal.make_train("CartPole-v1", CARTPOLE, **SMALL, num_updates=1)(KEY)


def test_each_parameter_of_an_environment_is_data_or_refused_by_name():
    counts = {False: 0, True: 0}
    by_class = {type(unwrapped(shoal.make(name))): name for name in shoal.envs.environments()}
    for cls, environment in by_class.items():
        for name, declared in registry.parameters_of(environment).items():
            is_data = name in struct.data_fields(cls)
            if declared.annotation is float or not is_data:
                counts[is_data] += 1
                with (
                    contextlib.nullcontext()
                    if is_data
                    else pytest.raises(shoal.ShoalError, match=f"{name}.*traced")
                ):
                    traced(lambda x, name=name, of=environment: shoal.make(of, **{name: x}))
    assert min(counts.values()) > 100


ENVIRONMENTS = sorted({type(unwrapped(shoal.make(x))): x for x in shoal.envs.environments()}.values())


@pytest.mark.parametrize("name", ENVIRONMENTS)
@pytest.mark.quick("CartPole-v1", "Pendulum-v1", "mpe/Tag-v0")
@pytest.mark.rare("particles/Swarm-v0", "particles/MultiRoller-v0", "particles/MultiNavigator-v0")
def test_every_number_of_an_environment_may_be_traced(name):
    environment = shoal.make(name)

    def train(environment):
        made = shoal.make_train(environment, "ppo", preset=False, **SMALL, num_updates=1, num_minibatches=2)
        return made(KEY)[0]

    assert jax.eval_shape(train, struct.as_arrays(environment)) is not None


def test_environments_and_initial_weights_are_mapped():
    """Each member is its own run, its environment given or named."""

    def train(environment, scale, **settings):
        config = with_settings(CARTPOLE, hidden_scale=scale)
        return shoal.make_train(environment, config, **SMALL, num_updates=2, **settings)(KEY)[0].shared

    numbers = jnp.float32([5.0, 9.8]), jnp.float32([1.0, 2.0])
    given = jax.vmap(lambda gravity, scale: train(shoal.make("CartPole-v1", gravity=gravity), scale))(
        *numbers
    )
    named = jax.vmap(
        lambda gravity, scale: train("CartPole-v1", scale, environment_parameters={"gravity": gravity})
    )(*numbers)
    assert_equal(named, given)
    for k, (gravity, scale) in enumerate(zip((5.0, 9.8), (1.0, 2.0), strict=True)):
        alone = train(shoal.make("CartPole-v1", gravity=gravity), scale)
        assert_close(member(given, k), alone)


HOST = (
    *(
        shoal.train,
        shoal.resume,
        shoal.sweep,
        shoal.tune,
        shoal.pbt,
        shoal.replay,
        shoal.rollout,
        shoal.check,
    ),
    *(shoal.evaluate, shoal.render, shoal.cross_play, evaluate_run),
)


def test_what_is_of_the_host_takes_no_traced_value():
    def refused(function, given, name):
        sentence = (
            rf"^{name} is traced, as .* shoal\.{function.__name__} writes files, or .* shoal\.make_train "
        )
        for trace in (traced, lambda f: jax.vmap(f)(jnp.ones(2))):
            with pytest.raises(shoal.ShoalError, match=sentence):
                trace(lambda x: function(**given(x)))

    def environment(x):
        return shoal.make("CartPole-v1", gravity=x)

    for function in HOST:
        refused(function, lambda x: {"gravity": x}, "gravity")
        refused(function, lambda x: {"environment": environment(x)}, r"environment\.env\.gravity")
    refused(shoal.train, lambda x: {"algorithm": with_settings(CARTPOLE, gamma=x)}, r"algorithm\.gamma")
    refused(shoal.train, lambda x: {"variants": {"a": {"gamma": x}}}, r"variants\['a'\]\['gamma'\]")
    refused(shoal.sweep, lambda x: {"grid": {"gamma": [0.9, x]}}, r"grid\['gamma'\]\[1\]")
    policy = TrainedPolicy(CARTPOLE, (), shoal.make("CartPole-v1"))
    refused(
        shoal.evaluate,
        lambda x: {"policy": dataclasses.replace(policy, environment=environment(x))},
        r"policy\.environment\.env\.gravity",
    )
    with pytest.raises(
        shoal.ShoalError, match=r"^the call is within jax\.jit, and cannot be: shoal\.rollout "
    ):
        traced(lambda x: shoal.rollout("CartPole-v1", num_envs=2, num_steps=2))


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "sizes"),
    [("dqn", {"learning_starts": 8, "batch_size": 4}), ("pqn", {"num_minibatches": 2})],
)
def test_an_evaluation_may_take_another_eval_epsilon_than_the_run(algorithm, sizes):
    config = with_settings(config_class(algorithm)(), hidden_sizes=(8,), eval_epsilon=0.3)

    def policy(config):
        train = shoal.make_train("CartPole-v1", config, **SMALL, num_updates=1, **sizes)
        return train.policy(train(KEY)[0])

    own, usual = policy(config), policy(with_settings(config, eval_epsilon=None))
    play = functools.partial(shoal.evaluate, episodes=8, max_steps=20, greedy=False)
    assert play(usual, eval_epsilon=0.3) == play(own) != play(usual)
    for share, settings, sentence in (
        (0.3, {"greedy": True}, "eval_epsilon=0.3 has no effect on a policy that takes its mode"),
        (2, {}, "eval_epsilon=2 is out of bounds"),
        ("much", {}, "eval_epsilon='much' is not a number"),
    ):
        with pytest.raises(shoal.ShoalError, match=sentence):
            play(usual, eval_epsilon=share, **settings)
    noisy = policy(with_settings(config, noisy=True))
    with pytest.raises(shoal.ShoalError, match="has no effect on noisy layers, whose noise explores"):
        play(noisy, eval_epsilon=0.3)


@pytest.mark.full
def test_a_policy_is_of_one_learner():
    train = shoal.make_train("CartPole-v1", CARTPOLE, **SMALL, num_updates=1)
    learners = jax.tree.map(lambda x: jnp.stack([jnp.stack([x, x]), jnp.stack([x, x + 1])]), train(KEY)[0])
    assert_equal(train.policy(learners, (1, 1)).parameters, train.policy(member(learners, (1, 1))).parameters)
    assert train.policy(member(learners, 0), 1).act(np.zeros(4)) in (0, 1)
    for tree, index, sentence in (
        (learners, None, r"is of a mapped training, \[2, 2\].*index=None.*index=\(0, 0\)\) takes the first"),
        (
            member(learners, 0),
            2,
            r"\[2\], and index=2 is the place of none in it; policy\(learner, index=0\)",
        ),
        (member(learners, (0, 0)), 0, "is one, and index=0 is the place of none in it; leave index out"),
    ):
        with pytest.raises(shoal.ShoalError, match=sentence):
            train.policy(tree, index)


def test_settings_that_are_not_traced_are_checked_beside_traced_ones():
    def made(rate):
        config = with_settings(PPOConfig(), learning_rate=rate, gamma=2.0)
        return shoal.make_train("CartPole-v1", config)(KEY)[0]

    with pytest.raises(shoal.ShoalError, match="gamma=2 is out of bounds"):
        jax.eval_shape(made, 1e-3)


@pytest.mark.quick("ppo-settings2")
@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {}),
        ("ppo", {"advantage": "vtrace", "recompute": "epoch", "norm_value": "running", "norm_obs": True}),
        ("ppo", {"norm_value": "popart", "surrogate": "penalty"}),
        ("ppo", {"core": "lstm"}),
        ("dqn", {"noisy": True, "munchausen": True, "norm_obs": True, "huber": True, "learning_starts": 8}),
        ("c51", {"learning_starts": 8}),
        ("rainbow", {"learning_starts": 8}),
        ("pqn", {"norm_obs": True}),
        ("sac", {"learning_starts": 8, "autotune": False, "multistep": "retrace", "n_step": 2}),
        ("sac", {"learning_starts": 8, "norm_obs": True, "values": "categorical"}),
        ("td3", {"learning_starts": 8, "correlated_noise": True, "values": "quantile"}),
    ],
)
def test_any_float_may_be_traced(algorithm, settings):
    """Also those that are compared with others, or turn a part on: a KL stop is then a part of the program."""
    config = with_settings(config_class(algorithm)(), **settings)
    world = "Pendulum-v1" if algorithm == "td3" else "CartPole-v1"

    def made(config):
        train = shoal.make_train(world, config, **SMALL, num_updates=2)
        assert getattr(train.config, "kl_stop", True)
        return train(KEY)[0]

    filled = config.with_critic_defaults() if algorithm in ("ppo", "sac") else config
    for given in (config, filled):
        assert jax.eval_shape(made, jax.tree.map(jnp.float32, given)) is not None


@pytest.mark.full
def test_no_ring_goes_through_the_conditional_of_evaluations():
    """A conditional that received and returned the rings would copy them in each update."""
    rings = {"buffer_size": 4 * 997, "learning_starts": 8, "batch_size": 8}
    train = shoal.make_train("CartPole-v1", "dqn", preset=False, **SMALL, **rings, num_updates=3, num_evals=2)

    def shapes(program):
        for equation in program.eqns:
            for x in (*equation.invars, *equation.outvars) if equation.primitive.name == "cond" else ():
                yield x.aval.shape
            for part in _programs(equation.params):
                yield from shapes(part)

    found = list(shapes(jax.make_jaxpr(train)(KEY).jaxpr))
    assert found
    assert not [shape for shape in found if {997, 998, 999, 1000} & set(shape)]
    ring = jax.tree.leaves(jax.eval_shape(train, KEY)[0].local)
    assert any({997, 998, 999, 1000} & set(x.shape) for x in ring)
