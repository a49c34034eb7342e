"""Policies that are evaluated in another environment than the one in which they are trained."""

import json

import numpy as np
import pytest

import shoal
from shoal import environment
from shoal.base.errors import ShoalError
from shoal.runs.plan.decide import decide

SMALL = {
    **{
        "seeds": 1,
        "num_envs": 2,
        "num_steps": 4,
        "total_steps": 16,
        "hidden_sizes": (4,),
        "num_minibatches": 2,
    },
    **{"eval_episodes": 2, "num_evals": 1, "absolute_episodes": 2, "progress": False},
}
WORLDS = """
import jax.numpy as jnp
from shoal import environment, restart, transition
from shoal.envs.base import Wrapper
from shoal.types.spaces import Box, Discrete


@environment
class Short:
    \"\"\"One step, which pays `pay`.\"\"\"

    pay: float = 1.0

    observation_space = Box(-jnp.inf, jnp.inf, (2,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), restart(jnp.zeros(2))

    def step(self, state, action, key):
        return (), transition(jnp.ones(2), self.pay, terminated=True)


@environment
class Long(Short):
    \"\"\"Three steps, of which it says how many were made.\"\"\"

    info_summaries = {"steps": "sum"}

    def reset(self, key):
        return jnp.zeros(()), restart(jnp.zeros(2), info={"steps": jnp.zeros(())})

    def step(self, state, action, key):
        info = {"steps": jnp.ones(())}
        return state + 1, transition(jnp.ones(2), self.pay, terminated=state >= 2, info=info)


@environment
class Doubled(Wrapper):
    \"\"\"Pays twice as much.\"\"\"

    def step(self, state, action, key):
        state, timestep = self.env.step(state, action, key)
        return state, timestep._replace(reward=2 * timestep.reward)


def doubled(pay: float = 1.0):
    \"\"\"The short world, whose pay counts twice.\"\"\"
    return Doubled(Short(pay=pay))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "worlds_of_two.py").write_text(WORLDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def returns(run):
    with open(run / "metrics.jsonl") as file:
        rows = [json.loads(line) for line in file]
    return [row["return_mean"] for row in rows if row["kind"] == "evaluation"]


def saved(run):
    return json.loads((run / "config.json").read_text())


@pytest.mark.quick("another one")
@pytest.mark.parametrize(
    "words, mean, entry",
    [
        ("pay=5", 5.0, {"pay": 5}),
        ("worlds_of_two:Long pay=5", 15.0, {"name": "worlds_of_two:Long", "pay": 5}),
        ("worlds_of_two:doubled pay=5", 10.0, {"name": "worlds_of_two:doubled", "pay": 5}),
        ("worlds_of_two:Short", 1.0, {"name": "worlds_of_two:Short", "pay": 1.0}),
    ],
    ids=["parameters", "another one", "a wrapper", "the same one"],
)
@pytest.mark.rare("parameters", "the same one")
def test_a_command_is_evaluated_elsewhere(words, mean, entry, folder, capsys):
    """Other parameters, another environment, a wrapper; and a resumed run, and its evaluation, are so too."""
    from shoal.cli import main

    flags = [
        f"--{k.replace('_', '-')} {' '.join(map(str, np.ravel(x)))}"
        for k, x in SMALL.items()
        if k != "progress"
    ]
    command = f"train worlds_of_two:Short pay=3 {' '.join(flags)} --run-dir run --eval-env {words}"
    assert main([*command.split(), "--quiet"]) == 0, capsys.readouterr().err
    assert f"eval_env={words.split()[0]}" in capsys.readouterr().out
    config = saved(folder / "run")
    kept = config["eval_env"].get("parameters", config["eval_env"])
    assert kept["pay"] == entry["pay"] and config["eval_env"].get("name") == entry.get("name")
    assert config["environment"]["parameters"]["pay"] == 3
    assert set(returns(folder / "run")) == {mean}
    assert main(["resume", "run", "--total-steps", "32", "--quiet"]) == 0, capsys.readouterr().err
    assert set(returns(folder / "run")) == {mean} and saved(folder / "run")["eval_env"] == config["eval_env"]
    assert main(["train", "--config", "run", "--run-dir", "again", "--quiet"]) == 0, capsys.readouterr().err
    assert saved(folder / "again")["eval_env"] == config["eval_env"]
    assert shoal.load("run").environment.pay == 3  # a policy is of the world that it was trained in
    capsys.readouterr()
    assert main(["eval", "run", "--json", "--episodes", "3"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {x["return_mean"] for x in said["metrics"].values()} == {mean}
    assert (
        said["environment"].lower() == entry.get("name", "worlds_of_two:Short").lower()
    )  # the class of a function


@pytest.mark.slow
def test_from_python_by_name_by_itself_and_by_both(folder):
    from worlds_of_two import Doubled, Long, Short

    for eval_env, mean in (
        ({"pay": 4}, 4.0),
        ("worlds_of_two:Long", 3.0),
        ({"name": "worlds_of_two:Long", "parameters": {"pay": 2.0}}, 6.0),
        (Long(pay=4.0), 12.0),
        (Doubled(Short(pay=4.0)), 8.0),
    ):
        run = shoal.train(Short(), eval_env=eval_env, **SMALL)
        assert set(returns(run.path)) == {mean}
    assert saved(run.path)["eval_env"]["name"] == "worlds_of_two:Doubled"
    gammas = {"gamma": [0.5, 0.9]}
    swept = shoal.sweep(Short(), grid=gammas, eval_env=Long(pay=4.0), run_dir="swept", **SMALL)
    winner = json.loads((swept.path / "winner.json").read_text())
    assert winner["eval_env"]["name"] == "worlds_of_two:Long"
    assert {x for x in swept.summary["members"][0]["absolute"]["returns"]} == {12.0}


@pytest.mark.full
def test_one_that_has_no_name_is_given_again(folder):
    from worlds_of_two import Long

    class Hidden(Long):
        """It cannot be imported."""

    run = shoal.train("worlds_of_two:Short", eval_env=environment(Hidden)(pay=4.0), run_dir="run", **SMALL)
    assert "gaps" in saved(run.path)["eval_env"] and set(returns(run.path)) == {12.0}
    with pytest.raises(ShoalError, match=r"cannot be made again, since .*give the environment itself"):
        shoal.resume("run", total_steps=32, progress=False)
    shoal.load("run")  # which needs no world of evaluations
    shoal.resume("run", eval_env=environment(Hidden)(pay=4.0), total_steps=32, progress=False)
    assert set(returns(run.path)) == {12.0}
    with pytest.raises(ShoalError, match=r"does not fit, since name is .*Hidden', and 'worlds_of_two:Long'"):
        shoal.resume("run", eval_env=Long(pay=5.0), total_steps=48, progress=False)


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("MountainCar-v0", "eval_env=MountainCar-v0 makes an environment with observation_space=Box("),
        ("CartPole-v1 cart_mass=-1", "CartPole-v1: cart_mass=-1 is "),
        ("CartPol-v1", "there is no environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("gravitty=3", "CartPole-v1 has no parameter 'gravitty'"),
        ("CartPole-v1 Acrobot-v1", "'Acrobot-v1' is one word too many after 'CartPole-v1'"),
        ("angle_limit=0.3", "eval_env=angle_limit=0.3 makes an environment with observation_space="),
    ],
)
def test_one_that_cannot_be_is_refused_before_anything_compiles(words, sentence, folder, capsys, monkeypatch):
    from shoal.cli import main

    def compiled(*_, **__):
        raise AssertionError("it was compiled")

    monkeypatch.setattr("shoal.runs.train.drive.compile_run", compiled)
    assert main(["train", "CartPole-v1", "--quiet", "--eval-env", *words.split()]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1 and not (folder / "runs").exists()


def test_what_is_not_an_environment_is_refused():
    with pytest.raises(ShoalError, match="is of type int"):
        shoal.train("CartPole-v1", eval_env=3)


def test_a_run_in_its_own_environment_has_no_other():
    decided = decide("CartPole-v1", overrides={})
    assert decided.evaluation_environment is None and "eval_env" not in decided.as_json()
    assert "eval_env" not in decided.differences
