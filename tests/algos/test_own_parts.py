"""A user's own optimiser, surrogate, advantages and value loss: by module:function, through training, and refused."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import shoal
from shoal.algos.learning import optimisers
from shoal.algos.policy_gradient import A2CConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError, UserCodeError
from shoal.config.settings import flat, with_settings
from shoal.types import spec_of

MODULE = """
import jax
import jax.numpy as jnp
import optax

def descent(learning_rate, momentum=0.5):
    def check(updates, state, params=None):
        assert {x.ndim for x in jax.tree.leaves(updates)} == {1, 2}  # not packed
        return updates, state
    shapes = optax.GradientTransformation(lambda params: optax.EmptyState(), check)
    return optax.chain(shapes, optax.trace(momentum), optax.scale_by_learning_rate(learning_rate))

def bounded(config, log_ratio, advantage, pair, kl_coef):
    behaviour, current = pair
    ratio = jnp.exp(jnp.clip(log_ratio, -config.clip_coef, config.clip_coef))
    return kl_coef * behaviour.kl(current) - ratio * advantage

def one_step(config, inputs, value, log_ratio):
    target = inputs.reward + inputs.discount * value[1:]
    return target - value[:-1], target / inputs.weight  # infinite where there is no transition

def absolute(config, output, target):
    return jnp.abs(output - target)

def no_arguments():
    return optax.sgd(0.1)

def number(learning_rate):
    return learning_rate

def kept_rate(learning_rate):
    return optax.inject_hyperparams(optax.sgd)(learning_rate)

def halves(learning_rate):
    return optax.GradientTransformation(lambda p: (), lambda u, s, p=None: ([x.astype("float16") for x in u], s))

def branches(learning_rate):
    return optax.sgd(0.1 if learning_rate > 1 else learning_rate)

def few(config, x):
    return x

def mean(config, *arguments):
    return jnp.mean(arguments[0])

def pair_of_means(config, inputs, value, log_ratio):
    return value, value

def undefined(config, output, target):
    return output.logits

constant = 3
"""
PARTS = {
    "optimizer": "own_parts:descent",
    "surrogate": "own_parts:bounded",
    "advantage": "own_parts:one_step",
    "value_loss": "own_parts:absolute",
}
SMALL = {
    "preset": False,
    "hidden_sizes": (4,), "num_envs": 4, "num_steps": 8, "seeds": 2, "num_minibatches": 2, "update_epochs": 2,
    "eval_episodes": 2, "eval_max_steps": 20, "num_evals": 1, "progress": False,
    "learning_rate": 0.02,
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def own_parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_parts.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
        sys.modules.pop("own_parts", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, undrawn):
    path = tmp_path_factory.mktemp("whole") / "run"
    return shoal.train("CartPole-v1", run_dir=path, total_steps=256, clip_coef=0.3, **PARTS, **SMALL)


def equal(x, y):
    return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), x, y))


@pytest.mark.full
def test_a_run_with_a_users_own_parts_learns_and_says_which(whole):
    saved = json.loads((whole.path / "config.json").read_text())["algorithm"]
    assert {name: saved[name] for name in PARTS} == PARTS
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(whole.learner.shared))
    assert any(x.ndim == 3 for x in jax.tree.leaves(whole.learner.shared.optimizer))  # of two seeds, unpacked
    again = shoal.load(whole.path)
    assert again is not None


@pytest.mark.full
def test_it_is_resumed_bit_for_bit_and_repeated_by_its_config_file(whole, tmp_path, undrawn):
    half = shoal.train(
        "CartPole-v1", run_dir=tmp_path / "half", total_steps=128, clip_coef=0.3, **PARTS, **SMALL
    )
    assert not equal(half.learner.shared.network, whole.learner.shared.network)
    resumed = shoal.resume(tmp_path / "half", total_steps=256, progress=False)
    assert equal(resumed.learner.shared, whole.learner.shared)
    repeated = shoal.train(config=whole.path, run_dir=tmp_path / "again", progress=False)
    assert repeated.summary["parameters_sha256"] == whole.summary["parameters_sha256"]


@pytest.mark.full
def test_functions_may_be_given_themselves(whole, tmp_path, undrawn):
    import own_parts

    functions = {name: getattr(own_parts, text.partition(":")[2]) for name, text in PARTS.items()}
    run = shoal.train(
        "CartPole-v1", run_dir=tmp_path / "run", total_steps=256, clip_coef=0.3, **functions, **SMALL
    )
    assert run.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    saved = json.loads((run.path / "config.json").read_text())["algorithm"]
    assert {name: saved[name] for name in PARTS} == PARTS


@pytest.mark.slow
def test_arguments_of_an_optimiser_may_differ_between_members(tmp_path, undrawn):
    variants = {str(x): {"optimizer_args.momentum": x} for x in (0.0, 0.9)}
    run = shoal.train(
        "CartPole-v1",
        run_dir=tmp_path / "run",
        total_steps=128,
        variants=variants,
        optimizer="own_parts:descent",
        **SMALL | {"seeds": 1},
    )
    first, second = (jax.tree.map(lambda x, k=k: x[k], run.learner.shared.network) for k in (0, 1))
    assert not equal(first, second)


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [
        {"lr_schedule": "linear", "max_grad_norm": 0.1},
        {"critic_optimizer": "adam", "target_kl": 0.01},
        {"optimizer": "adam", "critic_optimizer": "own_parts:descent", "critic_learning_rate": 0.1},
    ],
    ids=["schedule", "actor", "critic"],
)
@pytest.mark.rare("actor", "schedule")
def test_schedules_clips_and_separate_updates_hold_for_it(tmp_path, undrawn, settings):
    run = shoal.train(
        "CartPole-v1",
        run_dir=tmp_path / "run",
        total_steps=128,
        **{"optimizer": "own_parts:descent"} | settings | SMALL,
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(run.learner.shared))


@pytest.mark.full
def test_a_users_optimiser_makes_the_steps_that_it_makes_alone():
    """With the clip before it, and the factor of the schedule in its learning rate."""
    config = with_settings(PPOConfig(), optimizer="own_parts:descent", hidden_sizes=(3,), learning_rate=0.1)
    network = config.network.build(spec_of(shoal.make("CartPole-v1")), jax.random.key(0))
    config = config.resolved().optimization
    parts, merge = optimisers.split_parameters(config, network, is_split=False)
    gradient = jax.tree.map(jnp.ones_like, parts)
    optimizer = optimisers.build(config, parts, 0.5)
    updates, _ = optimizer.update(gradient, optimizer.init(parts), parts)
    plain = optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.05))
    expected, _ = plain.update(jax.tree.map(jnp.ones_like, network), plain.init(network), network)
    for x, y in zip(jax.tree.leaves(merge(updates)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def validate(config=None, **settings):
    config = with_settings(config or PPOConfig(), num_minibatches=1, **settings).resolved()
    config.validate(spec_of(shoal.make("CartPole-v1")), 4, 8)
    return config


CATEGORICAL = {"value_head": "categorical", "value_low": 0.0, "value_high": 1.0, "value_loss": "two_hot"}


@pytest.mark.full
@pytest.mark.parametrize(
    "settings, said",
    [
        ({"optimizer": "own_parts:nothing"}, "'own_parts:nothing' cannot be imported: own_parts has no"),
        ({"optimizer": "own_parts:constant"}, "optimizer='own_parts:constant' is not a function"),
        ({"optimizer": 3}, "optimizer=3 is not a function"),
        ({"optimizer": "own_parts:no_arguments"}, "optimizer='own_parts:no_arguments' does not take"),
        ({"optimizer": "own_parts:number"}, "returns a float; it must return an optax.GradientTransf"),
        ({"optimizer": "own_parts:kept_rate"}, "keeps the step size in its state"),
        (
            {"optimizer": "own_parts:halves"},
            ") returns a tree of updates whose '0' is float16[2, 3], and was given float32[2, 3]; it must",
        ),
        (
            {"optimizer": "own_parts:descent", "optimizer_args": ("momentun=0.5",)},
            "'own_parts:descent' does not take optimizer_args=('momentun=0.5',)",
        ),
        ({"critic_optimizer": "own_parts:number"}, "optimizer='own_parts:number' ("),
        ({"surrogate": "clipp"}, "surrogate='clipp' is none of clip, penalty, dpo, policy_gradient, vtrace"),
        ({"surrogate": 3}, "surrogate=3 is not a function"),
        ({"surrogate": "own_parts:few"}, "surrogate='own_parts:few' cannot be called with (config, log_ratio,"),
        ({"surrogate": "own_parts:mean"}, "returns float32[] for 3 steps of 2 streams; it must return float32[3, 2]"),
        ({"advantage": "own_parts:few"}, "cannot be called with (config, inputs, value, log_ratio)"),
        (
            {"advantage": "own_parts:pair_of_means"},
            "returns float32[4, 2] for 3 steps of 2 streams; it must return float32[3, 2], for each of both",
        ),
        ({"advantage": "gea"}, "advantage='gea' is none of gae, lambda_returns, discounted_returns, n_step"),
        ({"value_loss": "own_parts:mean"}, "value_loss='own_parts:mean' ("),
        ({"value_loss": "hubert"}, "did you mean 'huber'"),
        ({"value_loss": "hl_gauss"}, "value_loss='hl_gauss' is of a distribution over atoms"),
        ({"value_head": "categorical"}, "is of a number, and this critic gives a distribution"),
        ({"value_head": "categorical", "value_low": 0.0}, "value_low=0.0 and value_high=None; it needs two bounds"),
        (CATEGORICAL | {"value_low": 2.0}, "value_low=2.0 and value_high=1.0"),
        (CATEGORICAL | {"value_atoms": 1}, "value_atoms=1 is out of bounds"),
        (CATEGORICAL | {"value_loss": "squared"}, "is of a number, and this critic gives a distribution"),
        (CATEGORICAL | {"clip_vloss": True}, "clip_vloss=True clips a number"),
        (CATEGORICAL | {"norm_value": "popart"}, "norm_value='popart' rescales the last layer of a number"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_in_one_sentence(settings, said):
    with pytest.raises(ShoalError) as error:
        validate(**settings)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings", [{"optimizer": "own_parts:branches"}, {"value_loss": "own_parts:undefined"}]
)
def test_a_failure_within_a_users_part_names_its_line(settings):
    with pytest.raises(UserCodeError, match=r"own_parts\.py, line \d+"):
        shoal.train("CartPole-v1", run_dir="", total_steps=128, **settings, **SMALL)


def test_the_default_arguments_are_left_out_where_an_optimiser_takes_no_eps():
    assert validate(optimizer="sgd").optimization.optimizer_args == ("eps=1e-5",)
    with pytest.raises(ShoalError, match="does not take optimizer_args"):
        validate(optimizer="sgd", optimizer_args=("eps=1e-6",))
    with pytest.raises(ShoalError, match="does not take optimizer_args"):
        validate(A2CConfig(), optimizer="sgd")
    with pytest.raises(ShoalError, match="optimizer='chain' does not take"):
        validate(optimizer="chain")
    with pytest.raises(ShoalError, match="optimizer='lbfgs' cannot make a step from a gradient alone"):
        validate(optimizer="lbfgs")


@pytest.mark.parametrize("network", [{"core": "gru", "core_size": 4}, {"shared_torso": True}, {}])
@pytest.mark.quick("network2")
def test_parts_are_called_with_what_every_network_gives(network):
    parts = {name: text for name, text in PARTS.items() if name != "value_loss"}
    for head in ({}, CATEGORICAL, CATEGORICAL | {"norm_value": "running"}):
        config = validate(**parts, **network, **head)
        assert flat(config)["surrogate"] == "own_parts:bounded"
