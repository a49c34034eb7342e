"""PPO on CartPole, Shoal against rejax: `python benchmarks/training.py`.

Four epochs of four minibatches, two 64x64 tanh networks, clip 0.2, without evaluation: the reference
workload of 1,024 environments x 32 steps and small ones of 4 x 128 and 4 x 32. Shoal on one device (all cores as
threads) and, for the reference workload, with the environments spread over two host devices. rejax runs as JAX
compiles it by default, and once more with the settings that Shoal makes for itself: its flags and compiler options,
and for the small workloads a single thread. The last comparison of each workload is with Shoal's own plain forms
(`SHOAL_PLAIN=1`). Neither workload is meant to solve the task: see `solving.py`.
"""

import sys

from harness import Side, compare_all, options, peer_python, report, with_shoal_settings

WORKLOADS = ((1024, 32, 1), (1024, 32, 2), (4, 128, 1), (4, 32, 1))  # environments, steps, devices of Shoal's


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    sides = with_shoal_settings(Side("rejax", peer_python("rejax"), "peers/rejax_training.py"))
    comparisons = []
    for num_envs, num_steps, devices in WORKLOADS:
        name = "shoal" if devices == 1 else f"shoal, {devices} devices"
        ours = Side(name, sys.executable, "own/training.py", devices)
        plain = ours._replace(name="shoal, plain forms", plain="1")
        comparisons += compare_all([(num_envs, num_steps)], ours, [*sides, plain], parsed)
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
