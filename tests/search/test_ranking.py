"""The table of members, the ranking of settings and the importance of each, against SciPy and by hand."""

import csv
import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from shoal.search import ranking
from shoal.search.ranking import AT_RUNG, MemberResult, importances, rank, summarise, write_members
from shoal.search.space import from_tables, label_of

SPACE = from_tables(
    {
        "grid": {"surrogate": ["clip", "penalty"], "hidden_sizes": [[64, 64], [256]]},
        "random": {"learning_rate": "log:1e-5:1e-2", "kl_coef": "log:0.1:10"},
        "where": {"kl_coef": {"surrogate": "penalty"}},
    }
)


def members_of(space, score, *, samples=1, seeds=1, noise=0.0):
    """Members of all points with scores from a function of the point, and normal noise."""
    generator = np.random.default_rng(0)
    return [
        MemberResult(
            label_of(index, point), point, seed, {"absolute": score(point) + noise * generator.normal()}, 1000
        )
        for index, point in enumerate(space.points(samples))
        for seed in range(seeds)
    ]


def member(label, score, seed=0, **further):
    scores = {} if score is None else {"absolute": score}
    return MemberResult(label, {"a": 1}, seed, scores | further.pop("scores", {}), 1000, **further)


def test_a_setting_is_the_interquartile_mean_of_its_seeds():
    ranked = rank(
        [member(label, 10.0 * k + seed**2, seed) for k, label in enumerate("ab") for seed in range(8)]
    )
    assert [x.label for x in ranked] == ["b", "a"]
    scores = np.arange(8.0) ** 2
    assert ranked[1].score == pytest.approx(stats.trim_mean(scores, 0.25))
    assert ranked[1].scores == tuple(scores)
    low, high = ranked[1].interval
    assert scores.min() <= low < ranked[1].score < high <= scores.max()


def test_one_seed_has_no_interval():
    (ranked,) = rank([member("a", 3.0)])
    assert (ranked.score, ranked.interval) == (3.0, None)
    assert summarise([ranked])[0]["absolute"] == {"returns": [3.0], "iqm": 3.0, "interval": None}


def test_a_failed_seed_counts_as_the_worst_of_the_search():
    members = [
        member("a", 9.0, 0),
        member("a", 9.5, 1, failure="not finite"),  # its best policy from before is no score
        member("b", 6.0),
        member("c", 1.0),
    ]
    ranked = rank(members)
    assert [x.label for x in ranked] == ["b", "a", "c"]
    assert ranked[1].scores == (9.0, 1.0)
    assert [x.failed for x in ranked] == [(), (1,), ()]
    (alone,) = rank(members[:2], others=members[2:])
    assert alone.scores == (9.0, 1.0)
    assert summarise(ranked)[1]["failed"] == [1]


def test_a_setting_without_a_surviving_seed_has_no_score_and_is_last():
    members = [
        member("all failed", 500.0, failure="not finite"),  # its best policy from before the fault
        member("not finite", math.nan),
        member("good", 500.0),
        member("bad", 9.0),
        member("stopped", None, scores={AT_RUNG: 8.0}, rung=0),
    ]
    ranked = rank(members)
    assert [x.label for x in ranked] == ["good", "bad", "stopped", "all failed", "not finite"]
    assert [x.has_score for x in ranked] == [True, True, True, False, False]
    assert all(math.isnan(x.score) and np.isnan(x.scores).all() and x.interval is None for x in ranked[3:])
    assert not any(x.has_score for x in rank(members[:2]))


def test_equal_scores_are_in_the_order_of_failures_then_of_the_members():
    members = [
        member("one of two failed", 3.0, 0),
        member("one of two failed", None, 1, failure="not finite"),
        *(member(label, 3.0, seed) for label in ("second", "first") for seed in (0, 1)),
    ]
    ranked = rank(members)
    assert [(x.label, x.score) for x in ranked] == [
        ("second", 3.0),
        ("first", 3.0),
        ("one of two failed", 3.0),
    ]


def test_settings_that_went_further_come_first():
    members = [
        member("stopped at 0", None, scores={AT_RUNG: 90.0}, rung=0),
        member("stopped at 1", None, scores={AT_RUNG: 50.0}, rung=1),
        member("also at 1", None, scores={AT_RUNG: 60.0}, rung=1),
        member("failed at the end", None, failure="not finite", rung=2),
        member("one seed failed", 45.0, 0, rung=2),
        member("one seed failed", None, 1, failure="not finite", rung=2),
        member("to the end", 46.0, scores={AT_RUNG: 40.0}, rung=2),
        member("without rungs", 50.0),
    ]
    ranked = rank(members)
    assert [x.label for x in ranked] == [
        *("without rungs", "to the end", "one seed failed", "also at 1", "stopped at 1", "stopped at 0"),
        "failed at the end",
    ]
    assert ranked[2].scores == (45.0, 45.0)  # the worst of all scores, of rungs and of the end
    assert [x.stopped for x in ranked] == [False] * 3 + [True] * 3 + [False]
    entries = {x["label"]: x for x in summarise(ranked)}
    assert "absolute" not in entries["stopped at 0"] and entries["stopped at 0"][AT_RUNG]["iqm"] == 90.0


def test_the_table_has_every_setting_and_failed_members_last(tmp_path):
    members = members_of(SPACE, lambda point: point["learning_rate"], seeds=2)
    members[0] = MemberResult(
        members[0].label, members[0].settings, 0, {}, 300, failure="learning_rate is not finite, in update 3"
    )
    members[1] = MemberResult(
        members[1].label, members[1].settings, 1, {"absolute": math.nan, "final": 2.5}, 1000
    )
    write_members(tmp_path / "members.csv", members, SPACE.names)
    with open(tmp_path / "members.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["label", *SPACE.names, "seed", "absolute", "final", "steps", "rung", "failure"]
    assert len(rows) == 8
    assert rows[-1]["failure"] == "learning_rate is not finite, in update 3" and rows[-1]["absolute"] == ""
    assert (rows[0]["absolute"], rows[0]["final"], rows[0]["seed"]) == ("", "2.5", "1")
    assert (rows[0]["hidden_sizes"], rows[0]["kl_coef"]) == ("64x64", "")
    penalty = next(row for row in rows if row["surrogate"] == "penalty")
    (settings,) = (x.settings for x in members if x.label == penalty["label"] and x.seed == 0)
    assert float(penalty["kl_coef"]) == settings["kl_coef"]


def test_importance_is_scipys_kruskal_wallis_of_the_groups():
    space = from_tables({"grid": {"a": [1, 2, 3], "b": ["x", "y"], "c": [0, 1, 2, 3]}})
    ranked = rank(members_of(space, lambda point: point["a"] + 0.1 * (point["b"] == "x"), noise=0.4))
    found = {x.name: x for x in importances(ranked, space)}
    groups = [[x.score for x in ranked if x.settings["a"] == value] for value in (1, 2, 3)]
    h, p_value = stats.kruskal(*groups)
    assert found["a"].share == pytest.approx((h - 2) / (24 - 3))
    assert found["a"].p_value == pytest.approx(p_value)
    assert next(iter(found)) == "a"


def test_importance_finds_what_matters_and_no_more():
    space = from_tables(
        {"random": {"learning_rate": "log:1e-5:1e-2", "gamma": "uniform:0.9:1", "layers": "int:1:3"}}
    )
    members = members_of(
        space, lambda point: -abs(math.log10(point["learning_rate"]) + 3.5), samples=64, noise=0.2
    )
    found = {x.name: x for x in importances(rank(members), space)}
    assert found["learning_rate"].share > 0.6 and found["learning_rate"].p_value < 1e-4
    assert max(found["gamma"].share, found["layers"].share) < 0.15
    # without any effect the adjusted share is near 0 on average, where the plain one would be (k - 1) / (n - 1)
    shares = []
    for seed in range(40):
        drawn = np.random.default_rng(seed).permutation(len(members))
        shuffled = [
            MemberResult(x.label, x.settings, 0, members[i].scores, 1000)
            for x, i in zip(members, drawn, strict=True)
        ]
        shares.append(ranking.importances(rank(shuffled), space)[0].share)
    assert np.mean(shares) < 0.12


def test_a_setting_with_conditions_is_measured_where_it_is_active():
    members = members_of(SPACE, lambda point: math.log(point.get("kl_coef", 100.0)), samples=12)
    found = {x.name: x for x in importances(rank(members), SPACE)}
    assert found["kl_coef"].share > 0.9  # of the penalty's points alone; those of clip are all better
    assert found["surrogate"].share > 0.5


def test_importance_counts_no_setting_without_a_score_and_ties_none_that_failed():
    space = from_tables({"grid": {"a": [1, 2, 3]}, "random": {"b": "uniform:0:1"}})
    members = members_of(space, lambda point: float(point["a"] > 1), samples=4, seeds=2)
    failed = [
        dataclasses.replace(x, failure="not finite")
        for x in members
        if x.settings["a"] == 3 or (x.settings["a"] == 1 and x.seed == 1)
    ]
    others = [x for x in members if not any((x.label, x.seed) == (y.label, y.seed) for y in failed)]
    found = {x.name: x for x in importances(rank([*others, *failed]), space)}
    survivors = {x.name: x for x in importances(rank(others), space)}
    assert found == survivors
    assert found["a"].share == pytest.approx(1.0)  # a=1 against a=2 alone
    level = [member(str(k), 1.0, seed) for k in range(4) for seed in range(2)]
    level = [dataclasses.replace(x, settings={"a": int(x.label) % 2}) for x in level]
    space = from_tables({"grid": {"a": [0, 1]}})
    assert math.isnan(importances(rank(level), space)[0].share)
    level = [dataclasses.replace(x, failure="not finite") if x.settings["a"] and x.seed else x for x in level]
    assert importances(rank(level), space)[0].share > 0.5  # equal scores, but those of a=1 have failures


def test_what_cannot_be_estimated_has_no_importance():
    """One setting of each value, as in a grid; or equal scores."""
    space = from_tables({"grid": {"a": [1, 2, 3]}})
    (found,) = importances(rank(members_of(space, lambda point: float(point["a"]))), space)
    assert math.isnan(found.share) and math.isnan(found.p_value)
    space = from_tables({"grid": {"a": [1, 2], "b": [1, 2, 3], "c": [1]}})
    found = importances(rank(members_of(space, lambda point: float(point["a"]))), space)
    assert [x.name for x in found] == ["a", "b", "c"]  # that of which there is no share comes last
    assert [math.isnan(x.share) for x in found] == [False, False, True]
    found = importances(rank(members_of(space, lambda point: 1.0)), space)
    assert all(math.isnan(x.share) for x in found)
