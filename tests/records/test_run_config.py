"""How a run is made: points of evaluation and logging, whole updates, and each bad setting in one sentence."""

import dataclasses
import itertools

import pytest

from shoal.base.errors import ShoalError
from shoal.records.run_config import RunConfig, check_at_least


def config(updates=100, **settings):
    """A run of so many updates of 10 steps each."""
    return RunConfig(num_envs=2, num_steps=5, total_steps=10 * updates, **settings)


def test_a_budget_is_rounded_down_to_whole_updates():
    assert RunConfig(num_envs=4, num_steps=8, total_steps=100).total_updates == 3
    assert RunConfig(num_envs=4, num_steps=8, total_steps=96).total_updates == 3
    assert RunConfig(num_envs=4, num_steps=8, total_steps=95).total_updates == 2
    assert RunConfig(num_envs=4, num_steps=8).steps_per_update == 32


def test_a_number_of_updates_is_a_budget_too():
    run = RunConfig(num_envs=4, num_steps=8, num_updates=5)
    expected = RunConfig(num_envs=4, num_steps=8, total_steps=160)
    assert run.with_total_steps(is_given=False) == expected
    assert expected.with_total_steps(is_given=True) == expected
    agreeing = dataclasses.replace(run, total_steps=170)  # rounded down to as many
    assert agreeing.with_total_steps(is_given=True) == expected


@pytest.mark.parametrize(
    "settings,sentence",
    [
        (
            {"num_updates": 5, "total_steps": 192},
            "num_updates=5 and total_steps=192 are two budgets, since 5 updates of num_envs*num_steps=4*8 are 160 "
            "environment steps; give one of them.",
        ),
        ({"num_updates": 0}, "num_updates=0 is out of bounds: it must be at least 1"),
        ({"num_updates": "many"}, "num_updates='many' is not a whole number."),
        ({"num_updates": 3, "num_envs": "few"}, "num_envs='few' is not a whole number."),
    ],
)
def test_two_budgets_are_refused(settings, sentence):
    run = RunConfig(**{"num_envs": 4, "num_steps": 8} | settings)
    with pytest.raises(ShoalError) as error:
        run.with_total_steps(is_given="total_steps" in settings)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    "updates,settings,points",
    [
        (100, {"num_evals": 4}, [0, 25, 50, 75, 100]),
        (10, {"num_evals": 3}, [0, 3, 7, 10]),
        (3, {"num_evals": 20}, [0, 1, 2, 3]),  # more than there are updates
        (100, {"num_evals": 1}, [0, 100]),
        (100, {"num_evals": 0}, [0, 100]),  # the first and the last are always made
        (10, {"eval_every": 30}, [0, 3, 6, 9, 10]),
        (10, {"eval_every": 34}, [0, 3, 6, 9, 10]),  # the nearest whole update
        (10, {"eval_every": 1}, list(range(11))),  # less than an update is each update
        (10, {"eval_every": 1000}, [0, 10]),
        (10, {"eval_every": "never"}, []),
    ],
)
def test_evaluations_are_evenly_spaced(updates, settings, points):
    assert config(updates, **settings).evaluation_points() == points


@pytest.mark.parametrize("updates", [1, 3, 49, 50, 51, 99, 100, 101, 1234])
@pytest.mark.parametrize("settings", [{}, {"num_evals": 7}, {"num_evals": 23}, {"log_every": 70}])
def test_points_lie_in_the_run_and_close_together(updates, settings):
    run = config(updates, **settings)
    logs, evaluations = run.log_points(), run.evaluation_points()
    assert logs == sorted(set(logs))
    assert logs[0] > 0
    assert logs[-1] == updates
    assert set(evaluations) - {0} <= set(logs)
    gaps = [b - a for a, b in itertools.pairwise(evaluations)]
    assert max(gaps) - min(gaps) <= 1
    assert len(evaluations) == min(run.num_evals, updates) + 1
    if "log_every" in settings:
        assert set(range(7, updates + 1, 7)) <= set(logs)
    else:
        assert min(40, updates) <= len(logs) <= 40 + len(evaluations)


@pytest.mark.parametrize(
    "settings,sentence",
    [
        ({"seeds": 0}, "seeds=0 is out of bounds: it must be at least 1"),
        ({"seeds": 1.5}, "seeds=1.5 is not a whole number."),
        ({"seed": -1}, "seed=-1 is out of bounds: it must be at least 0"),
        ({"total_steps": 8191}, "total_steps=8191 is less than one rollout, num_envs*num_steps=64*128=8192;"),
        ({"reset": "fersh"}, "reset='fersh' is none of fresh, pool"),
        ({"env_groups": 3}, "env_groups=3 does not divide num_envs=64; "),
        (
            {"seeds": (1, 2)},
            "seeds=(1, 2) is not a whole number; it is the number of seeds, and `seed` is the first of them.",
        ),
        ({"seeds": 2, "seed": 2**32 - 1}, "seeds=2 is too large: it must be at most 1."),
        ({"num_evals": 10**9}, "num_evals=1000000000 is out of bounds: it must be at least"),
        (
            {"num_envs": 2**16, "num_steps": 2**15, "total_steps": 2**32},
            "num_envs*num_steps=65536*32768 is too large",
        ),
        ({"num_envs": 1, "num_steps": 1, "total_steps": 2**31}, "it must be at most 2147483647."),
        ({"total_steps": 2**53 + 1}, "total_steps=9007199254740993 is out of bounds"),
        ({"log_every": 1, "total_steps": 10**12}, "log_every=1 is too small for total_steps=1000000000000"),
        ({"run_dir": "x" * 300}, "cannot be a path: File name too long."),
    ],
)
def test_every_bad_setting_is_one_sentence(settings, sentence):
    with pytest.raises(ShoalError) as error:
        RunConfig(**settings).validate()
    assert sentence in str(error.value)
    assert str(error.value).count("\n") == 0
    assert str(error.value).endswith((".", "?"))


def test_the_least_distance_of_points_that_is_named_is_possible():
    run = RunConfig(eval_every=1, total_steps=10**13)
    with pytest.raises(ShoalError) as error:
        run.validate()
    named = int(str(error.value).split("eval_every=")[-1].split()[0])
    possible = dataclasses.replace(run, eval_every=named)
    possible.validate()
    assert len(possible.evaluation_points()) <= 100_002


def test_the_defaults_and_their_bounds_are_valid():
    RunConfig().validate()
    RunConfig(
        seeds=1, num_envs=1, num_steps=1, total_steps=1, num_evals=0, eval_episodes=1, eval_max_steps=1
    ).validate()
    RunConfig(env_groups=2, eval_every=-1).validate()
    RunConfig(seed=2**32 - 1, seeds=1, num_evals=100_000, total_steps=10**13).validate()
    RunConfig(num_envs=1, num_steps=1, total_steps=2**31 - 1, eval_max_steps=2**31 - 1).validate()
    check_at_least("x", 3, 3)
    with pytest.raises(ShoalError, match=r"^x=2 is too small: it must be at least 3\.$"):
        check_at_least("x", 2, 3)
