"""What can be saved is known before anything is: every dtype and name is tried against the real format."""

import logging
import threading
import types
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.extend import random as extended

from shoal.base.errors import ShoalError
from shoal.disk import arrays

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
@pytest.mark.quick("bool", "float32", "bfloat16", "complex64", "int8", "uint32", "float8_e4m3fn", "uint4")
@pytest.mark.rare(
    "complex128",
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
    path = tmp_path / "arrays"
    try:
        arrays.write_arrays(path, {"w": saved})
        loaded = arrays.read_arrays(path, {"w": {"dtype": dtype.name, "shape": [1, 5]}})["w"]
        comes_back = loaded.dtype == dtype and loaded.tobytes() == saved.tobytes()
    except arrays.OrbaxError:
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


def test_names_that_the_format_cannot_hold():
    one = shape(jnp.float32)
    with pytest.raises(
        ShoalError, match=r"^'a\\ud800' cannot be saved under that name: it is not valid Unicode\.$"
    ):
        arrays.check_storable({"a\ud800": one})
    with pytest.raises(ShoalError, match=r"^'a' and 'a/' cannot be saved together: rename one of them\.$"):
        arrays.check_storable({"a": one, "a/": one})


def test_names_that_look_alike_are_held_apart(tmp_path):
    names = [
        "a",
        "a/b",
        "a//b",
        "a//",
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
    arrays.write_arrays(tmp_path / "arrays", leaves)
    expected = {name: {"dtype": "int64", "shape": [2]} for name in names}
    loaded = arrays.read_arrays(tmp_path / "arrays", expected)
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


def test_keys_of_a_users_own_implementation_are_not_storable():
    """They could not be made again by a process that does not define it."""
    own = extended.define_prng_impl(
        key_shape=(2,), seed=None, split=None, random_bits=None, fold_in=None, name="mine", tag="mi"
    )
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl=own)
    with pytest.raises(
        ShoalError, match=r"^'learner/k' cannot be saved: JAX does not find its keys' implementation"
    ):
        arrays.check_storable({"learner/k": key})


@pytest.mark.parametrize("first", ["main", "background"])
def test_what_belongs_to_the_process_is_as_before_once_two_threads_have_written(first):
    """Orbax is silenced while it runs; a thread that ends later must not put back what it found."""
    begun, goes_on = threading.Event(), threading.Event()

    def act():
        begun.set()
        assert goes_on.wait(60)

    absl = logging.getLogger("absl")
    filters, disabled = warnings.filters, absl.disabled
    background = threading.Thread(target=lambda: arrays._run_quietly(act))

    def begin():
        background.start()
        assert begun.wait(60)
        assert not absl.filter(logging.makeLogRecord({}))

    def end():
        goes_on.set()
        background.join()

    if first == "background":
        begin()
        arrays._run_quietly(lambda: None)
        end()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays._run_quietly(begin)
        end()
    assert warnings.filters is filters
    assert absl.disabled == disabled and absl.filters == []
    assert absl.filter(logging.makeLogRecord({}))


def test_a_policy_that_is_one_array_has_no_name_on_disk_either(tmp_path):
    """Runs that were saved before names of several parts were changed are read."""
    from orbax.checkpoint import v1 as orbax

    orbax.save(tmp_path / "arrays", {"": np.arange(3.0), "layers/0/w": np.ones(2)})
    expected = {"": {"dtype": "float64", "shape": [3]}, "layers/0/w": {"dtype": "float64", "shape": [2]}}
    loaded = arrays.read_arrays(tmp_path / "arrays", expected)
    np.testing.assert_array_equal(loaded[""], np.arange(3.0))
    np.testing.assert_array_equal(loaded["layers/0/w"], np.ones(2))
