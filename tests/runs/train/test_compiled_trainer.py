"""The host's side: the budget, the points, who is told what, and where the time goes."""

import dataclasses
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, assert_equal, values

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.engine import loop
from shoal.engine.nonfinite import NOWHERE, STOPPED
from shoal.engine.population import member_layout as populations
from shoal.engine.run import Run
from shoal.envs.probes import ActionReward
from shoal.nets.networks import NetworkConfig
from shoal.records.history import History, Seconds
from shoal.records.members import members_of
from shoal.records.run_config import RunConfig
from shoal.runs.train import compiled_trainer, pieces
from shoal.types import Mean

RUN = RunConfig(
    seeds=2, seed=5, num_envs=4, num_steps=8, total_steps=7 * 32, num_evals=2, log_every=64, eval_episodes=8
)


class Recorder:
    """A listener that writes everything down."""

    def __init__(self):
        self.calls = []

    def on_training(self, updates, metrics, seconds, steps_per_second):
        assert seconds > 0
        assert steps_per_second > 0
        self.calls.append(("trained", updates, metrics))

    def on_evaluation(self, updates, metrics, episodes):
        self.calls.append(("evaluated", updates, metrics))


def supervisor_of(run, recorder):
    """One that lets a run go on to its end."""
    never = {"next_stop.return_value": None, "wants_to_stop.return_value": False}
    return MagicMock(run=run, reporter=recorder, **never)


@envs.environment
class WithEmptyState(envs.Wrapper):
    """An environment whose state has an array without entries."""

    def reset(self, key):
        state, timestep = self.env.reset(key)
        return (state, jnp.zeros((3, 0))), timestep

    def step(self, state, action, key):
        inner, timestep = self.env.step(state[0], action, key)
        return (inner, state[1]), timestep

    def inner_state(self, state):
        return state[0]


def train_population(env, run=RUN, initialise=lambda population: population, groups=1):
    layout = populations.lay_out(jax.devices()[:groups], run.seeds, groups)
    recorder = Recorder()
    supervisor = supervisor_of(run, recorder)
    compiled_run = compiled_trainer.compile_run(
        compiled_trainer.member_keys(members_of(range(run.seed, run.seed + run.seeds))),
        compiled_trainer.stack_members(env, run.seeds),
        compiled_trainer.stack_members(BanditConfig(), run.seeds),
        run.total_updates,
        compiled_trainer.program_settings(run, groups, run.score, None),
        layout,
        initialise=initialise,
    )
    absolute = pieces.compile_absolute(compiled_run, 10 * run.eval_episodes)
    result = pieces.train_population(compiled_run, supervisor, History())
    return pieces.with_absolute_metric(result, absolute, supervisor), recorder.calls


@pytest.mark.quick("three")
@pytest.mark.parametrize(
    ("config", "seeds", "devices", "groups"),
    [
        (PPOConfig(), 1, 1, 1),
        (PPOConfig(), 3, 1, 1),
        (PPOConfig(), 2, 2, 1),
        (PPOConfig(), 1, 2, 2),
        (PPOConfig(), 1, 1, 2),
        (PPOConfig(network=NetworkConfig(core="gru", core_size=8)), 1, 1, 1),
    ],
    ids=["one", "three", "on two devices", "groups on two devices", "groups on one", "recurrent"],
)
def test_an_update_is_traced_once(monkeypatch, config, seeds, devices, groups):
    """The shapes of a run's metrics and its training share the trace, which takes half a second and more."""
    run = dataclasses.replace(RUN, seeds=seeds)
    layout = populations.lay_out(jax.devices()[:devices], seeds, groups)
    settings = compiled_trainer.program_settings(run, groups, run.score, None)
    arguments = (
        compiled_trainer.member_keys(members_of(range(seeds))),
        compiled_trainer.stack_members(ActionReward(), seeds),
        compiled_trainer.stack_members(config.resolved(), seeds),
        jnp.full(seeds, run.total_updates, jnp.int32),
    )
    loop._update_traced_once.clear_cache()
    traces, roll_out = [], loop.rollout
    monkeypatch.setattr(loop, "rollout", lambda *arguments: traces.append(1) or roll_out(*arguments))
    start = populations.start_program(loop.start_training, settings, layout)
    shapes = populations.population_shapes(start, arguments, settings, layout)
    populations.run_program(loop.train, settings, layout).trace(shapes, jnp.int32(1), jnp.bool_(True))
    assert len(traces) == 1


@pytest.fixture(scope="module")
def done():
    return train_population(ActionReward())


@pytest.mark.full
def test_the_whole_budget_is_trained_and_told(done):
    result, calls = done
    assert [(kind, updates) for kind, updates, _ in calls] == [
        ("evaluated", 0),
        ("trained", 2),
        ("trained", 4),
        ("evaluated", 4),
        ("trained", 6),
        ("trained", 7),
        ("evaluated", 7),
    ]
    assert isinstance(result.population, Run)
    assert result.population.updates.tolist() == [7, 7]
    assert result.population.learner.local.shape == (2, 4)
    assert [updates for updates, _ in result.history.evaluations] == [0, 4, 7]
    assert_equal(result.final, result.history.evaluations[-1][1])


def test_it_learns_and_every_number_is_one_a_seed(done):
    result, calls = done
    for _, _, metrics in calls:
        assert {np.shape(x) for x in metrics.values()} == {(2,)}
    episodes = sum(metrics["episodes"] for kind, _, metrics in calls if kind == "trained")
    # A chunk's number is a mean over its updates; chunks of 2, 2, 2 and 1 have 16 episodes an update: each of
    # the 8 steps of 4 environments is an episode's only step, or the ignored one after it.
    np.testing.assert_allclose(episodes, 4 * 16)
    assert result.final["return_mean"].tolist() == [1.0, 1.0]
    assert result.absolute["return_mean"].tolist() == [1.0, 1.0]
    first = calls[0][2]["return_mean"]
    assert set(first.tolist()) <= {-1.0, 1.0}


def test_a_member_that_trains_no_further_has_no_metrics(done):
    """However the members are mapped: its sums may be those of the last interval in which it was trained."""
    population, recorder = done[0].population, Recorder()
    history = History(updates=7, logged=6, seconds=Seconds(0.0, 1.0, 0.0))
    for fault in (STOPPED, 7):
        faulty = dataclasses.replace(population, fault=jnp.array([NOWHERE, fault]))
        pieces._report_training(faulty, dataclasses.replace(history), supervisor_of(RUN, recorder))
        _, _, metrics = recorder.calls[-1]
        for name, x in pieces.mean_metrics(population.metrics).items():
            np.testing.assert_array_equal(metrics[name], [x[0], np.nan])


@pytest.mark.full
def test_a_state_without_entries_is_trained_on_two_devices():
    run = RunConfig(seeds=1, num_envs=2, num_steps=4, total_steps=16, num_evals=1, eval_episodes=4)
    result, _ = train_population(WithEmptyState(ActionReward()), run, groups=2)
    assert result.population.updates.tolist() == [2] and result.population.state.env[1].shape == (1, 2, 3, 0)


def test_the_time_is_told_apart(done):
    result, _ = done
    assert all(seconds > 0 for seconds in result.history.seconds)
    assert result.history.seconds._fields == ("compile", "train", "evaluate")


@pytest.mark.full
def test_a_population_may_begin_from_elsewhere():
    seen = []

    def initialise(population):
        seen.append(values(population)["updates"].tolist())
        shared = population.learner.shared
        better = shared._replace(actions=jnp.broadcast_to(jnp.array([0.0, 50.0]), shared.actions.shape))
        return dataclasses.replace(population, learner=population.learner._replace(shared=better))

    run = RunConfig(seeds=1, num_envs=2, num_steps=4, total_steps=8, num_evals=0, eval_episodes=4)
    result, calls = train_population(ActionReward(), run, initialise)
    assert seen == [[0]]
    assert calls[0][2]["return_mean"].tolist() == [1.0]
    assert result.population.learner.shared.actions[0, 1] > 49


def test_keys_depend_on_their_seed_alone():
    two, three = (compiled_trainer.member_keys(members_of(seeds)) for seeds in ((4, 5), (3, 4, 5)))
    assert_equal(two, three[1:])
    assert_equal(two[0], jax.random.key(4))


def test_numbers_are_stacked_and_cast():
    stacked = compiled_trainer.stack_members(Halves(bonus=2), 3)
    assert stacked.bonus.shape == (3,)
    assert stacked.bonus.dtype == jnp.float32
    assert stacked.short == 2  # static


def test_a_mean_of_nothing_is_nan_without_a_warning():
    metrics = {"a": Mean(jnp.array([6.0, 0.0]), jnp.array([3.0, 0.0]))}
    np.testing.assert_array_equal(pieces.mean_metrics(metrics)["a"], [2.0, np.nan])


def test_settings_are_the_runs():
    run = RunConfig(num_envs=8, reset="pool", reset_pool=5, eval_mode="both", eval_max_steps=7)
    settings = compiled_trainer.program_settings(run, 2, "return_mean", None)
    assert (settings.num_envs, settings.groups, settings.pool_size, settings.reset_policy) == (
        8,
        2,
        5,
        "pool",
    )
    assert (settings.eval_mode, settings.eval_max_steps) == ("both", 7)
    assert compiled_trainer.program_settings(RunConfig(), 1, "return_mean", None).pool_size == 0


def test_the_keys_of_all_seeds_are_those_of_each():
    for first in (0, 7, 2**31 - 2, 2**32 - 4):
        keys = compiled_trainer.member_keys(members_of(range(first, first + 4)))
        for k in range(4):
            np.testing.assert_array_equal(*map(jax.random.key_data, (keys[k], jax.random.key(first + k))))
