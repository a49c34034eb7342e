"""The switch between the fast forms and the plain forms."""

import os

TRICKS = (
    "add_up",
    "affine_of_few_rows",
    "apply_to_distinct",
    "batch_last",
    "by_platform",
    "change_if_costly",
    "change_in_groups",
    "change_where",
    "chunked_gradient",
    "compute_once",
    "convolve",
    "feature_major",
    "look_up_cells",
    "loop_in_blocks",
    "materialise",
    "max_pool",
    "one_kernel",
    "pack",
    "product",
    "project_distinct",
    "scan_while",
    "split_by_key",
    "store_memories",
    "sum_by_loop",
    "unroll_cell",
    "unroll_memories",
    "with_batch_rule",
)
"""The names of all tricks; `docs/performance.md` has a table of them."""

_VALUE = os.environ.get("SHOAL_PLAIN", "").strip()
USE_PLAIN = _VALUE == "1"
"""Whether every trick takes its plain form: `SHOAL_PLAIN=1` in the environment, read once at import."""
PLAIN = (
    TRICKS if USE_PLAIN else () if _VALUE == "0" else tuple(x.strip() for x in _VALUE.split(",") if x.strip())
)
"""The tricks that take their plain form; `SHOAL_PLAIN=pack,product` names some of them."""


def uses_plain_form(trick: str) -> bool:
    """Report whether a trick takes its plain form."""
    return trick in PLAIN


def unknown_tricks() -> tuple[str, ...]:
    """Return the names in `SHOAL_PLAIN` that name no trick."""
    return tuple(name for name in PLAIN if name not in TRICKS)
