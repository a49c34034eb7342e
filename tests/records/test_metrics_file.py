"""metrics.jsonl: whole lines only, with a mark of what was written, from which a run goes on."""

import hashlib
import json
import threading

import pytest

from shoal.base.errors import ShoalError
from shoal.records import metrics_file
from shoal.records.metrics_file import METRICS, NOTHING, Mark, MetricsFile, find_damage


def lines(path):
    return [json.loads(line) for line in (path / METRICS).read_bytes().splitlines()]


def test_the_mark_is_the_length_and_the_checksum_of_all_rows(tmp_path):
    metrics = MetricsFile(tmp_path)
    assert metrics.mark == NOTHING
    for number in range(3):
        metrics.append([{"step": number, "x": float("nan")}])
        content = (tmp_path / METRICS).read_bytes()
        assert metrics.mark == Mark(len(content), hashlib.sha256(content).hexdigest())
    assert lines(tmp_path) == [{"step": number, "x": None} for number in range(3)]
    assert MetricsFile(tmp_path).mark == metrics.mark


def test_a_run_goes_on_behind_its_mark(tmp_path):
    metrics = MetricsFile(tmp_path)
    metrics.append([{"step": 0}])
    mark = metrics.mark
    metrics.append([{"step": 1}, {"step": 2}])
    with open(tmp_path / METRICS, "ab") as file:
        file.write(b'{"step": 3, "torn')
    resumed = MetricsFile(tmp_path, mark)
    assert len(lines_of_text(tmp_path)) == 4  # nothing is removed before something is written
    resumed.flush()
    assert lines(tmp_path) == [{"step": 0}]
    resumed.append([{"step": 10}])
    assert lines(tmp_path) == [{"step": 0}, {"step": 10}]
    assert MetricsFile(tmp_path, NOTHING).mark == NOTHING  # and a run that begins anew keeps none
    MetricsFile(tmp_path, NOTHING).append([{"step": 0}])
    assert lines(tmp_path) == [{"step": 0}]


def lines_of_text(path):
    return (path / METRICS).read_bytes().split(b"\n")


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (b'{"step": 0}\n', ""),
        (b'{"step": 0}\nmore', ""),
        (b'{"step": 0}', "it has 11 bytes, and 12 were written"),
        (b'{"step": 1}\n', "its first 12 bytes are not those that were written"),
        (b"", "it has 0 bytes, and 12 were written"),
    ],
)
def test_damage_before_the_mark_is_named(tmp_path, content, damage):
    written = b'{"step": 0}\n'
    mark = Mark(len(written), hashlib.sha256(written).hexdigest())
    assert find_damage(content, mark) == damage
    (tmp_path / METRICS).write_bytes(content)
    if damage:
        with pytest.raises(ShoalError, match=damage):
            MetricsFile(tmp_path, mark)
    else:
        assert MetricsFile(tmp_path, mark).mark == mark


def test_a_file_that_was_made_shorter_meanwhile_is_not_written_to(tmp_path):
    metrics = MetricsFile(tmp_path)
    metrics.append([{"step": 0}])
    (tmp_path / METRICS).write_bytes(b"{")
    with pytest.raises(ShoalError, match="has become shorter"):
        metrics.append([{"step": 1}])
    assert (tmp_path / METRICS).read_bytes() == b"{"


def test_rows_are_counted_when_they_are_added_and_tried_again_after_a_failure(tmp_path, monkeypatch):
    metrics = MetricsFile(tmp_path)
    metrics.append([{"step": 0}])
    metrics.add([{"step": 1}])
    added = metrics.mark
    assert lines(tmp_path) == [{"step": 0}]

    def fail(file, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(metrics_file, "_append", fail)
        for write in (metrics.write, metrics.flush):
            with pytest.raises(ShoalError, match="No space left on device"):
                write()
    assert lines(tmp_path) == [{"step": 0}]
    metrics.add([{"step": 2}])
    metrics.flush()
    assert lines(tmp_path) == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert MetricsFile(tmp_path, added).mark == added


def test_rows_that_are_being_appended_are_no_leftovers_to_a_flush_in_another_thread(tmp_path, monkeypatch):
    """The thread that writes checkpoints flushes while the training logs."""
    metrics = MetricsFile(tmp_path)
    metrics.append([{"step": 0}])
    append, flushing = metrics_file._append, []

    def append_and_flush(file, data):
        append(file, data)
        flushing.append(threading.Thread(target=metrics.flush))
        flushing[0].start()
        flushing[0].join(0.3)  # it waits for the end of this, or would be done by now

    monkeypatch.setattr(metrics_file, "_append", append_and_flush)
    metrics.append([{"step": 1}])
    flushing[0].join()
    assert lines(tmp_path) == [{"step": 0}, {"step": 1}]
