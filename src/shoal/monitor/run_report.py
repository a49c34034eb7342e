"""Reports of a run in progress: lines on the terminal, rows in metrics.jsonl, the learning curve."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from shoal.base.numbers import format_interval, format_number, format_numbers
from shoal.monitor.companions import Companions
from shoal.monitor.interim import InterimWriter
from shoal.monitor.listeners import Listeners, StartedRun
from shoal.monitor.progress import Progress
from shoal.records import curves, scores
from shoal.records.directory import RunDirectory
from shoal.records.episodes_file import EpisodesFile
from shoal.records.history import Numbers
from shoal.records.members import Member, Members, members_of
from shoal.records.metrics_file import Mark, MetricsWriter
from shoal.records.run_config import RunConfig
from shoal.records.summary import interval_lines, score_statistics
from shoal.reports import figures
from shoal.reports.plots import plot_learning_curve

MAX_SETTINGS = 5  # in the first line of a result
CLOSING_SECONDS = 5.0  # the wait at a run's end for rows that are being written
LARGE_CLIPPING = 0.01  # the share of targets beyond the bounds of a distribution of which a run says so
# The settings of these bounds, of which a run has one pair.
BOUNDS = (("v_min", "v_max"), ("value_low", "value_high"))
INTERIM_SECONDS = 15.0  # the wait for the picture of the run so far, whose imports take seconds


class Reporter:
    """A listener of the trainer; a context manager, so that the live line is always ended, and all rows are written.

    Rows of metrics.jsonl are written by a thread. If that fails, it is reported once, and the rows are tried again with
    the next ones: so training continues while a disk is full or hangs for some time.

    Args:
      notes: lines that are shown at the start; empty ones are not.
      mark: the end of the rows that are continued.
      listeners: are told the same, after the rows are added.
      companions: the processes beside the run, which may ask it to stop.
      episodes: the file of the evaluations' episodes; None where they are not kept.
    """

    def __init__(
        self,
        directory: RunDirectory,
        run: RunConfig,
        title: str,
        *,
        show: bool,
        notes: Sequence[str] = (),
        mark: Mark | None = None,
        evaluations: Sequence[tuple[int, Numbers]] = (),
        members: Members = (),
        listeners: Sequence[object] = (),
        algorithm: str = "",
        companions: Companions | None = None,
        episodes: EpisodesFile | None = None,
    ):
        self.directory, self.run, self.title, self.algorithm = directory, run, title, algorithm
        self._notes = notes
        self.members = members or members_of(range(run.seed, run.seed + run.seeds))
        self.listeners = Listeners(listeners)
        self.companions = Companions() if companions is None else companions
        self.metrics, self.episodes = directory.metrics_file(mark), episodes
        self._writer = MetricsWriter(self.metrics)
        self._interim = InterimWriter()
        total = run.total_updates * run.steps_per_update
        unit = "members" if self.members[0].label else "seeds"
        self.progress = Progress(total, title, members=len(self.members), unit=unit, quiet=not show)
        self.evaluations: list[tuple[int, np.ndarray]] = [
            (updates * run.steps_per_update, metrics["return_mean"]) for updates, metrics in evaluations
        ]
        self.updates_logged = 0  # number of updates at the last log point
        self._latest: Numbers = {}  # the metrics there

    def __enter__(self) -> "Reporter":
        self.progress.__enter__()
        for note in filter(None, self._notes):
            self.progress.note(note)
        requested, rounded = self.run.total_steps, self.run.total_updates * self.run.steps_per_update
        if rounded < requested:
            self.progress.note(
                f"total_steps={requested:,} is rounded down to {rounded:,}: "
                f"{self.run.total_updates:,} updates of {self.run.steps_per_update:,} steps"
            )
        every = self.run.checkpoint_every
        if self.run.checkpoints and every > rounded:
            self.progress.note(
                f"checkpoint_every={every:,} is longer than the run: it has checkpoints at its start and its end only"
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.progress.__exit__(kind, error, trace)

    def close(self) -> None:
        """Let the threads that write end; one that hangs is left behind."""
        self._writer.close(CLOSING_SECONDS)
        self._interim.close(INTERIM_SECONDS)

    def show_start(self, settings: str, parameters: int, update_flops: float, act_flops: float) -> None:
        """Show where the settings are from, and the costs of one member's network; FLOPs are those of its matrix
        products.
        """
        self.progress.note(
            f"settings: {settings}; {parameters:,} parameters; matrix products of an update of "
            f"{self.run.steps_per_update:,} steps take {update_flops / 1e6:,.3g} MFLOP, those of an action "
            f"{act_flops / 1e3:,.3g} kFLOP"
        )

    def start(self, updates: int) -> str:
        """Tell the listeners that a run starts or resumes; return a reason to end it at once, or "".

        Raises:
          Exception: a listener failed.
        """
        config, steps = self.directory.load_config(), updates * self.run.steps_per_update
        reason = self.listeners.tell("on_start", StartedRun(self.directory.path, config, self.members, steps))
        self.listeners.raise_error()
        return reason

    def on_training(self, updates: int, metrics: Numbers, seconds: float, steps_per_second: float) -> str:
        """Write a log point."""
        self.updates_logged, self._latest = updates, metrics
        speed = {"train_seconds": seconds, "steps_per_second": steps_per_second}
        numbers = {**metrics, **{name: np.full(len(self.members), x) for name, x in speed.items()}}
        self._write_rows("train", updates, self._by_member(numbers))
        steps = updates * self.run.steps_per_update
        returns = metrics["episode_return"]
        returns = returns[np.isfinite(returns)]
        shown = {"training return (sampled actions)": float(np.mean(returns))} if returns.size else {}
        self.progress.update(steps, steps_per_second, **shown)
        return self.listeners.tell("on_training", steps, _copies(numbers)) or self.companions.stop

    def warn_of_clipping(self, names: Sequence[str]) -> list[str]:
        """Say which bounds of a distribution of returns cut more than 1% of the latest targets; return the sentence.

        Args:
          names: of three metrics: the share of targets that were cut, and the least and the greatest target.
        """
        share, low, high = (np.asarray(self._latest.get(name, np.nan)) for name in names)
        if not (worst := np.max(share, initial=0.0, where=np.isfinite(share))) > LARGE_CLIPPING:
            return []
        settings = self.directory.load_config()["algorithm"]
        bounds = next(
            (x for x in BOUNDS if settings.get(x[0]) is not None), ("the lower bound", "the upper bound")
        )
        now = " and ".join(f"{name}={settings[name]:g}" if name in settings else name for name in bounds)
        fits = zip(bounds, (np.min, np.max), (low, high), strict=True)
        needed = [f"{name}={f(x[np.isfinite(x)]):.4g}" for name, f, x in fits if np.isfinite(x).any()]
        note = f"{worst:.0%} of the latest targets lie beyond {now}, and are learned as these bounds"
        note += f"; {' and '.join(needed)} would hold them" if needed else ""
        self.progress.warn(note)
        return [note]

    def flush(self) -> None:
        """Make all so far persist through a power failure; for any thread.

        Raises:
          ShoalError: that is not possible.
        """
        self.metrics.flush()
        if self.episodes is not None:
            self.episodes.write()

    def on_evaluation(self, updates: int, metrics: Numbers, episodes: Numbers | None = None) -> str:
        """Write an evaluation; its episodes are written with the next checkpoint."""
        if self.episodes is not None:
            self.episodes.add(updates, episodes or {})
        # The number goes on where a run resumes.
        rows = [{"evaluation": len(self.evaluations), **row} for row in self._by_member(metrics)]
        self._write_rows("evaluation", updates, rows)
        steps = updates * self.run.steps_per_update
        self.evaluations.append((steps, metrics["return_mean"]))
        return self.listeners.tell("on_evaluation", steps, _copies(metrics)) or self.companions.stop

    def on_exchange(self, updates: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Write the row of each member about an exchange, or another change of its settings."""
        self._write_rows("exchange", updates, rows)

    def _by_member(self, metrics: Numbers) -> list[dict[str, float]]:
        return [{name: float(x[k]) for name, x in metrics.items()} for k in range(len(self.members))]

    def _write_rows(self, kind: str, updates: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Append the row of each member to metrics.jsonl."""
        self.report_failure()
        steps = updates * self.run.steps_per_update
        point = {"kind": kind, "step": steps, "updates": updates, "time": time.time()}
        self._writer.add(
            {**point, **member.columns, **row} for member, row in zip(self.members, rows, strict=True)
        )

    def report_failure(self) -> None:
        """Say once that rows cannot be written."""
        failure, self._interim.failure = self._interim.failure, None
        if error := self._writer.take_failure() or failure:
            self.progress.warn(f"{error} Training continues.")

    def show_so_far(self, steps: int, best: Numbers, failed: Sequence[int]) -> None:
        """Request to write `progress.json` and the learning curve of the run so far; for any thread.

        Args:
          best: `score` of each member's best policy so far, and the `updates` after which it was reached.
        """
        evaluations = list(self.evaluations)
        self._interim.submit(lambda: self._write_so_far(steps, evaluations, best, failed))

    def _write_so_far(
        self, steps: int, evaluations: list[tuple[int, np.ndarray]], best: Numbers, failed: Sequence[int]
    ) -> None:
        entries = [self.members[k].columns for k in failed]
        names = {"environment": self.title, "algorithm": self.algorithm, "failed": entries}
        progress: dict[str, object] = {"finished": False, **names, "seeds": [x.seed for x in self.members]}
        if self.members[0].label:
            progress["labels"] = [x.label for x in self.members]
        progress |= {
            "steps_per_seed": steps,
            "total_steps_per_seed": self.run.total_updates * self.run.steps_per_update,
            "best": {"scores": best["score"], "steps": best["updates"] * self.run.steps_per_update},
            "written_time": time.time(),
        }
        if evaluations:
            step, returns = evaluations[-1]
            progress["last_evaluation"] = {"step": step, **score_statistics(returns.tolist(), failed)}
        self.directory.save_progress(progress)
        if evaluations:
            with contextlib.suppress(Exception):  # the end of the run draws it again, and says why it cannot
                self._draw_curve(names, evaluations)

    def end_interim(self) -> None:
        """End the writing about the run so far, since the run has finished."""
        self._interim.close(INTERIM_SECONDS, cancel=True)

    def draw_learning_curve(self, summary: Mapping[str, Any]) -> None:
        """Draw the learning curve of the whole run."""
        with figures.as_warning(self.directory.learning_curve):
            if self.evaluations:
                self._draw_curve(summary, self.evaluations)

    def _draw_curve(self, summary: Mapping[str, Any], evaluations: Sequence[tuple[int, np.ndarray]]) -> None:
        steps, columns = zip(*evaluations, strict=True)
        returns, unit = np.stack(columns), "seed"
        entries = [{name: x.get(name) for name in ("seed", "label")} for x in summary.get("failed", ())]
        failed = [k for k, x in enumerate(self.members) if {"label": None, **x.columns} in entries]
        if self.members[0].label:
            unit = "setting"
            returns, failed = _by_setting(returns, self.members, failed)
        title = f"{summary['environment']}, {summary['algorithm']}"
        plot_learning_curve(self.directory.learning_curve, steps, returns, title, unit=unit, failed=failed)


def _copies(numbers: Numbers) -> Numbers:
    """Return numbers that a listener may change without an effect on the run."""
    return {name: np.array(x) for name, x in numbers.items()}


def _by_setting(returns: np.ndarray, members: Members, failed: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Return the interquartile mean over the seeds of each setting, and the settings of which all seeds
    failed; next to others a failed seed counts as the worst of all members at each point.

    Returns:
      the means, [points, settings], NaN where no return is finite; and the indices of the settings.
    """
    columns, ended = [], []
    filled = curves.with_failures(returns, failed)
    worst = np.min(filled, axis=1, where=np.isfinite(filled), initial=np.inf)
    filled = np.where(np.isneginf(filled), worst[:, None], filled)
    for index, label in enumerate(dict.fromkeys(member.label for member in members)):
        places = [k for k, member in enumerate(members) if member.label == label]
        if set(places) <= set(failed):
            ended.append(index)
        seeds = (returns if index in ended else filled)[:, places].astype(np.float64)
        finite = [row[np.isfinite(row)] for row in seeds]
        columns.append([float(scores.iqm(row)) if row.size else np.nan for row in finite])
    return np.array(columns).T, ended


def result_text(summary: Mapping[str, Any], path: object) -> str:
    """Format the result of a run in a few lines."""
    seconds = summary["seconds"]
    num_seeds = len(summary["seeds"])
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} {'members' if 'members' in summary else 'seeds'}"
    name = f"{summary['name']}: " if summary.get("name") else ""
    return "\n".join(
        [
            f"{name}{summary['environment']}, {summary['algorithm']}, {seeds}, "
            f"{summary['steps_per_seed']:,} steps each{_settings_of(summary)}",
            *_team_line(summary),
            *([f"  stopped         by {summary['stopped']}"] if "stopped" in summary else []),
            *([] if have_all_failed(summary) else _result_lines(summary)),
            *_failed_lines(summary),
            f"  {summary['steps_per_second']:,.0f} steps/s of all seeds together; compile "
            f"{seconds['compile']:.1f} s, train {seconds['train']:.1f} s, evaluate {seconds['evaluate']:.1f} s",
            f"  {path}",
        ]
    )


def _settings_of(summary: Mapping[str, Any]) -> str:
    """Return the first settings in which a run differs from its preset."""
    found = [f"{name}={value}" for name, value in summary.get("settings", {}).items()]
    others = f" and {len(found) - MAX_SETTINGS} more" if len(found) > MAX_SETTINGS else ""
    return f"; {', '.join(found[:MAX_SETTINGS])}{others}" if found else ""


def have_all_failed(summary: Mapping[str, Any]) -> bool:
    """Report whether no seed was trained to the end, so that a run has no result."""
    return len(summary.get("failed", ())) == len(summary["seeds"])


def _result_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines with the scores of a run."""
    absolute, final = (summary[name] for name in ("absolute", "final"))
    best, last = "not evaluated again (absolute_episodes=0)", "not evaluated (eval_every='never')"
    if absolute:
        episodes = f"   ({summary['evaluation']['episodes']} new episodes each)"
        best = f"{_score_text(absolute, absolute['interval'])}{episodes}"
    if final:
        last = _score_text(final, None, absolute and absolute["interval"])
    return [
        *_setting_lines(summary),
        f"  best policies   {best}",
        f"  last policies   {last}",
        *(interval_lines(absolute["interval"], len(absolute["returns"])) if absolute else []),
        *_unfinished_lines(summary),
        *_score_lines(summary),
        *_best_lines(summary),
        *_not_finite_lines(summary),
    ]


def _score_text(score: Mapping[str, Any], *intervals: Sequence[float] | None) -> str:
    """Format a score, and that of the worst seed.

    Args:
      intervals: the first is printed, unless it is None; the first that is not says how many digits numbers have.
    """
    values = np.array(score["returns" if "returns" in score else "values"], np.float64)  # None becomes NaN
    iqm, worst = format_numbers([score["iqm"], values.min()], next(filter(None, intervals), None))
    return "  ".join(filter(None, [f"IQM {iqm}", format_interval(intervals[0]), f"worst seed {worst}"]))


def _failed_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line for each seed that was not trained to the end, and one if none was."""
    lines = [
        f"  failed          {Member(x['seed'], x.get('label', '')).name}: a number was not finite in update "
        f"{x['update']}; its last policy is that of step {x['last_policy_step']:,}{_policy_returns(x)}"
        for x in summary.get("failed", ())
    ]
    if have_all_failed(summary):
        lines.append("  none was trained to the end, so that there is no best policy")
    return lines


def _policy_returns(entry: Mapping[str, Any]) -> str:
    """Say what the policies of a seed that failed return, which is no score of it."""
    texts = {"last": " and returns {}", "best": "; its best one returns {}"}
    found = {text: entry.get(f"{which}_policy_return") for which, text in texts.items()}
    return "".join(
        text.format(format_number(x)) for text, x in found.items() if x is not None and np.isfinite(x)
    )


def _setting_lines(summary: Mapping[str, Any], shown: int = 5) -> list[str]:
    """Return lines with the best settings of a population, best first.

    There are none where members differ in seeds only, or change their settings while they train.
    """
    rows = [row for row in summary.get("members", []) if "label" in row]
    scores_shown = [(row["label"], row["absolute"] or row["final"]) for row in rows[:shown]]
    lines = [f"  {label}   IQM {format_number(x['iqm'], x['interval'])}" for label, x in scores_shown if x]
    return lines + ([f"  and {len(rows) - shown} more"] if len(rows) > shown else [])


def _team_line(summary: Mapping[str, Any]) -> list[str]:
    """Return a line that says how returns of several agents add up to a score; none for one agent."""
    agents = summary.get("agents")
    if not agents:
        return []
    return [
        f"  a return is the {agents['team_return']} over {agents['count']} agents, which made "
        f"{agents['agent_steps_per_seed']:,} agent-steps with each seed"
    ]


def _unfinished_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about episodes of the best policies that were cut before they ended; none where all ended."""
    shares = np.array(summary["evaluation"].get("unfinished", []), np.float64)
    cut = "of the new episodes were cut at eval_max_steps, and count by their return until then"
    return [f"  {np.nanmean(shares):.0%} {cut}"] if np.nansum(shares) else []


def _score_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about the score by which the best policies were chosen; none where that is the mean return."""
    if not (score := summary.get("score")):
        return []
    if "absolute" not in score:
        return [f"  the score {score['name']} chose the best policies"]
    interval = score["absolute"]["interval"]
    best, last = _score_text(score["absolute"], interval), format_number(score["final"]["iqm"], interval)
    return [f"  the score {score['name']} chose the best policies: {best}; last policies {last}"]


def _best_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line about the best member of a population that exchanged; none for other runs."""
    if "best" not in summary:
        return []
    best = summary["best"]
    values = ", ".join(f"{name}={x:.4g}" for name, x in best["settings"].items())
    score = f"score {format_number(best['score'])} when chosen"
    if best["absolute"] is not None:
        score = f"{format_number(best['absolute'])} in new episodes"
    return [
        f"  best member     seed {best['seed']}: {score}   (of step {best['steps']:,}, trained with {values})"
    ]


def _not_finite_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return a line that names the seeds whose returns are not finite, besides those that failed; none for none."""
    found = [summary[name]["returns"] for name in ("absolute", "final") if summary[name]]
    values = np.array(found, np.float64).reshape(-1, len(summary["seeds"]))
    is_finite = np.all(np.isfinite(values) | np.isneginf(values), axis=0).tolist()
    seeds = [str(seed) for seed, finite in zip(summary["seeds"], is_finite, strict=True) if not finite]
    if seeds and "members" in summary:
        return [f"  returns that are not finite: {len(seeds)} of {len(is_finite)} members"]
    return [f"  returns that are not finite: seed {', '.join(seeds)}"] if seeds else []
