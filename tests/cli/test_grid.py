"""`shoal grid`: what is drawn is what Python draws, and can be trained on, evaluated on and shown."""

import dataclasses
import json

import numpy as np
import pytest

from shoal.cli import grid
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import describe_benchmark, describe_ruleset
from shoal.envs.grid.rulesets.generation import PUBLISHED as PUBLISHED_RULESETS

SMALL = PUBLISHED_RULESETS["small"]


def test_make_benchmark_writes_what_python_draws(command, capsys, tmp_path):
    words = ["--rulesets", "50", "--seed", "3", "--held-out", "0.1", "--prune-prob", "0.5", "--save", "b.npz"]
    assert command("grid", "make-benchmark", "small", *words) == 0
    told = capsys.readouterr().out
    assert told.startswith("b.npz: 50 rulesets, 5 of them held out\n")
    assert "prune_prob 0.5" in told and "rulesets/s" in told
    written = Benchmark.load(tmp_path / "b.npz")
    expected = Benchmark.make(dataclasses.replace(SMALL, prune_prob=0.5), 50, seed=3, held_out=0.1)
    assert all(map(np.array_equal, written.rulesets, expected.rulesets))
    assert written.num_held_out == 5
    assert command("grid", "make-benchmark", "trivial", "--rulesets=9") == 0
    assert len(Benchmark.load(tmp_path / "trivial.npz")) == 9


def test_show_tells_a_file_and_one_ruleset(command, capsys):
    made = Benchmark.make(SMALL, 20)
    made.save("b.npz")
    assert command("grid", "show", "b.npz") == 0
    assert capsys.readouterr().out.strip() == describe_benchmark(made)
    assert command("grid", "show", "b.npz", "7") == 0
    assert capsys.readouterr().out.strip() == describe_ruleset(made.ruleset(7))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sow"], "there is no command 'grid sow'; there are make-benchmark, show; did you mean 'show'?"),
        (["make-benchmark"], "no setting was named; give one, such as shoal grid make-benchmark small."),
        (
            ["make-benchmark", "hihg"],
            "there is no setting 'hihg'; there are trivial, small, medium, high; did you mean 'high'?",
        ),
        (["make-benchmark", "high", "x"], "'x' is one word too many"),
        (["make-benchmark", "high", "--rulesets", "0"], "rulesets=0 is too few; give 1 or more."),
        (["make-benchmark", "high", "--held-out", "1"], "held_out=1.0 is not a share of the rulesets"),
        (["make-benchmark", "high", "--seed", "-1"], "seed=-1 is less than 0."),
        (["make-benchmark", "high", "--chain-depth", "4"], "chain_depth=4 is not between 0 and 3"),
        (
            ["make-benchmark", "high", "--goals", "agent_hodl"],
            "goals=('agent_hodl',): 'agent_hodl' is not a kind of goal",
        ),
        (
            ["make-benchmark", "high", "--rulesets", "3", "--save", "."],
            ". cannot be written: it is a directory.",
        ),
        (["show"], "no file was named; give one, such as shoal grid show small.npz 0."),
        (["show", "nowhere.npz"], "benchmark 'nowhere.npz' cannot be read: No such file or directory."),
        (["show", "b.npz", "9"], "there is no ruleset 9; the 9 are numbered from 0 to 8."),
        (["show", "b.npz", "x"], "'x' is not a ruleset's number; give one from 0 to 8."),
        (["show", "b.npz", "1", "2"], "'2' is not a ruleset's number"),
        (["show", "b.npz", "²"], "'²' is not a ruleset's number"),
    ],
)
def test_a_mistake_is_one_sentence(command, capsys, words, sentence):
    Benchmark.make(SMALL, 9).save("b.npz")
    assert command("grid", *words) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"shoal: {sentence}") and told.err.count("\n") == 1


def test_help_lists_the_commands(command, capsys):
    with pytest.raises(SystemExit):
        command("grid", "--help")
    page = capsys.readouterr().out
    assert all(f"  {name} {words}" in page for name, (words, _) in grid.COMMANDS.items())


@pytest.mark.slow
def test_a_run_trains_on_one_part_and_is_evaluated_on_the_other(command, capsys, tmp_path):
    Benchmark.make(SMALL, 40).save("b.npz")
    world = ["XLand-MiniGrid-R1-9x9", "ruleset=b.npz:train", "max_episode_steps=20", "observe_goal=true"]
    tiny = [
        "--seeds=1",
        "--num-envs=8",
        "--num-steps=8",
        "--total-steps=64",
        "--hidden-sizes=8",
        "--num-evals=1",
    ]
    assert command("train", *world, "--run-dir", "run", *tiny, "--no-preset", "--quiet") == 0
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["environment"]["parameters"]["ruleset"]
    assert kept.startswith(f"{tmp_path / 'b.npz'}:train#")
    capsys.readouterr()
    words = ["--episodes", "4", "--json", "--env", "ruleset=b.npz:held-out"]
    assert command("eval", "run", *words) == 0
    assert 0 <= json.loads(capsys.readouterr().out)["metrics"]["0"]["info_success"] <= 1
    Benchmark.make(SMALL, 40, seed=9).save("b.npz")
    assert command("eval", "run", "--episodes", "4") == 2
    assert "the file holds other rulesets now" in capsys.readouterr().err
    Benchmark.make(SMALL, 40, seed=9).save("c.npz")
    (tmp_path / "b.npz").unlink()
    assert command("eval", "run", "--episodes", "4") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert command("eval", "run", "--episodes", "4", "--json", "--env", "ruleset=c.npz:held-out") == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 4
