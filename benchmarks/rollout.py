"""Rolling a policy out in CartPole, Shoal against rejax: `python benchmarks/rollout.py`.

Two 64x64 tanh networks act and value; each side returns its whole trajectory with actions, log-probabilities
and what else its update needs.
"""

import sys

from harness import Side, compare_all, options, peer_python, report

WORKLOADS = ((1024, 32), (4, 4096))  # environments, steps; long enough that calling costs nothing


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/rollout.py")
    theirs = Side("rejax", peer_python("rejax"), "peers/rejax_rollout.py")
    report(compare_all(WORKLOADS, ours, [theirs], parsed), parsed)


if __name__ == "__main__":
    main()
