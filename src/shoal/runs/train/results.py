"""The result of a run: what `train` returns, and the content of `summary.json`."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_estimate
from shoal.config import struct
from shoal.engine import team
from shoal.engine.nonfinite import STOPPED, failed_members
from shoal.engine.population import member_layout
from shoal.engine.run import Run
from shoal.records import checkpoint_record
from shoal.records.directory import RunDirectory
from shoal.records.json_files import report_wrong_types
from shoal.records.members import Member, members_of_config
from shoal.records.metrics_file import METRICS, row_at
from shoal.records.summary import build_summary, chosen_score, variant_scores
from shoal.reports import run_html
from shoal.runs.plan.experiment import Experiment
from shoal.runs.policies.load import load
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.runs.train import compiled_trainer, finetuning, pieces
from shoal.runs.train.placement import place
from shoal.runs.train.resume import Finished
from shoal.types import Environment, Learner
from shoal.xla.facts import summary_facts


@dataclasses.dataclass(frozen=True, repr=False)
class TrainedRun:
    """A run that has ended; in a notebook it is shown as a table of its seeds with its curve.

    Attributes:
      path: its directory.
      summary: the content of `summary.json`.
      learner: the trained learner, every leaf with a leading member axis.
      evaluations: (environment steps, metrics) of each evaluation; a metric is an array, one number per member.
      environment: the environment that it was trained in.
      finished: what `resume` continues from if the run has no checkpoints; else None.
    """

    path: Path
    summary: Mapping[str, Any]
    learner: Any
    evaluations: list[tuple[int, Mapping[str, np.ndarray]]]
    environment: Environment
    finished: Finished | None = None

    def __repr__(self) -> str:
        seeds, score = self.summary["seeds"], self.summary["absolute"] or self.summary["final"]
        if score is None:
            result = "not evaluated"
        elif score["iqm"] is None or np.isnan(score["iqm"]):
            result = "no result"
        else:
            result = f"IQM {format_estimate(score['iqm'], score['interval'])}"
        if failed := [Member(x["seed"], x.get("label", "")).name for x in self.summary["failed"]]:
            result += f"; failed: {', '.join(failed)}"
        return (
            f"<{type(self).__name__} {self.summary['environment']}, {self.summary['algorithm']}, {len(seeds)} "
            f"{'seed' if len(seeds) == 1 else 'seeds'}, {self.summary['steps_per_seed']:,} steps each: {result}; "
            f"{self.path}>"
        )

    def _repr_html_(self) -> str:
        members = tuple(map(Member, self.summary["seeds"]))
        with contextlib.suppress(ShoalError):  # a directory that was removed or damaged since
            members = members_of_config(RunDirectory(self.path).load_config())
        failed = {(x["seed"], x.get("label", "")) for x in self.summary["failed"]}
        places = tuple(k for k, member in enumerate(members) if (member.seed, member.label) in failed)
        return run_html.run_html(repr(self)[1:-1], self.summary, self.evaluations, members, places)

    def policy(self, which: str = "best", seed: int | None = None, label: str | None = None) -> TrainedPolicy:
        """Load the policy of a member, as `shoal.load` does."""
        return load(self.path, which, seed=seed, label=label, environment=self.environment)


def finished_run(directory: RunDirectory, experiment: Experiment) -> TrainedRun:
    """Read a run that has reached its end; its learner is as it was saved, and `learner.local` is ()."""
    first = place(experiment)[1].solo[0]
    settings = compiled_trainer.program_settings(first.run, 1, "return_mean", None)
    # The structure is the algorithm's own, so that of the files only arrays are read.
    template = compiled_trainer.member_shapes(first.environment, first.config, settings).learner
    leaves, _ = directory.load_policy("last")
    saved = finetuning.learner_leaves(leaves, str(directory.path))
    learner = Learner(struct.with_named_leaves(template.shared, saved), ())
    with report_wrong_types(str(directory.path / METRICS)):
        evaluations = checkpoint_record.evaluations_of(directory.load_metrics())
    return TrainedRun(
        directory.path,
        directory.load_summary(),
        learner,
        [(updates * experiment.run.steps_per_update, metrics) for updates, metrics in evaluations],
        experiment.environment,
    )


def _stopped_after(experiment: Experiment, members: Run) -> dict[str, int]:
    """Return the environment steps of each member of the settings that were stopped early, by label."""
    is_stopped = np.asarray(members.fault) == STOPPED
    steps = np.asarray(members.updates) * experiment.run.steps_per_update
    rows = zip(experiment.members, is_stopped, steps, strict=True)
    return {member.label: int(x) for member, stopped, x in rows if stopped}


def _failures(experiment: Experiment, trained: pieces.TrainedPopulation) -> dict[int, dict[str, Any]]:
    """Return the entry in a summary of each member that was not trained to the end, by its place.

    `update` is the one in which a number was not finite, `last_policy_step` the environment steps of its last policy;
    the returns are those of the policies that it has, which are no scores.
    """
    members = trained.population
    faults, evaluated = np.asarray(members.fault), np.asarray(members.evaluated.updates)
    found = {"last_policy_return": trained.final, "best_policy_return": trained.absolute}
    return {
        k: {
            **experiment.members[k].columns,
            "update": int(faults[k]),
            "last_policy_step": int(evaluated[k]) * experiment.run.steps_per_update,
            **{name: float(x["return_mean"][k]) for name, x in found.items() if x},
        }
        for k in failed_members(faults)
    }


def _started_time(path: Path) -> float | None:
    """Return when a run wrote its first row of metrics, in seconds since the epoch; None if that is not known."""
    with contextlib.suppress(ShoalError, TypeError, KeyError):
        return float(row_at(path, 0)["time"])
    return None


def summarise(
    experiment: Experiment,
    trained: pieces.TrainedPopulation,
    *,
    import_seconds: float,
    path: Path,
    command: str | None,
) -> dict[str, Any]:
    """Build the summary of a finished run.

    Args:
      experiment: that was run.
      trained: the population.
      import_seconds: the duration of the imports.
      path: the run's directory, whose first row of metrics says when it started.
      command: the user's command line, quoted for a shell; None for a run from Python.
    """
    run, history, members = experiment.run, trained.history, experiment.members
    steps = history.updates * run.steps_per_update
    best = jax.device_get(trained.population.best.policy)
    environment = experiment.environment
    failed = _failures(experiment, trained)
    by_seed = {name: x.tolist() for name, x in trained.absolute.items()}
    final, absolute = (x["return_mean"].tolist() if x else None for x in (trained.final, trained.absolute))
    further: dict[str, Any] = {"name": run.name, "settings": experiment.differences}
    if (count := environment.num_agents) > 1:
        of_team = {"team_return": team.team_return_of(environment), "agent_steps_per_seed": steps * count}
        further["agents"] = {"count": count, **of_team}
    if run.score != "return_mean":
        further["score"] = chosen_score(run.score, trained.final, trained.absolute, failed)
    if history.stopped:
        further["stopped"] = history.stopped
    if experiment.variants:
        further["members"] = variant_scores(members, final, absolute, list(failed))
    if experiment.halving:
        further["stopped_after"] = _stopped_after(experiment, trained.population)
    summary = build_summary(
        environment=experiment.environment_name,
        algorithm=experiment.algorithm,
        seeds=[member.seed for member in members],
        steps_per_seed=steps,
        final=final,
        absolute=absolute,
        facts=summary_facts(),
        steps_per_second=float(np.sum(np.asarray(trained.population.updates)))
        * run.steps_per_update
        / max(history.seconds.train, 1e-9),  # a run that was stopped before its first update took none
        seconds={"import": import_seconds, **history.seconds._asdict()},
        costs=trained.costs._asdict(),
        parameters=[struct.named_leaves(member_layout.take_member(best, k)) for k in range(len(members))],
        failed=failed,
        started_time=_started_time(path),
        command=command,
        evaluation={"mode": run.eval_mode, "episodes": run.num_absolute_episodes, **by_seed},
        **further,
    )
    if experiment.evolution.tuned:  # members that copied each other are no sample of runs
        for part in filter(None, (summary["final"], summary["absolute"])):
            part["interval"] = None
    return summary
