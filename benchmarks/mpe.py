"""mpe/Spread-v0 alone, Shoal's batch against JaxMARL's MPE_simple_spread_v3: `python benchmarks/mpe.py`.

Both sides step 1,024 worlds of three agents with given random actions, reset those that end, and return every
observation, reward and end and the final state. A step is one of a world, in which all its agents act. Shoal starts a
new episode in a separate step, which counts; JaxMARL starts it within the last step of an episode.
JaxMARL runs as JAX compiles it by default, and once more with the flags that Shoal sets for its own backend.
"""

import sys

from harness import Side, compare, options, peer_python, report

WORKLOADS = ((1024, 128),)  # worlds, steps


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/mpe.py")
    peer = peer_python("jaxmarl"), "peers/jaxmarl_mpe.py"
    sides = (
        Side("jaxmarl", *peer),
        Side("jaxmarl, Shoal's flags", *peer, same_backend=True, one_thread=False),
    )
    report([compare(f"{n} x {t}", ours, side, n, t, parsed) for n, t in WORKLOADS for side in sides], parsed)


if __name__ == "__main__":
    main()
