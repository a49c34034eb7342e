"""TensorBoard's event files, as TensorBoard's own readers and its server read them."""

import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from logging_process import ODD_NAMES, SERIES, expected_curves, odd_curves

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2


def read(directory):
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "images": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def curves_of(root, series):
    found = {}
    for name in series:
        events = read(root / name)
        for tag in events.Tags()["scalars"]:
            found[name, tag] = [(x.step, x.value) for x in events.Scalars(tag)]
    return found


def as_float32(curves):
    return {key: [(step, float(np.float32(x))) for step, x in points] for key, points in curves.items()}


def test_has_each_point_once_after_a_kill(log, run_path, summary):
    told = log("tensorboard", 0, 20, members=2, kill=True)
    root = run_path / "loggers" / "tensorboard"
    assert told["place"] == f"{root}; `tensorboard --logdir {root}` shows it"
    log("tensorboard", told["rows"], 40, members=2, state=told["state"], summary=summary)
    series = ["seed 3", "slow, seed 3", "all"]
    assert curves_of(root, series) == as_float32(expected_curves(40, 2))
    events = read(root / "all")
    assert [x.wall_time for x in events.Scalars("train/loss")][:2] == [1.7e9, 1.7e9 + 1]


@pytest.mark.full
def test_has_the_settings_of_each_series_and_how_it_ended(log, run_path, summary):
    log("tensorboard", 0, 10, members=2, summary=summary)

    def content(name, tag):
        text = read(run_path / "loggers" / "tensorboard" / name).summary_metadata[tag].plugin_data.content
        return plugin_data_pb2.HParamsPluginData.FromString(text)

    slow = content("slow, seed 3", metadata.SESSION_START_INFO_TAG).session_start_info.hparams
    assert slow["learning_rate"].number_value == 1e-4
    assert slow["hidden_sizes"].string_value == "[64, 64]"
    assert slow["env.gravity"].number_value == 9.8
    assert (
        content("all", metadata.SESSION_START_INFO_TAG)
        .session_start_info.hparams["learning_rate"]
        .number_value
        == 1e-3
    )
    assert content("all", metadata.SESSION_END_INFO_TAG).session_end_info.status == 1  # STATUS_SUCCESS


def test_films_and_pictures_are_images(log, run_path, pictures):
    log("tensorboard", files=pictures)
    events = read(run_path / "loggers" / "tensorboard")
    assert events.Tags()["images"] == ["film", "learning_curve"]
    film = events.Images("film")[0]
    assert (film.step, film.width, film.height) == (1000, 40, 30)
    assert film.encoded_image_string == Path(pictures[0][1]).read_bytes()


@pytest.mark.full
def test_another_run_of_the_same_name_has_another_directory(log, tmp_path):
    log("tensorboard", 0, 10, arguments={"dir": "boards"})
    log("tensorboard", 0, 10, arguments={"dir": "boards"})
    assert [len(list((tmp_path / "boards" / x).iterdir())) for x in ("first", "first-2")] == [1, 1]


def get(port, path, **query):
    url = f"http://127.0.0.1:{port}/data/plugin/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read()


@pytest.mark.full
def test_the_server_shows_one_point_a_step_hyper_parameters_and_a_moving_film(
    log, run_path, pictures, summary
):
    told = log("tensorboard", 0, 20, kill=True, files=pictures)
    log("tensorboard", 20, 40, state=told["state"], summary=summary)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        "--logdir",
        str(run_path),
        "--port",
        str(port),
        "--samples_per_plugin",
        "scalars=100000",
    ]  # 0 gives no points
    server = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *flags],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    name = "loggers/tensorboard"
    try:
        wanted = as_float32(expected_curves(40))["", "train/loss"]
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            time.sleep(0.2)
            try:
                points = json.loads(get(port, "scalars/scalars", run=name, tag="train/loss")[1])
            except OSError:
                continue
            if len(points) >= len(wanted):
                break
        assert [(step, value) for _, step, value in points] == wanted
        (image,) = json.loads(get(port, "images/images", run=name, tag="film", sample=0)[1])
        kind, content = get(port, "images/individualImage", **dict(urllib.parse.parse_qsl(image["query"])))
        assert (kind, content[:4]) == ("image/gif", b"GIF8")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/data/plugin/hparams/session_groups",
            data=json.dumps(
                {"startIndex": 0, "sliceSize": 9, "allowedStatuses": ["STATUS_SUCCESS"]}
            ).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            (group,) = json.loads(answer.read())["sessionGroups"]
        assert group["hparams"]["learning_rate"] == 0.001
        values = {x["name"]["tag"]: x["value"] for x in group["metricValues"]}
        assert values["train/loss"] == pytest.approx(3.9)
    finally:
        server.terminate()
        server.wait()


@pytest.mark.full
def test_series_have_folders_of_their_own_and_numbers_any_name(log, run_path):
    told = log("tensorboard", 0, 10, members=3, names=ODD_NAMES, kill=True)
    again = log("tensorboard", 10, 20, members=3, names=ODD_NAMES, state=told["state"])
    folders = sorted(x.name for x in (run_path / "loggers" / "tensorboard").iterdir())
    assert len(folders) == len(SERIES[3]) and {"a_b, seed 3", "a_b, seed 3_2", "all"} <= set(folders)
    assert again["note"].startswith("'a/b, seed 3' is called 'a_b, seed 3', ")
    for folder in folders:
        curves = curves_of(run_path / "loggers" / "tensorboard", [folder])
        assert {name: curves[folder, name] for name in ODD_NAMES} == odd_curves(20)
