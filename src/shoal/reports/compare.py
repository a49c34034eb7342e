"""Compare the scores of runs: aggregates, differences to the first, probabilities of improvement, steps to a score."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError
from shoal.config import arguments
from shoal.records import comparisons, curves, scores
from shoal.reports import compare_inputs as inputs
from shoal.reports.compare_inputs import ABSOLUTE, FINAL, ComparedRun, DeclaredScale, ScoreBounds
from shoal.reports.compare_rows import ComparedRow, Comparison, Estimate, common_times, times_to_score
from shoal.reports.run_record import RETURN

NO_BOUNDS = "no bounds"


Declared = Callable[[str], DeclaredScale | None]  # from the name of an environment


def read_comparison(
    runs: object,
    *,
    metric: str = ABSOLUTE,
    target: float | None = None,
    consecutive: int = 2,
    bounds: Mapping[str, Sequence[float]] | None = None,
    anyway: bool = False,
    declared: Declared | None = None,
) -> Comparison:
    """Read what is compared; the arguments are those of `shoal.compare`.

    Args:
      declared: returns what an environment declares of its scores, by its name, None where that is nothing; without it
        bounds are those given alone.
    """
    consecutive = arguments.whole_number("consecutive", consecutive, 1)
    if target is not None:
        if not inputs.is_finite_number(target):
            raise ShoalError(f"target={target!r} is not a finite number; give a score such as 475")
        target = float(target)
    names, paths = _named_paths(runs)
    sources = list(map(inputs.read_source, paths))
    # Of all sources before any scores are read: one without absolute scores changes the metric of all.
    metric, notes = inputs.chosen_metric(sources, arguments.text("metric", metric, ABSOLUTE))
    entries = [inputs.read_entry(source, metric) for source in sources]
    environments = tuple(dict.fromkeys(entry.environment for entry in entries))
    groups = _groups(names, entries, environments)
    differences = inputs.evaluation_differences(entries)
    if differences and not anyway:
        raise ShoalError(f"{differences[0]}; --anyway (anyway=True) compares them all the same")
    ends = inputs.check_bounds(arguments.mapping("bounds", bounds), environments)
    are_returns = metric in (ABSOLUTE, FINAL, RETURN)  # which declared bounds are of
    ends, changes = _bounds_of(ends, entries, environments, declared if are_returns else None)
    rows = tuple(_row(name, group, ends) for name, group in groups.items())
    comparison = Comparison(rows, metric, environments, ends, target, consecutive)
    notes += [*differences, *changes]
    if target is not None:
        _check_has_curves(comparison, entries)
    # Runs that have a note in common say it once.
    return dataclasses.replace(comparison, notes=tuple(dict.fromkeys([*notes, *_notes(comparison)])))


def _named_paths(runs: object) -> tuple[list[str], list[str]]:
    """Return the name of the group of each run, "" for none, and its path."""
    if isinstance(runs, str) or not isinstance(runs, Mapping | Sequence):
        raise ShoalError(f"runs={arguments.short_repr(runs)} is not a list of runs; give two or more of them")
    groups = runs.items() if isinstance(runs, Mapping) else [("", [run]) for run in runs]
    pairs: list[tuple[str, str]] = []
    for name, group in groups:
        members = group if isinstance(group, Sequence) and not isinstance(group, str) else [group]
        if not len(members):
            raise ShoalError(f"the group {str(name)!r} has no run; give it one, or leave it out")
        pairs += [
            (" ".join(str(name).splitlines()), str(arguments.path("runs", getattr(run, "path", run))))
            for run in members
        ]
    if len(pairs) < 2:
        named = f", besides {pairs[0][1]}" if pairs else ""
        raise ShoalError(
            f"a comparison takes two runs or more{named}; give another, such as runs/CartPole-v1-ppo-1"
        )
    return [name for name, _ in pairs], [path for _, path in pairs]


def _groups(
    given: Sequence[str], entries: Sequence[ComparedRun], environments: Sequence[str]
) -> dict[str, tuple[ComparedRun, ...]]:
    """Return the entries of each row, in the order of the environments.

    Raises:
      ShoalError: a row has two runs of one environment, or none of one that another has.
    """
    names = given
    if not any(given):
        is_one = len(environments) == 1
        names = _short_names([x.path for x in entries]) if is_one else [x.algorithm for x in entries]
    groups: dict[str, dict[str, ComparedRun]] = {}
    for name, entry in zip(names, entries, strict=True):
        other = groups.setdefault(name, {}).setdefault(entry.environment, entry)
        if other is not entry:
            raise ShoalError(
                f"{name} has two runs in {entry.environment}, {other.path} and {entry.path}; name the groups of the "
                "comparison apart, such as a=RUN a=RUN b=RUN b=RUN"
            )
    if len(groups) < 2:
        listed = ", ".join(f"{entry.path} ({entry.environment})" for entry in entries)
        what = "in one group" if any(given) else "of one algorithm"
        raise ShoalError(
            f"the runs are of different environments and {what}: {listed}; give runs of one environment, or "
            "those of two algorithms (or groups NAME=RUN) in each"
        )
    for name, by_environment in groups.items():
        if missing := [x for x in environments if x not in by_environment]:
            raise ShoalError(
                f"{name} has no run in {missing[0]}, in which another of the comparison has one; give runs of one "
                "environment, or to every algorithm (or group NAME=RUN) one in each"
            )
    return {name: tuple(group[x] for x in environments) for name, group in groups.items()}


def _short_names(paths: Sequence[str]) -> list[str]:
    """Return a name for each path: its last part, where that tells it apart, and a number for equal ones."""
    parts = [inputs.split_label(path) for path in paths]
    last = [os.path.basename(os.path.abspath(run)) + f":{x}" * bool(x) for run, x in parts]
    short = len(set(last)) == len(set(paths))
    names: list[str] = []
    for k, path in enumerate(paths):
        name, before = " ".join((last[k] if short else path).splitlines()), list(paths[:k]).count(path)
        names.append(f"{name} ({before + 1})" if before else name)
    return names


def _bounds_of(
    given: Mapping[str, ScoreBounds],
    entries: Sequence[ComparedRun],
    environments: Sequence[str],
    declared: Declared | None,
) -> tuple[dict[str, ScoreBounds], list[str]]:
    """Find the bounds of each environment: those given, else those declared, which are of the default parameters.

    Returns:
      the bounds, of one environment perhaps none; and sentences about declared ones that do not apply.
    Raises:
      ShoalError: there are several environments, and one has no bounds.
    """
    found, notes = dict(given), []
    for name in environments:
        what = "declares no score_bounds, by which scores of several environments are normalised"
        scale = declared(name) if declared and name not in found else None
        if scale is not None:
            # With other physics random actions and the best policy have other scores.
            own = [entry for entry in entries if entry.environment == name]
            changes = [x for entry in own for x in inputs.changed_parameters(entry, scale.defaults)]
            if changes:
                what = f"declares score_bounds of its default parameters alone, and a run has {changes[0]}"
                notes.append(f"{name} {what}; --bounds {name}=LOW:HIGH gives others")
            else:
                found |= inputs.check_bounds({name: scale.bounds}, [name])
        if name not in found and len(environments) > 1:
            raise ShoalError(
                f"{name} {what}; give --bounds {name}=LOW:HIGH, such as the scores of random actions and of the best "
                "policy"
            )
    return found, notes


def _row(name: str, entries: tuple[ComparedRun, ...], bounds: Mapping[str, ScoreBounds]) -> ComparedRow:
    counts = {len(entry.scores) for entry in entries}
    if len(counts) > 1:
        listed = ", ".join(f"{len(x.scores)} in {x.environment}" for x in entries)
        raise ShoalError(
            f"{name} has different numbers of seeds: {listed}; train as many in each environment"
        )
    columns = [entry.scores for entry in entries]
    if len(entries) > 1:
        columns = [bounds[x.environment].normalise(x.scores) for x in entries]
    return ComparedRow(name, entries, np.stack(columns, axis=-1))


def _check_has_curves(comparison: Comparison, entries: Sequence[ComparedRun]) -> None:
    for entry in entries:
        if not len(entry.steps):
            raise ShoalError(
                f"run {entry.path!r} has no evaluations during training, of which steps to a score are counted"
            )
        if comparison.consecutive > len(entry.steps):
            raise ShoalError(
                f"consecutive={comparison.consecutive} is more than the evaluations of run {entry.path!r}, "
                f"{len(entry.steps)}; give at most {len(entry.steps)}"
            )


def _notes(comparison: Comparison) -> list[str]:
    """Return sentences that qualify a comparison."""
    rows = comparison.rows
    entries = [entry for row in rows for entry in row.entries]
    notes = [note for entry in entries for note in entry.notes]
    notes += [f"{row.name} has no interval: {row.caveat}" for row in rows if row.caveat]
    counts = {row.name: len(row.scores) for row in rows}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {n} ({scores.num_cut(n) / n:.0%})" for name, n in counts.items())
        notes.append(
            f"the runs have different numbers of seeds, of which the IQM cuts different shares at each end: {listed}; "
            "of skewed scores that alone makes a difference"
        )
    by_count = {len(row.scores): row for row in rows if not row.caveat}
    notes += [note for count in sorted(by_count) if (note := scores.few_seeds_note(count))]
    for name in comparison.environments:
        own = [entry for entry in entries if entry.environment == name]
        steps, looks = ({of(x) for x in own} for of in (lambda x: x.trained, lambda x: len(x.steps)))
        if len(steps) > 1:
            listed = ", ".join(f"{x:,}" for x in sorted(steps))
            notes.append(f"the runs in {name} were trained for different numbers of steps: {listed}")
        if len(looks) > 1 and comparison.target is not None:
            notes.append(
                f"the runs in {name} were evaluated {', '.join(map(str, sorted(looks)))} times: who looks more often "
                "sees a score sooner, which the common evaluations alone leave out"
            )
    if len({entry.origin for entry in entries}) < len(entries):
        notes.append("a run is named twice, so that it is compared with itself")
    if len(rows) > 2:
        notes.append(
            f"all are compared with {rows[0].name}; each interval is for itself (pointwise), and of many some miss"
        )
    return notes


def results(comparison: Comparison) -> dict[str, Any]:
    """Compute all statistics of a comparison, as JSON holds them (where infinities become text)."""
    first = comparison.rows[0]
    rows = []
    for row in comparison.rows:
        found = _describe(row) | aggregates(row, comparison)
        if row is not first:
            found |= {"difference": difference(first, row), "improvement": improvement(first, row)}
        if comparison.target is not None:
            found["steps_to_score"] = {
                name: steps_to(comparison, row, name)
                | ({} if row is first else {"sooner": sooner(comparison, first, row, name)})
                for name in comparison.environments
            }
        rows.append(found)
    return {
        "metric": comparison.metric,
        "environments": list(comparison.environments),
        "bounds": {name: list(pair) for name, pair in comparison.bounds.items()} or None,
        "is_normalised": comparison.is_normalised,
        "target": comparison.target,
        "consecutive": comparison.consecutive,
        "rows": rows,
        "notes": list(comparison.notes),
    }


def _describe(row: ComparedRow) -> dict[str, object]:
    runs = [
        {
            "path": entry.path,
            "environment": entry.environment,
            "algorithm": entry.algorithm,
            "steps_per_seed": entry.trained,
            "seeds": list(entry.seeds),
            "scores": entry.scores.tolist(),
            "failed": [seed for seed, failed in zip(entry.seeds, entry.failed, strict=True) if failed],
        }
        for entry in row.entries
    ]
    return {"name": row.name, "seeds": len(row.scores), "failed": row.failures, "runs": runs}


def aggregates(row: ComparedRow, comparison: Comparison) -> dict[str, Estimate]:
    """Compute IQM, median, mean and optimality gap of a row.

    The median is over seeds in one environment, and over the environments' means where there are several.
    """

    def statistic(compute: scores.Statistic, x: np.ndarray, name: str) -> Estimate:
        with np.errstate(invalid="ignore"):
            value = float(compute(x, axis=(0, 1)))
        interval = scores.score_interval(x, compute) if row.has_interval else None
        return _estimate(value, interval, row.failures if name in ("mean", "optimality_gap") else 0)

    median = comparisons.task_median if comparison.is_normalised else np.median
    found = {
        name: statistic(compute, row.scores, name)
        for name, compute in (("iqm", scores.iqm), ("median", median), ("mean", np.mean))
    }
    if not comparison.bounds:
        return found | {"optimality_gap": _none(NO_BOUNDS)}
    (name, *others) = comparison.environments
    normalised = row.scores if others else comparison.bounds[name].normalise(row.scores)
    return found | {"optimality_gap": statistic(comparisons.optimality_gap, normalised, "optimality_gap")}


def _none(why: str) -> Estimate:
    return {"value": None, "interval": None, "why": why}


def _estimate(value: float, interval: tuple[float, float] | None, failures: int = 0) -> Estimate:
    """Return an estimate with its interval; none of a mean where a seed failed, or where it is not a number."""
    if failures:
        return _none(f"{failures} failed")
    if math.isnan(value):
        return _none("both are minus infinity")
    is_informative = interval is not None and any(map(math.isfinite, interval))
    return {"value": value, "interval": list(interval) if is_informative and interval else None}


def difference(first: ComparedRow, other: ComparedRow) -> Estimate:
    """Compute the difference of the IQM of a row to that of the first, with its interval."""
    has_interval = first.has_interval and other.has_interval
    return _estimate(
        comparisons.score_difference(first.scores, other.scores),
        comparisons.difference_interval(first.scores, other.scores) if has_interval else None,
    )


def improvement(first: ComparedRow, other: ComparedRow) -> Estimate:
    """Compute the probability that a seed of a row has a higher score than one of the first, with its interval.

    Where one wins every comparison in several environments, the bootstrap gives an interval of width 0, and there is
    none.
    """
    interval = None
    if first.has_interval and other.has_interval:
        low, high = comparisons.improvement_interval(first.scores, other.scores)
        # An interval of width 0 would claim to be sure.
        interval = (low, high) if low < high else None
    return _estimate(comparisons.probability_of_improvement(first.scores, other.scores), interval)


def steps_to(comparison: Comparison, row: ComparedRow, environment: str) -> dict[str, object]:
    """Compute the median over seeds of the steps to the target, with its interval; infinite where too few reach it.

    It is by the row's own evaluations, whatever it is compared with.
    """
    entry = row.entries[comparison.environments.index(environment)]
    before, times, has_reached = times_to_score(comparison, entry)
    interval = curves.survival_interval(before, times, has_reached) if row.has_interval else None
    return {
        "target": comparison.target_in(environment),
        "reached": int(has_reached.sum()),
        "of": len(times),
        "failed": int(entry.failed.sum()),
        "until": float(entry.steps[-1]),
        "steps": np.where(has_reached, times, np.inf).tolist(),
        **_estimate(float(curves.survival_quantile(times, has_reached)), interval),
    }


def sooner(
    comparison: Comparison, first: ComparedRow, other: ComparedRow, environment: str
) -> dict[str, object]:
    """Compute the probability that a seed of a row reaches the target before one of the first, with its interval.

    A tie counts half, as where neither reaches it; where no seed does there is none. `points` is the number of
    evaluations that both have, by which alone they are compared.
    """
    place = comparison.environments.index(environment)
    times, points = common_times(comparison, [row.entries[place] for row in (first, other)])
    if points < comparison.consecutive:
        return _none(f"{points} common evaluations") | {"points": points}
    if not np.isfinite(np.concatenate(times)).any():
        return _none("no seed reaches it at the common evaluations") | {"points": points}
    # Whoever needs fewer steps is better.
    ranks = -times[0], -times[1]
    has_interval = first.has_interval and other.has_interval
    interval = comparisons.improvement_interval(*ranks) if has_interval else None
    return _estimate(comparisons.probability_of_improvement(*ranks), interval) | {"points": points}
