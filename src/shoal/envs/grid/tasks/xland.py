"""XLand-MiniGrid: worlds whose objects, rules and goal are data (Nikulin et al. 2023)."""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.envs.base import environment, parameter
from shoal.envs.grid.engine import goals, rules
from shoal.envs.grid.engine.board import write
from shoal.envs.grid.engine.tiles import FLOOR, NOTHING, Tile, coloured_cells, pack
from shoal.envs.grid.engine.world import MAX_VIEW, MIN_VIEW, GridState, GridWorld, make_state
from shoal.envs.grid.rulesets import rulesets, selection
from shoal.envs.grid.rulesets.rulesets import NO_RULESET, Ruleset
from shoal.envs.grid.tasks import layouts
from shoal.envs.grid.tasks.layouts import COLOURS, choose, random_bits, sample_distinct, uniform_below
from shoal.types import Array, TimeStep, restart

# The walls of each kind of world, and its number of doors.
ROOMS = {
    "R1": (layouts.room, 0),
    "R2": (layouts.two_rooms, 1),
    "R4": (layouts.four_rooms, 4),
    "R6": (layouts.six_rooms, 6),
    "R9": (layouts.nine_rooms, 12),
}


@environment
class XLand(GridWorld):
    """Rooms with objects: find out by which rules the objects turn into those that the goal requires.

    Attributes:
      rooms: "R1", "R2", "R4", "R6" or "R9", the number of rooms; doors between them are closed, not locked.
      ruleset: the task, as data; or several tasks with a leading axis, one of which is drawn for every
        episode. A stack of worlds with one task each can be mapped over. A text selects rulesets of a file,
        such as "bench.npz:train" or "small-1m:17" (see `selection`).
    """

    rooms: str = "R1"
    view_size: int = parameter(default=5, low=MIN_VIEW, high=MAX_VIEW)
    ruleset: Ruleset = NO_RULESET

    def __post_init__(self) -> None:
        """Read the rulesets that a selector names. Only a caller's values are read, not a tree that is rebuilt."""
        object.__setattr__(self, "ruleset", selection.resolve_rulesets(self.ruleset))

    @staticmethod
    def portable_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the same parameters with a selector that stays valid later and from any directory."""
        selector = parameters.get("ruleset")
        portable = {"ruleset": selection.portable_selector(selector)} if isinstance(selector, str) else {}
        return {**parameters, **portable}

    @property
    def num_rules(self) -> int:
        """The rows of the ruleset, padding included."""
        if np.ndim(getattr(self.ruleset, "rules", 0)) <= rulesets.STACKED_RULE_AXES:
            rulesets.check_shapes(self.ruleset)  # a stack of worlds, whose sizes may be asked too, has more
        return self.ruleset.rules.shape[-2]

    @property
    def num_rulesets(self) -> int | None:
        """The number of tasks; None for one without a leading axis."""
        return self.ruleset.goal.shape[0] if self.ruleset.goal.ndim > 1 else None

    def start(self, key: Array) -> GridState:
        """Draw one of the tasks, and different free cells for objects and agent."""
        bits = random_bits(key, 1 + self._num_random_numbers())
        task = (
            jnp.zeros((), jnp.int32)
            if self.num_rulesets is None
            else uniform_below(bits[0], self.num_rulesets)
        )
        return self._start_task(task, bits[1:])

    def again(self, state: GridState, key: Array) -> tuple[GridState, TimeStep]:
        """Start a new episode of the task that a state belongs to, as a trial of several episodes needs."""
        state = self._start_task(state.task, random_bits(key, self._num_random_numbers()))
        return state, restart(self.observe(state), info={"success": jnp.zeros((), jnp.float32)})

    def check(self) -> None:
        """Validate rooms, sizes and rulesets.

        Raises:
          ShoalError: there are no such rooms, they do not fit, a ruleset is not valid, or it has more objects than
            the world has free cells.
        """
        GridWorld.check(self)
        if self.rooms not in ROOMS:
            raise ShoalError(
                f"rooms={self.rooms!r} is not one of {', '.join(ROOMS)}{nearest(self.rooms, ROOMS)}"
            )
        layouts.check_rooms(self.rooms, self.height, self.width)
        rulesets.check(self.ruleset)
        free = len(layouts.free_places(self.board, self._walls()))
        things = self.ruleset.init_tiles.shape[-2]
        if things + 1 > free:
            raise ShoalError(
                f"the ruleset has {things} things (rows of init_tiles), which with the agent need {things + 1} "
                f"free cells, but {self.rooms} of {self.height} x {self.width} has {free}"
            )

    def _walls(self) -> np.ndarray:
        return ROOMS[self.rooms][0](self.height, self.width)

    def _num_random_numbers(self) -> int:
        """Count the random numbers of an episode: two per door, one per object, two for the agent."""
        return 2 * ROOMS[self.rooms][1] + self.ruleset.init_tiles.shape[-2] + 2

    def _start_task(self, task: Array, bits: Array) -> GridState:
        board, walls, doors = self.board, self._walls(), ROOMS[self.rooms][1]
        ruleset = self.ruleset
        if self.num_rulesets is not None:
            ruleset = Ruleset(*(jnp.asarray(array)[task] for array in ruleset))
        things = pack(ruleset.init_tiles)
        cells = jnp.asarray(board.flat(walls))
        if doors:
            colours = choose(bits[doors : 2 * doors], COLOURS)
            cells = write(cells, self._door_places(bits[:doors]), coloured_cells(Tile.DOOR_CLOSED, colours))
        free = layouts.free_places(board, walls)
        ranks = sample_distinct(bits[2 * doors : -1], len(free))
        places = jnp.asarray(free)[jnp.stack(ranks)]
        placed = jnp.where(things == NOTHING, FLOOR, things)
        cells = write(cells, places[1:], placed)
        return make_state(
            cells,
            places[0],
            uniform_below(bits[-1], 4),
            goals.decode(board, ruleset.goal),
            rule_table=rules.decode(ruleset.rules),
            task=task,
        )

    def _door_places(self, bits: Array) -> Array:
        match self.rooms:
            case "R2":
                return layouts.two_rooms_door(self.board, bits)
            case "R4":
                return layouts.four_rooms_doors(self.board, bits)
            case "R6":
                return jnp.asarray(layouts.six_rooms_doors(self.board))
            case _:
                return layouts.nine_rooms_doors(self.board, bits)
