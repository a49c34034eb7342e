"""Grid worlds that are seen in images, Shoal's batch against xminigrid's wrapper: `python benchmarks/images.py`.

Both sides step 1,024 environments with given actions, reset those that end, and return every image, reward and
end and the final state. xminigrid draws tiles of 32 x 32 pixels and no others; MiniGrid's own images, and Shoal's
unless told otherwise, have tiles of 8 x 8. Its images are drawn once a step, after its auto-reset.
"""

import sys

from harness import Side, compare, options, peer_python, report

NAME = "MiniGrid-EmptyRandom-6x6"
WORKLOADS = ((8, 2), (32, 2))  # pixels of our tiles' sides, steps of a call


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__, rounds=5)
    comparisons = []
    for size, num_steps in WORKLOADS:
        ours = Side(f"shoal, tiles of {size}", sys.executable, "own/grid.py", environment=f"{NAME}-RGB{size}")
        peer = peer_python("xminigrid")
        theirs = Side("xminigrid, tiles of 32", peer, "peers/xminigrid_grid.py", environment=f"{NAME}-RGB32")
        comparisons.append(compare(f"images, 1024 x {num_steps}", ours, theirs, 1024, num_steps, parsed))
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
