"""What each trick for the compiler gains: `python benchmarks/tricks.py [--only NAME ...] [--together]`.

Shoal's PPO with all tricks against the same with one of them in its plain form (`SHOAL_PLAIN=NAME`), alternately, on
the workloads of `runs/train/drive.py`, `recurrent.py` and `grid.py` that use it. A ratio of 1.03 means that an update
takes 3% longer without the trick. With `--together` all that are named take their plain forms at once: several whose
gains are too small to be measured alone.
"""

import sys
from typing import NamedTuple

from harness import Side, compare, options, report


class Workload(NamedTuple):
    """A worker with its sizes."""

    script: str
    num_envs: int
    num_steps: int
    devices: int = 1
    environment: str = ""

    def side(self, name: str, plain: str = "") -> Side:
        """Shoal on this workload."""
        return Side(name, sys.executable, self.script, self.devices, self.environment, plain=plain)


LARGE = Workload("own/training.py", 1024, 32)
SMALL = Workload("own/training.py", 4, 128)
RECURRENT = Workload("own/recurrent.py", 256, 16, 1, "MiniGrid-Empty-6x6")
GRID = Workload("own/grid.py", 1024, 64, 1, "XLand-MiniGrid-R4-13x13")

USED_BY = {
    "split_by_key": (SMALL, LARGE),
    "pack": (SMALL, LARGE),
    "chunked_gradient": (LARGE,),
    "compute_once": (RECURRENT, GRID),
    "materialise": (LARGE, RECURRENT),
    "product": (LARGE,),
    "affine_of_few_rows": (SMALL,),
    "change_where": (LARGE, SMALL),
    "change_in_groups": (LARGE, SMALL, GRID),
    "with_batch_rule": (RECURRENT, GRID),
    "by_platform": (LARGE, RECURRENT, GRID),
    "apply_to_distinct": (RECURRENT,),
    "feature_major": (LARGE,),
    "unroll_cell": (RECURRENT,),
    "project_distinct": (RECURRENT,),
    "store_memories": (RECURRENT,),
    "look_up_cells": (RECURRENT,),
    "one_kernel": (SMALL,),
}


def main() -> None:
    """Compare each trick with its plain form on the workloads that use it, and print the table."""
    parsed = options(
        __doc__, rounds=5, only=USED_BY, switches={"together": "compare the named tricks as one"}
    )
    names = parsed.only or list(USED_BY)
    comparisons = []
    for tricks in [names] if parsed.together else [[name] for name in names]:
        for load in dict.fromkeys(load for trick in tricks for load in USED_BY[trick]):
            label = f"{load.num_envs} x {load.num_steps} {load.environment}"
            sides = load.side("all tricks"), load.side(f"without {', '.join(tricks)}", ",".join(tricks))
            comparisons.append(compare(label, *sides, load.num_envs, load.num_steps, parsed))
    report(comparisons, parsed)


if __name__ == "__main__":
    main()
