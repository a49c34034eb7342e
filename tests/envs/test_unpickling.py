"""The original's benchmark files: read as the original reads them, and never run, however they were made."""

import bz2
import os
import pickle
import pickletools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from xminigrid.benchmarks import load_benchmark_from_path, save_bz2_pickle

from shoal import envs
from shoal.envs.grid.benchmark import Benchmark
from shoal.envs.grid.generating import PUBLISHED, generate
from shoal.envs.grid.unpickling import PickledArray, unpickled
from shoal.errors import ShoalError

CONFIG = {"chain_depth": 1, "prune_prob": 0.3, "prune_chain": True, "save_path": "small"}
FILE, SPOILT = "original", "spoilt"


def contents(array=jnp.asarray):
    tasks = generate(60, PUBLISHED["small"], seed=2)
    return {
        "generation_config": CONFIG,
        "goals": array(tasks.goal),
        "rules": array(tasks.rules),
        "init_tiles": array(tasks.init_tiles),
        "num_rules": array((tasks.rules[..., 0] > 0).sum(1, dtype=np.uint8)[:, None]),
    }


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    save_bz2_pickle(contents(), FILE)


def test_a_file_of_the_original_is_read_as_the_original_reads_it():
    theirs, ours = load_benchmark_from_path(FILE), Benchmark.load(FILE)
    for one, other in zip(ours.rulesets, (theirs.goals, theirs.rules, theirs.init_tiles), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == np.uint8
    assert (len(ours), ours.num_held_out, ours.about) == (60, 0, {"generation": CONFIG})
    world = envs.make("XLand-MiniGrid-R1-9x9", ruleset=f"{FILE}:7")
    np.testing.assert_array_equal(world.ruleset.rules, theirs.get_ruleset(7).rules)
    assert envs.make("XLand-MiniGrid-R1-9x9", ruleset=f"{FILE}:80%:").num_rulesets == 12
    with pytest.raises(ShoalError, match="nothing held out; in place of 'train' give bounds, such as ':80%'"):
        envs.make("XLand-MiniGrid-R1-9x9", ruleset=f"{FILE}:train")
    first, last = theirs.split(0.8)
    np.testing.assert_array_equal(ours.split(0.8)[0].rulesets.goal, first.goals)
    np.testing.assert_array_equal(ours.split(0.8)[1].rulesets.rules, last.rules)


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("array", [np.asarray, np.asfortranarray, jnp.asarray, lambda x: x.astype(np.int64)])
def test_every_way_to_pickle_an_array_is_read(array, protocol):
    save_bz2_pickle(contents(array), FILE, protocol)
    expected = generate(60, PUBLISHED["small"], seed=2)
    for one, other in zip(Benchmark.load(FILE).rulesets, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# ---- files with code in them


class Calling:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def reference(module, name, *rest):
    """A pickle that calls something by its name, whether or not it is there."""
    words = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() for word in (module, name))
    return b"\x80\x04" + words + b"\x93" + b"".join(rest) + b"."


TOUCH = "touch ran"
ATTACKS = {
    "system": pickle.dumps(Calling(os.system, TOUCH)),
    "eval": pickle.dumps(Calling(eval, "open('ran', 'w')")),
    "open": pickle.dumps({"goals": Calling(open, "ran", "w")}),
    "within an array": pickle.dumps({**contents(np.asarray), "rules": [Calling(os.system, TOUCH)]}),
    "old protocol": b"cos\nsystem\n(S'touch ran'\ntR.",
    "instance": b"(S'touch ran'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'touch ran'\no.",
    "getattr": b"cbuiltins\ngetattr\n.",
    "numpy's load": reference("numpy", "load"),
    "numpy's own eval": reference("numpy.testing._private.utils", "runstring"),
    "dotted": reference("numpy", "dtype.__class__.__base__"),
    "jax, other": reference("jax._src.array", "api.device_put"),
    "method": reference("numpy", "ndarray.__setstate__"),
    "codecs": pickle.dumps(b"\xff", protocol=2),
    "scalar": pickle.dumps(np.uint8(3)),
    "class": pickle.dumps(Path("x")),
}
# These stay within the allowed names, and are to fail for what they do.
JAX = b"\x8c\x0ejax._src.array\x8c\x12_reconstruct_array\x93"
DTYPE = b"\x8c\x05numpy\x8c\x05dtype\x93"
BENT = {
    "change of a function": b"\x80\x04" + JAX + b"}\x8c\x01a\x8c\x01bsb.",
    "slots of a function": b"\x80\x04" + JAX + b"N}\x8c\x05_callK\x01s\x86b.",
    "a call of ndarray": b"\x80\x04\x8c\x05numpy\x8c\x07ndarray\x93K\x05\x85R.",
    "new object": b"\x80\x04" + DTYPE + b")\x81.",
    "objects": b"\x80\x04" + DTYPE + b"\x8c\x02O8\x85R.",
    "fields": b"\x80\x04" + DTYPE + b"\x8c\x05u1,u1\x85R.",
    "wrong arguments": b"\x80\x04" + JAX + b")R.",
    "persistent": b"Pabc\n.",
    "extension": b"\x80\x04\x82\x01.",
    "no end": b"\x80\x04K\x01",
    "nothing": b"",
    "text": b"hello",
    "empty stack": b".",
    "unknown protocol": b"\x80\xff.",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_file_that_asks_for_code_is_told_so_and_not_run(name):
    Path(SPOILT).write_bytes(bz2.compress(ATTACKS[name]))
    with pytest.raises(
        ShoalError, match=r"benchmark 'spoilt' holds code: it asks for [\w.]+, where only arrays"
    ):
        Benchmark.load(SPOILT)
    assert not Path("ran").exists()


@pytest.mark.parametrize("name", BENT)
def test_what_bends_the_stand_ins_is_damaged(name):
    with pytest.raises(ShoalError, match=r"^is damaged: ."):
        unpickled(BENT[name])
    Path(SPOILT).write_bytes(bz2.compress(BENT[name]))
    with pytest.raises(ShoalError, match=r"benchmark 'spoilt' is damaged: ."):
        Benchmark.load(SPOILT)


def test_stand_ins_are_all_that_a_name_can_mean():
    """Every name in the original's files, alone: what it gives can do nothing but make arrays."""
    names = set()
    for array in (jnp.asarray, np.asarray):
        strings = [
            arg for op, arg, _ in pickletools.genops(pickle.dumps(contents(array), 5)) if isinstance(arg, str)
        ]
        names |= {word for word in strings if word.startswith(("jax", "numpy"))}
    assert names == {"jax._src.array", "numpy", "numpy._core.multiarray", "numpy._core.numeric"}
    found = unpickled(reference("numpy", "dtype"))
    assert type(found).__module__ == "shoal.envs.grid.unpickling"
    assert not hasattr(found, "__dict__")
    with pytest.raises(AttributeError):
        found.anything = 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"goals": None}, "'spoilt' is no benchmark: it has no array 'goals'"),
        ({"rules": [[1, 2]]}, "'spoilt' is no benchmark: it has no array 'rules'"),
        ({"goals": np.full((60, 5), 300)}, "'goals' holds numbers that are not from 0 to 255"),
        (
            {"goals": np.full((60, 5), 99, np.uint8)},
            "there is no goal of kind 99; the kinds of goals are 0 to 14",
        ),
        (
            {"rules": np.full((60, 2, 7), 13, np.uint8)},
            "there is no rule of kind 13; the kinds of rules are 0 to 11",
        ),
        ({"init_tiles": np.full((60, 4, 2), 20, np.uint8)}, "has tile 20 of colour 20"),
        ({"init_tiles": np.zeros((59, 4, 2), np.uint8)}, "the ruleset's init_tiles is uint8"),
        ({"goals": np.full((60, 5), 1.0)}, "is damaged: it holds values of type 'f8'"),
        ({"goals": np.full((60, 5), None)}, "is damaged: it holds values of type 'O8'"),
    ],
)
def test_a_file_that_is_no_benchmark_is_told_so(changes, sentence):
    save_bz2_pickle(contents(np.asarray) | changes, SPOILT)
    with pytest.raises(ShoalError, match=sentence):
        Benchmark.load(SPOILT)
    save_bz2_pickle([1, 2], SPOILT)
    with pytest.raises(ShoalError, match="'spoilt' is no benchmark: it holds a list, not a dictionary"):
        Benchmark.load(SPOILT)


def test_a_damaged_file_is_named_wherever_it_is_cut_or_changed():
    """Of the compressed bytes, and of the pickle within, where no checksum helps."""
    whole, rng = Path(FILE).read_bytes(), np.random.default_rng(0)
    spoilt = [whole[:size] for size in rng.integers(0, len(whole), 60)]
    spoilt += [flipped(whole, place, rng) for place in rng.integers(0, len(whole), 60)]
    for content in spoilt:
        Path(SPOILT).write_bytes(content)
        with pytest.raises(ShoalError, match="'spoilt'"):
            Benchmark.load(SPOILT)
    inner = bz2.decompress(whole)
    for content in [inner[:size] for size in rng.integers(0, len(inner), 60)]:
        with pytest.raises(ShoalError, match=r"^is damaged: "):
            unpickled(content)
    for place in (*range(300), *rng.integers(0, len(inner), 600)):
        content = flipped(inner, place, rng)
        try:
            held = unpickled(content)
        except ShoalError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(held, dict | PickledArray | str | int | tuple)


def flipped(content, place, rng):
    changed = bytearray(content)
    changed[place] ^= rng.integers(1, 256)
    return bytes(changed)
