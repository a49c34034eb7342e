"""Tuning: batches of trials from a study, each run as one population, until the study has enough.

A directory has one folder for each batch, whose `trials.json` is written before anything runs. A process that is killed
finds it there, runs that batch to its end and tells it; trials that were asked for and recorded nowhere are told as
failed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors
from shoal.base.numbers import format_number
from shoal.records.json_files import read_json, report_wrong_types, write_json
from shoal.search.optuna_study import Study
from shoal.search.ranking import MemberResult
from shoal.search.space import Point, label_of

BATCHES, TRIALS = "batches", "trials.json"


# Trains settings, by their labels, as one population in a directory that exists, and returns each member's results;
# called again after a kill, it resumes what it had begun.
RunPoints = Callable[[Mapping[str, Point], Path], Sequence[MemberResult]]


def tune(
    study: Study,
    run_points: RunPoints,
    directory: Path,
    *,
    trials: int,
    batch: int,
    check: Callable[[Point], None] = lambda point: None,
    report: Callable[[str], None] = lambda line: None,
) -> list[MemberResult]:
    """Run trials until the study has a number of them, those of other processes included.

    Args:
      trials: the number that the study has in the end.
      check: raises a ShoalError for settings that cannot work together; such a trial is told as failed.
    Returns:
      the members of all trials of the study.
    Raises:
      ShoalError: no trial of the study could be trained, or the batches of the directory are of another study.
    """
    for folder in _unfinished(study, directory):
        _run_batch(study, run_points, folder)
        report(_progress(study, trials))
    error: ShoalError | None = None
    while (missing := trials - len(study.trials)) > 0:
        points = study.ask(min(batch, missing))
        errors = check_all(points, check)
        for number, error in errors.items():
            study.fail(number, str(error))
        if valid := {number: point for number, point in points.items() if number not in errors}:
            _run_batch(study, run_points, _record(directory, valid))
        report(_progress(study, trials))
    members, states = study.members(), {trial.state.name for trial in study.trials}
    if not members and states == {"FAIL"}:
        raise error or ShoalError("no trial could be trained; each was told to Optuna as failed.")
    return members


def check_all(points: Mapping[int, Point], check: Callable[[Point], None]) -> dict[int, ShoalError]:
    """Return the errors of the trials whose settings cannot work."""
    errors = {}
    for number, point in points.items():
        try:
            check(point)
        except ShoalError as error:
            errors[number] = error
    return errors


def _record(directory: Path, points: Mapping[int, Point]) -> Path:
    """Write down the trials of a batch before it runs, and return its folder."""
    folder = directory / BATCHES / f"{min(points):05d}"
    labels = {str(number): label_of(number, point) for number, point in points.items()}
    with report_os_errors(f"{folder} cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / TRIALS, {"trials": labels})
    return folder


def _unfinished(study: Study, directory: Path) -> list[Path]:
    """Return the batches with trials that have no result, and fail the trials that are in no batch.

    Raises:
      ShoalError: a batch is damaged, or its trials are not in the study.
    """
    running, recorded, found = study.running(), set(), []
    for folder, numbers in read_batches(directory).items():
        study.points(numbers)
        recorded |= set(numbers)
        if running & set(numbers):
            found.append(folder)
    for number in running - recorded:
        study.fail(number, "the process ended before the trial began")
    return found


def read_batches(directory: Path) -> dict[Path, list[int]]:
    """Return the numbers of the trials of each batch of a directory, by its folder.

    Raises:
      ShoalError: a file of them is damaged.
    """
    return {file.parent: _numbers(file) for file in sorted((directory / BATCHES).glob(f"*/{TRIALS}"))}


def _numbers(file: Path) -> list[int]:
    with report_wrong_types(str(file)):
        return sorted(int(number) for number in read_json(file)["trials"])


def _run_batch(study: Study, run_points: RunPoints, folder: Path) -> None:
    points = study.points(_numbers(folder / TRIALS))
    labels = {label_of(number, point): number for number, point in points.items()}
    members = run_points({label: points[number] for label, number in labels.items()}, folder)
    study.tell(
        {number: [member for member in members if member.label == label] for label, number in labels.items()}
    )


def _progress(study: Study, trials: int) -> str:
    states = [trial.state.name for trial in study.trials]
    failed, best = states.count("FAIL"), study.best
    words = [f"{len(states) - states.count('RUNNING')} of {trials} trials"]
    words += [f"{failed} failed"] if failed else []
    words += [f"best {format_number(best[1])} (trial {best[0].number})"] if best else []
    return ", ".join(words)
