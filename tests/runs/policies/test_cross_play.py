"""Cross play: each seed against each other, the diagonal as evaluation finds it, and opponents that are no policies."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import cli
from shoal.envs.team_probe import ALIVE
from shoal.records.directory import RunDirectory
from shoal.runs.policies.cross_play import cross_play

pytestmark = pytest.mark.usefixtures("undrawn")

COUNTS = ALIVE[:-1].sum(axis=0)  # rewards of each agent of the probe
SIZES = {
    **{"num_envs": 4, "num_steps": 5, "total_steps": 40, "num_evals": 1, "eval_episodes": 4, "devices": 1},
    **{
        "hidden_sizes": (4,),
        "num_minibatches": 1,
        "update_epochs": 1,
        "learning_rate": 0.1,
        "progress": False,
    },
    "preset": False,
}
WORLD = "mpe/Tag-v0"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds with memory and parameters of each role, and three without that share theirs."""
    folder = tmp_path_factory.mktemp("runs")
    world = {"environment_parameters": {"max_episode_steps": 5}}
    for name, settings in {
        "memory": {"seeds": 2, "parameters": "role", "core": "gru", "core_size": 4, "eval_mode": "sampled"},
        "shared": {"seeds": 3, "agent_id": True},
    }.items():
        shoal.train(WORLD, run_dir=folder / name, **world, **settings, **SIZES)
    return folder


def returns_of(metrics):
    agents = [metrics[f"return_agent_{i}_mean"] for i in range(4)]
    return {0: np.mean(agents[:3]), 1: agents[3]}


@pytest.mark.parametrize("greedy", [None, True])
@pytest.mark.slow
def test_the_diagonal_is_the_evaluation_of_each_policy(runs, greedy):
    path = runs / "memory"
    result = cross_play(path, path, episodes=6, seed=3, greedy=greedy)
    assert result["mode"] == ("greedy" if greedy else "sampled")
    for k in range(2):
        policy = shoal.load(path, seed=k)
        metrics = shoal.evaluate(policy, episodes=6, seed=3, greedy=greedy is not None)
        for role, expected in returns_of(metrics).items():
            assert result["returns"][role]["matrix"][k][k] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_each_seed_plays_against_each_of_another_run(runs):
    result = cross_play(runs / "memory", runs / "shared", episodes=4)
    assert result["environment"] == "mpe/Tag-v0"
    assert result["first"] == {
        "name": str(runs / "memory"),
        "which": "best",
        "seeds": [0, 1],
        "failed": [],
        "roles": [0],
    }
    assert result["second"] == {
        "name": str(runs / "shared"),
        "which": "best",
        "seeds": [0, 1, 2],
        "failed": [],
        "roles": [1],
    }
    alone = [shoal.load(runs / "memory", seed=1)], [shoal.load(runs / "shared", seed=k) for k in (2, 0)]
    part = cross_play(*alone, episodes=4, greedy=False)
    for role in (0, 1):
        matrix = np.array(result["returns"][role]["matrix"])
        assert matrix.shape == (2, 3)
        np.testing.assert_allclose(part["returns"][role]["matrix"], matrix[1:, [2, 0]], atol=1e-4)
        assert result["returns"][role]["interval"] is None  # of two seeds against three
    other = cross_play(runs / "shared", runs / "memory", episodes=4, role=1, greedy=False)
    np.testing.assert_allclose(
        other["returns"][1]["matrix"], np.array(result["returns"][1]["matrix"]).T, atol=1e-4
    )


@pytest.mark.full
def test_random_players_reach_what_the_page_says():
    result = cross_play("random", "random", "mpe/Tag-v0", episodes=1024)
    (adversaries,), (prey,) = (result["returns"][role]["matrix"][0] for role in (0, 1))
    assert adversaries == pytest.approx(4.3, abs=1.4)  # four standard errors
    assert prey == pytest.approx(-16.3, abs=2.6)


def best(observation, key):
    """The best actions of the agents of the probe."""
    assert set(observation) == {"observation"}  # the global state is for critics
    return jnp.array([1, 1, 2])


def wrong(observation, key):
    return jnp.zeros(3, jnp.int32)


def test_functions_act_for_their_roles():
    """The rewards of the probe are 1 for the best action, and a sign that all share."""
    name = f"{__name__}:wrong"
    for role, other in ((0, 1), (1, 0)):
        result = cross_play(best, name, "probe/team", role=role, episodes=8)
        assert result["second"] == {"name": name, "which": "", "seeds": [0], "failed": [], "roles": [other]}
        (mine,), (others,) = (result["returns"][k]["matrix"][0] for k in (role, other))
        counts = {0: COUNTS[:2].mean(), 1: COUNTS[2]}
        assert mine / counts[role] == pytest.approx(1 + others / counts[other], abs=1e-5)


@pytest.mark.parametrize(
    ("sides", "settings", "sentence"),
    [
        (("random", "random"), {}, "no environment was named; give one such as CartPole-v1, or a policy"),
        (("random", "random"), {"environment": "CartPole-v1"}, r"roles=\(\) of the world are not"),
        (
            ("random", "random"),
            {"environment": "probe/team", "role": 2},
            "role=2 is not one of the world's: 0, 1",
        ),
        (("random", 3), {"environment": "probe/team"}, "second=3 is of type int, not a path"),
        (("random", "missing"), {"environment": "probe/team"}, "missing"),
        (
            (lambda observation, key: jnp.zeros(2, jnp.int32), "random"),
            {"environment": "probe/team"},
            r"returns actions of shape \(2,\) for 3 agents with action_space=Discrete\(n=3\); it must return",
        ),
    ],
)
def test_what_cannot_be_played_is_one_sentence(sides, settings, sentence):
    with pytest.raises(shoal.ShoalError, match=sentence):
        cross_play(*sides, **settings)


@pytest.mark.full
def test_seeds_that_failed_do_not_play(runs, tmp_path, capsys):
    """A policy of before the fault is no result of the seed, as in every other score."""
    path = tmp_path / "failed"
    shutil.copytree(runs / "shared", path)
    directory = RunDirectory.open(path)
    leaves, metadata = directory.load_policy("best")
    directory.save_policy("best", leaves, metadata | {"failed": [False, True, False]})
    whole, part = (cross_play(x, "random", episodes=4) for x in (runs / "shared", path))
    assert part["first"]["seeds"] == [0, 2] and part["first"]["failed"] == [1]
    for role in (0, 1):
        rows = whole["returns"][role]["matrix"]
        assert part["returns"][role]["matrix"] == [rows[0], rows[2]]
    assert cli.main(["eval", str(path), "--episodes", "4", "--against", "random"]) == 0
    assert "as role 0, without seed 1, which was not trained to the end; columns" in capsys.readouterr().out
    directory.save_policy("best", leaves, metadata | {"failed": [True] * 3})
    with pytest.raises(shoal.ShoalError, match="each seed had a number that was not finite; none can play"):
        cross_play(path, "random", episodes=4)


@pytest.mark.full
def test_policies_of_other_spaces_or_networks_are_refused(runs):
    with pytest.raises(shoal.ShoalError, match="the policy was trained in"):
        cross_play(runs / "shared", "random", num_adversaries=2)
    mixed = [shoal.load(runs / name, seed=0) for name in ("memory", "shared")]
    with pytest.raises(shoal.ShoalError, match="must be of one algorithm and network"):
        cross_play(mixed, "random")


@pytest.mark.full
def test_the_command_prints_a_matrix_for_each_role(runs, capsys):
    words = ["eval", str(runs / "memory"), "--episodes", "4", "--against", str(runs / "shared")]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mpe/Tag-v0, sampled, 4 episodes of each pair"
    assert (
        lines[1] == f"rows: {runs / 'memory'} (best) as role 0; columns: {runs / 'shared'} (best) as role 1"
    )
    assert lines[2].startswith("return of role 0, its agents' mean: IQM ")
    assert [line.split()[0] for line in lines[3:6]] == ["seed", "0", "1"]
    assert cli.main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = cross_play(runs / "memory", runs / "shared", episodes=4)
    assert told["returns"]["1"]["matrix"] == expected["returns"][1]["matrix"]
    assert cli.main([*words[:2], "--against", "random", "--role", "1", "--episodes", "2"]) == 0
    assert "columns: random as role 0" in capsys.readouterr().out
    assert cli.main([*words, "--checkpoint", "last"]) == 0
    assert "(checkpoint 40) as role 0; columns" in capsys.readouterr().out
    assert cli.main([*words, "--which", "last"]) == 0
    assert "(last) as role 0; columns" in capsys.readouterr().out
    assert cli.main([*words, "--render", "out.gif"]) == 2
    assert "render='out.gif' has no effect with against=" in capsys.readouterr().err
    assert cli.main([*words[:2], "--role", "1"]) == 2
    assert "role=1 has no effect with against=''" in capsys.readouterr().err
