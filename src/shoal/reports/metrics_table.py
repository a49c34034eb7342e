"""The rows of `metrics.jsonl` of a run or of all runs of a sweep, as columns."""

from collections.abc import Sequence

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.user_errors import reports_user_code
from shoal.reports.records import read
from shoal.reports.run_record import FIRST
from shoal.reports.sweep_record import SweepRecord

WHOLE = ("step", "updates", "seed")  # columns of whole numbers, which every row has


@reports_user_code
def metrics(run: object, *, kind: str = "") -> dict[str, np.ndarray]:
    """Read the metrics of a run as columns, such as pandas takes: `pandas.DataFrame(shoal.metrics("runs/first"))`.

    A row is one member at one log point, evaluation or exchange, in the order in which they were written. A run that is
    trained at the moment, was interrupted or was killed has its rows so far.

    Args:
      run: the directory of a run, of a sweep or of a study of `shoal tune`, whose runs are read one after the other; or
        what `shoal.train` or `shoal.sweep` returned.
      kind: of the rows that are read: "train" (means since the previous log point), "evaluation" or "exchange"; all
        where it is empty.
    Returns:
      arrays of equal length by name: `kind`, `step` (environment steps of the member), `updates`, `seed`, `label` where
      there are several settings, and the metrics. `run` is the directory of a run within its sweep, and the
      confirmation of the best settings is among these. A number that is missing, or was not finite, is NaN; another
      entry that is missing is None.
    Raises:
      ShoalError: there is no such run, no row of that kind where there are others, or a file is damaged.
    """
    record = read(run)
    runs = [*record.runs, *record.confirmation] if isinstance(record, SweepRecord) else [record]
    rows = list[dict[str, object]]()
    for one in runs:
        place = {} if one is record else {"run": str(one.path.relative_to(record.path))}
        rows += [place | row for row in one.rows(kind)]
    if kind and not rows:
        kinds = dict.fromkeys(row["kind"] for one in runs for row in one.rows())
        if kinds:
            there = f"{', '.join(kinds)}{nearest(kind, kinds) or '.'}"
            raise ShoalError(f"{str(record.path)!r} has no rows of kind {kind!r}, only {there}")
    names = dict.fromkeys(name for row in rows for name in row)
    ordered = [*(name for name in FIRST if name in names), *(name for name in names if name not in FIRST)]
    return {name: _column(name, [row.get(name) for row in rows]) for name in ordered}


def _column(name: str, values: Sequence[object]) -> np.ndarray:
    """Return a column: of whole numbers where each row has one, of float64 with NaN, else of objects with None."""
    if name in WHOLE and None not in values:
        return np.asarray(values, np.int64)
    if all(x is None or (isinstance(x, float | int) and not isinstance(x, bool)) for x in values):
        return np.asarray([np.nan if x is None else x for x in values], np.float64)
    column = np.empty(len(values), object)
    column[:] = values
    return column
