"""`shoal rollout ENV`: step many environments over all devices of the machine."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import ClassVar

from shoal.base.numbers import format_number, format_numbers
from shoal.cli import flags
from shoal.config.requirements import Needs, Table
from shoal.config.settings import check_fields, with_settings
from shoal.envs import describing
from shoal.monitor.progress import Activity
from shoal.records.json_files import json_text
from shoal.runs.plan.config_files import ROLLOUT, read_layers
from shoal.runs.policies.collect import RolloutResult
from shoal.runs.policies.rollout import rollout

COMMAND = "shoal rollout ENV [name=value ...]"
DESCRIPTION = (
    "Steps many environments at once, distributed over all devices, by actions drawn uniformly or by a policy; "
    "prints steps per second and the statistics of the episodes."
)


@dataclasses.dataclass(frozen=True)
class RolloutFlags:
    """The flags of a rollout."""

    repeated: ClassVar = ("config",)
    needs: ClassVar[Table] = {
        "greedy": (Needs("policy", other_than=("",), such_as="runs/first"),),
        "force": (Needs("parts", other_than=("",), such_as="data"),),
    }

    config: tuple[str, ...] = ()
    """Uses the environment of this run directory, file or recipe (mountain_car), and the flags in its table [rollout],
    over those of a config before it; ENV may be left out."""
    envs: int = 1024
    """Steps this many environments."""
    steps: int = 1000
    """Makes this many steps in each environment; an episode that ends is followed by a new one."""
    policy: str = ""
    """Acts by the best policy of this run directory, in its own environment if ENV is left out; without it at
    random.
    """
    greedy: bool = False
    """Acts by the policy's mode instead of a sample (policy)."""
    seed: int = 0
    """Sets the seed of the rollout."""
    devices: int = 0
    """Uses this many devices of the machine; 0 uses all."""
    save: str = ""
    """Writes the whole data to this file, such as data.npz: observations, actions, rewards, discounts, first, last."""
    parts: str = ""
    """Writes the same data to this directory in parts, which are complete one after the other; the same command
    continues a rollout that was interrupted."""
    force: bool = False
    """Replaces another rollout in the directory (parts)."""
    json: bool = False
    """Prints the statistics as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Make the steps, and print the statistics."""
    files = flags.values_of("--config", arguments)
    saved = read_layers(*files) if files else {}
    default = with_settings(RolloutFlags(), **saved.get(ROLLOUT, {}))
    check_fields(default)
    settings, words = flags.parse(COMMAND, DESCRIPTION, default, arguments)
    environment, parameters = flags.parse_environment(words)
    entry, world = saved.get("environment", {}), None
    if entry.get("name") and environment in ("", entry["name"]):
        world, environment, parameters = describing.rebuild(entry, parameters)[0], entry["name"], {}
    # A policy knows the environment that it was trained in.
    if not settings.policy:
        flags.require("environment", "shoal rollout CartPole-v1", environment)
    with Activity() as activity:
        activity.describe(f"making {settings.steps:,} steps in each of {settings.envs:,} environments")
        result = rollout(
            world or environment or None,
            settings.policy or None,
            num_envs=settings.envs,
            num_steps=settings.steps,
            seed=settings.seed,
            devices=settings.devices,
            save=settings.save or None,
            parts=settings.parts or None,
            overwrite=settings.force,
            greedy=settings.greedy,
            environment_parameters=parameters,
        )
    if result.devices_note:
        print(result.devices_note, file=sys.stderr)  # standard output may be JSON
    title = environment or f"the environment of {settings.policy}"
    title += f", the policy of {settings.policy}" if settings.policy else ", random actions"
    print(json_text(to_json(result)).rstrip() if settings.json else statistics_text(result, title))
    return 0


def statistics_text(result: RolloutResult, title: str) -> str:
    """Format the statistics in a few lines."""
    lines = [
        f"{title}: {result.num_envs:,} environments, {result.num_steps:,} steps each, "
        f"{result.devices} device{'s' * (result.devices > 1)}",
        f"  {result.steps_per_second:,.0f} steps/s   ({result.steps:,} in {result.seconds:.3g} s, after "
        f"{result.compile_seconds:.1f} s of compiling)",
    ]
    if result.episodes:
        lines.append(
            f"  {result.episodes:,} episodes ended: mean return {format_number(result.return_mean)}, mean length "
            f"{result.length_mean:.1f}, {result.terminated:.0%} terminated"
        )
        if result.agent_returns:
            of_agents = ", ".join(format_numbers(result.agent_returns))
            lines.append(f"  mean return of each of {len(result.agent_returns)} agents: {of_agents}")
    else:
        lines.append("  no episode ended")
    if result.path:
        lines.append(f"  {result.path}")
    return "\n".join(lines)


def to_json(result: RolloutResult) -> dict[str, object]:
    """Return the statistics by name, without the data; one without episodes is NaN."""
    names = [field.name for field in dataclasses.fields(result) if field.name != "data"]
    return {name: getattr(result, name) for name in names}
