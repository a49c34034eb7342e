"""A trainer that is called step by step learns what a run learns, continues one, and knows its own states."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_worlds import Breaks
from tiny_bandit import BanditConfig

import shoal
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.envs.probes import ActionReward
from shoal.records.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("undrawn")

SMALL = {"num_envs": 4, "num_steps": 8, "eval_episodes": 4, "eval_max_steps": 30}
PPO = {"hidden_sizes": (8,), "num_minibatches": 2, "update_epochs": 2, "lr_schedule": "linear"}
CARTPOLE = with_settings(PPOConfig(), **PPO, norm_obs=True, norm_reward=True)
DQN = {"hidden_sizes": (8,), "learning_starts": 16, "batch_size": 8, "train_frequency": 8, "buffer_size": 64}
KEY = jax.random.key(3)
CASES = {
    "own algorithm": (ActionReward(), BanditConfig(), {}),
    "ppo": ("CartPole-v1", CARTPOLE, {}),
    "recurrent": ("CartPole-v1", with_settings(CARTPOLE, core="gru", core_size=8, chunk_length=4), {}),
    "dqn": ("CartPole-v1", "dqn", DQN),
    "sac": ("CartPole-v1", "sac", DQN),
    "td3": ("Pendulum-v1", "td3", DQN),
    "several agents": ("mpe/Spread-v0", with_settings(PPOConfig(), **PPO), {}),
}


def run_of(path, name, **settings):
    """One seed, with a row of metrics for each update, and a checkpoint at each evaluation."""
    environment, config, own = CASES[name]
    fixed = {"seeds": 1, "seed": 3, "devices": 1, "progress": False, "log_every": 32, "preset": False}
    return shoal.train(
        environment,
        algorithm=config,
        run_dir=path,
        **fixed | {"num_updates": 6, "num_evals": 2, "checkpoint_evals": True} | SMALL | own | settings,
    )


def trainer_of(name, **settings):
    environment, config, own = CASES[name]
    return shoal.make_train(environment, config, preset=False, **{"num_updates": 6} | SMALL | own | settings)


def assert_equal(tree, expected):
    for (name, x), y in zip(struct.named_leaves(tree).items(), jax.tree.leaves(expected), strict=True):
        if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(x, y, err_msg=name)


def assert_is_first(tree, population):
    assert_equal(tree, jax.tree.map(lambda x: x[0], population))


def assert_is_row(record, row):
    """A record of a trainer and a row of metrics.jsonl, float32 for float32."""
    assert record
    for name, x in record.items():
        expected = np.float32(np.nan if row[name] is None else row[name])
        np.testing.assert_array_equal(np.float32(x), expected, err_msg=name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick("own algorithm")
@pytest.mark.rare("several agents", "sac", "ppo", "dqn", "recurrent")
def test_step_by_step_a_run_is_made_bit_for_bit(tmp_path, name):
    """Its learner, its rows and its best policy; as it is called, and compiled by a caller."""
    run, trainer = run_of(tmp_path, name), trainer_of(name)
    rows = {"train": [], "evaluation": []}
    for row in RunDirectory.open(tmp_path).load_metrics():
        rows[row["kind"]].append(row)
    compiled = functools.partial(jax.jit, compiler_options=trainer.compiler_options)
    for update, evaluate in (
        (trainer.update, trainer.evaluate),
        map(compiled, (trainer.update, trainer.evaluate)),
    ):
        state, metrics = evaluate(trainer.start(KEY))
        assert_is_row(metrics, rows["evaluation"][0])
        for number, row in enumerate(rows["train"], start=1):
            state, record = update(state)
            assert_is_row(record, row)
            if number in (3, 6):
                state, metrics = evaluate(state)
                assert_is_row(metrics, rows["evaluation"][number // 3])
        assert_is_first(state.learner, run.learner)
        leaves, metadata = RunDirectory.open(tmp_path).load_policy("best")
        assert int(state.best.updates) == metadata["updates"][0]
        for leaf, x in struct.named_leaves({"policy": state.best.policy}).items():
            np.testing.assert_array_equal(x, leaves[leaf if leaf != "policy" else "policy/"][0])
    assert_equal(trainer.policy(state).parameters, run.policy("last").parameters)


@pytest.mark.parametrize("name", ["own algorithm", "ppo", "dqn", "sac"])
@pytest.mark.quick("own algorithm")
@pytest.mark.rare("dqn", "ppo")
def test_a_trainer_continues_a_run(tmp_path, name):
    """From a checkpoint bit for bit; and from what another run has learned, as a run does that starts from it."""
    run, trainer = run_of(tmp_path / "first", name), trainer_of(name)
    state = trainer.resume(tmp_path / "first", from_step=96)
    assert int(state.updates) == 3
    while int(state.updates) < 6:
        state, _ = trainer.update(state)
    assert_is_first(state.learner, run.learner)
    assert_equal(trainer.resume(tmp_path / "first").learner, state.learner)
    tuned = run_of(tmp_path / "second", name, start_from=tmp_path / "first", from_step=96)
    state = trainer.start(KEY, tmp_path / "first", from_step=96)
    for _ in range(6):
        state, _ = trainer.update(state)
    assert_is_first(state.learner, tuned.learner)


@pytest.mark.full
def test_a_trainer_continues_a_member_of_a_run(tmp_path):
    """Of three seeds the one that is named; what cannot be continued is refused."""
    run = run_of(tmp_path, "ppo", seeds=3)
    trainer = trainer_of("ppo")
    assert_equal(trainer.resume(tmp_path, seed=5).learner, jax.tree.map(lambda x: x[2], run.learner))
    started = trainer.start(KEY, tmp_path, seed=4).learner.shared.network
    assert_equal(started, jax.tree.map(lambda x: x[1], run.learner).shared.network)
    for make, sentence in (
        (lambda: trainer.resume(tmp_path, seed=9), "seed=9 is not one of the run's: 3, 4, 5"),
        (lambda: trainer.resume(tmp_path, from_step=17), "there is no checkpoint at 17; the nearest is 0"),
        (lambda: trainer.resume(tmp_path / "no"), "there is no run directory"),
        (lambda: trainer_of("ppo", num_steps=16).resume(tmp_path), "num_steps is 8, and 16 here"),
        (lambda: trainer_of("ppo", num_updates=5).resume(tmp_path), "total_steps=160 is less than the 192"),
        (lambda: trainer_of("dqn").resume(tmp_path), "cannot be continued by this trainer: "),
        (lambda: trainer_of("dqn").start(KEY, tmp_path), "does not fit: "),
        (lambda: trainer.start(KEY, 3), "start_from=3 is of type int, not a path"),
        (lambda: jax.vmap(trainer.resume)(jnp.ones(2)), "run is traced, as within"),
    ):
        with pytest.raises(shoal.ShoalError, match=sentence):
            make()


@pytest.mark.full
@pytest.mark.parametrize("name", ["ppo", "dqn", "td3"])
@pytest.mark.rare("dqn", "td3")
def test_a_trainer_goes_on_with_a_learner(name):
    """What belongs to the environments starts anew, so that a replay is filled by the new ones."""
    trainer = trainer_of(name)
    state = trainer.start(KEY)
    for _ in range(4):
        state, _ = trainer.update(state)
    again, new = trainer.start(jax.random.key(7), state.learner), trainer.start(jax.random.key(7))
    assert_equal(again.learner.shared.network, state.learner.shared.network)
    assert_equal(again.learner.shared.optimizer, state.learner.shared.optimizer)
    assert_equal(again.learner.local, new.learner.local)
    assert_equal(again.timestep, new.timestep)
    assert int(again.updates) == 0
    if name == "dqn":
        assert int(state.learner.shared.written) > 0 == int(again.learner.shared.written)
    assert np.isfinite(trainer.update(again)[1]["learning_rate"])


def test_a_learner_of_another_trainer_is_refused():
    trainer = trainer_of("own algorithm")
    with pytest.raises(shoal.ShoalError, match="learned here, but nothing of that name was saved there"):
        trainer_of("ppo").start(KEY, trainer.start(KEY).learner)


@pytest.mark.full
def test_states_are_mapped():
    """Starts, updates and evaluations of several keys, each within rounding that of its own."""
    trainer, keys = trainer_of("ppo", keep_episodes=True), jax.random.split(KEY, 2)
    states = jax.vmap(trainer.start)(keys)
    for _ in range(2):
        states, _ = jax.jit(jax.vmap(trainer.update))(states)
    states, metrics = jax.vmap(trainer.evaluate)(states)
    assert metrics["return"].shape == (2, 4)
    for k, key in enumerate(keys):
        state = trainer.start(key)
        for _ in range(2):
            state, _ = trainer.update(state)
        found = jax.tree.map(lambda x, k=k: x[k], states.learner)
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), found, state.learner
        )
    assert trainer.policy(states, 1).act(np.zeros(4)) in (0, 1)
    started = jax.vmap(lambda key: trainer.start(key, state.learner).learner.shared.network)(keys)
    assert_equal(jax.tree.map(lambda x: x[1], started), state.learner.shared.network)


def test_a_state_is_of_its_trainer():
    """Another trainer's is refused by the first setting that differs; traced numbers are not compared."""
    trainer = trainer_of("own algorithm")
    state, _ = trainer.update(trainer.start(KEY))
    trainer.update(jax.jit(lambda state: state)(state))  # equal numbers of other arrays
    others = {
        "num_steps=8, and 16 is here": trainer_of("own algorithm", num_steps=16),
        "num_updates=6, and 9 is here": trainer_of("own algorithm", num_updates=9),
        "environment=ActionReward, and CartPole is here": trainer_of("ppo"),
        "algorithm=BanditConfig, and PPOConfig is here": shoal.make_train(
            ActionReward(), "ppo", preset=False, num_updates=6, **SMALL
        ),
        r"step_size=0\.\d+, and 0.125 is here": shoal.make_train(
            ActionReward(), BanditConfig(0.125), num_updates=6, **SMALL
        ),
    }
    for sentence, other in others.items():
        with pytest.raises(shoal.ShoalError, match=f"^the state is of another trainer: it has {sentence}"):
            other.update(state)
        with pytest.raises(shoal.ShoalError, match="goes on with what it has learned"):
            other.evaluate(state)
    with pytest.raises(shoal.ShoalError, match="num_steps=8, and 16 is here"):
        jax.jit(others["num_steps=8, and 16 is here"].update)(state)
    for wrong in (None, 3, state.learner):
        with pytest.raises(
            shoal.ShoalError, match=r"^state=.* is not a trainer's state; give what trainer.start"
        ):
            trainer.update(wrong)
    with pytest.raises(
        shoal.ShoalError, match=r"step_size' is float32\[2\], and float32\[\] here \(jax.vmap maps"
    ):
        trainer.update(jax.vmap(trainer.start)(jax.random.split(KEY, 2)))


def test_a_trainer_needs_a_key():
    trainer = trainer_of("own algorithm")
    for function in (trainer, trainer.start, trainer.init):
        with pytest.raises(shoal.ShoalError, match=r"^key=None is not a random key; give one such as"):
            function(None)


def test_a_state_stays_as_it_is_after_its_last_update():
    trainer = trainer_of("own algorithm", num_updates=1)
    last, _ = trainer.update(trainer.start(KEY))
    state, record = trainer.update(last)
    assert_equal(state.learner, last.learner)
    assert int(state.updates) == 1
    assert np.isnan(record["episodes"])


def test_a_state_with_a_fault_stays_as_it_is():
    trainer = shoal.make_train(Breaks(reward=1.0, within=100.0), BanditConfig(), **SMALL, num_updates=20)
    state = trainer.start(KEY)
    for _ in range(20):
        state, record = trainer.update(state)
    assert int(state.updates) == int(state.fault) < 20
    assert np.isnan(record["episodes"])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.quick("own algorithm")
def test_a_loop_of_ones_own_makes_the_rollout_of_a_run(name):
    """By the trainer's parts: the first learner, actions, and steps of the environments."""
    trainer = trainer_of(name)
    learner = trainer.init(KEY)
    assert_equal(learner, trainer.start(KEY).learner)
    policy, memory = trainer.policy(learner), trainer.algorithm.memory((4,))

    @jax.jit
    def rollout(key):
        def step(carry, key):
            worlds, timestep, memory = carry
            act_key, step_key = jax.random.split(key)
            memory, action, _ = trainer.act(policy, memory, timestep, act_key)
            worlds, timestep = trainer.batch.step(worlds, action, step_key)
            return (worlds, timestep, memory), (timestep.reward, timestep.last)

        start = *trainer.batch.reset(key), memory
        return jax.lax.scan(step, start, jax.random.split(key, 8))[1]

    rewards, lasts = rollout(KEY)
    assert rewards.shape[:2] == lasts.shape == (8, 4)
    assert np.isfinite(rewards).all()


# ---- the callback


@pytest.mark.full
def test_a_callback_receives_each_evaluation_of_each_member():
    """As it is called, under jit, vmap and two of them, in NumPy; what is learned stays the same."""
    settings = {"num_evals": 3, "keep_episodes": True}
    told = []
    trainer = trainer_of("own algorithm", on_evaluation=told.append, **settings)
    silent = trainer_of("own algorithm", **settings)
    keys = jax.random.split(KEY, 4).reshape(2, 2)
    compiled = jax.jit(trainer, compiler_options=trainer.compiler_options)
    for function, quiet, key in (
        (trainer, silent, KEY),
        (compiled, silent, KEY),
        (jax.vmap(trainer), jax.vmap(silent), keys[0]),
        (jax.jit(jax.vmap(jax.vmap(trainer))), jax.jit(jax.vmap(jax.vmap(silent))), keys),
    ):
        told.clear()
        learner, metrics = jax.block_until_ready(function(key))
        assert_equal((learner, metrics), quiet(key))
        members = jax.random.key_data(key).reshape(-1, 2).tolist()
        found = {(tuple(x.key.tolist()), x.updates): x for x in told}
        assert set(found) == {(tuple(k), n) for k in members for n in (0, 2, 4, 6)}
        assert len(told) == len(found)
        flat = {
            name: np.asarray(x).reshape(-1, *x.shape[key.ndim :])
            for name, x in metrics["evaluations"].items()
        }
        for (words, updates), evaluation in found.items():
            assert evaluation.steps == 32 * updates
            place = members.index(list(words)), updates // 2
            for name, x in evaluation.metrics.items():
                assert type(x) is np.ndarray
                np.testing.assert_array_equal(x, flat[name][place])
    told.clear()
    jax.jit(trainer.evaluate)(trainer.start(KEY))
    assert [x.updates for x in told] == [0]


def fails(evaluation):
    if evaluation.updates == 2:
        raise ValueError("a mistake of mine")


@pytest.mark.full
def test_what_a_callback_raises_is_one_error_with_the_users_line(caplog):
    trainer = trainer_of("own algorithm", num_evals=3, on_evaluation=fails)
    sentence = r"^fails failed in .*test_stepwise.py, line \d+: ValueError: a mistake of mine"
    keys = jax.random.split(KEY, 2)
    for call in (lambda: trainer(KEY), lambda: jax.vmap(trainer)(keys)):
        with pytest.raises(shoal.ShoalError, match=sentence) as raised:
            call()
        assert "in fails" in raised.value.frames
    with pytest.raises(Exception, match=r"in fails\n.*ValueError: a mistake of mine"):
        jax.block_until_ready(jax.jit(trainer)(KEY))
    assert not caplog.records
    with pytest.raises(shoal.ShoalError, match="on_evaluation=3 is not a function of an Evaluation"):
        trainer_of("own algorithm", on_evaluation=3)
