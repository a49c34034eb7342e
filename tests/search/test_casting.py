"""Values of a space as the types of PPO's and a run's settings."""

import math

import pytest

from shoal import ShoalError
from shoal.config.settings import settings_of
from shoal.runs.plan.defaults import defaults
from shoal.search.space import from_tables, from_words


@pytest.fixture(scope="module")
def known():
    _, run, config, *_ = defaults("CartPole-v1")
    return settings_of(run) | settings_of(config)


def test_texts_become_what_their_settings_declare(known):
    space = from_words(
        [
            "core=none,gru",
            "hidden_sizes=64x64,(32,32),128",
            "num_steps=1e2,64",
            "ent_coef=0,1e-2",
            "target_kl=inf,0.01",
            "critic_optimizer=none,adam",
            "critic_learning_rate=none,1",
            "norm_adv=none,batch",
            "clip_vloss=true,false",
            "optimizer=adam,rmsprop",
            "optimizer_args.eps=1e-8,1e-5",
            "env.gravity=9.8,15",
        ],
    )
    cast = space.cast(known)
    assert cast.grid == {
        "core": ("none", "gru"),
        "hidden_sizes": ((64, 64), (32, 32), (128,)),
        "num_steps": (100, 64),
        "ent_coef": (0.0, 0.01),
        "target_kl": (math.inf, 0.01),
        "critic_optimizer": (None, "adam"),
        "critic_learning_rate": (None, 1.0),
        "norm_adv": ("none", "batch"),
        "clip_vloss": (True, False),
        "optimizer": ("adam", "rmsprop"),
        "optimizer_args.eps": (1e-8, 1e-5),
        "env.gravity": (9.8, 15),
    }
    kinds = {name: {type(value) for value in values} for name, values in cast.grid.items()}
    assert (kinds["num_steps"], kinds["ent_coef"], kinds["clip_vloss"]) == ({int}, {float}, {bool})


def test_conditions_are_cast_with_the_settings_that_they_name(known):
    space = from_tables(
        {
            "grid": {"update_epochs": ["2", "4"]},
            "random": {"gamma": "one-minus-log:0.9:0.999"},
            "where": {"gamma.update_epochs": 4},
        }
    )
    points = space.cast(known).points(2)
    assert [("gamma" in point) for point in points] == [False, True, True]


@pytest.mark.parametrize(
    ("grid", "random", "sentence"),
    [
        (
            [],
            ["surrogate=uniform:0:1"],
            "surrogate=uniform:0.0:1.0 draws numbers, and surrogate is not a number; give a list, such as --grid "
            "surrogate=A,B or choice:A:B.",
        ),
        (
            [],
            ["num_steps=log:16:128"],
            "num_steps=log:16.0:128.0 draws numbers that are not whole; give int:LOW:HIGH.",
        ),
        (["ent_coef=0.1,0.10"], [], "ent_coef has the value 0.1 twice; give it once."),
    ],
)
def test_one_sentence_says_what_is_wrong(known, grid, random, sentence):
    with pytest.raises(ShoalError) as caught:
        from_words(grid, random).cast(known)
    assert str(caught.value) == sentence
