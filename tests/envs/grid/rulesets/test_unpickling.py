"""The original's benchmark files: read as the original reads them, and never run, however they were made."""

import bz2
import functools
import io
import os
import pickle
import pickletools
import time
import tracemalloc
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from xminigrid.benchmarks import load_benchmark_from_path, save_bz2_pickle

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.grid.rulesets import unpickling
from shoal.envs.grid.rulesets.benchmark import Benchmark
from shoal.envs.grid.rulesets.benchmark_files import MAX_BYTES
from shoal.envs.grid.rulesets.generation import PUBLISHED, bytes_per_ruleset, generate
from shoal.envs.grid.rulesets.unpickling import MAX_OPERATIONS

CONFIG = {"chain_depth": 1, "prune_prob": 0.3, "prune_chain": True, "save_path": "small"}
FILE, SPOILT = "original", "spoilt"


def unpickled(content, most_bytes=2**24):
    return unpickling.unpickle(io.BytesIO(content), most_bytes)


@functools.cache
def small():
    return generate(60, PUBLISHED["small"], seed=2)


@functools.cache
def original():
    """The bytes of a file of the original's."""
    save_bz2_pickle(contents(), FILE)
    return Path(FILE).read_bytes()


def contents(array=jnp.asarray):
    tasks = small()
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
    Path(FILE).write_bytes(original())


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


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("array", [np.asarray, np.asfortranarray, jnp.asarray, lambda x: x.astype(np.int64)])
@pytest.mark.quick("asarray0-0", "asarray0-2", "asfortranarray-4", "asarray1-3", "asarray1-5")
def test_every_way_to_pickle_an_array_is_read(array, protocol):
    save_bz2_pickle(contents(array), FILE, protocol)
    for one, other in zip(Benchmark.load(FILE).rulesets, small(), strict=True):
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
    "codecs": b"c_codecs\ndecode\n.",
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
    assert type(found).__module__ == "shoal.envs.grid.rulesets.unpickling"
    assert not hasattr(found, "__dict__")
    with pytest.raises(AttributeError):
        found.anything = 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"goals": None}, "'spoilt' is no benchmark: it has no array 'goals'"),
        ({"rules": [[1, 2]]}, "'spoilt' is no benchmark: it has no array 'rules'"),
        ({"goals": np.full((60, 5), 300)}, "'goals' holds numbers that are not from 0 to 255"),
        ({"goals": np.full((60, 5), 99, np.uint8)}, "there is no goal of kind 99; the kinds of goals are 0 to 14"),
        ({"rules": np.full((60, 2, 7), 13, np.uint8)},
            "there is no rule of kind 13; the kinds of rules are 0 to 11"),
        ({"init_tiles": np.full((60, 4, 2), 20, np.uint8)}, "has tile 20 of colour 20"),
        ({"init_tiles": np.zeros((59, 4, 2), np.uint8)}, "the ruleset's init_tiles is uint8"),
        ({"goals": np.full((60, 5), 1.0)}, "is damaged: it holds values of type 'f8'"),
        ({"goals": np.full((60, 5), None)}, "is damaged: it holds values of type 'O8'"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_benchmark_is_told_so(changes, sentence):
    save_bz2_pickle(contents(np.asarray) | changes, SPOILT)
    with pytest.raises(ShoalError, match=sentence):
        Benchmark.load(SPOILT)
    save_bz2_pickle([1, 2], SPOILT)
    with pytest.raises(ShoalError, match="'spoilt' is no benchmark: it holds a list, not a dictionary"):
        Benchmark.load(SPOILT)


# ---- files that would take too much memory or time


def measured(call):
    """The error that a call raises, the seconds of computing it takes, and the most bytes that it holds at a time."""
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(ShoalError) as error:
            call()
        return str(error.value), time.process_time() - begun, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_largest_file_that_is_published_may_be_read():
    """3,000,000 rulesets of "high" with `num_rules`, should its goals take four bytes a number too."""
    assert bytes_per_ruleset(PUBLISHED["high"]) == 5 + 18 * 7 + 25 * 2
    assert 3_000_000 * (bytes_per_ruleset(PUBLISHED["high"]) + 3 * 5 + 1) + 10_000 < MAX_BYTES


LONG = 2**22
BOMBS = {
    "one long value": pickle.dumps({"goals": bytes(LONG)}),
    "one long text": pickle.dumps({"goals": "x" * LONG}),
    "many values": pickle.dumps([bytes(2**18 + index) for index in range(8)]),
    "only said to be long": b"\x80\x05\x8e" + (2**40).to_bytes(8, "little"),
    "a long line": b"\x80\x02V" + b"x" * LONG + b"\n.",
    "one text encoded often": b"\x80\x02c_codecs\nencode\nq\0X\x00\x00\x04\x00" + b"x" * 2**18
    + b"X\x06\x00\x00\x00latin1\x86q\x01R" + b"h\0h\x01R" * 100 + b".",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_no_more_is_unpacked_than_is_allowed(name, monkeypatch):
    monkeypatch.setattr("shoal.envs.grid.rulesets.benchmark_files.MAX_BYTES", 2**20)
    packed = bz2.compress(BOMBS[name])
    assert len(packed) < 1000
    Path(SPOILT).write_bytes(packed)
    said, _, most = measured(lambda: Benchmark.load(SPOILT))
    assert said == (
        "benchmark 'spoilt' would unpack to more than 1,048,576 bytes, which are the most that are read."
    )
    assert most < 2**22, most  # what was allowed, and copies of a part of it


def nested_tuple(depth):
    """A tuple of twice the same tuple of twice the same ..., which takes 2^depth steps to hash."""
    return b"\x80\x04)" + b"\x94h%c\x86" * depth % tuple(bytes([index]) for index in range(depth))


HANGING = {
    "a key that takes for ever to hash": (
        b"}" + nested_tuple(60)[2:] + b"Ns.",
        "a key of a dictionary is not a text",
    ),
    "a number as a key": (pickle.dumps({1: 2}), "a key of a dictionary is not a text"),
    "too many operations": (b"(" * 20_000, f"it takes more than {MAX_OPERATIONS:,} operations"),
    "a number of too many digits": (b"L" + b"9" * 100_000 + b"L\n.", "is damaged"),
    "deep lists": (b"]" * 5_000 + b"a" * 4_999 + b".", "holds a list, not a dictionary"),
    "a list within itself": (b"]q\0h\0a.", "holds a list, not a dictionary"),
}


@pytest.mark.parametrize("name", HANGING)
def test_a_file_that_would_take_for_ever_is_refused_at_once(name):
    content, sentence = HANGING[name]
    Path(SPOILT).write_bytes(bz2.compress(content))
    said, seconds, _ = measured(lambda: Benchmark.load(SPOILT))
    assert "'spoilt'" in said and sentence in said
    assert seconds < 1


def test_a_file_without_rulesets_is_told_so():
    none = {name: array[:0] for name, array in contents(np.asarray).items() if name != "generation_config"}
    for protocol in range(6):
        save_bz2_pickle(none, SPOILT, protocol)
        with pytest.raises(ShoalError, match="benchmark 'spoilt' holds no rulesets; it needs 1 or more"):
            Benchmark.load(SPOILT)


def test_only_settings_that_json_can_hold_are_kept():
    config = {
        "depth": 1,
        "huge": 10**400,
        "nan": np.nan,
        "infinite": -np.inf,
        "list": [1],
        "name": "x",
        "on": True,
    }
    save_bz2_pickle({**contents(np.asarray), "generation_config": config}, SPOILT)
    read = Benchmark.load(SPOILT)
    assert read.about == {"generation": {"depth": 1, "name": "x", "on": True}}
    read.save("own.npz")
    assert Benchmark.load("own.npz").about == read.about


def mutated(content, rng):
    """The bytes with up to three places changed, taken out, put in, or made to say a large number."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        place = int(rng.integers(0, min(len(changed), rng.choice([200, 10**9]))))
        match rng.integers(4):
            case 0:
                changed[place] ^= int(rng.integers(1, 256))
            case 1:
                del changed[place : place + int(rng.integers(1, 9))]
            case 2:
                changed[place:place] = rng.bytes(rng.integers(1, 9))
            case _:
                changed[place : place + 8] = int(rng.choice([0, 255, 2**31, 2**40])).to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.quick("2")
@pytest.mark.rare("0", "1", "3", "4")
def test_whatever_is_changed_in_a_pickle_it_is_read_or_refused_in_a_sentence(protocol):
    rng = np.random.default_rng(protocol)
    sound = [pickle.dumps(contents(array), protocol) for array in (np.asarray, jnp.asarray)]
    refused, longest = 0, 0.0
    for index in range(300):
        Path(SPOILT).write_bytes(bz2.compress(mutated(sound[index % 2], rng), 1))
        begun = time.process_time()
        try:
            Benchmark.load(SPOILT)
        except ShoalError as error:
            refused += 1
            assert "'spoilt'" in str(error) and "\n" not in str(error) and len(str(error)) < 400
        longest = max(longest, time.process_time() - begun)
    assert refused > 150
    assert longest < 1


# ---- damage


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


def flipped(content, place, rng):
    changed = bytearray(content)
    changed[place] ^= rng.integers(1, 256)
    return bytes(changed)
