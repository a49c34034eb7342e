"""Every JSON file of a run's and a sweep's directory, and the records of its policies, with a flipped bit, without a
key or with another value: each is read, or named in one sentence.
"""

import copy
import json
import random

import forged
import pytest
from tiny_bandit import BanditConfig

import shoal
from shoal.base.errors import ShoalError
from shoal.monitor.run_report import result_text
from shoal.records import pbt_settings
from shoal.records.directory import RunDirectory
from shoal.records.halving import Halving
from shoal.records.json_files import parse_json
from shoal.records.members import Variant
from shoal.records.search_files import resolve_run
from shoal.runs.plan.decide import decide as decide_all
from shoal.runs.policies import load as loading
from shoal.runs.train import pbt_run, results, resume
from shoal.search import tune
from shoal.search.sweep_directory import SweepDirectory

pytestmark = pytest.mark.usefixtures("undrawn")

SETTINGS = {
    **{"num_envs": 4, "num_steps": 8, "total_steps": 64, "num_evals": 2, "eval_episodes": 4},
    **{"devices": 1, "progress": False, "checkpoints": False},
}
VARIANTS = [
    Variant("0 a", {"gamma": 0.9, "env.gravity": 9.0}),
    Variant("1 b", {"gamma": 0.8, "env.gravity": 8.0}),
]
ASKED = {"experiment": {"seeds": 2}, "space": {"ent_coef": [0.0, 0.01]}}
SUMMARY = {"best": {"label": "0 a", "run": None}, "members": [{"label": "0 a"}]}
SCHEDULE = {"schedule": [{"updates": 0, "settings": {"ent_coef": 0.01}}]}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A sweep's directory with a run, and beside them the settings of a population and of exchanges."""
    path = tmp_path_factory.mktemp("json") / "sweep"
    directory = SweepDirectory(str(path), ASKED)
    directory.create("probe/action", "bandit")
    directory.save_plan({"runs/000": ["0 a", "1 b"]})
    tune._record(path, {0: {"ent_coef": 0.01}})
    run = shoal.train(
        "probe/action", algorithm=BanditConfig(), seeds=2, run_dir=path / "runs" / "000", **SETTINGS
    )
    tuned = pbt_settings.Tuned("gamma", "linear", 0.9, 0.99, (0.9, 0.95))
    searches = {
        "population": {"variants": VARIANTS, "halving": Halving(2, 64, "return_mean")},
        "exchanges": {"evolution": pbt_settings.Evolution((tuned,))},
    }
    for name, search in searches.items():
        decided = decide_all(
            "CartPole-v1", environment_parameters={"half_length": 0.4}, overrides={"seeds": 2}, **search
        )
        (path / f"{name}.json").write_text(json.dumps(decided.as_json(), indent=2))
    (path / "summary.json").write_text(json.dumps(SUMMARY, indent=2))
    (run.path / pbt_run.SCHEDULE).write_text(json.dumps(SCHEDULE, indent=2))
    return path


def run_of(path):
    return RunDirectory(path / "runs" / "000")


def decide(file):
    decided = decide_all(None, config_file=file, overrides={})
    decided.run.validate()
    return decided, decided.solo


def load(path):
    decided = decide(run_of(path).path)[0]
    for which in ("best", "last"):
        stored = loading.read_policies(run_of(path), which, None, decided)
        loading.load_policy(stored, loading.chosen_member(stored, None, None))


def finished(path):
    directory, decided = run_of(path), decide(run_of(path).path)[0]
    if resume.is_finished(directory, decided.run):
        results.finished_run(directory, decided)
        result_text(directory.load_summary(), directory.path)


READERS = {
    "runs/000/config.json": lambda path: decide(run_of(path).path),
    "runs/000/summary.json": finished,
    "runs/000/metrics.jsonl": finished,
    "runs/000/best.safetensors": load,
    "runs/000/last.safetensors": load,
    "runs/000/schedule.json": lambda path: pbt_run.read_schedule(run_of(path).path),
    "sweep.json": lambda path: [SweepDirectory(str(path), ASKED), resolve_run(path, "0 a")],
    "summary.json": resolve_run,
    "batches/00000/trials.json": lambda path: tune._numbers(path / "batches" / "00000" / "trials.json"),
    "population.json": lambda path: decide(path / "population.json"),
    "exchanges.json": lambda path: decide(path / "exchanges.json"),
}


def flipped(data):
    """The content with one bit changed, at each byte in turn; the highest one makes it a byte above 127."""
    for place in range(len(data)):
        for bit in (7, random.Random(place).randrange(7)):
            yield data[:place] + bytes([data[place] ^ (1 << bit)]) + data[place + 1 :]


def without_keys(tree):
    """The tree without each of its keys in turn, at every depth."""
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        if isinstance(tree, dict):
            yield {name: x for name, x in tree.items() if name != key}
        for changed in without_keys(part):
            other = copy.copy(tree)
            other[key] = changed
            yield other


def with_others(tree):
    """The tree with another value in each place in turn, at every depth."""
    yield from (None, "x", [1], {"x": 1}, -1.5)
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, part in parts:
        for changed in with_others(part):
            other = copy.copy(tree)
            other[key] = changed
            yield other


def contents(data, kind):
    """The damaged contents of a file; of one of several lines, of its first."""
    if kind == "flipped":
        yield from flipped(data)
        return
    if not data.startswith(
        b"{"
    ):  # the checksum fits, so that the change is found by what it makes of the record
        _, record, numbers = forged.split(data)
        del record["sha256"]
        for tree in (without_keys if kind == "without a key" else with_others)(record):
            if isinstance(tree, dict):
                yield forged.joined(forged.split(data)[0], tree, numbers)
        return
    line, rest = (data, b"") if data.startswith(b"{\n") else (data.split(b"\n")[0], data[data.index(b"\n") :])
    change = without_keys if kind == "without a key" else with_others
    yield from (json.dumps(tree).encode() + rest for tree in change(json.loads(line)))


KINDS = ("flipped", "without a key", "with another value")
# The numbers of a summary are printed as they are.
CASES = [
    (name, kind) for name in READERS for kind in KINDS if (name, kind) != ("runs/000/summary.json", KINDS[2])
]


@pytest.mark.parametrize("count", [2, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_file_is_read_or_named(path, name, kind, count):
    file, read = path / name, READERS[name]
    whole = file.read_bytes()
    read(path)
    damaged = list(contents(whole, kind))
    try:
        for content in random.Random(0).sample(damaged, min(count, len(damaged))):
            file.write_bytes(content)
            try:
                read(path)
            except ShoalError as error:
                assert "\n" not in str(error)
            except BaseException:
                print(content.decode(errors="replace"))
                raise
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("content", ["{}", '{"steps_per_seed": null}', '{"steps_per_seed": "x"}'])
def test_a_summary_without_its_steps_is_damaged_and_not_that_of_an_unfinished_run(path, content):
    file = path / "runs" / "000" / "summary.json"
    whole = file.read_bytes()
    try:
        file.write_text(content)
        with pytest.raises(ShoalError, match=r"summary\.json.* is damaged"):
            finished(path)
    finally:
        file.write_bytes(whole)


def test_a_missing_key_is_named_with_its_neighbours():
    saved = parse_json(b'{"environment": {"name": "CartPole-v1"}}', "config.json")
    with pytest.raises(ShoalError, match=r"^config\.json is damaged: it lacks 'parameters' beside 'name'\.$"):
        saved["environment"]["parameters"]
    assert saved.get("x") is None and "x" not in saved


@pytest.mark.parametrize("data", [b'{"a": "\xe3"}', b"{", b"[" * 100_000, b""])
def test_what_is_no_json_is_one_sentence(data):
    with pytest.raises(ShoalError, match="is damaged: it is not JSON") as error:
        parse_json(data, "config.json")
    assert "\n" not in str(error.value)
