"""Numbers that are not finite, in whole runs: what is said, what is kept, what the other seeds become."""

import json
import re

import numpy as np
import pytest
from broken_worlds import Breaks, BrokenBandit, Explains
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig

import shoal
from shoal import envs
from shoal.cli import main
from shoal.cli.train import print_result
from shoal.monitor.run_report import result_text
from shoal.records.arrays import is_key
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.json_files import read_number
from shoal.runs.policies.evaluate import evaluate_run
from shoal.runs.train.pacing import Pacer

pytestmark = pytest.mark.usefixtures("undrawn")

ENVS, STEPS = 4, 8
SETTINGS = {
    **{"seeds": 3, "num_envs": ENVS, "num_steps": STEPS, "total_steps": ENVS * STEPS * 150, "num_evals": 2},
    **{
        "eval_episodes": 2,
        "eval_max_steps": 20,
        "devices": 1,
        "progress": False,
        "log_every": 10 * ENVS * STEPS,
    },
    **{"checkpoint_every": 16 * ENVS * STEPS, "keep": 100},
}
SENTENCE = re.compile(
    r"seed (?P<seed>\d+): the (?P<what>\S+)(?: of environment (?P<env>\d+))? was not finite in update (?P<update>\d+) "
    r"\((?P<steps>[\d,]+) environment steps\)"
)


@pytest.fixture(scope="module", autouse=True)
def many_pieces():
    """Pieces of at most seven updates, and a checkpoint at each point."""
    from shoal.runs.train.checkpointing import RunSupervisor

    submit = RunSupervisor._submit

    def submit_and_wait(self, *arguments):
        submit(self, *arguments)
        self._writer.wait()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pacer, "size", lambda self, left: min(left, 7))
        patch.setattr("shoal.runs.train.checkpointing.REST", 0)
        patch.setattr(RunSupervisor, "_submit", submit_and_wait)
        yield


def train(environment, algorithm, path, **settings):
    return shoal.train(environment, algorithm=algorithm, run_dir=path, **SETTINGS | settings)


def first_breaks(path):
    """The step at which each world of each seed breaks, as its own state says; [seeds, environments]."""
    leaves, _ = Checkpoints(path).load(0)
    found = [x for name, x in leaves.items() if name.startswith("state/") and name.endswith("breaks_at")]
    assert len(found) == 1
    return found[0]


def expected_fault(breaks_at):
    """The seed, the environment and the update at fault first, counted from 1, by a double loop."""
    found = []
    for seed, steps in enumerate(breaks_at):
        for environment, step in enumerate(steps):
            found.append((-(-int(step) // STEPS), seed, environment))
    return min(found)


def assert_checkpoints_are_finite(path, before=None):
    """Nothing in any checkpoint is NaN, and each is from before the update at fault."""
    checkpoints = Checkpoints(path)
    assert checkpoints.steps()
    for steps in checkpoints.steps():
        assert checkpoints.problem(steps) == ""
        assert before is None or steps < before * ENVS * STEPS
        leaves, _ = checkpoints.load(steps)
        for name, leaf in leaves.items():
            is_score = name == "best/score"  # of an evaluation, whose worlds may break too
            if not is_key(leaf) and leaf.dtype.kind == "f" and not is_score:
                assert not np.isnan(leaf).any(), (steps, name)


@pytest.mark.full
@pytest.mark.parametrize("what", ["reward", "observation"])
@pytest.mark.rare("reward")
def test_a_broken_environment_is_named_with_its_seed_update_and_index(what, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(shoal.ShoalError) as error:
        train(Breaks(**{what: 1.0}), BanditConfig(), path)
    update, seed, environment = expected_fault(first_breaks(path))
    found = SENTENCE.match(str(error.value))
    assert found, error.value
    assert found["what"] == what
    assert (int(found["seed"]), int(found["env"]), int(found["update"])) == (seed, environment, update)
    assert int(found["steps"].replace(",", "")) == update * ENVS * STEPS
    assert "\n" not in str(error.value)
    assert_checkpoints_are_finite(path, before=update)
    assert not (path / "summary.json").exists()


@pytest.mark.slow
def test_an_environment_explains_its_state_of_that_moment(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(shoal.ShoalError) as error:
        train(envs.TimeLimit(Explains(observation=1.0), 5000), BanditConfig(), path)
    update, seed, environment = expected_fault(first_breaks(path))
    found = SENTENCE.match(str(error.value))
    assert (int(found["seed"]), int(found["env"]), int(found["update"])) == (seed, environment, update)
    step = first_breaks(path)[seed][environment]
    assert f"environment steps), since it broke at step {step}; the run ends there" in str(error.value)


@pytest.mark.slow
def test_evaluations_and_rollouts_say_it_too(tmp_path, capsys):
    world = Explains(reward=1.0, within=8.0)
    sizes = dict(total_steps=ENVS * STEPS, eval_max_steps=10, progress=True, seeds=1)
    with pytest.raises(shoal.ShoalError, match="in update 1 "):
        train(world, BanditConfig(), tmp_path / "run", **sizes)
    note = r"seed 0: a number was not finite in the evaluation after update 0, in environment \d: it broke at step \d\n"
    assert re.search(note, capsys.readouterr().err)
    sound = train(Explains(within=1e6), BanditConfig(), tmp_path / "sound", **sizes)
    said = r"a number was not finite in environment 0: it broke at step 1\.$"
    at_once = Explains(reward=1.0, within=1.0)
    with pytest.raises(shoal.ShoalError, match=said):
        shoal.evaluate(sound.policy(), at_once, episodes=2, max_steps=3)
    assert shoal.evaluate(sound.policy(), episodes=2, max_steps=3)["return_mean"] > 0
    arguments = ["broken_worlds:Explains", "observation=1.0", "within=1.0", "--envs=2", "--steps=3"]
    assert main(["rollout", *arguments]) == 2
    line = "shoal: a number was not finite in environment 0: it broke at step 1."
    assert line in capsys.readouterr().err.splitlines()


@pytest.mark.full
def test_a_fault_in_the_first_update_keeps_the_checkpoint_that_is_named(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(shoal.ShoalError, match=r"in update 1 .* its last checkpoint is from before"):
        train(Breaks(reward=1.0, within=8.0), BanditConfig(), path)
    assert Checkpoints(path).steps() == [0]


@pytest.mark.parametrize(
    ("part", "name"),
    [(0, "extras/doubt of environment 2"), (1, "learner/shared/baseline")],
    ids=["extras", "parameters"],
)
@pytest.mark.full
@pytest.mark.rare("extras")
def test_what_the_algorithm_breaks_is_named(part, name, tmp_path):
    path = tmp_path / "run"
    algorithm = BrokenBandit(breaks_in=40.0, part=float(part), where=2.0)
    with pytest.raises(shoal.ShoalError) as error:
        train(Breaks(), algorithm, path, seed=5)
    assert str(error.value).startswith(
        f"seed 5: the {name} was not finite in update 41 (1,312 environment steps)"
    )
    assert_checkpoints_are_finite(path, before=41)


@pytest.mark.full
def test_the_command_ends_with_2_and_a_run_without_checkpoints_names_less(tmp_path, capsys):
    flags = [f"--{name.replace('_', '-')}={x}" for name, x in SETTINGS.items() if name != "progress"]
    arguments = [
        "train",
        "broken_worlds:Breaks",
        "reward=1.0",
        *flags,
        "--algorithm",
        "tiny_bandit:BanditConfig",
    ]
    assert main([*arguments, "--run-dir", str(tmp_path / "run"), "--quiet"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("shoal: ")]
    assert len(lines) == 1
    update, seed, environment = expected_fault(first_breaks(tmp_path / "run"))
    assert lines[0].startswith(
        f"shoal: seed {seed}: the reward of environment {environment} was not finite in update {update} "
    )
    # Without checkpoints it has the seed and the update.
    settings = {name: x for name, x in SETTINGS.items() if name not in ("checkpoint_every", "keep")}
    with pytest.raises(shoal.ShoalError) as error:
        shoal.train(
            Breaks(reward=1.0),
            algorithm=BanditConfig(),
            run_dir=tmp_path / "without",
            checkpoints=False,
            **settings,
        )
    assert str(error.value).startswith(
        f"seed {seed}: a number was not finite in update {update} "
        f"({update * ENVS * STEPS:,} environment steps); with checkpoints"
    )


FROZEN = {
    **{"total_steps": ENVS * STEPS * 20, "seeds": 6, "num_evals": 5, "log_every": ENVS * STEPS * 5},
    **{"on_nan": "freeze"},
}


def train_frozen(path, reward=1.0, **settings):
    return train(Breaks(reward=reward, within=600.0), BanditConfig(), path, **FROZEN | settings)


@pytest.fixture(scope="module")
def frozen(many_pieces, tmp_path_factory):
    """Six seeds, of which some break."""
    return train_frozen(tmp_path_factory.mktemp("frozen") / "run")


@pytest.fixture(scope="module")
def clean(many_pieces, tmp_path_factory):
    """The same in a world that never breaks, with a checkpoint at each evaluation."""
    return train_frozen(tmp_path_factory.mktemp("clean") / "run", reward=0.0, checkpoint_evals=True)


def faults_of(run):
    """By seed, the update at fault of each seed that breaks, counted from 1."""
    updates = -(-first_breaks(run.path).min(axis=1) // STEPS)
    found = {seed: int(update) for seed, update in enumerate(updates) if update <= 20}
    assert 0 < len(found) < 6
    return found


def leaves_at(path, updates):
    return Checkpoints(path).load(updates * ENVS * STEPS)[0]


def rows_of(path, kind, seed):
    """The rows of a seed, without times."""
    found = [
        row for row in RunDirectory.open(path).load_metrics() if (row["kind"], row["seed"]) == (kind, seed)
    ]
    assert found
    return [{k: x for k, x in row.items() if "second" not in k and "time" not in k} for row in found]


def test_a_frozen_seed_is_what_it_was_at_its_last_evaluation(frozen, clean):
    """Its last policy and its rows until then are those of the world that never breaks; from then on there are none."""
    failed = faults_of(frozen)
    evaluated = {seed: (update - 1) // 4 * 4 for seed, update in failed.items()}
    steps = [{k: x for k, x in entry.items() if "return" not in k} for entry in frozen.summary["failed"]]
    assert steps == [
        {"seed": seed, "update": failed[seed], "last_policy_step": evaluated[seed] * ENVS * STEPS}
        for seed in sorted(failed)
    ]
    for seed, last in evaluated.items():
        expected = leaves_at(clean.path, last)
        policy = shoal.load(frozen.path, "last", seed=seed, environment=Breaks())
        assert np.asarray(policy.parameters).tobytes() == expected["learner/shared/actions"][seed].tobytes()
        metadata = RunDirectory.open(frozen.path).load_policy("best")[1]
        chosen = metadata["updates"][seed]
        assert chosen <= last
        best = shoal.load(frozen.path, seed=seed, environment=Breaks())
        of_then = leaves_at(clean.path, chosen)["learner/shared/actions"]
        assert np.asarray(best.parameters).tobytes() == of_then[seed].tobytes()
        rows = rows_of(frozen.path, "evaluation", seed)
        assert [row["return_mean"] is None for row in rows if row["updates"] > last] == [True] * (
            (20 - last) // 4
        )
        (entry,) = [x for x in frozen.summary["failed"] if x["seed"] == seed]
        assert entry["last_policy_return"] == next(
            row["return_mean"] for row in rows if row["updates"] == last
        )
        assert frozen.summary["final"]["returns"][seed] == -np.inf
        rows = rows_of(frozen.path, "train", seed)
        assert all(row["baseline"] is None for row in rows if row["updates"] >= failed[seed])
        before = [row for row in rows if row["updates"] < failed[seed]]
        assert before == rows_of(clean.path, "train", seed)[: len(before)]
    assert_checkpoints_are_finite(frozen.path)


@pytest.mark.slow
def test_when_checkpoints_are_written_changes_no_result(frozen, tmp_path):
    """Nor whether there are any."""
    seldom = train_frozen(tmp_path / "seldom", checkpoint_every=10**6)
    without = {name: x for name, x in (SETTINGS | FROZEN).items() if name not in ("checkpoint_every", "keep")}
    never = shoal.train(
        Breaks(reward=1.0, within=600.0),
        algorithm=BanditConfig(),
        run_dir=tmp_path / "never",
        checkpoints=False,
        **without,
    )
    for other in (seldom, never):
        for name in frozen.summary.keys() - {"seconds", "steps_per_second", "started_time", "ended_time"}:
            assert json.dumps(other.summary[name]) == json.dumps(frozen.summary[name]), name
        for which in ("best", "last"):
            (mine, _), (theirs, _) = (RunDirectory.open(x.path).load_policy(which) for x in (frozen, other))
            assert all(x.tobytes() == mine[name].tobytes() for name, x in theirs.items())
        for seed in range(6):
            for kind in ("train", "evaluation"):
                assert rows_of(other.path, kind, seed) == rows_of(frozen.path, kind, seed)


def test_a_frozen_seed_is_named_and_never_the_best(frozen):
    failed = faults_of(frozen)
    evaluated = evaluate_run(frozen.path, Breaks(), episodes=2)
    assert [seed for seed, x in enumerate(evaluated["returns"]) if x == -np.inf] == sorted(failed)
    named = evaluate_run(frozen.path, Breaks(), run_seed=min(failed), episodes=2)  # its policy alone
    assert named["returns"] != [-np.inf]
    text = result_text(frozen.summary, frozen.path)
    assert text.count("  failed          seed ") == len(failed)
    assert f"; failed: {', '.join(f'seed {seed}' for seed in sorted(failed))}; " in repr(frozen)
    for seed, update in failed.items():
        assert (
            f"  failed          seed {seed}: a number was not finite in update {update}; its last policy"
            in text
        )
    metadata = RunDirectory.open(frozen.path).load_policy("best")[1]
    assert metadata["failed"] == [seed in failed for seed in range(6)]
    scores = [read_number(x) for x in metadata["scores"]]
    sound = [k for k in range(6) if k not in failed and np.isfinite(scores[k])]
    best = max(sound, key=lambda k: scores[k])
    policy = shoal.load(frozen.path, environment=Breaks())
    expected = shoal.load(frozen.path, seed=best, environment=Breaks())
    assert np.asarray(policy.parameters).tobytes() == np.asarray(expected.parameters).tobytes()


def test_a_frozen_seed_does_not_touch_the_others(frozen, clean):
    """The others end bit for bit as in a world that never breaks."""
    failed = faults_of(frozen)
    for seed in range(6):
        for name in ("actions", "baseline"):
            mine, other = (np.asarray(getattr(run.learner.shared, name))[seed] for run in (frozen, clean))
            assert np.isfinite(mine).all()
            assert (mine.tobytes() == other.tobytes()) == (seed not in failed), (seed, name)
        if seed not in failed:
            assert rows_of(frozen.path, "train", seed) == rows_of(clean.path, "train", seed)


@pytest.mark.full
def test_a_frozen_seed_stays_frozen_when_the_run_goes_on(tmp_path):
    run = train_frozen(tmp_path / "run")
    failed = faults_of(run)
    more = shoal.resume(run, total_steps=ENVS * STEPS * 21, progress=False)
    for seed in failed:
        before, after = (np.asarray(r.learner.shared.actions)[seed] for r in (run, more))
        assert before.tobytes() == after.tobytes()
    np.testing.assert_equal(
        [x for x in more.summary["failed"] if x["seed"] in failed], run.summary["failed"]
    )  # NaN is one, too


@pytest.mark.full
def test_where_all_seeds_fail_there_is_no_best_and_the_status_is_2(tmp_path, capsys):
    path = tmp_path / "run"
    sizes = {"total_steps": ENVS * STEPS * 12, "on_nan": "freeze"}
    algorithm = BrokenBandit(breaks_in=5.0, part=1.0)

    def run():
        return train(Breaks(), algorithm, path, **sizes, progress=True)

    with pytest.raises(shoal.ShoalError, match=r"^all seeds failed \(0, 1, 2\), since numbers"):
        print_result(run())
    told = capsys.readouterr()
    for seed in range(3):
        sentence = f"seed {seed}: the learner/shared/baseline was not finite in update 6 (192 environment steps); its "
        assert sentence in told.err
        assert f"  failed          seed {seed}: " in told.out
    assert "no other continues" in told.err
    assert "IQM" not in told.out
    assert "there is no best policy" in told.out
    summary = json.loads((path / "summary.json").read_text())
    assert [x["seed"] for x in summary["failed"]] == [0, 1, 2]
    assert summary["absolute"]["iqm"] is None
    assert summary["final"]["interval"] is None
    with pytest.raises(
        shoal.ShoalError, match=r"not finite, so that no seed is the best; name one: seed=0, 1, 2"
    ):
        shoal.load(path, environment=Breaks())
    with pytest.raises(shoal.ShoalError, match="no seed is the best; name one: seed=0, 1, 2"):
        evaluate_run(path, Breaks())
