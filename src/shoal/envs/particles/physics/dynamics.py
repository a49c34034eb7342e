"""One step of a world: contacts of particles and walls, and the integrators.

`Rules` are static; everything in `World` and `ParticleState` is data, so that different worlds step under one `vmap`.
All arrays have the axis of particles behind that of components, [D, N] or [S, N] or [N]; without a cell list any
further axes may follow (`vectors`). Units are SI, or any other consistent ones.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from shoal.envs.particles.physics import boxes, cell_lists, contact_laws, pairs
from shoal.envs.particles.physics.bodies import (
    Bodies,
    Movement,
    World,
    contact_between,
    lever_arms,
    map_bodies,
    slip_between,
    wall_contacts,
)
from shoal.envs.particles.physics.cell_lists import CellLayout, NeighbourList
from shoal.envs.particles.physics.contact_laws import Contact, Response, Slip
from shoal.envs.particles.physics.vectors import dot, sum_rows, tangential, torque_of
from shoal.types import Array
from shoal.xla.single_evaluation import compute_once

SPIN_COMPONENTS = {2: 1, 3: 3}

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Rules:
    """Static choices of a world.

    Attributes:
      law: "linear" or "hertz".
      integrator: "euler" (semi-implicit) or "verlet".
      boundaries: of each axis, see `boxes`; their number is that of the dimensions.
      rough: whether contacts have sliding and rolling friction; without, no particle ever changes its spin by a
      contact.
      layout: of the cell list; None for all pairs.
    """

    law: str = "linear"
    integrator: str = "verlet"
    boundaries: tuple[str, ...] = ("walls", "walls")
    rough: bool = True
    layout: CellLayout | None = None

    @property
    def dimensions(self) -> int:
        """D, 2 or 3."""
        return len(self.boundaries)


class ParticleState(NamedTuple):
    """All that changes in a world; positions, velocities, springs and forces are of one time."""

    position: Array  # [D, N], m; along a periodic axis within the box
    velocity: Array  # [D, N], m/s
    spin: Array  # angular velocity, [S, N], rad/s
    force: Array  # by contacts, [D, N], N
    torque: Array  # by contacts, [S, N], N m
    springs: Array  # tangential, [D, pairs or neighbours, N], m; of the first particle against the second
    wall_springs: Array  # [D, walled axes, N], m
    neighbours: NeighbourList | tuple[()]  # () for all pairs


class Touches(NamedTuple):
    """Pairs and walls in contact, or how often each came into contact.

    The second half of an even N's last row of pairs repeats the first, and counts nothing.
    """

    pairs: Array  # of all pairs [N // 2, N], or of each particle with its neighbours [K, N]
    walls: Array  # of each walled axis' wall or two walls with each particle, [2 or less for each axis, N]


def start(
    rules: Rules, world: World, position: Array, velocity: Array | None = None, spin: Array | None = None
) -> ParticleState:
    """Return the state of particles that begin at positions [D, N] (m), with velocities [D, N] (m/s) and
    spins [S, N] (rad/s), None for rest, and all springs relaxed.

    Raises:
      ShoalError: along a periodic axis two particles could touch on both sides. If the sizes are traced, the positions
        are NaN then.
    """
    dimensions, number = position.shape[:2]
    if number > 1 and "periodic" in rules.boundaries:
        position = jnp.where(
            boxes.holds_one_image(world.box, world.radius, rules.boundaries), position, jnp.nan
        )
    still = jnp.zeros((SPIN_COMPONENTS[dimensions], *position.shape[1:]), position.dtype)
    position = boxes.into_box(position, _columns(world.box, position), rules.boundaries)
    neighbours: NeighbourList | tuple[()] = ()
    if rules.layout is not None:
        neighbours = cell_lists.find_neighbours(rules.layout, position, world, rules.boundaries)
    rows = pairs.num_shifts(number) if rules.layout is None else rules.layout.max_neighbours
    walls = len(boxes.walled_axes(rules.boundaries))
    state = ParticleState(
        position,
        jnp.zeros_like(position) if velocity is None else velocity,
        still if spin is None else spin,
        jnp.zeros_like(position),
        still,
        _no_springs(position, rows if rules.rough else 0),
        _no_springs(position, walls if rules.rough else 0),
        neighbours,
    )
    at_rest = Movement(jnp.zeros_like(position), still)
    return _with_contacts(rules, world, state, at_rest, jnp.zeros_like(world.time_step))


def _no_springs(position: Array, rows: int) -> Array:
    return jnp.zeros((len(position), rows, *position.shape[1:]), position.dtype)


def _columns(x: Array, like: Array) -> Array:
    """Add axes of length 1 behind the first one, [D, ...] to [D, 1, ...], until there are as many as `like` has."""
    return x.reshape(x.shape[0], *(1,) * (like.ndim - x.ndim), *x.shape[1:])


def advance(rules: Rules, world: World, state: ParticleState, force: Array, torque: Array) -> ParticleState:
    """Make one step of the physics, in which the agents' force [D, N] (N) and torque [S, N] (N m) are constant."""
    return INTEGRATORS[rules.integrator](rules, world, state, force, torque)


def advance_many(
    rules: Rules, world: World, state: ParticleState, force: Array, torque: Array, steps: int
) -> tuple[ParticleState, Touches]:
    """Make several steps under the same forces of the agents; see `advance`.

    Returns:
      The state, and of each contact how often it began in these steps; `count_of_each` adds them up.
    """

    def one(carry: tuple[ParticleState, Touches], _: None) -> tuple[tuple[ParticleState, Touches], None]:
        before, began = carry
        after = advance(rules, world, before, force, torque)
        now, then = (touching(rules, world, after, x.position) for x in (after, before))
        return (after, jax.tree.map(lambda total, a, b: total + (a & ~b), began, now, then)), None

    never = jax.tree.map(
        lambda x: jnp.zeros(x.shape, jnp.float32), touching(rules, world, state, state.position)
    )
    return jax.lax.scan(one, (state, never), None, length=steps)[0]


def _euler_step(
    rules: Rules, world: World, state: ParticleState, force: Array, torque: Array
) -> ParticleState:
    """Advance by the semi-implicit Euler method, of order 1.

    v' = v + dt a(x, v, ξ),   x' = x + dt v',   ξ' = ξ + dt u_t(x', v')
    """
    dt = world.time_step
    acceleration, angular = _accelerations(world, state, Movement(state.velocity, state.spin), force, torque)
    end = Movement(state.velocity + dt * acceleration, state.spin + dt * angular)
    moved = state._replace(position=_moved_to(rules, world, state, end), velocity=end.velocity, spin=end.spin)
    return _with_contacts(rules, world, moved, end, jnp.zeros_like(dt))


def _verlet_step(
    rules: Rules, world: World, state: ParticleState, force: Array, torque: Array
) -> ParticleState:
    """Advance by the velocity-Verlet method, of order 2 while no contact begins, ends or starts to slide.

    v½ = v + dt/2 a,   x' = x + dt v½,   a' = a(x', v + dt a, ξ'),   v' = v½ + dt/2 a'

    The dashpots see the velocity of the same time as the positions, predicted by v + dt a, and the springs are
    lengthened by the slip in the middle of the step, v½ with the normal of that time. Velocities of half a step with
    positions of a full one make static friction wrong where particles differ in size.

    Source: Vyas et al. 2024, "Improved velocity-Verlet algorithm for the discrete element method", which finds this
    error; the remedy here is another one.
    """
    dt = world.time_step
    acceleration, angular = _accelerations(world, state, Movement(state.velocity, state.spin), force, torque)
    middle = Movement(state.velocity + dt / 2 * acceleration, state.spin + dt / 2 * angular)
    end = Movement(state.velocity + dt * acceleration, state.spin + dt * angular)
    moved = state._replace(
        position=_moved_to(rules, world, state, middle), velocity=end.velocity, spin=end.spin
    )
    moved = _with_contacts(rules, world, moved, middle, dt / 2)
    acceleration, angular = _accelerations(world, moved, end, force, torque)
    return moved._replace(
        velocity=middle.velocity + dt / 2 * acceleration, spin=middle.spin + dt / 2 * angular
    )


INTEGRATORS = {"euler": _euler_step, "verlet": _verlet_step}


def _moved_to(rules: Rules, world: World, state: ParticleState, movement: Movement) -> Array:
    """Return the positions after a step with constant velocities."""
    position = state.position + world.time_step * movement.velocity
    return boxes.into_box(position, _columns(world.box, position), rules.boundaries)


def _accelerations(
    world: World, state: ParticleState, movement: Movement, force: Array, torque: Array
) -> tuple[Array, Array]:
    """Return the acceleration [D, N] and the angular acceleration [S, N] by contacts, agents, drag and gravity."""
    total = state.force + force - world.drag * movement.velocity
    total_torque = state.torque + torque - world.angular_drag * movement.spin
    gravity = _columns(world.gravity, state.position)
    return total / world.mass + gravity, total_torque / world.inertia


def _with_contacts(
    rules: Rules, world: World, state: ParticleState, movement: Movement, since: Array
) -> ParticleState:
    """Compute the forces of all contacts of a state whose positions and velocities are new, and whose springs
    are of one step before.

    Args:
      movement: the velocities at a time within the step, by which the springs are lengthened.
      since: the time from then to the new time.
    """
    if rules.layout is not None and state.neighbours:
        neighbours, springs = cell_lists.update_neighbours(
            rules.layout, state.neighbours, state.springs, state.position, world, rules.boundaries
        )
        state = state._replace(neighbours=neighbours, springs=springs)
    inertia = _shared_inertia(rules, world, state)
    bodies = Bodies(state.position, state.velocity, state.spin, world.radius, world.mass, inertia)
    by_walls = _stage(world, lambda: _wall_forces(rules, world, state, bodies, movement))
    by_particles = _particle_forces(rules, world, state, bodies, movement, since)
    force, torque = by_walls.force + by_particles.force, by_walls.torque + by_particles.torque
    if state.neighbours:
        is_unknown = jnp.any(state.neighbours.needed > 0)
        force, torque = jnp.where(is_unknown, jnp.nan, force), jnp.where(is_unknown, jnp.nan, torque)
    return state._replace(
        force=force, torque=torque, springs=by_particles.spring, wall_springs=by_walls.spring
    )


def _shared_inertia(rules: Rules, world: World, state: ParticleState) -> Array:
    """Return each body's moment of inertia, divided by the number of its contacts, [N].

    Rolling friction is at most what stops a rotation within a step, and the contacts of a body together are: if each
    of them stopped it alone, two would turn it round for ever, and three would accelerate it. Without rolling friction
    nothing reads the number, and it is not counted.
    """
    if not rules.rough:
        return world.inertia

    def divided() -> Array:
        contacts = count_of_each(rules, touching(rules, world, state, state.position))
        return world.inertia / jnp.maximum(contacts, 1.0)

    return jax.lax.cond(jnp.any(world.material.rolling_friction > 0), divided, lambda: world.inertia)


def touching(rules: Rules, world: World, state: ParticleState, position: Array) -> Touches:
    """Return which contacts there are at positions [D, N] (m), among the pairs or the neighbours of a state."""
    radius, box = world.radius, _columns(world.box, position)
    distances = [jnp.zeros((0, *radius.shape), radius.dtype)]
    for axis in boxes.walled_axes(rules.boundaries):
        far = [box[axis] - position[axis]] if rules.boundaries[axis] == "walls" else []
        distances.append(jnp.stack([position[axis], *far]))
    walls = jnp.concatenate(distances) < radius
    of_partners, counts = _partners(state)
    offset = boxes.nearest_image(of_partners(position) - position[:, None], box[:, None], rules.boundaries)
    reach = radius + of_partners(radius[None])[0]
    return Touches(counts & (dot(offset, offset) < reach**2), walls)


def count_of_each(rules: Rules, touches: Touches) -> Array:
    """Return how many contacts each particle has, [N]."""
    of_pairs, of_walls = (x.astype(jnp.float32)[None] for x in touches)
    return (_sum_of_contacts(rules, of_pairs, of_pairs) + sum_rows(of_walls))[0]


def _sum_of_contacts(rules: Rules, of_first: Array, of_second: Array) -> Array:
    """Return the sum, [C, N], over each particle's contacts of what these do to their first and second particles,
    [C, rows, N]. A particle is the first one in all contacts of its list.
    """
    return pairs.sum_over_pairs(of_first, of_second) if rules.layout is None else sum_rows(of_first)


def _stage(world: World, function: Callable[[], T]) -> T:
    """Return `function()`, a stage of a step that several others read, and keep XLA from computing it again in each.

    With 256 worlds a decision of MultiRoller takes 28 µs of a core instead of 387, and one of
    MultiNavigator 5 instead of 28.
    """
    return compute_once(world.time_step > 0, function)


def _wall_forces(
    rules: Rules, world: World, state: ParticleState, bodies: Bodies, movement: Movement
) -> Response:
    """Return the force [D, N] and torque [S, N] by the walls, and the springs."""
    nothing = Response(jnp.zeros_like(state.force), jnp.zeros_like(state.torque), state.wall_springs)
    if not boxes.walled_axes(rules.boundaries):
        return nothing
    box = _columns(world.box, bodies.position)
    direction, distance = boxes.wall_directions(bodies.position, box, rules.boundaries)
    contact = wall_contacts(direction, distance, bodies, bodies)
    contact = contact._replace(deepest=2 * world.deepest * bodies.radius)
    stiffness = world.material.wall_stiffness
    if not rules.rough:
        force = contact_laws.smooth_response(rules.law, stiffness, world.material, contact)
        return nothing._replace(force=sum_rows(force))
    sliding = wall_contacts(direction, distance, bodies, movement).velocity
    slip = Slip(tangential(sliding, direction), world.time_step)
    response = contact_laws.rough_response(
        rules.law, stiffness, world.material, contact, slip, state.wall_springs
    )
    torque = torque_of(bodies.radius * direction, response.force) + response.torque
    return Response(sum_rows(response.force), sum_rows(torque), response.spring)


def _particle_forces(
    rules: Rules, world: World, state: ParticleState, bodies: Bodies, movement: Movement, since: Array
) -> Response:
    """Return the force [D, N] and torque [S, N] by other particles, and the springs; see `_with_contacts`."""
    nothing = Response(jnp.zeros_like(state.force), jnp.zeros_like(state.torque), state.springs)
    if state.position.shape[1] == 1:
        return nothing
    of_partners, counts = _partners(state)
    first, of_first = map_bodies(bodies, lambda x: x[:, None]), Movement(*(x[:, None] for x in movement))
    second, of_second = _stage(
        world, lambda: (map_bodies(bodies, of_partners), Movement(*map(of_partners, movement)))
    )

    def find() -> Contact:
        contact = contact_between(first, second, _columns(world.box, second.position), rules.boundaries)
        return contact._replace(overlap=jnp.where(counts, contact.overlap, -1.0))

    def respond() -> Response:
        deepest = world.deepest * jnp.minimum(first.radius, second.radius)
        of_contact = rules.law, world.material.stiffness, world.material, contact._replace(deepest=deepest)
        if not rules.rough:
            force = contact_laws.smooth_response(*of_contact)
            return Response(force, jnp.zeros_like(contact.spin), state.springs)
        motion = of_first, of_second, since, world.time_step, _columns(world.box, contact.normal)
        slip = _stage(world, lambda: slip_between(first, second, *motion, rules.boundaries))
        return contact_laws.rough_response(*of_contact, slip, state.springs)

    def moments() -> tuple[Array, Array, Array]:
        arms = lever_arms(first, second, first.radius + second.radius - contact.overlap)
        return *arms, torque_of(contact.normal, response.force)

    contact = _stage(world, find)
    response = _stage(world, respond)
    force = _sum_of_contacts(rules, response.force, -response.force)
    if not rules.rough:
        return nothing._replace(force=force)
    # Of all pairs two sums read the moments, of lists one.
    arm, other_arm, moment = _stage(world, moments) if rules.layout is None else moments()
    torque = _sum_of_contacts(rules, arm * moment + response.torque, other_arm * moment - response.torque)
    return Response(force, torque, response.spring)


def _partners(state: ParticleState) -> tuple[Callable[[Array], Array], Array]:
    """Return the function that maps what belongs to particles, [C, N, ...], to what belongs to their partners,
    [C, rows, N, ...], and which of these are contacts that count, [rows, N, ...].
    """
    number = state.position.shape[1]
    if state.neighbours:
        is_there = state.neighbours.partner < number
        index = jnp.where(is_there, state.neighbours.partner, 0)
        return lambda x: x[:, index], is_there
    counts = jnp.asarray(pairs.counted_pairs(number))
    return pairs.of_partners, counts.reshape(counts.shape + (1,) * (state.position.ndim - 2))
