"""Grid worlds alone, Shoal's batch against xminigrid: `python benchmarks/grid.py`.

Both sides step 1,024 environments with given actions, reset those that end, and return every observation,
reward and end and the final state. XLand's worlds play 1,024 rulesets of up to ten rules, padded to ten; the
bytes are the same on both sides. xminigrid runs under its own auto-reset wrapper, as its documentation has it.
"""

import sys

from harness import Side, compare, options, peer_python, report

WORKLOADS = (("MiniGrid-Empty-8x8", 128), ("XLand-MiniGrid-R4-13x13", 64))  # steps of a call


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__, rounds=5)
    comparisons = []
    for name, num_steps in WORKLOADS:
        ours = Side("shoal", sys.executable, "own/grid.py", environment=name)
        theirs = Side("xminigrid", peer_python("xminigrid"), "peers/xminigrid_grid.py", environment=name)
        comparisons.append(compare(f"{name}, 1024 x {num_steps}", ours, theirs, 1024, num_steps, parsed))
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
