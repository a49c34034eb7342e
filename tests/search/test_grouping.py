"""Which settings differ within a compiled program, and which divide a sweep into several."""

import itertools
import math

import pytest

from shoal.base.errors import ShoalError
from shoal.engine.population import member_layout
from shoal.search import grouping
from shoal.search.grouping import Candidate, Request

REQUEST = Request("CartPole-v1", overrides={"seeds": 2, "devices": 1, "hidden_sizes": (8,)})


def test_a_setting_alone_has_one_device_only_where_its_population_had():
    """And as many for the groups of its environments; one machine has 2 devices, or 32 of which cores are shared."""
    for devices, settings, seeds, groups in itertools.product(
        (1, 2, 3, 8), (1, 2, 3), (1, 2, 3, 5, 37), (1, 4)
    ):
        whole = member_layout.mesh_shape(devices, settings * seeds, groups)
        count, trained = grouping.devices_alone(devices, settings * seeds, seeds, groups)
        alone = member_layout.mesh_shape(count, trained, groups)
        assert (math.prod(alone) > 1, alone[1]) == (math.prod(whole) > 1, whole[1])
        assert trained in (seeds, seeds + 1) and trained % alone[0] == 0 and count <= 32
    assert grouping.devices_alone(2, 10, 5, 1) == (5, 5)
    assert grouping.devices_alone(2, 15, 5, 1) == grouping.devices_alone(2, 5, 5, 1) == (2, 5)
    assert grouping.devices_alone(2, 8, 4, 1) == (2, 4)
    assert grouping.devices_alone(2, 2, 1, 1) == (2, 2) and grouping.devices_alone(2, 74, 37, 1) == (2, 38)


def groups(*points, request=REQUEST):
    candidates = [Candidate(str(index), point) for index, point in enumerate(points)]
    return grouping.group_candidates(request, candidates)


def labels(found):
    return [[candidate.label for candidate in group.candidates] for group in found]


def test_numbers_that_are_data_share_a_program():
    (group,) = groups(
        {"learning_rate": 1e-3, "optimizer_args.eps": 1e-8, "env.gravity": 9.0},
        {"learning_rate": 1e-2, "optimizer_args.eps": 1e-5, "env.gravity": 10},
    )
    assert [variant.settings["env.gravity"] for variant in group.experiment.variants] == [9.0, 10.0]
    assert len(group.experiment.members) == 4


def test_everything_else_divides_programs():
    found = groups(
        {"gamma": 0.9, "update_epochs": 1},
        {"gamma": 0.9, "update_epochs": 4},
        {"gamma": 0.8, "update_epochs": 1},
        {"gamma": 0.8, "num_envs": 32},
        {"gamma": 0.8, "env.max_episode_steps": 100},
    )
    assert labels(found) == [["0", "2"], ["1"], ["3"], ["4"]]
    assert found[1].experiment.config.update_epochs == 4
    assert found[2].experiment.run.num_envs == 32
    assert found[3].experiment.environment.max_steps == 100


def test_a_number_of_updates_is_that_of_each_size():
    request = Request("CartPole-v1", overrides=REQUEST.overrides | {"num_updates": 10})
    found = groups({"num_envs": 8}, {"num_envs": 32}, request=request)
    assert [group.experiment.run.total_steps for group in found] == [10 * 8 * 128, 10 * 32 * 128]


def test_a_number_that_switches_a_part_of_the_program_on_divides_too():
    """A finite target_kl makes the KL stop a part of the program, and conditions leave settings out."""
    assert labels(groups({"target_kl": float("inf")}, {"target_kl": 0.1}, {"target_kl": 0.2})) == [
        ["0"],
        ["1", "2"],
    ]
    found = groups({"surrogate": "clip"}, {"surrogate": "penalty", "kl_coef": 1.0})
    assert [list(group.experiment.variants[0].settings) for group in found] == [[], ["kl_coef"]]


def test_a_part_of_a_group_trains_its_settings():
    (group,) = groups(*({"gamma": x} for x in (0.5, 0.6, 0.7)))
    part = group.part(1, 3)
    assert [candidate.label for candidate in part.candidates] == ["1", "2"]
    assert [x.config.gamma for x in part.experiment.solo] == [0.6, 0.7]


def test_a_setting_without_effect_is_refused():
    with pytest.raises(ShoalError, match=r"kl_coef=1\.0 has no effect with surrogate='clip'"):
        groups({"kl_coef": 1.0})
    with pytest.raises(ShoalError, match="member '1': gamma=2 is out of bounds"):
        groups({"gamma": 0.5}, {"gamma": 2.0})


def test_names_that_cannot_vary_are_refused():
    base = REQUEST.decide()
    grouping.check_names(["num_steps", "gamma", "env.gravity"], base)
    with pytest.raises(ShoalError, match=r"seed cannot vary in a sweep, .* only total_steps, num_envs, "):
        grouping.check_names(["seed"], base)
    with pytest.raises(ShoalError, match=r"the parameter of the environment is env\.gravity"):
        grouping.check_names(["gravity"], base)
    for name, sentence in {
        "learning_rat": (
            "there is no setting 'learning_rat'; a parameter of the environment would be env.learning_rat; did you "
            "mean 'learning_rate'?"
        ),
        "optimizer_arg.eps": (
            "there is no setting 'optimizer_arg.eps'; a name with a dot is env.NAME or SETTING.NAME, such as "
            "optimizer_args.eps; did you mean 'optimizer_args'?"
        ),
    }.items():
        with pytest.raises(ShoalError) as caught:
            grouping.check_names([name], base)
        assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("environment", "name", "example"),
    [
        ("MountainCarContinuous-v0", "env.goal_reward", "such as info_success"),
        ("mpe/Spread-v0", "env.local_ratio", "such as info_collisions"),
        ("mpe/Tag-v0", "env.catch_reward", "such as info_catches"),
    ],
)
def test_returns_of_worlds_with_other_rewards_are_not_compared(environment, name, example):
    base = Request(environment).decide()
    with pytest.raises(ShoalError, match=f"{name} is a part of the rewards.*{example}"):
        grouping.check_objective("absolute", [name], base)
    grouping.check_objective("info_x", [name], base)
    grouping.check_objective("absolute", ["gamma"], base)
