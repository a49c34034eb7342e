"""Recurrent PPO on a grid world, Shoal against xminigrid's own baseline: `python benchmarks/recurrent.py`.

MiniGrid-Empty-6x6, 256 environments x 16 steps, one epoch of 16 minibatches, whole rollouts of 16 environments in
each; one encoder and GRU of 256 for actor and critic, a hidden layer of 256 for each. Shoal on one device (all
cores as threads), and with the environments spread over two host devices; each against its plain forms too.
"""

import sys

from harness import Side, compare_all, options, peer_python, report

NAME = "MiniGrid-Empty-6x6"
WORKLOADS = ((256, 16, 1), (256, 16, 2))  # environments, steps, devices of Shoal's


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__, rounds=5)
    theirs = Side("xminigrid", peer_python("xminigrid"), "peers/xminigrid_recurrent.py", environment=NAME)
    comparisons = []
    for num_envs, num_steps, devices in WORKLOADS:
        name = "shoal" if devices == 1 else f"shoal, {devices} devices"
        ours = Side(name, sys.executable, "own/recurrent.py", devices, NAME)
        plain = ours._replace(name="shoal, plain forms", plain="1")
        comparisons += compare_all([(num_envs, num_steps)], ours, [theirs, plain], parsed)
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
