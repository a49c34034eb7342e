"""The results of a sweep: tables, pictures, the best setting and the command that trains it alone."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal import device_choices
from shoal.experiment import Experiment
from shoal.runtime.disk.directory import CONFIG, SUMMARY, RunDirectory
from shoal.runtime.disk.json_files import read_json, write_json
from shoal.runtime.disk.summary import device, revision, versions
from shoal.runtime.disk.sweep_files import CONFIRMATION, MEMBERS, WINNER
from shoal.runtime.population import lay_out
from shoal.sweeps import results, sweep_plots
from shoal.sweeps.plan import Group, devices_alone
from shoal.sweeps.results import MemberResult, Ranked, rank
from shoal.sweeps.space import Space
from shoal.sweeps.sweep_directory import SweepDirectory

SCHEMA = 2  # in 1, `failed` was a number of seeds
SHOWN = 3  # settings with curves, of the best and of the worst


class Run(Protocol):
    """A run of a sweep."""

    @property
    def path(self) -> Path:
        """Its directory."""
        ...

    @property
    def group(self) -> Group:
        """The settings that it trains."""
        ...


class Judged(Protocol):
    """The options of a sweep that its report reads."""

    @property
    def objective(self) -> str:
        """The name of the score."""
        ...


class Report:
    """Writes the results of a sweep into its directory.

    Args:
      directory: of the sweep.
      space: its settings.
      base: the experiment without them.
      options: of the sweep.
    """

    def __init__(self, directory: SweepDirectory, space: Space, base: Experiment, options: Judged):
        self._directory, self._space, self._base, self._objective = directory, space, base, options.objective
        self._title = f"{base.environment_name}, {base.algorithm}"

    def write(self, members: Sequence[MemberResult]) -> None:
        """Write the table of the members that have results."""
        results.write_members(self._directory.path / MEMBERS, members, self._space.names)

    def finish(
        self, members: Sequence[MemberResult], runs: Sequence[Run], confirmed: Sequence[Ranked]
    ) -> dict[str, Any]:
        """Write all results, and return the summary.

        Args:
          members: what they reached.
          runs: of the sweep.
          confirmed: the best settings after they were trained again, best first.
        Raises:
          ShoalError: a file cannot be written.
        """
        path, ranked = self._directory.path, rank(members, self._objective)
        self.write(members)
        best = self._best(ranked, confirmed)
        found = next((x for x in ranked if best and x.label == best["label"]), None)
        command, likeness = self._write_winner(found, runs) if found else (None, "")
        summary = {
            "schema": SCHEMA,
            "environment": self._base.environment_name,
            "algorithm": self._base.algorithm,
            "objective": self._objective,
            "members": results.summarise(ranked),
            "confirmed": results.summarise(confirmed),
            "best": best,
            "command": command,
            "command_is": likeness,
            "versions": versions(),
            "revision": revision(),
            "device": device(),
        }
        write_json(path / SUMMARY, summary)
        self._draw(ranked, runs)
        return summary

    def _best(self, ranked: Sequence[Ranked], confirmed: Sequence[Ranked]) -> dict[str, Any] | None:
        """Return the setting that is called the best: by its confirmed score, where there is one."""
        chosen = next((x for x in [*confirmed, *ranked] if not np.isnan(x.score)), None)
        if chosen is None:
            return None
        optimistic = next(x for x in ranked if x.label == chosen.label)
        again = next((x for x in confirmed if x.label == chosen.label), None)
        return {
            "label": chosen.label,
            "run": self._run_of(optimistic),
            "settings": dict(chosen.settings),
            "score": _score(again or optimistic),
            "optimistic": _score(optimistic),
            "confirmed": None if again is None else _score(again),
        }

    def _run_of(self, ranked: Ranked) -> str | None:
        """Return the run with the policies of a setting: where it was stopped early, that of its confirmation."""
        path = self._directory.path
        if not ranked.stopped:
            return next(name for name, labels in self._directory.plan().items() if ranked.label in labels)
        for config in sorted(path.glob(f"{CONFIRMATION}/*/{CONFIG}")):
            if any(variant["label"] == ranked.label for variant in read_json(config)["variants"]):
                return str(config.parent.relative_to(path))
        return None

    def _write_winner(self, best: Ranked, runs: Sequence[Run]) -> tuple[str, str]:
        """Write the best setting as a `config.json`; return the command that trains it alone, and how alike that is."""
        run = next(run for run in runs if any(x.label == best.label for x in run.group.candidates))
        place = [x.label for x in run.group.candidates].index(best.label)
        devices, placed = device_choices.place(run.group.experiment)
        solo, of_sweep = placed.solo[place], placed.run
        solo = dataclasses.replace(solo, run=dataclasses.replace(solo.run, devices=0, run_dir=""))
        write_json(self._directory.path / WINNER, solo.as_json(), not_finite=str)
        config, target = (shlex.quote(str(self._directory.path / x)) for x in (WINNER, "winner"))
        flags, likeness = _flags_alone(placed, devices)
        command = (
            f"shoal train --config {config} --env-groups {of_sweep.env_groups} {flags} --run-dir {target}"
        )
        return command, "over the whole budget" if best.stopped else likeness

    def _draw(self, ranked: Sequence[Ranked], runs: Sequence[Run]) -> None:
        """Draw the pictures that have something to show."""
        path, space, title = self._directory.path, self._space, self._title
        finite = [x for x in ranked if not np.isnan(x.score)]
        if len(finite) < 2:
            return
        label = "score" if self._objective == "absolute" else self._objective
        found = results.importances(ranked, space)
        names = [x.name for x in found]
        sweep_plots.plot_settings(path / "settings.png", ranked, space, title, names=names, label=label)
        sweep_plots.plot_importances(path / "importances.png", found, title)
        if len(space.names) > 1:
            sweep_plots.plot_pairs(path / "pairs.png", ranked, space, title, names=names, label=label)
            sweep_plots.plot_parallel(path / "parallel.png", ranked, space, title, names=names, label=label)
        metric = "return_mean" if self._objective == "absolute" else self._objective
        shown = min(SHOWN, len(finite) // 2)
        chosen = [x.label for x in (*finite[:shown], *finite[::-1][:shown])]
        curves = _curves(runs, metric, chosen)
        best, worst = ({name: curves[name] for name in part} for part in (chosen[:shown], chosen[shown:]))
        sweep_plots.plot_best_and_worst(path / "curves.png", best, worst, title, label=label)


def _flags_alone(of_sweep: Experiment, devices: Sequence[Any]) -> tuple[str, str]:
    """Return the flags with which a setting trains alone, and how alike the numbers are to those of the sweep's run."""
    run, members = of_sweep.run, of_sweep.num_members
    mapped_by = lay_out(devices, members, run.env_groups, run.members).mapped_by
    if mapped_by != "map" or devices[0].platform != "cpu":
        return f"--devices {len(devices)}", "equal but for rounding"
    count, seeds = devices_alone(len(devices), members, run.seeds, run.env_groups)
    if seeds == run.seeds:
        return f"--devices {count}", "bit for bit"
    return f"--seeds {seeds} --devices {count}", "bit for bit, with a further seed"


def _curves(runs: Sequence[Run], metric: str, labels: Sequence[str]) -> dict[str, tuple[Any, Any]]:
    """Return the environment steps and the scores [points, seeds] of the evaluations of some settings."""
    found: dict[str, dict[int, list[float]]] = {label: {} for label in labels}
    for run in runs:
        if not any(x.label in found for x in run.group.candidates):
            continue
        for row in RunDirectory.open(run.path).load_metrics():
            if row["kind"] == "evaluation" and row["label"] in found:
                value = row[metric]
                points = found[row["label"]].setdefault(row["step"], [])
                points.append(float("nan") if value is None else value)
    return {label: (list(points), np.array(list(points.values()))) for label, points in found.items()}


def _score(ranked: Ranked) -> dict[str, Any]:
    return {
        "iqm": ranked.score,
        "interval": None if ranked.interval is None else list(ranked.interval),
        "seeds": list(ranked.seeds),
    }


def result_text(summary: Mapping[str, Any], path: Path, shown: int = 5) -> str:
    """Format the result of a sweep in a few lines.

    Args:
      summary: of the sweep.
      path: its directory.
      shown: the number of settings that are listed.
    """
    best, count = summary["best"], len(summary["members"])
    lines = [f"{summary['environment']}, {summary['algorithm']}, {count} settings, by {summary['objective']}"]
    for entry in summary["members"][:shown]:
        score = entry.get("absolute") or entry["at_rung"]
        stopped = "" if "absolute" in entry else f"   stopped after {entry['steps_per_seed']:,} steps"
        failed = f"   {_failed_seeds(entry)}" if entry["failed"] else ""
        lines.append(f"  {_shown(score):<28}{entry['label']}{stopped}{failed}")
    if count > shown:
        lines.append(f"  and {count - shown} more, in {path / MEMBERS}")
    if summary["confirmed"]:
        lines.append(f"trained again on {len(summary['confirmed'][0]['seeds'])} new seeds:")
        lines += [f"  {_shown(x['absolute']):<28}{x['label']}" for x in summary["confirmed"]]
    if best is None:
        lines.append("no score was finite, so that no setting is the best")
    else:
        lines.append(f"best: {best['label']}; alone it is trained, {summary['command_is']}, by")
        lines.append(f"  {summary['command']}")
    return "\n".join([*lines, f"  {path}"])


def _failed_seeds(entry: Mapping[str, Any]) -> str:
    """Name the seeds of a setting that failed."""
    seeds = entry["failed"]
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))} failed"


def _shown(score: Mapping[str, Any]) -> str:
    """Format a score and its interval."""
    if score["iqm"] is None or np.isnan(score["iqm"]):
        return "no finite score"
    low_high = score["interval"]
    interval = "" if low_high is None else f"  [{low_high[0]:.4g}, {low_high[1]:.4g}]"
    return f"{score['iqm']:.4g}{interval}"
