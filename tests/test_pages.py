"""Every block of README.md and docs/ runs, from an empty folder for each page, with small budgets.

A block below a line that ends with "`name.py`:" is saved under that name. Any other block of Python is executed in a
namespace of its own, so that it must run alone, and each command line by `shoal.cli.main`; both find what earlier
blocks of the page have left in the folder. What is shown beneath a command is compared with what it prints: line by
line, exactly where the numbers depend on nothing (refusals, help, lists), else with every number as "#".
"""

import functools
import importlib.util
import itertools
import re
import shlex
import sys
import types
from pathlib import Path
from typing import NamedTuple

import pytest

from shoal import cli
from shoal.base.files import cache_folder
from shoal.envs import registry
from shoal.monitor import run_report as reports
from shoal.records.run_config import RunConfig
from shoal.runs.train import compiled_trainer
from shoal.runs.train import drive as train

ROOT = Path(__file__).parents[1]
PAGES = {path.stem: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
FENCE = re.compile(r"^```(\w*)\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
EXACT = ("check", "envs", "grid", "--help", "--help-all")  # what these print depends on nothing

# Blocks and command lines that a test cannot run: the page, why, and how they begin.
SKIPPED = [
    ("README", "installs, trains for a minute, and runs the tests", "make", "source"),
    ("accelerators", "installs packages", "make extras", "pip install"),
    ("agents", "of the benchmarks' folder", "PYTHONPATH=benchmarks"),
    ("brax", "installs packages, or downloads robots", "make extras", "git clone", "SHOAL_MENAGERIE"),
    ("brax", "compiles for minutes", "shoal train playground/CartpoleBalance", "shoal train brax"),
    ("command-line", "of a run that was killed", "shoal train CartPole-v1 --seeds 2 --total-steps 2e6"),
    ("compare", "needs the whole budget", "shoal compare runs/first runs/slow"),
    ("compare", "of runs that do not exist", "shoal compare runs/ppo-cartpole", "shoal compare new="),
    ("command-line", "of a run that was killed", "shoal checkpoints runs/whole"),
    ("command-line", "of runs that take minutes", "shoal eval runs/unlock", "shoal eval runs/many"),
    ("command-line", "of a file of the page python.md", "shoal check corner:Corner"),
    ("command-line", "of a file with a mistake", "shoal train corridor:Corridor"),
    ("extending", "with a variable of the environment, as tests/test_registers.py", "SHOAL_REGISTER="),
    ("command-line", "the page sweeps.md runs it", "shoal sweep"),
    ("durability", "of runs that were killed or damaged", "shoal checkpoints", "shoal eval", "taskset"),
    ("durability", "of a run that was killed", "shoal train CartPole-v1 --seeds 2 --total-steps 5e6"),
    ("durability", "of runs killed or in use", "shoal resume runs/preempted", "shoal resume runs/killed"),
    ("durability", "kills processes, or needs Slurm", "# preempt.sh", "bash preempt.sh", "#!/bin/bash"),
    ("durability", "of an environment with a mistake", "shoal train faulty:Faulty", "shoal resume runs/nan"),
    ("export", "installs packages, or is a script beside the page", "make extras", "python examples"),
    ("extending", "of a file with a mistake", "import shoal\n\ntry:"),
    ("grid", "of a file to download", "from shoal.envs.grid.rulesets.benchmark import Benchmark\n\nBench"),
    ("grid", "takes hours", "shoal train XLand-MiniGrid-R1-9x9 trial_episodes=5", "shoal eval runs/agent"),
    ("grid", "of a run that takes minutes", "shoal eval runs/small"),
    ("gymnax", "installs packages, or compiles for minutes", "make extras", ".venv/", "shoal train"),
    ("gymnax", "of a clone of jaxagents", "cd jax-agents"),
    ("jaxdem", "of a clone of JaxDEM, or installs packages", "git clone", "make extras", "shoal", "import"),
    ("jaxmarl", "installs packages, or compiles for minutes", "make extras", ".venv/", "shoal train"),
    ("jumanji", "installs packages, or compiles for minutes", "make extras", "shoal train"),
    (
        "loggers",
        "needs a key of W&B",
        "shoal train CartPole-v1 --track",
        "shoal train CartPole-v1 --logger wandb",
    ),
    ("mpe", "of the benchmarks' folder", "python benchmarks", "PYTHONPATH=benchmarks"),
    ("mpe", "of a run that takes minutes", "shoal eval RUN"),
    (
        "off_policy",
        "learns after 1,000 steps or more",
        "shoal train Pendulum-v1 --algorithm sac --run-dir",
        "shoal train Pendulum-v1 --algorithm td3  ",
        "shoal train Pendulum-v1 --algorithm td3 --no-preset",
        "shoal train MountainCarContinuous-v0 --algorithm sac",
        "shoal train CartPole-v1 --algorithm sac   ",
        "shoal train mpe/Spread-v0 --algorithm sac",
        "shoal sweep",
        "shoal pbt",
    ),
    (
        "recipes",
        "needs pandas, or installs packages",
        "import json\nimport pandas",
        "python -m pip",
        "make extras",
    ),
    ("results", "trains for minutes", "for env in"),
    ("runs", "lists runs of which the page trains one only", "shoal runs"),
    ("spaces", "flags alone", "--"),
    ("sweeps", "its rungs need the whole budget", "shoal sweep CartPole-v1 --random"),
    ("tuning", "installs packages", "make extras"),
    ("value_based", "learns after 10,000 steps", "shoal train CartPole-v1 --algorithm dqn   "),
    ("value_based", "learns after 10,000 steps", "shoal train CartPole-v1 --algorithm dqn --no-preset"),
    ("value_based", "learns after 10,000 steps", "shoal train CartPole-v1 --algorithm c51 --dueling"),
    ("value_based", "needs the whole budget", "shoal train CartPole-v1 --algorithm dqn --learning-starts"),
    ("value_based", "needs the whole budget", "shoal train CartPole-v1 --algorithm c51 --total-steps"),
]


class Step(NamedTuple):
    """A file to save, code to execute, or a command to call."""

    line: int  # of the page where its block begins
    kind: str  # "python", "command", or the name of a file
    text: str
    shown: tuple[str, ...] = ()  # beneath the command

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def refusal(self) -> bool:
        return any(line.startswith("shoal: ") for line in self.shown)

    @property
    def is_quick(self) -> bool:
        """Whether a command needs neither training nor what earlier blocks leave."""
        if self.kind != "command" or "runs/" in self.text:
            return False
        return self.refusal or self.words[1:2] == ["envs"] or self.words[-1].startswith("--help")


def commands(line: int, language: str, text: str) -> list[Step]:
    """The commands of a block: after `$`, else all its lines; a script is one."""
    text = text.replace("\\\n", "")
    if text.startswith("$ "):
        parts = [part.rstrip("\n").split("\n") for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]]
        return [Step(line, "command", command, tuple(shown)) for command, *shown in parts]
    if language == "sh" or text.startswith("shoal "):
        lines = [text] if re.match(r"#|for ", text) else text.split("\n")
        return [Step(line, "command", command.removesuffix(" &")) for command in lines]
    return []


def all_steps(page: str) -> list[Step]:
    """The steps of a page, in its order."""
    text, found = PAGES[page].read_text(), []
    for match in FENCE.finditer(text):
        line, (language, block) = text.count("\n", 0, match.start(2)) + 1, match.groups()
        name = re.search(r"`(\w+\.\w+)`:\s*$", text[: match.start()])
        if name or language == "python":
            found.append(Step(line, name[1] if name else "python", block))
        else:
            found += commands(line, language, block)
    return found


def steps(page: str) -> list[Step]:
    """The steps of a page that are not skipped; its files come first."""
    skipped = tuple(beginning for name, _, *beginnings in SKIPPED if name == page for beginning in beginnings)
    todo = [step for step in all_steps(page) if not step.text.startswith(skipped)]
    return sorted(todo, key=lambda step: step.kind in ("python", "command"))


@pytest.fixture
def folder(monkeypatch, tmp_path, undrawn):
    """An empty folder from which modules can be imported, and runs whose budgets are small."""
    updates, points = RunConfig.total_updates.fget, RunConfig.evaluation_points
    program_settings = compiled_trainer.program_settings

    def few_updates(run):  # in proportion, so that a longer run stays longer
        return updates(run) if run.checkpoint_evals else min(updates(run), 2 + updates(run) // 100)

    def few_points(run):
        return points(run) if run.checkpoint_evals else [0, run.total_updates]

    def few_episodes(run, *rest):
        return program_settings(run, *rest)._replace(eval_episodes=min(run.eval_episodes, 4))

    monkeypatch.setattr(RunConfig, "total_updates", property(few_updates))
    monkeypatch.setattr(RunConfig, "updates_in", lambda run, steps: 1)
    monkeypatch.setattr(RunConfig, "num_absolute_episodes", 4)
    monkeypatch.setattr(RunConfig, "evaluation_points", few_points)
    monkeypatch.setattr(compiled_trainer, "program_settings", few_episodes)
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    if importlib.util.find_spec("six"):
        importlib.import_module(
            "six.moves"
        )  # adds an importer, which is not to be forgotten with those of the page
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def execute(page: str, step: Step) -> None:
    """Execute a block as a module of its own, since dataclasses look for annotations there."""
    module = sys.modules["block"] = types.ModuleType("block")
    code = "\n" * (step.line - 1) + step.text  # errors name the page's line
    exec(compile(code, str(PAGES[page]), "exec"), vars(module))


class Planned(BaseException):
    """Ends a training before anything compiles."""


def end_with_plan(plan, *_):
    raise Planned(plan)


def result_of(plan) -> str:
    """What a run would print as its result, with 0 for what it would learn."""
    run = plan.experiment.run
    score = {"iqm": 0.0, "interval": [0.0, 0.0] if run.seeds >= 5 else None, "returns": [0.0] * run.seeds}
    summary = {
        "environment": plan.experiment.environment_name,
        "algorithm": plan.experiment.algorithm,
        "seeds": score["returns"],
        "steps_per_seed": 0,
        "settings": plan.experiment.differences,
        "absolute": score,
        "final": score,
        "evaluation": {"episodes": 0},
        **({"score": {"name": run.score}} if run.score != "return_mean" else {}),
        "steps_per_second": 0.0,
        "seconds": dict.fromkeys(("compile", "train", "evaluate"), 0.0),
    }
    return reports.result_text(summary, run.run_dir)


def call(words: list[str], patch, only_plan: bool) -> int:
    """Call `shoal` with words; the exit status. A training that is only planned prints a result of zeros."""
    if only_plan:
        patch.setattr(train, "compile_run", end_with_plan)
    try:
        return cli.main(words)
    except SystemExit as end:
        return end.code or 0
    except Planned as end:
        print(result_of(end.args[0]))
        return 0


def masked(line: str, *, exact: bool) -> str:
    """A line with single spaces, and its numbers as #."""
    line = re.sub(r" \S+ left$", "", " ".join(line.split()))
    return line if exact else re.sub(r"\b[0-9a-f]{7,}\b|-?\d[\d.,:]*(e[+-]\d+)?[kM]?\b", "#", line)


def missing(step: Step, printed: str) -> str:
    """The lines that are shown beneath a command and not printed, with what is printed; "" if there are none."""
    exact = step.refusal or any(word in EXACT for word in step.words)
    found = [masked(line, exact=exact) for line in printed.splitlines()]
    patterns = {line: re.escape(masked(line, exact=exact)).replace(r"\.\.\.", ".*") for line in step.shown}
    lines = [line for line, x in patterns.items() if not any(re.fullmatch(x, y) for y in found)]
    return (
        "\n".join([f"{step.text}\nshows, and does not print", *lines, "It prints", printed]) if lines else ""
    )


def is_needed(step, todo) -> bool:
    """Whether the run of a training is used elsewhere on the page; else it is only planned."""
    path = dict(itertools.pairwise(step.words)).get("--run-dir")
    is_used = path is not None and any(path in other.text for other in todo if other is not step)
    return step.words[1] != "train" or is_used


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs steps of a page in the folder, and says what differs."""
    return functools.partial(run_steps, folder, capsys, monkeypatch)


def run_steps(folder, capsys, monkeypatch, page, todo):
    failures = []
    for step in todo:
        where = f"{PAGES[page].name}:{step.line}"
        if step.kind == "python":
            execute(page, step)
        elif step.kind != "command":
            (folder / step.kind).write_text(step.text + "\n")
            importlib.invalidate_caches()
        else:
            capsys.readouterr()
            assert step.words[0] == "shoal", (
                f"{where}: {step.text} is no command of shoal, and not in SKIPPED"
            )
            with monkeypatch.context() as patch:
                status = call(step.words[1:], patch, not is_needed(step, todo))
            captured = capsys.readouterr()
            printed = (captured.out + captured.err).replace(str(cache_folder()), "/home/me/.cache/shoal")
            printed = printed.replace(str(Path.home()), "/home/me")
            expected = (
                2 if step.refusal else 1 if re.search(r": \d+ findings?$", "\n".join(step.shown), re.M) else 0
            )
            if status != expected:
                failures.append(f"{where}: {step.text} ends with {status}, not {expected}\n{printed}")
            elif found := missing(step, printed):
                failures.append(f"{where}: {found}")
    assert not failures, "\n\n".join(failures)


@pytest.mark.filterwarnings(
    "ignore:jax.core.pytype_aval_mappings:DeprecationWarning"
)  # tensorflow-probability's
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.quick("accelerators", "design", "ops", "spaces")
@pytest.mark.rare(
    "agents",
    "command-line",
    "compare",
    "durability",
    "extending",
    "grid",
    "jaxmarl",
    "loggers",
    "memory",
    "networks",
    "off_policy",
    "report",
    "particles",
    "pbt",
    "ppo",
    "pure_training",
    "python",
    "recipes",
    "sweeps",
    "tuning",
    "value_based",
    "checker",
    "brax",
    "export",
)
def test_what_a_page_shows_is_what_happens(page, run):
    run(page, steps(page))


@pytest.mark.parametrize("page", ["command-line", "extending", "grid", "memory"])
def test_refusals_and_lists_are_as_shown(page, run):
    todo = [step for step in steps(page) if step.is_quick or step.kind not in ("python", "command")]
    run(page, todo)


def test_what_is_skipped_exists():
    found = [(page, step.text) for page in PAGES for step in all_steps(page)]
    skipped = [(page, beginning) for page, _, *beginnings in SKIPPED for beginning in beginnings]
    assert [x for x in skipped if not any(x[0] == y[0] and y[1].startswith(x[1]) for y in found)] == []
