"""Kills real `shoal train` processes at random moments, and compares what they end with: `make soak`.

Every process is started again by the same command until its run is finished. The run must then equal one that nobody
killed, bit for bit: parameters, scores, the leaves of the last checkpoint, every line of `metrics.jsonl`. After each
kill every checkpoint must be sound, and the newest no older than before. `tests/durability/killing.py` has the details;
the tests do the same with fewer kills.
"""

import argparse
import collections
import dataclasses
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "durability"))

import killing

ROUND = 5  # kills of one variant before the next one's turn
KINDS = ("any moment", "after a save", "inside a save")


@dataclasses.dataclass
class Row:
    """One variant of the table: its flags, the run that nobody killed, and what happened."""

    name: str
    arguments: Sequence[str]
    wanted: int
    reference: killing.Reference | None = None
    tally: killing.Tally = dataclasses.field(default_factory=killing.Tally)
    rounds: int = 0
    found: str = ""

    @property
    def is_done(self) -> bool:
        """Whether it has had its kills, or differs."""
        return bool(self.found) or self.tally.total >= self.wanted


def make_round(row: Row, folder: Path, seed: int) -> None:
    """Kill runs of a variant a few times; the first round also makes the run that nobody kills."""
    (folder / row.name).mkdir(exist_ok=True)
    place = killing.Workplace(folder / row.name, folder / "cache")
    try:
        if row.reference is None:
            row.reference = killing.make_reference(place, row.arguments, "reference")
        kills = min(ROUND, row.wanted - row.tally.total)
        name, seed = f"run-{row.rounds}", seed + row.rounds
        killing.soak(place, row.arguments, name, row.reference, kills, seed, tally=row.tally)
    except AssertionError as error:
        row.found = str(error)
    row.rounds += 1
    print(f"{row.name}: {row.tally.total} kills, {row.tally.runs} runs compared {row.found}", flush=True)


def table(rows: Sequence[Row]) -> str:
    """Return the counts as a table in Markdown."""
    heading = (
        "variant",
        "kills",
        *KINDS,
        "before the first checkpoint",
        "resumed",
        "runs compared",
        "differences",
    )
    lines = [heading, ["---"] * len(heading)]
    total: collections.Counter = collections.Counter()
    for row in rows:
        counts = {
            "kills": row.tally.total,
            **{kind: row.tally.kills[kind] for kind in KINDS},
            "before": row.tally.before,
            "resumed": row.tally.resumed,
            "runs": row.tally.runs,
            "differences": int(bool(row.found)),
        }
        total.update(counts)
        lines.append((row.name, *counts.values()))
    lines.append(("all", *(total[name] for name in counts)))
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> int:
    """Run the variants in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of all variants together")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so long")
    parser.add_argument("--seed", type=int, default=0, help="of the moments at which processes are killed")
    chosen = parser.parse_args()
    share, rest = divmod(chosen.kills, len(killing.VARIANTS))
    rows = [
        Row(name, killing.train(**settings), share + (k < rest))
        for k, (name, settings) in enumerate(killing.VARIANTS.items())
    ]
    start_time = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while not all(row.is_done for row in rows):
            for k, row in enumerate(rows):
                if not row.is_done and time.monotonic() - start_time < chosen.seconds:
                    make_round(row, Path(folder), chosen.seed + 1000 * k)
            if time.monotonic() - start_time >= chosen.seconds:
                break
    print(f"\n{table(rows)}\n\n{time.monotonic() - start_time:.0f} seconds, seed {chosen.seed}")
    for row in rows:
        if row.found:
            print(f"\n{row.name}: {row.found}")
    return int(any(row.found for row in rows))


if __name__ == "__main__":
    sys.exit(main())
