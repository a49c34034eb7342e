"""`shoal envs`: list the environments, or the parameters of one."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from shoal import api
from shoal.cli import flags

COMMAND = "shoal envs [ENV]"
DESCRIPTION = (
    "Lists the environments, and for which of them Shoal has a preset, tuned settings that `shoal train` uses; or "
    "describes one: its spaces and its parameters with their defaults and bounds. Those of JaxMARL, jaxmarl/NAME, are "
    "described, and not listed."
)


@dataclasses.dataclass(frozen=True)
class EnvsFlags:
    """This command has no options."""


def main(arguments: Sequence[str]) -> int:
    """List all environments, or describe one."""
    _, words = flags.parse(COMMAND, DESCRIPTION, EnvsFlags(), arguments)
    if words:
        print(describe(*flags.parse_environment(words)))
        return 0
    names = api.environments()
    width, tuned = max(map(len, names)) + 2, set(api.environments_with_presets())
    for name in names:
        mark = "preset" if name in tuned else ""
        print(f"{name:<{width}}{mark:<8}{api.documentation(name).partition(chr(10))[0]}")
    return 0


def describe(name: str, parameters: dict[str, Any]) -> str:
    """Describe an environment and its parameters."""
    declared_parameters = api.parameters_of(name)
    environment = api.make(name, **parameters)
    lines = [
        f"{name}: {api.documentation(name)}".rstrip(": "),
        "",
        f"observation  {environment.observation_space}",
        f"action       {environment.action_space}",
        f"presets      {', '.join(api.presets_of(name)) or 'none: training uses the defaults'}",
        "",
        f"parameters, such as `shoal train {name} {next(iter(declared_parameters))}=...`:",
    ]
    values = {
        parameter: "(required)" if value is inspect.Parameter.empty else repr(value)
        for parameter, declared in declared_parameters.items()
        for value in [parameters.get(parameter, declared.default)]
    }
    bounds, width = api.bounds_of(name), max(map(len, declared_parameters)) + 2
    column = max(len(values[parameter]) for parameter in bounds) + 2
    for parameter, value in values.items():
        bound = str(bounds.get(parameter, ""))
        lines.append(f"  {parameter:<{width}}{value:<{column}}{bound}".rstrip())
    return "\n".join(lines)
