"""With SHOAL_PLAIN=1 everything takes its plain form, and does what it does without."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shoal
from shoal.xla.plain import TRICKS

TESTS = Path(__file__).parents[1]


def run_plain(*arguments, timeout=240, **environment):
    """What a Python process of its own prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "SHOAL_PLAIN": "1", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=TESTS.parent,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-8000:]
    return done.stdout


def run_tests(*arguments, timeout):
    return run_plain(
        "-m", "pytest", "-n0", "-q", "-m", "not slow", "-p", "no:cacheprovider", *arguments, timeout=timeout
    )


@pytest.mark.parametrize(("value", "uses_plain_form"), [("", False), ("0", False), ("1", True)])
def test_the_switch_is_read_from_the_environment(value, uses_plain_form):
    printed = run_plain("-c", "from shoal.xla.plain import USE_PLAIN; print(USE_PLAIN)", SHOAL_PLAIN=value)
    assert printed.strip() == str(uses_plain_form)


def test_single_tricks_are_named():
    names = ("pack", "materialise", "product")
    code = f"from shoal.xla import plain; print(plain.USE_PLAIN, *map(plain.uses_plain_form, {names}))"
    assert run_plain("-c", code, SHOAL_PLAIN="pack, product").split() == ["False", "True", "False", "True"]


@pytest.mark.full
def test_an_unknown_trick_is_one_sentence():
    command = [Path(sys.executable).with_name("shoal"), "train", "CartPole-v1"]
    done = subprocess.run(
        command,
        env={**os.environ, "SHOAL_PLAIN": "pak"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "SHOAL_PLAIN names 'pak', which is not a trick" in done.stderr
    assert "did you mean 'pack'?" in done.stderr


def test_every_name_is_asked_for_once_or_more():
    """A name that no module asks for would silently do nothing."""
    asked = {name for path in SOURCES for name in re.findall(r'uses_plain_form\("(\w+)"\)', path.read_text())}
    assert asked == set(TRICKS)


def functions_of(path):
    return [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]


SOURCES = sorted(Path(shoal.__file__).parent.rglob("*.py"))


@pytest.mark.full
def test_every_plain_form_has_a_trick_beside_it_that_the_table_names():
    page = (TESTS.parent / "docs" / "performance.md").read_text()
    public = {name for path in SOURCES for name in functions_of(path) if not name.startswith("_")}
    tricks = {name.removesuffix("_plain") for name in public if name.endswith("_plain")}
    assert len(tricks) >= 15 and tricks <= public
    assert {name for name in tricks - {"by_platform"} if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("name", ["default_backend", "optimization_barrier", "platform_dependent"])
def test_only_one_module_asks_the_compiler(name):
    found = {path.name for path in SOURCES if f"{name}(" in path.read_text()}
    expected = {"barriers.py", "acrobot.py"} if name == "optimization_barrier" else {"backend.py"}
    assert found == expected


TRAIN = """
import json, sys
import numpy as np
import shoal
from shoal.config.struct import named_leaves

settings, directory = json.loads(sys.argv[1]), sys.argv[2]
run = shoal.train(**settings, run_dir=directory + "/run", progress=False, devices=1)
print(json.dumps(run.summary["plain"]))
np.savez(directory + "/parameters.npz", **named_leaves(run.learner.shared.network))
"""
SHORT = {"seeds": 1, "num_evals": 1, "eval_episodes": 2, "update_epochs": 1, "num_minibatches": 2}
CASES = {
    "CartPole-v1": {"num_envs": 8, "num_steps": 32, "gradient_chunk": 64, "hidden_sizes": [16]},
    "MiniGrid-Empty-6x6": {
        "num_envs": 8,
        "num_steps": 16,
        "gradient_chunk": 32,
        "core": "gru",
        "core_size": 16,
    },
}


@pytest.mark.parametrize("environment", CASES)
@pytest.mark.slow
def test_both_forms_of_everything_learn_the_same(tmp_path, environment):
    """Two updates: the parameters agree within what rounding grows to in four gradient steps."""
    settings = SHORT | CASES[environment] | {"environment": environment}
    settings["total_steps"] = 2 * settings["num_envs"] * settings["num_steps"]
    found = {}
    for form in ("0", "1"):
        directory = tmp_path / form
        directory.mkdir()
        printed = run_plain("-c", TRAIN, json.dumps(settings), str(directory), SHOAL_PLAIN=form)
        assert json.loads(printed.splitlines()[-1]) is (form == "1")
        assert json.loads((directory / "run" / "summary.json").read_text())["plain"] is (form == "1")
        found[form] = np.load(directory / "parameters.npz")
    assert found["0"].files == found["1"].files
    for name in found["0"].files:
        np.testing.assert_allclose(found["0"][name], found["1"][name], rtol=1e-3, atol=1e-4, err_msg=name)


CONTRACTS = {
    "update": "tests/algos/test_contract.py::test_an_update_learns_something_finite[a2c]",
    "replay": "tests/algos/test_contract.py::test_an_update_learns_something_finite[ppo with memory]",
    "core": "tests/nets/memory/test_cores.py::test_equals_a_loop_in_numpy_with_every_pattern_of_resets[lstm-2-sum]",
    "batch": "tests/envs/test_batch.py::test_rollout_equals_a_loop_over_single_environments[fresh-8]",
}


@pytest.mark.parametrize("names", [("core", "batch"), ("update", "replay")], ids="-".join)
@pytest.mark.full
@pytest.mark.rare("core-batch")
def test_the_contracts_hold_in_the_plain_form(names):
    run_tests(*(CONTRACTS[name] for name in names), timeout=240)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "file",
    ["algos/test_contract.py", "nets/memory/test_cores.py", "envs/test_batch.py", "nets/test_contract.py"],
)
@pytest.mark.quick("nets/test_contract.py")
@pytest.mark.rare()
def test_every_contract_holds_in_the_plain_form(file):
    """But for what only the fast form promises: the number of products inside a loop, and a branch."""
    products = "tests/nets/memory/test_cores.py::test_the_input_projection_stands_outside_the_loop"
    branch = "tests/envs/test_batch.py::test_costly_starts_are_computed_only_in_a_step_after_an_end"
    run_tests(f"tests/{file}", f"--deselect={products}", f"--deselect={branch}", timeout=880)
