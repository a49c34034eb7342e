"""Tuned hyper-parameters per environment, as data: a file per environment, a table per algorithm.

`CartPole-v1.toml` has a table `[ppo]` with entries such as `learning_rate = 1e-3`: flat names, for the
algorithm's config and the run's alike.
"""

import importlib.resources
import tomllib
from typing import Any

SUFFIX = ".toml"


def preset(environment: str, algorithm: str) -> dict[str, Any]:
    """The settings that suit an algorithm on an environment; empty if none are kept."""
    return presets_of(environment).get(algorithm, {})


def presets_of(environment: str) -> dict[str, dict[str, Any]]:
    """All settings kept for an environment, by algorithm; empty if there are none."""
    if environment not in environments():  # so that a name is never used as a path
        return {}
    file = importlib.resources.files(__name__).joinpath(environment + SUFFIX)
    return tomllib.loads(file.read_text(encoding="utf-8"))


def environments() -> tuple[str, ...]:
    """The environments that presets are kept for, sorted."""
    names = [file.name for file in importlib.resources.files(__name__).iterdir()]
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))
