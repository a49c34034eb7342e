"""Every public function of `ops` is reached by a setting, or by an example of docs/ops.md that a test runs.

Read from the sources, as names: what the package outside of `ops` mentions, and whatever that needs within `ops`.
"""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import shoal

SOURCE = Path(shoal.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "ops.md"


def imported(tree: ast.Module) -> dict[str, str]:
    """What each imported name of a module stands for, as `shoal.ops.module.name`."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {x.asname or x.name: f"{node.module}.{x.name}" for x in node.names}
    return found


def mentioned(tree: ast.AST, names: dict[str, str]) -> set[str]:
    """The full names that a piece of code mentions, and each attribute as `.name`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(names.get(node.id, ""))
        elif isinstance(node, ast.Attribute):
            found.add(f".{node.attr}")
            if isinstance(node.value, ast.Name):
                found.add(f"{names.get(node.value.id, '')}.{node.attr}")
    return found


def definitions() -> dict[str, set[str]]:
    """What each function, class and method of `ops` mentions, by its name; a method is `class.method`."""
    found, elsewhere = {}, {}
    for path in sorted((SOURCE / "ops").rglob("*.py")):
        module = "shoal." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        names = imported(tree)
        if path.name == "__init__.py":
            elsewhere |= {f"{module}.{name}": x for name, x in names.items()}
        own = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        names |= {node.name: f"{module}.{node.name}" for node in own}
        for node in own:
            methods = [x for x in getattr(node, "body", ()) if isinstance(x, ast.FunctionDef)]
            is_class = isinstance(node, ast.ClassDef)
            found[names[node.name]] = set() if is_class else mentioned(node, names)
            for method in methods if is_class else ():
                found[f"{names[node.name]}.{method.name}"] = mentioned(method, names)
    return found | {name: {x} for name, x in elsewhere.items()}


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


def unused(page: str) -> list[str]:
    """The public names that neither the package outside of `ops` reaches, nor the examples of a page."""
    defined, starts = definitions(), set()
    sources = [path.read_text() for path in SOURCE.rglob("*.py") if SOURCE / "ops" not in path.parents]
    for source in (*sources, *re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        tree = ast.parse(source)
        starts |= mentioned(tree, imported(tree))
    public = {name for name in defined if not any(part.startswith("_") for part in name.split("."))}
    return sorted(public - reached(defined, starts))


def test_every_public_function_is_used():
    assert unused(PAGE.read_text()) == []


def test_without_the_page_some_are_not():
    """The reader sees what an example alone uses, and what nothing does."""
    missing = unused("")
    assert "shoal.ops.off_policy.retrace_continuous" in missing
    assert not {"shoal.ops.returns.gae", "shoal.ops.distributions.continuous.Normal.log_prob"} & set(missing)
    examples = "```python\nfrom shoal.ops import off_policy\noff_policy.retrace_continuous()\n```"
    assert set(missing) - set(unused(examples)) == {"shoal.ops.off_policy.retrace_continuous"}
