"""What a run leaves on disk: nothing if it is refused, all of it in the end, and as much as can be on a full disk."""

import contextlib
import json
import re
import time
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig, Preferences, bandit

import shoal
from shoal import cli, envs
from shoal.config import struct
from shoal.envs.probes import ActionReward
from shoal.monitor import run_report as reports
from shoal.monitor.run_report import result_text
from shoal.records.directory import RunDirectory
from shoal.records.metrics_file import MetricsFile
from shoal.records.run_config import RunConfig
from shoal.runs.train import checkpointing, compiled_trainer, pieces
from shoal.types import Algorithm, Learner, Mean

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {
    **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 64, "num_evals": 2, "eval_episodes": 4},
    **{"devices": 1, "progress": False},
}


# ---- algorithms that hold what is hard to save


class Shared(NamedTuple):
    preferences: Preferences
    more: object


@struct.struct
class Holding(BanditConfig):
    """A bandit that holds something more in its learner and in its policy."""

    what: str = "keys"

    def algorithm(self, spec, axis=()):
        return holding(bandit(self, spec, axis), WHAT[self.what])


def keys():
    return {"one": jax.random.key(3), "several": jax.random.split(jax.random.key(4, impl="rbg"), 2)}


WHAT = {
    "keys": keys,
    "uint4": lambda: {"w": jnp.zeros(3, jnp.uint4)},
    "one name": lambda: {"a/b": jnp.zeros(2), "a": {"b": jnp.zeros(2)}},
    "no text": lambda: {"a\ud800": jnp.zeros(2)},
}


def holding(inner, make):
    def init(key, num_envs):
        learner = inner.init(key, num_envs)
        return learner._replace(shared=Shared(learner.shared, make()))

    def policy(learner, clock):
        return {"actions": learner.shared.preferences.actions, "more": learner.shared.more}

    def act(policy, *arguments, **named):
        return inner.act(policy["actions"], *arguments, **named)

    def update(learner, trajectory, keys, clock):
        bare = Learner(learner.shared.preferences, learner.local)
        updated, metrics, *_ = inner.update(bare, trajectory, keys, clock)
        more = learner.shared.more
        if "one" in more:
            more = more | {"one": jax.random.split(more["one"])[0]}
        return Learner(Shared(updated.shared, more), updated.local), metrics

    return Algorithm(init, inner.memory, policy, act, update)


def train(**more):
    environment = more.pop("environment", "probe/action")
    return shoal.train(environment, **{"algorithm": BanditConfig} | SMALL | more)


@envs.environment
class Masked(ActionReward):
    """A world with masks."""

    def reset(self, key):
        state, timestep = super().reset(key)
        return state, timestep._replace(action_mask=jnp.ones(self.action_space.n, bool))

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(action_mask=jnp.ones(self.action_space.n, bool))


# ---- typed keys


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    return train(algorithm=Holding(), run_dir=tmp_path_factory.mktemp("keyed") / "run")


@pytest.mark.full
def test_a_learner_with_typed_keys_is_saved_to_its_last_bit(keyed):
    leaves, _ = RunDirectory.open(keyed.path).load_policy("last")
    learned = struct.named_leaves(keyed.learner.shared)
    for name in ("more/one", "more/several"):
        saved = leaves[f"learner/{name}"]
        assert (saved.dtype, saved.shape) == (learned[name].dtype, learned[name].shape)
        np.testing.assert_array_equal(jax.random.key_data(saved), jax.random.key_data(learned[name]))
    assert str(leaves["learner/more/one"].dtype) == "key<fry>"
    assert str(leaves["policy/more/several"].dtype) == "key<rbg>"


def test_a_policy_with_typed_keys_is_loaded_and_acts(keyed):
    policy = keyed.policy("last", seed=1)
    expected = jax.tree.map(lambda x: x[1], keyed.learner.shared.more)
    for name, key in expected.items():
        assert policy.parameters["more"][name].dtype == key.dtype
        np.testing.assert_array_equal(
            jax.random.key_data(policy.parameters["more"][name]), jax.random.key_data(key)
        )
    assert shoal.evaluate(policy, episodes=4)["length_mean"] == 1.0
    assert len(set(keyed.summary["parameters_sha256"])) == 2


# ---- masks


@pytest.mark.full
@pytest.mark.parametrize("environment", [ActionReward(), Masked()], ids=["without", "with"])
@pytest.mark.rare("with")
def test_a_run_says_whether_its_world_has_masks(tmp_path, environment):
    run = train(environment=environment, run_dir=tmp_path / "run", checkpoints=True)
    files = RunDirectory.open(run.path)
    has_masks = isinstance(environment, Masked)
    assert files.load_config()["has_masks"] == has_masks
    for which in ("best", "last"):
        assert files.load_policy(which)[1]["has_masks"] == has_masks
        assert run.policy(which).has_masks == has_masks
    longer = shoal.resume(run.path, total_steps=96, environment=run.environment, progress=False)
    config = files.load_config()
    assert longer.path == run.path and config["history"] and config["has_masks"] == has_masks
    del config["has_masks"]  # as in a run from before it was recorded
    (run.path / "config.json").write_text(json.dumps(config))
    policy, observation = run.policy(), np.zeros(1)
    assert policy.has_masks is None
    if has_masks:
        with pytest.raises(shoal.ShoalError, match=r"^action_mask=None"):
            policy(policy.initial_memory(), observation)
    assert policy(policy.initial_memory(), observation, action_mask=[True, False])[1] in (0, 1)


# ---- refusals leave nothing behind


@envs.environment
class Raising(ActionReward):
    """A user's environment with a mistake."""

    where: str = "reset"

    def reset(self, key):
        if self.where == "reset":
            raise RuntimeError("a mistake in reset")
        return super().reset(key)

    def step(self, state, action, key):
        if self.where == "step":
            raise RuntimeError("a mistake in step")
        return super().step(state, action, key)


@struct.struct
class Colliding(BanditConfig):
    """A user's algorithm whose metric has a name of Shoal's own."""

    def algorithm(self, spec, axis=()):
        inner = bandit(self, spec, axis)

        def update(*arguments):
            learner, metrics, *_ = inner.update(*arguments)
            return learner, {**metrics, "episodes": Mean(jnp.ones(()), jnp.ones(()))}

        return inner._replace(update=update)


def returns_again(played):
    return {"return_mean": jnp.mean(played.returned)}


REFUSED = {
    "image encoder": ({"environment": "CartPole-v1", "algorithm": "ppo", "encoder": "cnn"}, "encoder='cnn'"),
    "reset raises": ({"environment": Raising("reset")}, "a mistake in reset"),
    "step raises": ({"environment": Raising("step")}, "a mistake in step"),
    "dtype": ({"algorithm": Holding(what="uint4")}, "'policy/more/w' cannot be saved: its dtype is uint4"),
    "one name": ({"algorithm": Holding(what="one name")}, "more/a/b'; rename one of them"),
    "no text": ({"algorithm": Holding(what="no text")}, "cannot be saved under that name"),
    "metric": ({"algorithm": Colliding}, "returns a metric 'episodes'"),
    "eval_metrics": ({"eval_metrics": returns_again}, "test_api_saving.py, line"),
}


@pytest.mark.parametrize("name", [None, "runs/mine"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_leaves_nothing_behind(tmp_path, monkeypatch, case, name):
    monkeypatch.chdir(tmp_path)
    settings, sentence = REFUSED[case]
    with pytest.raises((shoal.ShoalError, RuntimeError), match=re.escape(sentence)):
        train(**settings, **({"run_dir": name} if name else {}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_what_was_refused_works_in_the_same_place_with_a_right_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(shoal.ShoalError):
        train(algorithm=Holding(what="uint4"), run_dir="runs/mine")
    assert train(algorithm=Holding(), run_dir="runs/mine").path.name == "mine"


def test_a_place_is_refused_before_anything_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled_trainer, "compile_run", lambda *_, **__: pytest.fail("traced"))
    (tmp_path / "notes.txt").write_text("mine")
    for path, sentence in ((tmp_path, "is not empty and holds no run"), ("x" * 300, "File name too long")):
        with pytest.raises(shoal.ShoalError, match=sentence):
            train(run_dir=path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_too_little_space_is_told_before_anything_compiles(tmp_path, monkeypatch):
    monkeypatch.setattr("shoal.records.new_directory.free_bytes", lambda _: 10)
    monkeypatch.setattr(compiled_trainer, "ThreadPoolExecutor", lambda: pytest.fail("compiled"))
    with pytest.raises(
        shoal.ShoalError, match=r"the policies of the run take \d\d bytes, and 10 are free\.$"
    ):
        train(run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_run_that_fails_before_its_first_update_leaves_nothing(tmp_path, monkeypatch, updates, error):
    """One that fails later leaves its config and its metrics."""
    monkeypatch.chdir(tmp_path)

    def train_population(compiled_run, supervisor, history, **_):
        run, reporter = supervisor.run, supervisor.reporter
        numbers = {name: np.zeros(run.seeds) for name in ("return_mean", "episode_return")}
        reporter.on_evaluation(0, numbers)
        if updates:
            reporter.on_training(updates, numbers, 1.0, 1.0)
        raise error

    compiled = types.SimpleNamespace(costs=compiled_trainer.Costs(1, 1.0, 1.0), shapes=None)
    monkeypatch.setattr(checkpointing, "replay_of", lambda shapes: {})
    monkeypatch.setattr(compiled_trainer, "compile_run", lambda *_, **__: compiled)
    monkeypatch.setattr(pieces, "train_population", train_population)
    with pytest.raises((error, shoal.ShoalError)):  # an error of this file's code is that of a user's
        train()
    if updates:
        (run,) = (tmp_path / "runs").iterdir()
        assert sorted(path.name for path in run.iterdir()) == [".lock", "config.json", "metrics.jsonl"]
    else:
        assert list(tmp_path.iterdir()) == []


# ---- a disk that is full when the training has ended


@contextlib.contextmanager
def failing(monkeypatch, *methods):
    def fail(directory, *_):
        raise shoal.ShoalError(
            f"{directory.path}/x cannot be written: No space left on device; it takes 8 bytes."
        )

    with monkeypatch.context() as patch:
        for method in methods:
            patch.setattr(MetricsFile if method == "write" else RunDirectory, method, fail)
        yield


def test_a_full_disk_costs_only_what_cannot_be_written(tmp_path, monkeypatch, capsys):
    """The result is printed, the sentence follows, the exit code is 2, and what can be written is there."""
    monkeypatch.chdir(tmp_path)
    words = (
        "train probe/action --quiet --num-envs 4 --num-steps 8 --total-steps 64 --seeds 2 --eval-episodes 4"
    )
    more = "--algorithm tiny_bandit:BanditConfig --run-dir run --devices 1"
    with failing(monkeypatch, "save_policy"):
        assert cli.main([*words.split(), *more.split()]) == 2
    told = capsys.readouterr()
    assert told.err == (
        "shoal: run/x cannot be written: No space left on device; it takes 8 bytes (and 1 more of the run's files).\n"
    )
    assert "best policies   IQM" in told.out
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        *(".lock", "checkpoints", "config.json", "learning_curve.png", "metrics.jsonl", "summary.json")
    ]


def test_python_gets_the_run_all_the_same(tmp_path, monkeypatch):
    with (
        failing(monkeypatch, "save_policy", "write", "save_summary"),
        pytest.raises(shoal.SavingError) as error,
    ):
        train(run_dir=tmp_path / "run")
    run = error.value.run
    assert "and 4 more of the run's files" in str(error.value)
    assert run.learner.shared.actions.shape == (2, 2)
    assert run.summary["absolute"]["returns"]
    assert [steps for steps, _ in run.evaluations] == [0, 32, 64]


def wait_for_note(reporter, capsys):
    """Return what was said once a failure of the thread that writes rows has been."""
    said, end_time = "", time.monotonic() + 30
    while "Training continues" not in said and time.monotonic() < end_time:
        reporter.report_failure()
        said += capsys.readouterr().err
    return said


@pytest.mark.full
def test_rows_that_could_not_be_written_are_written_later(tmp_path, monkeypatch, capsys):
    directory = RunDirectory.create(tmp_path / "run", "x", "y", {})
    run = RunConfig(seeds=1, num_envs=4, num_steps=8, total_steps=64)
    numbers = {"return_mean": np.zeros(1), "episode_return": np.zeros(1)}
    with reports.Reporter(directory, run, "x", show=True) as reporter:
        with failing(monkeypatch, "write"):
            reporter.on_evaluation(0, numbers)
            reporter.on_training(1, numbers, 1.0, 1.0)
            with pytest.raises(shoal.ShoalError, match="No space"):
                reporter.metrics.flush()
            said = wait_for_note(reporter, capsys)
        assert said.count("No space left on device; it takes 8 bytes. Training continues.") == 1
        reporter.on_training(2, numbers, 1.0, 1.0)
    assert [(row["kind"], row["updates"]) for row in directory.load_metrics()] == [
        *(("evaluation", 0), ("train", 1), ("train", 2))
    ]


# ---- scores that are not finite


@envs.environment
class Broken(ActionReward):
    """The reward of action 1 is NaN; of action 0 it is 1."""

    def step(self, state, action, key):
        state, timestep = super().step(state, action, key)
        return state, timestep._replace(reward=jnp.where(action == 1, jnp.nan, 1.0))


@struct.struct
class Favouring(BanditConfig):
    """A bandit whose seeds begin, and stay, with action 1."""

    def algorithm(self, spec, axis=()):
        inner = bandit(self, spec, axis)

        def init(key, num_envs):
            shared = Preferences(jnp.array([0.0, 50.0]), jnp.zeros(()))
            return inner.init(key, num_envs)._replace(shared=shared)

        def update(learner, trajectory, keys, clock):
            _, metrics, *_ = inner.update(learner, trajectory, keys, clock)
            shared = learner.shared._replace(baseline=learner.shared.baseline + 1.0)
            return learner._replace(shared=shared), metrics

        return inner._replace(init=init, update=update)


@pytest.fixture(scope="module")
def never_finite(tmp_path_factory):
    path = tmp_path_factory.mktemp("nan") / "run"
    with pytest.MonkeyPatch.context() as patch:  # as if the rewards were finite while it trains
        patch.setattr("shoal.engine.loop.has_fault", lambda found, axis=(): jnp.bool_(False))
        return train(environment=Broken(), algorithm=Favouring, run_dir=path, seed=5)


@pytest.mark.full
def test_a_run_whose_scores_were_never_finite_is_saved_and_says_so(never_finite):
    run = never_finite
    _, metadata = RunDirectory.open(run.path).load_policy("best")
    assert metadata["scores"] == ["nan", "nan"]
    assert metadata["updates"] == [2, 2]  # the last policy, and not one that was never trained
    told = result_text(dict(run.summary), run.path)
    assert "IQM nan" in told
    assert "  returns that are not finite: seed 5, 6" in told.splitlines()
    saved = json.loads((run.path / "summary.json").read_text())
    assert saved["absolute"] == {"returns": [None, None], "iqm": None, "interval": None}
    assert (run.path / "learning_curve.png").is_file()


@pytest.mark.full
def test_no_seed_of_it_is_the_best(never_finite):
    with pytest.raises(
        shoal.ShoalError,
        match=r"^no score of the run '.*' was ever finite, so that no seed is the best; name one: seed=5, 6\.$",
    ):
        shoal.load(never_finite.path, environment=Broken())
    policy = shoal.load(never_finite.path, seed=6, environment=Broken())
    np.testing.assert_array_equal(policy.parameters, [0.0, 50.0])
