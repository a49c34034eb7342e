"""The lines of numbers that a run is logged as: its members, its settings, and all members together."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.monitor.loggers.logger import Series
from shoal.records import scores
from shoal.records.checkpoint_record import TIMES
from shoal.records.halving import Halving
from shoal.records.members import Members, members_of_config

MOST_MEMBERS = 16  # that have a series each
MOST_SETTINGS = 32
FAILED = "failed"  # the name of the number of members that failed
QUANTILES = {"_p10": 0.1, "_p50": 0.5, "_p90": 0.9}
SCORES = ("evaluation/", "absolute/", "train/episode_return")  # what names of scores begin with
# Entries of rows that are no member's own.
COMMON = (*TIMES, "steps_per_second", "updates", "evaluation")
NO_NUMBERS = ("kind", "step", "seed", "label", "time", "parent")  # entries of rows

# Names of CleanRL's charts, which Open RL Benchmark reads, by the names of Shoal's.
CLEANRL_NAMES = {
    "train/episode_return": "charts/episodic_return",
    "train/episode_length": "charts/episodic_length",
    "train/learning_rate": "charts/learning_rate",
    "train/steps_per_second": "charts/SPS",
    "train/epsilon": "charts/epsilon",
    "train/value_loss": "losses/value_loss",
    "train/policy_loss": "losses/policy_loss",
    "train/entropy": "losses/entropy",
    "train/approx_kl": "losses/approx_kl",
    "train/clip_fraction": "losses/clipfrac",
    "train/explained_variance": "losses/explained_variance",
    "train/total_loss": "losses/loss",
    "train/q_loss": "losses/td_loss",
    "train/q_mean": "losses/q_values",
}


def series_of(config: Mapping[str, Any]) -> tuple[Series, ...]:
    """Return the series of a run: each member and all together, or of a large population settings and quantiles."""
    members = members_of_config(config)
    labels = list(dict.fromkeys(member.label for member in members))
    if len(members) == 1:
        return (Series("", "member", members[0].seed, members[0].label, members[0].settings),)
    if len(members) <= MOST_MEMBERS:
        own = [Series(x.name, "member", x.seed, x.label, x.settings) for x in members]
    elif 1 < len(labels) <= MOST_SETTINGS:
        settings = {member.label: member.settings for member in members}
        own = [Series(label, "setting", None, label, settings[label]) for label in labels]
    else:
        own = []
    return (*own, Series("all", "all"))


class Aggregation:
    """Numbers of the series of a run, from the rows of all its members at one point.

    The number of a series of several members is their interquartile mean; in a large population its 10%, 50% and 90%
    quantiles are there too. A member that has failed is the worst there is in evaluations and returns, or of several
    settings the worst of all, and has no other number; how many have failed is a number too. A setting that halving
    stopped is left out from then on: rows do not tell its members from those that failed, but follow from the scores
    at the rungs.

    Args:
      config: the content of `config.json` of a run that halving stops members of.
    """

    def __init__(
        self,
        members: Members,
        series: Sequence[Series],
        names: Mapping[str, str],
        config: Mapping[str, Any] = MappingProxyType({}),
    ):
        self._members, self._series, self._names, self._config = members, series, names, config
        self._halving, self._rungs = _halving_of(config)
        self._at_rungs: list[np.ndarray] = []  # scores of the members at the rungs so far
        # So far, where there is halving.
        self._has_failed, self._has_stopped = np.zeros((2, len(members)), bool)

    def restarted(self) -> "Aggregation":
        """Return one that has seen no rows."""
        return Aggregation(self._members, self._series, self._names, self._config)

    def numbers(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Series, dict[str, float]]]:
        """Return the numbers of each series, given the rows of all members, in their order."""
        kind = rows[0]["kind"]
        table = {name: np.array([_number(row, key) for row in rows]) for key, name in _named(kind, rows[0])}
        own = [x for name, x in table.items() if name.partition("/")[2] not in COMMON]
        has_failed = self._has_failed.copy()
        if own and kind != "exchange":
            has_failed |= np.isnan(own).all(axis=0) & ~self._has_stopped
        counted = _with_failures(self._members, table, has_failed, self._has_stopped)
        if self._halving is not None:
            self._has_failed = has_failed
            if kind == "evaluation" and rows[0]["step"] in self._rungs:
                self._at_rungs.append(table[f"{kind}/{self._halving.metric}"])
                reached = np.stack(self._at_rungs), self._members, has_failed, self._has_stopped
                self._has_stopped = self._has_stopped | self._halving.stops(*reached)
        yield from self._of_table(counted, table)

    def absolute(self, summary: Mapping[str, Any]) -> Iterator[tuple[Series, dict[str, float]]]:
        """Return the numbers of the evaluation of the best policies at a run's end; none where there was none."""
        count = len(self._members)
        found = {
            f"absolute/{name}": np.array([math.nan if x is None else x for x in values], np.float64)
            for name, values in summary.get("evaluation", {}).items()
            if isinstance(values, list) and len(values) == count
        }
        if found:
            failed = {(x["seed"], x.get("label", "")) for x in summary.get("failed", ())}
            has_failed = np.array([(x.seed, x.label) in failed for x in self._members])
            found = {name: np.where(has_failed, math.nan, values) for name, values in found.items()}
            has_stopped = np.zeros_like(has_failed)
            yield from self._of_table(_with_failures(self._members, found, has_failed, has_stopped), found)

    def _of_table(
        self, counted: Mapping[str, np.ndarray], table: Mapping[str, np.ndarray]
    ) -> Iterator[tuple[Series, dict[str, float]]]:
        """Return the numbers of each series: of a member those of a table, of several those that count."""
        for series in self._series:
            if series.kind == "member":
                places = [k for k, x in enumerate(self._members) if (x.seed, x.label) == series[2:4]]
                numbers = {name: float(values[places[0]]) for name, values in table.items()}
            else:
                places = [k for k, x in enumerate(self._members) if series.label in ("", x.label)]
                chosen = {name: values[places] for name, values in counted.items()}
                numbers = dict(_summarised(chosen, len(self._members) > MOST_MEMBERS))
            yield series, {self._names.get(name, name): x for name, x in numbers.items()}


def _halving_of(config: Mapping[str, Any]) -> tuple[Halving | None, Sequence[int]]:
    """Return the halving of a run with the environment steps of its rungs; None where it has none."""
    if not config.get("halving"):
        return None, ()
    halving, run = Halving(**config["halving"]), config["run"]
    size = run["num_envs"] * run["num_steps"]
    return halving, [updates * size for updates in halving.rungs(size, run["total_steps"])]


def _with_failures(
    members: Members, table: Mapping[str, np.ndarray], has_failed: np.ndarray, has_stopped: np.ndarray
) -> dict[str, np.ndarray]:
    """Return a table with the worst of each score for members that failed, and with their number.

    The worst there is, or that of all members where there are several settings; none for a setting that failed
    whole, or has stopped.
    """
    surviving = {x.label for x, failed in zip(members, has_failed, strict=True) if not failed}
    has_whole_failed = np.array([x.label not in surviving for x in members])
    has_settings, found = len({x.label for x in members}) > 1, {}
    for name, values in table.items():
        known = values[~has_failed & ~np.isnan(values)]
        worst = known.min(initial=np.inf) if has_settings and known.size else -np.inf
        is_score = name.startswith(SCORES) and name.partition("/")[2] not in COMMON
        counted = np.where(has_whole_failed | has_stopped, np.nan, np.where(has_failed, worst, values))
        found[name] = counted if is_score else values
    if np.any(has_failed):
        found[f"{next(iter(table)).partition('/')[0]}/{FAILED}"] = has_failed.astype(np.float64)
    return found


def _named(kind: str, row: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Return the paths of a row's numbers, which may lie within another entry, with the names that they get."""
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from (((name, inner), f"{kind}/{name}.{inner}") for inner in value)
        elif name not in NO_NUMBERS:
            yield (name,), f"{kind}/{name}"


def _number(row: Mapping[str, Any], path: Sequence[str]) -> float:
    value: Any = row
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else math.nan


def _summarised(table: Mapping[str, np.ndarray], with_quantiles: bool) -> Iterable[tuple[str, float]]:
    """Return statistics over members, of failures their number; NaN where there is no number."""
    for name, values in table.items():
        known = values[~np.isnan(values)]
        if name.endswith(f"/{FAILED}"):
            yield name, float(known.sum())
            continue
        yield name, float(scores.iqm(known)) if known.size else math.nan
        if with_quantiles:
            shares = list(QUANTILES.values())
            found = scores.quantiles(known, shares) if known.size else np.full(len(shares), math.nan)
            yield from zip((f"{name}{suffix}" for suffix in QUANTILES), found.tolist(), strict=True)


def cleanrl_names(config: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings of a run under the names that CleanRL's runs have, which Open RL Benchmark filters by."""
    run = config["run"]
    name = run.get("name") or f"shoal_{config['algorithm'].get('name', '')}".rstrip("_")
    return {"env_id": config["environment"]["name"], "exp_name": name, "seed": run["seed"]}
