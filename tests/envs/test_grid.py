"""Grid worlds as environments: views, observations, rulesets as data, and the sentences for bad input."""

import dataclasses
import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xminigrid
from grid_oracle import converted, original_reset
from random_play import played
from random_rulesets import random_rulesets
from xminigrid.core.observation import minigrid_field_of_view
from xminigrid.wrappers import DirectionObservationWrapper, RulesAndGoalsObservationWrapper

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.envs.grid.engine.agent import Action
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.rules import RuleKind
from shoal.envs.grid.engine.tiles import FLOOR, Colour, Tile, cell
from shoal.envs.grid.rulesets.rulesets import NO_RULESET, Ruleset, ruleset, stack
from shoal.nets.encoders.parts import observation_parts

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "grid.md"
R1 = "XLand-MiniGrid-R1-9x9"
BALL, KEY, STAR = (Tile.BALL, Colour.RED), (Tile.KEY, Colour.RED), (Tile.STAR, Colour.BLUE)


def some_tasks(count):
    """Random rulesets."""
    return Ruleset(*(array[:count] for array in random_rulesets(np.random.default_rng(5))))


@pytest.mark.parametrize("size", [3, 7, pytest.param(31, marks=pytest.mark.slow)])
@pytest.mark.quick("7")
def test_walls_hide_what_the_originals_rule_says(size):
    name = "XLand-MiniGrid-R9-16x16"
    world = envs.make(name, view_size=size, see_through_walls=False)
    theirs = original_reset(name)(jax.random.split(jax.random.key(0), 300))
    rng = np.random.default_rng(0)
    grid = np.asarray(theirs.state.grid).copy()
    grid[rng.random(grid.shape[:3]) < 0.25] = (Tile.WALL, Colour.GREY)
    grid[rng.random(grid.shape[:3]) < 0.1] = (Tile.DOOR_OPEN, Colour.RED)
    theirs = theirs.replace(state=theirs.state.replace(grid=jnp.asarray(grid)))
    see = functools.partial(minigrid_field_of_view, height=size, width=size)
    expected = jax.jit(jax.vmap(see))(theirs.state.grid, theirs.state.agent)
    assert (np.asarray(expected)[..., 0] == 0).mean() > 0.2
    seen = jax.jit(jax.vmap(world.observe))(converted(world, theirs))
    np.testing.assert_array_equal(seen, expected)


def test_what_an_agent_is_told_is_what_the_originals_wrappers_tell():
    env, params = xminigrid.make(R1)
    env = RulesAndGoalsObservationWrapper(DirectionObservationWrapper(env))
    task = Ruleset(*(array[0] for array in some_tasks(1)))
    params = params.replace(ruleset=xminigrid.types.RuleSet(*map(jnp.asarray, task)))
    theirs = jax.jit(jax.vmap(lambda key: env.reset(params, key)))(jax.random.split(jax.random.key(0), 20))
    pocket = np.asarray([BALL, (0, 0)] * 10, np.uint8)
    agent = theirs.state.agent.replace(pocket=jnp.asarray(pocket))
    theirs = theirs.replace(state=theirs.state.replace(agent=agent))
    told = {f"observe_{name}": True for name in ("direction", "pocket", "goal", "rules")}
    world = envs.make(R1, ruleset=task, **told)
    ours = jax.jit(jax.vmap(world.observe))(converted(world, theirs))
    assert jax.vmap(world.observation_space.contains)(ours).all()
    np.testing.assert_array_equal(ours["view"], theirs.observation["img"])
    np.testing.assert_array_equal(ours["direction"], np.argmax(theirs.observation["direction"], -1))
    np.testing.assert_array_equal(ours["goal"], theirs.observation["goal_encoding"])
    np.testing.assert_array_equal(ours["rules"], theirs.observation["rule_encoding"])
    np.testing.assert_array_equal(ours["pocket"], pocket)


@pytest.mark.slow
def test_one_world_a_batch_and_a_batch_of_batches_are_the_same():
    worlds = jax.vmap(lambda task: envs.make(R1, ruleset=task))(some_tasks(48))
    keys = jax.random.split(jax.random.key(0), 48)
    actions = jax.random.choice(jax.random.key(1), jnp.asarray([0, 0, 0, 1, 3, 4]), (25, 48))

    def play(world, key, actions):
        state, first = world.reset(key)
        return jax.lax.scan(lambda state, action: world.step(state, action, key), state, actions), first

    batch = jax.jit(jax.vmap(play, (0, 0, 1)))(worlds, keys, actions)
    one = jax.jit(lambda *each: jax.lax.map(lambda x: play(*x), each))(worlds, keys, actions.T)
    same = functools.partial(np.testing.assert_allclose, rtol=1e-6)  # a reward may round otherwise
    jax.tree.map(same, batch, one)

    def nested(x):
        return x.reshape(6, 8, *x.shape[1:])

    inputs = jax.tree.map(nested, (worlds, keys, actions.T))
    twice = jax.jit(jax.vmap(jax.vmap(play)))(*inputs)
    jax.tree.map(same, jax.tree.map(nested, batch), twice)


def world_with(task, things, holding=0):
    """A 9 x 9 room, the agent in its middle looking up, things at places relative to it, something held."""
    world = envs.make(R1, ruleset=task)
    state = jax.jit(lambda key: world.reset(key)[0])(jax.random.key(0))
    middle = world.board.place(4, 4)
    cells = jnp.where(state.cells > 0, state.cells, 0)
    for (row, column), thing in things.items():
        cells = cells.at[world.board.place(4 + row, 4 + column)].set(cell(*thing))
    held = jnp.asarray(cell(*holding) if holding else 0, jnp.uint16)
    agent = state.agent._replace(place=jnp.int32(middle), direction=jnp.int32(0), pocket=held)
    return world, state._replace(cells=cells, agent=agent)


@pytest.mark.full
def test_rules_follow_each_other_within_a_step():
    task = ruleset(
        goal=(GoalKind.AGENT_NEAR_UP, *STAR),
        rules=[
            (RuleKind.TILE_NEAR, *BALL, *KEY, *KEY),  # the ball beside the key: the key stays, the ball goes
            (RuleKind.NONE,),
            (RuleKind.AGENT_NEAR_RIGHT, *KEY, *BALL),
            (RuleKind.AGENT_NEAR_RIGHT, *BALL, *STAR),  # what the rule before it has made
            (RuleKind.AGENT_NEAR_RIGHT, *KEY, *BALL),  # nothing is left of it by now
        ],
    )
    world, state = world_with(task, {(-1, 1): KEY, (0, 1): KEY}, holding=BALL)
    states = jax.tree.map(lambda x: jnp.stack([x, x]), state)
    after, timestep = jax.jit(jax.vmap(world.step, (0, None, None)))(
        states, Action.PUT_DOWN, jax.random.key(0)
    )
    at = world.board.place
    assert not timestep.last.any()
    for cells in after.cells:
        assert cells[at(3, 4)] == FLOOR
        assert cells[at(3, 5)] == cell(*KEY)
        assert cells[at(4, 5)] == cell(*STAR)
    assert (after.agent.pocket == 0).all()


def test_reaching_the_goal_pays_less_the_later_and_terminates():
    task = ruleset(goal=(GoalKind.AGENT_HOLD, *STAR))
    _, state = world_with(task, {(-1, 0): STAR})
    step = jax.jit(lambda world, steps: world.step(state._replace(steps=steps), Action.PICK_UP, None)[1])
    for limit, steps, reward in ((243, 0, 1 - 0.9 / 243), (243, 242, 0.1), (None, 10_000, 1.0)):
        timestep = step(envs.make(R1, ruleset=task, max_episode_steps=limit), jnp.int32(steps))
        np.testing.assert_allclose(timestep.reward, reward, rtol=1e-6)
        assert timestep.terminated and not timestep.truncated
        assert timestep.info["success"] == 1


def test_episodes_are_cut_but_not_ended_by_time():
    world = envs.make("MiniGrid-Playground", max_episode_steps=3)
    state, timestep = jax.jit(world.reset)(jax.random.key(0))
    step = jax.jit(lambda state: world.step(state, Action.TURN_LEFT, None))
    for _ in range(3):
        assert not timestep.last
        state, timestep = step(state)
    assert timestep.truncated and timestep.discount == 1 and timestep.info["success"] == 0


@pytest.mark.full
def test_several_rulesets_are_drawn_from_and_one_can_be_played_again():
    tasks = some_tasks(3)
    world = envs.make(R1, ruleset=tasks, observe_goal=True)
    state, first = jax.jit(jax.vmap(world.reset))(jax.random.split(jax.random.key(0), 600))
    counts = np.bincount(state.task, minlength=3)
    assert counts.min() > 150
    np.testing.assert_array_equal(first.observation["goal"], tasks.goal[np.asarray(state.task)])
    again, first_again = jax.jit(jax.vmap(world.again))(state, jax.random.split(jax.random.key(1), 600))
    np.testing.assert_array_equal(again.task, state.task)
    jax.tree.map(np.testing.assert_array_equal, again.rules, state.rules)
    np.testing.assert_array_equal(first_again.observation["goal"], first.observation["goal"])
    assert (again.agent.place != state.agent.place).mean() > 0.9
    assert first_again.first.all()


@pytest.mark.slow
def test_a_batch_of_rulesets_keeps_going():
    world = envs.make(R1, ruleset=some_tasks(20), max_episode_steps=9)
    _, _, timesteps = played(world, 40, 40)
    assert (timesteps.first[1:] == timesteps.last[:-1]).all()
    assert timesteps.terminated.any() and timesteps.truncated.any()
    np.testing.assert_array_equal(timesteps.info["success"], timesteps.terminated)
    assert jax.jit(jax.vmap(jax.vmap(world.observation_space.contains)))(timesteps.observation).all()


def test_rulesets_are_filled_up_with_zeros():
    one = ruleset((GoalKind.AGENT_NEAR, *BALL), [(RuleKind.AGENT_HOLD, *BALL, *KEY)], [BALL])
    two = ruleset(init_tiles=[KEY, STAR])
    both = stack([one, two])
    assert (both.goal.shape, both.rules.shape, both.init_tiles.shape) == ((2, 5), (2, 1, 7), (2, 2, 2))
    np.testing.assert_array_equal(both.goal[1], 0)
    np.testing.assert_array_equal(both.rules[0, 0], (1, 3, 1, 7, 1, 0, 0))
    np.testing.assert_array_equal(both.init_tiles[0], (BALL, (0, 0)))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ruleset(goal=(15,)), ("goal of kind 15", "0 to 14")),
        (lambda: ruleset(rules=[(12, 3, 1)]), ("rule of kind 12", "0 to 11")),
        (lambda: ruleset(rules=[(3, *BALL, 3, 12)]), ("colour 12", "0 to 11")),
        (lambda: ruleset(goal=(4, *BALL)), ("tile 0", "give 1 to 12")),
        (lambda: ruleset(goal=(1,) * 6), ("at most 5 numbers",)),
        (lambda: ruleset(init_tiles=[(300, 1)]), ("0 to 255",)),
        (lambda: ruleset(goal=(1, 3.7, 1)), ("goal [1, 3.7, 1]", "all whole")),
        (lambda: ruleset(goal=(1, np.nan, 1)), ("goal [1, nan, 1]", "all whole")),
        (lambda: ruleset(rules=[3]), ("rule 3", "all whole")),
    ],
)
def test_unknown_kinds_tiles_and_colours_are_named(make, words):
    with pytest.raises(ShoalError) as error:
        make()
    assert all(word in str(error.value) for word in words), error.value


def things(count):
    """A ruleset of so many things."""
    return NO_RULESET._replace(init_tiles=np.full((count, 2), BALL, np.uint8))


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        (R1, {"ruleset": things(49)}, ("49 things", "50 free cells", "R1 of 9 x 9 has 49")),
        (R1, {"ruleset": NO_RULESET._replace(goal=np.zeros(4, np.uint8))}, ("goal is uint8[4]", "uint8[5]")),
        (R1, {"ruleset": NO_RULESET._replace(goal=np.asarray([99] * 5, np.uint8))}, ("kind 99",)),
        (R1, {"ruleset": Ruleset(*(array[None, None] for array in NO_RULESET))}, ("uint8[1, 1, 5]",)),
        (R1, {"ruleset": (1, 2, 3)}, ("where uint8[5] is needed",)),
        (R1, {"rooms": "R3"}, ("rooms='R3'", "R1, R2, R4, R6, R9")),
        (R1, {"rooms": "R4", "height": 10, "width": 10}, ("height=10", "odd")),
        (R1, {"rooms": "R9", "height": 12, "width": 12}, ("height=12", "multiple of 3")),
        (R1, {"rooms": "R2", "height": 11}, ("height=11, width=9", "square")),
        ("MiniGrid-DoorKey-5x5", {"width": 4}, ("width=4", "at least 5 and at most 255")),
        ("MiniGrid-Playground", {"num_objects": 225}, ("num_objects=225", "more than 224")),
        (R1, {"view_size": 4}, ("view_size=4", "odd number of 3 or more")),
        (R1, {"view_size": 33, "see_through_walls": False}, ("view_size=33 is more than 31", "walls=True")),
        (R1, {"image_tile_size": 3}, ("image_tile_size=3", "at least 4 and at most 64")),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(name, parameters, words):
    with pytest.raises(ShoalError) as error:
        envs.make(name, **parameters).reset(jax.random.key(0))
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", [R1, "XLand-MiniGrid-R9-25x25"])
def test_what_the_agent_is_told_is_within_its_space(name):
    """Goals at a cell, at the last one and beyond the grid; one-hot features are made for the values of a space."""
    reset = jax.jit(lambda world: world.reset(jax.random.key(0)))
    for row, column in ((2, 3), (8, 8), (200, 250)):
        goal = np.asarray((GoalKind.TILE_ON_POSITION, *BALL, row, column), np.uint8)
        world = envs.make(name, ruleset=NO_RULESET._replace(goal=goal), observe_goal=True, observe_rules=True)
        _, timestep = reset(world)
        told = {name: np.asarray(part) for name, part in timestep.observation.items()}
        assert world.observation_space.contains(told)
        beyond = row == 200
        assert (told["goal"][3:] == ((world.height, world.width) if beyond else (row, column))).all()
    sizes = {part.path: part.sizes for part in observation_parts(world.observation_space, cells=True)}
    assert sizes["goal",][0] == len(GoalKind) and sizes["rules",][0] == len(RuleKind)


def test_as_many_things_as_there_are_free_cells_are_placed():
    world = envs.make(R1, ruleset=things(48))
    state, _ = jax.jit(world.reset)(jax.random.key(0))
    assert (np.asarray(state.cells) == cell(*BALL)).sum() == 48
    assert state.cells[state.agent.place] == FLOOR


def test_the_page_gives_the_numbers_of_tiles_and_colours():
    rows = re.findall(r"^\| (\d+) \| ([\w ]+)[^|]* \| *(\d*) *\| *(\w*) *\|$", PAGE.read_text(), re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(Tile)
    colours = [row[3] for row in rows if row[2]]
    assert colours[1:] == [colour.name.lower() for colour in Colour][1:]
    for (_, words, *_), tile in list(zip(rows, Tile, strict=True))[1:]:
        assert set(words.split()) >= set(tile.name.lower().replace("hex", "hexagon").split("_"))


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in envs.environments() if "MiniGrid-" in name])
def test_every_number_of_a_world_has_bounds_in_which_its_defaults_lie(name):
    world = envs.make(name)
    bounds = struct.bounds_of(type(world))
    numbers = [field.name for field in dataclasses.fields(world) if field.type in (int, "int")]
    assert {"height", "width", "view_size", "image_tile_size"} <= set(numbers) <= set(bounds)
    for number in numbers:
        assert bounds[number].contains(getattr(world, number))
        outside = bounds[number].low - 1
        with pytest.raises(ShoalError, match=f"{number}={outside} is out of bounds"):
            envs.make(name, **{number: outside}).check()
