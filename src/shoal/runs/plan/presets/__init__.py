"""Tuned hyper-parameters per environment, as data: a file per environment, a table per algorithm.

The folders that `SHOAL_PRESETS` names are searched too, and a table there replaces the one of the package.

`CartPole-v1.toml` (or `mpe/Spread-v0.toml`, in a folder) has a table `[ppo]` with entries such as
`learning_rate = 1e-3`: flat names, for the algorithm's config and the run's alike. A table `[trials.ppo]` is for the
environment's trials, where an agent learns within its memory, which wants other settings than single episodes do.
`[steps_per_second]` has the speed at which a preset of more than ten minutes was measured, by algorithm.
"""

from pathlib import Path
from typing import Any

from shoal.runs.plan.setting_files import find, names_in, own_folders, read_settings

TRIALS, SPEED = "trials", "steps_per_second"
FOLDER = Path(__file__).parent


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
    files = [find(environment, folder) for folder in (FOLDER, *reversed(own_folders()))]
    tables: dict[str, Any] = {}
    for file in filter(None, files):
        tables.pop(SPEED, None)  # it was measured with the other settings
        read = read_settings(file, f"preset {str(file)!r}").items()
        tables |= {name: table for name, table in read if isinstance(table, dict)}
    return tables


def _without_chunks(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("chunk_length", "burn_in")}


def environments() -> tuple[str, ...]:
    """Return the environments that have presets, sorted."""
    return tuple(sorted({name for folder in (FOLDER, *own_folders()) for name in names_in(folder)}))
