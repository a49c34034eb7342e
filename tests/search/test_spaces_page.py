"""The file and the flags of the page on search spaces are spaces."""

import re
import tomllib
from pathlib import Path

from shoal.search.distributions import NAMES
from shoal.search.space import from_tables, from_words

PAGE = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text()


def block(language):
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.S)[1]


def test_the_file_is_a_space():
    space = from_tables(tomllib.loads(block("toml")))
    assert len(space.points(3)) == 12
    assert all(("kl_coef" in point) == (point["surrogate"] == "penalty") for point in space.points(3))


def test_the_flags_are_a_space():
    words = block("sh").split()
    given = {
        flag: [words[k + 1] for k, word in enumerate(words) if word == flag]
        for flag in ("--grid", "--random")
    }
    space = from_words(given["--grid"], given["--random"])
    assert space.names == ("ent_coef", "hidden_sizes", "learning_rate", "env.gravity")


def test_every_distribution_is_listed():
    assert set(re.findall(r"^\| `([a-z-]+):", PAGE, re.M)) == set(NAMES)
