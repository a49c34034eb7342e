"""Several agents from the command line and from Python, as the page about them shows it."""

import json

import numpy as np
import pytest

import shoal
from shoal import cli
from shoal.envs.team_probe import TeamProbe

pytestmark = pytest.mark.usefixtures("undrawn")

SIZES = "--num-envs 6 --num-steps 8 --total-steps 480 --seeds 2 --devices 1 --num-evals 2 --eval-episodes 6 --quiet"
SMALL = "--hidden-sizes 8 --num-minibatches 2 --update-epochs 1"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of the probe, in which one agent ends early and one comes back."""
    path = tmp_path_factory.mktemp("agents") / "run"
    words = (
        f"train probe/team {SIZES} {SMALL} --critic-input state_and_own --norm-value running --run-dir {path}"
    )
    assert cli.main(words.split()) == 0
    return path


@pytest.mark.full
def test_the_result_says_what_a_return_is_and_rows_have_each_agent(run_dir, capsys):
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["agents"] == {"count": 3, "team_return": "sum", "agent_steps_per_seed": 1440}
    of_agents = [np.asarray(summary["evaluation"][f"return_agent_{i}_mean"]) for i in range(3)]
    np.testing.assert_allclose(sum(of_agents), summary["evaluation"]["return_mean"], atol=1e-4)
    assert {"last_reward", "return_agent_2_std", "return_agent_0_median"} <= set(summary["evaluation"])
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(f"episode_return_agent_{i}" in rows[-2] or rows[-2]["kind"] == "evaluation" for i in range(3))
    assert cli.main(["train", "probe/team", *f"{SIZES} {SMALL} --run-dir {run_dir}".split()]) == 2
    assert "critic_input='state_and_own' there, and 'own' was asked for" in capsys.readouterr().err


@pytest.mark.full
def test_eval_and_rollout_work_with_agents(run_dir, capsys, tmp_path):
    assert cli.main(["eval", str(run_dir), "--episodes", "20"]) == 0
    told = capsys.readouterr().out
    assert "a return is the sum over 3 agents, of which each has" in told
    assert cli.main(["rollout", "probe/team", "--envs", "6", "--steps", "20", "--devices", "1"]) == 0
    assert "mean return of each of 3 agents" in capsys.readouterr().out
    file = tmp_path / "data.npz"
    words = f"rollout --policy {run_dir} --envs 6 --steps 20 --devices 1 --save {file}"
    assert cli.main(words.split()) == 0
    data = np.load(file)
    assert data["rewards"].shape == (21, 6, 3)
    assert data["alive"].shape == (21, 6, 3)
    assert data["actions"].shape == (20, 6, 3)


@pytest.mark.full
def test_a_loaded_policy_acts_for_all_agents_of_one_world_or_of_several(run_dir):
    policy = shoal.load(run_dir)
    own = np.zeros((3, 2), np.float32)
    everything = np.ones((3, 3), bool)
    alive = [True, False, True]
    _, actions = policy(policy.initial_memory(), {"observation": own}, action_mask=everything, alive=alive)
    assert actions.shape == (3,)
    four, masks = {"observation": np.stack([own] * 4)}, np.stack([everything] * 4)
    _, batch = policy(policy.initial_memory((4,)), four, reward=[0.0, 1.0, 2.0], action_mask=masks)
    assert batch.shape == (4, 3)
    np.testing.assert_array_equal(batch[0], actions)
    mask = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], bool)
    _, masked = policy(policy.initial_memory(), {"observation": own}, action_mask=mask)
    np.testing.assert_array_equal(masked, [0, 1, 2])
    with pytest.raises(shoal.ShoalError, match=r"observation has shape \(2,\)"):
        policy(policy.initial_memory(), {"observation": np.zeros(2)})


@pytest.mark.slow
def test_fine_tuning_takes_over_shared_parameters_and_goes_on(run_dir, tmp_path, capsys):
    words = (
        f"train probe/team {SIZES} {SMALL} --critic-input state_and_own --norm-value running --from {run_dir}"
    )
    assert cli.main([*words.split(), "--run-dir", str(tmp_path / "next")]) == 0
    separate = [*words.split(), "--parameters", "agent", "--run-dir", str(tmp_path / "separate")]
    assert cli.main(separate) == 2
    assert "parameters of 3 sets of agents cannot be taken over" in capsys.readouterr().err
    assert not (tmp_path / "separate").exists()
    assert cli.main(["resume", str(tmp_path / "next"), "--total-steps", "576", "--quiet"]) == 0
    assert "576 steps each" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("CartPole-v1 --agent-id", "agent_id=True has no effect with num_agents=1"),
        ("CartPole-v1 --agent-input everybody", "agent_input='everybody' has no effect with num_agents=1"),
        ("CartPole-v1 --critic-input state", "critic_input='state' has no effect with num_agents=1"),
        ("CartPole-v1 --parameters role", "parameters='role' has no effect with num_agents=1"),
        (
            "probe/team --network shoal.nets.joint:JointActorCritic --parameters agent",
            "must be 'shared' and 'own'",
        ),
        (
            "probe/team --network shoal.nets.joint:JointActorCritic --agent-input everybody",
            "agent_input='everybody' must be 'shared' and 'own'",
        ),
        (
            "probe/team --network shoal.nets.joint:JointActorCritic --agents-as flat --attention-heads 2",
            "attention_heads=2 has no effect with agents_as='flat'",
        ),
        (
            "probe/team --network shoal.nets.joint:JointActorCritic --attention-heads 5",
            "do not divide the width",
        ),
        ("probe/team --shared-torso --critic-input everybody", "critic_only"),
    ],
)
def test_what_cannot_work_is_one_sentence(words, sentence, tmp_path, capsys):
    path = tmp_path / "run"
    assert cli.main(["train", *words.split(), "--quiet", "--run-dir", str(path)]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not path.exists()


@shoal.environment
class Odd(shoal.envs.Wrapper):
    """The probe with a declaration or a flag that is wrong."""

    env: shoal.Environment = TeamProbe()
    kind: str = ""

    @property
    def team_return(self):
        return "median" if self.kind == "team" else "sum"

    @property
    def roles(self):
        return (0, 1) if self.kind == "roles" else self.env.roles

    def step(self, state, action, key):
        state, timestep = self.env.step(state, action, key)
        if self.kind == "truncated agent":
            timestep = timestep._replace(discount=timestep.discount * 0 + 1)
        return state, timestep


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("team", "team_return is 'median'; 'sum' or 'mean' over agents would be right"),
        ("roles", "a tuple of 3 numbers, one for each agent"),
        ("truncated agent", "a single agent ends for good, and only the world as a whole is cut"),
    ],
    ids=["team", "roles", "truncated agent"],
)
@pytest.mark.quick("team", "roles")
@pytest.mark.rare("truncated agent")
def test_the_checker_says_what_is_wrong_with_a_team(kind, sentence):
    findings = shoal.check(Odd(kind=kind), keys=4, steps=16)
    assert any(sentence in finding.message for finding in findings)


@pytest.mark.slow
def test_the_checker_finds_nothing_in_the_probe():
    assert shoal.check("probe/team", keys=4, steps=32) == []


def test_an_unknown_convention_is_refused_before_anything_compiles(tmp_path):
    with pytest.raises(
        shoal.ShoalError, match="team_return is 'median'; 'sum' or 'mean' over agents would be right"
    ):
        shoal.train(Odd(kind="team"), total_steps=64, num_envs=2, num_steps=8, run_dir=tmp_path / "run")
