"""Populations of PPO on CartPole, against `vmap` of rejax and single runs: `python benchmarks/populations.py`.

Four epochs of four minibatches, two 64x64 tanh networks, without evaluation. Shoal's members have different learning
rates and are spread over two host devices, on each of which they run one after the other. rejax's are seeds under
`vmap`, as its documentation trains several, as JAX compiles it by default and once more with the settings that Shoal
makes for itself. The last comparison of each size is with single runs of Shoal, one after the other. Steps are of all
members together.
"""

import sys

from harness import Side, compare, options, peer_python, report, with_shoal_settings

WORKLOADS = ((4, 128), (64, 128))  # environments, steps
MEMBERS = (1, 8, 32, 64, 256)


def main() -> None:
    """Compares for each workload and number of members, and prints the table."""
    parsed = options(__doc__, rounds=5)
    peer = Side("rejax", peer_python("rejax"), "peers/rejax_training.py")
    solo = Side("shoal, single runs", sys.executable, "own/training.py")
    comparisons = []
    for num_envs, num_steps in WORKLOADS:
        for members in MEMBERS:
            ours = Side("shoal", sys.executable, "own/training.py", 1 if members == 1 else 2, members=members)
            theirs = [side._replace(members=members) for side in with_shoal_settings(peer)]
            for side in [*theirs, *([solo] if members > 1 else [])]:
                label = f"{members} members, {num_envs} x {num_steps}"
                comparisons.append(compare(label, ours, side, num_envs, num_steps, parsed))
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
