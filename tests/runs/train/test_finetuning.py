"""A population that starts from what another has learned: what is taken over, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import SMALL, populate, values

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.engine.run import ProgramSettings
from shoal.runs.train import finetuning
from shoal.runs.train.compiled_trainer import member_shapes
from shoal.types import Algorithm, Clock, spec_of

SEEDS = (0, 1, 2)
ENV = envs.make("CartPole-v1")


def config(**settings):
    chosen = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 1, "norm_obs": True} | settings
    return with_settings(PPOConfig(), **chosen).resolved()


def shapes(chosen):
    return member_shapes(ENV, chosen, ProgramSettings(**SMALL))


def leaves_of(population):
    """What a run saves of what it has learned."""
    return struct.named_leaves(jax.device_get(population.learner.shared))


@pytest.fixture(scope="module")
def source():
    """Three seeds after two updates, with every statistic and an adapted learning rate."""
    adapted = config(norm_reward=True, lr_schedule="adaptive", desired_kl=1e-9)
    population, compiled = populate(ENV, adapted, SEEDS)
    return compiled.train(population, jnp.int32(2))[0]


@pytest.mark.parametrize("seeds", [(5,), (5, 6, 7, 8)])
@pytest.mark.full
@pytest.mark.rare("seeds0")
def test_parameters_and_normalisers_are_taken_over_and_nothing_else(source, seeds):
    """The k-th seed from the k-th; where there are more, the first again. The config's values stay the config's."""
    chosen = config(norm_reward=True, surrogate="penalty", kl_coef=7.0)
    finetuning.check_inherit(shapes(chosen), leaves_of(source), "ppo", "somewhere")
    fresh, compiled = populate(ENV, chosen, seeds)
    before = values(fresh)
    new = finetuning.inherit(fresh, leaves_of(source), len(seeds))
    assert jax.tree.structure(new) == jax.tree.structure(fresh)
    assert float(source.learner.shared.learning_rate_scale[0]) != 1.0
    assert (new.learner.shared.kl_coef == 7.0).all()
    taken = tuple(f"learner/shared/{part}/" for part in ("network", "observation", "reward"))
    after, learned = values(new), values(source)
    for name, x in after.items():
        if name.startswith(taken):
            for k in range(len(seeds)):
                np.testing.assert_array_equal(x[k], learned[name][k % len(SEEDS)], err_msg=name)
        elif not name.startswith("best/policy"):
            np.testing.assert_array_equal(x, before[name], err_msg=name)
    acting = new.config.algorithm(spec_of(ENV)).policy(new.learner, Clock.zero())
    # The first best is not untrained.
    assert jax.tree.all(jax.tree.map(np.array_equal, new.best.policy, acting))
    new, _ = compiled.train(new, jnp.int32(1))  # and it trains on, by the program compiled before
    assert new.updates.tolist() == [1] * len(seeds)


@pytest.mark.quick("settings1-'reward/count' was saved there")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"norm_obs": False, "norm_reward": True},
            "'observation/count' was saved there, but nothing of that name",
        ),
        ({}, "'reward/count' was saved there"),
        (
            {"norm_reward": True, "hidden_sizes": (9,)},
            r"'network/actor/.* is float32\[.*8.*\] there and float32\[.*9",
        ),
        (
            {"norm_reward": True, "hidden_sizes": (8, 8)},
            "'network/actor/.* is learned here, but nothing of that name",
        ),
        ({"norm_reward": True, "shared_torso": True}, "'network/.*"),
    ],
)
def test_a_structure_that_does_not_match_is_refused_by_its_first_entry(source, settings, words):
    sentence = (
        f"^from='runs/old' does not fit: {words}.*; train with the same spaces, network and normalisation"
    )
    with pytest.raises(ShoalError, match=sentence):
        finetuning.check_inherit(shapes(config(**settings)), leaves_of(source), "ppo", "runs/old")


@pytest.mark.full
def test_a_normaliser_that_the_source_lacks_is_refused():
    plain = config(norm_obs=False)
    leaves = leaves_of(populate(ENV, plain, (0,))[0])
    finetuning.check_inherit(shapes(plain), leaves, "ppo", "x")
    with pytest.raises(
        ShoalError, match="'observation/count' is learned here, but nothing of that name was saved"
    ):
        finetuning.check_inherit(shapes(config()), leaves, "ppo", "x")


def test_a_run_that_saved_nothing_of_its_learner_is_refused():
    with pytest.raises(
        ShoalError, match=r"^from='x' cannot be used: the run saved nothing of what it had learned"
    ):
        finetuning.learner_leaves({"policy/actor": np.zeros((1, 3))}, "x")


@struct.struct
class Changed:
    """The bandit with another `inherit`."""

    kind: str = "none"

    def algorithm(self, spec, axis=()) -> Algorithm:
        base = BanditConfig().algorithm(spec, axis)

        def widened(learner, saved):
            return learner._replace(shared=learner.shared._replace(baseline=jnp.zeros(2)))

        return base._replace(inherit={"none": None, "widened": widened}[self.kind])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("none", "from='x' cannot be used with algorithm='mine:Config': its Algorithm has no `inherit`"),
        (
            "widened",
            r".*widened \(.*test_finetuning.py, line \d+\) returns a learner whose 'shared/baseline' is float32\[2\]",
        ),
    ],
)
def test_an_algorithm_that_cannot_start_from_another_run_says_so(kind, words):
    leaves = leaves_of(populate(ENV, BanditConfig(), (0,))[0])
    with pytest.raises(ShoalError, match=f"^{words}"):
        finetuning.check_inherit(shapes(Changed(kind)), leaves, "mine:Config", "x")


@pytest.mark.full
def test_inherit_is_of_one_member_and_each_has_its_own_config():
    """Two members of different step sizes take over what they did before, each with its own numbers."""
    population, _ = populate(ENV, BanditConfig(), (0, 1))
    rates = dataclasses.replace(population.config, step_size=jnp.asarray([0.1, 0.2]))
    population = dataclasses.replace(population, config=rates)
    leaves = leaves_of(populate(ENV, BanditConfig(spread=3.0), (7,))[0])
    new = finetuning.inherit(population, leaves, 1)
    for k in range(2):
        np.testing.assert_array_equal(new.learner.shared.actions[k], leaves["actions"][0])
    np.testing.assert_array_equal(new.config.step_size, rates.step_size)
