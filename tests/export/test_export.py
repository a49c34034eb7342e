"""`shoal export`: its files, what they say, and what is refused."""

import dataclasses
import importlib.metadata
import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_policies import Drawn, checked, random_policy
from flax import nnx

import shoal
from shoal import environment
from shoal.base.errors import ShoalError
from shoal.base.installation import install_command
from shoal.cli import main
from shoal.config.struct import named_leaves, with_named_leaves
from shoal.envs import Wrapper
from shoal.envs.trials import Trial
from shoal.export import api
from shoal.export.check import Check, DifferentPolicy, compare, require_same
from shoal.export.onnx_file import to_model
from shoal.export.program import make_program
from shoal.nets.heads import head_for
from shoal.records.checkpoints import Checkpoints
from shoal.types.spaces import Box

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

SIZES = {"num_envs": 4, "num_steps": 8, "total_steps": 64, "num_minibatches": 1, "eval_episodes": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    shoal.train("CartPole-v1", seeds=2, run_dir=path, core="gru", core_size=8, hidden_sizes=(8,), **SIZES)
    return path


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    out = tmp_path_factory.mktemp("files") / "policy.onnx"
    return shoal.export(run, out, seed=1, check=50)


def test_names_shapes_and_origin_are_in_both_files(files, run):
    model, written = onnx.load(files.path), json.loads(files.path.with_suffix(".json").read_text())
    onnx.checker.check_model(model, full_check=True)
    assert [x.name for x in model.graph.input] == ["obs", "h_in"]
    assert [x.name for x in model.graph.output] == ["actions", "h_out"]
    assert (model.ir_version, model.opset_import[0].version) == (9, 18)
    assert written == files.description
    assert written["inputs"]["h_in"] == {"shape": [1, 1, 8], "dtype": "float32"}
    assert written["outputs"]["actions"] == {"shape": [1], "dtype": "int32", "low": 0, "high": 1}
    assert written["inputs"]["obs"]["high"][1] is None
    summary = json.loads((run / "summary.json").read_text())
    assert (written["seed"], written["run"], written["rate"]) == (1, "run", 50.0)
    assert written["score"] == summary["absolute"]["returns"][1]
    assert written["parameters_sha256"] == summary["parameters_sha256"][1]
    assert written["versions"]["jax2onnx"] == importlib.metadata.version("jax2onnx")
    properties = {x.key: x.value for x in model.metadata_props}
    assert properties.keys() == written.keys()
    assert json.loads(properties["inputs"]) == written["inputs"]
    assert properties["environment"] == "CartPole-v1"
    card = files.path.with_suffix(".md").read_text()
    assert "| input `h_in` | [1, 1, 8] | float32 |" in card
    assert str(files.check) in card


def test_no_initialiser_is_left_that_no_node_reads(files):
    graph = onnx.load(files.path).graph
    read = {name for node in graph.node for name in node.input}
    assert {x.name for x in graph.initializer} <= read


def test_the_file_says_which_checkpoint_and_which_policy(run, tmp_path):
    last = shoal.export(run, tmp_path / "last.jaxexport", which="last", check=20)
    newest = shoal.export(run, tmp_path / "newest.jaxexport", checkpoint="last", seed=0)
    assert (last.description["policy"], last.description["steps"]) == ("last", 64)
    assert newest.description["policy"].startswith("checkpoint")
    loaded = shoal.export(shoal.load(run), tmp_path / "loaded.jaxexport")
    assert "run" not in loaded.description
    assert "six months" in loaded.path.with_suffix(".md").read_text()


@pytest.mark.slow
def test_of_a_sweep_its_name_and_the_interval_of_the_setting_are_said(tmp_path, monkeypatch):
    best = {"grid": {"learning_rate": [0.001, 0.1]}, "confirm_seeds": 0, "progress": False}
    shoal.sweep("CartPole-v1", seeds=3, run_dir=tmp_path / "search", hidden_sizes=(8,), **best, **SIZES)
    monkeypatch.chdir(tmp_path / "search")
    said = shoal.export(".", tmp_path / "policy.jaxexport").description
    summary = json.loads((tmp_path / "search" / "runs" / "000" / "summary.json").read_text())
    (own,) = [x for x in summary["members"] if x["label"] == said["label"]]
    assert said["run"] == "search"
    assert said["interval_of_seeds"] == own["absolute"]["interval"] != summary["absolute"]["interval"]


@pytest.mark.slow
def test_a_setting_that_was_stopped_early_says_its_own_steps(tmp_path):
    settings = {"grid": {"learning_rate": [0.001, 0.1]}, "halving": 2, "min_steps": 128, "confirm_seeds": 0}
    sizes = SIZES | {"total_steps": 512, "num_evals": 4}
    shoal.sweep(
        "CartPole-v1", run_dir=tmp_path / "search", hidden_sizes=(8,), progress=False, **settings, **sizes
    )
    run, steps = tmp_path / "search" / "runs" / "000", set()
    for label in ("0 learning_rate=0.001", "1 learning_rate=0.1"):
        said = shoal.export(run, tmp_path / f"{label}.jaxexport", which="last", label=label).description
        steps.add(said["steps"])
    assert steps == {128, 512}


@pytest.mark.parametrize("name", ["normal", "uniform"])
def test_noise_has_the_distribution_that_the_file_says(name):
    policy = random_policy(Drawn(action_space=Box(-2.0, 3.0, (2,))) if name == "normal" else Drawn())
    check, program = checked(policy, sample=True, steps=50)
    assert check.is_same
    assert program.noise == name
    numbers = np.ravel(jax.vmap(program.draw)(jax.random.split(jax.random.key(7), 10_000)))
    mean, deviation = {"normal": (0.0, 1.0), "uniform": (0.5, 12**-0.5)}[name]
    assert abs(numbers.mean() - mean) < 0.03
    assert abs(numbers.std() - deviation) < 0.03


@pytest.mark.parametrize(("agents", "is_same"), [([0], True), ([1], False), ([0, 1], False)])
def test_a_tie_of_one_agent_excuses_no_other(agents, is_same):
    policy = random_policy(Drawn(num_agents=3), parameters="agent", hidden_sizes=(8,))
    leaves = named_leaves(policy.parameters)
    biases = [[1.0, 0.5, 1.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]]  # the first agent's best two are equal
    for agent, bias in enumerate(biases):
        leaves[f"{agent}/actor/mlp/projection/0/kernel"] = jnp.zeros((3, 8))
        leaves[f"{agent}/actor/mlp/projection/0/bias"] = jnp.asarray(bias)
    policy = dataclasses.replace(policy, parameters=with_named_leaves(policy.parameters, leaves))
    others = np.zeros((1, 3), int)
    others[0, agents] = [{0: 2, 1: 1}[agent] for agent in agents]

    def altered(feed):
        return {"actions": np.asarray([[0, 1, 2]]) + others}

    check = compare(policy, make_program(policy), altered, 3)
    assert (check.is_same, check.ties, check.other) == (is_same, 3 * is_same, 3 * (not is_same))


def test_the_flag_of_an_episodes_first_step_is_found_in_trials_too():
    shown = {
        "core": "gru",
        "core_size": 8,
        "hidden_sizes": (8,),
        "first_flag": True,
        "memory_lasts": "episode",
    }
    policy = random_policy(Trial(Drawn(), 3), **shown)
    assert "first" in make_program(policy).inputs


def test_several_observations_are_acted_on_at_once():
    policy = random_policy(Drawn(), core="lstm", core_size=8, core_layers=2)
    program = make_program(policy, 5)
    assert program.inputs["h_in"].shape == (2, 5, 8)
    form = api.FORMS[".onnx"]
    run = form.runner(form.write(program, {}), program)
    obs = np.asarray(jax.random.normal(jax.random.key(0), (5, 4)))
    found = run({"obs": obs, **{f"{name}_in": x for name, x in program.memory.items()}})
    memory, actions = policy(policy.initial_memory((5,)), obs)
    np.testing.assert_array_equal(found["actions"], actions)
    np.testing.assert_allclose(found["h_out"], program.memory_of(memory)["h"], atol=1e-6)


def test_an_input_first_is_there_only_where_the_network_is_shown_it():
    shown = make_program(random_policy(Drawn(), core="gru", core_size=8, first_flag=True))
    assert "first" in shown.inputs
    assert "first" not in make_program(random_policy(Drawn(), core="gru", core_size=8)).inputs


def test_what_no_greedy_action_reads_is_no_memory():
    policy = random_policy(Drawn(action_space=Box(-1.0, 1.0, (1,))), correlated_noise=True)
    assert list(make_program(policy).outputs) == ["actions"]


@pytest.mark.parametrize("lasts", ["trial", "episode"])
def test_the_rule_clears_the_memory_of_a_trial_where_the_trial_begins(tmp_path, lasts):
    trials = Trial(shoal.make("CartPole-v1"), episodes=2)
    sizes = {"core": "gru", "core_size": 8, "hidden_sizes": (8,), "memory_lasts": lasts}
    for name, env in {"episode": "CartPole-v1", "trial": trials}.items():
        said = shoal.export(random_policy(env, **sizes), tmp_path / f"{name}.jaxexport").description
        assert f"first step of a{'n' * (name == 'episode')} {name}" in said["memory_rule"]
        assert said["memory_lasts"] == (lasts if name == "trial" else "episode")


@environment
class Robot(Drawn):
    """Says numbers as arrays."""

    frames_per_second = 50

    def export_metadata(self):
        return {
            "action_scale": jnp.array([0.5, 0.25]),
            "gain": np.float32(2.0),
            "joint_names": ["hip", "knee"],
        }


@environment
class EveryOther(Wrapper):
    """A wrapper that makes two steps of one has half the rate."""

    frames_per_second = 25


def test_an_environment_says_arrays_and_a_wrapper_its_own_rate(tmp_path):
    said = shoal.export(random_policy(EveryOther(Robot())), tmp_path / "policy.onnx")
    of_robot = {"action_scale": [0.5, 0.25], "gain": 2.0, "joint_names": ["hip", "knee"], "rate": 25.0}
    assert said.description.items() >= of_robot.items()
    assert json.loads(said.path.with_suffix(".json").read_text()) == said.description
    properties = {x.key: x.value for x in onnx.load(said.path).metadata_props}
    assert properties["action_scale"] == "0.5,0.25"


class Own(nnx.Module):
    """An actor of one's own with a primitive that is converted for matrices alone, or not at all."""

    def __init__(self, spec, *, key):
        self.head = head_for(spec.action_space)
        self.weight = nnx.Param(jax.random.normal(key, (4, self.head.num_inputs)))

    def policy(self, observation, action_mask=None):
        return self.head(self.features(observation) @ self.weight[...], action_mask)

    def features(self, x):
        return jax.lax.linalg.eigh(x[..., None] * x[..., None, :])[1][..., 0, :]


class Unknown(Own):
    """Of a primitive without a conversion."""

    def features(self, x):
        return jax.random.gamma(jax.random.key(0), jnp.abs(x))


@pytest.mark.parametrize(("name", "primitive"), [("Own", "eigh"), ("Unknown", "random_gamma")])
def test_an_unknown_primitive_is_named_with_its_line(name, primitive):
    policy = random_policy(Drawn(), actor_network=f"{__name__}:{name}")
    with pytest.raises(ShoalError, match=rf"'{primitive}', made in .*test_export\.py:\d+"):
        to_model(make_program(policy), {})


def test_a_file_that_acts_otherwise_is_found():
    policy, other = (random_policy(Drawn(), hidden_sizes=(n,)) for n in (8, 16))
    form, program = api.FORMS[".onnx"], make_program(policy)
    content = form.write(make_program(other), {})
    check = compare(policy, program, form.runner(content, program), 100)
    assert check.other > 0
    with pytest.raises(DifferentPolicy, match="is not the same policy"):
        require_same(check)
    require_same(Check(100, 3, 9e-6, 0.0, 0, 4))


def test_a_file_that_is_not_the_same_is_not_written_and_ends_with_1(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(api, "compare", lambda *_: Check(5, 1, 0.5, 0.0, 0, 0))
    assert main(["export", str(run), str(tmp_path / "policy.onnx"), "--check", "5"]) == 1
    assert "is not the same policy" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "out='policy.tflite' has none of the suffixes .onnx and .jaxexport": ["policy.tflite"],
    "batch=0": ["policy.onnx", "--batch", "0"],
    "check=10 compares one environment, and batch=2": ["policy.onnx", "--batch", "2", "--check", "10"],
    "'taken.json' exists": ["taken.onnx"],
    "no file was named": [],
    "takes one run and one file": ["policy.onnx", "other.onnx"],
    "there is no directory": ["nowhere/policy.onnx"],
    "'to_nowhere.onnx' exists": ["to_nowhere.onnx"],
    "which": ["policy.onnx", "--checkpoint", "last", "--which", "last"],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_bad_argument_is_one_sentence_and_nothing_is_written(run, tmp_path, monkeypatch, capsys, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.json").write_text("{}")
    (tmp_path / "to_nowhere.onnx").symlink_to("nothing")
    assert main(["export", str(run), *REFUSED[sentence]]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert {x.name for x in tmp_path.iterdir()} == {"taken.json", "to_nowhere.onnx"}


def refused(path, *arguments, capsys):
    """Run the command, which is to write nothing, and return its only sentence."""
    out = path / "out"
    out.mkdir()
    assert main(["export", *map(str, arguments[:1]), str(out / "policy.onnx"), *arguments[1:]]) == 2
    assert list(out.iterdir()) == []
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    return error


def test_what_has_no_policy_is_refused(tmp_path, capsys):
    assert "no run directory" in refused(tmp_path, tmp_path / "nothing", capsys=capsys)


@pytest.mark.parametrize(
    ("summary", "sentence"),
    [
        (None, "has no results yet"),
        ({"best": None}, "has no best setting, since a number was not finite in the training of each"),
    ],
)
def test_a_sweep_or_a_study_without_a_best_run_is_refused(tmp_path, capsys, summary, sentence):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")  # a study has the same files
    if summary is not None:
        (tmp_path / "sweep" / "summary.json").write_text(json.dumps(summary))
    assert sentence in refused(tmp_path, tmp_path / "sweep", capsys=capsys)


WORLD = """
from typing import Any
import jax
import jax.numpy as jnp
import shoal
from shoal.config.struct import static
from shoal.types.spaces import Box, Discrete

@shoal.environment
class World:
    observation_space: Any = static(Box(-1.0, 1.0, (SIZE,)))
    action_space: Any = static(Discrete(3))

    def reset(self, key):
        return jnp.zeros(()), shoal.restart(self.observation_space.sample(key))

    def step(self, state, action, key):
        ends = jax.random.bernoulli(key, 0.1)
        return state, shoal.transition(self.observation_space.sample(key), 1.0, truncated=ends)
"""


@pytest.mark.full
def test_a_run_whose_environment_is_gone_or_another_is_refused(tmp_path, monkeypatch, capsys):
    """The policy's shapes are those of its environment, so that none is exported without it, with --check or not."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "exported_world.py"

    def rewrite(content):
        file.write_text(content)
        importlib.invalidate_caches()
        sys.modules.pop("exported_world", None)

    rewrite(WORLD.replace("SIZE", "4"))
    run = tmp_path / "run"
    shoal.train("exported_world:World", run_dir=run, hidden_sizes=(8,), **SIZES)
    capsys.readouterr()
    rewrite(
        WORLD.replace("SIZE", "5").ljust(2_000)
    )  # of another size, so that no compiled file is taken for it
    (tmp_path / "other").mkdir()
    error = refused(tmp_path / "other", run, "--check", "10", capsys=capsys)
    assert "kernel' of shape (8, 4), and (8, 5) is expected" in error
    rewrite("")
    (tmp_path / "gone").mkdir()
    error = refused(tmp_path / "gone", run, "--check", "10", capsys=capsys)
    assert "environment exported_world:World cannot be made again" in error


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.12.0", "exporting to ONNX needs jax2onnx 0.17.1 or newer, and 0.12.0 is installed"),
        (None, "exporting to ONNX needs jax2onnx, which is not installed"),
    ],
)
def test_the_converter_is_asked_for_by_its_extra(run, tmp_path, monkeypatch, capsys, version, sentence):
    find = importlib.metadata.version

    def found(name):
        if name == "jax2onnx" and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version if name == "jax2onnx" else find(name)

    monkeypatch.setattr(importlib.metadata, "version", found)
    error = refused(tmp_path, run, "--check", "10", capsys=capsys)
    assert sentence in error
    assert install_command("export") in error
    shoal.export(run, tmp_path / "policy.jaxexport")  # does not need it


def test_what_jax_writes_by_is_asked_for_by_the_extra_too(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    assert main(["export", str(run), str(tmp_path / "policy.jaxexport")]) == 2
    error = capsys.readouterr().err
    assert "exporting to .jaxexport needs flatbuffers, which is not installed" in error
    assert install_command("export") in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algorithm", "settings", "what"),
    [("ppo", {"distribution": "beta"}, "draws by its parameters"), ("td3", {}, "does not sample")],
)
def test_a_policy_that_does_not_sample_by_noise_is_refused(tmp_path, algorithm, settings, what):
    policy = random_policy(Drawn(action_space=Box(-1.0, 1.0, (1,))), algorithm, **settings)
    with pytest.raises(ShoalError, match=what):
        shoal.export(policy, tmp_path / "policy.onnx", sample=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_of_a_run_that_was_killed_the_best_so_far_is_written_and_its_checkpoint_named(tmp_path, capsys):
    child, run = Path(__file__).parents[1] / "durability" / "child.py", tmp_path / "run"
    sizes = ["--num-envs", "4", "--num-steps", "8", "--num-minibatches", "1", "--num-evals", "1000"]
    command = [sys.executable, child, "train", "CartPole-v1", "--run-dir", run, "--seeds", "2", *sizes]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not Checkpoints(run).steps():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    steps = Checkpoints(run).newest_sound()
    assert main(["export", str(run), str(tmp_path / "policy.onnx"), "--check", "50"]) == 0
    told = capsys.readouterr()
    assert f"its best policies so far are those of its checkpoint at {steps:,} environment steps" in told.err
    assert "the same policy" in told.out
    description = json.loads((tmp_path / "policy.json").read_text())
    assert (description["policy"], description["steps"]) == (f"best (checkpoint {steps:,})", steps)
    last = shoal.export(run, tmp_path / "last.jaxexport", which="last").description
    assert description["score"] is not None
    assert last["score"] is None  # the checkpoint has that of the best one alone


def test_no_file_is_left_where_one_cannot_be_written(run, tmp_path, monkeypatch):
    write = api.write_whole_file

    def full_disk(path, **settings):
        if path.suffix == ".md":
            raise ShoalError("the disk is full")
        return write(path, **settings)

    monkeypatch.setattr(api, "write_whole_file", full_disk)
    with pytest.raises(ShoalError, match="the disk is full"):
        shoal.export(run, tmp_path / "policy.jaxexport")
    assert list(tmp_path.iterdir()) == []


def test_force_replaces_the_files(files):
    before = files.path.read_bytes()
    again = shoal.export(random_policy(Drawn()), files.path, force=True)
    assert again.path.read_bytes() != before


def test_importing_shoal_imports_no_converter_and_both_names_are_callable():
    program = """
        import sys, shoal
        import shoal.export
        assert callable(shoal.export)
        import shoal.export.api
        assert callable(shoal.export) and not {"jax2onnx", "onnxruntime", "onnx"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=120)


def test_constant_and_repeated_outputs_keep_their_names():
    policy = random_policy("CartPole-v1")
    program = make_program(policy)
    jaxpr = program.closed.jaxpr
    actions, obs = jaxpr.outvars[0], jaxpr.invars[0]
    outputs = {
        name: jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype)
        for name, x in {"actions": actions, "again": actions, "same": obs}.items()
    }
    twice = program._replace(
        closed=program.closed.replace(jaxpr=jaxpr.replace(outvars=[actions, actions, obs])),
        outputs=outputs,
    )
    run = onnxruntime.InferenceSession(to_model(twice, {}).SerializeToString())
    given = jnp.ones((1, 4), jnp.float32)
    first, again, same = run.run(["actions", "again", "same"], {"obs": np.asarray(given)})
    assert first == again
    np.testing.assert_array_equal(same, given)
