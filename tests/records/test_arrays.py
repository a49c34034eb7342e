"""What can be saved is known before anything is: every dtype and name is tried against the real format."""

import types

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.records import array_file, arrays

ALL_DTYPES = sorted(
    {
        *("bool", "complex64", "complex128", "float16", "float32", "float64"),
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        *(name for name in dir(ml_dtypes) if name.startswith(("int", "uint", "float", "bfloat"))),
    }
)


def shape(dtype, size=(3,)):
    return jax.ShapeDtypeStruct(size, dtype)


@pytest.mark.parametrize("name", ALL_DTYPES)
@pytest.mark.quick(
    "bool", "float32", "bfloat16", "complex64", "complex128", "int8", "uint32", "float8_e4m3fn", "uint4"
)
@pytest.mark.rare(
    "float4_e2m1fn",
    "float6_e2m3fn",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e5m2",
    "float8_e8m0fnu",
    "int16",
    "int32",
    "int64",
    "uint16",
    "uint64",
)
def test_a_dtype_is_storable_exactly_if_it_comes_back(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    saved = np.arange(-2, 3).astype(np.float32).astype(dtype).reshape(1, 5)
    path = tmp_path / "x"
    try:
        array_file.write(path, {"w": (saved, None)}, {})
        loaded = array_file.read(path, array_file.verify(path)["leaves"])["w"]
        comes_back = loaded.dtype == dtype and loaded.tobytes() == saved.tobytes()
    except KeyError:
        comes_back = False
    leaf = types.SimpleNamespace(dtype=dtype, shape=(5,))  # JAX has not all of them without x64
    if comes_back:
        arrays.check_storable({"w": leaf})
    else:
        with pytest.raises(ShoalError, match=f"^'w' cannot be saved: its dtype is {name}; use one such as"):
            arrays.check_storable({"w": leaf})


def test_a_gradient_of_integers_is_not_storable():
    with pytest.raises(ShoalError, match=r"^'policy/g' cannot be saved: its dtype is"):
        arrays.check_storable({"policy/g": types.SimpleNamespace(dtype=jax.dtypes.float0, shape=())})


def test_names_that_look_alike_are_held_apart(tmp_path):
    names = [
        "a",
        "a/b",
        "a//b",
        "a//",
        "a/",
        "./a",
        "/a",
        "a/../b",
        "b",
        "a/zarr.json",
        "A",
        "",
        "x" * 3000,
        "a\0b",
    ]
    leaves = {name: np.full(2, k) for k, name in enumerate(names)}
    arrays.check_storable(leaves)
    array_file.write(tmp_path / "x", {name: (array, None) for name, array in leaves.items()}, {})
    loaded = array_file.read(tmp_path / "x", array_file.verify(tmp_path / "x")["leaves"])
    assert {name: x.tolist() for name, x in loaded.items()} == {
        name: x.tolist() for name, x in leaves.items()
    }


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_jaxs_own_keys_are_storable(implementation):
    keys = jax.random.split(jax.random.key(0, impl=implementation), 3)
    arrays.check_storable({"k": keys})
    arrays.check_storable({"k": shape(keys.dtype)})
    words, name = arrays.to_numpy(keys)
    assert (name, words.dtype, words.shape[:1]) == (implementation, np.uint32, (3,))
    again = arrays.from_numpy(words, name)
    assert again.dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.bits(again[1]), jax.random.bits(keys[1]))


def test_names_that_the_format_cannot_hold():
    one = shape(jnp.float32)
    with pytest.raises(
        ShoalError, match=r"^'a\\ud800' cannot be saved under that name: it is not valid Unicode\.$"
    ):
        arrays.check_storable({"a\ud800": one})
