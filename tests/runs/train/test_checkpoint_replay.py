"""Checkpoints with a replay and without it: what is copied, what is resumed, and what a policy is loaded from."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kept_programs import shared_programs  # noqa: F401  the runs share their programs
from tiny_bandit import BanditConfig, bandit
from tiny_worlds import assert_equal, populate

import shoal
from shoal.algos.agents.independent import Sets, over_agents
from shoal.algos.agents.opponents import Opponents, against_past
from shoal.algos.dqn_config import DQNConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.base import signals
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.envs.probes import ActionReward
from shoal.envs.team_probe import TeamProbe
from shoal.records import array_file
from shoal.records.checkpoints import Checkpoints
from shoal.records.run_config import RunConfig
from shoal.runs.train import checkpointing
from shoal.runs.train import resume as resume_rules
from shoal.runs.train.checkpointing import RunSupervisor
from shoal.runs.train.pacing import Pacer
from shoal.types import Learner, spec_of

pytestmark = pytest.mark.usefixtures("undrawn")

ROWS, SEEDS, NUM_ENVS, RING = 64, 2, 4, "learner/local/1"
REPLAY = SEEDS * NUM_ENVS * (4 + 4 * ROWS)  # bytes: a ring of float32, and the bandit's own number
SMALL = {
    **{"seeds": SEEDS, "num_envs": NUM_ENVS, "num_steps": 8, "total_steps": 32 * 12, "num_evals": 3},
    **{
        "eval_episodes": 4,
        "devices": 1,
        "progress": False,
        "checkpoint_every": 96,
        "keep": 10,
        "log_every": 64,
    },
}


@struct.struct
class RingConfig(BanditConfig):
    """The bandit, whose baseline is the mean of the rewards in its rings; its policy does not look at these."""

    def algorithm(self, spec, axis=()):
        own = bandit(self, spec, axis)

        def init(key, num_envs):
            learner = own.init(key, num_envs)
            return Learner((learner.shared, jnp.int32(0)), (learner.local, jnp.zeros((num_envs, ROWS))))

        def update(learner, trajectory, keys, clock):
            (shared, written), (local, ring) = learner
            new, metrics = own.update(Learner(shared, local), trajectory, keys, clock)
            rewards = trajectory.timesteps.reward[1:].T
            ring = ring.at[:, (written + jnp.arange(rewards.shape[1])) % ROWS].set(rewards)
            written += rewards.shape[1]
            mean = ring.sum() / (ring.shape[0] * jnp.minimum(written, ROWS))
            mean = jax.lax.pmean(mean, axis) if axis else mean
            return Learner((new.shared._replace(baseline=mean), written), (new.local, ring)), metrics

        def policy(learner, clock):
            return own.policy(Learner(learner.shared[0], ()), clock)

        def without_replay(learner):
            shared, written = learner.shared
            return Learner((shared, 0 * written), jax.tree.map(jnp.zeros_like, learner.local))

        def inherit(learner, saved):
            shared = struct.with_saved_parts(learner.shared, saved, ("0",))
            return learner._replace(shared=shared)

        new = own._replace(init=init, update=update, policy=policy, inherit=inherit)
        return new._replace(without_replay=without_replay)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(Pacer, "size", lambda self, left: 1)
    monkeypatch.setattr("shoal.runs.train.checkpointing.REST", 0)
    monkeypatch.setattr("shoal.runs.plan.experiment.catalogue.config_class", lambda _: RingConfig)


def train(path, **settings):
    return shoal.train(ActionReward(), algorithm=RingConfig(), run_dir=path, **SMALL | settings)


def resume(path, **settings):
    return shoal.resume(path, environment=ActionReward(), **settings)


def end(path, updates, **settings):
    """End a run after so many updates by a signal."""
    original = RunSupervisor.between_pieces

    def between_pieces(self, population, history):
        self.stop._requested |= history.updates == updates
        original(self, population, history)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunSupervisor, "between_pieces", between_pieces)
        with pytest.raises(signals.Interrupted):
            train(path, **settings)


def learned(run):
    """What a run has learned, and its rings."""
    return {name: np.asarray(x) for name, x in struct.named_leaves(run.learner).items()}


def leaves_of(path, steps):
    return Checkpoints(path).load(steps)[0]


@pytest.mark.parametrize("updates", [4, 5])
def test_a_run_whose_checkpoints_hold_the_replay_resumes_bit_for_bit(tmp_path, capfd, updates):
    """At an evaluation, whose copy waits without the rings, and between two."""
    whole = train(tmp_path / "whole")
    end(tmp_path / "run", updates)
    assert np.asarray(leaves_of(tmp_path / "run", updates * 32)[RING]).any()
    run = resume(tmp_path / "run")
    assert "replay" not in capfd.readouterr().err
    assert jax.tree.all(jax.tree.map(np.array_equal, learned(run), learned(whole)))
    assert run.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    assert run.summary["absolute"] == whole.summary["absolute"]


@pytest.mark.parametrize(("size", "says"), [("never", False), ("0", False), (f"{REPLAY - 1}", True)])
def test_a_run_without_its_replay_refills_it_and_says_so(tmp_path, capfd, size, says):
    end(tmp_path / "run", 5, checkpoint_replay=size, progress=True)
    assert ("checkpoints leave the replay out, whose 2.08 kB are more than" in capfd.readouterr().err) == says
    assert all(RING not in leaves_of(tmp_path / "run", x) for x in Checkpoints(tmp_path / "run").steps())
    before = leaves_of(tmp_path / "run", 160)
    assert before["learner/shared/1"].tolist() == [40, 40]
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            RunSupervisor, "between_pieces", lambda self, run, _: seen.append(jax.device_get(run.learner))
        )
        run = resume(tmp_path / "run")
    assert (
        "the checkpoint is without its replay, which the run refills by its own policy"
        in capfd.readouterr().err
    )
    (first, written), local = seen[0]
    assert written.tolist() == [0, 0] and not any(x.any() for x in local)
    np.testing.assert_array_equal(first.actions, before["learner/shared/0/actions"])
    assert [int(x.shared[1][0]) for x in seen] == [8 * k for k in range(8)]
    assert learned(run)["local/1"][..., :56].any() and not learned(run)["local/1"][..., 56:].any()


@pytest.mark.full
@pytest.mark.parametrize(
    "placed",
    [
        {"seeds": 1, "env_groups": 2},
        {"seeds": 1, "env_groups": 2, "devices": 2},
        {"devices": 2},
        {"seed_batching": "vmap"},
    ],
)
@pytest.mark.rare("placed0", "placed2")
def test_a_replay_begins_empty_wherever_members_and_groups_are_placed(tmp_path, placed):
    end(tmp_path / "run", 5, checkpoint_replay="never", **placed)
    learner = resume(tmp_path / "run", progress=False).learner
    assert set(learner.shared[1].tolist()) == {56} and not np.asarray(learner.local[1])[..., 56:].any()


def test_a_replay_of_the_largest_size_is_held_and_the_size_may_change(tmp_path):
    end(tmp_path / "run", 5, checkpoint_replay=f"{REPLAY}")
    assert RING in leaves_of(tmp_path / "run", 160)
    run = resume(tmp_path / "run", progress=False, checkpoint_replay="never")
    assert int(run.learner.shared[1][0]) == 96 and RING not in leaves_of(run.path, 384)


def test_no_ring_is_copied_at_a_better_evaluation_and_the_newest_checkpoint_has_it(tmp_path, monkeypatch):
    """Each evaluation up to the fourth update is a better one; the first checkpoint after the start is at the fifth."""
    copied, written = [], []
    copy, submit = checkpointing.copy_to_host, RunSupervisor._submit

    def counted(population, left_out=()):
        leaves = copy(population, left_out)
        copied.append(sum(x.nbytes for name, x in leaves.items() if name.startswith("learner/local")))
        return leaves

    def submitted(self, steps, leaves, record):
        written.append((steps, RING in leaves))
        submit(self, steps, leaves, record)
        while self._writer.busy:  # however slow the disk is
            time.sleep(0.01)

    monkeypatch.setattr(checkpointing, "REST", 0)
    monkeypatch.setattr(checkpointing, "copy_to_host", counted)
    monkeypatch.setattr(RunSupervisor, "_submit", submitted)
    iqm = lambda history: -float(abs(history.updates - 4))  # noqa: E731
    monkeypatch.setattr("shoal.records.checkpoint_record.iqm_of", iqm)
    run = train(tmp_path / "run", checkpoint_every=160, num_evals=8, total_steps=32 * 8)
    assert written == [(0, True), (160, True), (128, False), (256, True)]
    assert copied == [REPLAY, 0, 0, 0, 0, REPLAY, REPLAY]
    best = shoal.load(run.path, environment=ActionReward(), seed=0, checkpoint="best")
    saved = leaves_of(run.path, 128)["learner/shared/0/actions"][0]
    np.testing.assert_array_equal(best.parameters, saved)


def test_freezing_a_member_copies_no_ring():
    population, _ = populate(ActionReward(), RingConfig(), (0, 1))
    replay = checkpointing.replay_of(population)
    assert list(replay) == ["learner/local/0", RING] and replay[RING].shape == (SEEDS, NUM_ENVS, ROWS)
    new = checkpointing.frozen(population, [1], replay)
    assert new.learner.local[1] is population.learner.local[1]
    assert new.learner.shared[1] is not population.learner.shared[1]
    assert not checkpointing.replay_of(populate(ActionReward(), BanditConfig(), (0, 1))[0])


def test_a_policy_is_loaded_without_the_replay(tmp_path, monkeypatch):
    end(tmp_path / "run", 5)
    names, read = [], array_file._read

    def noted(*arguments):
        for name, x in read(*arguments):
            names.append(name)
            yield name, x

    monkeypatch.setattr(array_file, "_read", noted)
    for options in ({"which": "last"}, {"checkpoint": "last"}, {"which": "best"}):
        policy = shoal.load(tmp_path / "run", environment=ActionReward(), seed=1, **options)
        assert policy.parameters.shape == (2,)
    saved = leaves_of(tmp_path / "run", 160)
    last = shoal.load(tmp_path / "run", "last", environment=ActionReward(), seed=1)
    np.testing.assert_array_equal(last.parameters, saved["learner/shared/0/actions"][1])
    assert names.count(RING) == 1  # by `leaves_of` alone


def test_a_run_from_another_begins_with_an_empty_replay(tmp_path):
    old = train(tmp_path / "old")
    assert old.learner.shared[1].tolist() == [96, 96]
    run = train(tmp_path / "new", start_from=old.path, num_evals=1, total_steps=32)
    assert run.learner.shared[1].tolist() == [8, 8]
    assert not np.asarray(run.learner.local[1])[..., 8:].any()


@pytest.mark.parametrize("size", ["much", "1 XB", "-1", "1e9", "", "Never", "GB", "1.GB"])
def test_what_is_no_size_is_refused_in_one_sentence(size):
    sentence = f"checkpoint_replay={size!r} is not a size; give one such as 500MB or 1GB, 0, or never."
    with pytest.raises(shoal.ShoalError) as error:
        RunConfig(checkpoint_replay=size).validate()
    assert str(error.value) == sentence


def test_sizes_are_read():
    sizes = {"1GB": 1e9, "500MB": 5e8, "1.5 kB": 1500, "2t": 2e12, "7": 7, "7B": 7, "0": 0, "never": 0}
    assert {x: RunConfig(checkpoint_replay=x).max_replay_bytes for x in sizes} == sizes


def test_the_replay_of_each_set_of_agents_is_emptied_and_their_pool_stays():
    spec = spec_of(TeamProbe())
    sets, view = Sets(((0, 1), (2,))), PPOConfig().agents.view(spec)
    algorithm = against_past(over_agents(RingConfig().algorithm, view, sets), Opponents(sets, 0.5, 3, 1))
    full = jax.tree.map(lambda x: x + 1, algorithm.init(jax.random.key(0), 4))
    learner = algorithm.without_replay(full)
    assert [int(written) for _, written in learner.shared.latest] == [0, 0]
    assert [x.shape for _, x in learner.local] == [(4, 2, ROWS), (4, 1, ROWS)]
    assert not any(x.any() for x in jax.tree.leaves(learner.local))
    latest = tuple((shared, 0 * written) for shared, written in full.shared.latest)
    assert_equal(learner.shared, full.shared._replace(latest=latest))
    assert (
        against_past(over_agents(BanditConfig().algorithm, view, sets), Opponents(sets, 0.5, 3, 1))[-1]
        is None
    )


@pytest.mark.parametrize("starts", [0, 16, 30, 31, 40])
@pytest.mark.parametrize("every", [1, 7, 24])
def test_a_run_without_its_replay_must_have_a_gradient_step_left(capfd, starts, every):
    """Refused where none was made before, else said; the reference counts step by step."""
    config = with_settings(DQNConfig(), learning_starts=starts, train_frequency=every)
    for made, total in ((16, 96), (16, 48), (16, 32), (64, 96), (64, 72), (64, 64), (80, 200)):
        run = RunConfig(num_envs=4, num_steps=2, total_steps=total)

        def learns_at(step, filled_from, starts=starts, every=every):
            filled = (step // 8 + 1) * 8 - filled_from  # steps in the rings when the update is made
            return step > starts and step % every == 0 and filled >= starts

        before, after = (
            any(learns_at(k, 0) for k in range(made)),
            any(learns_at(k, made) for k in range(made, total)),
        )
        if after or made == total or before:
            resume_rules.check_refill(run, config, made)
            assert ("leaves no gradient step" in capfd.readouterr().err) == (not after and made < total)
        else:
            with pytest.raises(
                shoal.ShoalError, match=f"learning_starts={starts} leaves no gradient step in what"
            ):
                resume_rules.check_refill(run, config, made)
