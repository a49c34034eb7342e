"""Jumanji's environments: equal to Jumanji's own `step`, step by step, and what Shoal adds to them."""

import functools
import importlib.util
import socket
from typing import NamedTuple

import jax
import numpy as np
import pytest
from killed_runs import assert_killed_run_ends_the_same
from random_play import played

import shoal
from shoal.base.errors import ShoalError
from shoal.envs import describing, make, parameters_of
from shoal.envs.dm_like.dm_adapter import JUMANJI
from shoal.envs.suites import packages
from shoal.envs.suites.families import FAMILIES
from shoal.envs.wrappers import TimeLimit
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("jumanji") is None, reason="Jumanji is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Jumanji's own code
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
]

PREFIX = "jumanji/"
SNAKE = "jumanji/Snake-v1"
LIMIT = 15  # short, so that random play reaches it

TIMED = [  # Jumanji's class has a time limit, which is set out of reach
    "Cleaner-v0",
    "Maze-v0",
    "PacMan-v1",
    "RobotWarehouse-v0",
    "RubiksCube-v0",
    "RubiksCube-partly-scrambled-v0",
    "SlidingTilePuzzle-v0",
    "Snake-v1",
    "Tetris-v0",
]
UNTIMED = [
    "BinPack-v2",
    "CVRP-v1",
    "FlatPack-v0",
    "Game2048-v1",
    "GraphColoring-v1",
    "JobShop-v0",
    "Knapsack-v1",
    "Minesweeper-v0",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "TSP-v1",
]
DRAWN = [x for x in [*TIMED, *UNTIMED] if x != "GraphColoring-v1"]  # which takes 10 s
REFUSED = [
    "Connector-v3",
    "LevelBasedForaging-v0",
    "SearchAndRescue-v0",
    "MultiCVRP-v0",
]


def jumanji_make(name, **parameters):
    """Jumanji's own object of a name."""
    with packages.undisturbed():
        return packages.import_suite(PREFIX).make(name, **parameters)


def entry(observation, name):
    """The entry of one of Jumanji's observations, such as `agent_position.row`."""
    return functools.reduce(getattr, name.split("."), observation) if name else observation


def check_shown(shown, mask, own, terminated):
    """A Shoal observation and its mask have every array of Jumanji's observation, and no more.

    A batch allows all actions where an episode terminated, and where none is legal, of a part or of all, all are.
    """
    entries = shown if isinstance(shown, dict) else {"": shown}
    for name, x in entries.items():
        np.testing.assert_allclose(x, np.asarray(entry(own, name), np.float32), 1e-6, 1e-6, err_msg=name)
    assert len(jax.tree.leaves(own)) == len(entries) + (mask is not None)
    if mask is not None:
        of_parts = np.asarray(own.action_mask)
        of_all = of_parts.reshape(mask.shape)
        opened = [x | ~x.any(-1, keepdims=True) for x in (of_all, of_parts)]
        everywhere = np.reshape(terminated, np.shape(terminated) + (1,) * (mask.ndim - np.ndim(terminated)))
        assert any((mask == (x.reshape(mask.shape) | everywhere)).all() for x in opened)


def as_numbers(x):
    """An array of NumPy's, of a key its data."""
    return np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


class Counts(NamedTuple):
    """What happened in the steps that were compared."""

    steps: int
    terminated: int
    truncated: int


def compare(env, own, limit, num_envs=8, steps=150):
    """Compare random legal steps with those of Jumanji's own object, from equal states."""
    actions, states, timesteps = played(env, num_envs, steps)
    states = getattr(states, "env", states)  # behind the time limit
    before, after = (jax.tree.map(lambda x, i=i: x[i : i + steps], timesteps) for i in (0, 1))
    own_states = jax.tree.map(lambda x: x[:steps], states)
    own_actions, sizes = actions, np.asarray(own.action_spec.num_values)
    if sizes.ndim and actions.ndim == 2:  # the number of a combination
        own_actions = np.stack(np.unravel_index(actions, sizes), -1)
    own_actions = own_actions.astype(own.action_spec.dtype)
    own_after, made = jax.jit(jax.vmap(jax.vmap(own.step)))(own_states, own_actions)
    is_step = ~before.last  # after a last time-step, Shoal resets

    def selected(tree):
        return jax.tree.map(lambda x: as_numbers(x)[is_step], tree)

    made, after, own_after = selected(made), selected(after), selected(own_after)
    check_shown(after.observation, after.action_mask, made.observation, after.terminated)
    np.testing.assert_allclose(after.reward, made.reward, rtol=1e-6, atol=1e-6)
    is_last = np.asarray(made.step_type) == 2
    np.testing.assert_array_equal(after.last, is_last)
    np.testing.assert_array_equal(after.discount, np.where(after.truncated, 1, made.discount))
    jax.tree.map(np.testing.assert_array_equal, selected(jax.tree.map(lambda x: x[1:], states)), own_after)
    for name, x in after.info.items():
        np.testing.assert_allclose(x, np.asarray(made.extras[name], np.float32), 1e-6, 1e-6, err_msg=name)
    if limit:
        count = own_after.step_count
        assert (count[after.truncated] == limit).all()
        assert (count <= limit).all() and after.last[count == limit].all()
    else:
        assert not after.truncated.any()
    return Counts(int(is_step.sum()), int(after.terminated.sum()), int(after.truncated.sum()))


@pytest.mark.full
def test_steps_of_snake_are_those_of_jumanji():
    size = {"num_rows": 3, "num_cols": 3}
    env, own = make(SNAKE, max_episode_steps=40, **size), jumanji_make("Snake-v1", time_limit=40, **size)
    counts = compare(env, own, 40, 8, 120)
    assert counts.truncated and counts.terminated


@pytest.mark.full
@pytest.mark.parametrize("name", TIMED)
@pytest.mark.rare(*TIMED[4:])
@pytest.mark.rare("RobotWarehouse-v0", "PacMan-v1")
def test_steps_are_those_of_jumanji_and_its_limit_truncates(name):
    env = make(PREFIX + name, max_episode_steps=LIMIT)
    assert compare(env, jumanji_make(name, time_limit=LIMIT), LIMIT).truncated


@pytest.mark.full
@pytest.mark.parametrize("name", UNTIMED)
@pytest.mark.rare(*UNTIMED[:-4])
@pytest.mark.rare("Sudoku-v0", "Sudoku-very-easy-v0")
def test_steps_of_tasks_that_end_by_themselves_are_those_of_jumanji(name):
    counts = compare(make(PREFIX + name), jumanji_make(name), None)
    assert counts.terminated or name == "Game2048-v1"


@pytest.mark.slow
def test_a_task_whose_state_has_the_length_of_the_limit_keeps_it():
    env, own = make("jumanji/MMST-v0"), jumanji_make("MMST-v0")
    assert env.world.time_limit == own.time_limit == 70
    assert compare(env, own, 70).truncated
    assert "time_limit" not in parameters_of("jumanji/MMST-v0")


@pytest.mark.full
@pytest.mark.parametrize("name", [*TIMED, *UNTIMED])
@pytest.mark.rare(*TIMED[4:], *UNTIMED)
@pytest.mark.rare("Cleaner-v0", "Maze-v0")
def test_a_reset_is_that_of_jumanji(name):
    key = jax.random.key(3)
    env = make(PREFIX + name)
    _, timestep = jax.jit(env.reset)(key)
    _, own = jax.jit(jumanji_make(name).reset)(key)
    check_shown(timestep.observation, timestep.action_mask, own.observation, False)
    assert timestep.first


@pytest.mark.slow
def test_every_name_is_listed_and_is_made_or_refused():
    registered = set(packages.import_suite(PREFIX, "jumanji.registration")._REGISTRY)
    assert set(FAMILIES[PREFIX].names) == registered == {*TIMED, *UNTIMED, *REFUSED, "MMST-v0", "Sokoban-v0"}
    for name in REFUSED:
        with pytest.raises(ShoalError, match=r"only environments of one agent|neither discrete nor controls"):
            make(PREFIX + name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Snake-v1", "Maze-v0", "Tetris-v0", "Cleaner-v0"])
def test_the_checker_finds_no_more_than_there_is(name):
    rules = [finding.rule for finding in shoal.check(make(PREFIX + name), keys=4, steps=32)]
    assert rules == (
        ["key-reused"] if name == "Tetris-v0" else []
    )  # it keeps the key that reset has drawn from


def test_the_time_limit_is_shoals_and_jumanjis_is_out_of_reach():
    env = make(SNAKE)
    assert isinstance(env, TimeLimit) and JUMANJI.limit_of("Snake-v1", {}) == 4000
    assert env.env.world.time_limit == 2**31 - 1
    assert "time_limit" not in parameters_of(SNAKE)
    assert parameters_of(SNAKE)["num_rows"].default == 12


def test_spaces_are_of_what_is_observed():
    env = make(SNAKE, num_rows=6, num_cols=7)
    assert env.observation_space == Dict(
        {"grid": Box(-np.inf, np.inf, (6, 7, 5)), "step_count": Box(-np.inf, np.inf, ())}
    )
    assert env.action_space == Discrete(4)
    assert make("jumanji/Maze-v0").observation_space["agent_position.row"].shape == ()


@pytest.mark.full
def test_a_mask_of_combinations_makes_one_discrete_action():
    env = make("jumanji/Tetris-v0")
    assert env.action_space == Discrete(40)
    _, timestep = env.reset(jax.random.key(0))
    assert timestep.action_mask.shape == (40,)
    assert make("jumanji/Cleaner-v0").action_space == MultiDiscrete([4, 4, 4])


def test_an_object_is_adapted_with_its_limit_and_is_not_changed():
    world = jumanji_make("Snake-v1", num_rows=5, num_cols=5, time_limit=7)
    env = shoal.envs.registry.adapted(world)
    assert isinstance(env, TimeLimit) and env.max_steps == 7 and world.time_limit == 7
    assert env.observation_space["grid"].shape == (5, 5, 5)


def test_equal_parameters_make_equal_environments_which_are_written_down_and_made_again():
    env = make(SNAKE, num_rows=6)
    assert env == make(SNAKE, num_rows=6) != make(SNAKE) and hash(env) == hash(make(SNAKE, num_rows=6))
    description = describing.describe_named(SNAKE, {"num_rows": 6})
    assert describing.rebuild(describing.description_to_json(description), {})[0] == env


def test_a_class_of_ones_own_is_made_by_its_import_name():
    env = make("jumanji/jumanji.environments:Snake", num_rows=5, num_cols=5)
    assert env.observation_space["grid"].shape == (5, 5, 5)


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("jumanji/Snak-v1", {}, "there is no environment 'jumanji/Snak-v1'; did you mean 'jumanji/Snake-v1'"),
        ("jumanji/chess", {}, "there is no environment 'jumanji/chess'; there are BinPack-v2, "),
        (SNAKE, {"num_row": 5}, "jumanji/Snake-v1 has no parameter 'num_row'"),
        (SNAKE, {"num_rows": 6.5}, "jumanji/Snake-v1: num_rows=6.5"),
    ],
)
def test_wrong_names_and_parameters_are_named(name, parameters, sentence):
    with pytest.raises(ShoalError) as error:
        make(name, **parameters)
    assert sentence in str(error.value)


@pytest.mark.full
def test_tasks_of_several_agents_are_refused():
    with pytest.raises(
        ShoalError, match=r"jumanji/Connector has a reward for each of 10 agents; only environments"
    ):
        make("jumanji/Connector-v3")


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it connects to a server"))
    with pytest.raises(
        ShoalError, match=r"jumanji/Sokoban-v0 needs files that Jumanji downloads when it is made, "
    ):
        JUMANJI.world_of.__wrapped__("Sokoban-v0", ())
    assert not constants.HF_HUB_OFFLINE and not list(tmp_path.iterdir())


def check_picture(env):
    picture = env.render(jax.jit(env.reset)(jax.random.key(0))[0])
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    assert len(np.unique(picture)) > 1


@pytest.mark.full
def test_a_state_is_drawn_by_jumanjis_viewer_which_leaves_other_figures_alone():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    backend, mine = pyplot.get_backend(), pyplot.figure()
    check_picture(make(SNAKE, num_rows=5, num_cols=5))
    assert pyplot.get_fignums() == [mine.number] and pyplot.get_backend() == backend
    pyplot.close(mine)


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.rare(*DRAWN[4:])
@pytest.mark.rare("RobotWarehouse-v0", "PacMan-v1")
def test_each_task_is_drawn(name):
    pytest.importorskip("matplotlib")
    check_picture(make(PREFIX + name))


@pytest.mark.slow
def test_a_killed_run_ends_the_same(tmp_path):
    assert_killed_run_ends_the_same(tmp_path, f"{SNAKE} num_rows=6 num_cols=6")
