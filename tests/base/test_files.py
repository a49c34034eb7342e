"""What lies at the path of a file that is written: only regular files are replaced."""

import os
import stat
import threading

import numpy as np
import pytest

from shoal.base.errors import ShoalError
from shoal.base.files import find_obstacle
from shoal.records.json_files import write_json
from shoal.reports import plots
from shoal.runs.policies import films
from shoal.search.ranking import write_members

FRAMES = [films.FilmFrame(np.full((8, 8, 3), shade, np.uint8), "", False) for shade in (0, 255)]
# Every kind of file, by its suffix: how it is written, and its first bytes.
WRITERS = {
    ".json": (lambda path: write_json(path, {"x": 1}), b"{"),
    ".csv": (lambda path: write_members(path, [], ["x"]), b"label,x"),
    ".png": (lambda path: plots.plot_learning_curve(path, [0, 1], [[0.0], [1.0]], "t"), b"\x89PNG"),
    ".gif": (lambda path: films.write_frames(path, FRAMES, 10.0), b"GIF8"),
}
every_writer = pytest.mark.parametrize("suffix", WRITERS)


@every_writer
def test_a_fifo_receives_the_content_and_stays(tmp_path, suffix):
    write, start = WRITERS[suffix]
    path, received = tmp_path / f"fifo{suffix}", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()), daemon=True)
    reader.start()
    write(path)
    reader.join(10)
    assert received[0].startswith(start)
    assert stat.S_ISFIFO(path.lstat().st_mode) and os.listdir(tmp_path) == [path.name]


@every_writer
def test_a_device_stays(tmp_path, suffix):
    path = tmp_path / f"null{suffix}"
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError:
        pytest.skip("only root may make a device")
    WRITERS[suffix][0](path)
    assert stat.S_ISCHR(path.lstat().st_mode) and os.listdir(tmp_path) == [path.name]


@every_writer
def test_links_are_followed_and_the_mode_is_kept(tmp_path, suffix):
    write, start = WRITERS[suffix]
    target, link, new = (tmp_path / name for name in ("there/target", f"link{suffix}", f"new{suffix}"))
    target.parent.mkdir()
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(tmp_path / "second")
    (tmp_path / "second").symlink_to("there/target")
    new.symlink_to("there/new")
    for path in (link, new):
        write(path)
        assert path.is_symlink() and path.read_bytes().startswith(start)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(os.listdir(target.parent)) == ["new", "target"]


@every_writer
def test_names_of_254_bytes_work(tmp_path, suffix):
    path = tmp_path / ("ä" * ((254 - len(suffix)) // 2) + suffix)
    WRITERS[suffix][0](path)
    assert os.listdir(tmp_path) == [path.name]


def test_what_fails_on_the_way_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(ShoalError, match="a object, which JSON cannot hold"):
        write_json(path, {"x": object()})
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["a.json"]


def test_a_reader_that_is_gone_is_named(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    threading.Timer(0.2, os.close, [reader]).start()
    with pytest.raises(ShoalError, match=r"fifo cannot be written: Broken pipe\."):
        write_json(path, {"x": "a" * 2**20})
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_an_obstacle_is_found_before_anything_is_computed(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "new").symlink_to("none/target")
    assert [find_obstacle(tmp_path / name) for name in ("fifo", "a.gif")] == ["", ""]
    assert find_obstacle(tmp_path) == "it is a directory"
    assert find_obstacle(tmp_path / "none" / "a.gif") == f"there is no directory {str(tmp_path / 'none')!r}"
    assert find_obstacle(tmp_path / "new") == f"there is no directory {str(tmp_path / 'none')!r}"
