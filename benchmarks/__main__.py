"""Runs benchmarks one after the other: `python -m benchmarks [NAME ...] [FLAGS]`; all of them by default."""

import subprocess
import sys
from pathlib import Path

NAMES = ("environment", "grid", "mpe", "rollout", "training", "solving", "populations", "startup", "ops")


def main() -> None:
    """Runs each named script with the remaining flags, and ends with the worst of their statuses."""
    names = [argument for argument in sys.argv[1:] if argument in NAMES] or list(NAMES)
    flags = [argument for argument in sys.argv[1:] if argument not in NAMES]
    worst = 0
    for name in names:
        print(f"\n## {name}\n", flush=True)
        script = Path(__file__).with_name(f"{name}.py")
        worst = max(worst, subprocess.run([sys.executable, str(script), *flags], check=False).returncode)
    sys.exit(worst)


if __name__ == "__main__":
    main()
