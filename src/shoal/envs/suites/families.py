"""Other packages' environments, by the prefix of their names; this module imports neither JAX nor any of them."""

import importlib.resources
import importlib.util
import tomllib
from typing import NamedTuple


class Family(NamedTuple):
    """The environments of a package.

    The module `adapter` has three functions: `constructor_of(prefix, name)` returns the function that makes the
    environment of a name, with the parameters that `make` takes by keyword; `limit_of(prefix, name, parameters)`
    returns the package's own time limit in steps, None where it has none or keeps it itself; and `adapted(world)`
    makes an environment, with its time limit, of one of the package's objects.
    """

    title: str
    package: str  # as it is imported
    distribution: str  # as it is installed
    oldest: str  # version
    adapter: str
    names: tuple[str, ...]
    prefix: str
    makes_pairs: bool = False  # of an environment and its parameters

    @property
    def install(self) -> str:
        """The command that installs the package."""
        return f"pip install 'shoal[{self.prefix.rstrip('/')}]'"

    @property
    def is_installed(self) -> bool:
        """Whether the package is found; it is not imported."""
        return importlib.util.find_spec(self.package) is not None


def _read() -> dict[str, Family]:
    text = importlib.resources.files(__package__).joinpath("families.toml").read_text(encoding="utf-8")
    return {
        f"{name}/": Family(**{**table, "names": tuple(table["names"].split())}, prefix=f"{name}/")
        for name, table in tomllib.loads(text).items()
    }


FAMILIES = _read()  # by prefix
