"""The summary of a run: scores over seeds, speed, checksums, versions and device."""

import datetime
import platform
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from shoal.base.imports import import_name
from shoal.records import scores
from shoal.records.arrays import Leaf
from shoal.records.directory import parameters_sha256
from shoal.records.members import Members, places_by_label

SCHEMA = 2  # counts up when a field changes its meaning


class Statistics(TypedDict):
    """The scores of seeds, their interquartile mean and its 95% interval, None for too few of them."""

    returns: list[float]
    iqm: float
    interval: list[float] | None


def build_summary(
    *,
    environment: str,
    algorithm: str,
    seeds: Sequence[int],
    steps_per_seed: int,
    final: Sequence[float] | None,
    absolute: Sequence[float] | None,
    steps_per_second: float,
    seconds: Mapping[str, float],
    parameters: Sequence[Mapping[str, Leaf]],
    facts: Mapping[str, object],
    failed: Mapping[int, Mapping[str, object]] | None = None,
    started_time: float | None = None,
    command: str | None = None,
    **further: object,
) -> dict[str, Any]:
    """Build the content of `summary.json`.

    Args:
      final: mean return of each seed's last policy; None where it was not evaluated.
      absolute: mean return of each seed's best policy, evaluated again on more episodes (Gorsane et al. 2022); None
        where it was not.
      steps_per_second: of all seeds together, without compilation and evaluation.
      seconds: wall time by part: "import", "compile", "train", "evaluate".
      facts: of the machine, as `xla.facts.summary_facts` has them.
      failed: an entry for each seed that was not trained to the end, by its place.
      started_time: when training started, in seconds since the epoch; None if that is not known.
      command: the user's command line, quoted for a shell; None for a run from Python.
    """
    failed = failed or {}
    return {
        "schema": SCHEMA,
        "environment": environment,
        "algorithm": algorithm,
        "seeds": list(seeds),
        "steps_per_seed": steps_per_seed,
        "failed": list(failed.values()),
        "final": None if final is None else score_statistics(final, failed),
        "absolute": None if absolute is None else score_statistics(absolute, failed),
        "steps_per_second": steps_per_second,
        "seconds": dict(seconds),
        "parameters_sha256": [parameters_sha256(leaves) for leaves in parameters],
        **facts,
        "started_time": None if started_time is None else iso_time(started_time),
        "ended_time": iso_time(time.time()),
        "host": platform.node(),
        "command": command,
        **further,
    }


def iso_time(seconds: float) -> str:
    """Format seconds since the epoch as a time in UTC by ISO 8601, such as 2026-01-31T09:30:00+00:00."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")


def score_statistics(returns: Sequence[float] | np.ndarray, failed: Collection[int] = ()) -> Statistics:
    """Compute the interquartile mean of returns, one per seed, and its 95% bootstrap interval; None for too few seeds.

    A seed that failed has minus infinity, whatever its policy from before returns: it is the worst there is.
    Where all have failed there is no score: the mean is NaN, and the interval None.

    Args:
      failed: the places of the seeds that failed.
    Source: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical
    Precipice".
    """
    values = np.array(returns, np.float64)
    values[list(failed)] = -np.inf
    interval = scores.score_interval(values)
    return {
        "returns": values.tolist(),
        "iqm": float(scores.iqm(values)) if len(failed) < len(values) else float("nan"),
        "interval": None if interval is None else list(interval),
    }


def interval_lines(interval: Sequence[float] | None, seeds: int) -> list[str]:
    """Return the line that follows an interval of few seeds; none where there is no interval, or seeds enough."""
    note = "" if interval is None else scores.few_seeds_note(seeds)
    return [f"  {note}"] if note else []


def chosen_score(
    score: str | Callable[..., object],
    final: Mapping[str, np.ndarray],
    absolute: Mapping[str, np.ndarray],
    failed: Collection[int] = (),
) -> dict[str, object]:
    """Return the name of the score that chose the best policies, and its statistics where it is a metric."""
    name = score if isinstance(score, str) else import_name(score)
    found = {"final": final, "absolute": absolute}
    parts = {part: score_statistics(x[name], failed) for part, x in found.items() if name in x}
    return {"name": name} | {
        part: {"values": x["returns"], "iqm": x["iqm"], "interval": x["interval"]}
        for part, x in parts.items()
    }


def variant_scores(
    members: Members,
    final: Sequence[float] | None,
    absolute: Sequence[float] | None,
    failed: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """Compute the scores of the variants of a population, sorted as `rank_settings` sorts their absolute ones, or
    else their final ones; failed members count as the worst of the population. A score that there is not is None.
    """
    places = places_by_label(members)

    def ranked(returns: Sequence[float] | None) -> dict[str, scores.SettingScore]:
        if returns is None:
            return {}
        return scores.rank_settings(
            {label: [np.nan if k in failed else returns[k] for k in own] for label, own in places.items()}
        )

    finals, absolutes, rows = ranked(final), ranked(absolute), []
    for label in absolutes or finals or places:
        failures = [members[k].seed for k in places[label] if k in failed]
        # Their scores have the worst of all settings where a seed failed, as in the ranking.
        found = {"absolute": absolutes.get(label), "final": finals.get(label)}
        rows.append(
            {
                "label": label,
                "settings": dict(members[places[label][0]].settings),
                "seeds": [members[k].seed for k in places[label]],
                **{name: x and score_statistics(x.scores) for name, x in found.items()},
                **({"failed": failures} if failures else {}),
            }
        )
    return rows


def statistics_by_episode(metrics: Sequence[Mapping[str, float]]) -> dict[str, dict[str, list[object]]]:
    """Compute the results of trials by the index of their episodes, from each seed's metrics of an evaluation.

    Returns:
      `return`, and `success` where the environment reports it, each with lists over the episodes: the seeds' means of
      `mean`, `median` and `p20`; `seeds`, each seed's mean; `iqm` of these and its 95% `interval`. Empty for
      evaluations without trials.
    """
    key_formats = {name: f"info_{name}_of_episode_{{}}_{{}}" for name in ("return", "success")}
    statistics: dict[str, dict[str, list[object]]] = {}
    for name, key in key_formats.items():
        count = sum(key.format(index, "mean") in metrics[0] for index in range(len(metrics[0])))
        if not count:
            continue
        table = {
            statistic: np.asarray(
                [[float(x[key.format(index, statistic)]) for x in metrics] for index in range(count)]
            )
            for statistic in ("mean", "median", "p20")
        }
        scores_by_episode = [score_statistics(row) for row in table["mean"].tolist()]
        statistics[name] = {statistic: x.mean(axis=1).tolist() for statistic, x in table.items()} | {
            "seeds": table["mean"].tolist(),
            "iqm": [x["iqm"] for x in scores_by_episode],
            "interval": [x["interval"] for x in scores_by_episode],
        }
    return statistics
