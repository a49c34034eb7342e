"""The memory of a population: measured on compiled programs, and populations that are divided to fit it."""

import pytest

from shoal.base.errors import ShoalError
from shoal.search import memory_fit
from shoal.search.grouping import Candidate, Request, group_candidates
from shoal.search.memory_fit import Need


@pytest.fixture
def group():
    request = Request(
        "CartPole-v1",
        overrides={
            **{
                "seeds": 2,
                "devices": 1,
                "env_groups": 1,
                "hidden_sizes": (8,),
                "num_envs": 4,
                "num_steps": 16,
            },
            **{"num_minibatches": 1, "update_epochs": 1, "eval_episodes": 1},
        },
    )
    return group_candidates(request, [Candidate(str(k), {"gamma": 0.9 + k / 1000}) for k in range(10)])[0]


@pytest.fixture
def available(monkeypatch):
    """Let this process have so many bytes."""
    return lambda size: monkeypatch.setattr(memory_fit.machine, "available_memory", lambda *_: size)


def test_a_population_that_fits_stays_whole(group, available):
    available(1000 + 20 * 100)
    assert memory_fit.split(group, Need(1000, 100, True)) == [group]
    available(None)
    assert memory_fit.split(group, Need(1000, 100, True)) == [group]


def test_one_that_does_not_is_divided_evenly(group, available):
    """Seven settings of two seeds would fit, so that ten make two parts of five."""
    available(1000 + 15 * 100)
    parts = memory_fit.split(group, Need(1000, 100, True))
    assert [[x.label for x in part.candidates] for part in parts] == [list("01234"), list("56789")]


def test_not_even_one_member(group, available):
    available(1099)
    with pytest.raises(
        ShoalError, match=r"^0: not even one member .* needs 1.1 kB, .* may have 1.1 kB; fewer seeds"
    ):
        memory_fit.split(group, Need(1000, 100, True))
    available(1150)
    with pytest.raises(ShoalError, match="not even 2 members of one setting can be trained"):
        memory_fit.split(group, Need(1000, 100, True))


def test_devices_with_memory_of_their_own_share_the_members():
    need = Need(1000, 100, True)
    assert need.of(8, 2, shared=True) == 2000 + 800
    assert need.of(8, 2, shared=False) == 1000 + 400


@pytest.mark.slow
def test_the_measured_program_predicts_a_larger_one(group, available):
    """Two small programs tell what one of eight members takes; where memory is plenty, none is compiled."""
    available(10**15)
    assert not memory_fit.need_of(group).is_measured
    available(10**5)
    need = memory_fit.need_of(group)
    assert need.is_measured
    _, placed = memory_fit.placement.place(group.experiment)
    devices, _ = memory_fit.placement.place(group.experiment)
    assert need.of(8, 1, True) == pytest.approx(memory_fit._measured(placed, devices, 8), rel=0.02)
    assert need.per_member > memory_fit._lower_bound(placed, devices) / 4
