"""PPO on gymnax's Breakout-MinAtar, Shoal against PureJaxRL: `PUREJAXRL=.../purejaxrl python benchmarks/breakout.py`.

PureJaxRL is no package: PUREJAXRL names the folder of its scripts in a clone of its repository. 64 environments x 128
steps, four epochs of eight minibatches, two 64x64 relu networks. It runs as JAX compiles it by default, and once more
with Shoal's settings.
"""

import sys

from harness import Side, compare_all, options, peer_python, report, with_shoal_settings


def main() -> None:
    """Compares and prints the table."""
    parsed = options(__doc__)
    ours = Side("shoal", sys.executable, "own/breakout.py")
    sides = with_shoal_settings(
        Side("PureJaxRL", peer_python("purejaxrl"), "peers/purejaxrl_breakout.py"), one_thread=False
    )
    report(compare_all([(64, 128)], ours, sides, parsed), parsed)


if __name__ == "__main__":
    main()
