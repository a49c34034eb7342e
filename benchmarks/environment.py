"""CartPole alone, Shoal's batch against gymnax: `python benchmarks/environment.py`.

Both sides step N environments with given actions, reset those that end, and return every observation,
reward and end and the final state, so that nothing can be optimised away. The actions are random, so an
episode lasts some twenty steps: resets are as frequent as they ever are. gymnax runs as JAX compiles it by default,
and once more with the flags that Shoal sets for its own backend.
"""

import sys

from harness import Side, compare_all, options, peer_python, report, with_shoal_settings

# Environments, steps; long enough that calling costs nothing.
WORKLOADS = ((4, 4096), (64, 1024), (1024, 128))


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/environment.py")
    peer = Side("gymnax", peer_python("rejax"), "peers/gymnax_environment.py")
    report(compare_all(WORKLOADS, ours, with_shoal_settings(peer, one_thread=False), parsed), parsed)


if __name__ == "__main__":
    main()
