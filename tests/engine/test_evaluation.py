"""Evaluation: exactly N whole episodes, none favoured, frozen at their ends; the best policy and its score."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from tiny_bandit import BanditConfig
from tiny_worlds import Halves, assert_equal, populate, values

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.engine import evaluation
from shoal.engine.run import ENV_AXIS, Stream, stream_key
from shoal.types import spec_of

EPISODES = 64
SETTINGS = {"eval_episodes": EPISODES, "num_envs": 2, "num_steps": 4}


@functools.partial(jax.jit, static_argnames=("max_steps", "greedy"))
def play(policy, key, max_steps, greedy):
    env = Halves(bonus=0.5)
    result = evaluation.play_episodes(
        env,
        BanditConfig().algorithm(spec_of(env)),
        policy,
        key,
        episodes=EPISODES,
        max_steps=max_steps,
        greedy=greedy,
    )
    return result, evaluation.summarise_episodes(result)


def evaluate_policy(max_steps=50, greedy=True, policy=(0.0, 1.0), key=0):
    """Whole episodes of a policy, and what they are summed up to."""
    return jax.device_get(play(jnp.array(policy), jax.random.key(key), max_steps, greedy))


@pytest.fixture(scope="module")
def whole():
    """Every episode to its end; the policy takes action 1, which gives 1.5 a step."""
    return evaluate_policy()


def test_each_environment_plays_exactly_one_whole_episode(whole):
    result, _ = whole
    long = result.info["is_long"] == 1
    assert 0.3 < long.mean() < 0.7
    np.testing.assert_array_equal(result.length, np.where(long, 20, 2))
    np.testing.assert_array_equal(result.returned, np.where(long, 30, 3))
    np.testing.assert_array_equal(result.terminated, ~long)
    np.testing.assert_array_equal(result.truncated, long)


def test_short_episodes_are_not_favoured(whole):
    """The share of long episodes is that of long starts; counting the first N to end would give a tenth."""
    _, metrics = whole
    reset_key, _ = jax.random.split(jax.random.key(0))
    state, _ = jax.jit(jax.vmap(Halves().reset))(jax.random.split(reset_key, EPISODES))
    share = float((state.ends_after == 20).mean())
    assert metrics["length_mean"] == pytest.approx(2 + 18 * share, abs=1e-5)
    assert metrics["return_mean"] == pytest.approx(1.5 * (2 + 18 * share), abs=1e-5)
    assert metrics["terminated"] == pytest.approx(1 - share)
    assert metrics["truncated"] == pytest.approx(share)
    assert metrics["unfinished"] == pytest.approx(0, abs=1e-6)


def test_the_summary_is_numpys(whole):
    result, metrics = whole
    for name, x in (("return", result.returned), ("length", result.length)):
        for how in ("mean", "median", "std", "min", "max"):
            np.testing.assert_allclose(metrics[f"{name}_{how}"], getattr(np, how)(x), rtol=1e-5)


def test_info_is_summed_up_as_the_environment_declares(whole):
    """The info of a start belongs to no step, and what an ended environment says is not heard (it is NaN)."""
    result, metrics = whole
    length = result.length
    expected = {
        "is_long": length == 20,
        "clock_last": length,
        "clock_sum": length * (length + 1) / 2,
        "clock_mean": (length + 1) / 2,
        "below_zero_max": -np.ones(EPISODES),
        "odd_sum": length / 2,
        "odd_mean": np.full(EPISODES, 0.5),
    }
    assert expected.keys() == result.info.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(result.info[name], x, err_msg=name)
        np.testing.assert_allclose(metrics[f"info_{name}"], np.mean(x), rtol=1e-6, err_msg=name)


def test_a_summary_that_there_is_not_is_one_sentence():
    """Not a sum in silence: a misspelt mean would be a number of another size."""

    @envs.environment
    class Misspelt(Halves):
        info_summaries = {"clock_last": "last", "not_in_info": "maen"}  # noqa: RUF012

    algorithm = BanditConfig().algorithm(spec_of(Misspelt()))
    with pytest.raises(ShoalError) as error:
        jax.eval_shape(
            lambda key: evaluation.play_episodes(
                Misspelt(), algorithm, jnp.zeros(2), key, episodes=2, max_steps=3, greedy=True
            ),
            jax.random.key(0),
        )
    assert str(error.value) == (
        "info_summaries['not_in_info'] is 'maen'; 'last', 'sum', 'mean' or 'max' would be right; "
        "did you mean 'mean'?"
    )


def test_the_cap_leaves_episodes_unfinished():
    result, metrics = evaluate_policy(max_steps=10)
    long = result.info["is_long"] == 1
    np.testing.assert_array_equal(result.length, np.where(long, 10, 2))
    assert not (result.truncated | (result.terminated & long)).any()
    assert metrics["unfinished"] == pytest.approx(long.mean())
    assert metrics["truncated"] == 0


def test_a_sampled_policy_samples():
    result, _ = evaluate_policy(greedy=False, policy=(0.0, 0.0))
    share = (result.returned / result.length - 1) / 0.5  # of action 1
    assert share.sum() / EPISODES == pytest.approx(0.5, abs=0.1)
    assert len(np.unique(share)) > 5
    again, _ = evaluate_policy(greedy=False, policy=(0.0, 0.0))
    np.testing.assert_array_equal(result.returned, again.returned)
    other, _ = evaluate_policy(greedy=False, policy=(0.0, 0.0), key=1)
    assert (result.returned != other.returned).any()


@pytest.fixture(scope="module")
def trials():
    """Trials of three episodes of the policy that takes action 1, and what they are summed up to."""
    env = envs.Trial(Halves(bonus=0.5, long=5), 3)

    @jax.jit
    def play(key):
        algorithm = BanditConfig().algorithm(spec_of(env))
        policy = jnp.array((0.0, 1.0))
        result = evaluation.play_episodes(
            env, algorithm, policy, key, episodes=EPISODES, max_steps=50, greedy=True
        )
        return result, evaluation.summarise_episodes(result)

    return jax.device_get(play(jax.random.key(1)))


@pytest.mark.full
def test_trials_are_played_to_the_end_of_their_last_episode(trials):
    result, metrics = trials
    length = result.info["length_of_episode"]
    assert set(np.unique(length)) == {2, 5}
    np.testing.assert_array_equal(length.sum(1), result.length)
    np.testing.assert_allclose(result.info["return_of_episode"], 1.5 * length)
    np.testing.assert_allclose(result.returned, 1.5 * result.length)
    np.testing.assert_array_equal(result.info["is_long_of_episode"], length == 5)
    np.testing.assert_array_equal(result.truncated, length[:, 2] == 5)  # as the last episode ended
    np.testing.assert_array_equal(result.terminated, length[:, 2] == 2)
    np.testing.assert_array_equal(result.info["episode_index"], 2)
    assert metrics["unfinished"] == pytest.approx(0, abs=1e-6)


def test_each_episode_of_a_trial_is_reported_by_its_index(trials):
    """Mean, median and 20th percentile over the trials; the numbers are NumPy's."""
    result, metrics = trials
    hows = {"mean": np.mean, "median": np.median, "p20": lambda x: np.percentile(x, 20)}
    for name in ("return_of_episode", "length_of_episode", "is_long_of_episode", "odd_mean_of_episode"):
        values = np.asarray(result.info[name], np.float64)
        np.testing.assert_allclose(metrics[f"info_{name}"], values.mean(), rtol=1e-6)
        for index in range(3):
            for how, function in hows.items():
                np.testing.assert_allclose(
                    metrics[f"info_{name}_{index}_{how}"], function(values[:, index]), rtol=1e-6
                )
    assert len({float(metrics[f"info_return_of_episode_{index}_mean"]) for index in range(3)}) > 1
    assert not any(name.startswith("info_clock_last_0") for name in metrics)  # a number has no index


def longest_share(episodes):
    return {"share_of_twenty": jnp.mean(episodes.length == 20.0)}


def prefers_long(metrics):
    return metrics["share_of_twenty"] - 1.0


@functools.cache
def untrained():
    population, _ = populate(Halves(bonus=1.0), BanditConfig(), (0,), **SETTINGS)
    return jax.tree.map(lambda x: x[0], population)


def evaluated(**settings):
    """An untrained run evaluated with other settings."""
    run = untrained()
    run = dataclasses.replace(run, settings=run.settings._replace(**settings))
    run, metrics = jax.jit(evaluation.evaluate)(run)
    return run, {name: float(x) for name, x in metrics.items()}


@pytest.mark.full
def test_greedy_and_sampled_side_by_side():
    _, both = evaluated(eval_mode="both")
    _, greedy = evaluated(eval_mode="greedy")
    _, sampled = evaluated(eval_mode="sampled")
    assert {name: x for name, x in both.items() if not name.startswith("sampled_")} == greedy
    del sampled["score"]
    assert {name: both[f"sampled_{name}"] for name in sampled} == sampled
    assert both["score"] == both["return_mean"]
    assert set(both) == {*greedy, *(f"sampled_{name}" for name in sampled)}


@pytest.mark.full
def test_a_users_metrics_and_score():
    run, metrics = evaluated(eval_metrics=longest_share, score=prefers_long)
    assert metrics["share_of_twenty"] == metrics["info_is_long"]
    assert metrics["score"] == metrics["share_of_twenty"] - 1.0
    assert float(run.best.score) == metrics["score"]
    _, metrics = evaluated(score="length_min")
    assert metrics["score"] == metrics["length_min"] == 2.0


@pytest.mark.full
def test_a_seed_of_the_evaluations_fixes_their_episodes():
    """For every update and every member; without it each evaluation has its own."""
    start = untrained()

    def returns(updates, member, seed, best=False):
        run = dataclasses.replace(start, updates=jnp.int32(updates), key=jax.random.key(member))
        run = dataclasses.replace(run, settings=run.settings._replace(eval_seed=seed))
        play = jax.jit(evaluation.begin_evaluation, static_argnums=1)
        (episodes,) = play(run, evaluation.Subject(best=best, episodes=EPISODES))
        return values((episodes.state, episodes.key))

    fixed = returns(0, 0, 7)
    for changes in ((5, 0, 7), (0, 1, 7)):
        assert_equal(returns(*changes), fixed)
    for changes in ((0, 0, 8), (0, 0, -1), (0, 0, 7, True)):
        assert any((x != fixed[name]).any() for name, x in returns(*changes).items())
    assert any((x != returns(5, 0, -1)[name]).any() for name, x in returns(0, 0, -1).items())


@pytest.mark.full
def test_consecutive_episodes_are_reported_by_their_place():
    _, metrics = evaluated(eval_consecutive=2)
    places = [metrics[f"info_return_of_episode_{k}_mean"] for k in range(2)]
    assert metrics["return_mean"] == pytest.approx(sum(places)) == pytest.approx(metrics["score"])
    assert metrics["length_min"] >= 4.0


def test_an_unknown_score_names_the_nearest():
    with pytest.raises(ShoalError, match="score='return_men' is not a metric of an evaluation; did you"):
        evaluated(score="return_men")


@pytest.fixture(scope="module")
def improved():
    """Two seeds evaluated before and after each of six updates; their policies get worse after the third."""
    population, compiled = populate(
        Halves(bonus=1.0), BanditConfig(step_size=3.0), (0, 1), **SETTINGS | {"eval_mode": "sampled"}
    )
    history = []
    for update in range(7):
        policy = jax.device_get(population.learner.shared.actions)
        if update == 4:  # from here on what is good is punished
            bad = dataclasses.replace(population.environment, bonus=-population.environment.bonus)
            population = dataclasses.replace(population, environment=bad)
        population, metrics = compiled.evaluate(population)
        history.append((policy, jax.device_get(metrics)))
        population, _ = compiled.train(population, jnp.int32(1))
    return population, history


@pytest.mark.full
def test_the_best_policy_is_the_one_that_earned_the_score(improved):
    population, history = improved
    scores = np.stack([metrics["score"] for _, metrics in history])
    for k in range(2):
        best = int(np.argmax(scores[:, k]))  # the first of equals
        assert 0 < best < 4
        assert population.best.updates[k] == best
        assert population.best.score[k] == scores[best, k]
        np.testing.assert_array_equal(population.best.policy[k], history[best][0][k])


@pytest.mark.full
def test_evaluating_the_best_policy_again_gives_its_score(improved):
    population, _ = improved
    settings = population.settings

    @jax.jit
    def again(run, counter):
        env = dataclasses.replace(run.environment, bonus=jnp.abs(run.environment.bonus))
        algorithm = run.config.algorithm(spec_of(env))
        key = stream_key(run.key, Stream.EVALUATION, counter)
        return evaluation.evaluate_policy(env, algorithm, run.best.policy, key, settings, EPISODES)

    for k in range(2):
        run = jax.tree.map(lambda x, k=k: x[k], population)
        same = again(run, run.best.updates)
        np.testing.assert_allclose(same["return_mean"], run.best.score, rtol=1e-6)
        other = again(run, run.best.updates + 1)
        assert float(other["return_mean"]) != float(run.best.score)


@pytest.mark.full
def test_the_absolute_metric_has_keys_of_its_own(improved):
    """Equal policies are scored on other episodes than those that chose them."""
    population, _ = improved
    absolute = jax.jit(evaluation.evaluate, static_argnums=1)
    results = []
    for k in range(2):
        run = jax.tree.map(lambda x, k=k: x[k], population)
        run = dataclasses.replace(
            run, environment=dataclasses.replace(run.environment, bonus=jnp.float32(1.0))
        )
        subject = evaluation.Subject(best=True, episodes=EPISODES)
        _, metrics = absolute(run, subject)
        assert float(metrics["return_mean"]) != float(run.best.score)
        assert_equal(metrics, absolute(run, subject)[1])
        results.append(values(metrics))
    assert results[0]["return_mean"] != results[1]["return_mean"]  # each seed has its own


def test_nothing_is_best_before_the_first_evaluation():
    population, _ = populate(Halves(), BanditConfig(), (0, 1))
    assert population.best.score.tolist() == [-np.inf, -np.inf]
    assert population.best.updates.tolist() == [0, 0]


@pytest.mark.quick("scores1-2")
@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([1.0, 3.0, 2.0, 3.0], 1),  # the first of equals
        ([np.nan, np.nan, np.nan], 2),  # never finite: the newest
        ([np.nan, -5.0, np.nan, np.inf], 1),
        ([np.inf, 1.0, 2.0], 2),
        ([-np.inf, np.nan, -7.0, -9.0, -np.inf], 2),
    ],
)
def test_the_best_score_is_the_highest_finite_one(scores, best):
    kept, value = None, jnp.float32(-jnp.inf)
    for index, score in enumerate(jnp.asarray(scores, jnp.float32)):
        if evaluation.is_better(score, value):
            kept, value = index, score
    assert kept == best


@pytest.mark.parametrize(("episodes", "greedy"), [(5, True), (6, False)])
def test_devices_that_share_the_episodes_play_those_of_one_device(episodes, greedy):
    """Bit for bit, in two pieces, with an odd number, and where one key draws the actions of all episodes."""
    env = Halves(bonus=0.5)
    algorithm = BanditConfig().algorithm(spec_of(env))

    def play_pieces(policy, key, devices=1):
        running = evaluation.start_episodes(env, algorithm, key, episodes)
        for until in (3, 50):
            running = evaluation.continue_episodes(env, algorithm, policy, running, until, greedy, devices)
        return running._replace(key=())

    mesh = Mesh(jax.devices()[:2], (ENV_AXIS,))
    shared = functools.partial(play_pieces, devices=2)
    specs = {"mesh": mesh, "in_specs": (P(), P()), "out_specs": P(), "check_vma": False}
    policy, key = jnp.array((0.0, 1.0)), jax.random.key(3)
    alone = jax.jit(play_pieces)(policy, key)
    assert len(set(np.asarray(alone.results.length).tolist())) > 1 or not greedy
    assert_equal(alone, jax.jit(jax.shard_map(shared, **specs))(policy, key))
