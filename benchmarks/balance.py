"""PPO on MuJoCo Playground's CartpoleBalance, Shoal against Brax: `python benchmarks/balance.py`.

"wide" has Brax's own networks, a policy of 4 x 32 and values of 5 x 256, in 64 environments x 32 steps with four epochs
of eight minibatches; "narrow" has two of 2 x 64 in 16 x 128 with ten epochs of sixteen, as Shoal's preset. All are
swish, both sides run in this interpreter, and Brax 0.14.2 is patched to start on jax 0.10. It runs as JAX compiles it
by default, and once more with the flags of Shoal's backend; Shoal on one device, and on two host devices.
"""

import sys

from harness import Side, compare_all, options, report, with_shoal_settings

WORKLOADS = {"wide": (64, 32), "narrow": (16, 128)}  # environments, steps


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__, only=tuple(WORKLOADS))
    comparisons = []
    for name in parsed.only or WORKLOADS:
        peer = Side(f"Brax, {name}", sys.executable, "peers/brax_balance.py", environment=name)
        sides = with_shoal_settings(peer, one_thread=False)
        for devices in (1, 2):
            title = f"shoal, {name}" if devices == 1 else f"shoal, {name}, {devices} devices"
            ours = Side(title, sys.executable, "own/balance.py", devices, environment=name)
            comparisons += compare_all([WORKLOADS[name]], ours, sides, parsed)
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
