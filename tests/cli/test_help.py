"""Help pages: what is most used first, each flag once, and a sentence for each."""

import dataclasses
import re
from typing import ClassVar

import pytest

from shoal import cli
from shoal.algos.catalogue import algorithms, config_class
from shoal.cli import (
    check,
    checkpoints,
    compare,
    envs,
    eval,
    export,
    grid,
    help,
    log,
    pbt,
    report,
    resume,
    rollout,
    runs,
    sweep,
    train,
    tune,
)
from shoal.config.settings import groups_of, settings_of
from shoal.envs.grid.rulesets.generation import GenerationConfig
from shoal.records.run_config import RunConfig

CONFIGS = [RunConfig, *map(config_class, algorithms())]
FLAGS = [
    *CONFIGS,
    *(
        train.TrainFlags,
        resume.ResumeFlags,
        sweep.SweepFlags,
        tune.TuneFlags,
        pbt.PbtFlags,
        checkpoints.CheckpointsFlags,
        envs.EnvsFlags,
        runs.RunsFlags,
        log.LogFlags,
        compare.CompareFlags,
        report.ReportFlags,
        eval.EvalFlags,
        export.ExportFlags,
        rollout.RolloutFlags,
        check.CheckFlags,
        grid.MakeSettings,
        GenerationConfig,
    ),
]
# A text says what happens: it begins with one of these.
VERBS = """
Acts Adds Applies Attends Changes Chooses Clears Clips Compares Compiles Computes Continues Correlates Counts
Cuts Discounts Divides Doubles Draws Embeds Encodes Ends Estimates Evaluates Gives Initialises Inlines Keeps
Learns Lets Makes Moves Multiplies Normalises Pads Passes Places Plays Plots Predicts Prints Propagates Puts
Reads Replaces Runs Samples Scales Sends Sets Shares Shows Skips Splits Stacks Starts Steps Stops Sums Takes
Trains Tunes Uses Weights Writes
""".split()  # noqa: SIM905


@dataclasses.dataclass(frozen=True)
class Part:
    """Settings in groups."""

    groups: ClassVar = {"most used": ("b",), "speed": ("c",)}

    a: int | None = None
    """Sets a."""
    b: tuple[int, ...] = (1, 2)
    """Sets b."""
    c: bool = False
    """Sets c."""


@dataclasses.dataclass(frozen=True)
class Whole:
    """A command's."""

    first: str = ""
    """Sets the first; left out, none."""
    part: Part = Part()


@pytest.fixture
def shown(command, capsys, monkeypatch):
    """The page that a command prints, 100 columns wide."""
    monkeypatch.setenv("COLUMNS", "100")

    def shown(*words):
        with pytest.raises(SystemExit) as end:
            command(*words)
        assert not end.value.code
        return capsys.readouterr().out

    return shown


def test_flags_are_grouped_and_the_most_used_come_first():
    found = {title: [flag.words for flag in flags] for title, flags in help.flag_groups(Whole()).items()}
    assert found == {
        "most used": ["--b [INT ...]"],
        "options": ["--first STR"],
        "part: speed": ["--c, --no-c"],
        "part": ["--a INT|None"],
    }
    assert next(iter(found)) == "most used"


def test_defaults_are_shown_unless_nothing_is_the_default():
    page = help.help_page("shoal try", "Tries.", Whole(), full=False)
    assert "Sets b. (default: 1 2)" in page and "Sets a. (default: None)" in page
    assert re.search(r"--first STR +Sets the first; left out, none\.$", page, re.M)


def test_the_help_of_train_is_a_page_and_names_every_flag_once(shown):
    page, full = shown("train", "CartPole-v1", "--help"), shown("train", "CartPole-v1", "--help-all")
    assert page.count("\n") <= 93  # each of some 180 flags is named once
    for text in (page, full):
        flags = re.findall(r"(?:^|\s)(--(?!no-)[a-z-]+)(?=[\s,]|$)", text.split("most used:")[1])
        configs = train.TrainFlags, RunConfig, config_class("ppo")
        names = [name for config in configs for name in settings_of(config())]
        wanted = ["--" + name.rstrip("_").replace("_", "-") for name in names]
        assert sorted(flags) == sorted(wanted)
    assert "has its own). Greater than 0. (default: 0.001)" in " ".join(page.split())
    assert "these widths. At least 1. (default: 64 64)" in " ".join(page.split())
    assert page.index("--learning-rate FLOAT") < page.index("--gamma")
    assert page.index("--learning-rate FLOAT") < page.index("further options")
    assert "`shoal train ENV --help-all`" in page
    assert "ppo: memory:" in full and full.count("(default: ") > 60
    assert max(map(len, (page + full).splitlines())) <= 100


def test_a_users_own_settings_are_in_the_help(shown, tmp_path):
    (tmp_path / "my_bold.py").write_text(
        "from shoal.algos.ppo_config import PPOConfig\nfrom shoal.config.struct import struct\n"
        "\n@struct\nclass Bolder(PPOConfig):\n"
        '    """PPO."""\n\n    boldness: float = 2.0\n    """Sets how bold."""\n'
    )
    page = shown("train", "CartPole-v1", "--algorithm", "my_bold:Bolder", "--help-all")
    assert re.search(r"--boldness FLOAT +Sets how bold\. \(default: 2\.0\)", page)
    assert "--boldness" in shown("train", "CartPole-v1", "--algorithm", "my_bold:Bolder", "--help")


def test_a_command_without_flags_says_so(shown):
    page = shown("grid", "show", "--help")
    assert "This command has no options." in page and "None." not in page


@pytest.mark.parametrize("config", CONFIGS)
def test_each_setting_is_in_one_group(config):
    named = [name for names in groups_of(config()).values() for name in names]
    assert sorted(named) == sorted(settings_of(config()))


@pytest.mark.parametrize("settings", FLAGS)
def test_each_help_text_is_a_sentence(settings):
    for name, setting in settings_of(settings()).items():
        text = setting.text
        assert text.split()[0] in VERBS, f"--{name}: {text}"
        assert text.endswith("."), f"--{name}: {text}"
        assert len(text.split()) > 2, f"--{name}: {text}"


def test_every_command_is_among_those_whose_texts_are_read():
    assert set(cli.COMMANDS) == {
        *(
            "train",
            "resume",
            "checkpoints",
            "eval",
            "export",
            "sweep",
            "tune",
            "pbt",
            "rollout",
            "check",
            "grid",
            "envs",
            "runs",
            "compare",
            "report",
            "log",
        )
    }
