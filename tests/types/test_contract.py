"""The sentences about what users' functions return: whose, where, what, and what is right."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest

from shoal.base.errors import ShoalError
from shoal.types import Learner, contract

FILE = "tests/types/test_contract.py"


class Mine:
    def method(self):
        return 1

    def __call__(self):
        return 2


def plain():
    return 3


def line_of(function):
    return f"({FILE}, line {function.__code__.co_firstlineno})"


class Two(NamedTuple):
    x: float
    y: float


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (plain, f"plain {line_of(plain)}"),
        (Mine().method, f"Mine.method {line_of(Mine.method)}"),
        (Mine(), f"Mine.__call__ {line_of(Mine.__call__)}"),
        (functools.partial(jax.jit(plain)), f"plain {line_of(plain)}"),
        (optax.adam, "adam"),
        (Mine, "Mine"),
    ],
)
def test_a_function_is_named_with_its_place_if_it_is_the_users(function, name):
    assert contract.named(function) == name


def test_another_name_takes_the_place():
    assert contract.named(plain, "score='a:b'") == f"score='a:b' {line_of(plain)}"


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (jnp.zeros((3, 2)), "float32[3, 2]"),
        (jnp.int32(1), "int32[]"),
        ((1, 2, 3), "3 values"),
        (None, "None"),
        (Two(1.0, 2.0), "a Two"),
        ({}, "a dict"),
    ],
)
def test_what_was_returned_is_described(x, words):
    assert contract.described(x) == words


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: contract.require_type(plain, {}, Learner), "a dict; it must return a shoal.types.Learner."),
        (lambda: contract.require_tuple(plain, (1,), "(a, b)"), "1 values; it must return (a, b)."),
        (lambda: contract.require_tuple(plain, Learner(1, 2), "(a, b)"), "a Learner; it must return (a, b)."),
        (lambda: contract.require_array(plain, jnp.zeros(2), (3,)), "float32[2]; it must return float32[3]."),
        (
            lambda: contract.require_array(
                plain, jnp.int32(0), (), what="values", given="a step", why="for it"
            ),
            "values of int32[] for a step; it must return float32[], for it.",
        ),
        (
            lambda: contract.require_array(plain, jnp.zeros(2), (3,), ""),
            "float32[2]; it must return an array [3].",
        ),
        (
            lambda: contract.require_same(plain, "memory", {"a": 1.0}, {"a": 1.0, "b": jnp.ones(2)}),
            "a memory whose 'b' is missing, and was given float32[2]; it must return a memory of the same structure",
        ),
    ],
)
def test_each_sentence_says_whose_what_and_what_is_right(check, sentence):
    with pytest.raises(ShoalError) as error:
        check()
    assert str(error.value).startswith(f"plain {line_of(plain)} returns {sentence}")


def test_trees_differ_by_leaves_or_else_by_structure():
    before, after = {"a": jnp.ones(2), "b": 1.0}, {"a": jnp.ones(3), "c": 1.0}
    differences = [("a", "float32[2]", "float32[3]"), ("b", "a float", ""), ("c", "", "a float")]
    assert list(contract.differences(before, after)) == differences
    ((path, old, new),) = contract.differences((1.0, 2.0), [1.0, 2.0])
    assert path == "structure" and old != new
    assert list(contract.differences(before, before)) == []
