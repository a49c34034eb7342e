"""`shoal envs`: list the environments, or the parameters of one."""

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from shoal.cli import flags
from shoal.envs.registry import bounds_of, documentation, environments, make, parameters_of
from shoal.envs.suites.families import FAMILIES
from shoal.records.json_files import json_text
from shoal.runs.plan.presets import environments as environments_with_presets
from shoal.runs.plan.presets import presets_of

COMMAND = "shoal envs [ENV]"
DESCRIPTION = (
    "Lists the environments, and for which of them Shoal has a preset, tuned settings that `shoal train` uses; or "
    "describes one: its spaces and its parameters with their defaults and bounds. The environments of other packages "
    "follow Shoal's own, each with its package, and how it is installed where it is not."
)

JSON_TYPES = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class EnvsFlags:
    """The flags of the list."""

    json: bool = False
    """Prints everything as JSON."""


def main(arguments: Sequence[str]) -> int:
    """List all environments, or describe one."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, EnvsFlags(), arguments)
    if words:
        description = describe(*flags.parse_environment(words))
        print(json_text(to_json(description), str).rstrip() if settings.json else page(description))
    else:
        listed = listed_environments()
        print(json_text(listed).rstrip() if settings.json else table(listed))
    return 0


def listed_environments() -> list[dict[str, Any]]:
    """Return of each environment its name, the first line of its documentation, and whether it has a preset.

    Those of other packages follow: `about` is the package's title, and there are also `package`, its name in an import,
    `installed`, and `install`, the command for it. No package is imported.
    """
    tuned, own = set(environments_with_presets()), environments()
    listed: list[dict[str, Any]] = [
        {"name": name, "about": documentation(name).partition("\n")[0], "has_preset": name in tuned}
        for name in own
    ]
    for family in FAMILIES.values():
        package = {
            "about": family.title,
            "package": family.package,
            "installed": family.is_installed,
            "install": family.install,
        }
        names = [family.prefix + name for name in family.names]
        listed += [{"name": name, "has_preset": name in tuned} | package for name in names if name not in own]
    return listed


def table(listed: list[dict[str, Any]]) -> str:
    """Format a line for each environment; the names of other packages, which are longer, have a wider column."""
    groups = [[x for x in listed if ("package" in x) == of_packages] for of_packages in (False, True)]
    lines = []
    for group in groups:
        width = max((len(x["name"]) for x in group), default=0) + 2
        for x in group:
            note = "" if x.get("installed", True) else f", not installed: {x['install']}"
            preset = "preset" if x["has_preset"] else ""
            lines.append(f"{x['name']:<{width}}{preset:<8}{x['about']}{note}".rstrip())
    return "\n".join(lines)


def describe(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Describe an environment: its documentation, spaces (as text), presets, and parameters.

    Of each parameter there are `value`, the default where none is given, None where one must be; `required`; and
    `bounds` as text, "" where there are none.
    """
    environment, bounds, declared = make(name, **parameters), bounds_of(name), parameters_of(name)
    named = {parameter: x for parameter, x in declared.items() if x.kind is not x.VAR_KEYWORD}
    values = {parameter: x.default for parameter, x in named.items()} | parameters
    return {
        "name": name,
        "about": documentation(name),
        "observation": str(environment.observation_space),
        "action": str(environment.action_space),
        "presets": list(presets_of(name)),
        "parameters": {
            parameter: {
                "value": None if value is inspect.Parameter.empty else value,
                "required": value is inspect.Parameter.empty,
                "bounds": str(bounds.get(parameter, "")),
            }
            for parameter, value in values.items()
        },
    }


def to_json(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description with values that JSON has; those of other types, such as distributions, as text."""
    parameters = {
        name: x | {"value": x["value"] if isinstance(x["value"], JSON_TYPES) else repr(x["value"])}
        for name, x in description["parameters"].items()
    }
    return description | {"parameters": parameters}


def page(description: dict[str, Any]) -> str:
    """Format the description of an environment."""
    name, parameters = description["name"], description["parameters"]
    lines = [
        f"{name}: {description['about']}".rstrip(": "),
        "",
        f"observation  {description['observation']}",
        f"action       {description['action']}",
        f"presets      {', '.join(description['presets']) or 'none: training uses the defaults'}",
        "",
        f"parameters, such as `shoal train {name} {next(iter(parameters))}=...`:",
    ]
    values = ["(required)" if x["required"] else repr(x["value"]) for x in parameters.values()]
    bounds = [x["bounds"] for x in parameters.values()]
    width = max(map(len, parameters)) + 2
    # Long values without bounds, such as lists, would move the bounds of all others to the right.
    column = max((len(x) for x, bound in zip(values, bounds, strict=True) if bound), default=0) + 2
    for parameter, value, bound in zip(parameters, values, bounds, strict=True):
        lines.append(f"  {parameter:<{width}}{value:<{column}}{bound}".rstrip())
    return "\n".join(lines)
