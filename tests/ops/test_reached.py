"""What is reached of `ops` and `nets`, read from the sources: what code mentions, and whatever that needs within them.

Every public function of `ops` is reached by a setting, or by an example of docs/ops.md that a test runs. In docs/ops.md
and docs/networks.md a star marks what the algorithms reach; the rest is a toolbox for code of one's own.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import shoal

SOURCE = Path(shoal.__file__).parent
DOCS = SOURCE.parents[1] / "docs"
PAGE = DOCS / "ops.md"


def imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name of a module stands for, as `shoal.ops.module.name`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
    return found


def executed(tree: ast.AST) -> Iterable[ast.AST]:
    """The nodes of a piece of code without its annotations, which call nothing."""
    for name, value in ast.iter_fields(tree):
        if name not in ("annotation", "returns"):
            for node in value if isinstance(value, list) else [value]:
                if isinstance(node, ast.AST):
                    yield node
                    yield from executed(node)


def mentioned(tree: ast.AST, names: dict[str, str]) -> set[str]:
    """The full names that a piece of code mentions, and each attribute as `.name`."""
    found = set()
    for node in executed(tree):
        if isinstance(node, ast.Name):
            found.add(names.get(node.id, ""))
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
            if isinstance(node.value, ast.Name):
                found.add(f"{names.get(node.value.id, '')}.{node.attr}")
    return found


def definitions(*packages: str, constants: bool = True) -> dict[str, set[str]]:
    """What each function, class, method and constant of packages mentions, by its name; a method is `class.method`."""
    found, elsewhere = {}, {}
    for path in sources(*packages):
        module = "shoal." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        names = imported(tree)
        if path.name == "__init__.py":
            elsewhere |= {f"{module}.{name}": x for name, x in names.items()}
        kinds = ast.stmt if constants else ast.FunctionDef | ast.ClassDef
        own = {name: node for node in tree.body if isinstance(node, kinds) for name in defined_by(node)}
        names |= {name: f"{module}.{name}" for name in own}
        for name, node in own.items():
            methods = [x for x in getattr(node, "body", ()) if isinstance(x, ast.FunctionDef)]
            if isinstance(node, ast.ClassDef):
                node.body = [x for x in node.body if x not in methods]
                found |= {f"{names[name]}.{x.name}": mentioned(x, names) for x in methods}
            found[names[name]] = mentioned(node, names)
    return found | {name: {x} for name, x in elsewhere.items()}


def sources(*packages: str) -> list[Path]:
    """The files of packages."""
    return [path for package in packages for path in sorted((SOURCE / package).rglob("*.py"))]


def defined_by(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines: a function, a class, or constants such as a registry."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [x.id for x in targets if isinstance(x, ast.Name)]


def reached(defined: dict[str, set[str]], starts: Iterable[str]) -> set[str]:
    """The definitions that are reached from these names; of a class that is, the methods that anything calls."""
    found, called, size = set(starts), set(), -1
    while size != len(found | called):
        size = len(found | called)
        for name in [name for name in defined if name in found]:
            found |= defined[name]
        called = {x for x in found if x.startswith(".")}
        for name in defined:
            holder, _, method = name.rpartition(".")
            if holder in found & defined.keys() and (f".{method}" in called or method.startswith("__")):
                found.add(name)
    return found & defined.keys()


def mentions(codes: Iterable[str]) -> set[str]:
    """The full names that several pieces of code mention."""
    trees = map(ast.parse, codes)
    return {name for tree in trees for name in mentioned(tree, imported(tree))}


def unused(page: str) -> list[str]:
    """The public names that neither the package outside of `ops` reaches, nor the examples of a page."""
    defined, own = definitions("ops"), sources("ops")
    others = [path.read_text() for path in SOURCE.rglob("*.py") if path not in own]
    starts = mentions([*others, *re.findall(r"```python\n(.*?)```", page, re.DOTALL)])
    functions = definitions("ops", constants=False)
    public = {name for name in functions if not any(part.startswith("_") for part in name.split("."))}
    return sorted(public - reached(defined, starts))


def starred_rows(page: str) -> list[tuple[list[str], bool]]:
    """The names in the first cell of each row of a page's tables of functions, and whether it has a star."""
    tables = page.partition("A star marks")[2].partition("\n## What it costs")[0]
    cells = re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE)
    return [(re.findall(r"`(\w+)", cell), cell.endswith("*")) for cell in cells]


def wrong_stars(page: str, defined: dict[str, set[str]], called: set[str]) -> list[str]:
    """A sentence for each name of a page's tables whose star is false or missing; other names mean nothing here."""
    is_called = {}
    for name in defined:
        short = name.rpartition(".")[2]
        is_called[short] = is_called.get(short, False) or name in called
    sentences = {
        True: "{}: an algorithm reaches it now; put a star in its row's first cell, `{}` *",
        False: "{}: no algorithm reaches it; remove the star from its row's first cell",
    }
    rows = [(name, star) for names, star in starred_rows(page) for name in names if name in is_called]
    return [sentences[is_called[name]].format(name, name) for name, star in rows if is_called[name] != star]


@pytest.mark.parametrize("page, least", [("ops", 50), ("networks", 25)])
def test_a_star_marks_what_an_algorithm_reaches(page, least):
    defined = definitions("ops", "nets")
    called = reached(defined, mentions(path.read_text() for path in sources("algos")))
    text = (DOCS / f"{page}.md").read_text()
    assert wrong_stars(text, defined, called) == []
    short = {name.rpartition(".")[2] for name in defined}
    assert sum(name in short for names, _ in starred_rows(text) for name in names) >= least


def test_a_star_that_is_wrong_is_named():
    defined = {"shoal.ops.a.used": set(), "shoal.ops.a.unused": set(), "shoal.ops.a.other": set()}
    page = "| `used` | before |\n\nA star marks.\n\n| `used`, `x` | 1 |\n| `unused(x)` * | 2 |\n| `other` | 3 |\n"
    assert [x[:20] for x in wrong_stars(page, defined, {"shoal.ops.a.used"})] == [
        "used: an algorithm r",
        "unused: no algorithm",
    ]


def test_every_public_function_is_used():
    assert unused(PAGE.read_text()) == []


@pytest.mark.full
def test_without_the_page_some_are_not():
    """The reader sees what an example alone uses, and what nothing does."""
    missing = unused("")
    assert "shoal.ops.statistics.merge_moments" in missing
    assert not {"shoal.ops.returns.gae", "shoal.ops.distributions.continuous.Normal.log_prob"} & set(missing)
    examples = "```python\nfrom shoal.ops import statistics\nstatistics.merge_moments()\n```"
    assert set(missing) - set(unused(examples)) == {"shoal.ops.statistics.merge_moments"}
