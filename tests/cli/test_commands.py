"""eval, rollout, check and envs, on the run that `train` left."""

import importlib.util
import json
import math
import sys

import numpy as np
import pytest
from PIL import Image

import shoal
from shoal.base.installation import install_command
from shoal.cli.eval import info_lines, trial_lines, unfinished_lines
from shoal.envs.suites.families import FAMILIES
from shoal.records.summary import statistics_by_episode

BROKEN = """
import jax.numpy as jnp
from shoal import environment, restart, transition
from shoal.types.spaces import Box, Discrete


@environment
class Outside:
    \"\"\"Its observation leaves its space.\"\"\"

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), restart(jnp.zeros(1))

    def step(self, state, action, key):
        return (), transition(jnp.full(1, 7.0), action, terminated=True)
"""


@pytest.mark.full
def test_eval_prints_a_line_for_each_seed(trained, command, capsys):
    _, path = trained
    assert command("eval", path, "--episodes", "16") == 0
    title, header, *seeds, iqm = capsys.readouterr().out.splitlines()
    assert title == "CartPole-v1, best policies, greedy, 16 episodes each"
    assert header.split() == ["seed", "return", "std", "min", "max", "length", "terminated", "truncated"]
    assert [line.split()[0] for line in seeds] == ["0", "1"]
    assert iqm.split()[0] == "IQM"


def test_eval_prints_what_info_says_of_an_episode():
    metrics = {"0": {"return_mean": 3.0, "info_success": 0.5}, "1": {"return_mean": 2.0, "info_success": 1.0}}
    assert info_lines({"metrics": metrics}) == ["  success 0.750   [0.500, 1.000] over the seeds"]
    assert info_lines({"metrics": {"0": metrics["0"]}}) == ["  success 0.5000"]
    assert info_lines({"metrics": {"0": {"return_mean": 3.0}}}) == []


def test_eval_says_which_share_of_the_episodes_was_cut():
    (line,) = unfinished_lines(0.25, 10_000)
    assert line == "  25% of the episodes were cut at 10,000 steps, and count by their return until then"
    assert unfinished_lines(0.0, 10_000) == []


@pytest.mark.full
def test_eval_as_json_agrees_with_python(trained, command, capsys):
    _, path = trained
    assert (
        command("eval", path, "--seed", "1", "--which", "last", "--sampled", "--episodes", "16", "--json")
        == 0
    )
    told = json.loads(capsys.readouterr().out)
    policy = shoal.load(path, "last", seed=1)
    expected = shoal.evaluate(policy, episodes=16, greedy=False)
    assert told["metrics"] == {"1": pytest.approx(expected)}
    assert told["returns"] == [pytest.approx(expected["return_mean"])]
    assert (told["mode"], told["which"], told["episodes"]) == ("sampled", "last", 16)


@pytest.mark.full
def test_eval_goes_to_another_world(trained, command, capsys):
    _, path = trained

    def told(*words):
        assert command("eval", path, "--json", "--episodes", "16", "--seed", "0", *words) == 0
        return json.loads(capsys.readouterr().out)["metrics"]["0"]

    policy = shoal.load(path, seed=0)
    same = shoal.evaluate(policy, "CartPole-v1", episodes=16, gravity=9.9)
    assert told("--env", "CartPole-v1", "gravity=9.9") == pytest.approx(same)
    assert told() == pytest.approx(same)  # the run's own parameters
    assert told("--env", "max_episode_steps=5")["length_max"] == 5
    assert told("--env", "CartPole-v1", "max_episode_steps=3")["truncated"] == 1


def test_eval_shows_trials_by_the_index_of_their_episodes():
    """The seeds' mean of each; an environment that knows no success has no column for it."""
    hows = {"mean": 1.0, "median": 2.0, "p20": 0.5}

    def of(name, index, add):
        return {f"info_{name}_of_episode_{index}_{how}": x + index + add for how, x in hows.items()}

    def shown(*names, adds=(0.0, 2.5, 5.0, 7.5, 10.0)):
        metrics = [
            {key: x for index in range(2) for name in names for key, x in of(name, index, add).items()}
            for add in adds
        ]
        return [line.split() for line in trial_lines(statistics_by_episode(metrics))[1:]]

    returns = ["return", "mean", "return", "median", "return", "p20"]
    interval = ["95%", "of", "return"]
    assert shown("return") == [
        ["episode", *returns, *interval],
        ["0", "6.000", "7.000", "5.500", "[1.8,", "10.2]"],
        ["1", "7.000", "8.000", "6.500", "[2.8,", "11.2]"],
    ]
    assert shown("return", adds=(0.0, 10.0)) == [
        ["episode", *returns],
        ["0", "6.000", "7.000", "5.500"],
        ["1", "7.000", "8.000", "6.500"],
    ]
    header, first, _ = shown("return", "success")
    assert header == [
        "episode",
        *returns,
        *(word.replace("return", "success") for word in returns),
        *interval,
    ]
    assert first[:7] == ["0", "6.000", "7.000", "5.500", "6.000", "7.000", "5.500"]
    assert trial_lines(statistics_by_episode([{"return_mean": 1.0}])) == []


@pytest.fixture(scope="module")
def remembering(tmp_path_factory):
    """A run of policies with memory, in trials of two episodes."""
    run = tmp_path_factory.mktemp("remembering") / "run"
    shoal.train(
        shoal.make("CartPole-v1", trial_episodes=2, max_episode_steps=20),
        seeds=2,
        num_envs=4,
        num_steps=16,
        total_steps=64,
        num_evals=1,
        eval_episodes=4,
        core="gru",
        core_size=4,
        num_minibatches=1,
        preset=False,
        progress=False,
        run_dir=run,
    )
    return run


@pytest.mark.slow
def test_eval_tells_what_the_memory_of_a_trial_is_worth(trained, remembering, command, capsys, tmp_path):
    """The episodes by their index, with the memory of the trial and without; nothing of what has no trials."""
    run, picture = remembering, tmp_path / "trials.png"
    told = {}
    for lasts in ("run", "trial", "episode"):
        assert command("eval", run, "--memory", lasts, "--episodes", "8", "--json") == 0
        told[lasts] = json.loads(capsys.readouterr().out)
    assert [x["memory"] for x in told.values()] == ["trial", "trial", "episode"]
    assert told["run"]["metrics"] == told["trial"]["metrics"]
    whole, cleared = told["trial"]["by_episode"]["return"], told["episode"]["by_episode"]["return"]
    assert np.shape(whole["seeds"]) == (2, 2)
    assert whole["mean"] == pytest.approx(np.mean(whole["seeds"], axis=1))
    assert whole["seeds"][0] == cleared["seeds"][0]  # the first episode knows of none before it

    assert command("eval", run, "--episodes", "8", "--plot", picture) == 0
    with Image.open(picture) as image:
        assert image.size == (1050, 630)
    assert command("eval", trained[1], "--episodes", "8", "--plot", picture) != 0
    assert "these are none; trial_episodes=5 makes some" in capsys.readouterr().err
    assert command("eval", trained[1], "--memory", "trial") != 0
    assert "is for policies with memory, and this one has none" in capsys.readouterr().err
    assert command("eval", run, "--plot", tmp_path / "nowhere" / "x.png") != 0
    assert "there is no directory" in capsys.readouterr().err


@pytest.mark.full
def test_eval_draws_episodes_of_the_best_seed(trained, command, capsys, tmp_path):
    _, path = trained
    few = ["--episodes", "8", "--env", "max_episode_steps=10", "--render-episodes", "2", "--render"]
    assert command("eval", path, *few, "out.gif") == 0
    *_, iqm, drawn = capsys.readouterr().out.splitlines()
    assert iqm.split()[0] == "IQM"
    assert command("eval", path, *few, "out.png", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    returns = {seed: x["return_mean"] for seed, x in told["metrics"].items()}
    rendered = told["rendered"]
    assert returns[str(rendered["seed"])] == max(returns.values())
    assert rendered["returns"] == rendered["lengths"]  # CartPole pays 1 a step
    assert rendered["path"] == "out.png" and rendered["frames"] == 1
    shown = ", ".join(f"{x:.2f}" for x in rendered["returns"])
    count = int(sum(rendered["lengths"])) + 2
    assert drawn == f"  out.gif: 2 episodes of seed {rendered['seed']}, return {shown}, {count} pictures"
    with Image.open(tmp_path / "out.gif") as film:
        assert film.n_frames == count and film.size == (480, 264)
    policy = shoal.load(path, seed=rendered["seed"])
    short = {"gravity": 9.9, "max_episode_steps": 10}
    same = shoal.render(policy, tmp_path / "again.gif", "CartPole-v1", episodes=2, **short)
    assert same.lengths == rendered["lengths"]
    assert (tmp_path / "again.gif").read_bytes() == (tmp_path / "out.gif").read_bytes()


@pytest.mark.slow
def test_a_policy_with_memory_is_drawn(remembering, command, capsys, tmp_path):
    assert command("eval", remembering, "--render", "out.gif", "--sampled", "--episodes", "4") == 0
    assert "3 episodes of seed " in capsys.readouterr().out
    with Image.open(tmp_path / "out.gif") as film:
        assert film.size == (480, 264) and 6 <= film.n_frames <= 126  # 3 trials of 2 episodes of 20 steps


def test_eval_names_the_nearest_run(trained, command, capsys):
    _, path = trained
    assert command("eval", path.with_name("ran")) == 2
    assert f"did you mean {str(path)!r}?" in capsys.readouterr().err
    assert command("eval") == 2
    assert "no run was named" in capsys.readouterr().err


def test_rollout_prints_statistics(command, capsys):
    assert command("rollout", "MountainCar-v0", "gravity=0.002", "--envs", "6", "--steps", "450") == 0
    first, speed, episodes = capsys.readouterr().out.splitlines()
    assert first == "MountainCar-v0, random actions: 6 environments, 450 steps each, 2 devices"
    assert "steps/s" in speed
    assert "(2,700 in " in speed
    assert episodes.strip() == "12 episodes ended: mean return -200.0, mean length 200.0, 0% terminated"


def test_rollout_saves_and_prints_json(command, capsys, tmp_path):
    words = ["CartPole-v1", "--envs", "4", "--steps", "5", "--save", "data.npz", "--json"]
    assert command("rollout", *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_envs"] == 4
    assert told["return_mean"] is None  # no episode ends so soon
    with np.load(tmp_path / "data.npz") as data:
        assert data["observations"].shape == (6, 4, 4)


def test_rollout_by_a_policy(trained, command, capsys):
    _, path = trained
    words = ["--policy", path, "--envs", "8", "--steps", "100", "--greedy", "--json"]
    assert command("rollout", *words) == 0
    told = json.loads(capsys.readouterr().out)
    expected = shoal.rollout(None, path, num_envs=8, num_steps=100, greedy=True)
    assert told["episodes"] == expected.episodes
    assert told["return_mean"] == pytest.approx(expected.return_mean) or math.isnan(expected.return_mean)


@pytest.mark.full
def test_check_passes_a_good_environment(command, capsys):
    assert command("check", "probe/action", "--keys", "4", "--steps", "16", "--ignore", "key-ignored") == 0
    assert "nothing found" in capsys.readouterr().out


def test_check_fails_a_bad_one_from_the_current_directory(command, capsys, tmp_path):
    (tmp_path / "my_broken_module.py").write_text(BROKEN)
    assert command("check", "my_broken_module:Outside", "--keys", "4", "--steps", "16") == 1
    assert "observation" in capsys.readouterr().out


def test_envs_lists_all(command, capsys):
    assert command("envs") == 0
    lines = capsys.readouterr().out.splitlines()
    own = shoal.environments()
    of_packages = [family.prefix + name for family in FAMILIES.values() for name in family.names]
    assert [line.split()[0] for line in lines] == own + of_packages
    assert all(len(line.split()) > 3 for line in lines[: len(own)])  # each says what it is


def test_the_list_says_how_packages_are_installed_and_imports_none(command, capsys, monkeypatch):
    before = set(sys.modules)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jumanji" or None)
    assert command("envs") == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["jumanji/Snake-v1"] == "Jumanji"
    assert (
        lines["playground/PointMass"] == f"MuJoCo Playground, not installed: {install_command('playground')}"
    )
    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not imported & {family.package for family in FAMILIES.values()}


def test_each_environment_is_described_as_what_it_is(command, capsys):
    """Wrappers and sizes that share a class are told apart, so that no two lines say the same."""
    assert command("envs") == 0
    listed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    lines = {name: listed[name] for name in shoal.environments()}
    assert len(set(lines.values())) == len(lines) > 50
    assert "velocities are hidden" in lines["CartPole-NoVelocity-v1"]
    assert "velocity is hidden" in lines["Pendulum-NoVelocity-v1"]
    assert lines["MiniGrid-EmptyRandom-6x6-RGB"].endswith("(height=6, width=6, observe_image=True)")
    for name, line in lines.items():
        assert command("envs", name) == 0
        described = capsys.readouterr().out
        assert described.startswith(f"{name}: {line.removeprefix('preset  ')}\n")
        assert ("presets      none" in described) != line.startswith("preset  ")


def test_an_environment_without_documentation_or_with_parameters_to_give_is_listed(
    monkeypatch, capsys, command
):
    monkeypatch.setattr("shoal.envs.registry._entries", {})
    shoal.register("Bare-v0", lambda size: None)
    assert command("envs") == 0
    assert capsys.readouterr().out.splitlines()[0] == "Bare-v0"


def test_envs_describes_one(command, capsys):
    assert command("envs", "CartPole-v1", "gravity=3.5") == 0
    page = capsys.readouterr().out
    assert "Discrete(n=2)" in page
    lines = [line.split() for line in page.splitlines()]
    assert ["gravity", "3.5", "finite"] in lines
    assert ["cart_mass", "1.0", "greater", "than", "0"] in lines
    assert ["max_episode_steps", "500", "at", "least", "1"] in lines
    for value in ("nan", "inf", "-inf", "1e400"):
        assert command("envs", "CartPole-v1", f"gravity={value}") == 2
        assert capsys.readouterr().err == (
            f"shoal: CartPole-v1: gravity={float(value):g} is out of bounds: it must be finite.\n"
        )
    assert command("envs", "CartPol") == 2


@pytest.mark.full
def test_the_names_that_python_offers():
    assert {"make", "register", "train", "evaluate", "load", "rollout", "check"} <= set(dir(shoal))
    assert all(getattr(shoal, name) is not None for name in shoal.__all__)
    assert len(shoal.__all__) <= 42  # five registers of parts beside that of environments
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = shoal.trian
