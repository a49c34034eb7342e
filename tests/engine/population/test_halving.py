"""Settings that stop early: which go on, and that the others' absence changes nothing of those."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

import shoal
from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.engine.nonfinite import NOWHERE, STOPPED
from shoal.engine.population.compaction import stop_others
from shoal.records.directory import RunDirectory
from shoal.records.halving import Halving
from shoal.records.members import Variant, members_of
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.drive import run_experiment
from shoal.runs.train.planning import Caller

RUN = RunConfig(num_envs=4, num_steps=8, total_steps=32 * 30)
TWO_RUNGS = Halving(2, 64)
VARIANTS = [Variant(str(k), {"step_size": 0.1 * 2**k}) for k in range(6)]
SMALL = {
    **{
        "seeds": 2,
        "num_envs": 4,
        "num_steps": 8,
        "total_steps": 32 * 12,
        "num_evals": 0,
        "eval_episodes": 16,
    },
    **{"env_groups": 1, "checkpoint_every": 64, "keep": 10},
}


def train(path, halving=TWO_RUNGS, **settings):
    experiment = decide(
        Halves(bonus=1.0),
        algorithm=BanditConfig(),
        variants=VARIANTS,
        halving=halving,
        overrides={"run_dir": str(path), "devices": 1, **SMALL, **settings},
    )
    return run_experiment(experiment, Caller(progress=False))


@pytest.fixture(scope="module")
def halved(tmp_path_factory):
    """Six settings, of which three go on after two updates, and one after four."""
    return train(tmp_path_factory.mktemp("halved") / "run")


def evaluations(run):
    found = [row for row in RunDirectory.open(run.path).load_metrics() if row["kind"] == "evaluation"]
    return {(row["updates"], row["label"], row["seed"]): row["return_mean"] for row in found}


def test_rungs_are_at_powers_of_the_factor_below_the_budget():
    assert Halving(3, 32).rungs(32, RUN.total_steps) == [1, 3, 9, 27]
    assert Halving(2, 100).rungs(32, RUN.total_steps) == [3, 6, 12, 25]
    assert Halving(3, 32 * 29).rungs(32, RUN.total_steps) == [29]


def test_the_best_go_on_and_equal_ones_in_the_order_of_their_labels():
    halving = Halving(3, 32)
    scores = {
        "a": [1.0, 1.0],
        "b": [3.0, 1.0],
        "c": [2.0, 2.0],
        "d": [np.nan, 9.0],
        "e": [0.0, 0.0],
        "f": [5.0, 5.0],
        "g": [np.nan, np.nan],
    }
    assert halving.survivors(scores) == ["f", "d"]  # the seed of d that failed counts as 0, the worst
    assert halving.survivors(scores, others=[-9.0]) == ["f", "b"]  # and as -9 here; b and c have the mean 2
    assert halving.survivors({"g": [np.nan], "e": [0.0]}) == ["e"]
    assert halving.survivors({"g": [np.nan], "h": [np.nan]}) == []


def test_a_third_of_the_settings_that_live_go_on_at_each_rung():
    """Of 27 settings with two seeds nine have failed before the first rung; a seed of the best fails later."""

    @dataclasses.dataclass
    class Population:
        fault: jax.Array

    halving = Halving(3, 32)
    members = members_of((0, 1), [Variant(str(k), {}) for k in range(27)])
    population = Population(jnp.array([1 if k < 18 else NOWHERE for k in range(54)]))
    evaluations, living = [(0, {"return_mean": np.full(54, -9.0)})], []
    for updates in halving.rungs(32, RUN.total_steps):
        fault = np.asarray(population.fault)
        living.append(len({x.label for x, update in zip(members, fault, strict=True) if update == NOWHERE}))
        scores = np.where(fault == STOPPED, np.nan, np.arange(54.0) + updates)  # the failed are evaluated too
        evaluations.append((updates, {"return_mean": scores}))
        population = stop_others(population, RUN, evaluations, members, halving)
        population.fault = population.fault.at[53].set(updates + 1)
    assert living == [18, 6, 2, 1]
    # at the second rung the last setting has 52 + 3 and, for the seed that failed, 18 + 1 from the first: the mean 37
    went_on = [1] * 18 + [STOPPED] * 32 + [NOWHERE] * 2 + [STOPPED, 28]
    np.testing.assert_array_equal(population.fault, went_on)


def test_what_cannot_be_halved_is_refused():
    Halving(3, 32).check(RUN, 3)
    for halving, settings, match in (
        (Halving(1, 32), 3, "halving=1 is too small"),
        (
            Halving(3, 31),
            3,
            "min_steps=31 is not between one update, .*=32, and the whole budget of 960; 106 makes",
        ),
        (Halving(3, 960), 3, "min_steps=960 is not between"),
        (Halving(3, 32), 2, "halving=3 stops none of 2 settings"),
    ):
        with pytest.raises(ShoalError, match=match):
            halving.check(RUN, settings)


def training_rows(run):
    return [row for row in RunDirectory.open(run.path).load_metrics() if row["kind"] == "train"]


@pytest.mark.full
def test_stopped_members_make_no_step_and_are_not_evaluated(halved):
    stopped = halved.summary["stopped_after"]
    assert sorted(stopped.values()) == [64, 64, 64, 128, 128]
    found = evaluations(halved)
    for label, steps in stopped.items():
        assert found[steps // 32, label, 0] is not None
        assert {x for (updates, name, _), x in found.items() if name == label and updates > steps // 32} == {
            None
        }
    (survivor,) = {variant.label for variant in VARIANTS} - set(stopped)
    assert found[12, survivor, 1] is not None
    by_label = {entry["label"]: entry for entry in halved.summary["members"]}
    assert halved.summary["members"][0]["label"] == survivor
    assert all(np.isnan(by_label[label]["absolute"]["iqm"]) for label in stopped)
    first = {label: np.mean([found[2, label, seed] for seed in (0, 1)]) for label in by_label}
    went_on = [label for label in by_label if stopped.get(label) != 64]
    assert min(first[label] for label in went_on) >= max(
        first[label] for label in stopped if stopped[label] == 64
    )


@pytest.mark.full
def test_a_survivor_is_what_it_would_be_without_halving(halved, tmp_path):
    """Its schedule is that of the full budget, and who stopped does not matter; its evaluations are more, so that its
    best policy may be another one."""
    whole = train(tmp_path / "whole", halving=None)
    (survivor,) = {variant.label for variant in VARIANTS} - set(halved.summary["stopped_after"])
    place = [variant.label for variant in VARIANTS].index(survivor) * 2
    for one, other in zip(halved.learner.shared, whole.learner.shared, strict=True):
        np.testing.assert_array_equal(one[place : place + 2], other[place : place + 2])
    assert evaluations(halved)[12, survivor, 1] == evaluations(whole)[12, survivor, 1]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"devices": 2}, {"seed_batching": "vmap"}])
def test_members_are_dealt_out_or_packed_without_changing_them(halved, tmp_path, settings):
    """Over two devices, and by programs of fewer members; both round as the program of all members does here."""
    other = train(tmp_path / "run", **settings)
    assert other.summary["stopped_after"] == halved.summary["stopped_after"]
    for one, two in zip(halved.learner.shared, other.learner.shared, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)
    first, second = (training_rows(run) for run in (halved, other))
    assert [row["baseline"] is None for row in first] == [row["baseline"] is None for row in second]


@pytest.mark.slow
def test_halving_goes_on_bit_for_bit(halved, tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        self.stop._requested = history.updates == 4
        original(self, population, history)

    with monkeypatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted):
            train(tmp_path / "run")
    resumed = shoal.resume(tmp_path / "run", progress=False)
    assert resumed.summary["parameters_sha256"] == halved.summary["parameters_sha256"]
    assert resumed.summary["stopped_after"] == halved.summary["stopped_after"]
    assert evaluations(resumed) == evaluations(halved)
