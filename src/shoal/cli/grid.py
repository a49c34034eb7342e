"""`shoal grid ...`: draw rulesets for grid worlds, or show them."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

from shoal.base.errors import ShoalError, nearest
from shoal.cli import flags, list_commands
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.descriptions import describe_benchmark, describe_ruleset
from shoal.envs.grid.rulesets.generation import PUBLISHED as PUBLISHED_RULESETS
from shoal.envs.grid.rulesets.generation import GenerationConfig
from shoal.monitor.progress import Activity

COMMANDS = {
    "make-benchmark": ("SETTING", "draw rulesets and write them to a file"),
    "show": ("FILE [N]", "describe a file of rulesets, or its ruleset of index N"),
}
HELP = """usage: shoal grid COMMAND ...

Rulesets for the XLand-MiniGrid worlds.

commands:
{commands}

`shoal grid COMMAND --help` lists the flags of a command. To train on the rulesets:
  shoal grid make-benchmark small
  shoal train XLand-MiniGrid-R1-9x9 ruleset=small.npz:train
"""
MAKE_DESCRIPTION = (
    "Draws different rulesets in the way of XLand-MiniGrid's benchmarks. SETTING is one of theirs: "
    f"{', '.join(PUBLISHED_RULESETS)}; the defaults shown are its own."
)
SHOW_DESCRIPTION = "Describes in words a file of rulesets, or its ruleset of index N, from 0."


@dataclasses.dataclass(frozen=True)
class MakeSettings:
    """The flags of `shoal grid make`."""

    rulesets: int = 10_000
    """Draws this many rulesets."""
    held_out: float = 0.2
    """Keeps this share of the rulesets (0 to 1), chosen at random, for evaluation, as the part named held-out."""
    seed: int = 0
    """Sets the seed of all draws."""
    save: str = ""
    """Writes the rulesets to this file; without it to SETTING.npz."""


@dataclasses.dataclass(frozen=True)
class MakeFlags:
    """The settings of a file of rulesets and of how they are drawn, each a group of flags."""

    file: MakeSettings
    drawing: GenerationConfig


@dataclasses.dataclass(frozen=True)
class ShowSettings:
    """This command has no options."""


def main(arguments: Sequence[str]) -> int:
    """Run one of the commands."""
    name = arguments[0] if arguments else "--help"
    if name in flags.HELP_FLAGS:
        print(HELP.format(commands=list_commands(COMMANDS)), end="")
        raise SystemExit(0)
    if name not in COMMANDS:
        raise ShoalError(
            f"there is no command 'grid {name}'; there are {', '.join(COMMANDS)}{nearest(name, COMMANDS)}."
        )
    return (make_benchmark if name == "make-benchmark" else show)(arguments[1:])


def make_benchmark(arguments: Sequence[str]) -> int:
    """Draw rulesets, write the file, and print its content."""
    setting = next(iter(flags.leading_words(arguments)), "")
    published = PUBLISHED_RULESETS
    if setting and setting not in published:
        raise ShoalError(
            f"there is no setting {setting!r}; there are {', '.join(published)}{nearest(setting, published)}."
        )
    # Looked up before the flags are read, whose defaults it decides.
    default = MakeFlags(MakeSettings(), published.get(setting, GenerationConfig()))
    settings, words = flags.parse("shoal grid make-benchmark SETTING", MAKE_DESCRIPTION, default, arguments)
    flags.require("setting", "shoal grid make-benchmark small", "".join(words[:1]))
    if words != [setting]:
        raise ShoalError(f"{words[-1]!r} is one word too many; the flags follow the setting {words[0]!r}.")
    start_time = time.perf_counter()
    with Activity() as activity:
        activity.describe(f"drawing {settings.file.rulesets:,} rulesets")
        benchmark = Benchmark.make(
            settings.drawing, settings.file.rulesets, seed=settings.file.seed, held_out=settings.file.held_out
        )
    seconds = time.perf_counter() - start_time
    path = Path(settings.file.save or f"{setting}.npz")
    benchmark.save(path)
    print(f"{path}: {describe_benchmark(benchmark)}\n{len(benchmark) / seconds:,.0f} rulesets/s")
    return 0


def show(arguments: Sequence[str]) -> int:
    """Print a ruleset, or the content of a file."""
    _, words = flags.parse("shoal grid show FILE [N]", SHOW_DESCRIPTION, ShowSettings(), arguments)
    benchmark = Benchmark.load(flags.require("file", "shoal grid show small.npz 0", "".join(words[:1])))
    if len(words) == 1:
        print(describe_benchmark(benchmark))
        return 0
    if len(words) > 2 or not words[1].isdecimal():
        raise ShoalError(f"{words[-1]!r} is not a ruleset's number; give one from 0 to {len(benchmark) - 1}.")
    print(describe_ruleset(benchmark.ruleset(int(words[1]))))
    return 0
