"""Processes that are killed end as if nobody had killed them, and two of them never write one run."""

import pytest
from killing import VARIANTS, Workplace, differences, make_reference, soak, train

CASES = ("feed-forward", "a network with state", "a linen network", "sac and its replay")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killing")
    return Workplace(folder, folder / "cache")


@pytest.fixture(scope="module")
def references(place):
    return {name: make_reference(place, train(**VARIANTS[name]), f"whole {name}") for name in CASES}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ten_kills_change_nothing(place, references, name):
    tally = soak(place, train(**VARIANTS[name]), name, references[name], kills=10, seed=0)
    assert tally.total == 10
    assert tally.resumed  # or nothing was tried


@pytest.mark.slow
def test_a_change_would_be_noticed(references):
    """The comparison is no formality: the run learns, and each kind of loss is named."""
    outcome = references["feed-forward"].outcome
    assert len(outcome["rows"]) == 50
    assert outcome["best policy"] != outcome["last policy"]
    for rows in (outcome["rows"][:-1], [*outcome["rows"], outcome["rows"][-1]], outcome["rows"][::-1]):
        assert differences(outcome, {**outcome, "rows": rows})
    assert differences(outcome, {**outcome, "its leaves": "another"})
