"""IPPO on mpe/Spread-v0, Shoal against JaxMARL's own script, training included: `python benchmarks/ippo.py`.

Shared parameters, two 64x64 tanh networks, 4 epochs of 4 minibatches, and all other settings of the script's own file;
one seed. The script's 16 worlds x 128 steps, and 128 x 25. The script runs as it is, as JAX compiles it by default, and
once more with the settings that Shoal makes for itself. A step is one of a world, in which all three agents act; Shoal
starts a new episode in a separate step, which counts, and JaxMARL within the last of 26 steps.

JaxMARL's package does not have the script: it is read from a checkout in .venvs/JaxMARL, or from where `JAXMARL_SCRIPT`
says. Without it the command says how to get it.
"""

import hashlib
import os
import sys
from pathlib import Path

from harness import ENVIRONMENTS, Side, compare_all, options, peer_python, report, with_shoal_settings

WORKLOADS = ((16, 128), (128, 25))  # worlds, steps
DEVICES = (1, 2)  # of Shoal's, over which the worlds are spread
CHECKOUT = ENVIRONMENTS / "JaxMARL"
SCRIPT = CHECKOUT / "baselines" / "IPPO" / "ippo_ff_mpe.py"
REPOSITORY, COMMIT = "https://github.com/FLAIROx/JaxMARL", "c793d095618c6d3edfb5632802348f57b70a4b94"
SHA256 = "a65d2a5f93d5b961142796108eeaef7edf8f87a7e007060dfc593373ce11f882"  # of the script in that commit


def require_script() -> None:
    """Says how to get the script where it is missing, and where it is another than that of the commit."""
    script = Path(os.environ.setdefault("JAXMARL_SCRIPT", str(SCRIPT)))  # the worker reads it
    if not script.exists():
        raise SystemExit(
            f"{script} does not exist; to get it: git clone {REPOSITORY} {CHECKOUT} && "
            f"git -C {CHECKOUT} checkout {COMMIT}"
        )
    if hashlib.sha256(script.read_bytes()).hexdigest() != SHA256:
        print(f"{script} is not the script of commit {COMMIT}", file=sys.stderr)


def main() -> None:
    """Compares on each workload and prints the table."""
    parsed = options(__doc__)
    require_script()
    peer = Side("jaxmarl", peer_python("jaxmarl"), "peers/jaxmarl_ippo.py")
    comparisons = []
    for devices in DEVICES:
        name = "shoal" if devices == 1 else f"shoal, {devices} devices"
        ours = Side(name, sys.executable, "own/ippo.py", devices)
        comparisons += compare_all(WORKLOADS, ours, with_shoal_settings(peer), parsed)
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
