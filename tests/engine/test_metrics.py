"""Metrics of an algorithm and of a user's function: what they must be, and which names are taken."""

import jax.numpy as jnp
import pytest

from shoal.base.errors import ShoalError
from shoal.engine.metrics import checked_means, checked_numbers
from shoal.types import Mean

ONE = jnp.ones(())
OWN = {"episode_return": Mean(ONE, ONE)}


def test_what_is_right_is_given_back():
    means = {"loss": Mean(ONE, ONE), "count": Mean(jnp.int32(3), ONE)}
    assert checked_means("x", means, OWN) is means
    numbers = {"share": ONE, "any": jnp.asarray(True), "three": 3.0}
    assert checked_numbers("x", numbers, OWN) is numbers


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (None, "a returns None; it must return a mapping from names to metrics."),
        ({3: Mean(ONE, ONE)}, "a returns a metric under the name 3; it must return names that are texts."),
        (
            {"episode_return": Mean(ONE, ONE)},
            "a returns a metric 'episode_return', a name that Shoal uses itself",
        ),
        (
            {"loss": ONE},
            "a returns the metric 'loss' as float32[]; it must return a shoal.types.Mean(total, weight).",
        ),
        (
            {"loss": Mean(jnp.ones(3), ONE)},
            "a returns 'loss.total' as float32[3]; it must return one number.",
        ),
        ({"loss": Mean(ONE, "x")}, "a returns 'loss.weight' as a str; it must return one number."),
    ],
)
def test_an_algorithms_metrics_are_means(metrics, sentence):
    with pytest.raises(ShoalError) as error:
        checked_means("a", metrics, OWN)
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        (
            {"score": ONE},
            "f returns a metric 'score', a name that Shoal uses itself; it must return it under another one.",
        ),
        ({"each": jnp.ones(4)}, "f returns 'each' as float32[4]; it must return one number."),
        ({"none": None}, "f returns 'none' as None; it must return one number."),
    ],
)
def test_a_users_metrics_are_numbers(metrics, sentence):
    with pytest.raises(ShoalError) as error:
        checked_numbers("f", metrics, OWN)
    assert str(error.value).startswith(sentence)


def test_a_check_that_is_named_as_a_metric_is_called_a_check():
    with pytest.raises(ShoalError) as error:
        checked_numbers("a", {"q_loss": ONE}, {"q_loss"}, "check")
    assert str(error.value) == (
        "a returns a check 'q_loss', as a metric is named too; it must return it under another one."
    )
