"""Episodes as files for ParaView, by pyevtk: a collection over time (.pvd), and a folder with the data of each time."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import write_whole_file
from shoal.base.imports import import_package
from shoal.envs.base import geometry, has_geometry, unwrapped
from shoal.envs.geometry import Geometry
from shoal.types import Environment, State

SUFFIX = ".pvd"
VERTEX, LINE = 1, 3  # VTK's types of cells


def check_writable(environment: Environment, path: str | Path) -> Path:
    """Require that episodes of an environment can be written for ParaView, and return the path.

    Raises:
      ShoalError: the environment has no `geometry(state)`, the folder of the data exists already, or pyevtk is missing.
    """
    path = Path(path).expanduser()
    if not has_geometry(environment):
        raise ShoalError(
            f"{type(unwrapped(environment)).__name__} cannot be written for ParaView: it has no `geometry(state)`, "
            "which returns a shoal.envs.Geometry."
        )
    if (folder := data_folder(path)).exists():
        raise ShoalError(
            f"render={str(path)!r} cannot be written: its data would be in {str(folder)!r}, which exists already."
        )
    import_package(f"render={str(path)!r} needs", "pyevtk", "paraview", "1.7")
    return path


def data_folder(path: Path) -> Path:
    """Return the folder of a collection's data, beside the file that links lead to."""
    return Path(os.path.realpath(path)).with_name(f"{path.stem}-data")


def write_states(
    path: Path, environment: Environment, states: Iterable[State], frames_per_second: float
) -> int:
    """Write states one after the other; the collection is written last, and nothing stays if one cannot be written.

    Of each time there is a file of points, and one of lines. Since pyevtk writes no file without cells, a time without
    lines has one of length 0, all of whose numbers are 0.

    Returns:
      the number of states.
    """
    from pyevtk.vtk import VtkGroup  # noqa: PLC0415

    folder = data_folder(path)
    folder.mkdir()
    try:
        written = [_write_state(folder, number, geometry(environment, x)) for number, x in enumerate(states)]
        # pyevtk writes in place, and a collection at its path must be whole.
        draft = folder / "collection"
        collection = VtkGroup(str(draft))
        collection.root = str(folder.parent)  # names in a collection are relative to it
        for number, files in enumerate(written):
            for part, file in enumerate(files):
                collection.addFile(file, sim_time=number / frames_per_second, part=str(part))
        collection.save()
        draft = draft.with_suffix(SUFFIX)
        with write_whole_file(path) as target:
            target.write(draft.read_bytes())
        draft.unlink()
    except BaseException:
        shutil.rmtree(folder)
        raise
    return len(written)


def _write_state(folder: Path, number: int, scene: Geometry) -> tuple[str, str]:
    """Write the points and the lines of one time, and return their files."""
    ends, fields = scene.lines.reshape(-1, 3), scene.line_fields
    if not len(ends):
        ends = np.repeat(scene.points[:1], 2, axis=0)
        fields = {name: np.zeros((1, *x.shape[1:])) for name, x in fields.items()}
    points = _write_cells(folder / f"points_{number:06}", scene.points, VERTEX, scene.fields)
    return points, _write_cells(folder / f"lines_{number:06}", ends, LINE, fields)


def _write_cells(path: Path, places: np.ndarray, kind: int, fields: Any) -> str:
    """Write cells of one kind, with a number or a vector of each."""
    from pyevtk.hl import unstructuredGridToVTK  # noqa: PLC0415

    corners = 1 if kind == VERTEX else 2
    count = len(places) // corners
    return unstructuredGridToVTK(
        str(path),
        *_columns(places),
        connectivity=np.arange(len(places), dtype=np.int64),
        offsets=np.arange(1, count + 1, dtype=np.int64) * corners,
        cell_types=np.full(count, kind, np.uint8),
        **{"pointData" if kind == VERTEX else "cellData": {name: _field(x) for name, x in fields.items()}},
    )


def _field(values: np.ndarray) -> Any:
    return _columns(values) if values.ndim == 2 else np.ascontiguousarray(values)


def _columns(vectors: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.ascontiguousarray(x, np.float64) for x in vectors.T)
