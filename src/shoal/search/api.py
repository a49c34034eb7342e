"""The functions of `import shoal` that search over settings: sweep, tune, pbt and replay."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.base.errors import ShoalError
from shoal.config import arguments
from shoal.config.traced import on_host
from shoal.monitor.loggers.requests import Loggers
from shoal.runs.train.results import TrainedRun
from shoal.runs.train.training import AnyEnvironment, call_of, given
from shoal.search.grouping import Request
from shoal.search.pbt import PbtOptions, read_tuned, run_pbt, run_replay
from shoal.search.space import Space, from_tables, from_words
from shoal.search.sweep import Sweep, SweepOptions, run_sweep
from shoal.search.trial_runs import TuneOptions, run_tuning
from shoal.types import Environment

Chosen = TypeVar("Chosen", SweepOptions, TuneOptions, PbtOptions)


@on_host
def sweep(
    environment: AnyEnvironment = None,
    *,
    grid: Mapping[str, object] | None = None,
    random: Mapping[str, object] | None = None,
    where: Mapping[str, object] | None = None,
    space: str | Path = "",
    algorithm: str | object = "",
    environment_parameters: Mapping[str, object] | None = None,
    config: str | Path | Sequence[str | Path] | None = None,
    preset: bool = True,
    eval_env: str | Environment | Mapping[str, object] | None = None,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
) -> Sweep:
    """Train many settings, each with several seeds, rank them, and train the best three again on new seeds.

    The same call with a `run_dir` resumes a sweep that was interrupted; a larger `samples` extends it.

    Args:
      environment, algorithm, environment_parameters, config, preset: as in `train`.
      listeners, loggers, film_every: as in `train`, for each run of the sweep.
      grid: by name, the values of a setting, each of which is trained with every value of the others. Names are those
        of settings, of the environment's parameters (`env.gravity`) and of the optimiser's arguments
        (`optimizer_args.eps`).
      random: by name, the distribution of a setting, such as "log:1e-5:1e-2", or a list of choices.
      where: by name, the values that other settings must have for a setting to be a part of a member.
      space: a TOML file with tables of these names, instead of them.
      eval_env: the one environment in which all members are evaluated, as in `train`.
      **settings: options of the sweep (samples=1, sample_seed=0, sobol=False, objective="absolute", confirm_seeds=10,
        halving=0, min_steps=0, which `shoal sweep --help-all` explains), and settings of `train` for all members alike,
        such as `seeds`; `run_dir` is the directory of the sweep.
    Returns:
      the sweep; `sweep.summary["members"]` has the settings sorted by score, and `sweep.policy()` is the best policy.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
    """
    options = _options(SweepOptions, settings, path=settings.pop("run_dir", ""))
    asked = given(environment, algorithm, environment_parameters, config, preset, eval_env)
    request = Request(**asked, overrides=settings)
    searched = _space({"grid": grid, "random": random, "where": where}, space)
    return run_sweep(request, searched, options, call_of(progress, listeners, loggers, film_every))


@on_host
def tune(
    environment: AnyEnvironment = None,
    *,
    grid: Mapping[str, object] | None = None,
    random: Mapping[str, object] | None = None,
    where: Mapping[str, object] | None = None,
    space: str | Path = "",
    algorithm: str | object = "",
    environment_parameters: Mapping[str, object] | None = None,
    config: str | Path | Sequence[str | Path] | None = None,
    preset: bool = True,
    eval_env: str | Environment | Mapping[str, object] | None = None,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
) -> Sweep:
    """Train settings that Optuna proposes, batch by batch, each with several seeds, and the best three again.

    The same call with a `run_dir` resumes a tuning that was interrupted; a larger `trials` extends it.

    Args:
      environment, algorithm, environment_parameters, config, preset, eval_env: as in `train`.
      listeners, loggers, film_every: as in `sweep`.
      where, space: as in `sweep`.
      grid: by name, the values among which Optuna chooses.
      random: by name, the distribution of a setting, such as "log:1e-5:1e-2", or a list of choices.
      **settings: options of the tuning (trials=64, batch=16, proposal_seed=0, storage="", study="", and those by which
        `sweep` judges, which `shoal tune --help-all` explains), and settings of `train` for all trials alike, such as
        `seeds`; `run_dir` is the directory of the tuning.
    Returns:
      what `sweep` returns, of the trials of this directory.
    Raises:
      ShoalError: Optuna is missing, or a setting cannot work, in one sentence, before anything compiles.
    """
    settings["storage"] = str(settings.get("storage", ""))
    options = _options(TuneOptions, settings, path=settings.pop("run_dir", ""))
    asked = given(environment, algorithm, environment_parameters, config, preset, eval_env)
    request = Request(**asked, overrides=settings)
    searched = _space({"grid": grid, "random": random, "where": where}, space)
    return run_tuning(request, searched, options, call_of(progress, listeners, loggers, film_every))


@on_host
def pbt(
    environment: AnyEnvironment = None,
    *,
    tune: Mapping[str, object],
    start: Mapping[str, object] | None = None,
    algorithm: str | object = "",
    environment_parameters: Mapping[str, object] | None = None,
    config: str | Path | Sequence[str | Path] | None = None,
    preset: bool = True,
    eval_env: str | Environment | Mapping[str, object] | None = None,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
) -> TrainedRun:
    """Train a population whose worst fifth copies the best fifth, and changes its settings (population-based training).

    The directory is that of any run; `resume` continues one that was interrupted.

    Args:
      environment, algorithm, environment_parameters, config, preset, eval_env, listeners, loggers, film_every: as in
        `train`.
      tune: by name, the distribution of a setting of the algorithm that is a float, such as "log:1e-5:1e-2": its
        bounds, and where new values are drawn.
      start: of some of them, the distribution of the members' first values, within these bounds.
      **settings: options (members=16, and `ready_every`, the environment steps of a member between two exchanges, each
        of which follows an evaluation), and settings of `train`.
    Returns:
      the run; `run.summary["best"]` is the best member, and `schedule.json` in its directory what `replay` trains with.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
    """
    options = _options(PbtOptions, settings)
    asked = given(environment, algorithm, environment_parameters, config, preset, eval_env)
    request = Request(**asked, overrides=settings)
    tuned = read_tuned(arguments.mapping("tune", tune), arguments.mapping("start", start))
    return run_pbt(request, tuned, options, call_of(progress, listeners, loggers, film_every))


@on_host
def replay(
    run: str | Path | TrainedRun,
    *,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
) -> TrainedRun:
    """Train new seeds with the schedule of settings that the best policy of population-based training descends from.

    Returns:
      the run, in a directory of its own.
    Raises:
      ShoalError: the run has no schedule, or a setting cannot work.
    """
    path = run.path if isinstance(run, TrainedRun) else arguments.path("run", run)
    return run_replay(path, settings, call_of(progress, listeners, loggers, film_every))


def _options(cls: type[Chosen], settings: dict[str, Any], **given: Any) -> Chosen:
    """Take the options of a search out of a caller's keywords, and add those that are given.

    Raises:
      ShoalError: one of them is of a wrong type or out of bounds.
    """
    names = {field.name for field in dataclasses.fields(cls)} - given.keys() - {"path"}
    return cls(**given, **{name: settings.pop(name) for name in names & settings.keys()})


def _space(tables: Mapping[str, object], file: str | Path) -> Space:
    """Return the space of a caller's tables, or of a file.

    Raises:
      ShoalError: both are given, or it cannot be read.
    """
    given = {name: arguments.mapping(name, x) for name, x in tables.items() if x is not None}
    if file and given:
        raise ShoalError(f"space={str(file)!r} is given together with {', '.join(given)}; give one of them.")
    return from_words(file=file) if file else from_tables(given)
