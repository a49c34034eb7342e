"""Runs whose settings change while they train: exchanges between their members, schedules, and their files.

Every change follows an evaluation and precedes the next update, so that a checkpoint is from before both or after
both. The values stand in the config of the Run, whose leaves that change are a part of a checkpoint
(`ProgramSettings.changing`), and each change writes a row per member into `metrics.jsonl`, which a checkpoint counts:
so a run that is killed at any instant resumes with the same members.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors
from shoal.config import struct
from shoal.config.settings import find
from shoal.engine.loop import leaves_read
from shoal.engine.nonfinite import NOWHERE, failed_members
from shoal.engine.population import pbt_exchange as exchanges
from shoal.engine.population.pbt_exchange import Exchanged
from shoal.engine.run import ProgramSettings, Run
from shoal.monitor.run_report import Reporter
from shoal.records.directory import RunDirectory
from shoal.records.history import History
from shoal.records.json_files import read_json, report_wrong_types, write_json
from shoal.records.members import Variant
from shoal.records.pbt_lineage import Ancestor, Exchange, ancestors, schedule_of
from shoal.records.pbt_settings import NONE, Evolution, ScheduleStep
from shoal.reports import figures
from shoal.reports.pbt_lineage_plot import plot_lineage
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import compiled_trainer
from shoal.runs.train.compiled_trainer import CompiledRun
from shoal.runs.train.pieces import TrainedPopulation

SCHEDULE = "schedule.json"
LINEAGE = "lineage.png"
CONFIG = "config/"  # the prefix of the names of a config's leaves in a Run

Change = Callable[[Run, History], Run]


def leaves_of(experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """Find the leaves of the config that have the value of each setting that changes.

    A setting may be the value of several: the critic's learning rate is the actor's where it has none of its own.

    Raises:
      ShoalError: a leaf follows from the setting otherwise than by being equal to it.
    """
    found = {}
    for name in experiment.evolution.names:
        before = _config_leaves(experiment, {name: experiment.evolution.examples[0][name]})
        # The next float32 above the least value: within the bounds, and another number in every leaf that follows.
        probe = float(np.nextafter(np.float32(experiment.evolution.examples[0][name]), np.float32(np.inf)))
        after = _config_leaves(experiment, {name: probe})
        changed = [leaf for leaf, value in after.items() if value != before[leaf]]
        if not changed or any(after[leaf] != np.float32(probe) for leaf in changed):
            others = ", ".join(changed) or "nothing"
            raise ShoalError(f"{name} cannot change while a run trains, since {others} would follow from it.")
        found[name] = tuple(changed)
    return found


def check_read(experiment: Experiment, names: Iterable[str], settings: ProgramSettings) -> None:
    """Require that the updates of a run read the settings that change while it trains, and not only its start.

    Args:
      experiment: with all settings resolved.
      names: of the settings that change; others than numbers of the algorithm are not looked at.
      settings: static.
    Raises:
      ShoalError: a setting would change without effect.
    """
    config = experiment.solo[0].config
    # Others than numbers of the algorithm are read by the host, or shape the program.
    numbers = [x for x in names if (found := find(config, x)) and found.is_data]
    if not numbers:
        return
    read = leaves_read(compiled_trainer.member_shapes(experiment.solo[0].environment, config, settings))
    names_read = {leaf.rpartition("/")[2] for leaf in read if leaf.startswith(CONFIG)}
    for name in numbers:
        if name.rpartition(".")[2] not in names_read:
            found = find(config, name)
            needed = found.field.needs_to_change if found else ()
            hint = f"; it needs {' and '.join(map(str, needed))}" if needed else ""
            raise ShoalError(
                f"{name} cannot change while a run trains, since with these settings it is read only where a run "
                f"starts{hint}."
            )


def _config_leaves(experiment: Experiment, values: Mapping[str, float]) -> dict[str, Any]:
    """Return the leaves of the config, numbers of Python or NumPy, with some settings replaced."""
    alone = dataclasses.replace(experiment, evolution=NONE, variants=(Variant("probe", values),))
    config = jax.device_get(struct.as_arrays(alone.solo[0].config))
    return {name: x for name, x in struct.named_leaves(config).items() if np.ndim(x) == 0}


def names_in_run(leaves: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the leaves of a config by their names in a Run, for `ProgramSettings.changing`."""
    return tuple(CONFIG + leaf for names in leaves.values() for leaf in names)


def change_of(experiment: Experiment, compiled_run: CompiledRun, reporter: Reporter) -> Change | None:
    """Make the function that changes the settings of a population after each evaluation; None if none is needed.

    Args:
      experiment: with all settings resolved.
      compiled_run: the programs that train it.
      reporter: receives the rows of each change.
    """
    if not experiment.evolution:
        return None
    leaves = leaves_of(experiment)
    if not experiment.evolution.tuned:
        return functools.partial(follow_schedule, experiment.evolution.schedule, leaves, reporter)
    program = exchanges.compile_exchange(
        compiled_run.shapes, compiled_run.layout, experiment.evolution.tuned, leaves
    )
    return functools.partial(_exchange, program, reporter)


def _exchange(
    program: Callable[..., tuple[Run, Exchanged]], reporter: Reporter, population: Run, history: History
) -> Run:
    """Exchange, and write down what was done; exchange 0 gives the members their first settings."""
    start_time = time.perf_counter()
    number, scores = len(history.exchanges), np.asarray(history.evaluations[-1][1]["score"], np.float32)
    # Members that have failed are the worst, and copy others.
    scores = np.where(np.asarray(population.fault) == NOWHERE, scores, np.float32(-np.inf))
    population, exchanged = program(population, scores, np.int32(number))
    jax.block_until_ready(population)
    history.spend(evaluate=(seconds := time.perf_counter() - start_time))
    # A failed member that has copied another one trains again.
    fault = np.asarray(population.fault)
    history.frozen = [k for k in history.frozen if fault[k] != NOWHERE]
    parents, before, after = jax.device_get(tuple(exchanged))
    rows = [
        {
            "score": float(scores[k]),
            "parent": reporter.members[parent].seed,
            "settings_before": {name: float(x[k]) for name, x in before.items()},
            "settings": {name: float(x[k]) for name, x in after.items()},
            "exchange_seconds": seconds,
        }
        for k, parent in enumerate(parents)
    ]
    _report(reporter, history, rows, parents.tolist())
    return population


def follow_schedule(
    schedule: Sequence[ScheduleStep],
    leaves: Mapping[str, Sequence[str]],
    reporter: Reporter,
    population: Run,
    history: History,
) -> Run:
    """Give all members the settings that hold from here on.

    Args:
      leaves: of the config, by setting.
    """
    step = [step for step in schedule if step.updates <= history.updates][-1]
    found = struct.named_leaves(population.config)
    for name, of_setting in leaves.items():
        for leaf in of_setting:  # each has a buffer of its own, since training donates all of them
            x = found[leaf]
            new = np.full(x.shape, step.settings[name], x.dtype)
            found[leaf] = jax.device_put(new, x.sharding, may_alias=False)
    config = struct.with_named_leaves(population.config, found)
    members = reporter.members
    # Nobody copies another member: each is its own parent.
    rows = [{"parent": member.seed, "settings": dict(step.settings)} for member in members]
    _report(reporter, history, rows, list(range(len(members))))
    return dataclasses.replace(population, config=config)


def _report(
    reporter: Reporter, history: History, rows: Sequence[Mapping[str, Any]], parents: list[int]
) -> None:
    settings = {name: [row["settings"][name] for row in rows] for name in rows[0]["settings"]}
    history.exchanges.append(Exchange(history.updates, parents, settings))
    reporter.on_exchange(history.updates, rows)


def ranked_members(population: Run) -> list[int]:
    """Return the indices of the members by the scores of their best policies when these were chosen, best first.

    Those that have failed come last, in the order of their seeds.
    """
    scores, failed = np.asarray(population.best.score), failed_members(population.fault)
    is_failed = np.isin(np.arange(len(scores)), failed)
    # The last key counts first.
    return np.lexsort((np.where(np.isfinite(scores) & ~is_failed, -scores, np.inf), is_failed)).tolist()


def best_member(population: Run) -> int | None:
    """Return the index of the best member; None where all have failed."""
    first = ranked_members(population)[0]
    return None if first in failed_members(population.fault) else first


def line_of(history: History, member: int, updates: int) -> list[Ancestor]:
    """Return the line of descent of a member's policy of an evaluation; that of an untrained one is its start."""
    return ancestors(history.exchanges, member, max(1, updates))


def summarise_members(experiment: Experiment, trained: TrainedPopulation) -> dict[str, Any]:
    """Return the entries of a summary that a run of exchanging members has in addition.

    The best member is chosen by the evaluations during training; its return is from new episodes, so that it does not
    flatter. `settings` are those that last trained the best policy, `final_settings` those of the last one.
    """
    population, history = trained.population, trained.history
    best, evaluated = jax.device_get((population.best, population.evaluated.updates))
    failed, final = failed_members(population.fault), trained.final["return_mean"]
    entries = [
        {
            "seed": member.seed,
            "score": float(best.score[k]),
            "steps": int(best.updates[k]) * experiment.run.steps_per_update,
            "absolute": float(trained.absolute["return_mean"][k]) if trained.absolute else None,
            "final": float(final[k]),
            "settings": line_of(history, k, int(best.updates[k]))[-1].settings,
            "final_settings": line_of(history, k, int(evaluated[k]))[-1].settings,
            **({"failed": True} if k in failed else {}),
        }
        for k, member in enumerate(experiment.members)
    ]
    chosen = best_member(population)
    ranked = [entries[k] for k in ranked_members(population)]
    return {"members": ranked, "best": None if chosen is None else entries[chosen]}


def save_lineage(path: Path, experiment: Experiment, trained: TrainedPopulation) -> None:
    """Write the schedule of the best policy's line of descent, if there is one, and the picture of all.

    Args:
      path: the run's directory.
      experiment: that was run.
      trained: the population.
    Raises:
      ShoalError: a file cannot be written.
    """
    run, members, best = experiment.run, experiment.members, best_member(trained.population)
    history = trained.history
    best_updates = 0 if best is None else int(trained.population.best.updates[best])
    line = [] if best is None else line_of(history, best, best_updates)
    if best is None:
        with report_os_errors(f"{path / SCHEDULE} cannot be removed"):
            (path / SCHEDULE).unlink(missing_ok=True)  # of an earlier end of the run
    else:
        schedule = [
            {"updates": x.updates, "step": x.updates * run.steps_per_update, "settings": dict(x.settings)}
            for x in schedule_of(line)
        ]
        ancestry = [{"updates": x.updates, "seed": members[x.member].seed} for x in line]
        write_json(
            path / SCHEDULE, {"member": members[best].seed, "ancestors": ancestry, "schedule": schedule}
        )
    scores = {updates: metrics["score"] for updates, metrics in history.evaluations}
    with figures.as_warning(path / LINEAGE):
        plot_lineage(
            path / LINEAGE,
            history.exchanges,
            scores,
            line,
            best_updates=best_updates,
            scales={x.name: x.scale for x in experiment.evolution.tuned},
            steps_per_update=run.steps_per_update,
            title=f"{experiment.environment_name}, {experiment.algorithm}",
        )


def read_schedule(path: str | Path) -> Evolution:
    """Read the schedule of a run's best line of descent.

    Raises:
      ShoalError: the run has none.
    """
    directory = RunDirectory.open(path)
    file = directory.path / SCHEDULE
    if not file.is_file():
        raise ShoalError(
            f"run directory {str(directory.path)!r} holds no {SCHEDULE}; `shoal pbt` writes one at its end, where "
            "a member has not failed."
        )
    with report_wrong_types(str(file)):
        saved = read_json(file)["schedule"]
        return Evolution(schedule=tuple(ScheduleStep(x["updates"], x["settings"]) for x in saved))
