"""`shoal.train` and `shoal.resume`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.algos.catalogue import check_algorithm
from shoal.config import arguments
from shoal.config.traced import on_host
from shoal.envs.given import environment_of
from shoal.monitor.listeners import check_listeners
from shoal.monitor.loggers.requests import Loggers, check_loggers, companions_of
from shoal.records.members import Variant
from shoal.runs.plan.decide import decide
from shoal.runs.train.drive import resume_run, run_experiment
from shoal.runs.train.planning import Caller
from shoal.runs.train.results import TrainedRun
from shoal.types import AlgorithmConfig, Environment

# What train, sweep, tune and pbt take: a name, or itself; None is that of a config.
AnyEnvironment = str | Environment | None


@on_host
def train(
    environment: str | Environment | None = None,
    *,
    algorithm: str | type | AlgorithmConfig = "",
    environment_parameters: Mapping[str, Any] | None = None,
    config: str | Path | Sequence[str | Path] | None = None,
    preset: bool = True,
    start_from: str | Path = "",
    from_step: int | str = "",
    variants: Mapping[str, Mapping[str, float]] | None = None,
    eval_env: str | Environment | Mapping[str, Any] | None = None,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
) -> TrainedRun:
    """Train an agent with several seeds at once and write a run directory; returns when training has ended.

    Args:
      environment: a name, `module:Name`, or itself; may be left out with a `config`.
      algorithm: a name ("ppo", "mappo", "a2c", "reinforce", "dqn", "c51", "rainbow", "qr_dqn", "pqn", "sac", "td3",
        "ddpg"), `module:Name`, or a config itself.
      environment_parameters: of an environment given by name, such as `{"gravity": 9.0}`.
      config: a run directory or its `config.json`, whose settings are used; or a file of settings, by its path or the
        name of a recipe; or several of them, each over those before it.
      preset: whether the environment's tuned settings are used, if there are any.
      start_from: a run from whose last parameters the seeds start, the k-th from its k-th (fine-tuning).
      from_step: the checkpoint of that run whose parameters are used instead: its environment steps, "best" or "last".
      variants: by labels, numbers that differ between members of one population: settings of the algorithm that are
        floats, arguments of the optimiser (`optimizer_args.eps`), parameters of the environment (`env.gravity`). Each
        variant is trained with every seed; None trains one, without a label.
      eval_env: the environment in which the policies of all members are evaluated, where that is not the one in which
        they are trained: other parameters of this one, such as `{"gravity": 20.0}`, a name, an environment itself, or a
        dictionary of `name` and `parameters`. It has the same spaces.
      listeners: objects with `on_start`, `on_training`, `on_evaluation` or `on_end`, which are told and may stop it.
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
    by_label = arguments.mapping("variants", variants).items()
    experiment = decide(
        **given(environment, algorithm, environment_parameters, config, preset, eval_env),
        started_from=str(arguments.path("start_from", start_from)) if start_from != "" else "",
        from_step=str(from_step),  # a number of steps, or a word
        variants=None if variants is None else [Variant(x, arguments.mapping(x, y)) for x, y in by_label],
        overrides=settings,
    )
    return run_experiment(experiment, call)


def given(
    environment: Any, algorithm: Any, environment_parameters: Any, config: Any, preset: Any, eval_env: Any
) -> dict[str, Any]:
    """Return the arguments of `decide` that functions of `import shoal` take alike, by its names for them.

    Raises:
      ShoalError: one of them is of a wrong type.
    """
    check_algorithm(algorithm)
    files = config if isinstance(config, list | tuple) else [] if config is None else [config]
    return {
        "environment": environment,
        "algorithm": algorithm,
        "environment_parameters": arguments.mapping("environment_parameters", environment_parameters),
        "config_file": [arguments.path("config", file) for file in files],
        "use_preset": arguments.boolean("preset", preset),
        "evaluation": arguments.mapping("eval_env", eval_env) if isinstance(eval_env, Mapping) else eval_env,
    }


@on_host
def resume(
    run: str | Path | TrainedRun,
    *,
    from_step: int | str = "",
    environment: Environment | None = None,
    eval_env: Environment | None = None,
    score: Callable[..., object] | None = None,
    eval_metrics: Callable[..., object] | None = None,
    listeners: Sequence[object] = (),
    loggers: Loggers | Sequence[str] = (),
    film_every: int = 0,
    progress: bool = True,
    **settings: object,
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
      eval_env: that it is evaluated in, where it cannot be made by a name.
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
    # What the run has in memory, which it resumes from where it has no checkpoints.
    finished = run.finished if isinstance(run, TrainedRun) else None
    if isinstance(run, TrainedRun):
        environment = run.environment if environment is None else environment
        run = run.path
    if environment is not None:  # a name too, to which `decide` would give the run's own parameters
        environment = environment_of(environment, {})
    functions = {"score": score, "eval_metrics": eval_metrics}
    return resume_run(
        arguments.path("run", run),
        environment,
        evaluation=eval_env,
        functions={name: function for name, function in functions.items() if function is not None},
        overrides=settings,
        call=call,
        finished=finished,
        from_step=str(from_step),
    )


def call_of(
    progress: bool, listeners: Sequence[object], loggers: Loggers | Sequence[str], film_every: int
) -> Caller:
    """Return how a function calls for its runs, from its arguments.

    Raises:
      ShoalError: one of them is of a wrong type.
    """
    return Caller(
        progress=arguments.boolean("progress", progress),
        listeners=check_listeners(listeners),
        loggers=companions_of(check_loggers(loggers)),
        film_every=arguments.whole_number("film_every", film_every, 0, arguments.LARGEST_INDEX),
    )
