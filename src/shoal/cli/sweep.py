"""`shoal sweep ENV`: train many settings as populations, rank them, and train the best again."""

import dataclasses
import time
from collections.abc import Sequence
from typing import ClassVar

from shoal import api
from shoal.cli import STARTED, flags
from shoal.cli.train import parse_settings
from shoal.needs import Needs, Table

IMPORT_SECONDS = time.perf_counter() - STARTED

COMMAND = "shoal sweep ENV [name=value ...]"
DESCRIPTION = (
    "Trains many settings of an algorithm, each with several seeds, as populations of few compiled programs; ranks "
    "them, trains the best three again on new seeds, and writes a directory with the results. Settings that are "
    "numbers differ within a program, others divide the sweep into several. The same command goes on with a sweep "
    "that was interrupted, and extends it with a larger --samples. All other flags are those of `shoal train`."
)
REPEATED = ("--grid", "--random", "--eval-env")  # flags that may be given several times


@dataclasses.dataclass(frozen=True)
class Choices:
    """The flags that are no settings of a run."""

    needs: ClassVar[Table] = {"min_steps": (Needs("halving", other_than=(0,), such_as="3"),)}
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": (
            *("grid", "random", "space", "samples", "sobol", "objective", "confirm_seeds", "halving"),
            *("min_steps", "sweep_dir"),
            *("algorithm", "config", "preset", "quiet"),
        ),
        "evaluation and logging": ("eval_env",),
    }

    grid: tuple[str, ...] = ()
    """Trains every one of these values, NAME=V1,V2,..., with every value of the other grids; may be given several
    times."""
    random: tuple[str, ...] = ()
    """Draws the values of a setting: NAME=uniform:LOW:HIGH, log:LOW:HIGH, one-minus-log:LOW:HIGH, int:LOW:HIGH or
    choice:A:B:...; may be given several times."""
    space: str = ""
    """Takes the space from this TOML file, with tables grid, random and where (conditions)."""
    samples: int = 1
    """Draws this many samples of the random settings, for each combination of the grid."""
    sample_seed: int = 0
    """Sets the seed of the samples."""
    sobol: bool = False
    """Draws samples that cover the space evenly (scrambled Sobol points)."""
    objective: str = "absolute"
    """Chooses the best settings by this metric of an evaluation of their best policies; absolute is the mean return."""
    confirm_seeds: int = 10
    """Trains the best three settings again on this many seeds that were never used; 0 leaves that out."""
    halving: int = 0
    """Stops settings early: at each rung one of so many goes on, by the score of an evaluation; 0 trains all to the
    end."""
    min_steps: int = 0
    """Sets the environment steps of each member before the first rung; the next are at halving times as many."""
    sweep_dir: str = ""
    """Writes the sweep to this directory, or goes on with the one there; without it to a new one under runs/."""
    eval_env: tuple[str, ...] = ()
    """Evaluates all members in an environment with this parameter, NAME=VALUE; may be given several times."""
    algorithm: str = "ppo"
    """Trains with this algorithm: ppo, a2c, reinforce, or a config of your own as module:Name."""
    config: str = ""
    """Uses the settings of this run directory or config.json; then ENV may be left out."""
    preset: bool = True
    """Uses the tuned settings of ENV, where there are any and no config is given."""
    quiet: bool = False
    """Shows no progress; the result is still printed."""


def main(arguments: Sequence[str]) -> int:
    """Sweep, and print the best settings."""
    arguments = flags.join_repeated(arguments, REPEATED)
    words = flags.leading_words(arguments)
    defaults = api.defaults(
        flags.parse_environment(words)[0],
        algorithm=flags.value_of("--algorithm", arguments),
        config_file=flags.value_of("--config", arguments) or None,
        use_preset="--no-preset" not in (word.replace("_", "-") for word in arguments),
        environment_parameters=flags.parse_environment(words)[1],
        choices={"network": network} if (network := flags.value_of("--network", arguments)) else {},
    )
    choices, overrides, words = parse_settings(
        COMMAND, DESCRIPTION, lambda: Choices(algorithm=defaults[0]), defaults, arguments
    )
    environment, parameters = flags.parse_environment(words)
    if not choices.config:
        flags.require("environment", "shoal sweep CartPole-v1 --grid learning_rate=1e-4,1e-3", environment)
    request = api.Request(
        environment or None,
        choices.algorithm,
        parameters,
        choices.config or None,
        choices.preset,
        flags.parse_environment(choices.eval_env)[1] or None,
        overrides,
    )
    options = api.SweepOptions(
        samples=choices.samples,
        sample_seed=choices.sample_seed,
        sobol=choices.sobol,
        objective=choices.objective,
        confirm_seeds=choices.confirm_seeds,
        halving=choices.halving,
        min_steps=choices.min_steps,
        path=choices.sweep_dir,
    )
    space = api.space_from_words(choices.grid, choices.random, choices.space)
    call = api.Call(progress=not choices.quiet, import_seconds=IMPORT_SECONDS)
    swept = api.run_sweep(request, space, options, call)
    print(api.sweep_text(swept.summary, swept.path))
    return 0
