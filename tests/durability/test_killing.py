"""Processes that are killed end as if nobody had killed them, and two of them never write one run."""

import pytest
from killing import VARIANTS, Workplace, differences, make_reference, soak, train

ARGUMENTS = train(**VARIANTS["feed-forward"])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killing")
    return Workplace(folder, folder / "cache")


@pytest.fixture(scope="module")
def reference(place):
    return make_reference(place, ARGUMENTS, "reference")


@pytest.mark.slow
def test_ten_kills_change_nothing(place, reference):
    tally = soak(place, ARGUMENTS, "run", reference, kills=10, seed=0)
    assert tally.total == 10
    assert tally.resumed  # or nothing was tried


@pytest.mark.slow
def test_a_change_would_be_noticed(reference):
    """The comparison is no formality: the run learns, and each kind of loss is named."""
    outcome = reference.outcome
    assert len(outcome["rows"]) == 50
    assert outcome["best policy"] != outcome["last policy"]
    for rows in (outcome["rows"][:-1], [*outcome["rows"], outcome["rows"][-1]], outcome["rows"][::-1]):
        assert differences(outcome, {**outcome, "rows": rows})
    assert differences(outcome, {**outcome, "its leaves": "another"})
