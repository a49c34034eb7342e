"""Structs as pytrees: which fields are data, the boundary cast, names of leaves, selection."""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float

from shoal.base.errors import ShoalError
from shoal.config import struct


class Pair(NamedTuple):
    left: Any
    right: Any


class Actor(Protocol):
    def act(self) -> None: ...


@struct.struct
class Inner:
    mass: float = 1.0


@struct.struct
class Everything:
    """One field of each kind."""

    gravity: float = 9.8
    array: jax.Array = dataclasses.field(default_factory=lambda: jnp.zeros(3))
    shaped: Float[jax.Array, "3"] = dataclasses.field(default_factory=lambda: jnp.zeros(3))
    either: float | jax.Array = 2.0
    inner: Inner = dataclasses.field(default_factory=Inner)
    pair: Pair = Pair(1.0, 2.0)
    actor: Actor | Inner = dataclasses.field(default_factory=Inner)
    anything: Any = ()
    size: int = 4
    flag: bool = False
    name: str = "x"
    sizes: tuple[int, ...] = (64, 64)
    limit: int | None = None
    frozen: float = struct.static(0.5)


DATA = ("gravity", "array", "shaped", "either", "inner", "pair", "actor", "anything")


def test_declared_types_decide_what_is_data():
    assert struct.data_fields(Everything) == struct.data_fields(Everything()) == DATA
    assert struct.is_struct(Everything) and struct.is_struct(Everything())
    assert not struct.is_struct(Pair(1, 2)) and not struct.is_struct(3.0)


@pytest.mark.parametrize(
    "change", [{"size": 5}, {"flag": True}, {"name": "y"}, {"sizes": (1,)}, {"limit": 3}, {"frozen": 0.6}]
)
def test_other_fields_are_structure(change):
    changed = dataclasses.replace(Everything(), **change)
    assert jax.tree.structure(changed) != jax.tree.structure(Everything())


def test_changing_data_keeps_the_structure_and_does_not_compile_again():
    traces = []

    @jax.jit
    def weight(tree):
        traces.append(tree.size)
        return tree.gravity * tree.inner.mass

    assert weight(struct.as_arrays(Everything(gravity=2.0))) == 2.0
    assert weight(struct.as_arrays(Everything(gravity=3, inner=Inner(np.float64(2))))) == 6.0
    assert traces == [4]
    weight(struct.as_arrays(Everything(size=5)))
    assert traces == [4, 5]


@pytest.mark.parametrize("declared", [float | None, jax.Array | None, Inner | None, int | float])
def test_optional_data_is_refused(declared):
    with pytest.raises(TypeError, match=r"field 'rate' is declared .*static"):
        struct.struct(type("Bad", (), {"__annotations__": {"rate": declared}, "rate": None}))


def test_none_may_stand_for_another_value_where_bounds_are_declared():
    @struct.struct
    class Rates:
        actor: float = 1.0
        critic: float | None = struct.parameter(None, above=0.0)

    assert struct.data_fields(Rates) == ("actor", "critic")
    assert struct.as_arrays(Rates()).critic is None
    critic = struct.as_arrays(Rates(critic=2)).critic
    assert critic.dtype == jnp.float32 and critic == 2.0


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        ({}, [0, -1e30, np.ones(3)], [np.inf, -np.inf, np.nan, np.array([1.0, np.nan])], "finite"),
        ({"low": 0.0}, [0, 1.5, np.arange(2)], [-1e-9, np.inf, np.nan, np.array([1, -1])], "at least 0"),
        ({"above": 0.0, "high": 1.0}, [1e-9, 1], [0, 1.1, np.nan], "at most 1 and greater than 0"),
        ({"above": 0.0, "high": np.inf}, [np.inf, 3.0], [0.0, -np.inf, np.nan], "greater than 0"),
        ({"low": -np.inf, "below": 2.0}, [-np.inf, 1.9], [2.0, np.inf, np.nan], "less than 2"),
        ({"low": -np.inf, "high": np.inf}, [np.inf, -np.inf, 0], [np.nan], "a number"),
    ],
)
def test_bounds(bounds, inside, outside, words):
    bounds = struct.Bounds(**bounds)
    assert set(str(bounds).split(" and ")) == set(words.split(" and "))
    for value in inside:
        struct.check_bounds("mass", value, bounds)
        struct.check_bounds("mass", jnp.asarray(value, jnp.float32), bounds)
    for value in outside:
        with pytest.raises(ShoalError, match=r"mass=.* is out of bounds: (it|each number of it) must be"):
            struct.check_bounds("mass", value, bounds)


def test_bounds_are_read_from_the_class_and_not_of_traced_values():
    @struct.struct
    class Body:
        mass: float = struct.parameter(1.0, above=0.0)
        drag: float = 0.0
        size: float = struct.parameter(2.0, low=1.0, static=True)

    assert struct.bounds_of(Body) == {"mass": struct.Bounds(above=0.0), "size": struct.Bounds(low=1.0)}
    assert struct.data_fields(Body) == ("mass", "drag")
    assert Body().mass == 1.0

    @jax.jit
    def checked(mass):
        struct.check_bounds("mass", mass, struct.bounds_of(Body)["mass"])
        return mass

    assert checked(-1.0) == -1.0


def test_structs_are_frozen_and_stack():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Inner().mass = 2.0  # type: ignore[misc]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), Inner(jnp.float32(1)), Inner(jnp.float32(3)))
    doubled = jax.vmap(lambda inner: dataclasses.replace(inner, mass=2 * inner.mass))(stacked)
    np.testing.assert_array_equal(doubled.mass, [2.0, 6.0])


@pytest.mark.parametrize(
    "value",
    [1, 1.0, True, np.float64(1), np.float32(1), np.int64(1), np.ones(()), jnp.asarray(1.0), jnp.int32(1)],
    ids=lambda value: type(value).__name__,
)
def test_as_arrays_goes_by_the_declared_type(value):
    mass = struct.as_arrays(Inner(value)).mass
    assert (mass.dtype, mass.weak_type, float(mass)) == (jnp.float32, False, 1.0)


def test_as_arrays_leaves_nested_arrays_their_dtype():
    key = jax.random.key(0)
    tree = {"n": jnp.arange(3), "weak": jnp.asarray(2.0), "flag": True, "count": 3, "key": key}
    tree["inner"] = [Inner(jnp.arange(2)), np.arange(2.0)]
    out = struct.as_arrays(tree)
    assert out.pop("key").dtype == key.dtype
    assert (out["n"].dtype, out["flag"].dtype, out["count"].dtype) == (jnp.int32, bool, jnp.float32)
    assert out["inner"][0].mass.dtype == out["inner"][1].dtype == jnp.float32
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(out))


NAMES = st.text("abcxyz_0123", min_size=1, max_size=4)
TREES = st.recursive(
    st.integers(0, 99),
    lambda part: st.one_of(
        st.dictionaries(NAMES, part, max_size=3),
        st.lists(part, max_size=3),
        st.builds(Pair, part, part),
        st.builds(Everything, anything=part),
    ),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(TREES)
def test_names_round_trip(tree):
    leaves = struct.named_leaves(tree)
    assert [*leaves.values()] == jax.tree.leaves(tree) or "array" in str(leaves)  # arrays do not compare
    shuffled = {name: f"value of {name}" for name in sorted(leaves, reverse=True)}
    rebuilt = struct.with_named_leaves(tree, shuffled)
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)
    assert struct.named_leaves(rebuilt) == shuffled


def test_names_are_readable():
    tree = {"network": Pair([Inner(1.0), Inner(2.0)], ())}
    assert struct.named_leaves(tree) == {"network/left/0/mass": 1.0, "network/left/1/mass": 2.0}
    assert struct.named_leaves(3.0) == {"": 3.0}


def test_equal_names_are_refused():
    with pytest.raises(ValueError, match="'a/b'"):
        struct.named_leaves({"a/b": 1, "a": {"b": 2}})


def test_missing_names_are_refused():
    with pytest.raises(KeyError, match="mass"):
        struct.with_named_leaves(Inner(), {"weight": 1.0})


def test_parts_are_replaced_by_saved_leaves():
    tree = {"network": {"a": jnp.zeros(2), "b": jnp.zeros(())}, "optimizer": jnp.zeros(3)}
    saved = {"network/a": jnp.ones(2), "network/b": jnp.ones(()), "optimizer": jnp.ones(9), "other": 1}
    new = struct.with_saved_parts(tree, saved, ("network", "observation"))
    assert values_of(new) == {"network/a": [1, 1], "network/b": 1, "optimizer": [0, 0, 0]}
    for changed, words in (
        ({"network/a": jnp.ones(3)}, r"'network/a' is float32\[3\] there and float32\[2\] here; train"),
        ({"network/b": jnp.ones((), jnp.int32)}, r"'network/b' is int32\[\] there and float32\[\] here"),
        ({"network/c": jnp.ones(3)}, "'network/c' was saved there, but nothing of that name is learned here"),
        ({"observation": jnp.ones(3)}, "'observation' was saved there, but nothing"),
    ):
        with pytest.raises(ShoalError, match=words):
            struct.with_saved_parts(tree, saved | changed, ("network", "observation"))
    del saved["network/b"]
    with pytest.raises(
        ShoalError, match="'network/b' is learned here, but nothing of that name was saved there"
    ):
        struct.with_saved_parts(tree, saved, ("network",))


def values_of(tree):
    return {name: np.asarray(x).tolist() for name, x in struct.named_leaves(tree).items()}


def test_where_broadcasts_over_trailing_axes():
    condition = jnp.array([True, False, True])
    on_true = Pair(jnp.ones((3, 2, 2)), {"n": jnp.arange(3), "key": jax.random.split(jax.random.key(0), 3)})
    on_false = Pair(jnp.full((3, 2, 2), jnp.nan), {"n": -jnp.arange(3), "key": on_true.right["key"][::-1]})
    out = struct.where(condition, on_true, on_false)
    for row, chosen in enumerate([on_true, on_false, on_true]):
        np.testing.assert_array_equal(out.left[row], chosen.left[row])
        assert out.right["n"][row] == chosen.right["n"][row]
        assert jnp.all(
            jax.random.key_data(out.right["key"][row]) == jax.random.key_data(chosen.right["key"][row])
        )


def test_where_takes_one_condition_for_all():
    np.testing.assert_array_equal(struct.where(True, jnp.arange(3), jnp.zeros(3, int)), [0, 1, 2])
    np.testing.assert_array_equal(struct.where(jnp.asarray(False), Inner(1.0), Inner(2.0)).mass, 2.0)


def test_where_refuses_different_structures():
    with pytest.raises(ValueError, match="pytree structure"):
        struct.where(jnp.asarray(True), {"a": 1}, {"b": 1})


@pytest.mark.full
def test_classes_with_equal_fields_have_different_structures():
    # With equal ones, jit could answer with the program that it traced for another class.
    def variant(name: str, factor: float) -> Any:
        return struct.struct(type(name, (Inner,), {"weight": lambda self: factor * self.mass}))

    structures = [jax.tree.structure(variant(name, 1.0)()) for name in ("One", "Other")]
    assert structures[0] != structures[1]
    weight = jax.jit(lambda inner: inner.weight())
    assert [float(weight(variant(f"Inner{i}", i)())) for i in range(100)] == list(range(100))
