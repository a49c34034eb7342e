"""What is meant by a mistyped name, and sentences that end once."""

import ast
from pathlib import Path

import optax
import pytest

import shoal
from shoal.algos.catalogue import algorithms
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError, alternatives, nearest
from shoal.cli import flags
from shoal.config.settings import flat
from shoal.envs.grid.rulesets.generation import GOAL_NAMES
from shoal.nets.activations import ACTIVATIONS

ROOT = Path(shoal.__file__).parent


def suggested(name, options):
    hint = nearest(name, options)
    return hint.removeprefix("; did you mean '").removesuffix("'?")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("CartPole", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPoel-v1", "CartPole-v1"),
        ("Cart", "CartPole-v1"),
        ("Pendulum", "Pendulum-v1"),
        ("Acrobot-v2", "Acrobot-v1"),
        ("MiniGrid-DoorKey-5x5-v0", "MiniGrid-DoorKey-5x5"),
        ("DoorKey-6x6", "MiniGrid-DoorKey-6x6"),
        ("Breakout-v5", ""),
        ("LunarLander-v2", ""),
        ("x", ""),
    ],
)
def test_the_environment_that_was_meant(typed, meant):
    assert suggested(typed, shoal.environments()) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("pp0", "ppo"), ("PPO", "ppo"), ("poo", "ppo"), ("a2", "a2c"), ("reinforc", "reinforce")]
    + [(other, "") for other in ("sarsa", "dreamer", "muzero", "impala", "trpo-x", "")],
)
def test_another_algorithm_is_not_a_mistyped_one(typed, meant):
    assert suggested(typed, algorithms()) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("learning_rat", "learning_rate"),
        ("learing_rate", "learning_rate"),
        ("rate", "learning_rate"),
        ("ent-coef", "ent_coef"),
        ("entropy_coef", "ent_coef"),
        ("hiden_sizes", "hidden_sizes"),
        ("gama", "gamma"),
        ("epochs", "update_epochs"),
        ("batch_size", ""),
        ("tau", ""),
    ],
)
def test_the_setting_that_was_meant(typed, meant):
    assert suggested(typed, flat(PPOConfig())) == meant


def test_few_names_are_all_listed_and_of_many_the_nearest_three():
    assert alternatives("sarsa", algorithms()[:4], "x") == "there are a2c, c51, ddpg, dqn"
    assert alternatives("3", ["b", "a"], "x", "it has") == "it has a, b"
    many = [f"{letter}{number}" for letter in "abc" for number in range(10)]
    assert alternatives("a77", many, "shoal x") == "the nearest are a7, a0 and a1; `shoal x` lists all 30"


def test_names_of_other_lists():
    assert suggested("--ent_coef", flags.flag_names(PPOConfig())) == "--ent-coef"
    assert suggested("--norm-ob", flags.flag_names(PPOConfig())) == "--norm-obs"
    assert suggested("tahn", ACTIVATIONS) == "tanh"
    assert suggested("adamm", optax.__all__) == "adam"
    assert suggested("agent_hodl", GOAL_NAMES) == "agent_hold"
    assert suggested("train", ()) == ""
    assert suggested(".gfi", (".gif", ".mp4", ".png")) == ".gif"


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("seeds=0 is too few", "seeds=0 is too few."),
        ("seeds=0 is too few.", "seeds=0 is too few."),
        ("no 'x'; did you mean 'y'?", "no 'x'; did you mean 'y'?"),
        ("no 'x'; did you mean 'y'?.", "no 'x'; did you mean 'y'?"),
        ("my_module.py failed:\n  line 3", "my_module.py failed:\n  line 3"),
    ],
)
def test_a_sentence_ends_once(message, sentence):
    assert str(ShoalError(message)) == sentence


def holds_the_hint(node: ast.AST) -> bool:
    names = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
    return isinstance(node, ast.FormattedValue) and bool(names & {"nearest", "hint"})


def test_nothing_follows_the_question():
    """A question in the midst of a sentence is read as its end."""
    found = 0
    for path in [path for path in ROOT.rglob("*.py") if path.parent.name != "ops"]:
        for text in (x for x in ast.walk(ast.parse(path.read_text())) if isinstance(x, ast.JoinedStr)):
            for index, part in enumerate(text.values):
                if holds_the_hint(part):
                    found += 1
                    rest = "".join(
                        str(x.value) if isinstance(x, ast.Constant) else "{}"
                        for x in text.values[index + 1 :]
                    )
                    assert rest in ("", "."), f"{path}: {rest!r} follows {ast.unparse(part)}"
    assert found > 20
