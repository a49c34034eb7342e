"""Tuned hyper-parameters per environment, as data: a file per environment, a table per algorithm.

`CartPole-v1.toml` (or `mpe/Spread-v0.toml`, in a folder) has a table `[ppo]` with entries such as
`learning_rate = 1e-3`: flat names, for the algorithm's config and the run's alike. A table `[trials.ppo]` is for the
environment's trials, where an agent learns within its memory, which wants other settings than single episodes do.
`[steps_per_second]` has the speed at which a preset of more than ten minutes was measured, by algorithm.
"""

import importlib.resources
import tomllib
from collections.abc import Iterator
from typing import Any

SUFFIX, TRIALS, SPEED = ".toml", "trials", "steps_per_second"


def preset(environment: str, algorithm: str, *, trials: bool = False) -> dict[str, Any]:
    """Return the settings that suit an algorithm on an environment, or on its trials; empty if there are none.

    Where none are kept for trials, those of single episodes are taken, but that the gradient goes over the whole
    rollout: within chunks of an episode's length nothing is learned from one episode for the next.
    """
    settings = presets_of(environment).get(algorithm, {})
    if not trials:
        return settings
    return presets_of(environment, trials=True).get(algorithm, {}) or _without_chunks(settings)


def presets_of(environment: str, *, trials: bool = False) -> dict[str, dict[str, Any]]:
    """Return all settings for an environment, or for its trials, by algorithm; empty if there are none."""
    tables = _read(environment)
    trial_tables, _ = tables.pop(TRIALS, {}), tables.pop(SPEED, {})
    return trial_tables if trials else tables


def measured_speed(environment: str, algorithm: str, *, trials: bool = False) -> int:
    """Return the environment steps per second, of all seeds together, that a long preset made on two cores
    (docs/results.md, docs/performance.md); 0 where none is kept.
    """
    speeds = _read(environment).get(SPEED, {})
    return (speeds.get(TRIALS, {}) if trials else speeds).get(algorithm, 0)


def _read(environment: str) -> dict[str, Any]:
    if environment not in environments():  # so that a name is never used as a path
        return {}
    file = importlib.resources.files(__name__).joinpath(*(environment + SUFFIX).split("/"))
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _without_chunks(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("chunk_length", "burn_in")}


def environments() -> tuple[str, ...]:
    """Return the environments that have presets, sorted."""
    return tuple(sorted(_names_in(importlib.resources.files(__name__))))


def _names_in(folder: Any, prefix: str = "") -> Iterator[str]:
    """Yield the names of the files in a folder, at any depth, without their suffix."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _names_in(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            yield prefix + entry.name.removesuffix(SUFFIX)
