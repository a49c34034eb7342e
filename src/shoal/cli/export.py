"""`shoal export RUN FILE`: write a policy as a file that other programs run."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.cli import flags
from shoal.config.requirements import Needs, Table
from shoal.export.api import export
from shoal.export.check import DifferentPolicy

COMMAND = "shoal export RUN policy.onnx"
DESCRIPTION = (
    "Writes the policy of a run, or of the best setting of a sweep, as one step with its memory and normaliser: "
    "policy.onnx for ONNX's runtimes, or policy.jaxexport for programs with JAX; beside it policy.json and policy.md "
    "say what it is given and returns."
)


@dataclasses.dataclass(frozen=True)
class ExportFlags:
    """The flags of an export."""

    needs: ClassVar[Table] = {"which": (Needs("checkpoint", ("",)),)}

    which: Literal["best", "last"] = "best"
    """Writes the policy with the best evaluation score (best), or the last one (last)."""
    checkpoint: str = ""
    """Writes the policy of this checkpoint instead: its environment steps, best or last."""
    seed: int = -1
    """Writes the policy of this seed; -1 writes the one with the best evaluation in training."""
    label: str = ""
    """Writes a policy of this label, in a run or a sweep of several settings."""
    batch: int = 1
    """Acts on this many observations at each step."""
    sample: bool = False
    """Samples actions, of random numbers that the file is given as its input noise."""
    check: int = 0
    """Plays this many steps of the environment, compares the file with the policy, and writes it only if both act
    alike; 0 compares nothing."""
    force: bool = False
    """Replaces the files if they exist."""


def main(arguments: Sequence[str]) -> int:
    """Write the files, and print their names; 1 if the file would not be the same policy."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, ExportFlags(), arguments)
    example = "shoal export runs/CartPole-v1-ppo-20260131-093000 policy.onnx"
    flags.require("run", example, "".join(words[:1]))
    flags.require("file", example, "".join(words[1:2]))
    if len(words) > 2:
        raise ShoalError(f"shoal export takes one run and one file, and not {words[2]!r} too.")
    choices = dataclasses.asdict(settings) | {
        "checkpoint": settings.checkpoint or None,
        "seed": None if settings.seed < 0 else settings.seed,
        "label": settings.label or None,
    }
    try:
        exported = export(words[0], words[1], **choices)
    except DifferentPolicy as error:
        signals.say(f"shoal: {error}")
        return 1
    path = exported.path
    beside = f"{path.with_suffix('.json').name} and {path.with_suffix('.md').name} beside it"
    print(f"{path} ({path.stat().st_size / 1000:,.0f} kB), {beside}")
    print(f"  {', '.join(exported.description['inputs'])} -> {', '.join(exported.description['outputs'])}")
    if exported.check is not None:
        print(f"  the same policy: {exported.check}")
    return 0
