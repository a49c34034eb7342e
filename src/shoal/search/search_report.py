"""The results of a sweep: tables, pictures, the best setting and the command that trains it alone."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.installation import revision
from shoal.base.numbers import format_estimate
from shoal.engine.population.member_layout import lay_out
from shoal.records.directory import CONFIG, SUMMARY, RunDirectory
from shoal.records.json_files import read_json, read_number, write_json
from shoal.records.members import members_of_config
from shoal.records.search_files import CONFIRMATION, MEMBERS, WINNER
from shoal.records.summary import interval_lines
from shoal.reports import figures
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import placement
from shoal.search import ranking, sweep_plots
from shoal.search.grouping import Planned, devices_alone
from shoal.search.ranking import MemberResult, Ranked, rank
from shoal.search.space import Space
from shoal.search.sweep_directory import SweepDirectory
from shoal.xla.facts import device, versions

SCHEMA = 2
SHOWN = 3  # settings with curves, of the best and of the worst


@dataclasses.dataclass(frozen=True)
class Report:
    """Writes the results of a sweep into its directory."""

    directory: SweepDirectory
    space: Space
    base: Experiment
    objective: str

    def write(self, members: Sequence[MemberResult]) -> None:
        """Write the table of the members that have results."""
        ranking.write_members(self.directory.path / MEMBERS, members, self.space.names)

    def finish(
        self, members: Sequence[MemberResult], runs: Sequence[Planned], confirmed: Sequence[Ranked]
    ) -> dict[str, Any]:
        """Write all results, and return the summary.

        Raises:
          ShoalError: a file cannot be written.
        """
        path, ranked = self.directory.path, rank(members, self.objective)
        self.write(members)
        best = self._best(ranked, confirmed)
        found = next((x for x in ranked if best and x.label == best["label"]), None)
        command, likeness = self._write_winner(found, runs) if found else (None, "")
        summary = {
            "schema": SCHEMA,
            "environment": self.base.environment_name,
            "algorithm": self.base.algorithm,
            "objective": self.objective,
            "members": ranking.summarise(ranked),
            "confirmed": ranking.summarise(confirmed),
            "best": best,
            "command": command,
            "command_is": likeness,
            "versions": versions(),
            "revision": revision(),
            "device": device(),
        }
        write_json(path / SUMMARY, summary)
        with figures.as_warning(path / "settings.png"):
            self._draw(ranked, runs)
        return summary

    def _best(self, ranked: Sequence[Ranked], confirmed: Sequence[Ranked]) -> dict[str, Any] | None:
        """Return the setting that is called the best: by its confirmed score, where any was confirmed.

        One that failed with all seeds when it was trained again is not, whatever its score was before.
        """
        again = {x.label: x for x in confirmed}
        unconfirmed = [x for x in ranked if x.label not in again]
        chosen = next((x for x in [*confirmed, *unconfirmed] if x.has_score), None)
        if chosen is None:
            return None
        optimistic = next(x for x in ranked if x.label == chosen.label)
        return {
            "label": chosen.label,
            "run": self._run_of(optimistic, again.get(chosen.label)),
            "settings": dict(chosen.settings),
            "score": _score(chosen),
            "optimistic": _score(optimistic),
            "confirmed": _score(again[chosen.label]) if chosen.label in again else None,
        }

    def _run_of(self, ranked: Ranked, again: Ranked | None) -> str | None:
        """Return the run with the policies of a setting: where it was stopped early, the best of its confirmation."""
        path = self.directory.path
        if not ranked.stopped:
            return next(name for name, labels in self.directory.plan().items() if ranked.label in labels)
        if again is None:
            return None
        survived = [
            (x, seed) for seed, x in zip(again.seeds, again.scores, strict=True) if seed not in again.failed
        ]
        seed = max(survived, key=lambda item: item[0])[1]
        for file in sorted(path.glob(f"{CONFIRMATION}/*/{CONFIG}")):
            table = members_of_config(read_json(file))
            if (file.parent / SUMMARY).is_file() and any(
                (x.label, x.seed) == (again.label, seed) for x in table
            ):
                return str(file.parent.relative_to(path))
        return None

    def _write_winner(self, best: Ranked, runs: Sequence[Planned]) -> tuple[str, str]:
        """Write the best setting as a `config.json`; return the command that trains it alone, and how alike that is."""
        run = next(run for run in runs if any(x.label == best.label for x in run.group.candidates))
        place = [x.label for x in run.group.candidates].index(best.label)
        devices, placed = placement.place(run.group.experiment)
        solo, of_sweep = placed.solo[place], placed.run
        solo = dataclasses.replace(solo, run=dataclasses.replace(solo.run, devices=0, run_dir=""))
        write_json(self.directory.path / WINNER, solo.as_json(), not_finite=str)
        config, target = (shlex.quote(str(self.directory.path / x)) for x in (WINNER, "winner"))
        flags, likeness = _flags_alone(placed, devices)
        command = (
            f"shoal train --config {config} --env-groups {of_sweep.env_groups} {flags} --run-dir {target}"
        )
        return command, "over the whole budget" if best.stopped else likeness

    def _draw(self, ranked: Sequence[Ranked], runs: Sequence[Planned]) -> None:
        """Draw the pictures that have something to show."""
        path, space = self.directory.path, self.space
        title = f"{self.base.environment_name}, {self.base.algorithm}"
        finite = [x for x in ranked if x.has_score]
        if len(finite) < 2:
            return
        label = "score" if self.objective == "absolute" else self.objective
        found = ranking.importances(ranked, space)
        scored = sweep_plots.ScoredSettings(ranked, space, title, [x.name for x in found], label)
        sweep_plots.plot_settings(path / "settings.png", scored)
        sweep_plots.plot_importances(path / "importances.png", found, title)
        if len(space.names) > 1:
            sweep_plots.plot_pairs(path / "pairs.png", scored)
            sweep_plots.plot_parallel(path / "parallel.png", scored)
        metric = "return_mean" if self.objective == "absolute" else self.objective
        if not self.base.run.is_evaluated:
            return
        shown = min(SHOWN, len(finite) // 2)
        curves = _curves(runs, metric, [*finite[:shown], *finite[-shown:]])
        best, worst = (
            {x.label: curves[x.label] for x in part} for part in (finite[:shown], finite[: -shown - 1 : -1])
        )
        sweep_plots.plot_best_and_worst(path / "curves.png", best, worst, title, label=label)


def _flags_alone(of_sweep: Experiment, devices: Sequence[Any]) -> tuple[str, str]:
    """Return the flags with which a setting trains alone, and how alike the numbers are to those of the sweep's run."""
    run, members = of_sweep.run, of_sweep.num_members
    mapped_by = lay_out(devices, members, run.env_groups, run.seed_batching).mapped_by
    if mapped_by != "map" or devices[0].platform != "cpu":
        return f"--devices {len(devices)}", "equal but for rounding"
    count, seeds = devices_alone(len(devices), members, run.seeds, run.env_groups)
    if seeds == run.seeds:
        return f"--devices {count}", "bit for bit"
    return f"--seeds {seeds} --devices {count}", "bit for bit, with a further seed"


def _curves(runs: Sequence[Planned], metric: str, ranked: Sequence[Ranked]) -> dict[str, tuple[Any, Any]]:
    """Return the environment steps and the scores [points, seeds] of the evaluations of some settings.

    Seeds that failed are left out, since they were not trained to the end.
    """
    failed = {x.label: x.failed for x in ranked}
    found: dict[str, dict[int, list[float]]] = {label: {} for label in failed}
    for run in runs:
        if not any(x.label in found for x in run.group.candidates):
            continue
        for row in RunDirectory.open(run.path).load_metrics():
            label = row["label"]
            if row["kind"] == "evaluation" and label in found and row["seed"] not in failed[label]:
                points = found[label].setdefault(row["step"], [])
                points.append(read_number(row[metric]))
    return {label: (list(points), np.array(list(points.values()))) for label, points in found.items()}


def _score(ranked: Ranked) -> dict[str, Any]:
    return {
        "iqm": ranked.score,
        "interval": None if ranked.interval is None else list(ranked.interval),
        "seeds": list(ranked.seeds),
        "failed": list(ranked.failed),
    }


def result_text(summary: Mapping[str, Any], path: Path, shown: int = 5) -> str:
    """Format the result of a sweep in a few lines."""
    best, count = summary["best"], len(summary["members"])
    lines = [f"{summary['environment']}, {summary['algorithm']}, {count} settings, by {summary['objective']}"]
    lines += _setting_lines(summary["members"][:shown])
    if count > shown:
        lines.append(f"  and {count - shown} more, in {path / MEMBERS}")
    if failed := failed_seeds(summary["members"][shown:]):
        lines.append(f"  failed among these: {failed}")
    if summary["confirmed"]:
        new = len(summary["confirmed"][0]["seeds"])
        lines.append(f"trained again on {new} new {'seed' if new == 1 else 'seeds'}:")
        lines += _setting_lines(summary["confirmed"])
    if best is None:
        lines.append("there is no best setting")
    else:
        lines.append(f"best: {best['label']}; alone it is trained, {summary['command_is']}, by")
        lines.append(f"  {summary['command']}")
    return "\n".join([*lines, f"  {path}"])


def _setting_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Format a line for each setting, and one about intervals of few seeds."""
    found = [(entry.get("absolute") or entry["at_rung"])["interval"] for entry in entries]
    interval = next((x for x in found if x is not None), None)
    lines = interval_lines(interval, len(entries[0]["seeds"])) if entries else []
    return [*(_setting_line(entry) for entry in entries), *lines]


def _setting_line(entry: Mapping[str, Any]) -> str:
    """Format an entry of `members` or `confirmed`: score, label, and what happened before the end."""
    score = entry.get("absolute") or entry["at_rung"]
    stopped = "" if "absolute" in entry else f"   stopped after {entry['steps_per_seed']:,} steps"
    failed = f"   failed: {_seeds(entry['failed'])}" if entry["failed"] else ""
    share = entry["unfinished"]
    cut = f"   {share:.0%} of the episodes cut at eval_max_steps" if share else ""
    return f"  {_shown(score):<28}{entry['label']}{stopped}{failed}{cut}"


def failed_seeds(entries: Sequence[Mapping[str, Any]]) -> str:
    """Name the settings with seeds that failed, and these; "" if there are none."""
    return ", ".join(f"{entry['label']} ({_seeds(entry['failed'])})" for entry in entries if entry["failed"])


def _seeds(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def check_has_best(summary: Mapping[str, Any], path: Path) -> None:
    """Require that a sweep has a best setting, unless other processes have trained all trials of its study.

    Raises:
      ShoalError: every setting failed with all seeds, or with all new ones; the sentence names them.
    """
    if summary["best"] is None and summary["members"]:
        failed = failed_seeds([*summary["members"], *summary["confirmed"]])
        raise ShoalError(
            f"no setting is the best, since a number was not finite in the training of each: {failed}; the results are "
            f"in {path}."
        )


def _shown(score: Mapping[str, Any]) -> str:
    """Format a score and its interval."""
    if score["iqm"] is None or np.isnan(score["iqm"]):
        return "no score"
    return format_estimate(score["iqm"], score["interval"])
