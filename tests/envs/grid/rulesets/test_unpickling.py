"""The original's benchmark files: read as the original reads them, and never run, however they were made."""

import bz2
import copyreg
import functools
import io
import os
import pickle
import pickletools
import re
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
    return unpickling.unpickle(io.BytesIO(content), most_bytes, ("goals",))


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


def as_goals(value):
    """A pickle of a dictionary with one value."""
    return b"\x80\x04}\x8c\x05goals" + value + b"s."


def array_of(kind, *, order="|", size=b"K\x05", content=b"C\x05\0\0\0\0\0"):
    """The operations that make an array of five bytes as NumPy does from protocol 5 on."""
    make = b"\x8c\x13numpy._core.numeric\x8c\x0b_frombuffer\x93"
    named = DTYPE + b"\x8c" + bytes([len(kind)]) + kind.encode() + b"\x85R"
    ordered = named if order is None else named + b"K\x03\x8c\x01" + order.encode() + b"N\x87b"
    return make + b"(" + content + ordered + size + b"\x85\x8c\x01CtR"


JAX = b"\x8c\x0ejax._src.array\x8c\x12_reconstruct_array\x93"
DTYPE = b"\x8c\x05numpy\x8c\x05dtype\x93"
FRAMED = b"\x80\x04\x95" + (7).to_bytes(8, "little") + b"X\x04\0\0\0ab"  # the text goes on behind the frame
# These stay within the allowed names, and are to fail for what they do.
BENT = {
    "change of a function": b"\x80\x04" + JAX + b"}\x8c\x01a\x8c\x01bsb.",
    "slots of a function": b"\x80\x04" + JAX + b"N}\x8c\x05_nameK\x01s\x86b.",
    "a call of ndarray": as_goals(b"\x8c\x05numpy\x8c\x07ndarray\x93K\x05\x85R"),
    "new object": b"\x80\x04" + DTYPE + b")\x81.",
    "new object with names": b"\x80\x04" + DTYPE + b")}\x92.",
    "objects": as_goals(DTYPE + b"\x8c\x02O8\x85R"),
    "array of objects": as_goals(array_of("O8")),
    "array of fields": as_goals(array_of("u1,u1")),
    "array of an unknown order": as_goals(array_of("u1", order="x")),
    "array without a type": as_goals(array_of("u1", order=None)),
    "array of a negative size": as_goals(array_of("u1", size=b"J\xff\xff\xff\xff")),
    "array of a size that is a text": as_goals(array_of("u1", size=b"\x8c\x011")),
    "array of fewer bytes": as_goals(array_of("u1", size=b"K\x06")),
    "array of more bytes": as_goals(array_of("u1", size=b"K\x04")),
    "array of bytes of another encoding": as_goals(
        array_of("u1", content=b"c_codecs\nencode\nVa\nVutf-16\n\x86R")
    ),
    "array of no bytes": as_goals(array_of("u1", content=b"N")),
    "fields": as_goals(DTYPE + b"\x8c\x05u1,u1\x85R"),
    "wrong arguments": as_goals(JAX + b")R"),
    "more than is checked": FRAMED + b"cdC\x040K\x07..",
    "frame in a frame": b"\x80\x04\x95\x0a" + bytes(7) + b"\x95\1" + bytes(7) + b"N.",
    "persistent": b"Pabc\n.",
    "persistent, from the stack": b"NQ.",
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


def test_a_call_is_only_recorded():
    """Whatever the bent files change of an array, this is what is changed."""
    np.testing.assert_array_equal(unpickled(as_goals(array_of("u1")))["goals"], np.zeros(5, np.uint8))
    call = unpickled(b"\x80\x04" + DTYPE + b"K\x01\x85R}\x8c\x04nameNsb.")
    assert (call.name, call.arguments, call.state) == ("dtype", (1,), {"name": None})


def test_a_class_that_this_process_knows_by_a_number_is_not_made():
    copyreg.add_extension("os", "system", 240)
    try:
        cached = pickle.loads(b"\x80\x04\x82\xf0.")
        assert cached is os.system  # from now on without a look at its name
        with pytest.raises(ShoalError, match=r"^is damaged: it uses the operation EXT1, by which no array"):
            unpickled(b"\x80\x04\x82\xf0\x8c\x09touch ran\x85R.")
    finally:
        copyreg.remove_extension("os", "system", 240)
    assert not Path("ran").exists()


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
        ({"goals": None}, "'spoilt' is not a benchmark: it has no array 'goals'"),
        ({"rules": [[1, 2]]}, "'spoilt' is not a benchmark: it has no array 'rules'"),
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
    with pytest.raises(ShoalError, match="'spoilt' is not a benchmark: it holds no dictionary"):
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
    "a long line": b"\x80\x02V" + b"x" * LONG + b"\n.",
}


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


def nested(store):
    """A tuple of twice the same tuple of twice the same ..., which takes 2^60 steps to hash."""
    return b")" + store + b"".join(get(index) * 2 + b"\x86" + store for index in range(60))


def get(index):
    return b"h" + bytes([index])


TUPLE_AGAIN = "it uses a value again that is a tuple or was not stored"
TERABYTE = (2**40).to_bytes(8, "little")
TOO_SHORT = "bytes in a .*, but only 0 remain"
HOSTILE = {
    # Few bytes that ask for much memory.
    "a high index": (b"Nr\xff\xff\xff\x7f.", "it stores a value at the index 2147483647; the highest is 10,000"),
    "a high index as text": (b"Np99999999\n.", "it stores a value at the index 99999999"),
    "a negative index": (b"Np-1\n.", "is damaged"),
    "bytes": (b"\x8e" + TERABYTE, TOO_SHORT),
    "bytes of 4 GB": (b"B\xff\xff\xff\xff", TOO_SHORT),
    "a bytearray": (b"\x96" + TERABYTE, TOO_SHORT),
    "a text": (b"\x8d" + TERABYTE, TOO_SHORT),
    "a text of 4 GB": (b"X\xff\xff\xff\xff", TOO_SHORT),
    "a text of 2 GB": (b"T\xff\xff\xff\x7f", TOO_SHORT),
    "a number": (b"\x8b\xff\xff\xff\x7f", "not enough data"),
    "a frame": (b"\x80\x04\x95" + TERABYTE + b"N.", "is damaged"),
    "the longest frame": (b"\x80\x04\x95" + b"\xff" * 8 + b"N.", "is damaged"),
    "memory behind a frame": (FRAMED + b"cdC\x070Nr\xff\xff\xff\x7f.", "an operation crosses the end of a frame"),
    "one text encoded often": (b"\x80\x02]c_codecs\nencode\nq\0V" + b"x" * 2**18 + b"\nq\1Vlatin1\nq\2\x86Ra"
        + b"h\0h\1h\2\x86Ra" * 1000 + b".", "holds no dictionary"),
    "too many operations": (b"(" * 20_000, f"it takes more than {MAX_OPERATIONS:,} operations"),
    # Few bytes that ask for much time.
    "tuples of tuples as a key": (b"\x80\x04}" + nested(b"\x94") + b"Ns.", TUPLE_AGAIN),
    "as keys of a dictionary": (b"(" + nested(b"\x94") + b"Nd.", TUPLE_AGAIN),
    "in a set": (b"\x80\x04\x8f(" + nested(b"\x94") + b"\x90.", TUPLE_AGAIN),
    "stored as if they were dictionaries": (b"}" + nested(b"(u\x94") + b"Ns.", TUPLE_AGAIN),
    "stored as if they were objects": (b"}" + nested(b"Nb\x94") + b"Ns.", TUPLE_AGAIN),
    "stored behind another value": (b"}" + nested(b"]0\x94") + b"Ns.", TUPLE_AGAIN),
    "tuples of the value on the stack": (b"})" + b"2\x86" * 60 + b"Ns.", "it uses the operation DUP"),
    "a number as a key": (pickle.dumps({1: 2}), "a key of a dictionary is not a text"),
    "a number of too many digits": (b"L" + b"9" * 100_000 + b"L\n.", "is damaged"),
    "a number of too many digits, old": (b"I" + b"9" * 100_000 + b"\n.", "is damaged"),
    "a real number of too many digits": (b"F" + b"9" * 100_000 + b"\n.", "is damaged"),
    "a text without an end": (b"S'" + b"x" * 100_000, "is damaged"),
    "a text without a quote": (b"S'" + b"\\" * 100_001 + b"\n.", "is damaged"),
    "deep lists": (b"]" * 5_000 + b"a" * 4_999 + b".", "holds no dictionary"),
    "deep tuples": (b")" + b"\x85" * 5_000 + b".", "holds no dictionary"),
    "deep calls": (JAX * 1_500 + b")R" + b"\x85R" * 1_499 + b".", "holds no dictionary"),
    "a list within itself": (b"]q\0h\0a.", "holds no dictionary"),
    "lists of lists": (
        b"]\x94" + b"".join(b"]\x94(" + get(index) * 2 + b"e" for index in range(60)) + b".",
        "holds no dictionary",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_would_take_much_time_or_memory_is_refused_at_once(name):
    content, sentence = HOSTILE[name]
    Path(SPOILT).write_bytes(bz2.compress(content))
    said, seconds, most = measured(lambda: Benchmark.load(SPOILT))
    assert "'spoilt'" in said and re.search(sentence, said), said
    assert "\n" not in said and len(said) < 400
    assert seconds < 1
    assert most < 2**22, most


def test_what_settings_hold_is_not_walked_through():
    """A dictionary of lists of twice the same list ... within a sound file."""
    laughs = []
    for _ in range(60):
        laughs = [laughs, laughs]
    save_bz2_pickle({**contents(np.asarray), "generation_config": {"a": laughs, "b": 1, 2: 3}}, SPOILT)
    assert Benchmark.load(SPOILT).about == {"generation": {"b": 1}}


def test_a_file_without_rulesets_is_told_so():
    none = {name: array[:0] for name, array in contents(np.asarray).items() if name != "generation_config"}
    for protocol in range(6):
        save_bz2_pickle(none, SPOILT, protocol)
        with pytest.raises(
            ShoalError, match="benchmark 'spoilt': there are no rulesets: their leading axis is of length 0"
        ):
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
