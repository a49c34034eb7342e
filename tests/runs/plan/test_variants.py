"""Populations whose members differ in more than their seeds, as whole runs: each is the run of its config and seed."""

import json
import math

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs

import shoal
from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.engine.run import ProgramSettings
from shoal.records import members
from shoal.records.directory import RunDirectory
from shoal.runs.plan.decide import decide
from shoal.runs.policies.evaluate import evaluate_run
from shoal.runs.train import compiled_trainer
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.pacing import Pacer

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{
        "seeds": 2,
        "num_envs": 4,
        "num_steps": 16,
        "total_steps": 64 * 20,
        "num_evals": 2,
        "eval_episodes": 4,
    },
    **{"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 2, "devices": 1, "progress": False},
    **{"env_groups": 1, "gradient_chunk": 0},
}
VARIANTS = {
    "slow": {"learning_rate": 1e-3, "ent_coef": 0.0, "gamma": 0.9},
    "fast": {"learning_rate": 1e-2, "ent_coef": 0.01, "gamma": 0.99},
}
VARIANTS["slow"] |= {"optimizer_args.b1": 0.9, "optimizer_args.eps": 1e-5}
VARIANTS["fast"] |= {"optimizer_args.b1": 0.7, "optimizer_args.eps": 1e-6}
TIMES = ("seconds", "time", "per_second")


def train(path, **settings):
    return shoal.train("CartPole-v1", run_dir=path, **SMALL | settings)


def rows(path, **columns):
    """The rows of a run, or of one of its members, without times."""
    return [
        {k: x for k, x in row.items() if k not in columns and not any(word in k for word in TIMES)}
        for row in RunDirectory.open(path).load_metrics()
        if columns.items() <= row.items()
    ]


@pytest.fixture(scope="module")
def population(tmp_path_factory):
    return train(tmp_path_factory.mktemp("population") / "run", variants=VARIANTS)


@pytest.mark.slow
def test_a_mapped_member_is_bit_for_bit_the_run_of_its_settings_and_seed(population, tmp_path):
    """Arguments of the optimiser are data in the solo run too where it computes with them: 1 - b1 is rounded otherwise
    as a constant. Epsilon is used as it is, so that it may be one."""
    settings = {name: x for name, x in VARIANTS["fast"].items() if name != "optimizer_args.eps"}
    solo = train(tmp_path / "solo", seeds=1, seed=1, optimizer_args=("eps=1e-6",), **settings)
    assert solo.summary["parameters_sha256"] == population.summary["parameters_sha256"][3:]
    assert rows(solo.path, seed=1) == rows(population.path, seed=1, label="fast")
    assert solo.summary["absolute"]["returns"] == population.summary["absolute"]["returns"][3:]
    assert "label" not in (solo.path / "metrics.jsonl").read_text()
    policy = shoal.load(population.path, seed=1, label="fast")
    assert float(policy.config.gamma) == np.float32(0.99)
    assert shoal.evaluate(policy, episodes=4) == shoal.evaluate(shoal.load(solo.path), episodes=4)


@pytest.mark.slow
def test_a_vmapped_member_is_its_solo_run_until_an_action_differs(population, tmp_path, capsys):
    """Batched matrix products add in another order; 20 updates agree, or the first that does not is after an action
    differed, which the return and the length of an episode show."""
    mapped = train(tmp_path / "run", variants=VARIANTS, seed_batching="vmap")
    pairs = list(zip(rows(population.path), rows(mapped.path), strict=True))
    trained = [(x, y) for x, y in pairs if x["kind"] == "train"]
    differing = [x["updates"] for x, y in trained if x["episode_length"] != y["episode_length"]]
    first = min(differing, default=math.inf)
    print(f"the first update in which a sampled action differs: {first}")
    compared = 0
    for x, y in trained:
        if x["updates"] < first:
            compared += 1
            for name in ("value_loss", "entropy", "grad_norm", "learning_rate"):
                np.testing.assert_allclose(y[name], x[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert compared >= 8


@pytest.mark.full
def test_the_summary_sorts_the_variants_by_score(population):
    listed = population.summary["members"]
    assert {x["label"] for x in listed} == set(VARIANTS)
    assert listed[0]["absolute"]["iqm"] >= listed[1]["absolute"]["iqm"]
    assert all(x["settings"] == VARIANTS[x["label"]] and x["seeds"] == [0, 1] for x in listed)
    best = shoal.load(population.path)
    scores = RunDirectory.open(population.path).load_policy("best")[1]["scores"]
    label = list(VARIANTS)[int(np.argmax(scores)) // 2]
    assert float(best.config.gamma) == np.float32(VARIANTS[label]["gamma"])


@pytest.mark.full
def test_eval_names_members_and_may_choose_a_label(population):
    found = evaluate_run(population.path, label="fast", episodes=4)
    assert list(found["metrics"]) == ["fast, seed 0", "fast, seed 1"]


@pytest.mark.full
def test_a_population_goes_on_bit_for_bit(population, tmp_path, monkeypatch):
    monkeypatch.setattr(Pacer, "size", lambda self, left: 1)
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        self.stop._requested = history.updates == 7
        original(self, population, history)

    with monkeypatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted):
            train(tmp_path / "run", variants=VARIANTS)
    resumed = shoal.resume(tmp_path / "run", progress=False)
    assert resumed.summary["parameters_sha256"] == population.summary["parameters_sha256"]
    assert rows(resumed.path) == rows(population.path)


@pytest.mark.full
def test_another_population_in_the_same_directory_is_refused(population, tmp_path):
    # Read, since it is finished.
    assert train(population.path, variants=VARIANTS).summary == population.summary
    other = {**VARIANTS, "slow": VARIANTS["slow"] | {"gamma": 0.95}}
    with pytest.raises(ShoalError, match="holds another run: it has other members than was asked for"):
        train(population.path, variants=other)
    again = decide(None, config_file=population.path, overrides={})
    assert again.members == members.members_of(
        range(2), [members.Variant(label, settings) for label, settings in VARIANTS.items()]
    )


def test_all_members_are_evaluated_in_one_environment():
    """Here each member's own world would give another return to the same actions."""
    worlds = [members.Variant(str(x), {"env.force": x}) for x in (1.0, 30.0)]
    experiment = decide("CartPole-v1", variants=worlds, overrides={"seeds": 1, "devices": 1})
    assert [float(x.environment.env.force) for x in experiment.solo] == [1.0, 30.0]
    assert float(experiment.evaluation_environment.env.force) == 10.0
    elsewhere = decide("CartPole-v1", variants=worlds, evaluation={"force": 5.0}, overrides={})
    assert float(elsewhere.evaluation_environment.env.force) == 5.0
    assert decide("CartPole-v1", overrides={}).evaluation_environment is None
    unknown = decide("CartPole-v1", variants=worlds, evaluation={"forse": 5.0}, overrides={})
    with pytest.raises(ShoalError, match="'forse'"):
        unknown.validate()


@pytest.mark.full
def test_the_environment_of_evaluations_is_used_and_saved(tmp_path):
    """Members of equal settings and seed, in worlds that differ only in what the evaluation does not see, are
    evaluated alike; and the directory alone makes the same environment again."""
    small = {**SMALL, "seeds": 1, "total_steps": 64, "num_evals": 0}
    worlds = {"weak": {"env.force": 1.0}, "strong": {"env.force": 30.0}}
    run = shoal.train(
        "CartPole-v1", variants=worlds, eval_env={"gravity": 3.0}, run_dir=tmp_path / "a", **small
    )
    before = [
        row["return_mean"] for row in rows(run.path) if row["kind"] == "evaluation" and row["step"] == 0
    ]
    assert before[0] == before[1]  # the same untrained policy, in the same world
    trained = [row["episode_length"] for row in rows(run.path) if row["kind"] == "train"]
    assert trained[0] != trained[1]  # in worlds of their own
    saved = decide(None, config_file=run.path, overrides={})
    assert float(saved.evaluation_environment.env.gravity) == 3.0
    # A policy has the environment that it was trained in, of which its own evaluations are.
    policies = [run.policy("last", label=label) for label in worlds]
    assert [float(policy.environment.env.force) for policy in policies] == [1.0, 30.0]
    for policy, force in zip(policies, (1.0, 30.0), strict=True):
        played = shoal.evaluate(policy, episodes=8)["return_mean"]
        assert played == shoal.evaluate(policy, "CartPole-v1", force=force, episodes=8)["return_mean"]


def refuse(match, variants, **settings):
    labelled = [members.Variant(label, x) for label, x in variants.items()]
    with pytest.raises(ShoalError, match=match):
        decide("CartPole-v1", variants=labelled, overrides=settings).validate()


def test_settings_that_cannot_differ_are_refused_in_one_sentence():
    refuse("member 'b': gamma=1.2 is out of bounds", {"a": {"gamma": 0.9}, "b": {"gamma": 1.2}})
    refuse("member 'a': learning_rate='x' is not a number", {"a": {"learning_rate": "x"}})
    refuse("there is no setting 'gama'; did you mean 'gamma'", {"a": {"gama": 0.9}})
    refuse(
        "update_epochs cannot differ .* such are .*, reward_scale, noise_correlation, learning_rate, ",
        {"a": {"update_epochs": 2}},
    )
    refuse("num_envs cannot differ", {"a": {"num_envs": 2}})
    refuse("'a' and 'b' differ in what they set: gamma, and nothing", {"a": {"gamma": 0.9}, "b": {}})
    refuse("gamma=0.5 has no effect, since gamma differs", {"a": {"gamma": 0.9}}, gamma=0.5)
    refuse("member 'a': .*gravity", {"a": {"env.gravity": math.inf}})
    refuse("member 'a': .*'gravty'", {"a": {"env.gravty": 9.0}})
    refuse("member 'a': .*does not take optimizer_args=.*epss", {"a": {"optimizer_args.epss": 1e-8}})
    refuse(
        "member 'a': .*max_episode_steps=100.0 is not a whole number", {"a": {"env.max_episode_steps": 100.0}}
    )


def test_the_config_of_a_population_reads_back(tmp_path):
    """Also what the critic takes from the actor, which is not written down as its own."""
    variants = [members.Variant("a", {"optimizer_args.eps": 1e-8, "critic_learning_rate": 1e-3})]
    experiment = decide("CartPole-v1", variants=variants, overrides={"optimizer_args.b1": 0.8})
    path = tmp_path / "config.json"
    path.write_text(json.dumps(experiment.as_json()))
    again = decide(None, config_file=path, overrides={})
    assert again.as_json() == experiment.as_json()
    optimisation = again.solo[0].config.resolved().optimization
    assert dict(optimisation.critic_optimizer_numbers) == {"b1": 0.8, "eps": 1e-8}
    assert optimisation.separate_updates


def test_a_stack_of_variants_has_each_once_for_every_seed():
    experiment = decide(
        "CartPole-v1",
        variants=[members.Variant(str(x), {"gamma": x}) for x in (0.5, 0.75)],
        overrides={"seeds": 3},
    )
    stacked = compiled_trainer.stack_variants([x.config for x in experiment.solo], 6)
    assert stacked.gamma.tolist() == [0.5] * 3 + [0.75] * 3
    shapes = compiled_trainer.member_shapes(
        experiment.environment, experiment.solo[0].config.resolved(), ProgramSettings(4, 8)
    )
    assert shapes.config.gamma.shape == ()


@pytest.mark.slow
def test_a_diverging_member_fails_alone_and_comes_last(tmp_path, capsys):
    variants = {"good": {"learning_rate": 1e-3}, "bad": {"learning_rate": 1e38}}
    settings = {"on_nan": "freeze", "checkpoint_every": 64, "seeds": 1, "progress": True}
    run = train(tmp_path / "run", variants=variants, max_grad_norm=math.inf, **settings)
    listed = run.summary["members"]
    assert [x["label"] for x in listed] == ["good", "bad"]
    assert listed[1]["failed"] == [0]
    assert "failed" not in listed[0]
    assert "bad, seed 0: a number was not finite in update" in capsys.readouterr().err
