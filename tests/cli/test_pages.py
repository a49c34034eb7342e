"""The pages name what there is: every command, and no other flag."""

import re
from pathlib import Path

import pytest

from shoal import cli
from shoal.cli import grid

DOCS = Path(__file__).parents[2] / "docs"


def test_the_help_on_the_page_is_the_help(command, capsys):
    command("--help")
    help_ = capsys.readouterr().out.split("\n\n`shoal COMMAND")[0]
    assert help_ in (DOCS / "command-line.md").read_text()


def test_flags_on_the_pages_exist(command, capsys):
    known = {"--help", "--version"}
    words = {name: [name] for name in cli.COMMANDS} | {"train": ["train", "CartPole-v1"]}
    grid_words = (["grid", name] for name in grid.COMMANDS)
    for asked in (
        *([*asked, "--help"] for asked in (*words.values(), *grid_words)),
        [*words["train"], "--help-all"],
        [*words["train"], "--algorithm", "dqn", "--help-all"],
    ):
        with pytest.raises(SystemExit):
            command(*asked)
        known |= set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    for page in ("command-line", "durability", "python", "spaces", "sweeps", "tuning"):
        text = (DOCS / f"{page}.md").read_text()
        text = re.sub(r"^#SBATCH .*|XLA_FLAGS=.*?(?=`)", "", text, flags=re.MULTILINE)
        shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
        assert shown - known == {"--learing-rate"} & shown, page
