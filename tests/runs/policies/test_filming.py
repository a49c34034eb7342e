"""Films of a run that trains: which checkpoints they are of, though the run removes them, and what is refused."""

import threading

import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.records.checkpoints import CHECKPOINTS
from shoal.runs.policies import filming


@pytest.fixture
def run_path(tmp_path):
    path = tmp_path / "run"
    (path / CHECKPOINTS).mkdir(parents=True)
    (path / "films").mkdir()
    (path / "config.json").write_text("{}")
    return path


def write(path, *steps):
    for step in steps:
        (path / CHECKPOINTS / f"{step}.safetensors").write_text(str(step))


def due(keeper):
    found = []
    while not keeper.due.empty():
        found.append(keeper.due.get())
    return found


def test_the_first_checkpoint_at_or_after_each_multiple_is_kept(run_path):
    keeper = filming._Keeper(run_path, 100)
    write(run_path, 0, 90)
    keeper.keep()
    assert due(keeper) == []
    write(run_path, 130, 180, 200)
    keeper.keep()
    keeper.keep()
    assert due(keeper) == [130, 200]
    for step in (0, 90, 130, 180, 200):
        (run_path / CHECKPOINTS / f"{step}.safetensors").unlink()
    kept = sorted(file.name for file in (keeper.path / CHECKPOINTS).iterdir())
    assert kept == ["130.safetensors", "200.safetensors"]
    assert (keeper.path / "config.json").is_file()


def test_what_was_filmed_before_a_kill_is_not_filmed_again(run_path):
    filming._Keeper(run_path, 100)
    (run_path / "films/200.gif").write_text("film")
    write(run_path, 100, 200, 250, 300)
    keeper = filming._Keeper(run_path, 100)
    keeper.keep()
    assert due(keeper) == [300]


def test_a_file_system_without_links_gets_copies(run_path, monkeypatch):
    def refuse(*_):
        raise OSError("no links")

    monkeypatch.setattr(filming.os, "link", refuse)
    keeper = filming._Keeper(run_path, 100)
    write(run_path, 100)
    keeper.keep()
    assert due(keeper) == [100] and (keeper.path / CHECKPOINTS / "100.safetensors").read_text() == "100"


SMALL = dict(seeds=2, total_steps=1_000, num_envs=4, num_steps=25, num_evals=1, eval_episodes=2, preset=False)


@pytest.mark.full
def test_films_are_made_beside_a_run(tmp_path):
    shoal.train("CartPole-v1", **SMALL, run_dir=tmp_path / "run", progress=False)
    ended = threading.Event()
    ended.set()
    (tmp_path / "run/films").mkdir()
    filming._film_all(tmp_path / "run", 1_000, ended, lambda note: None)
    films = [file.name for file in (tmp_path / "run/films").iterdir()]
    assert films == ["1000.gif"]
    assert (tmp_path / "run/films/1000.gif").read_bytes().startswith(b"GIF")


@pytest.mark.parametrize(
    ("environment", "settings", "sentence"),
    [
        ("CartPole-v1", {"film_every": -5}, "film_every=-5"),
        ("CartPole-v1", {"film_every": 100, "checkpoints": False}, "film_every=100 needs checkpoints, which"),
        (
            "MemoryChain-v0",
            {"film_every": 100},
            "film_every=100 has no effect: MemoryChain-v0 has no method render",
        ),
    ],
)
def test_what_cannot_be_filmed_is_refused(environment, settings, sentence, tmp_path):
    with pytest.raises(ShoalError, match=sentence):
        shoal.train(environment, **SMALL, **settings, run_dir=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
