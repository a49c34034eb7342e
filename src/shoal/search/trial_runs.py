"""Tuning by Optuna, in which each batch of trials trains as a sweep does: as populations of few compiled programs.

The directory is that of a sweep (see `records.search_files`), whose runs are those of the batches, so that
`shoal eval` and `shoal.load` find its best setting.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.numbers import format_number
from shoal.config import arguments
from shoal.config.struct import parameter
from shoal.records.lock import Lock
from shoal.runs.train import placement
from shoal.runs.train.planning import Caller
from shoal.search import memory_fit, optuna_study, search_report, sweep, tune
from shoal.search.grouping import Candidate, Group, Planned, Request, group_candidates
from shoal.search.ranking import MemberResult
from shoal.search.space import Point, Space, number_of
from shoal.search.sweep_directory import SweepDirectory

JOURNAL = "study.journal"
TRIED = 8  # the number of tried settings of a space, one of which must work


@dataclasses.dataclass(frozen=True, kw_only=True)
class TuneOptions(sweep.SearchOptions):
    """The options by which settings are proposed and judged."""

    halving: int = parameter(0, low=0, high=arguments.LARGEST_INDEX)
    """Stops trials early: at each rung one of this many in a batch continues, and the others are pruned in Optuna;
    0 trains all to the end."""
    trials: int = parameter(64, low=1, high=arguments.LARGEST_INDEX)
    """Ends when the study has this many trials, those of other processes included."""
    batch: int = parameter(16, low=1, high=arguments.LARGEST_INDEX)
    """Trains this many trials at once; Optuna proposes all of them before it gets a result."""
    proposal_seed: int = parameter(0, low=0, high=arguments.LARGEST_SEED)
    """Sets the seed of the proposals."""
    storage: str = ""
    """Keeps the study in this journal file, or the database of this URL; without it in the directory."""
    study: str = ""
    """Takes the study of this name in the storage; without it the one named shoal."""


def run_tuning(
    request: Request, space: Space, options: TuneOptions, call: Caller | None = None
) -> sweep.Sweep:
    """Train trials that Optuna proposes, batch by batch, and the best again; one that was interrupted resumes.

    Raises:
      ShoalError: Optuna is missing, or a setting cannot work; then nothing is left on disk.
      Interrupted: a signal ended the tuning, which is saved.
    """
    call = Caller() if call is None else call
    optuna_study.require_optuna()
    request, base, space = sweep.check_request(request, space, options)
    asked = sweep.asked_json(base, space, options)
    directory = SweepDirectory(options.path, asked)
    runner = _Runner(request, directory, options, call)
    _check_some(space, runner)
    study = _open(options.storage, space, options, asked) if options.storage else None
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        directory.create(base.environment_name, base.algorithm, "tune")
        with Lock(directory.path):
            tune.read_batches(directory.path)  # a damaged one is refused before the study is written to
            study = study or _open(str(directory.path / JOURNAL), space, options, asked)
            study = study.owned_by(directory.path)
            try:
                tune.tune(
                    study,
                    runner,
                    directory.path,
                    trials=options.trials,
                    batch=options.batch,
                    check=runner.check,
                    report=lambda line: call.note(f"tune: {line}"),
                )
                runs = runner.all_runs(study)
                members = sweep.members_of_runs(runs, options)
                candidates = [candidate for run in runs for candidate in run.group.candidates]
                confirmed = sweep.confirm(request, members, candidates, directory, options, call)
            except signals.Interrupted as error:
                raise signals.Interrupted(error.path, options.again(directory.path)) from None
            _note_other_best(study, call)
            report = search_report.Report(directory, space, base, options.objective)
            summary = report.finish(members, runs, confirmed)
    return sweep.Sweep(directory.path, summary)


def _open(
    storage: str, space: Space, options: TuneOptions, asked: Mapping[str, object]
) -> optuna_study.Study:
    return optuna_study.open_study(
        storage,
        space,
        objective=options.objective,
        name=options.study,
        seed=options.proposal_seed,
        identity={"experiment": asked["experiment"]},
    )


def _check_some(space: Space, runner: "_Runner") -> None:
    """Require that some settings of a space can work together, before anything is made.

    Raises:
      ShoalError: none of a few can; or they cannot stop early, where that is asked for.
    """
    points = space.points(TRIED if space.random else 1)[:TRIED]
    errors = tune.check_all(dict(enumerate(points)), runner.check)
    if len(errors) == len(points):
        raise errors[0]
    runner.check_halving([point for index, point in enumerate(points) if index not in errors])


def _note_other_best(study: optuna_study.Study, call: Caller) -> None:
    """Say where the best trial of the study is, if another process has it."""
    if study.best is None:
        return
    best, score = study.best
    if best.user_attrs[optuna_study.OWNER] != study.owner:
        path = best.user_attrs[optuna_study.PATH]
        call.note(
            f"tune: the best of the study so far is trial {best.number}, {format_number(score)}, in {path}; the "
            "results here are those of this directory."
        )


@dataclasses.dataclass(frozen=True)
class _Runner:
    """Trains batches of trials in a directory; see `tune.RunPoints`."""

    request: Request
    directory: SweepDirectory
    options: TuneOptions
    call: Caller

    def check(self, point: Point) -> None:
        """Require that settings can work together, before anything compiles."""
        for group in group_candidates(self.request, [Candidate("trial", point)]):
            placed = placement.place(group.experiment)[1]
            placed.validate()
            sweep.check_objective_exists(placed, self.options.objective)

    def check_halving(self, points: Sequence[Point]) -> None:
        """Require that settings can stop early, where that is asked for.

        Raises:
          ShoalError: they need several programs, or there is nothing to stop.
        """
        candidates = [Candidate(str(index), point) for index, point in enumerate(points)]
        (group, *_) = sweep.with_halving(group_candidates(self.request, candidates), self.options)
        if self.options.halving:
            run = placement.place(group.experiment)[1].run
            sweep.halving_of(self.options).check(run, self.options.batch)

    def __call__(self, points: Mapping[str, Point], directory: Path) -> list[MemberResult]:
        """Train the settings of a batch, and return the results of its members."""
        runs = self._planned(points, directory) or self._plan(points, directory)
        sweep.train_all(runs, self.options.objective, self.call, lambda: None)
        return sweep.members_of_runs(runs, self.options)

    def all_runs(self, study: optuna_study.Study) -> list[Planned]:
        """Return the runs of all batches of the directory."""
        labels = [label for labels in self.directory.plan().values() for label in labels]
        points = study.points([number_of(label) for label in labels])
        return self._planned({label: points[number_of(label)] for label in labels}, self.directory.path)

    def _planned(self, points: Mapping[str, Point], directory: Path) -> list[Planned]:
        """Return the runs below a directory as they were planned, in this process or one before."""
        batches: dict[Path, dict[str, Group]] = {}
        for name, labels in self.directory.plan().items():
            if (self.directory.path / name).is_relative_to(directory):
                candidates = [Candidate(label, points[label]) for label in labels]
                (group,) = group_candidates(self.request, candidates)
                batches.setdefault(Path(name).parent, {})[name] = group
        return [
            Planned(self.directory.path, name, group)
            for batch in batches.values()
            for name, group in zip(batch, self._halved(list(batch.values())), strict=True)
        ]

    def _halved(self, groups: list[Group]) -> list[Group]:
        """Let the settings of a batch stop early, if one population holds them and they are enough."""
        is_possible = len(groups) == 1 and len(groups[0].candidates) >= self.options.halving
        return sweep.with_halving(groups, self.options) if is_possible else groups

    def _plan(self, points: Mapping[str, Point], directory: Path) -> list[Planned]:
        """Divide the settings of a batch among runs, and write this down.

        Settings that do not fit the memory are left out, and so told as failed.
        """
        parts = []
        for group in group_candidates(self.request, [Candidate(*item) for item in points.items()]):
            try:
                parts += memory_fit.split(group, memory_fit.need_of(group))
            except ShoalError as error:
                signals.say(f"tune: {error}")
        folder = directory.relative_to(self.directory.path)
        runs = [
            Planned(self.directory.path, f"{folder}/{k:03}", part)
            for k, part in enumerate(self._halved(parts))
        ]
        new = {run.name: [x.label for x in run.group.candidates] for run in runs}
        self.directory.save_plan(self.directory.plan() | new)
        return runs
