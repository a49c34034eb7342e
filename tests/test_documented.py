"""Every public name says what it is, and every field of a config has its help text."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import shoal
from shoal.config import settings
from shoal.config.other_trainers import other_trainers
from shoal.monitor.loggers.requests import LoggerFlags
from shoal.runs.plan.defaults import defaults

ROOT = Path(shoal.__file__).parent
SOURCES = sorted(ROOT.rglob("*.py"))
DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def described_by_a_protocol() -> set[str]:
    """Methods whose meaning the nouns fix once, for all that implement them."""
    classes = [
        node
        for node in ast.parse((ROOT / "types" / "__init__.py").read_text()).body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    ]
    return {
        node.name
        for cls in classes
        for node in cls.body
        if isinstance(node, DEFINITION) and ast.get_docstring(node)
    }


def undocumented(tree: ast.Module) -> Iterator[str]:
    """Names of public classes, functions and methods without a docstring."""
    inherited = described_by_a_protocol()
    if not ast.get_docstring(tree):
        yield "the module itself"
    for node in tree.body:
        if not isinstance(node, DEFINITION) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name
        parts = node.body if isinstance(node, ast.ClassDef) else []
        methods = [part for part in parts if isinstance(part, DEFINITION) and not part.name.startswith("_")]
        for method in methods:
            if not ast.get_docstring(method) and method.name not in inherited:
                yield f"{node.name}.{method.name}"


def undocumented_fields(tree: ast.Module) -> Iterator[str]:
    """Fields of classes named *Config without a string below them, which is their help text."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or not node.name.endswith("Config"):
            continue
        for field, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(field, ast.AnnAssign) or ast.unparse(field.annotation).startswith("ClassVar"):
                continue
            text = below.value if isinstance(below, ast.Expr) else None
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str) and text.value.strip()):
                yield f"{node.name}.{ast.unparse(field.target)}"


@pytest.mark.quick("envs/describing.py")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_names_are_documented(path):
    tree = ast.parse(path.read_text())
    assert [*undocumented(tree), *undocumented_fields(tree)] == []


def test_the_reader_finds_what_is_missing():
    tree = ast.parse(
        "class Open:\n    def method(self): ...\n    def reset(self, key): ...\n    def _own(self): ...\n"
        'class RunConfig:\n    "A config."\n    told: int = 1\n    """Its help."""\n    silent: int = 2\n'
        'def _own(): ...\ndef said():\n    "It says."\n'
    )
    assert list(undocumented(tree)) == ["the module itself", "Open", "Open.method"]
    assert list(undocumented_fields(tree)) == ["RunConfig.silent"]


PAGES = sorted(
    page for page in ROOT.parents[1].glob("**/*.md") if not {".venv", ".venvs", "runs"} & set(page.parts)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT.parents[1])))
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    missing = [link for link in links if ":" not in link and not (page.parent / link).exists()]
    assert missing == []


COMING_FROM = (ROOT.parents[1] / "docs" / "coming_from.md").read_text()


def known_settings() -> set[str]:
    """All settings of PPO, DQN, SAC and TD3, and the further keywords and flags of training."""
    known = set(vars(LoggerFlags())) | {
        "algorithm",
        "film_every",
        "loggers",
        "preset",
        "start_from",
        "max_episode_steps",
    }
    for algorithm in ("ppo", "dqn", "sac", "td3"):
        _, run, config, *_ = defaults(algorithm=algorithm)
        known |= settings.settings_of(run).keys() | settings.settings_of(config).keys()
    return known


def test_the_settings_that_other_trainers_are_compared_with_exist():
    """In the second column of each table of docs/coming_from.md, and CleanRL's names that are the same."""
    columns = [line.split("|")[2] for line in COMING_FROM.splitlines() if line.startswith("| ")]
    named = re.findall(r"`--([a-z-]+)", " ".join([*columns, COMING_FROM.partition("| CleanRL")[0]]))
    named += re.findall(r"`([a-z]+_[a-z_]+)(?:=[^`]*)?`", " ".join(columns))
    unknown = {name.replace("-", "_").removeprefix("no_") for name in named} - known_settings()
    of_rollouts, of_worlds = {"envs", "steps"}, {"observe_image", "physics_steps"}
    assert unknown <= {"privileged_state", "unroll_length", "anneal_lr"} | of_rollouts | of_worlds
    assert len(named) > 60


def test_the_table_of_all_names_is_what_hints_are_read_from():
    """And each name of the trainers' own tables, in lower or upper case alone, is in it."""

    def ticks(words):
        return ", ".join(f"`{word}`" for word in words.split())

    table = tomllib.loads((ROOT / "config" / "other_trainers.toml").read_text())
    rows = [f"| {ticks(names)} | {ticks(meaning)} |" for meaning, names in table["settings"].items()]
    for x in table["sentences"]:
        rows.append(f"| {ticks(x['names'])} | {x['text'].format(cuda='make extras EXTRAS=cuda')} |")
    trainers, _, all_names = COMING_FROM.partition("## All names\n")
    assert [line for line in all_names.splitlines() if line.startswith("| ")][2:] == rows
    first = " ".join(line.split("|")[1] for line in trainers.splitlines() if line.startswith("| "))
    named = {
        x.replace("-", "_").lower() for x in re.findall(r"`(?:--)?([a-z_-]+|[A-Z_]+)(?:[ =][^`]*)?`", first)
    }
    meanings, _, sentences = other_trainers()
    unknown = named - meanings.keys() - sentences.keys() - known_settings()
    assert {x for x in unknown if x.partition("_")[0] not in settings.LOGGERS} == set() and len(named) > 50
