"""Policies to disk and back, and a population that starts from what another has learned."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_worlds import assert_equal, populate, values

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import with_settings
from shoal.records.directory import RunDirectory
from shoal.records.members import members_of
from shoal.runs.policies import policy_files
from shoal.types import Clock, spec_of

SEEDS = (0, 1, 2)
ENV = envs.make("CartPole-v1")


def config(**settings):
    chosen = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 1, "norm_obs": True} | settings
    return with_settings(PPOConfig(), **chosen).resolved()


@pytest.fixture(scope="module")
def trained():
    """Three seeds whose best policies are not their last ones."""
    population, compiled = populate(ENV, config(), SEEDS)
    population, _ = compiled.evaluate(population)
    population, _ = compiled.train(population, jnp.int32(2))
    return population


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    directory = RunDirectory.create(tmp_path_factory.mktemp("saving") / "run", "CartPole-v1", "ppo", {})
    policy_files.save_best(directory, trained, members_of(SEEDS))
    policy_files.save_last(directory, trained, members_of(SEEDS))
    return directory


def policies(run):
    """The best and the last policies of a population."""
    algorithm = run.config.algorithm(spec_of(ENV))
    return {"best": run.best.policy, "last": algorithm.policy(run.learner, Clock.zero())}


@pytest.mark.parametrize("which", ["best", "last"])
def test_what_is_saved_comes_back_leaf_by_leaf(trained, saved, which):
    policy = policies(trained)[which]
    leaves, metadata = saved.load_policy(which)
    assert metadata["seeds"] == list(SEEDS)
    for k in range(len(SEEDS)):
        one = jax.tree.map(lambda x, k=k: x[k], policy)
        template = jax.eval_shape(lambda one=one: one)
        again = policy_files.restore(template, leaves, policy_files.POLICY, k)
        assert jax.tree.structure(again) == jax.tree.structure(one)
        assert_equal(again, one)
        assert "observation/mean" in values(again)  # the normaliser comes with it


def test_best_and_last_are_told_apart(trained, saved):
    best, metadata = saved.load_policy("best")
    last, _ = saved.load_policy("last")
    name = next(name for name in best if name.endswith("kernel"))
    assert (best[name] != last[name]).any()
    assert metadata["scores"] == np.asarray(trained.best.score).tolist()
    assert metadata["updates"] == [0, 0, 0]
    assert {name.split("/")[0] for name in best} == {"policy"}
    assert {name.split("/")[0] for name in last} == {"policy", "learner"}


def test_a_missing_leaf_and_another_shape_are_one_sentence(trained, saved):
    leaves, _ = saved.load_policy("best")
    one = jax.tree.map(lambda x: x[0], trained.best.policy)
    name = next(name for name in leaves if name.endswith("kernel"))
    fewer = {key: x for key, x in leaves.items() if key != name}
    short = name.removeprefix("policy/")
    with pytest.raises(ShoalError, match=f"^the saved policy has no '{short}'; it was made by another"):
        policy_files.restore(one, fewer, policy_files.POLICY, 0)
    with pytest.raises(ShoalError, match=f"^the saved policy has '{short}' of shape .* is expected"):
        policy_files.restore(one, leaves | {name: leaves[name][..., :-1]}, policy_files.POLICY, 0)


@pytest.mark.parametrize(
    ("scores", "failed", "seed"),
    [
        ([1.0, 3.0, 2.0], [], 4),
        ([math.nan, -7.0, math.inf], [], 4),
        ([None, None, 0.5], [], 5),
        ([2.0, 2.0, -math.inf], [], 3),
        ([2.0, 2.0, 1.0], [0], 4),
        ([3.0, 2.0, 1.0], [0, 1], 5),
    ],
)
def test_the_best_seed_has_the_highest_finite_score_of_those_that_did_not_fail(
    tmp_path, scores, failed, seed
):
    """Null is how a score that is not finite was once written."""
    directory = RunDirectory.create(tmp_path / "run", "x", "y", {})
    directory.save_policy("best", {}, {"seeds": [3, 4, 5], "scores": scores})
    found = policy_files.with_best_score(
        range(3), members_of((3, 4, 5)), policy_files.best_scores(directory), failed, "no score"
    )
    assert found + 3 == seed


def test_without_a_finite_score_there_is_no_best_seed(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "x", "y", {})
    for scores in ([None, math.nan], [math.inf, -math.inf]):
        directory.save_policy("best", {}, {"seeds": [3, 4], "scores": scores})
        with pytest.raises(ShoalError, match=r"no seed is the best; name one: seed=3, 4\.$"):
            stored = policy_files.best_scores(directory)
            policy_files.with_best_score(range(2), members_of((3, 4)), stored, [], "no score")
    with pytest.raises(
        ShoalError, match=r"^each of them had a number that was not finite, so that no seed is"
    ):
        policy_files.with_best_score(range(2), members_of((3, 4)), [1.0, 2.0], [0, 1], "no score")


def test_a_key_stays_a_key_of_its_own_kind():
    key = jax.random.split(jax.random.key(1), 2)
    template = {"k": jax.ShapeDtypeStruct((), key.dtype)}
    again = policy_files.restore(template, {"policy/k": key}, policy_files.POLICY, 1)["k"]
    np.testing.assert_array_equal(jax.random.key_data(again), jax.random.key_data(key[1]))
    for other in (jax.random.split(jax.random.key(1, impl="rbg"), 2), np.zeros(2, np.uint32)):
        with pytest.raises(ShoalError, match=r"has 'k' of dtype .*, and key<fry> is expected\.$"):
            policy_files.restore(template, {"policy/k": other}, policy_files.POLICY, 0)
    with pytest.raises(ShoalError, match=r"of dtype key<fry>, and uint32 is expected\.$"):
        policy_files.restore(
            {"k": jax.ShapeDtypeStruct((), np.uint32)}, {"policy/k": key}, policy_files.POLICY, 0
        )


def test_the_bytes_that_are_going_to_be_saved_are_known(trained, saved):
    shapes = jax.eval_shape(lambda: trained)
    loaded = [saved.load_policy(which)[0] for which in ("best", "last")]
    assert policy_files.check_storable(shapes) == sum(x.nbytes for leaves in loaded for x in leaves.values())


def test_a_damaged_policy_is_found_out(trained, tmp_path):
    directory = RunDirectory.create(tmp_path / "run", "CartPole-v1", "ppo", {})
    policy_files.save_best(directory, trained, members_of(SEEDS))
    policy_files.save_last(directory, trained, members_of(SEEDS))
    path = directory.policy_path("best")
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ShoalError, match=r"best\.safetensors is damaged: it was altered\.$"):
        directory.load_policy("best")
    directory.load_policy("last")  # the other one is whole
