"""`shoal train ENV`: train with several seeds at once, print the result, write a run directory."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.cli import STARTED, flags, output
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.struct import parameter
from shoal.monitor.loggers.requests import LoggerFlags, companions_of
from shoal.monitor.run_report import have_all_failed, result_text
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.plan.defaults import Defaults, defaults
from shoal.runs.train.drive import run_experiment
from shoal.runs.train.planning import Caller
from shoal.runs.train.results import TrainedRun

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal train ENV [name=value ...]"
DESCRIPTION = (
    "Trains an agent with several seeds at once and writes a run directory. ENV is a name of `shoal envs` or "
    "module:Name; its parameters follow it. The defaults shown are those that would be used: of the "
    "settings' classes, of the preset of ENV, and of --config, in this order."
)


LOGGING = {"logging": (*(field.name for field in dataclasses.fields(LoggerFlags)), "film_every")}


@dataclasses.dataclass(frozen=True)
class OutputFlags(LoggerFlags):
    """The flags of every command that trains or resumes about what is shown, and to whom."""

    film_every: int = parameter(0, low=0, high=LARGEST_INDEX)
    """Draws a film of the first seed's policy each time this many environment steps were made, in a process of its own;
    0 draws none."""
    quiet: bool = False
    """Shows no progress; the result is still printed."""

    def call(
        self, import_seconds: float, command: str, arguments: Sequence[str], own_process: bool = True
    ) -> Caller:
        """Return how a command with some arguments calls for its runs."""
        loggers, command = companions_of(self.loggers()), flags.command_line(command, arguments)
        return Caller(not self.quiet, import_seconds, own_process, (), loggers, self.film_every, command)


Own = TypeVar("Own", bound=OutputFlags)  # the flags of one command


@dataclasses.dataclass(frozen=True)
class RunFlags(OutputFlags):
    """The flags of every command that trains: the algorithm, the origin of the settings, and the output."""

    repeated: ClassVar = ("config",)
    algorithm: str = "ppo"
    """Trains with this algorithm: ppo, mappo, a2c, reinforce, dqn, c51, rainbow, qr_dqn, pqn, sac, td3, ddpg, or
    module:Name."""
    config: tuple[str, ...] = ()
    """Uses the settings of this run directory, file or recipe (stoix_ff_ppo), over those of a config before it; ENV may
    be left out."""
    preset: bool = True
    """Uses the tuned settings of ENV, where there are any and no config is given."""
    eval_env: tuple[str, ...] = ()
    """Evaluates in another environment: ENV with other parameters, NAME=VALUE, or another one of the same spaces, by
    name and parameters."""

    def evaluation(self) -> dict[str, Any] | None:
        """Return where the policies are evaluated, as `decide` takes it."""
        name, parameters = flags.parse_environment(self.eval_env)
        return {"name": name, "parameters": parameters} if name else parameters or None


@dataclasses.dataclass(frozen=True)
class TrainFlags(RunFlags):
    """The flags that are not settings of a run."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": ("algorithm", "config", "from_", "from_step", "preset", "quiet"),
        "evaluation": ("eval_env",),
        "output": ("print",),
        **LOGGING,
    }

    from_: str = ""
    """Starts the seeds from the last parameters of this run, the k-th from its k-th (fine-tuning)."""
    from_step: str = ""
    """Starts from the parameters of this checkpoint of that run: its environment steps, best or last (from)."""
    print: Literal["result", "score", "final", "steps_per_second", "path"] = "result"
    """Prints this alone on standard output, for other programs, and the result on standard error: the absolute score of
    the run (score), that of the last policies, its speed, or its directory."""


def main(arguments: Sequence[str]) -> int:
    """Train, and print the result."""
    command, arguments = arguments, flags.join_repeated(arguments, ("--eval-env",))
    words = flags.leading_words(arguments)
    if not words:  # ENV is among the flags: read all flags once to find the words that are none
        # The page must wait, since it shows the defaults of the environment's preset.
        without_help = [word for word in arguments if word not in flags.HELP_FLAGS]
        words = _parse(without_help, environment="")[-1]
    known, choices, overrides, words = _parse(arguments, flags.parse_environment(words)[0])
    environment, parameters = flags.parse_environment(words)
    if not choices.config:
        flags.require("environment", "shoal train CartPole-v1", environment)
    experiment = decide(
        environment or None,
        algorithm=choices.algorithm,
        environment_parameters=parameters,
        config_file=choices.config,
        use_preset=choices.preset,
        started_from=choices.from_,
        from_step=choices.from_step,
        evaluation=choices.evaluation(),
        overrides=overrides,
        known=known,
    )
    run = experiment.run
    if choices.print in ("score", "final") and not (
        run.is_evaluated or (choices.print == "score" and run.num_absolute_episodes)
    ):
        raise ShoalError(f"print={choices.print!r} has nothing to print, since no such policy is evaluated.")
    trained = run_experiment(experiment, choices.call(IMPORT_SECONDS, COMMAND, command))
    return print_result(trained, choices.print, choices.quiet)


def print_result(trained: TrainedRun, alone: str = "result", quiet: bool = False) -> int:
    """Print the result of a run that was saved.

    Args:
      alone: what is printed alone on standard output (see `TrainFlags.print`).
      quiet: whether the result is left out then.
    Raises:
      ShoalError: no seed was trained to the end.
    """
    if alone == "result":
        print_summary(trained)
    else:
        if not quiet:
            signals.say(result_text(trained.summary, trained.path))
        output.print_result(value_alone(trained, alone), trained.path)
    if have_all_failed(trained.summary):
        unit = "members" if "members" in trained.summary else "seeds"
        names = ", ".join(str(x["seed"]) for x in trained.summary["failed"])
        raise ShoalError(
            f"all {unit} failed ({names}), since numbers were not finite; what they had learned before is in "
            f"{trained.path}."
        )
    return 0


def value_alone(trained: TrainedRun, name: str) -> str:
    """Return what `--print` prints: a number as `summary.json` has it, nan where that has none, or the path."""
    if name == "path":
        return str(trained.path)
    summary = trained.summary
    if name == "steps_per_second":
        return repr(float(summary[name]))
    score = summary["final"] if name == "final" else summary["absolute"] or summary["final"]
    return repr(float("nan" if score["iqm"] is None else score["iqm"]))


def print_summary(trained: TrainedRun) -> None:
    """Print the results in a summary."""
    output.print_result(result_text(trained.summary, trained.path), trained.path)


def _parse(arguments: Sequence[str], environment: str) -> tuple[Defaults, Any, dict[str, Any], list[str]]:
    """Read the flags of this command; see `parse_run`."""
    _, parameters = flags.parse_environment(_assignments(arguments))
    return parse_run(COMMAND, DESCRIPTION, TrainFlags, arguments, environment, parameters)


def parse_run(
    command: str,
    description: str,
    choices: Callable[..., Any],
    arguments: Sequence[str],
    environment: str,
    parameters: Mapping[str, Any],
) -> tuple[Defaults, Any, dict[str, Any], list[str]]:
    """Read the flags of a command that trains; which flags there are depends on a few of them, and on the environment.

    Args:
      choices: the class of the command's own flags.
      environment: its name, "" where it is not known.
    Returns:
      the defaults, the command's own flags, the settings that are given by name, and the words that are not flags.
    """
    before = defaults(
        environment,
        algorithm=flags.value_of("--algorithm", arguments),
        config_file=flags.values_of("--config", arguments),
        use_preset="--no-preset" not in (word.replace("_", "-") for word in arguments),
        environment_parameters=parameters,
        choices=flags.given(arguments),
    )
    own = functools.partial(choices, algorithm=before.algorithm)
    return before, *parse_settings(command, description, own, before, arguments)


def parse_settings(
    command: str,
    description: str,
    choices: Callable[[], Own],
    before: Defaults,
    arguments: Sequence[str],
) -> tuple[Own, dict[str, object], list[str]]:
    """Read the flags of a command whose flags are the settings of a run and its algorithm, and some of its own.

    Args:
      command: as `flags.parse` takes it.
      description: as `flags.parse` takes it.
      choices: makes the dataclass of the command's own flags.
      before: what the settings are where no flag gives them.
      arguments: the words after the command's name.

    Returns:
      the command's own flags, the settings that are given by name, and the words that are not flags.
    """
    algorithm, run, algorithm_config = before.algorithm, before.run, before.config
    # The name of a field, which a user's own `module:Name` cannot be.
    title = algorithm if algorithm.isidentifier() else "algorithm_settings"
    fields: list[tuple[str, type, object]] = [
        ("run", RunConfig, dataclasses.field(default=run)),
        (title, type(algorithm_config), dataclasses.field(default=algorithm_config)),
    ]
    own = choices()
    joined = dataclasses.make_dataclass("Flags", fields, bases=(type(own),), frozen=True)
    default: Any = joined(**{field.name: getattr(own, field.name) for field in dataclasses.fields(own)})
    values, words = flags.parse_values(command, description, default, arguments)
    flags.check_parameters(words, default)
    own_names = {field.name for field in dataclasses.fields(own)}
    parsed = dataclasses.replace(own, **{name: values.pop(name) for name in own_names & values.keys()})
    return parsed, values, words


def _assignments(arguments: Sequence[str]) -> list[str]:
    """Return the words name=value at any place: parameters of the environment, and perhaps values of flags.

    Only the last one of each name, since two flags may have values of one name.
    """
    words = [word for word in arguments if all(word.partition("=")) and not word.startswith("-")]
    return list({word.partition("=")[0]: word for word in words}.values())
