"""The functions of `import shoal`: train, sweep, tune, evaluate, load, rollout and check."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from shoal.algos.catalogue import check_algorithm
from shoal.base.errors import SavingError, ShoalError
from shoal.config import arguments, struct
from shoal.envs.base import environment, parameter
from shoal.envs.checking import checker
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import describe_benchmark, describe_ruleset
from shoal.envs.grid.rulesets.generation import PUBLISHED as PUBLISHED_RULESETS
from shoal.envs.grid.rulesets.generation import GenerationConfig
from shoal.envs.registry import bounds_of, documentation, environments, make, parameters_of, register
from shoal.envs.suites.families import FAMILIES
from shoal.monitor import run_report as reports
from shoal.monitor.loggers.requests import LoggerFlags, Loggers, companions_of
from shoal.monitor.progress import Activity, format_duration
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import RunDirectory
from shoal.records.json_files import to_jsonable
from shoal.records.members import Variant
from shoal.records.run_config import RunConfig
from shoal.records.summary import describe_machine, interval_lines
from shoal.runs.plan import experiment as experiments
from shoal.runs.plan.experiment import Experiment, decide, defaults
from shoal.runs.plan.presets import environments as environments_with_presets
from shoal.runs.plan.presets import presets_of
from shoal.runs.policies import collect
from shoal.runs.policies.collect import RolloutResult
from shoal.runs.policies.cross_play import cross_play
from shoal.runs.policies.evaluate import evaluate, evaluate_run, render
from shoal.runs.policies.load import environment_for, environment_of, load, policy_of
from shoal.runs.policies.recording import Rendered
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import memory_limits
from shoal.runs.train.drive import Call, resume_run, run_experiment
from shoal.runs.train.placement import check_memory, devices_of, place
from shoal.runs.train.pure_training import make_train
from shoal.runs.train.results import TrainedRun
from shoal.search.api import call_of, pbt, replay, sweep, tune
from shoal.search.grouping import Request
from shoal.search.pbt import PbtOptions, read_tuned, run_pbt, run_replay
from shoal.search.search_report import check_has_best
from shoal.search.search_report import result_text as sweep_text
from shoal.search.space import Space, assignments
from shoal.search.space import from_words as space_from_words
from shoal.search.sweep import SearchOptions, Sweep, SweepOptions, run_sweep
from shoal.search.trial_runs import TuneOptions, run_tuning
from shoal.types import Environment, TimeStep, restart, transition
from shoal.xla import machine
from shoal.xla.jax_settings import require_platform

__all__ = [
    "FAMILIES",
    "PUBLISHED_RULESETS",
    "Activity",
    "Benchmark",
    "Call",
    "Environment",
    "Experiment",
    "GenerationConfig",
    "LoggerFlags",
    "Loggers",
    "PbtOptions",
    "Rendered",
    "Request",
    "RolloutResult",
    "RunConfig",
    "RunDirectory",
    "SavingError",
    "SearchOptions",
    "ShoalError",
    "Space",
    "Sweep",
    "SweepOptions",
    "TimeStep",
    "TrainedPolicy",
    "TrainedRun",
    "TuneOptions",
    "assignments",
    "bounds_of",
    "check",
    "check_has_best",
    "check_memory",
    "checkpoints",
    "companions_of",
    "cross_play",
    "decide",
    "defaults",
    "describe_benchmark",
    "describe_machine",
    "describe_ruleset",
    "devices_note",
    "documentation",
    "environment",
    "environments",
    "environments_with_presets",
    "evaluate",
    "evaluate_run",
    "format_duration",
    "have_all_failed",
    "interval_lines",
    "load",
    "make",
    "make_train",
    "parameter",
    "parameters_of",
    "pbt",
    "place",
    "presets_of",
    "read_tuned",
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
have_all_failed = reports.have_all_failed


@struct.on_host
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
    listeners: Sequence[Any] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Train an agent with several seeds at once and write a run directory; returns when training has ended.

    Args:
      environment: a name, `module:Name`, or an environment itself; may be left out with a `config`.
      algorithm: a name ("ppo", "mappo", "a2c", "reinforce", "dqn", "c51", "qr_dqn", "pqn"), `module:Name`, or a
        config itself.
      environment_parameters: of an environment given by name, such as `{"gravity": 9.0}`.
      config: a run directory or its `config.json`, whose settings are used.
      preset: whether the tuned settings of the environment are used, where there are any.
      start_from: a run from whose last parameters the seeds start, the k-th from its k-th (fine-tuning).
      from_step: the checkpoint of that run whose parameters are used instead: its environment steps, "best" or "last".
      variants: by labels, numbers that differ between members of one population: settings of the algorithm that are
        floats, arguments of the optimiser (`optimizer_args.eps`), parameters of the environment (`env.gravity`). Each
        variant is trained with every seed; None trains one, without a label.
      eval_env: parameters of the one environment in which all members are evaluated, where they are not its own.
      listeners: objects with methods `on_start`, `on_training`, `on_evaluation` or `on_end`, which are told of the run
        and may stop it.
      loggers: names ("wandb", "tensorboard", "mlflow", "trackio", "csv", `module:Name`) of what the numbers of the run
        are sent to, or arguments by name, such as `{"wandb": {"project": "cartpole"}}`.
      film_every: films the first seed's policy each time this many environment steps were made; 0 does not.
      **settings: any setting of `RunConfig` or of the algorithm's config by its name.
    Returns:
      the run; `run.summary["absolute"]["iqm"]` is its score, unless `absolute_episodes=0` leaves that out.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything compiles.
      SavingError: the run was trained, but a part of it could not be written; its `run` is the result.
    """
    call = call_of(progress, listeners, loggers, film_every)
    if environment is not None and not isinstance(environment, str):
        environment = environment_of(environment, {})
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
    return run_experiment(experiment, call)


def _variants_of(variants: Any) -> list[Variant] | None:
    """Return the variants of a population, each with the settings of a mapping by their labels."""
    if variants is None:
        return None
    return [Variant(x, arguments.mapping(x, y)) for x, y in arguments.mapping("variants", variants).items()]


@struct.on_host
def resume(
    run: str | Path | TrainedRun,
    *,
    from_step: int | str = "",
    environment: Environment | None = None,
    score: Callable[..., Any] | None = None,
    eval_metrics: Callable[..., Any] | None = None,
    listeners: Sequence[Any] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: Any,
) -> TrainedRun:
    """Resume a run from its newest sound checkpoint, or from memory; returns when training has ended.

    On the same machine and build its parameters, evaluations and metrics become, bit for bit, those of a run that was
    never interrupted. With `from_step` a new run starts from an older checkpoint, with its optimiser; `start_from` of
    `train` takes parameters alone.

    Args:
      run: its directory, or what `train` returned; only the latter can be resumed without checkpoints.
      from_step: the checkpoint that a new run starts from, by its environment steps, "best" or "last"; the new run has
        a directory of its own (`run_dir`), and the old one does not change. "" resumes the run itself.
      environment: that the run was trained in, where it cannot be made by a name.
      score: the function that chose the best policy, where it has no import name.
      eval_metrics: the function that adds metrics to evaluations, where it has no import name.
      listeners, loggers, film_every: as in `train`.
      **settings: those that change: `total_steps`, to resume a finished run, numbers of the algorithm that are
        data (such as its learning rate), and those of checkpoints and log points.
    Returns:
      the run, with the evaluations from before.
    Raises:
      ShoalError: there is no such run, none of its checkpoints can be used, it is finished, or a setting cannot
        change.
      SavingError: as `train`.
    """
    call = call_of(progress, listeners, loggers, film_every)
    finished = run.finished if isinstance(run, TrainedRun) else None
    if isinstance(run, TrainedRun):
        environment = run.environment if environment is None else environment
        run = run.path
    if environment is not None:
        environment = environment_of(environment, {})
    functions = {"score": score, "eval_metrics": eval_metrics}
    return resume_run(
        arguments.path("run", run),
        environment,
        functions={name: function for name, function in functions.items() if function is not None},
        overrides=settings,
        call=call,
        finished=finished,
        from_step=str(from_step),
    )


@struct.on_host
def checkpoints(run: str | Path) -> list[dict[str, Any]]:
    """List the checkpoints of a run, by environment steps.

    Returns:
      of each `steps`, `seconds` since it was written, `score` (the interquartile mean over seeds of the evaluation at
      which it was written, else None), `bytes`, and `problem`: the damage, or "".
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


@struct.on_host
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
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> RolloutResult:
    """Step many environments over all devices of the machine, by random actions or by a policy.

    The random keys depend on each environment's index: the same seed gives the same episodes on any number of
    devices, up to rounding.

    Args:
      environment: a name, `module:Name`, or an environment itself; None uses the policy's.
      policy: from `load`, a run directory, or what `train` or `sweep` returned; None draws actions uniformly, the
        legal ones where there are masks.
      num_steps: the number of steps of each; an episode that ends is followed by a new one.
      devices: the number of devices, 0 for all; as many as divide `num_envs` take part.
      save: an .npz file that the whole data is written to (see `shoal.runs.policies.collect.collect`).
      environment_parameters: those parameters of the environment whose names are also arguments here.
    Returns:
      steps per second, and the number, mean return and mean length of the episodes that ended.
    Raises:
      ShoalError: a size is too small, the environment's spaces are not the policy's, or the file cannot be written.
    """
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    num_envs = arguments.whole_number("num_envs", num_envs, 1, arguments.LARGEST_INDEX)
    num_steps = arguments.whole_number("num_steps", num_steps, 1, arguments.LARGEST_INDEX)
    seed, greedy = arguments.seed("seed", seed), arguments.boolean("greedy", greedy)
    file = None if save is None or save == "" else arguments.path("save", save)
    used_devices = devices_of(devices)
    policy = None if policy is None else policy_of(policy)
    environment = struct.as_arrays(_rollout_environment(policy, environment, parameters))
    bytes_each = memory_limits.episode_bytes(environment, policy.config if policy else None)
    memory_limits.check_count("num_envs", num_envs, bytes_each, "environments", used_devices[0])
    if file:
        bytes_each = num_envs * memory_limits.step_bytes(environment)
        memory_limits.check_count("num_steps", num_steps, bytes_each, "the saved data")
    with memory_limits.report_out_of_memory():
        return collect.collect(
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


@struct.on_host
def check(
    environment: str | Environment,
    *,
    keys: int = 16,
    steps: int = 128,
    max_steps: int = 10_000,
    seed: int = 0,
    ignore: Iterable[str] = (),
    progress: bool = False,
    environment_parameters: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> list[checker.Finding]:
    """Look for errors in an environment; prints nothing, unless `progress` is set.

    Args:
      keys: the number of environments that run at once, 2 or more.
      steps: the number of random steps of each in one block.
      max_steps: the number of random steps after which an episode counts as one that never ends.
      ignore: rules that are broken on purpose, such as "key-ignored" for a deterministic environment.
      progress: names a part that takes more than 5 seconds on standard error.
      environment_parameters: those parameters of the environment whose names are also arguments here.
    Returns:
      the findings, one sentence each; an empty list if there are none.
    Raises:
      ShoalError: there is no such environment or rule, or an argument is out of range.
    """
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    largest = arguments.LARGEST_INDEX
    keys, steps = (
        arguments.whole_number("keys", keys, 2, largest),
        arguments.whole_number("steps", steps, 2, largest),
    )
    max_steps, seed = arguments.whole_number("max_steps", max_steps, 2, largest), arguments.seed("seed", seed)
    if not isinstance(ignore, str | Iterable) or any(not isinstance(rule, str) for rule in ignore):
        raise ShoalError(f"ignore={arguments.short_repr(ignore)} does not name rules of the checker.")
    require_platform()
    env = environment_of(environment, parameters)
    return checker.check(
        env,
        keys=keys,
        steps=steps,
        max_steps=max_steps,
        seed=seed,
        ignore=ignore,
        progress=progress,
    )
