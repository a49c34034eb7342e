"""PPO on MuJoCo Playground's CartpoleBalance, Shoal against Brax: `python benchmarks/balance.py`.

64 environments x 32 steps, four epochs of eight minibatches, a policy of 4 x 32 and values of 5 x 256, swish, both in
this interpreter. Brax 0.14.2 is patched to start on jax 0.10. It runs as JAX compiles it by default, and once more with
the flags of Shoal's backend.
"""

import sys

from harness import Side, compare_all, options, report, with_shoal_settings


def main() -> None:
    """Compares and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/balance.py")
    sides = with_shoal_settings(Side("Brax", sys.executable, "peers/brax_balance.py"), one_thread=False)
    report(compare_all([(64, 32)], ours, sides, parsed), parsed)


if __name__ == "__main__":
    main()
