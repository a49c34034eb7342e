"""The base of all tasks in worlds of particles: parameters, starts, physics, sensing, rewards and ends."""

import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError, nearest, rounded_bound
from shoal.config.struct import bounds_of, is_traced
from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.envs.geometry import Geometry
from shoal.envs.particles.physics import cell_lists, contact_laws, dynamics, pairs, stability
from shoal.envs.particles.physics.bodies import inertia_of
from shoal.envs.particles.physics.boxes import nearest_image
from shoal.envs.particles.physics.cell_lists import CellLayout
from shoal.envs.particles.physics.contact_laws import Material
from shoal.envs.particles.physics.dynamics import INTEGRATORS, ParticleState, Rules, World
from shoal.envs.particles.physics.restitution import damping_ratio
from shoal.envs.particles.physics.stability import Numbers, Ranges
from shoal.envs.particles.physics.vectors import length, shortened, unit
from shoal.envs.particles.tasks import lidar, particle_geometry, particle_scene, rewards, start_places
from shoal.envs.particles.tasks.randomisation import Uniform, as_uniform
from shoal.types import GLOBAL_STATE, OBSERVATION, Array
from shoal.types.spaces import Box, Dict
from shoal.xla.batch_last import batch_last
from shoal.xla.single_evaluation import compute_once

TARGETS_APART = 2.5  # radii, the least distance between two targets and between two agents at the start
MAX_AGENTS = 4096  # whose rays are still computed for all pairs, once in a decision
NEAR = 3.0  # radii, within which the way to the target is shown exactly
DRAWN = ("radius", "mass", "stiffness", "restitution", "friction")
CHOICES = {
    "law": contact_laws.LAWS,
    "integrator": INTEGRATORS,
    "boundary": ("walls", "periodic"),
    "sensing": (None, *lidar.KINDS),
    "reward": tuple(rewards.KINDS),
    "neighbours": ("auto", "all", "cells"),
}


class TaskState(NamedTuple):
    """A world of agents and their targets; components come before the agents."""

    world: World  # drawn at the start of the episode
    particles: ParticleState
    target: Array  # in the plane, [2, M], m; of agents with a target each, M is A
    held: Array  # decisions for which each target has been held, up to now, [M], int32
    acted: Array  # whether all actions up to now were finite


@environment
class ParticleTask:
    """Agents that move to targets of their own.

    Every parameter that is a range [low, high] is drawn again at the start of every episode, uniformly; radius and mass
    for each agent. Units are consistent ones, such as SI.
    """

    radius: Uniform = parameter(default=Uniform(1.0, 1.0), above=0)
    mass: Uniform = parameter(default=Uniform(1.0, 1.0), above=0)
    stiffness: Uniform = parameter(default=Uniform(100.0, 100.0), above=0)  # k, or E* with law="hertz"
    restitution: Uniform = parameter(default=Uniform(0.8, 0.8), above=0, high=1)
    friction: Uniform = parameter(default=Uniform(0.5, 0.5), low=0)
    tangential_ratio: float = parameter(default=0.8, above=0)  # of tangential to normal stiffness
    rolling_friction: float = parameter(default=0.0, low=0)
    drag: float = parameter(default=0.2, low=0)  # force per velocity
    gravity: float = parameter(default=9.81, low=0)  # with a floor
    drive: float = parameter(default=5.0, above=0)  # the largest force, or torque, of an agent
    time_step: float = parameter(default=0.01, above=0)  # of the physics
    reach: float = parameter(default=6.0, above=0)  # of the rays
    gamma: float = parameter(default=0.99, low=0, high=1, in_reward=True)  # the algorithm's discount
    work_weight: float = parameter(default=0.05, low=0, in_reward=True)  # of the work done in a decision
    collision_penalty: float = parameter(default=15.0, low=0, in_reward=True)  # for the onset of a contact
    bonus: float = parameter(default=50.0, low=0, in_reward=True)  # for staying at the target for ever
    area_per_agent: float = parameter(default=40.0, above=0, static=True)  # squared radii
    # Greatest speed of an impact, for law="hertz".
    top_speed: float = parameter(default=10.0, above=0, static=True)
    law: str = "linear"
    integrator: str = "verlet"
    boundary: str = "walls"
    rough: bool = False
    physics_steps: int = parameter(default=10, low=1, high=10)  # for each decision
    sensing: str | None = "rays"
    num_rays: int = parameter(default=32, low=1)
    hold_decisions: int = parameter(default=5, low=1)
    reward: str = "potential"
    team_reward: bool = False
    global_state: bool = False
    neighbours: str = "auto"  # all pairs up to 1,024 agents, and a cell list beyond
    cell_capacity: int = parameter(default=8, low=1)  # agents in a cell of the cell list
    max_neighbours: int = parameter(default=12, low=1)  # agents within a diameter and the skin of one agent
    skin: float = parameter(default=0.4, above=0, static=True)  # radii by which lists reach beyond contact

    dimensions: ClassVar[int] = 2
    team_return = "mean"
    info_summaries: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"success": "last", "collisions": "sum", "distance": "last"}
    )
    frames_per_second = 10
    draws_past = True

    def __post_init__(self) -> None:
        """Make ranges of numbers, and refuse worlds that cannot be simulated. Only a caller's values are read."""
        for name in DRAWN:
            object.__setattr__(self, name, as_uniform(name, getattr(self, name)))
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                known = [str(choice) for choice in choices]
                raise ShoalError(
                    f"{name}={value!r} is not one of {', '.join(known)}{nearest(str(value), known)}."
                )
        self._cells()
        self._check_neighbours()
        self._check_ranges()

    @property
    def num_agents(self) -> int:
        """The number of agents: one, unless a task makes it a parameter."""
        return 1

    @property
    def shaping_discount(self) -> float | None:
        """The discount of the reward's potential, which must be the algorithm's; None without a potential."""
        return self.gamma if self.reward == "potential" else None

    @property
    def rules(self) -> Rules:
        """The static rules of the physics."""
        return Rules(self.law, self.integrator, self.boundaries, self.rough, self.layout)

    @property
    def layout(self) -> CellLayout | None:
        """The sizes of the cell list, whose lengths are in (largest) radii; None for all pairs."""
        if self.neighbours == "all" or self.num_agents == 1:
            return None
        if self.neighbours == "auto" and self.num_agents <= pairs.MAX_ALL_TO_ALL:
            return None
        box = (self.side_in_radii,) * 2 + (2.0,) * (self.dimensions - 2)  # on a floor there is one layer
        return cell_lists.cell_layout(
            box, self.boundaries, 1.0, self.skin, self.cell_capacity, self.max_neighbours
        )

    @property
    def boundaries(self) -> tuple[str, ...]:
        """The boundaries of the plane's axes, and the floor of a world in space."""
        return (self.boundary,) * 2 + ("floor",) * (self.dimensions - 2)

    @property
    def side_in_radii(self) -> float:
        """The side of the square box, in (largest) radii."""
        return math.sqrt(self.area_per_agent * self.num_agents)

    @property
    def num_targets(self) -> int:
        """M, the number of targets; the agents', unless they share them."""
        return self.num_agents

    def _cells(self) -> tuple[int, ...]:
        """Return the lattice of starts and targets; refuse more agents than fit."""
        room = self.side_in_radii - 2
        fit = start_places.most_along(room, TARGETS_APART) ** 2
        if self.num_agents > fit:
            raise ShoalError(
                f"num_agents={self.num_agents} with area_per_agent={self.area_per_agent:g} cannot be placed at "
                f"distances of {TARGETS_APART:g} radii: {fit} fit into a box of {self.side_in_radii:.3g} radii."
            )
        return start_places.lattice(self.num_agents, (room, room), TARGETS_APART)

    def _check_neighbours(self) -> None:
        try:
            self.layout  # noqa: B018
        except ShoalError as error:
            cell = 2 + self.skin
            least = (cell_lists.MIN_PERIODIC_CELLS * cell) ** 2 / self.num_agents
            raise ShoalError(
                f"num_agents={self.num_agents} with area_per_agent={self.area_per_agent:g} makes a periodic box of "
                f"{self.side_in_radii:.3g} radii, too small for three cells of {cell:g} radii (a diameter and "
                f"skin={self.skin:g}); give an area_per_agent of {rounded_bound(least, up=True)} or more, "
                f"or neighbours='all'."
            ) from error

    def _check_ranges(self) -> None:
        """Refuse what cannot be computed. Traced numbers are not read; `make` refuses those that are none."""
        bounds, low, high = bounds_of(type(self)), {}, {}
        for name in Numbers._fields:
            value = getattr(self, name)
            ends = value if isinstance(value, Uniform) else (value, value)
            if is_traced(*ends) or not all(map(bounds[name].contains, ends)):
                return
            low[name], high[name] = float(np.min(ends[0])), float(np.max(ends[1]))
        side = self.side_in_radii * high["radius"]
        kinds = self.law, self.dimensions, self.rough
        stability.check_ranges(
            Ranges(*kinds, self.num_agents, side, self.top_speed, Numbers(**low), Numbers(**high))
        )
        if self.boundary == "periodic" and high["reach"] > lidar.MAX_IMAGES * side:
            raise ShoalError(
                f"reach={high['reach']:g} is too long for a periodic box with a side of {side:g}: rays reach over at "
                f"most {lidar.MAX_IMAGES} sides; give {rounded_bound(lidar.MAX_IMAGES * side)} or less."
            )

    @property
    def observation_size(self) -> int:
        """The number of entries of an agent's observation."""
        own = 2 if self.dimensions == 2 else 5
        return own + self.target_entries + (0 if self.sensing is None else 3 * self.num_rays)

    @property
    def target_entries(self) -> int:
        """The entries of an observation that show targets."""
        return 4

    @property
    def observation_space(self) -> Box | Dict:
        """A vector for each agent, and if requested the rows of all agents, which only a critic is shown."""
        own = Box(-np.inf, np.inf, (self.observation_size,))
        if not self.global_state:
            return own
        return Dict({OBSERVATION: own, GLOBAL_STATE: self.world_space})

    @property
    def world_space(self) -> Box | Dict:
        """The state of the world that only a critic is shown: a row for each agent."""
        return Box(-np.inf, np.inf, (self.num_agents, 8))

    @property
    def critic_only(self) -> tuple[str, ...]:
        """The state of the world, if there is one."""
        return (GLOBAL_STATE,) if self.global_state else ()

    @property
    def action_space(self) -> Box:
        """The force or torque in the plane, as a share of the largest; longer vectors are shortened to length 1."""
        return Box(-1.0, 1.0, (2,))

    def driving(self, action: Array) -> tuple[Array, Array]:
        """Return the force [D, A, ...] and torque [S, A, ...] of actions [2, A, ...] of length 1 or less.

        In the plane the action is a force, in space a torque about the x and y axes.
        """
        driven = self.drive * action
        nothing = jnp.zeros_like(driven[:1])
        if self.dimensions == 2:
            return driven, nothing
        return jnp.concatenate([nothing] * 3), jnp.concatenate([driven, nothing])

    def reset(self, key: Array) -> tuple[TaskState, TimeStep]:
        """Draw the world, the agents' places and the targets."""
        world_key, place_key, target_key, order_key = jax.random.split(key, 4)
        world = self._draw_world(world_key)
        largest = jnp.asarray(self.radius.high, jnp.float32)
        room, apart = world.box[:2] - 2 * largest, TARGETS_APART * largest
        place, target = (
            largest + start_places.draw_places(k, number, room, self._cells(), apart)
            for k, number in ((place_key, self.num_agents), (target_key, self.num_targets))
        )
        target = target[:, jax.random.permutation(order_key, self.num_targets)]
        if self.dimensions == 3:
            sunk = world.mass * world.gravity[2] / world.material.wall_stiffness
            height = world.radius + (sunk if self.law == "linear" else 0.0)
            place = jnp.concatenate([place, height[None]])
        particles = dynamics.start(self.rules, world, place)
        held = jnp.zeros(self.num_targets, jnp.int32)
        state = TaskState(world, particles, target, held, jnp.ones((), bool))
        info = dict.fromkeys(self.info_summaries, jnp.zeros(()))
        agents = self.num_agents
        return state, restart(self._shown(observe(self, state), state), num_agents=agents, info=info)

    def _draw_world(self, key: Array) -> World:
        keys = dict(zip(DRAWN, jax.random.split(key, len(DRAWN)), strict=True))
        each = (self.num_agents,)
        radius, mass = self.radius.draw(keys["radius"], each), self.mass.draw(keys["mass"], each)
        stiffness = self.stiffness.draw(keys["stiffness"])
        number = lambda x: jnp.asarray(x, jnp.float32)  # noqa: E731
        material = Material(
            stiffness,
            stiffness,
            damping_ratio(self.restitution.draw(keys["restitution"])),
            self.friction.draw(keys["friction"]),
            number(self.tangential_ratio),
            number(self.rolling_friction),
        )
        side = self.side_in_radii * number(self.radius.high)
        down = jnp.asarray([0.0, 0.0, -1.0][: self.dimensions])
        return World(
            radius,
            mass,
            inertia_of(mass, radius, self.dimensions),
            material,
            jnp.broadcast_to(side, self.dimensions),
            number(self.gravity) * down,
            number(self.drag),
            jnp.zeros(()),
            number(self.time_step),
            jnp.zeros(()) if self.layout is None else self.skin * number(self.radius.high),
            stability.deepest_overlap(
                self.law,
                number(self.drive if self.dimensions == 2 else self.drive / self.radius.low),
                *map(
                    number, (self.drag, self.radius.low, self.mass.high, self.stiffness.low, self.time_step)
                ),
            ),
        )

    def step(self, state: TaskState, action: Array, key: Array) -> tuple[TaskState, TimeStep]:
        """Drive the agents for one decision; deterministic, the key is not used."""
        decide = batch_last(_decide) if self.layout is None else _decide
        state, own, reward, terminated, info = decide(self, state, jnp.asarray(action))
        return state, transition(self._shown(own, state), reward, terminated=terminated, info=info)

    def _shown(self, own: Array, state: TaskState) -> Array | dict[str, Array | dict[str, Array]]:
        """Return the observation, with the state of the world if a critic is shown it."""
        if not self.global_state:
            return own
        return {OBSERVATION: own, GLOBAL_STATE: self.observe_world(state)}

    def render(self, state: TaskState, past: Sequence[TaskState] = ()) -> np.ndarray:
        """Draw agents, targets, rays and trails from above, spheres shaded."""
        return particle_scene.draw(self, state, past)

    def geometry(self, state: TaskState) -> Geometry:
        """Return the agents as points, and their contacts as lines."""
        return particle_geometry.geometry_of(self, state)

    def explain_fault(self, state: TaskState) -> str | None:
        """Say which capacity of the cell list was too small, or what made numbers of agents NaN, else None."""
        if (layout := self.layout) is not None:
            needed = np.asarray(state.particles.neighbours.needed)  # type: ignore[union-attr]
            if message := cell_lists.overflow_message(layout, needed):
                return message
        if np.isfinite(np.asarray(state.particles.velocity)).all():
            return None
        if not state.acted:
            return "an action was not finite"
        deepest = float(state.world.deepest)
        return (
            f"two agents overlapped by more than {deepest:g} of the smaller one's radius, or an agent and a wall by "
            f"twice as much, so their force is unknown and was set to NaN: drive={np.max(self.drive):g} with "
            f"drag={np.min(self.drag):g} makes agents too fast for stiffness={np.min(self.stiffness.low):g}; give less "
            f"drive, more drag, or more stiffness with a shorter time_step"
        )

    def observe_targets(self, state: TaskState) -> Array:
        """Return the direction of each agent's target, and the way there in units of 3 radii, cut at 1, [4, A, ...]."""
        return shown_way(way_to_target(self, state), state.world.radius)

    def is_held(self, state: TaskState) -> Array:
        """Return which targets are held, [M, ...]: where an agent's centre is within its radius of its own target."""
        return length(way_to_target(self, state)) <= state.world.radius

    def way_to_go(self, state: TaskState) -> Array:
        """Return each agent's distance to its target, [A, ...]."""
        return length(way_to_target(self, state))

    def is_at_target(self, state: TaskState) -> Array:
        """Return which agents hold a target, [A, ...]."""
        return self.is_held(state)

    def measures(self, state: TaskState) -> dict[str, Array]:
        """Return the entries of `info` but collisions, [...]."""
        is_held = self.is_held(state).astype(jnp.float32)
        return {"success": jnp.mean(is_held, axis=0), "distance": jnp.mean(self.way_to_go(state), axis=0)}

    def observe_world(self, state: TaskState) -> Array | dict[str, Array]:
        """Return a row for each agent: place and way to its target in box sides, velocity, radius, mass, [A, 8]."""
        place = state.particles.position[:2]
        side = state.world.box[:2, None]
        parts = (place / side, way_to_target(self, state) / side, state.particles.velocity[:2])
        return jnp.concatenate([*parts, state.world.radius[None], state.world.mass[None]]).T


def way_to_target(env: ParticleTask, state: TaskState) -> Array:
    """Return the vector from each agent to its target, [2, A, ...]."""
    box = state.world.box[:2]
    box = box.reshape(2, 1, *box.shape[1:])
    return nearest_image(state.target - state.particles.position[:2], box, env.boundaries[:2])


def shown_way(way: Array, radius: Array) -> Array:
    """Return the direction of a way [2, A, ...], and the way in units of 3 radii, cut at 1, [4, A, ...]."""
    return jnp.concatenate([unit(way)[0], jnp.clip(way / (NEAR * radius), -1.0, 1.0)])


def observe(env: ParticleTask, state: TaskState) -> Array:
    """Return the observation of each agent, [A, n, ...]; without the axis A, if there is one agent.

    Its targets; its velocity; of a sphere its angular velocity. Then of each ray the distance as a share of the range,
    whether it met a disc, and whether a wall.
    """
    particles, world = state.particles, state.world
    parts = [env.observe_targets(state), particles.velocity[:2]]
    if env.dimensions == 3:
        parts.append(particles.spin)
    own = [jnp.moveaxis(x, 0, 1) for x in parts]
    if env.sensing is not None:
        box, kinds, place = world.box[:2], env.boundaries[:2], particles.position[:2]
        reach = jnp.asarray(env.reach)
        found = lidar.scan(env.sensing, place, world.radius, box, kinds, env.num_rays, reach)
        own += [found.distance / reach, *(x.astype(reach.dtype) for x in (found.is_disc, found.is_wall))]
    shown = jnp.concatenate(own, axis=1)
    return shown[0] if env.num_agents == 1 else shown


def _decide(
    env: ParticleTask, state: TaskState, action: Array
) -> tuple[TaskState, Array, Array, Array, Mapping[str, Array]]:
    """Return the state after a decision, the observations, rewards, whether the episode terminated, and `info`."""
    before = state
    action = jnp.moveaxis(action[None] if env.num_agents == 1 else action, 1, 0)
    acted = state.acted & jnp.all(jnp.isfinite(action), axis=(0, 1))
    force, torque = env.driving(shortened(action, jnp.ones_like(action[0])))
    particles, collisions = _moved(env, state, force, torque)
    state = state._replace(particles=particles, acted=acted)
    is_held = env.is_held(state)
    state = state._replace(held=jnp.where(is_held, state.held + 1, 0))
    terminated = jnp.all(state.held >= env.hold_decisions, axis=0)
    work = rewards.work_of(env, before, state, force, torque)
    reward = rewards.KINDS[env.reward](env, before, state, collisions, work, terminated)
    if env.team_reward:
        reward = jnp.broadcast_to(jnp.mean(reward, axis=0), reward.shape)
    info = {**env.measures(state), "collisions": jnp.mean(collisions, axis=0)}
    reward = reward[0] if env.num_agents == 1 else reward
    return state, observe(env, state), reward, terminated, info


def _moved(env: ParticleTask, state: TaskState, force: Array, torque: Array) -> tuple[ParticleState, Array]:
    """Return the particles after the physics of a decision, and how many contacts of each began in it, [A].

    Contacts with the floor do not count. A single step is not a loop, and XLA would compute the action again in each
    pair of agents.
    """

    advance = functools.partial(dynamics.advance_many, env.rules, steps=env.physics_steps)
    arguments = state.world, state.particles, force, torque
    if env.physics_steps > 1:
        particles, began = advance(*arguments)
    else:
        particles, began = compute_once(state.world.time_step > 0, advance, *arguments)
    began = began._replace(walls=began.walls[: 4 if env.boundary == "walls" else 0])
    return particles, dynamics.count_of_each(env.rules, began)
