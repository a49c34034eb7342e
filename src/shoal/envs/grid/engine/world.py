"""The engine: one step of a grid world of any task; a task defines how an episode starts."""

import abc
import enum
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.grid import pictures
from shoal.envs.grid.engine import adjacency, goals, rules
from shoal.envs.grid.engine.agent import Action, Agent, handle_object, move
from shoal.envs.grid.engine.board import Board, direction_offset, read, write
from shoal.envs.grid.engine.goals import Goal
from shoal.envs.grid.engine.rule_application import RuleInputs, apply_rules
from shoal.envs.grid.engine.rules import RuleTable
from shoal.envs.grid.engine.tiles import NOTHING, NUM_COLOURS, NUM_TILES, unpack
from shoal.envs.grid.engine.views import view, view_cells, visible_grid_cells
from shoal.types import Array, PyTree
from shoal.types.spaces import Box, Dict, Discrete, Space

NO_PLACE = -1  # the place of an object that does not exist
REWARD_DECAY = 0.9  # the share of the reward that an episode of full length loses
MAX_SIDE = 255  # a goal's row and column are bytes
MIN_VIEW, MAX_VIEW = 3, 2 * MAX_SIDE + 1  # cells; the largest view shows a whole grid from its edge
MAX_OPAQUE_VIEW = 31  # cells; with walls that hide, a row of a view is one number of 32 bits
MIN_TILE_SIZE, MAX_TILE_SIZE = 4, 64  # pixels of a tile's side in an image; smaller tiles look alike
RENDER_TILE_SIZE = 32  # largest tile's side in pixels, in an image of the whole grid
RENDER_SIDE = 1280  # largest side in pixels of such an image


class GridState(NamedTuple):
    """State of a world during an episode."""

    cells: Array  # uint16, in the board's memory
    agent: Agent
    steps: Array  # [], int32
    goal: Goal
    rules: RuleTable | tuple[()]  # () where the task has none
    pitfall: Array  # [], int32: the place that ends the episode without success
    task: Array  # [], int32: the index of the ruleset of this episode


def side_length(default: int, *, smallest: int) -> Any:
    """Declare a field that is the height or the width of a grid, in cells, walls included."""
    return parameter(default=default, low=smallest, high=MAX_SIDE)


@environment
class GridWorld(abc.ABC):
    """The base class of all grid worlds.

    The reward is `1 - 0.9 steps / max_episode_steps` when the agent reaches the goal, which terminates the
    episode, and 0 otherwise; an episode of `max_episode_steps` steps is truncated. Without a limit (None) the
    reward at the goal is 1.

    The observation is the agent's view, `[tile, colour]` of view_size x view_size cells, uint8, with the
    agent in the middle of the last row, looking up. With any of the `observe_` flags it is a dictionary:
    `view` is the agent's view, `direction` its direction (0 to 3 for up, right, down, left), `pocket` the
    object that it holds, `[tile, colour]`, and `goal` and `rules` are the encodings of the task. With
    `observe_image` the view is an RGB image that includes the agent, uint8 [view_size * image_tile_size,
    view_size * image_tile_size, 3].

    `info["success"]` is 1 on the step that reaches the goal.
    """

    height: int = side_length(9, smallest=3)
    width: int = side_length(9, smallest=3)
    view_size: int = parameter(default=7, low=MIN_VIEW, high=MAX_VIEW)
    max_episode_steps: int | None = parameter(default=None, low=1, high=LARGEST_INDEX)
    see_through_walls: bool = True
    observe_image: bool = False
    image_tile_size: int = parameter(default=8, low=MIN_TILE_SIZE, high=MAX_TILE_SIZE)
    observe_direction: bool = False
    observe_pocket: bool = False
    observe_goal: bool = False
    observe_rules: bool = False

    action_space = Discrete(len(Action))
    info_summaries = MappingProxyType({"success": "max"})

    frames_per_second = 10  # of films of an episode

    # Parts of the engine that a task needs; the others are not computed.
    changes_cells = True  # whether objects can be picked up, opened or transformed
    shows_goal = True  # whether the goal's encoding may be observed; otherwise it reads as the kind NONE

    @abc.abstractmethod
    def start(self, key: Array) -> GridState:
        """Make the state in which an episode starts."""

    @property
    def board(self) -> Board:
        """The sizes of the grid in memory."""
        return Board(self.height, self.width, self.view_size - 1)

    @property
    def num_rules(self) -> int:
        """The number of rules in the observation, padding included."""
        return 1

    @property
    def observation_space(self) -> Space:
        """The space of the view, alone or in a dictionary with the entries that the flags add.

        Raises:
          ShoalError: a size is out of its bounds.
        """
        self._check_bounds()  # before arrays of that size are made
        parts: dict[str, Space] = {
            "view": self._view_space(),
            "direction": Discrete(4),
            "pocket": cell_space(),
            "goal": Box(0, self._max_bytes(goals.GoalKind, goals.ENCODED_SIZE), dtype=np.uint8),
            "rules": Box(
                0,
                np.tile(self._max_bytes(rules.RuleKind, rules.ENCODED_SIZE), (self.num_rules, 1)),
                dtype=np.uint8,
            ),
        }
        extra = self._extra_entries()
        return Dict({name: parts[name] for name in ("view", *extra)}) if extra else parts["view"]

    def _max_bytes(self, kinds: type[enum.IntEnum], length: int) -> np.ndarray:
        """Return the greatest byte at each index of a goal or rule: its kind, then tiles, colours, rows and columns."""
        max_byte = max(NUM_TILES - 1, NUM_COLOURS - 1, self.height, self.width)
        return np.asarray([max(kinds)] + [max_byte] * (length - 1))

    def _view_space(self) -> Box:
        if not self.observe_image:
            return cell_space(self.view_size, self.view_size)
        pixels = self.view_size * self.image_tile_size
        return Box(0, 255, (pixels, pixels, 3), np.uint8)

    def _extra_entries(self) -> tuple[str, ...]:
        names = ("direction", "pocket", "goal", "rules")
        return tuple(name for name in names if getattr(self, f"observe_{name}"))

    def reset(self, key: Array) -> tuple[GridState, TimeStep]:
        """Start a new episode.

        Raises:
          ShoalError: the view or the grid has a size that is not possible.
        """
        self.check()
        state = self.start(key)
        return state, restart(self.observe(state), info={"success": jnp.zeros((), jnp.float32)})

    def step(self, state: GridState, action: Array, key: Array) -> tuple[GridState, TimeStep]:
        """Apply one action, then the rules, then the goal; deterministic, the key is not used."""
        action = jnp.asarray(action, jnp.int32)
        state, success = self._apply_action(state, action)
        fails = state.agent.place == state.pitfall
        reward: Array | float = 1.0
        timed_out: Array | bool = False
        if self.max_episode_steps is not None:
            reward = 1.0 - REWARD_DECAY * (state.steps / self.max_episode_steps)
            timed_out = state.steps >= self.max_episode_steps
        return state, transition(
            self.observe(state),
            reward=jnp.where(success, reward, 0.0),
            terminated=success | fails,
            truncated=timed_out,
            info={"success": success.astype(jnp.float32)},
        )

    def _apply_action(self, state: GridState, action: Array) -> tuple[GridState, Array]:
        """Return the state after an action and its consequences, and whether the goal is reached."""
        board, cells = self.board, state.cells
        front_place = state.agent.place + direction_offset(board, state.agent.direction)
        front = read(cells, front_place)
        agent = move(board, state.agent, front, action)
        if self.changes_cells:
            agent, front = handle_object(agent, front, action)
            cells = write(cells, front_place, front)
        neighbourhood, flags = None, adjacency.action_flags(action, agent.direction)
        if state.rules:
            places = adjacency.neighbourhood_places(board, agent.place, agent.direction)
            rule_inputs = RuleInputs(state.rules, places, flags)
            cells, neighbourhood, pocket = apply_rules(rule_inputs, cells, agent.pocket)
            agent = agent._replace(pocket=pocket)
        success = goals.is_reached(state.goal, cells, agent, neighbourhood, flags)
        return state._replace(cells=cells, agent=agent, steps=state.steps + 1), success

    def observe(self, state: GridState) -> PyTree:
        """Return the observation of a state."""
        agent_view = self._agent_view(state)
        extra = self._extra_entries()
        if not extra:
            return agent_view
        parts = {"view": agent_view}
        if "direction" in extra:
            parts["direction"] = state.agent.direction
        if "pocket" in extra:
            parts["pocket"] = unpack(state.agent.pocket)
        if "goal" in extra:
            encoded = goals.encode(self.board, state.goal)
            parts["goal"] = encoded if self.shows_goal else jnp.zeros_like(encoded)
        if "rules" in extra:
            no_rules = jnp.zeros((self.num_rules, rules.ENCODED_SIZE), jnp.uint8)
            parts["rules"] = rules.encode(state.rules) if state.rules else no_rules
        return parts

    def _agent_view(self, state: GridState) -> Array:
        """Return the agent's view, as cells or as an image."""
        view_arguments = (self.board, state.cells, state.agent, self.view_size, self.see_through_walls)
        if not self.observe_image:
            return view(*view_arguments)
        cells = view_cells(*view_arguments).reshape(self.view_size, self.view_size)
        return pictures.image_of_view(cells, self.image_tile_size)

    def render(self, state: GridState) -> Array:
        """Draw the whole grid, the agent's view lighter: uint8 [H * size, W * size, 3], at most 32 pixels per tile.

        A pure function, which can be compiled and mapped over as `step` can.
        """
        agent, board = state.agent, self.board
        size = max(MIN_TILE_SIZE, min(RENDER_TILE_SIZE, RENDER_SIDE // max(self.height, self.width)))
        is_visible = visible_grid_cells(board, state.cells, agent, self.view_size, self.see_through_walls)
        cells, position = board.grid(state.cells), board.position(agent.place)
        return pictures.image_of_grid(cells, position, agent.direction, is_visible, size)

    def _check_bounds(self) -> None:
        for name, bounds in struct.bounds_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                struct.check_bounds(name, value, bounds)

    def check(self) -> None:
        """Validate grid, view and image sizes.

        Raises:
          ShoalError: the view, the grid or an image has a size that is not possible.
        """
        self._check_bounds()
        if self.view_size % 2 == 0:
            raise ShoalError(f"view_size={self.view_size} is not an odd number of {MIN_VIEW} or more")
        if self.view_size > MAX_OPAQUE_VIEW and not self.see_through_walls:
            raise ShoalError(
                f"view_size={self.view_size} is more than {MAX_OPAQUE_VIEW}, the most where walls hide what is "
                "behind them; give less, or see_through_walls=True"
            )


def cell_space(*shape: int) -> Box:
    """Return the space of tiles and colours, uint8 [*shape, 2]."""
    return Box(0, np.broadcast_to((NUM_TILES - 1, NUM_COLOURS - 1), (*shape, 2)), dtype=np.uint8)


def make_state(
    cells: Array | np.ndarray,
    place: Array | int,
    direction: Array | int,
    goal: Goal,
    *,
    rule_table: RuleTable | tuple[()] = (),
    pitfall: Array | int = NO_PLACE,
    task: Array | int = 0,
) -> GridState:
    """Make the state at the start of an episode, with an empty pocket."""
    return GridState(
        cells=jnp.asarray(cells, jnp.uint16),
        agent=Agent(
            jnp.asarray(place, jnp.int32), jnp.asarray(direction, jnp.int32), jnp.asarray(NOTHING, jnp.uint16)
        ),
        steps=jnp.zeros((), jnp.int32),
        goal=goal,
        rules=rule_table,
        pitfall=jnp.asarray(pitfall, jnp.int32),
        task=jnp.asarray(task, jnp.int32),
    )
