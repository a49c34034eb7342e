"""DQN and PQN on CartPole, SAC and TD3 on Pendulum, Shoal against rejax: `python benchmarks/value_based.py`.

DQN is rejax's own workload: 10 environments, of which each step is followed by 5 gradient steps on batches of 100 from
a replay of 50,000. PQN has rollouts of 16 x 128, four epochs of four minibatches. SAC and TD3 have rejax's settings for
Pendulum: one environment, of which each step is followed by a gradient step, of TD3 every two. All have two hidden
layers of 64, and none is evaluated.
rejax runs as JAX compiles it by default, and once more with the settings that Shoal makes for itself.
"""

import sys

from harness import Side, compare_all, options, peer_python, report, with_shoal_settings

WORKLOADS = {"dqn": (10, 1), "pqn": (16, 128), "sac": (1, 1), "td3": (1, 2)}  # environments, steps


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__, only=tuple(WORKLOADS))
    comparisons = []
    for name in parsed.only or WORKLOADS:
        peer = Side(f"rejax, {name}", peer_python("rejax"), "peers/rejax_value_based.py", environment=name)
        ours = Side(f"shoal, {name}", sys.executable, "own/value_based.py", environment=name)
        comparisons += compare_all([WORKLOADS[name]], ours, with_shoal_settings(peer), parsed)
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
