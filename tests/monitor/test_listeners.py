"""A user's listeners: what they are told and when, how they stop a run, and what their errors leave."""

import json

import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig

import shoal
from shoal.base.errors import ShoalError, UserCodeError
from shoal.envs.probes import ActionReward
from shoal.records.directory import RunDirectory
from shoal.records.metrics_file import METRICS

pytestmark = pytest.mark.usefixtures("undrawn")

# Log points at 2, 4, ... 12 updates of 32 steps, evaluations at 0, 4, 8 and 12.
SMALL = {
    **{"seeds": 2, "num_envs": 4, "num_steps": 8, "total_steps": 32 * 12, "num_evals": 3, "log_every": 64},
    **{"eval_episodes": 4, "devices": 1, "progress": False},
}


def train(path, *listeners, **settings):
    settings = SMALL | settings
    return shoal.train(
        ActionReward(), algorithm=BanditConfig(), run_dir=path, listeners=listeners, **settings
    )


def resume(path, *listeners, **settings):
    return shoal.resume(path, environment=ActionReward(), listeners=listeners, progress=False, **settings)


@pytest.fixture(autouse=True)
def config_class(monkeypatch):
    monkeypatch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)


class Recorder:
    """Writes down each call, and answers one of them, or fails in it."""

    def __init__(self, method="", step=0, answer=None, error=None):
        self.at, self.answer, self.error = (method, step), answer, error
        self.calls = []

    def react(self, method, step, what):
        self.calls.append((method, step, what))
        if (method, step) != self.at:
            return None
        if self.error:
            raise self.error
        return self.answer

    def on_start(self, run):
        return self.react("on_start", run.step, run)

    def on_training(self, step, numbers):
        return self.react("on_training", step, numbers)

    def on_evaluation(self, step, numbers):
        return self.react("on_evaluation", step, numbers)

    def on_end(self, summary):
        return self.react("on_end", summary["steps_per_seed"], summary)

    @property
    def order(self):
        return [(method.removeprefix("on_"), step // 32) for method, step, _ in self.calls]


class Vandal:
    """Has one of the methods, and overwrites what it is given."""

    def on_evaluation(self, step, numbers):
        for x in numbers.values():
            x[:] = -1e6


ORDER = [
    *[("start", 0), ("evaluation", 0), ("training", 2), ("training", 4), ("evaluation", 4), ("training", 6)],
    *[
        ("training", 8),
        ("evaluation", 8),
        ("training", 10),
        ("training", 12),
        ("evaluation", 12),
        ("end", 12),
    ],
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    recorder = Recorder()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: BanditConfig)
        return train(tmp_path_factory.mktemp("whole") / "run", recorder), recorder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run")


def rows(path):
    return [
        {name: x for name, x in row.items() if "second" not in name and name != "time"}
        for row in RunDirectory.open(path).load_metrics()
    ]


def assert_same_result(run, expected):
    for name in ("parameters_sha256", "absolute", "final", "evaluation", "steps_per_seed"):
        assert run.summary[name] == expected.summary[name]


def test_the_calls_are_in_order_and_their_numbers_those_of_the_rows(whole):
    run, recorder = whole
    assert recorder.order == ORDER
    told = [
        {"kind": {"on_training": "train"}.get(method, "evaluation"), "step": step}
        | {name: float(x[k]) for name, x in numbers.items()}
        for method, step, numbers in recorder.calls[1:-1]
        for k in range(2)
    ]
    saved = [json.loads(line) for line in (run.path / METRICS).read_text().splitlines()]
    for row in saved:
        del row["updates"], row["seed"], row["time"]
    evaluations = [row.pop("evaluation") for row in saved if row["kind"] == "evaluation"]
    assert evaluations == [k // 2 for k in range(len(evaluations))]  # the number of each, for both seeds
    assert told == saved
    assert recorder.calls[-1][2] == run.summary
    started = recorder.calls[0][2]
    assert started.path == run.path
    assert started.config == json.loads((run.path / "config.json").read_text())
    assert [member.seed for member in started.members] == [0, 1]


def test_a_run_with_listeners_is_bit_for_bit_one_without(whole, alone, tmp_path):
    vandalised = train(tmp_path / "run", Vandal())
    for run in (whole[0], vandalised):
        assert_same_result(run, alone)
        assert rows(run.path) == rows(alone.path)
        first, second = (json.loads((x.path / "config.json").read_text()) for x in (run, alone))
        assert first["run"].pop("run_dir") != second["run"].pop("run_dir")
        assert first == second


@pytest.mark.quick("on_evaluation-4-last1")
@pytest.mark.parametrize(
    ("method", "updates", "last"),
    [
        ("on_start", 0, ORDER[:2]),
        ("on_evaluation", 4, ORDER[:5]),
        ("on_training", 6, [*ORDER[:6], ("evaluation", 6)]),
    ],
)
def test_a_text_ends_the_run_as_its_end_would(whole, tmp_path, capsys, method, updates, last):
    recorder, steps = Recorder(method, 32 * updates, "good enough"), 32 * updates
    run = train(tmp_path / "run", recorder)
    assert recorder.order == [*last, ("end", updates)]
    assert run.summary["stopped"] == "Recorder: good enough"
    assert run.summary["steps_per_seed"] == steps
    assert run.evaluations[-1][0] == steps
    assert run.summary["final"]["returns"] == run.evaluations[-1][1]["return_mean"].tolist()
    assert {x.name for x in run.path.iterdir()} >= {
        "summary.json",
        "best.safetensors",
        "last.safetensors",
        "learning_curve.png",
    }
    assert "stopped         by Recorder: good enough" in shoal.monitor.run_report.result_text(
        dict(run.summary), run.path
    )
    again = Recorder()
    assert train(run.path, again).summary == json.loads((run.path / "summary.json").read_text())
    assert again.calls == []  # it is only read
    with pytest.raises(
        ShoalError, match=rf"is finished, with {steps:,} .* \(stopped by Recorder: good enough\)"
    ):
        resume(run.path)
    longer = resume(run.path, again, total_steps=32 * 12)
    assert "stopped" not in longer.summary
    assert again.order == [("start", updates), *[x for x in ORDER[1:] if x[1] > updates]]
    assert longer.summary["parameters_sha256"] == whole[0].summary["parameters_sha256"]
    assert longer.summary["final"] == whole[0].summary["final"]


@pytest.mark.full
def test_the_first_reason_counts_and_what_the_end_is_answered_does_not(tmp_path):
    listeners = Recorder("on_evaluation", 0, "first"), Recorder("on_evaluation", 0, "second")
    run = train(tmp_path / "run", *listeners, Recorder("on_end", 0, "too late"))
    train(tmp_path / "whole", Recorder("on_end", 384, 0.5))  # a score, say
    assert run.summary["stopped"] == "Recorder: first"
    assert [x.order for x in listeners] == [[*ORDER[:2], ("end", 0)]] * 2


@pytest.mark.quick("on_training-6")
@pytest.mark.parametrize(("method", "updates"), [("on_training", 6), ("on_evaluation", 8)])
def test_an_error_is_the_users_and_leaves_a_run_that_goes_on(whole, tmp_path, method, updates):
    later = Recorder()
    with pytest.raises(UserCodeError) as raised:
        train(tmp_path / "run", Recorder(method, 32 * updates, error=KeyError("gone")), later)
    assert "Recorder.react failed in" in str(raised.value) and "KeyError" in str(raised.value)
    assert method in raised.value.frames and "raise self.error" in raised.value.frames
    assert "listeners.py" not in raised.value.frames.replace("test_listeners.py", "")
    index = ORDER.index((method.removeprefix("on_"), updates))
    assert later.order == ORDER[:index]  # nobody is told of anything after it
    run = resume(tmp_path / "run", later)
    assert_same_result(run, whole[0])
    assert rows(run.path) == rows(whole[0].path)
    assert later.order[index:] == [("start", updates), *ORDER[index + 1 :]]


def test_an_error_at_the_start_leaves_nothing_and_one_at_the_end_all(whole, tmp_path):
    with pytest.raises(UserCodeError, match="KeyError"):
        train(tmp_path / "run", Recorder("on_start", 0, error=KeyError("gone")))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserCodeError, match="KeyError"):
        train(tmp_path / "run", Recorder("on_end", 32 * 12, error=KeyError("gone")))
    assert_same_result(train(tmp_path / "run"), whole[0])


@pytest.mark.parametrize(
    ("listeners", "sentence"),
    [
        (Recorder(), "listeners is a Recorder, not a list of objects"),
        ([Recorder(), 3], r"listeners\[1\], a int, has none of the methods on_start, on_training"),
        ([Recorder], r"listeners\[0\] is the class Recorder; give an object of it"),
    ],
)
def test_what_is_no_listener_is_refused_before_anything_compiles(tmp_path, monkeypatch, listeners, sentence):
    monkeypatch.setattr("shoal.runs.train.compiled_trainer.compile_run", None)
    with pytest.raises(ShoalError, match=sentence):
        shoal.train("CartPole-v1", run_dir=tmp_path / "run", listeners=listeners)
    with pytest.raises(ShoalError, match=sentence):
        shoal.resume(tmp_path / "run", listeners=listeners)
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_an_answer_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(
        ShoalError, match=r"Recorder\.on_training returns a bool; it must return None, or a text"
    ):
        train(tmp_path / "run", Recorder("on_training", 64, True))
