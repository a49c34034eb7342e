"""Points of a space: products, the prefix property, conditions, files, and one sentence for each mistake."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from shoal import ShoalError
from shoal.search import space as spaces
from shoal.search.space import from_tables, from_words, label_of

TABLES = {
    "grid": {"surrogate": ["clip", "penalty"], "hidden_sizes": [[64, 64], [256]]},
    "random": {
        "learning_rate": "log:1e-5:1e-2",
        "env": {"gravity": "uniform:5:15"},
        "kl_coef": "log:0.1:10",
    },
    "where": {"kl_coef": {"surrogate": "penalty"}},
}
FILE = """
[grid]
surrogate = ["clip", "penalty"]
hidden_sizes = [[64, 64], [256]]

[random]
learning_rate = "log:1e-5:1e-2"
env.gravity = "uniform:5:15"
kl_coef = "log:0.1:10"

[where]
kl_coef.surrogate = "penalty"
"""


def test_a_grid_is_a_product_in_the_given_order():
    grid = from_tables({"grid": {"a": [3, 1], "b": ["x", "y"]}})
    assert grid.points() == [{"a": 3, "b": "x"}, {"a": 3, "b": "y"}, {"a": 1, "b": "x"}, {"a": 1, "b": "y"}]
    assert grid.axis("a") == [1, 3]
    assert (grid.to_unit("a", 1), grid.to_unit("a", 3)) == (0, 1)


@pytest.mark.parametrize("sobol", [False, True])
def test_more_samples_extend_the_points(sobol):
    space = from_tables(TABLES)
    few, many = (space.points(n, seed=7, sobol=sobol) for n in (5, 12))
    assert many[: len(few)] == few
    assert (len(few), len(many)) == (20, 48)
    labels = [label_of(index, point) for index, point in enumerate(many)]
    assert len(set(labels)) == len(many)
    assert space.points(5, seed=8, sobol=sobol) != few


def test_another_setting_leaves_the_draws_of_the_others():
    wide = from_tables({"random": {"new": "uniform:0:1", "learning_rate": "log:1e-5:1e-2"}})
    narrow = from_tables({"random": {"learning_rate": "log:1e-5:1e-2"}})
    assert [p["learning_rate"] for p in wide.points(6)] == [p["learning_rate"] for p in narrow.points(6)]


def test_every_combination_of_the_grid_has_samples_of_its_own():
    wide = from_tables({"grid": {"a": [1, 2, 3]}, "random": {"x": "uniform:0:1"}})
    for sobol in (False, True):
        points = wide.points(16, sobol=sobol)
        assert len({point["x"] for point in points}) == 48
        for value in (1, 2, 3):  # each covers the range: Sobol points have one in each sixteenth
            cells = {int(16 * point["x"]) for point in points if point["a"] == value}
            assert len(cells) == 16 if sobol else len(cells) > 6
    narrow = from_tables({"grid": {"a": [1, 3]}, "random": {"x": "uniform:0:1"}})
    assert narrow.points(4) == [point for point in wide.points(4) if point["a"] != 2]


def test_settings_are_drawn_independently_and_uniformly():
    space = from_tables({"random": {"a": "uniform:0:1", "b": "uniform:0:1"}})
    draws = np.array([[list(point.values()) for point in space.points(200, seed)] for seed in range(100)])
    p_values = stats.kstest(draws, "uniform", axis=1).pvalue  # [seeds, settings]
    assert stats.kstest(p_values.ravel(), "uniform").pvalue > 0.01
    correlations = [stats.spearmanr(*points.T).statistic for points in draws]
    assert abs(np.mean(correlations)) < 4 / math.sqrt(draws[..., 0].size)


def test_sobol_covers_the_space_more_evenly():
    space = from_tables({"random": {"a": "uniform:0:1", "b": "uniform:0:1"}})
    cells = [
        {(int(8 * point["a"]), int(8 * point["b"])) for point in space.points(64, sobol=sobol)}
        for sobol in (True, False)
    ]
    assert len(cells[0]) == 64  # a (0, 6, 2)-net in base 2 has one point in each of the 64 cells
    assert len(cells[1]) < 50


def test_a_setting_is_left_out_where_its_condition_is_not_met():
    for point in from_tables(TABLES).points(3):
        assert ("kl_coef" in point) == (point["surrogate"] == "penalty")
    chained = from_tables(
        {
            "grid": {"a": [0, 1], "b": [0, 1], "c": [0, 1]},
            "where": {"b": {"a": 1}, "c": {"b": [1]}},
        }
    )
    assert chained.points() == [
        {"a": 0},
        {"a": 1, "b": 0},
        {"a": 1, "b": 1, "c": 0},
        {"a": 1, "b": 1, "c": 1},
    ]


def test_the_file_the_flags_and_the_tables_are_one_space(tmp_path):
    file = tmp_path / "space.toml"
    file.write_text(FILE)
    space = from_tables(TABLES)
    assert from_words(file=file) == space
    assert from_tables(json.loads(json.dumps(space.to_json(), allow_nan=False))) == space
    words = from_words(
        ["surrogate=clip,penalty", "hidden-sizes=(64,64),(256,)"], ["learning-rate=log:1e-5:1e-2"]
    )
    assert words.grid == {"surrogate": ("clip", "penalty"), "hidden_sizes": ("(64,64)", "(256,)")}
    assert words.random == {"learning_rate": space.random["learning_rate"]}
    added = from_words(["gamma=0.9,0.99"], file=file)
    assert set(added.names) == {*space.names, "gamma"}


def test_infinities_survive_strict_json():
    space = from_tables({"grid": {"target_kl": [math.inf, 0.01]}, "random": {"x": [(1, 2), -math.inf]}})
    assert from_tables(json.loads(json.dumps(space.to_json(), allow_nan=False))) == space


def test_a_label_names_the_first_settings():
    point = {
        "learning_rate": 0.000312345,
        "gamma": 0.998765,
        "hidden_sizes": (64, 64),
        "a": 1,
        "name": "x" * 20,
    }
    assert label_of(3, point) == "3 learning_rate=0.0003123 gamma=0.998765 hidden_sizes=64x64 +2"
    assert label_of(0, {"name": "y" * 80}) == f"0 name={'y' * 80}"


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({}, "the space is empty; give a setting that varies, such as learning_rate=log:1e-5:1e-2."),
        ({"grid": {"a": []}}, "a has no values; give one or more, such as a=0.1,0.2."),
        ({"grid": {"a": 3}}, "grid: a=3 is not a list of values; give one such as [0.1, 0.2]."),
        (
            {"gird": {}},
            "the space has the key 'gird', which is none of grid, random, where; did you mean 'grid'?",
        ),
        ({"grid": [1]}, "grid=[1] is not a dictionary by names, such as {'gravity': 9.0}."),
        (
            {"grid": {"a": [1, 2]}, "random": {"a": "uniform:0:1"}},
            "a is in the grid and among the random settings; give it once.",
        ),
        (
            {"grid": {"gamma": [1, 2]}, "where": {"gama.b": 1}},
            "where: gama.b begins with no setting of the space; did you mean 'gamma'?",
        ),
        (
            {"grid": {"a": [1, 2], "surrogate": ["clip"]}, "where": {"a": {"surogate": "clip"}}},
            "where: a depends on 'surogate', which is not a setting of the space; a condition needs one that varies; "
            "did you mean 'surrogate'?",
        ),
        (
            {"grid": {"a": [1, 2], "surrogate": ["clip", "dpo"]}, "where": {"a": {"surrogate": "penalty"}}},
            "where: a needs surrogate=penalty, which surrogate never has; it is one of clip, dpo.",
        ),
        (
            {"grid": {"a": [1, 2]}, "random": {"b": "uniform:0:1"}, "where": {"a": {"b": 0.5}}},
            "where: a depends on b, which is drawn from a range of numbers; a condition needs a grid or a choice.",
        ),
        (
            {"grid": {"a": [1, 2], "b": [1, 2]}, "where": {"a": {"b": 1}, "b": {"a": 1}}},
            "where: a depends on b depends on a; leave one of these conditions out.",
        ),
    ],
)
def test_one_sentence_says_what_is_wrong(tables, sentence):
    with pytest.raises(ShoalError) as caught:
        from_tables(tables)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("grid", "random", "sentence"),
    [
        (["a"], [], "--grid 'a' is not NAME=VALUES; give one such as learning_rate=1e-4,3e-4."),
        (["a=1", "a=2"], [], "--grid a is given twice; give it once, with all of its values."),
        (["a=1,2"], ["a=int:1:2"], "a is in the grid and among the random settings; give it once."),
        (["a=,"], [], "a has no values; give one or more, such as a=0.1,0.2."),
        (["surrogate=clip"], [], "surrogate is given by --grid and by '{file}'; give it once."),
    ],
)
def test_one_sentence_says_which_flag_is_wrong(grid, random, sentence, tmp_path):
    file = ""
    if "{file}" in sentence:
        file = tmp_path / "space.toml"
        file.write_text(FILE)
    with pytest.raises(ShoalError) as caught:
        from_words(grid, random, file)
    assert str(caught.value) == sentence.replace("{file}", str(file))


def test_one_sentence_says_why_a_file_cannot_be_read(tmp_path):
    file = tmp_path / "space.toml"
    with pytest.raises(ShoalError, match=r"cannot be read: No such file or directory\.$"):
        from_words(file=file)
    file.write_text("[grid\n")
    with pytest.raises(ShoalError, match="is not TOML: "):
        from_words(file=file)
    file.write_text("[grdi]\na = [1]\n")
    with pytest.raises(
        ShoalError, match="has the key 'grdi', which is none of grid, random, where; did you mean"
    ):
        from_words(file=file)


def test_samples_need_a_random_setting():
    grid = from_tables({"grid": {"a": [1, 2]}})
    with pytest.raises(ShoalError, match=r"^samples=2 has no effect on a grid; it needs a random setting\.$"):
        grid.points(2)
    with pytest.raises(ShoalError, match=r"^sobol has no effect on a grid"):
        grid.points(sobol=True)


def test_points_that_repeat_are_left_out():
    space = from_tables(
        {
            "random": {"surrogate": ["clip", "penalty"], "kl_coef": "log:0.1:10"},
            "where": {"kl_coef": {"surrogate": "penalty"}},
        }
    )
    points = space.points(20)
    assert points.count({"surrogate": "clip"}) == 1
    assert points[: len(space.points(4))] == space.points(4)


def test_values_split_at_commas_outside_brackets():
    assert spaces.split_values("(64,64), (32,),[1, 2],x") == ["(64,64)", "(32,)", "[1, 2]", "x"]
