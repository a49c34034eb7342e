"""`shoal.compare`: compare runs by the scores of their seeds, on the scales that their environments declare."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.base.files import find_obstacle
from shoal.config import arguments
from shoal.envs import registry
from shoal.records.json_files import json_text, write_text
from shoal.reports import compare_plots, figures, marl_eval
from shoal.reports.compare import read_comparison, results
from shoal.reports.compare_inputs import ABSOLUTE, DeclaredScale


def compare(
    runs: Mapping[str, Any] | Sequence[Any],
    *,
    metric: str = ABSOLUTE,
    target: float | None = None,
    consecutive: int = 2,
    bounds: Mapping[str, Sequence[float]] | None = None,
    anyway: bool = False,
    plot: str | Path = "",
    labels: Mapping[str, str] | None = None,
    export: str | Path = "",
) -> dict[str, Any]:
    """Compare runs and sweeps by the scores of their seeds; all against the first.

    A sweep enters by the seeds of its confirmation. A seed that failed has the score minus infinity. Fewer than five
    seeds have no intervals. The intervals of several runs are each for itself (pointwise).

    Args:
      runs: two or more, each a path, `PATH:LABEL` (one setting of several), or what `train` or `sweep` returned. Runs
        in several environments are grouped by their algorithms, or as a mapping groups them: a name, and its runs.
      metric: "absolute", the mean return of the best policies, evaluated again; "final", that of the last policies; or
        a metric of the evaluations, of which the last counts.
      target: a score to which the environment steps are counted; normalised where there are several environments.
      consecutive: the number of evaluations in a row that must reach the target.
      bounds: by environment, the scores that normalisation makes 0 and 1, such as those of random actions and of the
        best policy; without them those that the environment declares (`score_bounds`).
      anyway: whether runs that are evaluated differently are compared nevertheless.
      plot: a file that ends in .png, .pdf or .svg, of scores and probabilities of improvement with their intervals,
        curves, performance profiles and sample efficiency.
      labels: of rows in the picture, by their names: a text, or `TEXT:COLOUR`. Rows with labels come first, in the
        order of the labels.
      export: a JSON file of the evaluations in the format of marl-eval.
    Returns:
      what `shoal compare --json` prints: `rows`, one for each run or group, and `notes`, sentences about them.
    Raises:
      ShoalError: a run is missing, was never evaluated, or cannot be compared with the others, and why; or a file
        exists, or cannot be written.
    """
    picture, exported = _new_file("plot", plot, figures.FORMATS), _new_file("export", export)
    if picture is not None and picture == exported:
        raise ShoalError(f"export={str(exported)!r} is the file of plot too; give a name that is free")
    comparison = read_comparison(
        runs,
        metric=metric,
        target=target,
        consecutive=consecutive,
        bounds=bounds,
        anyway=anyway,
        declared=declared_scale,
    )
    texts = compare_plots.labels_of(arguments.mapping("labels", labels), [x.name for x in comparison.rows])
    result = results(comparison)
    # Before the picture is drawn, so that runs which the format cannot hold leave no file behind.
    content = marl_eval.to_marl_eval(comparison.rows, comparison.metric) if exported else {}
    if picture is not None:
        compare_plots.plot_comparison(picture, comparison, result["rows"], texts)
    if exported is not None:
        write_text(exported, json_text(content, not_finite=str), new=True)
    return result


def _new_file(name: str, path: str | Path, suffixes: Collection[str] = ()) -> Path | None:
    """Return the path of a file to be made; None for none.

    Raises:
      ShoalError: it exists, cannot be written, or ends in none of some suffixes.
    """
    if path == "":
        return None
    path = arguments.path(name, path)
    if path.exists():
        raise ShoalError(f"{name}={str(path)!r} exists already; give a name that is free")
    if obstacle := find_obstacle(path):
        raise ShoalError(f"{name}={str(path)!r} cannot be written: {obstacle}")
    if suffixes and path.suffix.lower() not in suffixes:
        hint = str(path.with_suffix(".pdf"))
        raise ShoalError(f"{name}={str(path)!r} ends in none of {', '.join(suffixes)}; try {hint!r}")
    return path


def declared_scale(environment: str) -> DeclaredScale | None:
    """Return what an environment declares of its scores; None where that is nothing, or it cannot be imported here."""
    try:
        bounds = registry.score_bounds_of(environment)
    except ShoalError:
        return None
    if bounds is None:
        return None
    parameters = registry.parameters_of(environment)
    return DeclaredScale(
        bounds, {name: x.default for name, x in parameters.items() if x.default is not x.empty}
    )
