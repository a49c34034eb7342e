"""The flags that the commands which search over settings share, and how they are read."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from shoal import api
from shoal.cli import flags, output
from shoal.cli.train import parse_settings
from shoal.config.requirements import Needs, Table

REPEATED = ("--grid", "--random", "--tune", "--start", "--eval-env")  # flags that may be given several times


@dataclasses.dataclass(frozen=True)
class SearchChoices:
    """The flags that are no settings of a run."""

    needs: ClassVar[Table] = {"min_steps": (Needs("halving", other_than=(0,), such_as="3"),)}
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": (
            *("grid", "random", "space", "objective", "confirm_seeds", "halving", "min_steps"),
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
    objective: str = "absolute"
    """Chooses the best settings by this metric of an evaluation of their best policies; absolute is the mean return."""
    confirm_seeds: int = 10
    """Trains the best three settings again on this many seeds that were never used; 0 leaves that out."""
    halving: int = 0
    """Stops settings early: at each rung one of so many goes on, by the score of an evaluation; 0 trains all to the
    end."""
    min_steps: int = 0
    """Sets the environment steps of each member before the first rung; the next are at halving times as many."""
    eval_env: tuple[str, ...] = ()
    """Evaluates all members in an environment with this parameter, NAME=VALUE; may be given several times."""
    algorithm: str = "ppo"
    """Trains with this algorithm: ppo, mappo, a2c, reinforce, or a config of your own as module:Name."""
    config: str = ""
    """Uses the settings of this run directory or config.json; then ENV may be left out."""
    preset: bool = True
    """Uses the tuned settings of ENV, where there are any and no config is given."""
    quiet: bool = False
    """Shows no progress; the result is still printed."""

    @property
    def judging(self) -> dict[str, Any]:
        """The options by which any search judges."""
        return {name: getattr(self, name) for name in ("objective", "confirm_seeds", "halving", "min_steps")}


def read_search(
    command: str, description: str, choices: Callable[..., Any], example: str, arguments: Sequence[str]
) -> tuple[Any, api.Request, Any]:
    """Read the flags of a command that searches.

    Args:
      command: as `flags.parse` takes it.
      description: as `flags.parse` takes it.
      choices: makes the dataclass of the command's own flags, from the name of the algorithm.
      example: of the whole command, for the message where no environment is named.
      arguments: the words after the command's name.

    Returns:
      the command's own flags, what is trained, and the space.
    """
    parsed, request = read_request(command, description, choices, example, arguments)
    return parsed, request, api.space_from_words(parsed.grid, parsed.random, parsed.space)


def read_request(
    command: str, description: str, choices: Callable[..., Any], example: str, arguments: Sequence[str]
) -> tuple[Any, api.Request]:
    """Read the flags of a command that trains several settings; see `read_search`.

    Returns:
      the command's own flags, and what is trained.
    """
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
    parsed, overrides, words = parse_settings(
        command, description, lambda: choices(algorithm=defaults[0]), defaults, arguments
    )
    environment, parameters = flags.parse_environment(words)
    if not parsed.config:
        flags.require("environment", example, environment)
    request = api.Request(
        environment or None,
        parsed.algorithm,
        parameters,
        parsed.config or None,
        parsed.preset,
        flags.parse_environment(parsed.eval_env)[1] or None,
        overrides,
    )
    return parsed, request


def print_result(searched: api.Sweep) -> int:
    """Print the result of a search.

    Raises:
      ShoalError: there is no best setting, since all failed.
    """
    output.print_result(api.sweep_text(searched.summary, searched.path), searched.path)
    api.check_has_best(searched.summary, searched.path)
    return 0
