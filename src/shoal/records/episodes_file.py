"""`evaluations.npz`: the return and the length of each episode of a run's evaluations, with `keep_episodes`.

updates, steps      [evaluations]: after which each was made
seeds, labels       [members]; labels where members differ in more than their seeds
return, length, ... [members, evaluations, episodes, ...], as `engine.evaluation.episodes_of` names them
"""

import zipfile
from pathlib import Path

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, write_whole_file
from shoal.records.history import Numbers
from shoal.records.members import Members, to_metadata

EVALUATIONS = "evaluations.npz"

# Of each evaluation its number of updates, and its results, [members, episodes, ...].
Rows = list[tuple[int, Numbers]]


class EpisodesFile:
    """The episodes of a run's evaluations, in the one process that writes them; the file is whole or not there.

    Args:
      kept: those that the run continues.
      steps_per_update: environment steps of each member.
    """

    def __init__(self, run_path: Path, members: Members, steps_per_update: int, kept: Rows):
        self.path = run_path / EVALUATIONS
        self._rows, self._steps_per_update = kept, steps_per_update
        self._members = {name: np.array(x) for name, x in to_metadata(members).items()}
        self._written = 0  # rows

    def add(self, updates: int, episodes: Numbers) -> None:
        """Add an evaluation, without touching the disk."""
        self._rows.append((updates, episodes))

    def write(self) -> None:
        """Write all evaluations, if there are new ones; for any thread.

        Raises:
          ShoalError: they cannot be written, and the file of before stays.
        """
        rows = list(self._rows)
        if len(rows) == self._written:
            return
        updates = np.array([x for x, _ in rows])
        counts = {"updates": updates, "steps": updates * self._steps_per_update}
        results = {name: np.stack([x[name] for _, x in rows], axis=1) for name in rows[0][1]}
        with write_whole_file(self.path, parents=False) as file:
            np.savez(file, allow_pickle=False, **counts, **self._members, **results)
        self._written = len(rows)


def read_episodes(run_path: Path) -> Rows:
    """Read the episodes of a run; none where it keeps none.

    Raises:
      ShoalError: the file cannot be read, or is damaged.
    """
    path = run_path / EVALUATIONS
    if not path.exists():
        return []
    with report_os_errors(f"{path} cannot be read"):
        try:
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
                arrays = dict(file)
            results = {
                name: x for name, x in arrays.items() if name not in ("updates", "steps", "seeds", "labels")
            }
            numbers = enumerate(arrays["updates"])
            return [(int(k), {name: x[:, row] for name, x in results.items()}) for row, k in numbers]
        except (zipfile.BadZipFile, ValueError, LookupError, EOFError) as error:
            remedy = "without the file a run resumes, and keeps the episodes from there on"
            raise ShoalError(f"{path} is damaged ({error}); {remedy}.") from error
