"""The table of a population: who member k is, in every part of a run."""

import pytest

from shoal.base.errors import ShoalError
from shoal.records import members
from shoal.records.members import Member, Variant, members_of

VARIANTS = (Variant("slow", {"learning_rate": 1e-4}), Variant("fast", {"learning_rate": 1e-2}))
TABLE = members_of((3, 4), VARIANTS)


def test_members_are_the_seeds_of_one_variant_after_the_other():
    assert [(x.label, x.seed, x.settings["learning_rate"]) for x in TABLE] == [
        ("slow", 3, 1e-4),
        ("slow", 4, 1e-4),
        ("fast", 3, 1e-2),
        ("fast", 4, 1e-2),
    ]
    assert members_of((3, 4)) == (Member(3), Member(4))


def test_a_member_is_named_by_its_label_and_seed_or_by_its_seed_alone():
    alone, labelled = Member(4), TABLE[3]
    assert (alone.name, alone.key, alone.columns) == ("seed 4", 4, {"seed": 4})
    assert (labelled.name, labelled.key) == ("fast, seed 4", "fast, seed 4")
    assert labelled.columns == {"seed": 4, "label": "fast"}


def test_the_table_survives_being_saved():
    assert members.to_metadata(members_of((3, 4))) == {"seeds": [3, 4]}
    for table in (TABLE, members_of((3, 4))):
        again = members.from_metadata(members.to_metadata(table))
        assert [x.name for x in again] == [x.name for x in table]


def test_settings_are_those_of_the_algorithm_or_of_the_environment():
    variant = Variant("x", {"gamma": 0.9, "env.gravity": 9.0, "optimizer_args.eps": 1e-8})
    assert variant.parameters() == {"gravity": 9.0}
    assert variant.of_algorithm() == {"gamma": 0.9, "optimizer_args.eps": 1e-8}


def test_members_are_chosen_by_seed_and_label():
    assert members.chosen(TABLE, None, None) == [0, 1, 2, 3]
    assert members.chosen(TABLE, 4, None) == [1, 3]
    assert members.chosen(TABLE, None, "fast") == [2, 3]
    assert members.chosen(TABLE, 4, "fast") == [3]
    with pytest.raises(ShoalError, match=r"label='fats' is not one of the run's: slow, fast; did you mean"):
        members.chosen(TABLE, None, "fats")
    with pytest.raises(ShoalError, match=r"seed=5 is not one of the run's: 3, 4\.$"):
        members.chosen(TABLE, 5, None)
    with pytest.raises(ShoalError, match="its members differ in their seeds only"):
        members.chosen(members_of((3, 4)), None, "fast")
