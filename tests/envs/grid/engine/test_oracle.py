"""The engine is xminigrid's: from its states, with the same actions, everything that follows is equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grid_oracle import NAMES, converted, differing, original_reset, original_seen, original_step, our_seen

from shoal import envs
from shoal.config import struct

FORWARD, PICK_UP, PUT_DOWN, TOGGLE = 0, 3, 4, 5
NUM_STEPS = 36  # 44 environments x 128 x 36 are more than 200,000 steps


def purposeful(rng, seen):
    """Mostly what can be done with the cell in front (the last row but one of the view), else anything."""
    middle = seen.observation.shape[2] // 2
    tile = seen.observation[:, -2, middle, 0]
    fitting = np.full(len(tile), FORWARD)
    fitting[np.isin(tile, (8, 9))] = TOGGLE
    fitting[np.isin(tile, (3, 4, 5, 7, 11, 12))] = PICK_UP
    actions = rng.integers(0, 6, len(tile))
    return np.where(rng.random(len(tile)) < 0.5, fitting, actions).astype(np.int32)


def of_one_shape():
    """The names in groups that share the original's compiled step."""
    groups = {}
    for name in NAMES:
        groups.setdefault(original_step(name), []).append(name)
    return list(groups.values())


def test_the_names_are_those_of_the_original():
    names = [name for name in envs.environments() if "MiniGrid-" in name and not name.endswith("-RGB")]
    assert names == NAMES
    assert len(NAMES) == 44


@pytest.mark.parametrize(
    "num_envs", [pytest.param(16, id="some"), pytest.param(128, id="all", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("names", of_one_shape(), ids=lambda names: names[0].removeprefix("XLand-"))
@pytest.mark.quick("MiniGrid-MemoryS8-some")
@pytest.mark.rare(
    *(f"MiniGrid-DoorKey-{size}-some" for size in ("6x6", "8x8", "16x16")),
    *(f"MiniGrid-{name}-some" for name in ("BlockedUnlockPickUp", "FourRooms", "MemoryS16", "MemoryS64")),
    *(f"MiniGrid-R1-{size}-some" for size in ("11x11", "13x13", "15x15", "17x17")),
    *("MiniGrid-R6-19x19-some", "MiniGrid-R9-16x16-some"),
)
@pytest.mark.rare("MiniGrid-R1-9x9-some", "MiniGrid-R9-25x25-some")
def test_every_step_is_that_of_the_original(names, num_envs):
    for name in names:
        terminated, truncated = compare(name, num_envs)
        assert truncated
        assert terminated or name not in ("MiniGrid-Empty-5x5", "MiniGrid-MemoryS8", "MiniGrid-Unlock")


_compiled = {}


def our_step_of(world):
    """Our step of a batch; worlds of one kind and size that differ in their rooms share one."""
    kind = (type(world), world.height, world.width, world.max_episode_steps)
    return _compiled.setdefault(kind, jax.jit(jax.vmap(world.step, (0, 0, None))))


@jax.jit
def started_again(ended, start, now):
    """The start where an episode has ended."""
    return struct.where(ended, start, now)


def compare(name, num_envs):
    """Steps both side by side; returns how many episodes terminated and how many were truncated."""
    rng = np.random.default_rng(NAMES.index(name))
    world = envs.make(name)
    limit = world.max_episode_steps
    theirs = original_reset(name)(jax.random.split(jax.random.key(NAMES.index(name)), num_envs))
    steps = rng.integers(0, limit - NUM_STEPS, num_envs)
    steps[: num_envs // 4] = limit - 1 - rng.integers(0, NUM_STEPS, num_envs // 4)  # these run out of time
    theirs = theirs.replace(state=theirs.state.replace(step_num=jnp.asarray(steps, jnp.int32)))
    state, seen = converted(world, theirs), original_seen(theirs)
    start = (theirs, state)
    our_step = our_step_of(world)
    ends = np.zeros(2, int)
    for _ in range(NUM_STEPS):
        action = purposeful(rng, seen)
        theirs = original_step(name)(theirs, action, limit)
        state, timestep = our_step(state, action, jax.random.key(0))
        seen = original_seen(theirs)
        differ = differing(our_seen(world, state, timestep), seen)
        assert not differ, f"{name}: {differ}"
        ends += seen.terminated.sum(), seen.truncated.sum()
        theirs, state = started_again(seen.terminated | seen.truncated, start, (theirs, state))
    return ends
