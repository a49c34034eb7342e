"""The real xminigrid beside Shoal's engine: its states as ours, and both stepped by the same actions."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import xminigrid
from xminigrid.core.actions import take_action

from shoal.envs.grid.engine import goals, rules
from shoal.envs.grid.engine.agent import Agent
from shoal.envs.grid.engine.goals import GoalKind
from shoal.envs.grid.engine.tiles import pack
from shoal.envs.grid.engine.world import NO_PLACE, GridState

NAMES = sorted(xminigrid.registered_environments())


@functools.cache
def _make(name):
    return xminigrid.make(name)


def original_reset(name, ruleset=None):
    """The original's reset of a batch of keys, compiled; a ruleset has a leading axis."""
    env, params = _make(name)
    if ruleset is None:
        return jax.jit(jax.vmap(lambda key: canonical(env.reset(params, key))))
    made = xminigrid.types.RuleSet(*ruleset)

    def reset(key, one):
        return canonical(env.reset(params.replace(ruleset=one), key))

    return jax.jit(lambda keys: jax.vmap(reset)(keys, made))


def canonical(tree):
    """The same values in types that do not depend on where they come from, so that a step compiles once."""

    def cast(x):
        x = jnp.asarray(x)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return x
        wide = jnp.issubdtype(x.dtype, jnp.integer) and x.dtype != jnp.uint8
        return jax.lax.convert_element_type(x, jnp.int32 if wide else x.dtype)

    return jax.tree.map(cast, tree)


@functools.cache
def _original_step(kind, height, width, view_size):
    """The original's step; it depends on no more than this, so that names share what is compiled."""
    name = next(
        name
        for name in NAMES
        if (type(_make(name)[0]).step is kind)
        and (_make(name)[1].height, _make(name)[1].width, _make(name)[1].view_size)
        == (height, width, view_size)
    )
    env, params = _make(name)

    def step(timestep, action, max_steps):
        return canonical(env.step(params.replace(max_steps=max_steps), timestep, action))

    return jax.jit(jax.vmap(step, (0, 0, None)))


def original_step(name):
    """The original's step of a batch: (timestep, action, max_steps) to the next time-step."""
    env, params = _make(name)
    return _original_step(type(env).step, params.height, params.width, params.view_size)


def converted(world, timestep):
    """A batch of the original's time-steps as our states."""
    return jax.jit(jax.vmap(functools.partial(_converted, world)))(timestep.state)


def _converted(world, state):
    board = world.board
    agent = Agent(
        jnp.asarray(board.place(*state.agent.position), jnp.int32),
        jnp.asarray(state.agent.direction, jnp.int32),
        pack(state.agent.pocket),
    )
    goal, pitfall = goals.decode(board, state.goal_encoding), jnp.asarray(NO_PLACE, jnp.int32)
    if hasattr(state.carry, "success_pos"):
        goal = goals.make(GoalKind.AGENT_ON_POSITION, place=board.place(*state.carry.success_pos))
        pitfall = jnp.asarray(board.place(*state.carry.failure_pos), jnp.int32)
    margin, stride = board.margin, board.stride
    rows = jnp.pad(pack(state.grid), ((margin, margin), (margin, 0))).reshape(-1)
    assert rows.shape == ((board.height + 2 * margin) * stride,)
    return GridState(
        cells=jnp.pad(rows, (0, margin)), agent=agent, steps=jnp.asarray(state.step_num, jnp.int32), goal=goal,
        rules=rules.decode(state.rule_encoding) if hasattr(world, "ruleset") else (), pitfall=pitfall,
        task=jnp.zeros((), jnp.int32),
    )  # fmt: skip


class Seen(NamedTuple):
    """All that is compared after a step, NumPy arrays [N, ...]."""

    observation: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    grid: np.ndarray
    row: np.ndarray
    column: np.ndarray
    direction: np.ndarray
    pocket: np.ndarray


def original_seen(timestep):
    """What the original shows; an episode that ends both ways has terminated."""
    last, agent = np.asarray(timestep.last()), timestep.state.agent
    terminated = last & (np.asarray(timestep.discount) == 0)
    arrays = (
        timestep.observation, timestep.reward, terminated, last & ~terminated, timestep.state.grid,
        agent.position[:, 0], agent.position[:, 1], agent.direction, agent.pocket,
    )  # fmt: skip
    return Seen(*map(np.asarray, arrays))


def our_seen(world, state, timestep):
    """What our engine shows."""
    board = world.board
    row, column = np.divmod(np.asarray(state.agent.place) - board.place(0, 0), board.stride)
    cells = np.asarray(state.cells)
    margin = board.margin
    rows = cells[:, :-margin].reshape(len(cells), -1, board.stride)
    assert not rows[:, :margin].any() and not rows[:, -margin:].any() and not rows[:, :, :margin].any()
    grid = rows[:, margin:-margin, margin:]
    arrays = (
        timestep.observation, timestep.reward, timestep.terminated, timestep.truncated,
        np.stack([grid & 255, grid >> 8], -1), row, column, state.agent.direction,
        np.stack([state.agent.pocket & 255, state.agent.pocket >> 8], -1),
    )  # fmt: skip
    return Seen(*map(np.asarray, arrays))


def differing(ours, theirs):
    """The names of what is not equal; rewards may differ by one rounding."""
    return [
        name
        for name in Seen._fields
        if not (
            np.allclose(ours.reward, theirs.reward, rtol=0, atol=1.2e-7)
            if name == "reward"
            else np.array_equal(getattr(ours, name), getattr(theirs, name))
        )
    ]


def without_rules(timestep, action):
    """The grid and the pocket after the original's action alone, for a batch."""
    grid, agent, _ = jax.vmap(take_action)(timestep.state.grid, timestep.state.agent, action)
    return grid, agent.pocket
