"""Pictures of the classic environments, and how wrappers pass them on."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.base import Wrapper, can_render, environment, frames_per_second, render, restart, transition
from shoal.envs.classic.acrobot import Acrobot, AcrobotState
from shoal.envs.classic.cartpole import CartPole, CartPoleState
from shoal.envs.classic.mountain_car import MountainCar, MountainCarState
from shoal.envs.classic.mountain_car_continuous import MountainCarContinuous
from shoal.envs.classic.pendulum import Pendulum, PendulumState
from shoal.envs.classic.scenes import BACKGROUND, BLUE, DARK_GREY, GREEN, ORANGE
from shoal.types.spaces import Box, Discrete


def where(picture, colour):
    """The middle (x, y) of all pixels of a colour."""
    rows, columns = np.nonzero((picture == colour).all(-1))
    assert rows.size
    return columns.mean() + 0.5, rows.mean() + 0.5


@pytest.mark.parametrize("position", [-2.0, 0.0, 1.5])
@pytest.mark.parametrize("angle", [-0.2, 0.0, 0.15])
def test_a_cart_stands_where_it_is_and_its_pole_leans(position, angle):
    picture = render(CartPole(), CartPoleState(*jnp.asarray((position, 0.0, angle, 0.0))))
    scale = picture.shape[1] / (2.3 * 2.4)
    hinge_x, hinge_y = where(picture, BLUE)
    pole_x, pole_y = where(picture, ORANGE)
    assert hinge_x == pytest.approx(240 + position * scale, abs=1.5)
    assert math.atan2(pole_x - hinge_x, hinge_y - pole_y) == pytest.approx(angle, abs=0.04)


@pytest.mark.parametrize("angle", [0.0, 0.7, 2.0, -1.3])
def test_a_pendulum_turns_as_it_does_in_gymnasium(angle):
    """Zero is upright, and angles grow counter-clockwise: cos and sin are how far the tip is up and to the left."""
    picture = render(Pendulum(), PendulumState(jnp.asarray(angle), jnp.asarray(0.0)))
    x, y = where(picture, ORANGE)
    assert math.atan2(160 - x, 160 - y) == pytest.approx(angle, abs=0.05)


@pytest.mark.parametrize(("angle_1", "angle_2"), [(0.0, 0.0), (0.6, -0.4), (2.5, 1.2)])
def test_an_acrobot_hangs_as_its_equations_say(angle_1, angle_2):
    """The lower link begins where the upper one ends, and whether its tip is above the line ends the episode."""
    zero = jnp.asarray(0.0)
    picture = render(Acrobot(), AcrobotState(jnp.asarray(angle_1), jnp.asarray(angle_2), zero, zero))
    scale = 320 / 4.48
    middles = [(math.sin(angle_1) / 2, math.cos(angle_1) / 2)]
    middles += [(math.sin(angle_1) + math.sin(angle_1 + angle_2) / 2, 0.0)]
    middles[1] = (middles[1][0], math.cos(angle_1) + math.cos(angle_1 + angle_2) / 2)
    for colour, (right, down) in zip((BLUE, ORANGE), middles, strict=True):
        np.testing.assert_allclose(where(picture, colour), (160 + right * scale, 160 + down * scale), atol=5)
    _, line = where(picture, GREEN)
    assert line == pytest.approx(160 - scale, abs=1)
    top = np.nonzero((picture == ORANGE).all(-1))[0].min()
    height = -math.cos(angle_1) - math.cos(angle_1 + angle_2)
    assert (top < line) == (height > 1)


@pytest.mark.parametrize("world", [MountainCar(), MountainCarContinuous()], ids=["discrete", "continuous"])
def test_a_car_drives_on_the_hill_towards_the_flag(world):
    states = [MountainCarState(jnp.asarray(x), jnp.asarray(0.0)) for x in (-1.0, -0.5, 0.4)]
    places = [where(render(world, state), ORANGE) for state in states]
    across = [x for x, _ in places]
    np.testing.assert_allclose(np.diff(across), np.asarray((0.5, 0.9)) * 480 / 1.8, atol=15)
    assert places[1][1] > places[0][1] > places[2][1]  # y grows downwards: the valley is at -π/6
    flag, _ = where(render(world, states[1]), GREEN)
    assert flag == pytest.approx((world.goal_position + 1.2) * 480 / 1.8 + 8, abs=5)


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "Pendulum-NoVelocity-v1", "MountainCar-v0", "MiniGrid-Empty-5x5"]
)
@pytest.mark.quick("Pendulum-NoVelocity-v1")
def test_wrappers_pass_pictures_on(name):
    """Through a time limit, what hides, and those that are put around them here: always that of the inner state."""
    plain = envs.make(name, max_episode_steps=9)
    wrapped = envs.RewardScale(envs.FrameStack(plain, 2), 2.0)
    wrapped = envs.Trial(envs.Flatten(envs.TimeLimit(wrapped, 5)), 2)
    (state, _), (inner, _) = wrapped.reset(jax.random.key(3)), plain.reset(jax.random.key(3))
    assert can_render(wrapped) and frames_per_second(wrapped) == frames_per_second(plain)
    np.testing.assert_array_equal(render(wrapped, state), render(plain, inner))


class Dark(NamedTuple):
    """No picture shows it."""

    steps: jax.Array


@environment
class Unseen:
    """An environment without pictures."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return Dark(jnp.int32(0)), restart(jnp.zeros(1))

    def step(self, state, action, key):
        return Dark(state.steps + 1), transition(jnp.zeros(1), 0.0)


@environment
class Lamp(Wrapper):
    """Draws itself."""

    env: Unseen
    dtype: str = "uint8"

    frames_per_second = 3

    def render(self, state):
        return np.full((4, 6, 3), BACKGROUND if state.steps else DARK_GREY).astype(self.dtype)


def test_an_environment_without_pictures_says_so():
    world = envs.TimeLimit(Unseen(), 3)
    assert not can_render(world) and frames_per_second(world) == 10
    state, _ = world.reset(jax.random.key(0))
    with pytest.raises(ShoalError, match=r"Unseen cannot be drawn: it has no `render\(state\)`"):
        render(world, state)
    lamp = envs.TimeLimit(Lamp(Unseen()), 3)
    assert can_render(lamp) and frames_per_second(lamp) == 3
    assert tuple(render(lamp, state)[0, 0]) == DARK_GREY
    with pytest.raises(ShoalError, match=r"returned float32\[4, 6, 3\]; a picture is uint8"):
        render(Lamp(Unseen(), "float32"), state.env)
