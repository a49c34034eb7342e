"""mpe/Spread-v0 alone, Shoal's batch against JaxMARL's MPE_simple_spread_v3: `python benchmarks/mpe.py`.

Both sides step 1,024 worlds of three agents with given random actions, reset those that end, and return every
observation, reward and end and the final state. A step is one of a world, in which all its agents act. Shoal starts a
new episode in a separate step, which counts; JaxMARL starts it within the last step of an episode.
JaxMARL runs as JAX compiles it by default, and once more with the flags that Shoal sets for its own backend.
"""

import sys

from harness import Side, compare_all, options, peer_python, report, with_shoal_settings

WORKLOADS = ((1024, 128),)  # worlds, steps


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/mpe.py")
    peer = Side("jaxmarl", peer_python("jaxmarl"), "peers/jaxmarl_mpe.py")
    report(compare_all(WORKLOADS, ours, with_shoal_settings(peer, one_thread=False), parsed), parsed)


if __name__ == "__main__":
    main()
