"""Measure the source's structure: layers, circles, sizes, and the way of a setting to PPO's loss.

    python benchmarks/structure.py            all numbers, and a table of the packages
    python benchmarks/structure.py --trace    also which functions lie on the way to the loss, and are called most
    python benchmarks/structure.py --check    only what is above its limit, by name; exits with 1 if anything is

Layers and limits stand in `[tool.shoal]` of `pyproject.toml`. Code is every line but blank ones, comments, and
strings that stand alone; the latter are counted as docstrings.
"""

import argparse
import ast
import functools
import re
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "shoal"
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["shoal"]
parse = functools.cache(ast.parse)  # of a source, whose every measure reads the same tree
LONG_FUNCTION, LONG_FILE = 60, 500  # lines
COMMAND = ("train", "CartPole-v1", "--learning-rate", "3e-4", "--run-dir")  # whose way to the loss is traced


def modules_imported(source: str, package: list[str], *, for_types: bool = True) -> Iterator[str]:
    """Yield the absolute names of all that a source imports, inside functions too.

    Args:
      source: of a module.
      package: of the module, from shoal on, which resolves dots.
      for_types: whether what is imported `if TYPE_CHECKING` counts.
    """
    todo: list[ast.AST] = [parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)
        elif for_types or not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            todo += ast.iter_child_nodes(node)


def packages_imported(source: str, package: list[str]) -> Iterator[str]:
    """Yield the packages under shoal that a source imports; "" for shoal itself. See `modules_imported`."""
    for module in modules_imported(source, package):
        first, *below = module.split(".")
        if first == "shoal":
            is_below = below and ((SOURCE / below[0]).is_dir() or (SOURCE / f"{below[0]}.py").is_file())
            yield below[0] if is_below else ""


def package_of(path: Path) -> str:
    """Return the package or module directly under shoal that a source belongs to; "" for shoal's own `__init__`.

    `python -m shoal` is a command.
    """
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return {"__init__": "", "__main__": "cli"}.get(first, first)


def parents_of(path: Path) -> list[str]:
    """Return the package that a source stands in, from shoal on, which resolves dots."""
    return ["shoal", *path.relative_to(SOURCE).parent.parts]


def package_imports() -> Iterator[tuple[Path, str, str]]:
    """Yield each source with its package and one that it imports from."""
    for path in sorted(SOURCE.rglob("*.py")):
        own = package_of(path)
        for other in sorted(set(packages_imported(path.read_text(), parents_of(path))) - {own}):
            yield path, own, other


def upward(own: str, others: Iterable[str]) -> list[str]:
    """Return the packages that a package must not import: those of a higher layer, and those beside it."""
    layer = {name: number for number, names in enumerate(DECLARED["layers"]) for name in names}
    return sorted(other for other in others if layer[other] <= layer[own])


def file_imports() -> set[tuple[str, str]]:
    """Return which module imports which other one when it runs, inside functions too."""
    paths = {
        ".".join([*parents_of(path), path.stem]).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    found = set()
    for own, path in paths.items():
        for name in modules_imported(path.read_text(), parents_of(path), for_types=False):
            other = name if name in paths else name.rpartition(".")[0]  # of a module, or of a name in it
            found |= {(own, other)} if other in paths and other != own else set()
    return found


def circles(arrows: set[tuple[str, str]]) -> list[str]:
    """Return what imports itself by way of others."""
    following: dict[str, set[str]] = {}
    for first, second in arrows:
        following.setdefault(first, set()).add(second)

    def reached_from(first: str) -> set[str]:
        reached, todo = set(), [first]
        while todo:
            new = following.get(todo.pop(), set()) - reached
            reached |= new
            todo += new
        return reached

    return sorted(first for first in following if first in reached_from(first))


def count_lines(path: Path) -> tuple[int, int]:
    """Count a file's lines of code, and those of its docstrings."""
    source = path.read_text()
    alone: set[int] = set()
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str):
            alone |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    code = sum(
        1 for i, line in lines if i not in alone and line.strip() and not line.lstrip().startswith("#")
    )
    return code, len(alone)


def sizes() -> dict[str, tuple[int, int, int]]:
    """Count the lines of code, of docstrings and of tests of each package."""
    found: dict[str, list[int]] = {}
    for path in SOURCE.rglob("*.py"):
        entry = found.setdefault(package_of(path) or "__init__", [0, 0, 0])
        code, docs = count_lines(path)
        entry[0] += code
        entry[1] += docs
    for path in (ROOT / "tests").rglob("*.py"):
        first = path.relative_to(ROOT / "tests").parts[0]
        entry = found.setdefault("" if first.endswith(".py") else first, [0, 0, 0])
        entry[2] += len(path.read_text().splitlines())
    return {name: (code, docs, tests) for name, (code, docs, tests) in sorted(found.items())}


def long_functions() -> list[str]:
    """Name the functions that are too long, with their lines."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    found.append(f"{path.relative_to(SOURCE)}:{node.name}, {length} lines")
    return found


def long_files() -> list[str]:
    """Name the files that are too long, with their lines."""
    lengths = {path: len(path.read_text().splitlines()) for path in sorted(SOURCE.rglob("*.py"))}
    return [f"{path.relative_to(SOURCE)}, {n} lines" for path, n in lengths.items() if n > LONG_FILE]


def concepts() -> list[str]:
    """Name the classes of Shoal that `ppo.py` names from `update` on, where the way to the loss is."""
    from shoal.algos import ppo, ppo_config

    known = vars(ppo_config) | vars(ppo)
    statements = parse(Path(ppo.__file__).read_text()).body
    start = [getattr(node, "name", "") for node in statements].index("update")
    found = set()
    for node in (node for statement in statements[start:] for node in ast.walk(statement)):
        named: Any = None
        if isinstance(node, ast.Name | ast.ClassDef):
            named = known.get(node.id if isinstance(node, ast.Name) else node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = known.get(node.value.id)
            named = getattr(module, node.attr, None) if isinstance(module, ModuleType) else None
        if isinstance(named, type) and named.__module__.startswith("shoal"):
            found.add(named.__name__)
    return sorted(found)


class Way(NamedTuple):
    """What Python did in Shoal's files from the command line until PPO's loss was traced."""

    frames: list[str]  # the functions that led to the loss, from the first on
    calls: Counter[str]  # by the function that was called
    callers: Counter[tuple[str, str]]  # by the function that was called, and the one that called it


def way_to_the_loss(arguments: list[str]) -> Way:
    """Run a command until PPO's loss is traced."""
    from shoal.algos import ppo_config  # noqa: F401  (so that the import is not counted)
    from shoal.cli import main

    way = Way([], Counter(), Counter())
    loss = f"{Path('algos') / 'ppo.py'}:loss"

    class Reached(BaseException):
        pass

    def name_of(frame: Any) -> str:
        """Return the file and the name of a frame's function; "" outside of Shoal."""
        code = frame.f_code
        path = Path(code.co_filename)
        return f"{path.relative_to(SOURCE)}:{code.co_qualname}" if path.is_relative_to(SOURCE) else ""

    def hook(frame: Any, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(SOURCE)):
            return
        name, above = name_of(frame), frame.f_back
        while above is not None and not above.f_code.co_filename.startswith(str(SOURCE)):
            above = above.f_back
        way.calls[name] += 1
        way.callers[name, name_of(above) if above else ""] += 1
        if name == loss:
            sys.settrace(None)
            while frame is not None:
                way.frames.insert(0, name_of(frame))
                frame = frame.f_back
            raise Reached

    sys.settrace(hook)
    try:
        main(arguments)
    except Reached:
        pass
    finally:
        sys.settrace(None)
    return way._replace(frames=[name for name in way.frames if name])


def show_way(way: Way) -> None:
    """Print the functions on the way to the loss, and those that are called most with their callers."""
    print("the way to the loss:", *way.frames, sep="\n  ")
    print("called most:")
    for name, count in way.calls.most_common(15):
        of_name = Counter({caller: n for (called, caller), n in way.callers.items() if called == name})
        callers = ", ".join(f"{n:,} {caller}" for caller, n in of_name.most_common(2))
        print(f"{count:>7,} {name} (by {callers})")


def measure(by_package: dict[str, tuple[int, int, int]]) -> tuple[dict[str, int], dict[str, list[str]], Way]:
    """Return all numbers by name, what is behind those that are lists, and the way to the loss."""
    imports = list(package_imports())
    arrows = {(own, other) for _, own, other in imports}
    with tempfile.TemporaryDirectory() as directory:
        way = way_to_the_loss([*COMMAND, f"{directory}/run"])
    lists = {
        "upward imports": [
            f"{path.relative_to(SOURCE)} imports {other or 'shoal'}"
            for path, own, other in imports
            if upward(own, [other])
        ],
        "circles": circles(arrows),
        "circles of files": circles(file_imports()),
        "long functions": long_functions(),
        "long files": long_files(),
        "concepts": concepts(),
        "frames": way.frames,
    }
    code, docs, tests = (sum(column) for column in zip(*by_package.values(), strict=True))
    sources = [path.read_text() for path in SOURCE.rglob("*.py")]
    numbers = {
        "number of packages": len({package_of(path) for path in SOURCE.rglob("*.py")}),
        "dependencies": len(arrows),
        "files": len(sources),
        "code": code,
        "docstrings": docs,
        "tests": tests,
        "Any": sum(len(re.findall(r"\bAny\b", source)) for source in sources),
        "calls": way.calls.total(),
    }
    return numbers | {name: len(found) for name, found in lists.items()}, lists, way


def above_limits(numbers: dict[str, int], limits: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return what is above its limit, with its number and the limit."""
    return [(name, n, limits[name]) for name, n in numbers.items() if n > limits.get(name, n)]


def main() -> None:
    """Print the numbers; with `--check` those above their limits, and end with 1 if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    limits, by_package = DECLARED["limits"], sizes()
    numbers, lists, way = measure(by_package)
    if options.check:
        of_packages = {name: code for name, (code, *_) in by_package.items() if code}
        above = above_limits(numbers, limits) + above_limits(of_packages, limits["packages"])
        for name, number, limit in above:
            print(f"{name}: {number:,}, at most {limit:,}", *lists.get(name, []), sep="\n  ")
        sys.exit(bool(above))
    print(f"{'package':<12}{'code':>8}{'at most':>9}{'docstrings':>12}{'tests':>8}")
    for name, (code, docs, tests) in by_package.items():
        limit = f"{limits['packages'][name]:,}" if name in limits["packages"] else ""
        print(f"{name or '(tests/)':<12}{code:>8,}{limit:>9}{docs:>12,}{tests:>8,}")
    for name, number in numbers.items():
        print(f"{name:<40}{number:>8,}" + (f"  at most {limits[name]:,}" if name in limits else ""))
    if options.trace:
        show_way(way)


if __name__ == "__main__":
    main()
