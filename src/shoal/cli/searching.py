"""The flags that the commands which search over settings share, and how they are read."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from shoal.cli import flags, output
from shoal.cli.train import LOGGING, RunFlags, parse_run
from shoal.config.requirements import Needs, Table
from shoal.search.grouping import Request
from shoal.search.search_report import check_has_best
from shoal.search.search_report import result_text as sweep_text
from shoal.search.space import Space
from shoal.search.space import from_words as space_from_words
from shoal.search.sweep import SearchOptions, Sweep

Options = TypeVar("Options", bound=SearchOptions)

REPEATED = ("--grid", "--random", "--tune", "--start", "--eval-env")  # flags that may be given several times


def groups_of(*most_used: str) -> dict[str, tuple[str, ...]]:
    """Return the flags of a command that searches by the titles of its help, those that it alone has first."""
    most_used = (*most_used, "algorithm", "config", "preset", "quiet")
    return {"most used": most_used, "evaluation": ("eval_env",), **LOGGING}


@dataclasses.dataclass(frozen=True)
class SearchFlags(RunFlags):
    """The flags that are not settings of a run."""

    needs: ClassVar[Table] = {"min_steps": (Needs("halving", other_than=(0,), such_as="3"),)}
    grid: tuple[str, ...] = ()
    """Trains every one of these values, NAME=V1,V2,..., with every value of the other grids; may be given several
    times."""
    random: tuple[str, ...] = ()
    """Draws the values of a setting: NAME=uniform:LOW:HIGH, log:LOW:HIGH, one-minus-log:LOW:HIGH, int:LOW:HIGH or
    choice:A:B:...; may be given several times."""
    space: str = ""
    """Reads the space from this TOML file, with tables grid, random and where (conditions)."""


def read_search(
    command: str,
    description: str,
    choices: type,
    options: type[Options],
    example: str,
    arguments: Sequence[str],
) -> tuple[Request, Space, Options, RunFlags]:
    """Read the flags of a command that searches.

    Returns:
      the request, the space, the options, and the command's own flags.
    """
    parsed, request = read_request(command, description, choices, example, arguments)
    space = space_from_words(parsed.grid, parsed.random, parsed.space)
    fields = {field.name: getattr(parsed, field.name) for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    overrides = dict(request.overrides)
    fields["path"] = overrides.pop("run_dir", "")
    return dataclasses.replace(request, overrides=overrides), space, options(**fields), parsed


def read_request(
    command: str, description: str, choices: Callable[..., Any], example: str, arguments: Sequence[str]
) -> tuple[Any, Request]:
    """Read the flags of a command that trains several settings; see `read_search`.

    Returns:
      the command's own flags, and the request.
    """
    arguments = flags.join_repeated(arguments, REPEATED)
    environment, parameters = flags.parse_environment(flags.leading_words(arguments))
    _, parsed, overrides, words = parse_run(command, description, choices, arguments, environment, parameters)
    environment, parameters = flags.parse_environment(words)
    if not parsed.config:
        flags.require("environment", example, environment)
    request = Request(
        environment or None,
        parsed.algorithm,
        parameters,
        parsed.config,
        parsed.preset,
        parsed.evaluation(),
        overrides,
    )
    return parsed, request


def print_result(searched: Sweep) -> int:
    """Print the result of a search.

    Raises:
      ShoalError: there is no best setting, since all failed.
    """
    output.print_result(sweep_text(searched.summary, searched.path), searched.path)
    check_has_best(searched.summary, searched.path)
    return 0
