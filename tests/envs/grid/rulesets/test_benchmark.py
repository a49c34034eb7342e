"""Benchmarks: parts of many rulesets, their file, and the words that choose among them."""

import dataclasses
import hashlib
import http.server
import io
import json
import os
import threading
import tracemalloc
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy import stats
from xminigrid import benchmarks

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.rulesets import benchmark_files, published, selection
from shoal.envs.grid.rulesets.benchmark import Benchmark, checksum
from shoal.envs.grid.rulesets.distinct import canonical_keys
from shoal.envs.grid.rulesets.generation import PUBLISHED
from shoal.envs.grid.rulesets.rulesets import Ruleset
from shoal.runs.plan.decide import decide

NAME = "XLand-MiniGrid-R1-9x9"


@pytest.fixture(scope="module")
def bench():
    return Benchmark.make(PUBLISHED["small"], 200, seed=4)


@pytest.fixture
def file(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bench.save("bench.npz")
    return "bench.npz"


def same(one, other):
    return all(np.array_equal(x, y) for x, y in zip(one, other, strict=True))


# ---- parts


def test_a_split_is_two_parts_in_order(bench):
    first, rest = bench.split(0.75)
    assert (len(bench), len(first), len(rest)) == (200, 150, 50)
    joined = Ruleset(*map(np.concatenate, zip(first.rulesets, rest.rulesets, strict=True)))
    assert same(joined, bench.rulesets)
    for share in (0, 1, 0.001, -1, 2):
        with pytest.raises(ShoalError, match=f"share={share} of 200 rulesets leaves nothing on one side"):
            bench.split(share)


def test_what_is_held_out_is_the_last_share(bench):
    assert bench.num_held_out == 40
    train, held_out = bench.part("train"), bench.part("held-out")
    assert same(train.rulesets, bench[:160].rulesets)
    assert same(held_out.rulesets, bench[160:].rulesets)
    assert not set(canonical_keys(train.rulesets)) & set(canonical_keys(held_out.rulesets))
    with pytest.raises(ShoalError, match=r"no part 'tran', but train and held-out; did you mean 'train'\?"):
        bench.part("tran")
    with pytest.raises(
        ShoalError, match="nothing held out; in place of 'held-out' give bounds, such as '80%:'"
    ):
        train.part("held-out")
    assert Benchmark.make(PUBLISHED["small"], 2, held_out=0.9).num_held_out == 1  # never all
    with pytest.raises(ShoalError, match=r"held_out=1.0 is not a share"):
        Benchmark.make(PUBLISHED["small"], 2, held_out=1.0)


def test_what_is_held_out_is_like_what_is_trained_on():
    """Though the rare kinds of goals are found early, and the others later."""
    config = dataclasses.replace(PUBLISHED["trivial"], distinct_objects=False)
    made = Benchmark.make(config, 8000, seed=0)
    counts = [
        np.bincount(made.part(name).rulesets.goal[:, 0], minlength=15) for name in ("train", "held-out")
    ]
    table = np.asarray(counts)[:, counts[0] > 0]
    assert stats.chi2_contingency(table).pvalue > 1e-3, table


def test_kinds_of_goals_of_which_there_are_few_are_held_out_too():
    """70 tasks are to hold a thing, each in many rulesets, and thousands to bring two things together."""
    made = Benchmark.make(PUBLISHED["trivial"], 10_000, seed=0)
    train, held_out = (
        np.bincount(made.part(name).rulesets.goal[:, 0], minlength=15) for name in ("train", "held-out")
    )
    share = held_out[train > 0] / (train + held_out)[train > 0]
    assert ((share > 0.05) & (share < 0.4)).all(), share


def test_nothing_that_is_held_out_is_trained_on_with_other_things():
    made = Benchmark.make(PUBLISHED["trivial"], 5000, seed=1)
    train, held_out = made.part("train").rulesets, made.part("held-out").rulesets
    assert len(set(canonical_keys(held_out))) < len(held_out.goal)  # some tasks are there several times
    assert not set(canonical_keys(train)) & set(canonical_keys(held_out))
    assert 900 < len(held_out.goal) <= 1000
    with_objects = canonical_keys(made.rulesets, with_objects=True)
    assert len(set(with_objects)) == 5000


def test_an_order_has_nothing_to_do_with_what_is_drawn_by_the_same_seed():
    made = Benchmark.make(PUBLISHED["small"], 8000, seed=0).rulesets.goal[:, 0]
    assert abs(np.corrcoef(np.arange(8000), made)[0, 1]) < 0.05


def test_shuffling_keeps_every_ruleset_and_depends_on_the_seed_alone(bench):
    mixed = bench.shuffle(3)
    assert sorted(canonical_keys(mixed.rulesets)) == sorted(canonical_keys(bench.rulesets))
    assert canonical_keys(mixed.rulesets) != canonical_keys(bench.rulesets)
    assert same(mixed.rulesets, bench.shuffle(3).rulesets)
    assert not same(mixed.rulesets, bench.shuffle(4).rulesets)


def test_samples_are_rulesets_of_the_benchmark_each_as_likely(bench):
    few = bench[:8]
    drawn = jax.jit(jax.vmap(few.sample))(jax.random.split(jax.random.key(0), 4000))
    known = canonical_keys(few.rulesets)
    numbers = [known.index(key) for key in canonical_keys(Ruleset(*map(np.asarray, drawn)))]
    counts = np.bincount(numbers, minlength=8)
    assert (abs(counts - 500) < 100).all(), counts  # five standard deviations


def test_filtering_parts_by_a_function_of_one_ruleset(bench):
    holding, others = bench.filter_split(lambda task: task.goal[0] == GoalKind.AGENT_HOLD)
    assert len(holding) + len(others) == len(bench)
    assert len(holding) > 0
    assert (holding.rulesets.goal[:, 0] == GoalKind.AGENT_HOLD).all()
    assert (others.rulesets.goal[:, 0] != GoalKind.AGENT_HOLD).all()


def test_one_ruleset_by_its_number(bench):
    assert same(bench.ruleset(17), [array[17] for array in bench.rulesets])
    for number in (-1, 200):
        with pytest.raises(
            ShoalError, match=f"there is no ruleset {number}; the 200 are numbered from 0 to 199"
        ):
            bench.ruleset(number)


# ---- the file


def test_a_file_holds_all_that_there_is(bench, file):
    read = Benchmark.load(file)
    assert same(read.rulesets, bench.rulesets)
    assert (read.num_held_out, read.about) == (bench.num_held_out, bench.about)
    assert read.about["generation"]["prune_prob"] == 0.3
    with np.load(file) as archive:  # plain arrays, for whoever comes without Shoal
        assert {"goals", "rules", "init_tiles", "about"} == set(archive)
        assert json.loads(str(archive["about"]))["num_held_out"] == 40


def test_saving_replaces_a_file_whole_and_leaves_nothing_beside_it(bench, file, monkeypatch):
    before = Path(file).read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(ShoalError, match="written: No space left on device"),
    ):
        patched.setattr("os.fsync", full)
        bench[:10].save(file)
    assert Path(file).read_bytes() == before
    assert os.listdir() == [file]


def test_what_cannot_be_written_is_one_sentence(bench, tmp_path):
    with pytest.raises(ShoalError, match="cannot be written: it is a directory"):
        bench.save(tmp_path)


def test_a_damaged_file_is_named_wherever_it_is_cut_or_changed(file):
    whole = Path(file).read_bytes()
    expected = Benchmark.load(file)
    rng = np.random.default_rng(0)
    cuts = [whole[:size] for size in (*range(0, 60, 3), *rng.integers(60, len(whole), 40))]
    changes = []
    for place in (*rng.integers(0, len(whole), 150), *range(len(whole) - 120, len(whole))):
        changed = bytearray(whole)
        changed[place] ^= rng.integers(1, 256)
        changes.append(bytes(changed))
    refused = 0
    for content in (*cuts, *changes):
        Path("damaged.npz").write_bytes(content)
        try:
            read = Benchmark.load("damaged.npz")
        except ShoalError as error:
            refused += 1
            assert "damaged.npz" in str(error) and "\n" not in str(error)
        else:  # a byte that says nothing, such as a time
            assert len(content) == len(whole)
            assert same(read.rulesets, expected.rulesets)
    assert refused > len(cuts) + 100


def rewritten(path, **changes):
    with np.load(path) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays["about"])) | changes.pop("about", {})
    np.savez("other.npz", **(arrays | {"about": np.asarray(json.dumps(about))} | changes))
    return "other.npz"


def test_a_file_of_another_kind_is_named(file, bench):
    goals = bench.rulesets.goal.copy()
    goals[3, 0] = 99
    rules = bench.rulesets.rules.copy()
    rules[5, 0] = (13, 3, 1, 3, 2, 0, 0)
    for changes, sentence in (
        ({"goals": goals}, "'other.npz': there is no goal of kind 99; the kinds of goals are 0 to 14"),
        ({"rules": rules}, "'other.npz': there is no rule of kind 13"),
        ({"rules": rules[..., :6]}, "'other.npz': the ruleset's rules is uint8"),
        ({"goals": goals[0]}, "'other.npz'"),
        ({"goals": goals.astype(object)}, "'other.npz' is damaged: Object arrays cannot be loaded"),
        (
            {"about": {"format": "x"}},
            "'other.npz' is damaged: 'about' is not of the format 'shoal-rulesets-1'",
        ),
        ({"about": {"num_held_out": 200}}, "'other.npz': 200 of 200 rulesets are held out"),
        ({"about": {"num_held_out": None}}, "'other.npz'"),
    ):
        with pytest.raises(ShoalError, match=sentence):
            Benchmark.load(rewritten(file, **changes))
    np.savez("other.npz", goals=goals)
    with pytest.raises(ShoalError, match=r"'other.npz' is not a benchmark: it lacks 'rules"):
        Benchmark.load("other.npz")


def repacked(path, method=zipfile.ZIP_DEFLATED, **members):
    """The file with the bytes of some of its arrays replaced."""
    with zipfile.ZipFile(path) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile("other.npz", "w", method) as archive:
        for name, content in (held | {f"{name}.npy": content for name, content in members.items()}).items():
            archive.writestr(name, content)
    return "other.npz"


def array_file(shape, kind="|u1", content=b""):
    """The bytes of an .npy whose header says what it likes."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": kind, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


def test_an_archive_is_not_unpacked_beyond_what_a_file_may_hold(file, monkeypatch):
    monkeypatch.setattr("shoal.envs.grid.rulesets.benchmark_files.MAX_BYTES", 2**20)
    Benchmark.load(file)
    bomb = repacked(file, rules=array_file((2**22,), content=bytes(2**22)))
    assert os.path.getsize(bomb) < 10_000
    tracemalloc.start()
    with pytest.raises(
        ShoalError, match=r"'other.npz': unpacked, its arrays take 4,[\d,]+ bytes, and the most"
    ):
        Benchmark.load(bomb)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ({"goals": array_file((10**15, 5))}, "is damaged: Unable to allocate"),
        ({"goals": array_file((200, 5), content=bytes(100))}, "is damaged: EOF: reading array data"),
        ({"goals": array_file((10**15,), "<U0")}, "the ruleset's goal is <U0"),
        ({"goals": array_file((-1, 5))}, "is damaged: "),
        ({"goals": array_file((200, 5), content=bytes(999))}, "is damaged: "),
        ({"goals": array_file((200, 5), "<f4", np.full(1000, np.nan, "<f4").tobytes())}, "goal is float32"),
        ({"about": array_file((1000,), "|u1", bytes(1000))}, "is damaged: "),
        ({"about": array_file((), "<U2", "[]".encode("utf-32-le"))}, "'about' is not of the format"),
        ({"about": array_file((), "<U1000", ("[" * 1000).encode("utf-32-le"))}, "is damaged: "),
        ({"goals": b"x" * 500}, "the ruleset's goal is bytes"),
        ({"method": zipfile.ZIP_LZMA}, "is damaged: it is compressed in a way that NumPy does not use"),
    ],
)  # fmt: skip
def test_an_array_that_is_not_what_its_header_says_is_refused(file, members, sentence):
    with pytest.raises(ShoalError, match=f"benchmark 'other.npz'.*{sentence}"):
        Benchmark.load(repacked(file, **members))


@pytest.mark.parametrize("value", [-1, 200])
def test_the_number_that_is_held_out_is_possible(file, bench, value):
    with pytest.raises(ShoalError, match=r"'other.npz': .* of 200 rulesets are held out, where 0 to 199"):
        Benchmark.load(rewritten(file, about={"num_held_out": value}))
    with pytest.raises(ShoalError, match=r"'new.npz': .* of 200 rulesets are held out"):
        dataclasses.replace(bench, num_held_out=value).save("new.npz")
    assert not Path("new.npz").exists()


def test_a_benchmark_without_rulesets_is_refused_wherever_it_would_be_used(bench, file):
    none, _ = bench.filter_split(lambda task: task.goal[0] == 99)
    assert len(none) == 0
    with pytest.raises(
        ShoalError, match=r"'none.npz': there are no rulesets: their leading axis is of length 0"
    ):
        none.save("none.npz")
    assert not Path("none.npz").exists()
    with pytest.raises(ShoalError, match="no rulesets to sample from"):
        none.sample(jax.random.key(0))
    with pytest.raises(ShoalError, match="there are no rulesets: their leading axis is of length 0"):
        envs.make(NAME, ruleset=none.rulesets).reset(jax.random.key(0))
    with pytest.raises(ShoalError, match="rulesets=0 is too few; give 1 or more"):
        Benchmark.make(PUBLISHED["small"], 0)
    empty = dict(zip(("goals", "rules", "init_tiles"), none.rulesets, strict=True))
    with pytest.raises(
        ShoalError, match=r"'other.npz': there are no rulesets: their leading axis is of length 0"
    ):
        Benchmark.load(rewritten(file, about={"num_held_out": 0}, **empty))
    Path("nothing.npz").write_bytes(b"")
    with pytest.raises(ShoalError, match=r"'nothing.npz' is empty; `shoal grid make-benchmark` makes one"):
        Benchmark.load("nothing.npz")


def test_what_could_not_be_read_again_is_not_written(bench):
    goals = bench.rulesets.goal.copy()
    goals[3, 0] = 99
    for benchmark, sentence in (
        (Benchmark(bench.ruleset(0)), "holds one ruleset without a leading axis"),
        (Benchmark(bench.rulesets._replace(goal=goals)), "there is no goal of kind 99"),
        (Benchmark(bench.rulesets._replace(goal=goals.astype(int))), "the ruleset's goal is int64"),
        (dataclasses.replace(bench, about={"x": np.nan}), "JSON cannot hold its `about`"),
        (dataclasses.replace(bench, about={"x": object()}), "JSON cannot hold its `about`"),
    ):
        with pytest.raises(ShoalError, match=rf"benchmark '.*new.npz'.*{sentence}"):
            benchmark.save("new.npz")
    assert not Path("new.npz").exists()


def test_no_more_rulesets_are_drawn_or_written_than_a_file_may_hold(bench, monkeypatch):
    with pytest.raises(ShoalError, match="rulesets=6,000,000: they take 1,086,000,000 bytes, and the most"):
        Benchmark.make(PUBLISHED["high"], 6_000_000)
    monkeypatch.setattr("shoal.envs.grid.rulesets.benchmark_files.MAX_BYTES", 1000)
    with pytest.raises(
        ShoalError, match=r"the rulesets for 'new.npz' take 10,600 bytes, and the most .* 1,000"
    ):
        bench.save("new.npz")


def test_what_is_no_ordinary_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(
            ShoalError, match=f"benchmark '{path}' cannot be read: it is not an ordinary file"
        ):
            Benchmark.load(path)


# ---- words


def test_a_word_chooses_all_a_part_some_or_one(bench, file):
    for word, expected in {
        "bench.npz": bench.rulesets,
        "bench.npz:train": bench.part("train").rulesets,
        "bench.npz:held-out": bench.part("held-out").rulesets,
        "bench.npz:0": bench.ruleset(0),
        "bench.npz:199": bench.ruleset(199),
        "bench.npz:20:50": bench[20:50].rulesets,
        "bench.npz:180:": bench[180:].rulesets,
        "bench.npz::10%": bench[:20].rulesets,
        "bench.npz:99.5%:100%": bench[199:].rulesets,
    }.items():
        world = envs.make(NAME, ruleset=word)
        assert same(world.ruleset, expected), word
        world.check()
    assert same(envs.make(NAME, ruleset=[x.tolist() for x in bench.ruleset(3)]).ruleset, bench.ruleset(3))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("bench.npz:200", "ruleset='bench.npz:200': there is no ruleset 200; the 200 are numbered from 0 to 199"),
        ("bench.npz:--1", "cannot be read: No such file"),
        ("bench.npz:²", "cannot be read: No such file"),
        ("bench.npz:held_out", "no part 'held_out', but train and held-out; did you mean 'held-out'"),
        ("bench.npz:150:300", "ruleset='bench.npz:150:300': 150 and 300 bound no part of the 200 rulesets"),
        ("bench.npz:50:50", "50 and 50 bound no part .* the second above the first"),
        ("nowhere.npz:3", "nowhere.npz' cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("small:train", "ruleset='small' is not a file; `shoal grid make-benchmark small --save small.npz` makes one"),
        ("", "ruleset='' names no file"),
        ("text.npz", "'.*text.npz' is not a benchmark"),
        (
            "bench.npz:3#0123",
            "the file holds other rulesets now, of checksum [0-9a-f]{16}; make it again, or name",
        ),
        ([[1], [2], [300]], "is not a goal, rules and init_tiles"),
        ([[1], [2], [3]], "the ruleset's goal is uint8"),
        ([[1.7] * 5, [[0] * 7], [[0] * 2]], "is not a goal, rules and init_tiles"),
        ([[np.nan] * 5, [[0] * 7], [[0] * 2]], r"ruleset\[0\]\[0\]=nan is out of bounds"),
        ([np.asarray([300] * 5), [[0] * 7], [[0] * 2]], r"where uint8\[5\] is needed"),
        ([[0] * 5, [[0] * 7, [0]], [[0] * 2]], "is not a goal, rules and init_tiles"),
        ("bench.npz:" + "9" * 5000, "cannot be read: File name too long"),
        ("~nobody-of-that-name/x.npz", "cannot be found: Could not determine home directory"),
        ("\ud800.npz", "cannot be found: "),
        ("small-2m:7", r"ruleset='small-2m' is not a file; did you mean 'small-1m'\?"),
        ("trivial-1m", r"is not a file; did you mean 'trivial-21k'\?"),
    ],
)  # fmt: skip
def test_a_word_that_names_nothing_is_told_so_before_anything_compiles(file, given, sentence):
    Path("text.npz").write_text("not a benchmark\n")
    with pytest.raises(ShoalError, match=sentence):
        envs.make(NAME, ruleset=given).check()


def test_a_ruleset_with_more_things_than_cells_is_told_so(file):
    crowded = envs.make("XLand-MiniGrid-R1-9x9", height=5, width=5, ruleset="bench.npz:0")
    with pytest.raises(ShoalError, match=r"has 10 things .* need 11 free cells, but R1 of 5 x 5 has 9"):
        crowded.reset(jax.random.key(0))


def test_a_run_keeps_a_word_that_lasts(file, bench, tmp_path, monkeypatch):
    decided = decide(NAME, environment_parameters={"ruleset": "bench.npz:train"}, overrides={})
    word = f"{tmp_path / 'bench.npz'}:train#{checksum(bench.part('train').rulesets)}"
    assert decided.environment_parameters["ruleset"] == word
    saved = tmp_path / "config.json"
    saved.write_text(json.dumps(decided.as_json()))
    monkeypatch.chdir("/")
    again = decide(None, config_file=saved, overrides={})
    assert again.environment_parameters["ruleset"] == word
    assert same(again.environment.ruleset, bench.part("train").rulesets)
    held_out = {"ruleset": str(tmp_path / "bench.npz:held-out")}
    other = decide(None, config_file=saved, environment_parameters=held_out, overrides={})
    assert same(other.environment.ruleset, bench.part("held-out").rulesets)
    assert other.environment.observation_space == again.environment.observation_space
    Benchmark(bench.shuffle(1).rulesets, 40).save(tmp_path / "bench.npz")
    with pytest.raises(ShoalError, match="the file holds other rulesets now"):
        decide(None, config_file=saved, overrides={})


@pytest.mark.parametrize("chosen", ["one", "some"])
def test_a_run_in_a_world_that_was_made_with_arrays_can_be_made_again(bench, tmp_path, chosen):
    tasks = bench.ruleset(4) if chosen == "one" else bench[:30].rulesets
    world = envs.make("XLand-MiniGrid-R4-13x13", ruleset=tasks, observe_goal=True)
    decided = decide(world, overrides={})
    (tmp_path / "config.json").write_text(json.dumps(decided.as_json()))
    again = decide(None, config_file=tmp_path, overrides={}).environment
    assert same(again.ruleset, tasks)
    assert jax.tree.structure(again) == jax.tree.structure(world)


def test_a_stack_of_worlds_with_many_rulesets_each_knows_its_spaces(file):
    world = envs.make(NAME, ruleset="bench.npz:train", observe_rules=True)
    stack = jax.tree.map(lambda x: np.stack([x, x, x]), world)
    assert stack.observation_space == world.observation_space
    assert world.observation_space["rules"].shape == (4, 7)


def test_a_file_is_read_once_until_it_changes(file, bench, monkeypatch):
    reads = []
    monkeypatch.setattr(Benchmark, "load", classmethod(lambda cls, path: reads.append(path) or bench))
    selection._load_cached.cache_clear()
    for _ in range(3):
        envs.make(NAME, ruleset="bench.npz:1")
    assert len(reads) == 1
    os.utime(file, ns=(0, 0))
    envs.make(NAME, ruleset="bench.npz:1")
    assert len(reads) == 2
    selection._load_cached.cache_clear()


# ---- benchmarks that are published


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Shoal's folder and the original's, both without a file."""
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "shoal"))
    monkeypatch.setenv("XLAND_MINIGRID_DATA", str(tmp_path / "original"))
    (tmp_path / "shoal").mkdir()
    (tmp_path / "original").mkdir()
    return tmp_path / "shoal", tmp_path / "original"


def test_the_names_are_those_that_the_original_publishes():
    assert published.FILES == benchmarks.NAME2HFFILENAME
    assert f"datasets/{benchmarks.HF_REPO_ID}/resolve/main" == published.FOLDER
    assert published.SHA256.keys() <= set(published.FILES.values())


@pytest.mark.parametrize("place", [0, 1])
def test_a_published_name_is_a_file_of_either_folder(bench, folders, monkeypatch, place):
    goals, rules, init_tiles = bench.rulesets
    content = {"goals": goals, "rules": rules, "init_tiles": init_tiles, "num_rules": goals[:, :1]}
    benchmarks.save_bz2_pickle(content, str(folders[place] / "small_1m_v3"))
    monkeypatch.chdir(folders[0])
    bench[:3].save("small-1m")  # a file of that name has another path
    assert same(envs.make(NAME, ruleset="small-1m:17").ruleset, bench.ruleset(17))
    assert same(Benchmark.load("small-1m").rulesets, bench.rulesets)
    assert len(Benchmark.load(Path("small-1m"))) == len(Benchmark.load("./small-1m")) == 3
    word = selection.portable_selector("small-1m:80%:")
    assert word == f"small-1m:80%:#{checksum(bench[160:].rulesets)}"
    bench.shuffle(1).save(
        folders[0] / "small_1m_v3"
    )  # in Shoal's format, in the folder that is searched first
    with pytest.raises(ShoalError, match=r"ruleset='small-1m:80%:#.*': the file holds other rulesets now"):
        selection.select_rulesets(word)


@pytest.mark.parametrize("load", [Benchmark.load, lambda name: envs.make(NAME, ruleset=f"{name}:17")])
def test_a_published_file_that_is_missing_is_told_so_in_one_sentence(folders, tmp_path, monkeypatch, load):
    def said():
        with pytest.raises(ShoalError) as error:
            load("high-3m")
        return str(error.value)

    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    url = "http://127.0.0.1:1/datasets/Howuhh/xland_minigrid/resolve/main/high_3m_v3"
    assert said() == (
        f"benchmark high-3m cannot be downloaded from {url}: Connection refused; get it where there is a network, as "
        f"{folders[0]}/high_3m_v3 or {folders[1]}/high_3m_v3, in whose place SHOAL_DATA and XLAND_MINIGRID_DATA name "
        "other folders."
    )
    assert not list(folders[0].iterdir())
    for name in ("SHOAL_DATA", "XLAND_MINIGRID_DATA", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f" as {tmp_path}/.cache/shoal/data/high_3m_v3 or {tmp_path}/.xland_minigrid/high_3m_v3," in said()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert f" as {tmp_path}/other/shoal/data/high_3m_v3 or " in said()


@pytest.fixture
def server(monkeypatch, tmp_path):
    """A server of files on this machine: what it has, by the file's name; "LENGTH" is what it promises in addition."""
    content: dict[str, bytes] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            data = content.get(self.path.removeprefix(f"/{published.FOLDER}/"))
            if data is None:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data) + len(content.get("LENGTH", b""))))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{running.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield content
        running.shutdown()
        thread.join()


def original_bytes(bench, path) -> bytes:
    goals, rules, init_tiles = bench.rulesets
    content = {"goals": goals, "rules": rules, "init_tiles": init_tiles, "num_rules": goals[:, :1]}
    benchmarks.save_bz2_pickle(content, str(path))
    return path.read_bytes()


def test_a_published_file_is_downloaded_once_and_compared_later(bench, folders, server, tmp_path):
    server["high_1m_v3"] = original_bytes(bench, tmp_path / "file")
    assert same(envs.make(NAME, ruleset="high-1m:17").ruleset, bench.ruleset(17))
    path, record = folders[0] / "high_1m_v3", folders[0] / "high_1m_v3.sha256"
    assert sorted(folders[0].iterdir()) == [path, record]
    assert record.read_text().strip() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.read_bytes() == server.pop("high_1m_v3")
    assert same(Benchmark.load("high-1m").rulesets, bench.rulesets)  # without the server's
    server["high_1m_v3"] = original_bytes(bench[:9], tmp_path / "file")
    path.write_bytes(server["high_1m_v3"])
    with pytest.raises(
        ShoalError, match=r"is not the file that was downloaded: its SHA-256 is .*; remove the file"
    ):
        Benchmark.load("high-1m")
    path.unlink()
    with pytest.raises(
        ShoalError, match=r"benchmark high-1m is another file than before: .* it was not kept"
    ):
        Benchmark.load("high-1m")
    assert list(folders[0].iterdir()) == [record]
    bench[:5].save(path)  # in Shoal's format, in the place of the original
    assert len(Benchmark.load("high-1m")) == 5


def test_a_download_that_fails_leaves_nothing(bench, folders, server, tmp_path, monkeypatch):
    def said(name):
        with pytest.raises(ShoalError) as error:
            Benchmark.load(name)
        assert not list(folders[0].iterdir())
        return str(error.value)

    assert ": Not Found; get it where there is a network, as " in said("high-1m")
    server["small_1m_v3"] = server["medium_1m_v3"] = original_bytes(bench, tmp_path / "file")
    assert "benchmark small-1m is another file than before" in said("small-1m")  # than the published one
    server["LENGTH"] = bytes(100)
    size = len(server["small_1m_v3"])
    assert f": it ended after {size:,} of {size + 100:,} bytes; get it" in said("medium-1m")
    monkeypatch.setattr(benchmark_files, "MAX_BYTES", 99)
    assert ": it has more than 99 bytes; get it" in said("medium-1m")
    monkeypatch.setenv("HF_ENDPOINT", "huggingface")
    assert "unknown url type" in said("medium-1m")
