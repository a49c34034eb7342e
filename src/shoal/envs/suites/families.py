"""Other packages' environments, by the prefix of their names; this module imports neither JAX nor any of them."""

import importlib
import importlib.resources
import importlib.util
import os
import re
import tomllib
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.base.installation import install_command

if TYPE_CHECKING:
    from shoal.envs.suites.suite import Suite

# What tells no environments apart: the version, and how Gym's names of Atari's games say which frames are skipped.
VERSION = re.compile(r"(noframeskip|deterministic)?([-_]v\d+)?$")
CLOSE = 0.75  # least likeness of a name and a suggestion


class Family(NamedTuple):
    """The environments of a package, which `adapter()`, a `Suite`, makes."""

    title: str
    package: str  # as it is imported
    distribution: str  # as it is installed
    oldest: str  # version
    suite: str  # `module:NAME` of its adapter
    names: tuple[str, ...]
    prefix: str
    makes_pairs: bool = False  # of an environment and its parameters
    repository: str = ""  # of a package that is on no index

    @property
    def variable(self) -> str:
        """The environment variable that names a checkout of the package's repository."""
        return f"{self.prefix.rstrip('/').upper()}_CHECKOUT"

    @property
    def checkout(self) -> str:
        """The checkout that the variable names; "" without one."""
        return os.environ.get(self.variable, "") if self.repository else ""

    @property
    def install(self) -> str:
        """The command that installs the package, or gets its checkout."""
        if self.repository:
            return f'git clone {self.repository} && export {self.variable}="$PWD/{self.distribution}"'
        return install_command(self.prefix.rstrip("/"))

    def adapter(self) -> "Suite[object]":
        """Import the package's adapter, a `shoal.envs.suites.suite.Suite`, which imports JAX."""
        module, _, name = self.suite.partition(":")
        return getattr(importlib.import_module(module), name)

    @property
    def is_installed(self) -> bool:
        """Whether the package is found; it is not imported."""
        if self.checkout:
            return Path(self.checkout, self.package, "__init__.py").is_file()
        return importlib.util.find_spec(self.package) is not None


def _read() -> dict[str, Family]:
    text = importlib.resources.files(__package__).joinpath("families.toml").read_text(encoding="utf-8")
    return {
        f"{name}/": Family(**{**table, "names": tuple(table["names"].split())}, prefix=f"{name}/")
        for name, table in tomllib.loads(text).items()
    }


FAMILIES = _read()  # by prefix


def actors_of(world: object) -> Any:
    """Return the number of actors of a gymnax-like world of several, `n_actors` of itself or of the one that it wraps.

    None for another object: those of Shoal and of JaxMARL have `num_agents`.
    """
    count = getattr(world, "n_actors", getattr(getattr(world, "_env", None), "n_actors", None))
    return None if count is None or hasattr(world, "num_agents") else count


def closest_environment(name: str, known: Iterable[str]) -> str:
    """Return the environment that was probably meant, of the known names and then of all packages' listed ones; "" if
    none is close. So ALE/Breakout-v5 gives gymnax/Breakout-MinAtar, whether gymnax is installed or not.
    """
    options = [*known, *(family.prefix + x for family in FAMILIES.values() for x in family.names)]
    best = max(options, key=lambda option: _likeness(name, option))
    return best if _likeness(name, best) >= CLOSE else ""


def _likeness(name: str, option: str) -> float:
    """Return how alike are two names of environments, by what follows the slash, without version, case and separators.

    It is 3 for equal ones, 4 if the versions are too; about 2 where the name is the option's first word, or some of its
    words in any order; else at most 1, and close where one holds the other and is at most twice as long.
    """
    tails = [x.rpartition("/")[2].lower().replace("_", "-") for x in (name, option)]
    own, other = (VERSION.sub("", x) for x in tails)
    name, plain = own.replace("-", ""), other.replace("-", "")
    if name == plain:
        return 3.0 + (tails[0] == tails[1])
    if name == other.partition("-")[0] or {*own.split("-")} <= {
        *re.split("[-/]", option.lower().replace("_", "-"))
    }:
        return 2.0 - len(plain) / 1000  # of several the shortest
    short, long = sorted((name, plain), key=len)
    is_part = short in long and len(short) >= 4 and len(long) <= 2 * len(short)
    other_start = name[:1] != plain[:1]  # a first letter is seldom mistyped
    return max(SequenceMatcher(None, name, plain).ratio() - 0.1 * other_start, CLOSE * is_part)
