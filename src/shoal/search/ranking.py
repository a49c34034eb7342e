"""Results of a sweep: the table of members, the ranking of settings, and how much each setting matters.

A member is one setting with one seed. The unit of comparison is the setting: its seeds are aggregated by the
interquartile mean, with a bootstrap interval where there are enough (Agarwal et al. 2021).
"""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.files import write_whole_file
from shoal.records.scores import SettingScore, rank_settings, score_interval
from shoal.search.distributions import Choice, is_same
from shoal.search.space import Space, format_value

AT_RUNG = "at_rung"  # the name of the score by which early stopping compares members
MOST_GROUPS = 5  # into which the values of a random setting are divided for its importance
FEWEST_OF_GROUP = 3


@dataclasses.dataclass(frozen=True)
class MemberResult:
    """The scores of one member of a sweep.

    Attributes:
      label: of its setting; members that differ only in their seed share it.
      settings: the values that vary in the sweep; without those whose conditions are not met.
      seed: of its training.
      scores: by name, such as "absolute" and "final"; a score that does not exist is NaN or left out. A member that was
        stopped early has the score by which it was compared under the name `AT_RUNG`.
      steps: environment steps that it was trained for; of one that failed, those at its fault.
      rung: the number of times that early stopping let it continue; scores of different rungs are not compared.
      failure: why it has no scores, such as "a number was not finite in update 12"; "" if it has.
      unfinished: the share of its new episodes that were cut at `eval_max_steps`.
    """

    label: str
    settings: Mapping[str, Any]
    seed: int
    scores: Mapping[str, float]
    steps: int
    rung: int = 0
    failure: str = ""
    unfinished: float = 0.0


@dataclasses.dataclass(frozen=True)
class Ranked:
    """A setting with the scores of its seeds.

    Attributes:
      settings: the values that vary in the sweep.
      scores: of each seed; a seed that failed has the worst score of the search. All are NaN if all seeds failed.
      score: the interquartile mean of `scores`; NaN if all seeds failed.
      interval: the 95% bootstrap interval of the score; None where there are too few seeds, or no score.
      rung: see `MemberResult`.
      stopped: whether it was stopped early; then its scores are those at its rung.
      unfinished: the share of the new episodes that were cut, over the seeds that did not fail.
    """

    label: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    scores: tuple[float, ...]
    score: float
    interval: tuple[float, float] | None
    steps: int
    rung: int
    stopped: bool
    failed: tuple[int, ...]
    unfinished: float = 0.0

    @property
    def has_score(self) -> bool:
        """Whether a seed survived; a setting without a score is never the best, and is not counted."""
        return not math.isnan(self.score)


@dataclasses.dataclass(frozen=True)
class Importance:
    """The share of the differences between settings that one setting explains alone.

    Attributes:
      share: of the variance of the ranks, from 0 to 1; NaN if it cannot be estimated.
      p_value: the probability of a share at least as large if the setting had no effect; NaN without a share.
    """

    name: str
    share: float
    p_value: float


def rank(
    members: Sequence[MemberResult], objective: str = "absolute", others: Sequence[MemberResult] = ()
) -> list[Ranked]:
    """Aggregate members by their settings, best first.

    A seed that failed counts with the worst score that a member of the search reached, so that a setting does not win
    by the seeds that survived it; a setting of which all seeds failed has no score and is last. Settings that were
    trained to the end come first, then those that early stopping let go furthest. Of equal scores that of fewer
    failures comes first, then the order of the members decides.

    Args:
      others: further members of the same search, which are not ranked, and count for the worst score.
    """
    groups: dict[str, list[MemberResult]] = {}
    for member in members:
        groups.setdefault(member.label, []).append(member)
    scores = {label: [score_of(x, objective) for x in group] for label, group in groups.items()}
    ordered = rank_settings(scores, [score_of(x, objective) for x in others])
    ranked = [_aggregate(groups[label], objective, scores[label], x) for label, x in ordered.items()]
    return sorted(ranked, key=lambda x: (not x.has_score, _distance(x)))


def _distance(ranked: Ranked) -> tuple[bool, int]:
    """Return a number that is smaller for a setting that went further; those trained to the end have the smallest."""
    return ranked.stopped, -ranked.rung if ranked.stopped else 0


def _is_stopped(member: MemberResult, objective: str) -> bool:
    return not member.failure and AT_RUNG in member.scores and objective not in member.scores


def score_of(member: MemberResult, objective: str) -> float:
    """Return the score by which a member is compared; NaN if it failed."""
    name = AT_RUNG if _is_stopped(member, objective) else objective
    return math.nan if member.failure else float(member.scores.get(name, math.nan))


def _aggregate(
    members: Sequence[MemberResult], objective: str, reached: Sequence[float], score: SettingScore
) -> Ranked:
    shares = [member.unfinished for member in members if not member.failure]
    seeds = tuple(member.seed for member in members)
    return Ranked(
        label=members[0].label,
        settings=dict(members[0].settings),
        seeds=seeds,
        scores=score.scores,
        score=score.iqm,
        interval=score_interval(np.array(score.scores)),
        steps=max(member.steps for member in members),
        rung=max(member.rung for member in members),
        stopped=any(_is_stopped(member, objective) for member in members),
        failed=tuple(seed for seed, x in zip(seeds, reached, strict=True) if not math.isfinite(x)),
        unfinished=sum(shares) / max(len(shares), 1),
    )


def summarise(ranked: Sequence[Ranked]) -> list[dict[str, Any]]:
    """Return the entry `members` of a sweep's `summary.json`: settings sorted by score, with intervals.

    One that was stopped early has `at_rung` instead of `absolute`.
    """
    return [
        {
            "label": x.label,
            "settings": dict(x.settings),
            "seeds": list(x.seeds),
            (AT_RUNG if x.stopped else "absolute"): {
                "returns": list(x.scores),
                "iqm": x.score,
                "interval": None if x.interval is None else list(x.interval),
            },
            "steps_per_seed": x.steps,
            "rung": x.rung,
            "failed": list(x.failed),
            "unfinished": x.unfinished,
        }
        for x in ranked
    ]


def write_members(path: str | Path, members: Sequence[MemberResult], names: Sequence[str]) -> None:
    """Write `members.csv`: the label, every setting that varies, the seed, the scores and the steps of each member.

    Members that failed come last. An empty field is a setting that is not part of the member, or a score that does not
    exist; sizes are written as 64x64.

    Raises:
      ShoalError: it cannot be written.
    """
    score_names = list(dict.fromkeys(name for member in members for name in member.scores))
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["label", *names, "seed", *score_names, "steps", "rung", "failure"])
    for member in sorted(members, key=lambda member: bool(member.failure)):
        values = [_csv_value(member.settings[name]) if name in member.settings else "" for name in names]
        scores_of_member = {} if member.failure else member.scores
        scores = [_csv_value(scores_of_member.get(name, math.nan)) for name in score_names]
        table.writerow(
            [member.label, *values, member.seed, *scores, member.steps, member.rung, member.failure]
        )
    with write_whole_file(Path(path), parents=False) as file:
        file.write(text.getvalue().encode())


def _csv_value(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return "none" if value is None else format_value(value)


def importances(ranked: Sequence[Ranked], space: Space) -> list[Importance]:
    """Measure how much each setting alone explains of the differences between settings, largest first.

    The settings are divided into groups by the values of one of them (of a random one into at most five groups of equal
    size), and the Kruskal-Wallis statistic H of their scores in k groups of n settings gives the share of the variance
    of the ranks that lies between the groups, without what chance alone would give: (H - k + 1) / (n - k).

    It is a main effect: a setting that matters only together with another one has a small share. It is of the whole
    space: a setting may have a large share because a part of its range fails, and matter little among the good values.
    A setting with conditions is measured where it is active. Ranks leave out by how much one score exceeds another.
    With few settings the shares are rough; `p_value` tells those that chance may give, without a correction for the
    number of settings. Where each group has one setting, where there is one group, or where all scores are equal, there
    is no share, since nothing tells the groups from chance.

    Args:
      ranked: from `rank`; a setting that was stopped earlier counts as worse than any that went further, and one
        without a score does not count.
    Source: Kruskal and Wallis 1952, "Use of ranks in one-criterion variance analysis"; for the effect size (eta squared
    of H) Tomczak and Tomczak 2014, "The need to report effect size estimates revisited".
    """
    ranked = [x for x in ranked if x.has_score]
    places = _places(ranked)
    found = [_importance(name, ranked, places, space) for name in space.names]
    return sorted(found, key=lambda x: (math.isnan(x.share), -x.share))


def _places(ranked: Sequence[Ranked]) -> dict[str, int]:
    """Return the place of each setting by its label; settings of equal scores and equally many failures share one."""
    places: dict[str, int] = {}
    before, place = None, -1
    for x in ranked:
        key = (_distance(x), x.score, len(x.failed))
        place += key != before
        places[x.label], before = place, key
    return places


def _importance(name: str, ranked: Sequence[Ranked], places: Mapping[str, int], space: Space) -> Importance:
    from scipy.stats import kruskal  # noqa: PLC0415 (takes a second)

    active = [x for x in ranked if name in x.settings]
    groups = [[places[x.label] for x in group] for group in _groups(name, active, space) if group]
    n, k = len(active), len(groups)
    if k < 2 or n <= k or len({place for group in groups for place in group}) < 2:
        return Importance(name, math.nan, math.nan)
    h, p_value = kruskal(*groups)
    return Importance(name, float(np.clip((h - k + 1) / (n - k), 0, 1)), float(p_value))


def _groups(name: str, ranked: Sequence[Ranked], space: Space) -> list[list[Ranked]]:
    """Divide settings by the values of one of them: by each value of a list, or by quantiles of a range."""
    kind = space.distribution(name)
    if isinstance(kind, Choice):
        return [[x for x in ranked if is_same(x.settings[name], value)] for value in kind.values]
    values = np.array([x.settings[name] for x in ranked], np.float64)
    count = max(1, min(MOST_GROUPS, len(ranked) // FEWEST_OF_GROUP))
    edges = np.quantile(values, np.arange(1, count) / count) if len(values) else values
    groups = np.searchsorted(edges, values, side="left")
    return [[x for x, group in zip(ranked, groups, strict=True) if group == index] for index in range(count)]
