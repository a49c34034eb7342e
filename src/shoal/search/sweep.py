"""A sweep: many settings as populations of few compiled programs, ranked by a score, the best trained again.

Each population is an ordinary run in a directory of its own, so that checkpoints, signals and numbers that are not
finite are handled as in every run; this module does the work between the runs.
"""

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.imports import load_function
from shoal.config import arguments
from shoal.config.settings import check_fields
from shoal.config.struct import parameter
from shoal.monitor.progress import Progress
from shoal.records import scores
from shoal.records.directory import CONFIG, SUMMARY, RunDirectory
from shoal.records.halving import Halving
from shoal.records.json_files import read_json, read_number
from shoal.records.members import members_of_config
from shoal.records.search_files import CONFIRMATION
from shoal.reports import run_html
from shoal.runs.plan.experiment import Experiment
from shoal.runs.policies.load import load
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import compiled_trainer, memory_limits, placement
from shoal.runs.train.drive import run_experiment
from shoal.runs.train.planning import Caller, is_metric_name
from shoal.search import memory_fit, search_report
from shoal.search.grouping import (
    DEFAULTS,
    Candidate,
    Group,
    Planned,
    Request,
    check_names,
    check_objective,
    group_candidates,
    known_settings,
)
from shoal.search.ranking import AT_RUNG, MemberResult, Ranked, rank
from shoal.search.space import Space, label_of, number_of
from shoal.search.sweep_directory import SweepDirectory
from shoal.xla.jax_settings import require_usable

ABSOLUTE = "absolute"  # the objective that is the mean return of the best policies, evaluated again
CONFIRMED = 3  # settings that are trained again
MAY_CHANGE = ("samples", "trials", "batch", "confirm_seeds", "path")  # options that a resume may change


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options by which a search judges settings: its flags, and the keywords of its function.

    The flag and keyword `run_dir`, a setting of any run, is their `path`.
    """

    objective: str = ABSOLUTE
    """Chooses the best settings by this metric of an evaluation of their best policies; absolute is the mean return."""
    confirm_seeds: int = parameter(10, low=0, high=arguments.LARGEST_SEED)
    """Trains the best three settings again on this many seeds that were never used; 0 disables this."""
    halving: int = parameter(0, low=0, high=arguments.LARGEST_INDEX)
    """Stops settings early: at each rung one of this many continues, by the score of an evaluation; 0 trains all to the
    end."""
    min_steps: int = parameter(0, low=0, high=arguments.LARGEST_INDEX)
    """Sets the environment steps of each member before the first rung; each next rung is at halving times as many."""
    path: str | Path = dataclasses.field(default="", metadata={"hidden": True})

    def again(self, directory: Path) -> str:
        """Name the command that resumes an interrupted search."""
        return "the same command with this directory" if self.path else f"run_dir={directory}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepOptions(SearchOptions):
    """The options by which a sweep samples and judges."""

    samples: int = parameter(1, low=1, high=arguments.LARGEST_INDEX)
    """Draws this many samples of the random settings, for each combination of the grid."""
    sample_seed: int = parameter(0, low=0, high=arguments.LARGEST_SEED)
    """Sets the seed of the samples."""
    sobol: bool = False
    """Draws samples that cover the space evenly (scrambled Sobol points)."""


def metric_of(objective: str) -> str:
    """Return the metric of evaluations by which settings are compared while they are trained."""
    return "return_mean" if objective == ABSOLUTE else objective


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep that has ended.

    Attributes:
      summary: the content of `summary.json`: `members`, the settings sorted by score; `best`; `command`.
    """

    path: Path
    summary: Mapping[str, Any]

    def _repr_html_(self) -> str:
        count = len(self.summary["members"])
        description = (
            f"{self.summary['environment']}, {self.summary['algorithm']}, {count} settings; {self.path}"
        )
        return run_html.sweep_html(description, self.summary)

    def policy(self, which: str = "best", seed: int | None = None, label: str | None = None) -> TrainedPolicy:
        """Load the policy of a member, by default the best one of the best setting, as `shoal.load` does."""
        return load(self.path, which, seed=seed, label=label)


def run_sweep(request: Request, space: Space, options: SweepOptions, call: Caller | None = None) -> Sweep:
    """Train the points of a space, rank them, and train the best again; one that was interrupted resumes.

    Raises:
      ShoalError: a setting cannot work; then nothing is left on disk.
      Interrupted: a signal ended the sweep, which is saved.
    """
    call = Caller() if call is None else call
    request, base, space = check_request(request, space, options)
    points = space.points(options.samples, options.sample_seed, sobol=options.sobol)
    candidates = [Candidate(label_of(index, point), point) for index, point in enumerate(points)]
    directory = SweepDirectory(options.path, asked_json(base, space, options))
    with signals.handle() as stop:
        stop.phase(signals.Phase.STARTING)
        planned = _plan(request, candidates, directory, options, call)
        directory.create(base.environment_name, base.algorithm)
        directory.save_plan({run.name: [x.label for x in run.group.candidates] for run in planned})
        planned = [run._replace(root=directory.path) for run in planned]
        report = search_report.Report(directory, space, base, options.objective)
        try:
            train_all(
                planned, options.objective, call, lambda: report.write(members_of_runs(planned, options))
            )
            members = members_of_runs(planned, options)
            confirmed = confirm(request, members, candidates, directory, options, call)
        except signals.Interrupted as error:
            raise signals.Interrupted(error.path, options.again(directory.path)) from None
        summary = report.finish(members, planned, confirmed)
    return Sweep(directory.path, summary)


def check_request(
    request: Request, space: Space, options: SearchOptions
) -> tuple[Request, Experiment, Space]:
    """Check everything but the points, and fill in the defaults of a sweep.

    Raises:
      ShoalError: something cannot work.
    """
    require_usable(training=True)
    check_fields(options)
    if "started_from" in request.overrides:
        raise ShoalError("started_from has no effect on a sweep, whose runs all begin with new parameters.")
    overrides = {**DEFAULTS, **request.overrides}
    if overrides.get("checkpoints") is False:
        overrides["on_nan"] = "stop"
    if options.objective != ABSOLUTE:
        overrides.setdefault("score", options.objective)
    request = dataclasses.replace(request, overrides=overrides)
    base = request.decide()
    for name in space.names:
        if name in request.overrides:
            raise ShoalError(
                f"{name}={request.overrides[name]!r} has no effect, since {name} varies in the sweep; give it once."
            )
    check_names(space.names, base)
    space = space.cast(known_settings(base))
    check_objective(options.objective, space.names, base)
    return request, base, space


def asked_json(base: Experiment, space: Space, options: SearchOptions) -> dict[str, Any]:
    """Return the request that a sweep's directory must hold to be the same sweep."""
    return {
        "experiment": base.as_json(),
        "space": space.to_json(),
        "options": {name: x for name, x in dataclasses.asdict(options).items() if name not in MAY_CHANGE},
    }


def _plan(
    request: Request,
    candidates: Sequence[Candidate],
    directory: SweepDirectory,
    options: SweepOptions,
    call: Caller,
) -> list[Planned]:
    """Divide the settings among runs: those of the sweep so far as they were, the others in new ones.

    Raises:
      ShoalError: a setting cannot work, or does not fit the memory; the sentence names the member.
    """
    by_label = {candidate.label: candidate for candidate in candidates}
    planned, begun = [], directory.plan()
    for name, labels in begun.items():
        if labels[-1] not in by_label:
            raise ShoalError(
                f"samples={options.samples} is less than the sweep {str(directory.path)!r} has; a larger number "
                "extends it."
            )
        (group,) = group_candidates(request, [by_label.pop(label) for label in labels])
        planned.append(Planned(directory.path, name, with_halving([group], options)[0]))
    if begun and by_label and options.halving:
        raise ShoalError(
            f"samples={options.samples} cannot extend a sweep with halving, whose settings were compared at the same "
            "time; name a new directory."
        )
    groups = with_halving(group_candidates(request, list(by_label.values())), options)
    for group in groups:
        _, placed = placement.place(group.experiment)
        placed.validate()
        check_objective_exists(placed, options.objective)
    needs = [memory_fit.need_of(group) for group in groups]
    parts = [
        part for group, need in zip(groups, needs, strict=True) for part in memory_fit.split(group, need)
    ]
    if options.halving and len(parts) > 1:
        raise ShoalError(
            f"halving={options.halving} compares all settings at the same time, so that one population must hold them, "
            f"and the memory allows {len(parts)} of parts only; fewer seeds or environments need less."
        )
    first = len(begun)
    planned += [Planned(Path(), f"runs/{first + k:03}", part) for k, part in enumerate(parts)]
    call.note(_statement(planned, len(groups), needs, groups))
    return planned


def with_halving(groups: list[Group], options: SearchOptions) -> list[Group]:
    """Let the settings of a sweep stop early, where that is asked for.

    Raises:
      ShoalError: several programs would have to be compared.
    """
    if not options.halving:
        return groups
    if len(groups) > 1:
        first, other = (group.candidates[0].label for group in groups[:2])
        raise ShoalError(
            f"halving={options.halving} compares all settings at the same time, so that one compiled program must "
            f"train them, and {first!r} and {other!r} need two; let only numbers vary that are data."
        )
    halving = halving_of(options)
    return [
        group._replace(experiment=dataclasses.replace(group.experiment, halving=halving)) for group in groups
    ]


def halving_of(options: SearchOptions) -> Halving:
    """Return when the settings of a search stop."""
    return Halving(options.halving, options.min_steps, metric_of(options.objective))


def check_objective_exists(placed: Experiment, objective: str) -> None:
    """Require that the best policies are evaluated again, and that the objective is a metric of that evaluation.

    Raises:
      ShoalError: they are not; or it is none, and the sentence has the nearest.
    """
    if not placed.run.num_absolute_episodes:
        raise ShoalError(
            "absolute_episodes=0 leaves out the evaluation by which settings are ranked; give at least 1."
        )
    if objective == ABSOLUTE:
        return
    run, first = placed.run, placed.solo[0]
    metrics = load_function("eval_metrics", run.eval_metrics) if run.eval_metrics else None
    settings = compiled_trainer.program_settings(run, 1, objective, metrics)
    try:
        compiled_trainer.check_score(first.environment, first.config, settings)
    except ShoalError as error:
        raise ShoalError(f"objective: {error}") from error
    if not is_metric_name(run.score):
        return
    compiled_trainer.check_score(first.environment, first.config, settings._replace(score=run.score))


def _statement(
    planned: Sequence[Planned], groups: int, needs: Sequence[memory_fit.Need], todo: Sequence[Group]
) -> str:
    """Say what a sweep will do, before it does it."""
    settings = sum(len(run.group.candidates) for run in planned)
    members = sum(run.group.experiment.num_members for run in planned)
    new = [run for run in planned if run.root == Path() or not run.is_finished]
    text = f"{_count(settings, 'setting')}, {_count(members, 'member')}, {_count(len(planned), 'run')}"
    if len(new) < len(planned):
        finished = len(planned) - len(new)
        text += f", of which {finished} {'is' if finished == 1 else 'are'} finished"
    sizes = [group.experiment.num_members for group in todo]
    largest = max((need.of(size, 1, True) for size, need in zip(sizes, needs, strict=True)), default=0.0)
    measured = "" if any(need.is_measured for need in needs) else "at least "
    compiled = f"{_count(groups, 'new compiled group')}, {_count(3 * len(new), 'compilation')}"
    memory_text = f"; a population takes {measured}{memory_limits.format_bytes(int(largest))}" if todo else ""
    return f"sweep: {text}; {compiled}{memory_text}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


@dataclasses.dataclass
class _RunListener:
    """Shows a run that is trained in the one line of a sweep: steps of all members, the best score now, the time left.

    Attributes:
      members: of all runs of the sweep.
      metric: of evaluations, by which settings are compared.
      done: steps of the runs before.
      best: of each run, the best score of a setting at the last evaluation.
    """

    run: Planned
    progress: Progress
    members: int
    metric: str
    done: int
    best: dict[str, float]

    def on_training(self, step: int, numbers: Mapping[str, np.ndarray]) -> None:
        """Show a log point of the run."""
        run = self.run.group.experiment.run
        steps = self.run.steps * (step // run.steps_per_update) // run.total_updates
        best = {"best": max(self.best.values())} if self.best else {}
        speed = float(numbers["steps_per_second"][0])
        self.progress.update((self.done + steps) // self.members, speed, **best)

    def on_evaluation(self, step: int, numbers: Mapping[str, np.ndarray]) -> None:
        """Take note of the scores of an evaluation of the run."""
        by_setting = np.asarray(numbers[self.metric], np.float64).reshape(-1, self.run.group.seeds)
        ranked = scores.rank_settings({str(k): row for k, row in enumerate(by_setting.tolist())})
        highest = next(iter(ranked.values())).iqm
        self.best.pop(self.run.name, None)
        if np.isfinite(highest):
            self.best[self.run.name] = highest


def train_all(
    planned: Sequence[Planned], objective: str, call: Caller, after_each: Callable[[], object]
) -> None:
    """Train the runs that are not finished, one after the other."""
    todo = [run for run in planned if not run.is_finished]
    if not todo:
        return
    title, metric = f"{todo[0].group.experiment.environment_name} sweep", metric_of(objective)
    members = sum(run.group.experiment.num_members for run in todo)
    steps, done, best = sum(run.steps for run in todo), 0, dict[str, float]()
    with Progress(steps // members, title, members=members, unit="members", quiet=not call.progress) as line:
        for run in todo:
            listener = _RunListener(run, line, members, metric, done, best)
            run_experiment(
                run.experiment, call._replace(progress=False, listeners=(*call.listeners, listener))
            )
            done += run.steps
            after_each()


def members_of_runs(planned: Sequence[Planned], options: SearchOptions) -> list[MemberResult]:
    """Return the results of the members of the finished runs, in the order of the settings."""
    found = [member for run in planned if run.is_finished for member in _members_of(run, options)]
    return sorted(found, key=lambda member: number_of(member.label))


def _members_of(run: Planned, options: SearchOptions) -> list[MemberResult]:
    """Return the results of a finished run's members, which are those that its `config.json` has."""
    summary, experiment = read_json(run.path / SUMMARY), run.group.experiment
    stopped = summary.get("stopped_after", {})
    size, budget = experiment.run.steps_per_update, experiment.run.total_steps
    rungs = experiment.halving.rungs(size, budget) if experiment.halving else []
    at_rung = _scores_at_rungs(run, metric_of(options.objective), stopped) if stopped else {}
    faults = {(x["label"], x["seed"]): x["update"] for x in summary["failed"]}
    settings = {candidate.label: candidate.settings for candidate in run.group.candidates}
    returns = {name: summary[name]["returns"] for name in (ABSOLUTE, "final") if summary[name]}
    if options.objective != ABSOLUTE:
        returns = {options.objective: summary["evaluation"][options.objective], **returns}
    results = []
    for k, member in enumerate(members_of_config(read_json(run.path / CONFIG))):
        key, stop = (member.label, member.seed), stopped.get(member.label)
        scores_of_member = {name: read_number(values[k]) for name, values in returns.items()}
        steps = summary["steps_per_seed"] if stop is None else stop
        failure = ""
        if stop is not None:
            scores_of_member = {AT_RUNG: at_rung[key]}
        if key in faults:
            failure = f"a number was not finite in update {faults[key]}"
            steps = faults[key] * experiment.run.steps_per_update
        results.append(
            MemberResult(
                member.label,
                settings[member.label],
                member.seed,
                scores_of_member,
                steps,
                rung=sum(x * experiment.run.steps_per_update < steps for x in rungs),
                failure=failure,
                unfinished=read_number(summary["evaluation"]["unfinished"][k]) if stop is None else 0.0,
            )
        )
    return results


def _scores_at_rungs(run: Planned, metric: str, stopped: Mapping[str, int]) -> dict[tuple[str, int], float]:
    """Return the scores by which members of the settings that were stopped early were compared last."""
    return {
        (row["label"], row["seed"]): read_number(row[metric])
        for row in RunDirectory.open(run.path).load_metrics()
        if row["kind"] == "evaluation" and row["step"] == stopped.get(row["label"])
    }


def confirm(
    request: Request,
    members: Sequence[MemberResult],
    candidates: Sequence[Candidate],
    directory: SweepDirectory,
    options: SearchOptions,
    call: Caller,
) -> list[Ranked]:
    """Train the best settings again on seeds that were never used, since the best of many scores flatters.

    Members that an earlier call trained are read, by label and seed, and missing ones are trained.
    """
    ranked = [x for x in rank(members, options.objective) if x.has_score][:CONFIRMED]
    if not options.confirm_seeds or not ranked:
        return []
    chosen = [x.label for x in ranked]
    run = request.decide().run
    seeds = range(run.seed + run.seeds, run.seed + run.seeds + options.confirm_seeds)
    planned = _plan_confirmation(request, chosen, seeds, candidates, directory)
    if not all(run.is_finished for run in planned):
        count = _count(options.confirm_seeds, "new seed")
        call.note(f"sweep: the best settings train again on {count}: {', '.join(chosen)}")
    train_all(planned, options.objective, call, lambda: None)
    found = {(x.label, x.seed): x for x in members_of_runs(planned, options)}
    again = [found[label, seed] for label in chosen for seed in seeds]  # their order decides between equals
    return rank(again, options.objective, others=members)


def _plan_confirmation(
    request: Request,
    chosen: Container[str],
    seeds: Sequence[int],
    candidates: Sequence[Candidate],
    directory: SweepDirectory,
) -> list[Planned]:
    """Return the runs that have some settings with some seeds: those on disk, and new ones for what these lack.

    A run on disk that is not finished counts only if all of its members are asked for.
    """

    def groups_of(some: Sequence[Candidate], first: int, last: int) -> list[Group]:
        overrides = {**request.overrides, "seed": first, "seeds": last - first + 1}
        return group_candidates(dataclasses.replace(request, overrides=overrides), some)

    by_label, stored = {x.label: x for x in candidates}, []
    for file in directory.path.glob(f"{CONFIRMATION}/*/{CONFIG}"):
        table = members_of_config(read_json(file))
        labels = dict.fromkeys(member.label for member in table)
        (group,) = groups_of([by_label[label] for label in labels], table[0].seed, table[-1].seed)
        stored.append(Planned(directory.path, f"{CONFIRMATION}/{file.parent.name}", group))
    missing = {(x.label, seed) for x in candidates if x.label in chosen for seed in seeds}
    planned = []
    for run in sorted(stored, key=lambda run: (not run.is_finished, run.name)):
        members = {(x.label, x.seed) for x in run.group.experiment.members}
        if members <= missing or (run.is_finished and members & missing):
            planned.append(run)
            missing -= members
    together: dict[tuple[int, int], list[Candidate]] = {}
    for candidate in candidates:
        if lacking := [seed for seed in seeds if (candidate.label, seed) in missing]:
            together.setdefault((lacking[0], lacking[-1]), []).append(candidate)
    for (first, last), some in together.items():
        for group in groups_of(some, first, last):
            name = "-".join(str(number_of(x.label)) for x in group.candidates)
            planned.append(Planned(directory.path, f"{CONFIRMATION}/{name}-seeds-{first}-to-{last}", group))
    return planned
