"""The functions of `import shoal`: train, evaluate, load, rollout and check."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from shoal import arguments, trees
from shoal import experiment as experiments
from shoal.envs.base import environment, parameter
from shoal.envs.checking import checker
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import describe_benchmark, describe_ruleset
from shoal.envs.grid.rulesets.generation import PUBLISHED as PUBLISHED_RULESETS
from shoal.envs.grid.rulesets.generation import GenerationConfig
from shoal.envs.registry import bounds_of, documentation, environments, make, parameters_of, register
from shoal.errors import SavingError, ShoalError
from shoal.experiment import Experiment, decide, defaults
from shoal.loading import environment_for, environment_of, load, policy_of
from shoal.pairings import cross_play
from shoal.placement import check_memory, devices_of, place
from shoal.runtime import collecting, limits, machine
from shoal.runtime.acting import TrainedPolicy
from shoal.runtime.collecting import RolloutResult
from shoal.runtime.config import RunConfig
from shoal.runtime.disk.checkpoints import Checkpoints
from shoal.runtime.disk.directory import RunDirectory
from shoal.runtime.disk.json_files import to_jsonable
from shoal.runtime.members import Variant
from shoal.runtime.show import reports
from shoal.runtime.show.progress import Activity, format_duration
from shoal.runtime.show.recording import Rendered
from shoal.sweeps.pbt import PbtOptions, run_pbt, run_replay
from shoal.sweeps.plan import Request
from shoal.sweeps.reporting import result_text as sweep_text
from shoal.sweeps.space import Space, assignments
from shoal.sweeps.space import from_tables as space_from_tables
from shoal.sweeps.space import from_words as space_from_words
from shoal.sweeps.sweep import Options as SweepOptions
from shoal.sweeps.sweep import Sweep, run_sweep
from shoal.sweeps.trial_runs import TuneOptions, run_tuning
from shoal.trained import evaluate, evaluate_run, render
from shoal.training import Call, TrainedRun, resume_run, run_experiment
from shoal.types import Environment, TimeStep, restart, transition
from shoal.user_code import reports_user_code

__all__ = [
    "PUBLISHED_RULESETS",
    "Activity",
    "Benchmark",
    "Call",
    "Environment",
    "Experiment",
    "GenerationConfig",
    "PbtOptions",
    "Rendered",
    "Request",
    "RolloutResult",
    "RunConfig",
    "SavingError",
    "ShoalError",
    "Sweep",
    "SweepOptions",
    "TimeStep",
    "TrainedPolicy",
    "TrainedRun",
    "TuneOptions",
    "assignments",
    "bounds_of",
    "check",
    "check_memory",
    "checkpoints",
    "cross_play",
    "decide",
    "defaults",
    "describe_benchmark",
    "describe_ruleset",
    "devices_note",
    "documentation",
    "environment",
    "environments",
    "evaluate",
    "evaluate_run",
    "format_duration",
    "load",
    "make",
    "parameter",
    "parameters_of",
    "pbt",
    "place",
    "register",
    "render",
    "replay",
    "report_text",
    "restart",
    "result_text",
    "resume",
    "resume_run",
    "rollout",
    "run_experiment",
    "run_pbt",
    "run_replay",
    "run_sweep",
    "run_tuning",
    "space_from_words",
    "sweep",
    "sweep_text",
    "to_jsonable",
    "train",
    "transition",
    "tune",
]

report_text, result_text, devices_note = checker.report, reports.result_text, machine.devices_note


@reports_user_code
def train(
    environment: str | Environment | None = None,
    *,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: bool = True,
    start_from: str | Path = "",
    from_step: int | str = "",
    variants: Mapping[str, Mapping[str, float]] | None = None,
    eval_env: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train an agent with several seeds at once and write a run directory; returns when training has ended.

    Args:
      environment: a name, `module:Name`, or an environment itself; may be left out with a `config`.
      algorithm: a name ("ppo", "a2c", "reinforce"), `module:Name`, or a config itself.
      environment_parameters: of an environment given by name, such as `{"gravity": 9.0}`.
      config: a run directory or its `config.json`, whose settings are used.
      preset: whether the tuned settings of the environment are used, where there are any.
      start_from: a run from whose last parameters the seeds start, the k-th from its k-th (fine-tuning).
      from_step: the checkpoint of that run whose parameters are used instead: its environment steps, "best" or "last".
      variants: by labels, numbers that differ between members of one population: settings of the algorithm that are
        floats, arguments of the optimiser (`optimizer_args.eps`), parameters of the environment (`env.gravity`). Each
        variant is trained with every seed; None trains one, without a label.
      eval_env: parameters of the one environment in which all members are evaluated, where they are not its own.
      progress: whether anything is printed.
      **settings: any setting of `RunConfig` or of the algorithm's config by its name.
    Returns:
      the run; `run.summary["absolute"]["iqm"]` is its score.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
      SavingError: the run was trained, but a part of it could not be written; its `run` is the result.
    """
    if environment is not None and not isinstance(environment, str):
        environment_of(environment, {})
    check_algorithm(algorithm)
    experiment = experiments.decide(
        environment,
        algorithm=algorithm,
        environment_parameters=arguments.mapping("environment_parameters", environment_parameters),
        config_file=None if config is None else arguments.path("config", config),
        use_preset=arguments.boolean("preset", preset),
        started_from=str(arguments.path("start_from", start_from)) if start_from != "" else "",
        from_step=str(from_step),
        variants=_variants_of(variants),
        evaluation_parameters=None if eval_env is None else arguments.mapping("eval_env", eval_env),
        overrides=settings,
    )
    return run_experiment(experiment, Call(progress=arguments.boolean("progress", progress)))


def _variants_of(variants: Any) -> list[Variant] | None:
    """Return the variants of a population, each with the settings of a mapping by their labels.

    Raises:
      ShoalError: it is no such mapping.
    """
    if variants is None:
        return None
    return [Variant(x, arguments.mapping(x, y)) for x, y in arguments.mapping("variants", variants).items()]


@reports_user_code
def sweep(
    environment: str | Environment | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
    where: Mapping[str, Any] | None = None,
    space: str | Path = "",
    samples: int = 1,
    sample_seed: int = 0,
    sobol: bool = False,
    objective: str = "absolute",
    confirm_seeds: int = 10,
    sweep_dir: str | Path = "",
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: bool = True,
    eval_env: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Sweep:
    """Train many settings, each with several seeds, rank them, and train the best three again on new seeds.

    The same call with a `sweep_dir` goes on with a sweep that was interrupted; a larger `samples` extends it.

    Args:
      environment: as in `train`.
      grid: by name, the values of a setting, each of which is trained with every value of the others. Names are those
        of settings, of the environment's parameters (`env.gravity`) and of the optimiser's arguments
        (`optimizer_args.eps`).
      random: by name, the distribution of a setting, such as "log:1e-5:1e-2", or a list of choices.
      where: by name, the values that other settings must have for a setting to be a part of a member.
      space: a TOML file with tables of these names, instead of them.
      samples: of the random settings, for each combination of the grid.
      sample_seed: of the samples.
      sobol: whether samples cover the space evenly (scrambled Sobol points).
      objective: "absolute", the mean return of the best policies, or any metric of an evaluation of them.
      confirm_seeds: the number of new seeds with which the best three settings train again; 0 leaves that out.
      sweep_dir: the sweep's directory; empty for a new one under `runs/`.
      algorithm: as in `train`.
      environment_parameters: as in `train`.
      config: as in `train`.
      preset: as in `train`.
      eval_env: parameters of the one environment in which all members are evaluated, where they are not its own.
      progress: whether anything is printed.
      **settings: of `train`, for all members alike, such as `seeds`.
    Returns:
      the sweep; `sweep.summary["members"]` has the settings sorted by score, and `sweep.policy()` is the best policy.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
    """
    request = _request(environment, algorithm, environment_parameters, config, preset, eval_env, settings)
    options = SweepOptions(
        samples=arguments.whole_number("samples", samples, 1),
        sample_seed=arguments.seed("sample_seed", sample_seed),
        sobol=arguments.boolean("sobol", sobol),
        objective=arguments.text("objective", objective),
        confirm_seeds=arguments.whole_number("confirm_seeds", confirm_seeds, 0),
        path=str(sweep_dir),
    )
    searched = _space({"grid": grid, "random": random, "where": where}, space)
    return run_sweep(request, searched, options, Call(progress=arguments.boolean("progress", progress)))


@reports_user_code
def tune(
    environment: str | Environment | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    random: Mapping[str, Any] | None = None,
    where: Mapping[str, Any] | None = None,
    space: str | Path = "",
    trials: int = 64,
    batch: int = 16,
    proposal_seed: int = 0,
    storage: str | Path = "",
    study: str = "",
    objective: str = "absolute",
    confirm_seeds: int = 10,
    tune_dir: str | Path = "",
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: bool = True,
    eval_env: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> Sweep:
    """Train settings that Optuna proposes, batch by batch, each with several seeds, and the best three again.

    The same call with a `tune_dir` goes on with a tuning that was interrupted; a larger `trials` extends it. All
    arguments that are not named here are those of `sweep`.

    Args:
      environment: as in `train`.
      grid: by name, the values among which Optuna chooses.
      random: by name, the distribution of a setting, such as "log:1e-5:1e-2", or a list of choices.
      where: as in `sweep`.
      space: as in `sweep`.
      trials: the number that the study has in the end, those of other processes counted.
      batch: the number of trials that train at once.
      proposal_seed: of the proposals.
      storage: the path of a journal file or the URL of a database; empty for a journal in the directory.
      study: the name of the study in the storage; empty for "shoal".
      objective: as in `sweep`; the value of a trial is the interquartile mean of its seeds.
      confirm_seeds: as in `sweep`.
      tune_dir: the directory; empty for a new one under `runs/`.
      algorithm: as in `train`.
      environment_parameters: as in `train`.
      config: as in `train`.
      preset: as in `train`.
      eval_env: as in `sweep`.
      progress: whether anything is printed.
      **settings: of `train`, for all trials alike, such as `seeds`.
    Returns:
      what `sweep` returns, of the trials of this directory.
    Raises:
      ShoalError: Optuna is missing, or a setting cannot work, in one sentence, before anything compiles.
    """
    request = _request(environment, algorithm, environment_parameters, config, preset, eval_env, settings)
    options = TuneOptions(
        trials=arguments.whole_number("trials", trials, 1),
        batch=arguments.whole_number("batch", batch, 1),
        proposal_seed=arguments.seed("proposal_seed", proposal_seed),
        storage=str(storage),
        study=arguments.text("study", study),
        objective=arguments.text("objective", objective),
        confirm_seeds=arguments.whole_number("confirm_seeds", confirm_seeds, 0),
        path=str(tune_dir),
    )
    searched = _space({"grid": grid, "random": random, "where": where}, space)
    return run_tuning(request, searched, options, Call(progress=arguments.boolean("progress", progress)))


@reports_user_code
def pbt(
    environment: str | Environment | None = None,
    *,
    tune: Mapping[str, Any],
    start: Mapping[str, Any] | None = None,
    ready_every: int,
    members: int = 16,
    algorithm: str | Any = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | None = None,
    preset: bool = True,
    eval_env: Mapping[str, Any] | None = None,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train a population whose worst fifth copies the best fifth, and changes its settings (population-based training).

    The directory is that of any run; `resume` goes on with one that was interrupted.

    Args:
      environment: as in `train`.
      tune: by name, the distribution of a setting of the algorithm that is a float, such as "log:1e-5:1e-2": its
        bounds, and where new values are drawn.
      start: of some of them, the distribution of the members' first values, within these bounds.
      ready_every: environment steps of a member between two exchanges, each of which follows an evaluation.
      members: of the population, 5 or more.
      algorithm: as in `train`.
      environment_parameters: as in `train`.
      config: as in `train`.
      preset: as in `train`.
      eval_env: parameters of the one environment in which all members are evaluated, where they are not its own.
      progress: whether anything is printed.
      **settings: of `train`, for all members alike.
    Returns:
      the run; `run.summary["best"]` is the best member, and `schedule.json` in its directory what `replay` trains with.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
    """
    request = _request(environment, algorithm, environment_parameters, config, preset, eval_env, settings)
    options = PbtOptions(
        tune=arguments.mapping("tune", tune),
        start=arguments.mapping("start", start),
        ready_every=ready_every,
        members=members,
    )
    return run_pbt(request, options, Call(progress=arguments.boolean("progress", progress)))


@reports_user_code
def replay(run: str | Path | TrainedRun, *, progress: bool = True, **settings: Any) -> TrainedRun:
    """Train new seeds with the schedule of settings that the best policy of population-based training descends from.

    Args:
      run: from `pbt`, or its directory.
      progress: whether anything is printed.
      **settings: of `train` that differ, such as `seeds`.
    Returns:
      the run, in a directory of its own.
    Raises:
      ShoalError: the run has no schedule, or a setting cannot work.
    """
    path = run.path if isinstance(run, TrainedRun) else arguments.path("run", run)
    return run_replay(path, settings, Call(progress=arguments.boolean("progress", progress)))


def _request(
    environment: Any,
    algorithm: Any,
    environment_parameters: Any,
    config: Any,
    preset: Any,
    eval_env: Any,
    settings: Mapping[str, Any],
) -> Request:
    """Return what a search trains, from a caller's arguments.

    Raises:
      ShoalError: one of them is of a wrong type.
    """
    if environment is not None and not isinstance(environment, str):
        environment_of(environment, {})
    check_algorithm(algorithm)
    return Request(
        environment,
        algorithm,
        arguments.mapping("environment_parameters", environment_parameters),
        None if config is None else arguments.path("config", config),
        arguments.boolean("preset", preset),
        None if eval_env is None else arguments.mapping("eval_env", eval_env),
        settings,
    )


def _space(tables: Mapping[str, Any], file: str | Path) -> Space:
    """Return the space of a caller's tables, or of a file.

    Raises:
      ShoalError: both are given, or it cannot be read.
    """
    given = {name: arguments.mapping(name, x) for name, x in tables.items() if x is not None}
    if file and given:
        raise ShoalError(f"space={str(file)!r} is given beside {', '.join(given)}; give one of them.")
    return space_from_words(file=file) if file else space_from_tables(given)


@reports_user_code
def resume(
    run: str | Path | TrainedRun,
    *,
    environment: Environment | None = None,
    score: Callable | None = None,
    eval_metrics: Callable | None = None,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Go on with a run from its newest sound checkpoint, or from memory; returns when training has ended.

    On the same machine and build its parameters, evaluations and metrics become, bit for bit, those of a run that was
    never interrupted.

    Args:
      run: its directory, or what `train` returned; only the latter can go on without checkpoints.
      environment: that the run was trained in, where it cannot be made by a name.
      score: the function that chose the best policy, where it has no import name.
      eval_metrics: the function that adds metrics to evaluations, where it has no import name.
      progress: whether anything is printed.
      **settings: those that change: `total_steps`, to go on from a finished run, numbers of the algorithm that are
        data (such as its learning rate), and those of checkpoints and log points.
    Returns:
      the run, with the evaluations from before.
    Raises:
      ShoalError: there is no such run, none of its checkpoints can be used, it is finished, or a setting cannot
        change.
      SavingError: as `train`.
    """
    finished = run.finished if isinstance(run, TrainedRun) else None
    if isinstance(run, TrainedRun):
        environment = run.environment if environment is None else environment
        run = run.path
    if environment is not None:
        environment_of(environment, {})
    functions = {"score": score, "eval_metrics": eval_metrics}
    return resume_run(
        arguments.path("run", run),
        environment,
        functions={name: function for name, function in functions.items() if function is not None},
        overrides=settings,
        call=Call(progress=arguments.boolean("progress", progress)),
        finished=finished,
    )


@reports_user_code
def checkpoints(run: str | Path) -> list[dict[str, Any]]:
    """List the checkpoints of a run, by environment steps.

    Args:
      run: its directory.
    Returns:
      of each `steps`, `seconds` since it was written, `score` (the interquartile mean over seeds of the evaluation at
      which it was written, else None), `bytes`, and `problem`: what is damaged, or "".
    Raises:
      ShoalError: there is no such run.
    """
    stored = Checkpoints(RunDirectory.open(arguments.path("run", run)).path)
    rows = []
    for info in map(stored.info, stored.steps()):
        score = info.record.get("iqm")
        rows.append(
            {
                "steps": info.steps,
                "seconds": info.seconds,
                "score": None if score is None else float(score),
                "bytes": info.bytes,
                "problem": info.problem,
            }
        )
    return rows


def check_algorithm(algorithm: Any) -> None:
    """Require that an algorithm is a name, a config or the class of a config.

    Raises:
      ShoalError: it is none of these.
    """
    is_config = dataclasses.is_dataclass(algorithm) and hasattr(algorithm, "algorithm")
    if not isinstance(algorithm, str) and not is_config:
        raise ShoalError(
            f"algorithm={arguments.short_repr(algorithm)} is neither a name such as 'ppo' nor an algorithm's config: a "
            "dataclass with a method `algorithm`."
        )


@reports_user_code
def rollout(
    environment: str | Environment | None,
    policy: TrainedPolicy | str | Path | None = None,
    *,
    num_envs: int = 1024,
    num_steps: int = 1000,
    seed: int = 0,
    devices: int = 0,
    save: str | Path | None = None,
    greedy: bool = False,
    **parameters: Any,
) -> RolloutResult:
    """Step many environments over all devices of the machine, by random actions or by a policy.

    The random keys depend on each environment's index: the same seed gives the same episodes on any number of
    devices, up to rounding.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the policy's.
      policy: from `load`, or a run directory; None draws actions uniformly, the legal ones where there are masks.
      num_envs: the number of environments.
      num_steps: the number of steps of each; an episode that ends is followed by a new one.
      seed: of the rollout.
      devices: the number of devices, 0 for all; as many as divide `num_envs` take part.
      save: an .npz file that the whole data is written to (see `shoal.runtime.collecting.collect`).
      greedy: whether a policy takes its mode instead of a sample.
      **parameters: of the environment, if it is given by name.
    Returns:
      steps per second, and the number, mean return and mean length of the episodes that ended.
    Raises:
      ShoalError: a size is too small, the environment's spaces are not the policy's, or the file cannot be written.
    """
    num_envs = arguments.whole_number("num_envs", num_envs, 1, arguments.LARGEST_INDEX)
    num_steps = arguments.whole_number("num_steps", num_steps, 1, arguments.LARGEST_INDEX)
    seed, greedy = arguments.seed("seed", seed), arguments.boolean("greedy", greedy)
    file = None if save is None or save == "" else arguments.path("save", save)
    used_devices = devices_of(devices)
    policy = None if policy is None else policy_of(policy)
    environment = trees.as_arrays(_rollout_environment(policy, environment, parameters))
    bytes_each = limits.episode_bytes(environment, policy.config if policy else None)
    limits.check_count("num_envs", num_envs, bytes_each, "environments", used_devices[0])
    if file:
        bytes_each = num_envs * limits.step_bytes(environment)
        limits.check_count("num_steps", num_steps, bytes_each, "the saved data")
    with limits.report_out_of_memory():
        return collecting.collect(
            environment,
            (policy.config, policy.parameters) if policy else (),
            jax.random.key(seed),
            used_devices,
            num_envs=num_envs,
            num_steps=num_steps,
            greedy=greedy,
            save=file,
        )


def _rollout_environment(
    policy: TrainedPolicy | None, environment: str | Environment | None, parameters: Mapping[str, Any]
) -> Environment:
    """Return the environment of a rollout: the one that is named, or that of the policy.

    Raises:
      ShoalError: neither is given, it breaks the contract, or its spaces are not the policy's.
    """
    if policy is not None:
        return environment_for(policy, environment, parameters)
    if environment is None:
        raise ShoalError("no environment was named; give one such as CartPole-v1, or a policy.")
    name = environment if isinstance(environment, str) else ""
    environment = environment_of(environment, parameters)
    require_contract(environment, name)
    return environment


@reports_user_code
def check(
    environment: str | Environment,
    *,
    keys: int = 16,
    steps: int = 128,
    max_steps: int = 10_000,
    seed: int = 0,
    ignore: Iterable[str] = (),
    seconds: float = 60.0,
    progress: bool = False,
    **parameters: Any,
) -> list[checker.Finding]:
    """Look for errors in an environment; prints nothing, unless `progress` is set.

    Args:
      environment: a name, `module:Name`, or an environment itself.
      keys: the number of environments that run at once, 2 or more.
      steps: the number of random steps of each in one block.
      max_steps: the number of random steps after which an episode counts as one that never ends.
      seed: of all keys and actions.
      ignore: rules that are broken on purpose, such as "key-ignored" for a deterministic environment.
      seconds: the limit of one part of the check, such as tracing reset, after which it is stopped with a
        finding; above 0.
      progress: whether a line on standard error names an activity that takes more than 5 seconds.
      **parameters: of the environment, if it is given by name.
    Returns:
      the findings, one sentence each; an empty list if there are none.
    Raises:
      ShoalError: there is no such environment or rule, or an argument is out of range.
    """
    largest = arguments.LARGEST_INDEX
    keys, steps = (
        arguments.whole_number("keys", keys, 2, largest),
        arguments.whole_number("steps", steps, 2, largest),
    )
    max_steps, seed = arguments.whole_number("max_steps", max_steps, 2, largest), arguments.seed("seed", seed)
    if not isinstance(ignore, str | Iterable) or any(not isinstance(rule, str) for rule in ignore):
        raise ShoalError(f"ignore={arguments.short_repr(ignore)} is no rule of the checker, nor several.")
    env = environment_of(environment, parameters)
    return checker.check(
        env,
        keys=keys,
        steps=steps,
        max_steps=max_steps,
        seed=seed,
        ignore=ignore,
        seconds=seconds,
        progress=progress,
    )
