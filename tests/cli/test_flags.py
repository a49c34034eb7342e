import dataclasses
import math
import re
from typing import Literal

import pytest

from shoal.base.errors import ShoalError
from shoal.cli import flags


@dataclasses.dataclass(frozen=True)
class Inner:
    """Of the inside."""

    learning_rate: float = 1e-3
    """How fast."""
    norm_obs: bool = False
    """Whether."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """How wide."""
    schedule: Literal["constant", "linear"] = "constant"
    """How it changes."""


@dataclasses.dataclass(frozen=True)
class Outer:
    """Of the whole."""

    total_steps: int = 1000
    """How many."""
    inner: Inner = Inner()


def parse(*words, default=Outer()):
    return flags.parse("shoal try ENV", "Tries.", default, words)


def test_fields_of_fields_are_flat_flags():
    settings, words = parse("Env", "a=1", "--norm-obs", "--learning-rate", "1", "--hidden-sizes", "8", "16")
    assert settings == Outer(inner=Inner(learning_rate=1.0, norm_obs=True, hidden_sizes=(8, 16)))
    assert words == ["Env", "a=1"]


def test_what_is_not_given_is_the_default():
    default = Outer(7, Inner(norm_obs=True, learning_rate=1))
    assert parse(default=default)[0] == default
    assert parse("--no-norm-obs", default=default)[0].inner.norm_obs is False


@pytest.mark.parametrize(
    ("text", "number"), [("1e6", 1_000_000), ("500_000", 500_000), ("-1", -1), ("2.0", 2), ("-1e2", -100)]
)
def test_whole_numbers_as_people_write_them(text, number):
    assert parse("--total-steps", text)[0].total_steps == number
    assert parse("--hidden-sizes", "8", text)[0].inner.hidden_sizes == (8, number)
    assert parse("--hidden-sizes", text, "8")[0].inner.hidden_sizes == (number, 8)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--total-steps", "abc"], r"--total-steps: 'abc' is not a whole number"),
        (["--total-steps", "1.5"], r"--total-steps: '1.5' is not a whole number"),
        (["--learning-rate", "fast"], r"--learning-rate: 'fast' is not a number"),
        (
            ["--schedule", "liner"],
            r"--schedule: 'liner' is none of constant, linear; did you mean 'linear'\?",
        ),
        (["--total-steps"], r"--total-steps has no value; give it one"),
        (
            ["--learing-rate", "1"],
            r"shoal try has no flag '--learing-rate'; did you mean '--learning-rate'\?",
        ),
        (["--no-norm-ob"], r"no flag '--no-norm-ob'; did you mean '--no-norm-obs'\?"),
        (
            ["--wandb-project=x"],
            r"no flag '--wandb-project'; the numbers of a run are sent elsewhere by --logger",
        ),
        (["--lr=1"], r"no flag '--lr'; did you mean '--learning-rate'\?"),
        (
            ["--gpu"],
            r"no flag '--gpu'; JAX takes a GPU by itself where its CUDA .*JAX_PLATFORMS=cpu keeps",
        ),
        (
            ["--env", "CartPole-v1"],
            r"no flag '--env'; the environment comes first, as in `shoal train CartPole-v1`",
        ),
        (["--qqqqqqqq=3"], r"no flag '--qqqqqqqq'; `shoal try --help` lists them"),
    ],
)
def test_a_mistake_is_one_sentence(words, sentence, capsys):
    with pytest.raises(ShoalError, match=sentence) as error:
        parse(*words)
    assert "\n" not in str(error.value)
    assert capsys.readouterr() == ("", "")


def test_help_shows_docstrings_and_defaults(capsys):
    with pytest.raises(SystemExit) as end:
        parse("--help", default=Outer(inner=Inner(learning_rate=0.0125)))
    page = capsys.readouterr().out
    assert not end.value.code
    assert "How fast. (default: 0.0125)" in page
    assert "--norm-obs, --no-norm-obs" in page


def test_names_are_the_flags_that_there_are(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    page = capsys.readouterr().out
    assert set(re.findall(r"--[a-z-]+(?=[ ,\n])", page)) == set(flags.flag_names(Outer()))


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--config", "x"], "x"),
        (["--config=x=y"], "x=y"),
        (["ENV", "--seeds", "3"], ""),
        (["--config"], ""),
        (["--config", "a", "--config", "b"], "b"),
        (["--configs", "a"], ""),
    ],
)
def test_value_of_a_flag(words, value):
    assert flags.value_of("--config", words) == value


def test_an_environment_is_a_name_and_its_parameters():
    words = [
        "CartPole-v1",
        "gravity=9",
        "half-length=0.7",
        "max_episode_steps=none",
        "sparse=true",
        "goal=far",
    ]
    assert flags.parse_environment(words) == (
        "CartPole-v1",
        {"gravity": 9, "half_length": 0.7, "max_episode_steps": None, "sparse": True, "goal": "far"},
    )
    assert flags.parse_environment(["gravity=9"]) == ("", {"gravity": 9})
    for text, value in (
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("Infinity", math.inf),
        ("1e400", math.inf),
        ("[1, -inf]", [1, -math.inf]),
        ("(1,2.5)", (1, 2.5)),
        ("[far]", "[far]"),
        ("{[]}", "{[]}"),
        ("bench.npz:train", "bench.npz:train"),
        ("9" * 5000, "9" * 5000),
    ):
        assert flags.parse_environment([f"x={text}"]) == ("", {"x": value})
    assert all(math.isnan(flags.parse_environment([f"x={text}"])[1]["x"]) for text in ("nan", "NaN", "-nan"))
    with pytest.raises(ShoalError, match="'Pendulum-v1' is one word too many after 'CartPole-v1'"):
        flags.parse_environment(["CartPole-v1", "Pendulum-v1"])
    for word, part in (("=3", "name"), ("=", "name"), ("lr=", "value")):
        for parse_words in (flags.parse_environment, lambda words: flags.check_parameters(words, ["--lr"])):
            with pytest.raises(ShoalError, match=f"^'{word}' has no {part}; parameters are name=value"):
                parse_words(["CartPole-v1", word])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--total-steps", "2", "--total-steps", "3"],
            "the flag --total-steps is given twice; give it once.",
        ),
        (["--total-steps", "2", "--total_steps=2"], "the flag --total-steps is given twice; give it once."),
        (["--norm-obs", "--norm-obs"], "the flag --norm-obs is given twice; give it once."),
        (
            ["--norm-obs", "--no-norm-obs"],
            "--norm-obs and --no-norm-obs exclude each other; give one of them.",
        ),
        (
            ["--hidden-sizes", "8", "--hidden-sizes", "8"],
            "the flag --hidden-sizes is given twice; give it once.",
        ),
    ],
)
def test_a_flag_is_given_once(words, sentence):
    with pytest.raises(ShoalError) as error:
        parse(*words)
    assert str(error.value) == sentence


def test_what_is_given_is_known_though_it_is_the_default():
    words = ["Env", "--total_steps=1000", "--no-norm-obs", "--hidden-sizes", "64", "64"]
    values = {"total_steps": 1000, "norm_obs": False, "hidden_sizes": (64, 64)}
    assert flags.parse_values("shoal try ENV", "Tries.", Outer(), words) == (values, ["Env"])
    assert flags.parse_values("shoal try ENV", "Tries.", Outer(), ["Env", "a=1"]) == ({}, ["Env", "a=1"])


def test_a_parameter_is_given_once():
    with pytest.raises(
        ShoalError, match="parameter gravity is given twice, gravity=1 and gravity=2; give it once"
    ):
        flags.parse_environment(["CartPole-v1", "gravity=1", "gravity=2"])
    with pytest.raises(ShoalError, match="is given twice, cart-mass=1 and cart_mass=1"):
        flags.parse_environment(["CartPole-v1", "cart-mass=1", "cart_mass=1"])
