"""Films of a policy: the episodes that an evaluation plays, as many pictures as steps, in files that are whole."""

import itertools
import os
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from shoal import envs
from shoal.algos.catalogue import config_class
from shoal.base.errors import ShoalError
from shoal.config.settings import with_settings
from shoal.engine.evaluation import play_episodes
from shoal.envs.base import environment, restart, transition
from shoal.runs.policies import films, recording
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Clock, spec_of
from shoal.types.spaces import Box, Discrete

CONFIG = with_settings(config_class("ppo")(), hidden_sizes=(8,), core="gru", core_size=4)
SETTINGS = recording.EpisodeSettings(jax.random.key(5), episodes=3, max_steps=200, greedy=False)


@environment
class Noise:
    """Ends after some three steps; its pictures have more colours than a GIF's palette."""

    stop: float = 0.3

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)
    frames_per_second = 4

    def reset(self, key):
        return (jax.random.uniform(key), key), restart(jnp.zeros(1))

    def step(self, state, action, key):
        number = jax.random.uniform(key)
        return (number, key), transition(number[None], number, terminated=number < self.stop)

    def render(self, state):
        number, key = state
        assert jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        return np.random.default_rng(int(1e6 * number)).integers(0, 256, (30, 50, 3), np.uint8)


@environment
class Breaking(Noise):
    """Fails in the middle of a film."""

    def render(self, state):
        if state[0] < self.stop:
            raise RuntimeError("broken")
        return np.zeros((30, 50, 3), np.uint8)


@environment
class Growing(Noise):
    """Its pictures are of two sizes."""

    def render(self, state):
        return np.zeros((30, 50 if state[0] < self.stop else 40, 3), np.uint8)


def policy_for(world):
    """A policy that has learned nothing."""
    algorithm = CONFIG.algorithm(spec_of(world))
    return TrainedPolicy(CONFIG, algorithm.policy(algorithm.init(jax.random.key(7), 1), Clock.zero()), world)


def draw(world, path, tell=lambda text: None, **options):
    return recording.draw_episodes(policy_for(world), world, path, SETTINGS._replace(**options), tell)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    path = tmp_path_factory.mktemp("film") / "out.gif"
    return draw(Noise(), path)


def frames_of(path):
    with Image.open(path) as image:
        for k in range(image.n_frames):
            image.seek(k)
            yield np.asarray(image.convert("RGB")), image.info["duration"]


@pytest.mark.full
def test_the_episodes_are_those_of_an_evaluation(film):
    policy = policy_for(Noise())
    algorithm, parameters = policy.algorithm, policy.parameters
    episodes = play_episodes(
        Noise(), algorithm, parameters, jax.random.key(5), episodes=9, max_steps=200, greedy=False
    )
    np.testing.assert_allclose(film.returns, episodes.returned[:3], rtol=1e-6)
    np.testing.assert_array_equal(film.lengths, episodes.length[:3])


def test_there_is_a_picture_for_each_start_and_each_step(film):
    assert film.frames == sum(film.lengths) + 3
    pictures, durations = zip(*frames_of(film.path), strict=True)
    assert len(pictures) == film.frames
    assert all(picture.shape == (30 + films.CAPTION_HEIGHT, 50, 3) for picture in pictures)
    assert all((one != other).any() for one, other in itertools.pairwise(pictures))
    ends = np.cumsum(np.asarray(film.lengths) + 1) - 1  # the last picture of an episode stays for a second
    np.testing.assert_array_equal(durations, np.where(np.isin(np.arange(film.frames), ends), 1000, 250))


@pytest.mark.full
def test_few_colours_are_kept_as_they_are_and_the_film_says_how_far_it_is(tmp_path):
    world, path, told = envs.make("CartPole-v1", max_episode_steps=5), tmp_path / "out.gif", []
    film = draw(world, path, episodes=2, tell=told.append)
    episodes = recording.record_episodes(policy_for(world), world, SETTINGS._replace(episodes=2))
    states = [(episode, step) for episode in episodes for step in range(6)]
    for (picture, duration), (episode, step) in zip(frames_of(film.path), states, strict=True):
        state = jax.tree.map(lambda x, step=step: x[step], episode.state)
        np.testing.assert_array_equal(picture[: -films.CAPTION_HEIGHT], world.render(state))
        assert duration == (1000 if step == 5 else 20)
    assert film.returns == [5.0, 5.0]
    drawing = [f"drawing picture {k} of {film.frames} for {path}" for k in range(1, film.frames + 1)]
    assert told == [f"playing 2 episodes for {path}", *drawing, f"writing {film.frames} pictures for {path}"]


@pytest.mark.full
def test_an_episode_is_left_where_it_grows_too_long(tmp_path):
    film = draw(Noise(stop=0.0), tmp_path / "out.gif", max_steps=70, episodes=1)
    assert film.lengths == [70] and film.frames == 71
    assert film.returns[0] == pytest.approx(35, abs=10)


def test_a_png_is_the_first_picture(tmp_path, film):
    still = draw(Noise(), tmp_path / "Still.PNG")
    assert still.frames == 1 and still.lengths == film.lengths
    with Image.open(still.path) as image:
        assert image.format == "PNG"
        state = jax.tree.map(
            lambda x: x[0],
            recording.record_episodes(
                policy_for(Noise()), Noise(), SETTINGS._replace(episodes=1, max_steps=9)
            )[0].state,
        )
        np.testing.assert_array_equal(np.asarray(image)[:30], Noise().render(state))


@pytest.fixture
def ffmpeg(tmp_path, monkeypatch):
    """The program on the path, from a package that xminigrid brings, where there is none."""
    binary = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ffmpeg").symlink_to(binary)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    return str(binary)


def test_an_mp4_is_made_by_ffmpeg(ffmpeg, tmp_path):
    film = draw(Noise(), tmp_path / "out.mp4")
    assert film.path.read_bytes()[4:8] == b"ftyp"
    command = [ffmpeg, "-loglevel", "error", "-i", film.path, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, capture_output=True, check=True).stdout
    pictures = np.frombuffer(raw, np.uint8).reshape(-1, 54, 50, 3)
    assert len(pictures) == film.frames + 3 * 3  # each episode's last picture stays for a second of four
    assert not list(tmp_path.glob(".*"))


def test_what_ffmpeg_says_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\necho 'no such codec' >&2\nexit 3\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ShoalError, match=r"ffmpeg could not make '.*out.mp4': no such codec\."):
        draw(Noise(), tmp_path / "out.mp4")
    assert [path.name for path in tmp_path.iterdir()] == ["ffmpeg"]


@pytest.mark.parametrize(
    ("world", "error", "words"),
    [(Breaking(), RuntimeError, "broken"), (Growing(), ShoalError, r"\(30, 40\) and of \(30, 50\) pixels")],
)
def test_a_film_that_cannot_be_finished_leaves_the_one_before(tmp_path, world, error, words):
    (tmp_path / "out.gif").write_text("the one before")
    with pytest.raises(error, match=words):
        draw(world, tmp_path / "out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["out.gif"]
    assert (tmp_path / "out.gif").read_text() == "the one before"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("out.git", "'.*out.git' must end in .gif, .mp4 or .png; did you mean '.gif'?"),
        ("out", "must end in .gif, .mp4 or .png."),
        ("nowhere/out.gif", "there is no directory '.*nowhere'"),
        ("folder.gif", "it is a directory"),
        ("out.mp4", "needs the program ffmpeg, which is not on the path; .gif does not"),
    ],
)
def test_what_cannot_be_written_is_said_at_once(tmp_path, monkeypatch, name, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "folder.gif").mkdir()
    with pytest.raises(ShoalError, match=sentence.replace(".g", r"\.g").replace("?", r"\?")):
        draw(Noise(), tmp_path / name)


def test_a_world_without_pictures_is_refused(tmp_path):
    with pytest.raises(ShoalError, match="MemoryChain cannot be drawn"):
        draw(envs.make("MemoryChain-v0"), tmp_path / "out.gif")


def read_film(pictures, path):
    """The images that a GIF of some pictures holds, and the pictures with their captions."""
    frames = [films.FilmFrame(picture, f"#1   step {k}", False) for k, picture in enumerate(pictures)]
    with films.write_whole_file(path) as file:
        assert films._write_gif(file, frames, 10) == len(frames)
    with Image.open(path) as film:
        images = []
        for index in range(film.n_frames):
            film.seek(index)
            images.append(np.asarray(film.convert("RGB"), int))
    return images, [films.add_caption(frame).astype(int) for frame in frames]


@pytest.mark.full
def test_grids_keep_their_colours(tmp_path):
    """A world of many things, lit and unlit, has fewer colours than the palette of a GIF."""
    world = envs.make("MiniGrid-Playground")
    state, _ = world.reset(jax.random.key(1))
    turned = [
        state._replace(agent=state.agent._replace(direction=jnp.int32(direction))) for direction in range(4)
    ]
    for x, y in zip(
        *read_film([np.asarray(world.render(x)) for x in turned], tmp_path / "a.gif"), strict=True
    ):
        np.testing.assert_array_equal(x, y)


@pytest.mark.quick("CartPole-v1")
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0"])
def test_classic_worlds_keep_their_colours(name, tmp_path):
    """With the caption, and in states all over the world."""
    world, random = envs.make(name), np.random.default_rng(0)
    state, pictures = jax.device_get(world.reset(jax.random.key(0))[0]), []
    for _ in range(20):
        inner = jax.tree.map(lambda x: np.float32(x + random.normal() * 0.7), state.env)
        pictures.append(np.asarray(world.render(state._replace(env=inner))))
    for x, y in zip(*read_film(pictures, tmp_path / "a.gif"), strict=True):
        assert np.abs(x - y).max() <= 16
