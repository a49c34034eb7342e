"""Populations that exchange, of a quick algorithm: what they leave behind, how they go on, and what is refused."""

import contextlib
import dataclasses
import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, populate

import shoal
from shoal import cli
from shoal.base.errors import ShoalError
from shoal.cli.train import print_result
from shoal.engine.nonfinite import NOWHERE
from shoal.engine.run import ProgramSettings
from shoal.monitor.run_report import result_text
from shoal.records.directory import RunDirectory
from shoal.records.history import History
from shoal.records.members import members_of
from shoal.records.pbt_lineage import Ancestor, Exchange, ancestors, exchanges_of, schedule_of
from shoal.records.pbt_settings import Evolution, ScheduleStep
from shoal.reports import figures, pbt_lineage_plot
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import resolve
from shoal.runs.train import pbt_run
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.pacing import Pacer
from shoal.search.pbt import read_tuned

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{"members": 10, "ready_every": 64, "num_envs": 4, "num_steps": 8, "total_steps": 32 * 12},
    **{"devices": 2, "progress": False, "checkpoint_every": 96},
}
TUNE = {"step_size": "log:0.01:5", "baseline_rate": "one-minus-log:0.1:0.9"}
START = {"step_size": "log:0.01:0.02"}


def pbt(path, **settings):
    settings = SMALL | {"tune": TUNE, "start": START} | settings
    return shoal.pbt(Halves(bonus=1.0), algorithm=BanditConfig(), run_dir=str(path), **settings)


def rows(path, kind=""):
    """The rows of a run, without times."""
    return [
        {k: x for k, x in row.items() if "second" not in k and k != "time"}
        for row in RunDirectory.open(path).load_metrics()
        if row["kind"] == (kind or row["kind"])
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return pbt(tmp_path_factory.mktemp("pbt") / "run")


def test_the_lineage_is_consistent(trained):
    found = rows(trained.path, "exchange")
    by_point = {u: [row for row in found if row["updates"] == u] for u in {row["updates"] for row in found}}
    assert sorted(by_point) == [0, 2, 4, 6, 8, 10]
    first = [row["settings"]["step_size"] for row in by_point[0]]
    assert all(0.01 <= x <= 0.020001 for x in first)
    assert len(set(first)) == 10
    copies = 0
    for point in range(2, 12, 2):
        before = [row["settings"] for row in by_point[point - 2]]
        scores = [row["score"] for row in by_point[point]]
        evaluated = [row["score"] for row in rows(trained.path, "evaluation") if row["updates"] == point]
        assert scores == evaluated
        for row in by_point[point]:
            assert row["settings_before"] == before[row["seed"]]
            if row["parent"] == row["seed"]:
                assert row["settings"] == row["settings_before"]
                continue
            copies += 1
            assert scores[row["parent"]] >= sorted(scores)[-2]
            assert row["settings"] != row["settings_before"]
    assert copies == 2 * 5
    assert (trained.path / "lineage.png").is_file()


def test_the_best_member_is_chosen_by_the_evaluations_during_training(trained):
    best, members = trained.summary["best"], trained.summary["members"]
    assert members[0] == best
    assert best["score"] == max(entry["score"] for entry in members)
    assert sorted(entry["seed"] for entry in members) == list(range(10))
    assert best["absolute"] == trained.summary["absolute"]["returns"][best["seed"]]
    printed = result_text(trained.summary, trained.path)
    assert f"best member     seed {best['seed']}: {best['absolute']:.2f} in new episodes" in printed


def settings_before(path, seed, steps):
    """The settings with which a member's place was trained up to an evaluation: those of the last exchange before."""
    found = [row for row in rows(path, "exchange") if row["seed"] == seed and row["step"] < max(steps, 1)]
    return found[-1]["settings"]


def test_the_settings_of_a_member_are_those_that_trained_its_policy(trained):
    """Not those that its place had after the last exchange."""
    differ = 0
    for entry in trained.summary["members"]:
        assert entry["settings"] == settings_before(trained.path, entry["seed"], entry["steps"])
        assert entry["final_settings"] == settings_before(trained.path, entry["seed"], 12 * 32)
        differ += entry["settings"] != entry["final_settings"]
    assert differ
    best = trained.summary["best"]
    schedule = json.loads((trained.path / "schedule.json").read_text())["schedule"]
    assert schedule[-1]["settings"] == best["settings"]
    shown = ", ".join(f"{name}={x:.4g}" for name, x in best["settings"].items())
    assert f"(of step {best['steps']:,}, trained with {shown})" in result_text(trained.summary, trained.path)


def test_the_schedule_is_that_of_the_ancestors_of_the_best_policy(trained):
    saved, best = json.loads((trained.path / "schedule.json").read_text()), trained.summary["best"]
    assert saved["member"] == best["seed"]
    at = {row["updates"]: {} for row in rows(trained.path, "exchange")}
    for row in rows(trained.path, "exchange"):
        at[row["updates"]][row["seed"]] = row
    member, expected = best["seed"], []
    for point in (10, 8, 6, 4, 2, 0):
        if 32 * point < max(best["steps"], 1):
            expected.insert(0, (point, member, at[point][member]["settings"]))
            member = at[point][member]["parent"]
    assert saved["ancestors"] == [{"updates": u, "seed": k} for u, k, _ in expected]
    holds = {x["updates"]: x["settings"] for x in saved["schedule"]}
    current = None
    for point, _, settings in expected:
        current = holds.get(point, current)
        assert current == settings


def test_a_line_of_descent_is_followed_to_the_start():
    """Member 1 copies member 0 after two updates, and member 0 copies it back after four."""
    rates = [[0.1, 0.2], [0.1, 0.3], [0.4, 0.3]]
    parents = [[0, 1], [0, 0], [1, 1]]
    found = [Exchange(2 * k, p, {"rate": r}) for k, (p, r) in enumerate(zip(parents, rates, strict=True))]
    line = ancestors(found, 0, 6)
    assert [(x.updates, x.member, x.settings["rate"]) for x in line] == [
        (0, 0, 0.1),
        (2, 1, 0.3),
        (4, 0, 0.4),
    ]
    assert [x.member for x in ancestors(found, 0, 4)] == [0, 0]  # evaluated before the exchange there
    assert schedule_of(ancestors(found, 0, 4)) == (ScheduleStep(0, {"rate": 0.1}),)
    listed = [
        {"kind": "exchange", "updates": 0, "seed": 7 + k, "parent": 7 + p, "settings": {"rate": float(k)}}
        for k, p in enumerate((0, 0))
    ]
    assert exchanges_of(listed) == [Exchange(0, [0, 0], {"rate": [0.0, 1.0]})]


def ranking(scores, failed):
    population = SimpleNamespace(
        best=SimpleNamespace(score=np.array(scores, np.float32)), fault=np.where(failed, 3, NOWHERE)
    )
    return pbt_run.ranked_members(population), pbt_run.best_member(population)


def test_members_that_failed_rank_below_all_others():
    """Of equal ones that of the lower seed is the better; one whose scores were never finite has not failed."""
    assert ranking([9.0, 5.0, 5.0, np.nan, 7.0], [1, 0, 0, 0, 0]) == ([4, 1, 2, 3, 0], 4)
    assert ranking([9.0, 5.0, 9.0, -1.0, 5.0], [1, 0, 1, 0, 0]) == ([1, 4, 3, 0, 2], 1)
    assert ranking([9.0, 5.0], [1, 1]) == ([0, 1], None)


def test_the_picture_has_a_dotted_line_where_a_member_failed(tmp_path, monkeypatch):
    """Member 1 fails in the first interval and copies member 0, member 2 fails in the second; 0 and 1 tie."""
    found = []
    monkeypatch.setattr(figures, "save", lambda figure, path: found.append(figure))
    exchanges = [
        Exchange(0, [0, 1, 2], {"rate": [0.1, 0.9, 0.5]}),
        Exchange(2, [0, 0, 2], {"rate": [0.1, 0.2, 0.5]}),
    ]
    scores = {0: [0.0, 0.0, 0.0], 2: [4.0, np.nan, 3.0], 4: [5.0, 5.0, np.nan]}
    for line in ([Ancestor(0, 0, {"rate": 0.1}), Ancestor(2, 0, {"rate": 0.1})], []):
        more = {"scales": {"rate": "linear"}, "steps_per_update": 10, "title": "x"}
        pbt_lineage_plot.plot_lineage(tmp_path / "x.png", exchanges, scores, line, best_updates=4, **more)
        axes = found.pop().axes[0]
        copies, outline, coloured, dotted = axes.collections
        assert len(copies.get_segments()) == 1
        assert [x.tolist() for x in outline.get_segments()] == [
            [[0, 0.1], [20, 0.1]], [[20, 0.1], [40, 0.1]],
        ][: len(line)]  # fmt: skip
        assert coloured.get_array().tolist() == [4.0, 3.0, 5.0, 5.0]
        drawn = [x.tolist() for x in coloured.get_segments()]
        np.testing.assert_allclose([x[0][1] for x in drawn], [0.1, 0.5, 0.1, 0.2])
        missing = [x.tolist() for x in dotted.get_segments()]
        np.testing.assert_allclose(missing, [[[0, 0.9], [20, 0.9]], [[20, 0.5], [40, 0.5]]])
        labels = [text.get_text() for text in axes.figure.legends[0].get_texts()]
        assert labels == ["members that failed", "ancestors of the best policy"][: 1 + bool(line)]


class Killed(BaseException):
    """The end of a process, which no code handles."""


@pytest.mark.full
def test_a_run_that_is_killed_goes_on_bit_for_bit(trained, tmp_path, monkeypatch):
    """It dies in its seventh update, and its last checkpoint is from the exchange after the sixth."""
    monkeypatch.setattr(Pacer, "size", lambda self, left: 1)
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        if history.updates == 7:
            raise Killed
        original(self, population, history)

    with monkeypatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(Killed):
            pbt(tmp_path / "run")
    resumed = pbt(tmp_path / "run")
    assert resumed.summary["parameters_sha256"] == trained.summary["parameters_sha256"]
    assert rows(resumed.path) == rows(trained.path)
    assert resumed.summary["members"] == trained.summary["members"]
    name = "schedule.json"
    assert (resumed.path / name).read_text() == (trained.path / name).read_text()
    with monkeypatch.context() as patch:
        patch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
        longer = shoal.resume(resumed.path, total_steps=32 * 16, progress=False)
    points = {row["updates"] for row in rows(longer.path, "exchange")}
    assert sorted(points) == [0, 2, 4, 6, 8, 10, 14]  # at the former end, 12, nobody has copied
    assert longer.summary["best"]["score"] >= trained.summary["best"]["score"]


def test_a_finished_run_is_read_and_another_one_refused(trained):
    assert pbt(trained.path).summary == trained.summary
    with pytest.raises(ShoalError, match="holds another run: other settings change in it"):
        pbt(trained.path, tune=TUNE | {"step_size": "log:0.01:4"})


@pytest.mark.slow
def test_a_member_that_failed_copies_and_trains_again(tmp_path):
    """The mean reward that is followed by a rate r overflows after some updates, as r to the power of their number.

    A rate below 2 never does; half of the range is below, so that there are sound members to copy to the end.
    """
    tune = {"baseline_rate": "log:1e-6:1e8"}
    run = pbt(tmp_path / "run", tune=tune, start={}, checkpoint_every=32)
    found = rows(run.path, "exchange")
    failed = [row for row in found if row["score"] is None]
    assert failed
    assert all(row["parent"] != row["seed"] for row in failed)
    later = {(row["updates"] - 2, row["seed"]): row["score"] for row in found}
    assert any(later.get((row["updates"], row["seed"])) is not None for row in failed)
    assert np.isfinite(run.summary["best"]["absolute"])
    assert "failed" not in run.summary["best"]
    other = pbt(tmp_path / "other", tune=tune, start={}, checkpoint_every=10**6)
    assert rows(other.path) == rows(run.path)
    for name in ("members", "best", "failed", "parameters_sha256", "absolute", "final"):
        assert json.dumps(other.summary[name]) == json.dumps(run.summary[name])
    for entry in run.summary["members"]:
        assert entry["settings"] == settings_before(run.path, entry["seed"], entry["steps"])
        evaluated = [x for x in rows(run.path, "evaluation") if x["seed"] == entry["seed"]]
        scores = {x["step"]: x["score"] for x in evaluated if x["score"] is not None}
        assert entry["score"] == scores[entry["steps"]] == max(scores.values())


@pytest.mark.full
def test_where_all_members_fail_there_is_no_best_and_the_status_is_2(tmp_path, capsys):
    path, tune = tmp_path / "run", {"baseline_rate": "log:1e30:1e38"}
    with pytest.raises(ShoalError, match=r"^all members failed \(0, 1, 2, .*, 9\), since"):
        print_result(pbt(path, tune=tune, start={}, total_steps=32 * 8))
    text = capsys.readouterr().out
    assert text.count("  failed          seed ") == 10
    assert "best member" not in text and "IQM" not in text
    summary = json.loads((path / "summary.json").read_text())
    assert summary["best"] is None
    assert [entry["seed"] for entry in summary["members"]] == list(range(10))
    assert all(entry["failed"] for entry in summary["members"])
    assert not (path / "schedule.json").exists()
    assert (path / "lineage.png").is_file()
    with pytest.raises(ShoalError, match=r"holds no schedule\.json"):
        pbt_run.read_schedule(path)


@pytest.mark.full
def test_the_schedule_is_replayed_by_new_seeds(trained, tmp_path):
    schedule = [
        {"updates": 0, "settings": {"step_size": 0.5, "baseline_rate": 0.5}},
        {"updates": 4, "settings": {"step_size": 0.25, "baseline_rate": 0.5}},
    ]
    source = shutil.copytree(trained.path, tmp_path / "source")
    (source / "schedule.json").write_text(json.dumps({"schedule": schedule}))
    config = decide(Halves(bonus=1.0), algorithm=BanditConfig(), config_file=source, overrides={})
    assert config.evolution.names == tuple(TUNE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
        run = shoal.replay(source, seeds=2, run_dir=str(tmp_path / "run"), progress=False)
    assert run.summary["seeds"] == [10, 11]
    found = rows(run.path, "exchange")
    assert [row["settings"]["step_size"] for row in found if row["seed"] == 11] == [0.5, 0.5, *[0.25] * 4]
    with pytest.raises(ShoalError, match=r"holds no schedule\.json"):
        pbt_run.read_schedule(run.path)


def test_a_schedule_gives_every_leaf_a_buffer_of_its_own():
    """Training donates them all."""
    population, programs = populate(Halves(), BanditConfig(), seeds=(3, 4))
    schedule = [ScheduleStep(0, {"rate": 0.5}), ScheduleStep(4, {"rate": 0.25})]
    reporter = SimpleNamespace(members=members_of((3, 4)), on_exchange=lambda updates, rows: None)
    leaves = {"rate": ("step_size", "baseline_rate")}
    for updates, expected in ((0, 0.5), (3, 0.5), (4, 0.25)):
        history = History(updates=updates)
        population = pbt_run.follow_schedule(schedule, leaves, reporter, population, history)
        assert population.config.step_size.tolist() == [expected] * 2
        assert population.config.baseline_rate.tolist() == [expected] * 2
        assert history.exchanges == [Exchange(updates, [0, 1], {"rate": [expected] * 2})]
        population, _ = programs.train(population, 1, True)


def test_a_setting_is_the_value_of_every_leaf_that_follows_it():
    """The critic's learning rate is the actor's."""
    tuned = read_tuned({"learning_rate": "log:1e-5:1e-2", "optimizer_args.eps": "log:1e-9:1e-3"}, {})
    experiment = decide("CartPole-v1", evolution=Evolution(tuned), overrides={})
    leaves = pbt_run.leaves_of(experiment)
    assert len(leaves["learning_rate"]) >= 1
    assert all("learning_rate" in leaf for leaf in leaves["learning_rate"])
    assert len(leaves["optimizer_args.eps"]) >= 1
    assert experiment.as_json()["evolution"]["tuned"][1]["name"] == "optimizer_args.eps"
    assert not decide("CartPole-v1", overrides={}).evolution


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"members": 4}, "members=4 is out of bounds: it must be at least 5"),
        ({"ready_every": 31}, "ready_every=31 is shorter than an update of num_envs.num_steps=4.8=32 steps"),
        ({"ready_every": 384}, "ready_every=384 leaves no exchange before the end"),
        ({"tune": {}}, "nothing is tuned"),
        (
            {"tune": {"step_siz": "log:0.1:1"}, "start": {}},
            "there is no setting 'step_siz'.*did you mean 'step_size'",
        ),
        ({"tune": {"num_envs": "log:1:8"}, "start": {}}, "num_envs cannot differ .* such are step_size"),
        ({"tune": {"env.bonus": "log:1:8"}, "start": {}}, "env.bonus cannot be tuned"),
        ({"tune": {"step_size": "log:1:0.1"}}, "bounds the wrong way round"),
        ({"tune": {"step_size": "int:1:3"}}, "needs a range of real numbers"),
        ({"tune": {"step_size": [0.1, 0.2]}}, "needs a range of real numbers"),
        ({"start": {"step_size": "log:0.001:1"}}, "within the bounds of step_size=log:0.01:5.0"),
        ({"start": {"spread": "log:0.001:1"}}, "start=spread is not tuned"),
        ({"step_size": 0.5}, "step_size=0.5 has no effect, since step_size changes"),
        ({"eval_every": 64}, "eval_every has no effect .* give ready_every"),
        ({"seeds": 6}, "seeds has no effect .* give members"),
        ({"tune": {"spread": "log:0.01:1"}, "start": {}}, "spread cannot change while a run trains, since"),
        ({"eval_episodes": 31}, "eval_episodes=31 is too small: it must be at least 32"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_made(tmp_path, settings, sentence):
    with pytest.raises(ShoalError, match=sentence):
        pbt(tmp_path / "run", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        (
            "kl_coef",
            {"surrogate": "penalty"},
            "kl_coef cannot change .* only where a run starts; it needs adaptive_kl_coef=False",
        ),
        ("kl_coef", {"surrogate": "penalty", "adaptive_kl_coef": False}, ""),
        ("optimizer_args.initial_scale", {"optimizer": "rmsprop", "optimizer_args": ()}, "only where a run"),
        ("optimizer_args.decay", {"optimizer": "rmsprop", "optimizer_args": ()}, ""),
        ("noise_correlation", {"correlated_noise": True}, ""),
    ],
    ids=["penalty", "fixed penalty", "rmsprop", "decay", "noise"],
)
@pytest.mark.quick("penalty", "rmsprop")
def test_a_setting_that_only_the_start_reads_cannot_change(name, settings, sentence):
    tuned = read_tuned({name: "log:0.1:0.9"}, {})
    env = "Pendulum-v1" if "correlated_noise" in settings else "CartPole-v1"
    decided = decide(env, evolution=Evolution(tuned), overrides={"hidden_sizes": (8,), **settings})
    experiment = dataclasses.replace(decided, config=resolve(decided.config))
    static = ProgramSettings(num_envs=4, num_steps=8)
    with pytest.raises(ShoalError, match=sentence) if sentence else contextlib.nullcontext():
        pbt_run.check_read(experiment, [name, "total_steps"], static)


def test_bounds_that_the_algorithm_refuses_are_named():
    tuned = read_tuned({"gamma": "uniform:0.5:1.5"}, {})
    with pytest.raises(ShoalError, match=r"member 'gamma=1.5': gamma=1.5 is out of bounds"):
        decide("CartPole-v1", evolution=Evolution(tuned), overrides={}).validate()


def test_the_command_line_says_what_is_wrong(trained, capsys):
    words = ["pbt", "CartPole-v1", "--tune", "gamma=uniform:0.9:0.99", "--ready-every", "8192"]
    for further, sentence in (
        (["--members", "3"], "members=3 is out of bounds: it must be at least 5"),
        (["--members", "many"], "--members: 'many' is not a whole number"),
        (["--tune", "gamma=uniform:0.9:0.98"], "--tune gamma is given twice"),
        (["--gamma", "0.9"], "gamma=0.9 has no effect"),
        (["--replay", "nowhere"], "there is no run directory 'nowhere'"),
    ):
        assert cli.main([*words, *further]) == 2
        assert sentence in capsys.readouterr().err
    assert cli.main(words[:4]) == 2
    assert "no time between exchanges was given" in capsys.readouterr().err
