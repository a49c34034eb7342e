"""How this copy of Shoal was installed: the revision that it is, and the command that adds packages to it.

`hatch_build.py` runs this file alone when a package is built, so that it imports nothing of Shoal.
"""

import importlib.metadata
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
REVISION = "revision.txt"  # in a package that was built from a checkout


def install_command(extra: str) -> str:
    """Return the command that installs what an extra of pyproject.toml needs into the environment that runs.

    In the virtual environment of a checkout that is `make extras`, by which Shoal stays editable. Elsewhere it
    names the packages themselves, for pip, or for uv in an environment that uv made without pip.
    """
    root = PACKAGE.parents[1]
    if Path(sys.prefix).resolve() == root / ".venv" and (root / "Makefile").exists():
        folder = [] if root == Path.cwd() else ["-C", str(root)]
        return shlex.join(["make", *folder, "extras", f"EXTRAS={extra}"])
    has_pip = importlib.util.find_spec("pip") is not None
    tool = [sys.executable, "-m", "pip", "install"]
    tool = tool if has_pip else ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*tool, *packages_of(extra)])


def packages_of(extra: str) -> list[str]:
    """Return the packages of an extra with their versions, such as `["optuna>=4.3"]`."""
    needed = [x.partition(";") for x in importlib.metadata.requires("shoal") or ()]
    return [package.strip() for package, _, when in needed if re.search(rf"extra == .{extra}.$", when)]


def revision(package: Path = PACKAGE) -> str | None:
    """Return the commit of the checkout that Shoal runs from, or that it was built from; None if it is not known.

    It ends with "-dirty" if the checkout was changed since. An installed package belongs to no checkout, even where its
    virtual environment is inside of one.
    """
    root = package.parents[1]
    try:
        if package != root / "src" / "shoal" or not (root / ".git").exists():
            return (package / REVISION).read_text(encoding="utf-8").strip()
        commit = _git(root, "rev-parse", "HEAD")
        return f"{commit}-dirty" if _git(root, "status", "--porcelain") else commit
    except (OSError, subprocess.SubprocessError):
        return None  # built without git, no git here, or not a checkout that it reads


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=10, stdin=subprocess.DEVNULL
    )
    return output.stdout.strip()
