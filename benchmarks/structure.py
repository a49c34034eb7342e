"""Measure the source's structure: layers, dependencies, sizes, and the way of a setting to the loss.

    python benchmarks/structure.py            a table
    python benchmarks/structure.py --check    exit with 1 where a number is above its limit in pyproject.toml
    python benchmarks/structure.py --trace    also the frames, calls and files on the way to the loss

Layers and limits stand in `[tool.shoal]` of `pyproject.toml`. Code is every line but blank ones, comments, and
strings that stand alone; the latter are counted as docstrings.
"""

import argparse
import ast
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "shoal"


def modules_imported(source: str, package: list[str]) -> Iterator[str]:
    """Yield the absolute names of all that a source imports, inside functions too.

    Args:
      source: of a module.
      package: of the module, from shoal on, which resolves dots.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)


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


def dependencies() -> set[tuple[str, str]]:
    """Return which packages import which others."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        own = package_of(path)
        parent = ["shoal", *path.relative_to(SOURCE).parent.parts]
        found |= {(own, other) for other in packages_imported(path.read_text(), parent) if other != own}
    return found


def circles(arrows: set[tuple[str, str]]) -> list[str]:
    """Return the packages that import themselves by way of others."""
    reached = {first: {second for other, second in arrows if other == first} for first, _ in arrows}
    for _ in reached:
        for seconds in reached.values():
            seconds |= {third for second in set(seconds) for third in reached.get(second, ())}
    return sorted(first for first, seconds in reached.items() if first in seconds)


def count_lines(path: Path) -> tuple[int, int]:
    """Count a file's lines of code, and those of its docstrings."""
    source = path.read_text()
    alone = set()
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
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


def way_to_the_loss(arguments: list[str]) -> dict[str, int]:
    """Run a command until PPO's loss is traced, and count what Python did in Shoal's files up to there."""
    from shoal.algos import ppo
    from shoal.cli import main

    calls: dict[str, int] = {}
    frames = 0

    class Reached(BaseException):
        pass

    def hook(frame: Any, event: str, _: Any) -> None:
        nonlocal frames
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(str(SOURCE)):
            return
        calls[file] = calls.get(file, 0) + 1
        if file == ppo.__file__ and frame.f_code.co_name == "loss" and not frames:
            while frame is not None:
                frames += frame.f_code.co_filename.startswith(str(SOURCE))
                frame = frame.f_back
            sys.setprofile(None)
            raise Reached

    sys.setprofile(hook)
    try:
        main(arguments)
    except Reached:
        pass
    finally:
        sys.setprofile(None)
    loaded = {
        getattr(module, "__file__", None) or ""
        for name, module in sys.modules.items()
        if name.startswith("shoal")
    }
    of_settings = sum(
        n for file, n in calls.items() if file.endswith(("settings.py", "struct.py")) or "/cli/" in file
    )
    return {
        "frames to the loss": frames,
        "calls to the loss": sum(calls.values()),
        "of them in settings and command line": of_settings,
        "files that are imported": sum(file.startswith(str(SOURCE)) for file in loaded),
    }


def measure(options: argparse.Namespace) -> dict[str, int]:
    """Return all numbers by name, after a table of the packages."""
    arrows, by_package = dependencies(), sizes()
    if not options.check:
        print(f"{'package':<12}{'code':>8}{'docstrings':>12}{'tests':>8}")
        for name, numbers in by_package.items():
            print(f"{name or '(tests/)':<12}{numbers[0]:>8,}{numbers[1]:>12,}{numbers[2]:>8,}")
    names = {package_of(path) for path in SOURCE.rglob("*.py")}
    code, docs, tests = (sum(column) for column in zip(*by_package.values(), strict=True))
    numbers = {
        "packages": len(names),
        "dependencies": len(arrows),
        "circles": len(circles(arrows)),
        "files": sum(1 for _ in SOURCE.rglob("*.py")),
        "code": code,
        "docstrings": docs,
        "tests": tests,
    }
    if options.trace:
        with tempfile.TemporaryDirectory() as directory:
            command = ["train", "CartPole-v1", "--learning-rate", "3e-4", "--run-dir", f"{directory}/run"]
            numbers |= way_to_the_loss(command)
    return numbers


def main() -> None:
    """Print the numbers; with `--check` those above their limits, and end with 1 if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    limits = (
        tomllib.loads((ROOT / "pyproject.toml").read_text())
        .get("tool", {})
        .get("shoal", {})
        .get("limits", {})
    )
    numbers = measure(options)
    above = {name: value for name, value in numbers.items() if value > limits.get(name, value)}
    for name, value in (above if options.check else numbers).items():
        print(f"{name:<40}{value:>8,}" + (f"  at most {limits[name]:,}" if name in limits else ""))
    sys.exit(bool(options.check and above))


if __name__ == "__main__":
    main()
