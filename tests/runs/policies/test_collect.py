import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import shoal
from shoal import environment, restart, transition
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import with_settings
from shoal.config.struct import as_arrays
from shoal.runs.policies import collect, rollout_parts
from shoal.runs.policies.rollout_parts import RolloutParts
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import Clock, spec_of
from shoal.types.spaces import Box, Discrete
from shoal.types.spaces import Dict as DictSpace


def untrained(env, **settings) -> TrainedPolicy:
    config = as_arrays(with_settings(PPOConfig(), hidden_sizes=(8,), **settings).resolved())

    @jax.jit
    def parameters(config, key):
        algorithm = config.algorithm(spec_of(env))
        return algorithm.policy(algorithm.init(key, 1), Clock.zero())

    return TrainedPolicy(config, parameters(config, jax.random.key(5)), env)


def episodes_of(data) -> list[tuple[float, int, bool]]:
    """(return, length, terminated) of each episode that ended, one environment and step at a time."""
    found = []
    steps, envs = data["actions"].shape[:2]
    for env in range(envs):
        returned, length = 0.0, 0
        for t in range(steps):
            if data["last"][t, env]:
                assert data["first"][t + 1, env]
                returned, length = 0.0, 0
                continue
            returned, length = returned + data["rewards"][t + 1, env], length + 1
            if data["last"][t + 1, env]:
                found.append((returned, length, data["discounts"][t + 1, env] == 0))
    return found


@environment
class Masked:
    """The mask is drawn anew at each step and is the observation; an action is legal once in a while."""

    observation_space = DictSpace({"mask": Box(0, 1, (5,)), "time": Box(0, 100, ())})
    action_space = Discrete(5)

    def reset(self, key):
        mask = self.mask(key)
        return jnp.float32(0), restart(self.observe(mask, jnp.float32(0)), action_mask=mask)

    def step(self, state, action, key):
        mask, state = self.mask(key), state + 1
        return state, transition(self.observe(mask, state), 1.0, action_mask=mask)

    def mask(self, key):
        draw, kept = jax.random.split(key)
        mask = jax.random.bernoulli(draw, 0.4, (5,))
        return mask.at[jax.random.randint(kept, (), 0, 5)].set(True)

    def observe(self, mask, time):
        return {"mask": mask.astype(jnp.float32), "time": time}


@pytest.mark.full
def test_statistics_are_those_of_the_data(tmp_path):
    result = shoal.rollout("CartPole-v1", num_envs=16, num_steps=120, save=tmp_path / "x.npz", seed=3)
    found = episodes_of(result.data)
    returns, lengths, terminated = zip(*found, strict=True)
    assert result.episodes == len(found) > 50
    assert result.return_mean == pytest.approx(np.mean(returns), rel=1e-6)
    assert result.length_mean == pytest.approx(np.mean(lengths), rel=1e-6)
    assert result.terminated == pytest.approx(np.mean(terminated))
    streamed = shoal.rollout("CartPole-v1", num_envs=16, num_steps=120, seed=3)
    assert streamed.data is None
    assert (streamed.episodes, streamed.return_mean) == (result.episodes, result.return_mean)
    assert result.steps == 16 * 120
    other = shoal.rollout("CartPole-v1", num_envs=16, num_steps=120, save=tmp_path / "x.npz", seed=4).data
    assert np.mean(result.data["actions"] != other["actions"]) > 0.4
    assert np.all(result.data["observations"][0] != other["observations"][0])
    assert result.steps_per_second == pytest.approx(result.steps / result.seconds)


@pytest.mark.full
def test_the_file_holds_the_data_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "new" / "x.npz"
    result = shoal.rollout("Pendulum-v1", num_envs=6, num_steps=10, save=path)
    assert [x.name for x in path.parent.iterdir()] == ["x.npz"]
    with np.load(path) as saved:
        assert {name: (x.shape, x.dtype) for name, x in saved.items()} == {
            "observations": ((11, 6, 3), np.float32),
            "rewards": ((11, 6), np.float32),
            "discounts": ((11, 6), np.float32),
            "first": ((11, 6), np.bool_),
            "last": ((11, 6), np.bool_),
            "actions": ((10, 6, 1), np.float32),
        }
        for name, x in saved.items():
            np.testing.assert_array_equal(x, result.data[name])


@pytest.mark.full
def test_action_t_leads_from_observation_t_to_the_next(tmp_path):
    data = shoal.rollout("MountainCar-v0", num_envs=4, num_steps=250, save=tmp_path / "x.npz").data
    position, velocity = np.moveaxis(data["observations"][:-1], -1, 0).astype(np.float64)
    velocity = velocity + (data["actions"] - 1) * 0.001 - np.cos(3 * position) * 0.0025
    velocity = np.clip(velocity, -0.07, 0.07)
    position = np.clip(position + velocity, -1.2, 0.6)
    velocity[(position == -1.2) & (velocity < 0)] = 0.0
    goes_on = ~data["last"][:-1]
    expected = np.stack([position, velocity], -1)
    np.testing.assert_allclose(data["observations"][1:][goes_on], expected[goes_on], atol=1e-6)
    assert data["last"].sum() == 4  # cut after 200 steps
    assert np.all(data["discounts"] == 1)


@pytest.mark.full
@pytest.mark.parametrize("acting", ["random", "sampled"])
def test_devices_do_not_change_what_is_collected(tmp_path, acting):
    policy = None if acting == "random" else untrained(shoal.make("Pendulum-v1"))
    both, one = (
        shoal.rollout(
            "Pendulum-v1",
            policy,
            num_envs=10,
            num_steps=60,
            devices=devices,
            save=tmp_path / "x.npz",
        )
        for devices in (2, 1)
    )
    assert (both.devices, one.devices) == (2, 1)
    assert both.episodes == one.episodes
    for name, x in both.data.items():
        np.testing.assert_allclose(x, one.data[name], rtol=1e-4, atol=1e-4, err_msg=name)
    if acting == "random":
        np.testing.assert_array_equal(both.data["actions"], one.data["actions"])


@pytest.mark.full
def test_chunks_do_not_change_what_is_collected(tmp_path, monkeypatch):
    def collected():
        return shoal.rollout("Pendulum-v1", num_envs=4, num_steps=401, save=tmp_path / "x.npz")

    whole = collected()
    monkeypatch.setattr(collect, "MAX_STEPS_PER_CALL", 4 * 17)  # 23 chunks and a rest of 10 steps
    parts = collected()
    assert (parts.episodes, parts.return_mean) == (8, pytest.approx(whole.return_mean, rel=1e-5))
    for name, x in whole.data.items():
        np.testing.assert_allclose(parts.data[name], x, rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.full
def test_as_many_devices_take_part_as_divide_the_environments():
    assert shoal.rollout("probe/action", num_envs=3, num_steps=2).devices == 1
    assert shoal.rollout("probe/action", num_envs=4, num_steps=2).devices == 2


@pytest.mark.full
def test_random_actions_are_uniform_and_of_their_own(tmp_path):
    data = shoal.rollout("Pendulum-v1", num_envs=64, num_steps=200, save=tmp_path / "x.npz").data
    actions = data["actions"][..., 0]
    assert scipy.stats.kstest(actions.ravel(), scipy.stats.uniform(-2, 4).cdf).pvalue > 1e-3
    assert len(np.unique(actions)) > 0.997 * actions.size  # 23 random bits coincide now and then
    data = shoal.rollout("Acrobot-v1", num_envs=64, num_steps=200, save=tmp_path / "x.npz").data
    counts = np.bincount(data["actions"].ravel(), minlength=3)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.full
def test_only_legal_actions_are_drawn_and_all_of_them(tmp_path):
    data = shoal.rollout(Masked(), num_envs=8, num_steps=300, save=tmp_path / "x.npz").data
    legal = np.take_along_axis(data["action_masks"][:-1], data["actions"][..., None], -1)
    assert legal.all()
    np.testing.assert_array_equal(data["observations/mask"], data["action_masks"])
    np.testing.assert_array_equal(data["observations/time"][:, 0], np.arange(301))
    # Each legal action is as likely: its count less its share is small for every one.
    masks = data["action_masks"][:-1].reshape(-1, 5)
    share = masks / masks.sum(1, keepdims=True)
    counts = np.bincount(data["actions"].ravel(), minlength=5)
    deviation = np.sqrt((share * (1 - share)).sum(0))
    assert np.all(np.abs(counts - share.sum(0)) < 4 * deviation)


@pytest.mark.full
def test_a_greedy_policy_takes_its_mode_and_a_sampled_one_does_not(tmp_path):
    policy = untrained(shoal.make("CartPole-v1"))
    data = {
        greedy: shoal.rollout(
            None, policy, num_envs=6, num_steps=40, greedy=greedy, save=tmp_path / "x.npz"
        ).data
        for greedy in (True, False)
    }
    for greedy, x in data.items():
        flat = x["observations"][:-1].reshape(-1, 4)
        _, modes = policy(policy.initial_memory((len(flat),)), flat)
        agree = np.mean(modes == x["actions"].ravel())
        assert agree == 1.0 if greedy else 0.3 < agree < 0.9


@pytest.mark.full
def test_a_policy_with_memory_keeps_one_for_each_environment(tmp_path):
    env = shoal.make("Pendulum-v1")
    settings = {"correlated_noise": True, "noise_correlation": 0.99, "action_scaling": "clip"}
    policy = untrained(env, initial_std=0.3, **settings)
    data = shoal.rollout(env, policy, num_envs=16, num_steps=150, save=tmp_path / "x.npz").data
    flat = data["observations"][:-1].reshape(-1, 3)
    _, modes = policy(policy.initial_memory((len(flat),)), flat)
    noise = (data["actions"] - modes.reshape(data["actions"].shape))[..., 0]
    along = np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]
    assert along > 0.95
    across = np.corrcoef(noise.T)[~np.eye(16, dtype=bool)]
    assert np.unique(across).size > 100  # no two environments share their noise


@pytest.mark.full
def test_nothing_ended_is_not_a_number():
    result = shoal.rollout("Pendulum-v1", num_envs=2, num_steps=3)
    assert result.episodes == 0
    assert np.isnan([result.return_mean, result.length_mean, result.terminated]).all()


@pytest.mark.full
def test_a_file_that_is_there_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collect.Record, "add", full)
    with pytest.raises(ShoalError, match=r"x\.npz cannot be written: No space left on device\."):
        shoal.rollout("probe/action", num_envs=2, num_steps=3, save=path)
    assert [x.name for x in tmp_path.iterdir()] == ["x.npz"]
    assert path.read_bytes() == b"old"


# ---- in parts


@pytest.fixture
def small_parts(monkeypatch):
    """Calls of a few steps, and parts of two or more calls."""
    monkeypatch.setattr(collect, "MAX_RECORDED_BYTES", 2**11)
    monkeypatch.setattr(rollout_parts, "PART_BYTES", 2**13)


def assert_same_data(parts, whole):
    assert parts.index["steps"] == parts.index["num_steps"] == len(whole["actions"])
    for name, x in whole.items():
        pieces = [part[name] for part in parts]
        assert all(isinstance(piece, np.memmap) for piece in pieces)
        joined = np.concatenate(pieces)
        assert (joined.dtype, joined.shape) == (x.dtype, x.shape)
        assert joined.tobytes() == x.tobytes()
    assert parts.index["arrays"].keys() == whole.keys()


WORLDS = {
    "one device": ("CartPole-v1", {"devices": 1}),
    "two devices": ("CartPole-v1", {}),
    "Dict and masks": (Masked(), {}),
    "several agents": ("mpe/Spread-v0", {}),
}


@pytest.mark.parametrize(
    "kind",
    [
        "two devices",
        *(pytest.param(kind, marks=pytest.mark.full) for kind in WORLDS if kind != "two devices"),
    ],
)
@pytest.mark.rare("several agents")
def test_parts_behind_each_other_are_the_whole_data(tmp_path, small_parts, kind):
    world, settings = WORLDS[kind]
    settings = {"num_envs": 4, "num_steps": 203, "seed": 3} | settings
    whole = shoal.rollout(world, save=tmp_path / "x.npz", **settings)
    parts = shoal.rollout(world, parts=tmp_path / "parts", **settings)
    assert (parts.path, parts.return_mean) == (tmp_path / "parts", whole.return_mean) or whole.episodes == 0
    assert len(parts.data) > 1
    assert_same_data(parts.data, whole.data)


@pytest.mark.full
def test_parts_of_a_policy_with_memory(tmp_path, small_parts):
    settings = {"correlated_noise": True, "noise_correlation": 0.99, "action_scaling": "clip"}
    policy = untrained(shoal.make("Pendulum-v1"), initial_std=0.3, **settings)
    sizes = {"num_envs": 4, "num_steps": 203}
    whole = shoal.rollout(None, policy, save=tmp_path / "x.npz", **sizes)
    assert_same_data(shoal.rollout(None, policy, parts=tmp_path / "parts", **sizes).data, whole.data)


def in_parts(path, **settings):
    return shoal.rollout("CartPole-v1", **{"num_envs": 4, "num_steps": 301, "parts": path} | settings)


@pytest.fixture
def interrupted(tmp_path, small_parts, monkeypatch):
    """A rollout that a full disk ended within the third part."""
    write, rest = rollout_parts._bytes_of, iter(range(50))

    def bytes_of(array):
        if next(rest, None) is None:
            raise OSError(28, "No space left on device")
        return write(array)

    with monkeypatch.context() as patch:
        patch.setattr(rollout_parts, "_bytes_of", bytes_of)
        with pytest.raises(
            ShoalError, match=r"^part \d of .*parts cannot be written: No space left .* bytes\.$"
        ):
            in_parts(tmp_path / "parts")
    return tmp_path / "parts"


@pytest.mark.full
def test_an_interrupted_rollout_leaves_complete_parts_and_is_continued(interrupted, tmp_path):
    found = RolloutParts(interrupted)
    assert len(found) and 0 < found.index["steps"] < 301
    assert not list(interrupted.glob(".*.tmp"))
    assert {int(path.suffixes[0][1:]) for path in interrupted.glob("*.npy")} == set(range(len(found)))
    (interrupted / ".rewards.000007.npy.123.tmp").write_bytes(b"of a killed process")
    before = {path: path.stat().st_mtime_ns for path in interrupted.glob("*.npy")}
    result = in_parts(interrupted)
    assert_same_data(
        result.data, shoal.rollout("CartPole-v1", num_envs=4, num_steps=301, save=tmp_path / "x.npz").data
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not list(interrupted.glob(".*.tmp"))


@pytest.mark.full
def test_what_cannot_be_continued_is_refused_in_a_sentence(interrupted, monkeypatch):
    with pytest.raises(ShoalError, match=r"holds another rollout, whose seed differs; .*\(overwrite=True\)"):
        in_parts(interrupted, seed=1)
    last = rollout_parts.file_of(interrupted, "rewards", len(RolloutParts(interrupted)) - 1)
    data = last.read_bytes()
    last.write_bytes(data[:-1] + b"\1")
    with pytest.raises(
        ShoalError, match="holds other data than this rollout makes: rewards differs at the end"
    ):
        in_parts(interrupted)
    assert in_parts(interrupted, overwrite=True).data.index["steps"] == 301
    with pytest.raises(ShoalError, match="holds this rollout, complete; name another directory"):
        in_parts(interrupted)
    assert in_parts(interrupted, seed=1, num_steps=5, overwrite=True).data.index["steps"] == 5
    assert {path.suffixes[0] for path in interrupted.glob("*.npy")} == {".000000"}
    other = interrupted.parent / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(ShoalError, match="holds other files; name a new directory"):
        in_parts(other, overwrite=True)
    assert [path.name for path in other.iterdir()] == ["thesis.txt"]
    (other / "index.json").write_text('{"title": "mine"}')
    (other / "weights.000000.npy").write_text("mine")
    with pytest.raises(ShoalError, match=r"index\.json is damaged: it lacks 'format'"):
        in_parts(other, overwrite=True)
    assert (other / "weights.000000.npy").exists()
    with pytest.raises(ShoalError, match="are both given; give one of the two"):
        in_parts(other, save="x.npz")
    monkeypatch.setattr(rollout_parts, "free_bytes", lambda _: 1000)
    with pytest.raises(
        ShoalError, match=r"too little space: the steps .* take 36,120 bytes, and 1,000 are free"
    ):
        in_parts(interrupted.parent / "new")


@pytest.mark.slow
def test_a_killed_rollout_is_continued(tmp_path):
    words = ["CartPole-v1", "--envs", "64", "--steps", "1_000_000", "--parts", "parts", "--json"]
    command = [sys.executable, "-m", "shoal", "rollout", *words]
    path = tmp_path / "parts"
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    while not path.exists() or not rollout_parts.file_of(path, "rewards", 0).exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert len(RolloutParts(path)) < 8
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    parts = RolloutParts(path)
    assert json.loads(done.stdout)["num_steps"] == sum(len(part["actions"]) for part in parts) == 1_000_000
    assert not list(path.glob(".*.tmp"))
