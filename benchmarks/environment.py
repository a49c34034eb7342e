"""CartPole alone, Shoal's batch against gymnax: `python benchmarks/environment.py`.

Both sides step N environments with given actions, reset those that end, and return every observation,
reward and end and the final state, so that nothing can be optimised away. The actions are random, so an
episode lasts some twenty steps: resets are as frequent as they ever are.
"""

import sys

from harness import Side, compare, options, peer_python, report

NUM_STEPS = 128
BATCHES = (4, 64, 1024)


def main() -> None:
    """Compares at each batch size and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/environment.py")
    theirs = Side("gymnax", peer_python("rejax"), "peers/gymnax_environment.py")
    report([compare(f"{n} x {NUM_STEPS}", ours, theirs, n, NUM_STEPS, parsed) for n in BATCHES], parsed)


if __name__ == "__main__":
    main()
