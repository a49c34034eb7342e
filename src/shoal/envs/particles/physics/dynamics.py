"""One step of a world: contacts of particles and walls, and the integrators.

`Rules` are static; everything in `World` and `ParticleState` is data, so that different worlds step under one `vmap`.
All arrays have the axis of particles behind that of components, [D, N] or [S, N] or [N]; without a cell list any
further axes may follow (`vectors`). Units are SI, or any other consistent ones.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.particles.physics import cell_lists, pairs
from shoal.envs.particles.physics.bodies import (
    Bodies,
    Movement,
    contact_between,
    lever_arms,
    map_bodies,
    slip_between,
)
from shoal.envs.particles.physics.boxes import (
    holds_one_image,
    into_box,
    nearest_image,
    wall_contacts,
    wall_directions,
    walled_axes,
)
from shoal.envs.particles.physics.cell_lists import CellLayout, NeighbourList
from shoal.envs.particles.physics.contact_laws import (
    Contact,
    Material,
    Response,
    Slip,
    rough_response,
    smooth_response,
)
from shoal.envs.particles.physics.vectors import dot, sum_rows, tangential, torque_of
from shoal.types import Array
from shoal.xla.single_evaluation import compute_once

INTEGRATORS = ("euler", "verlet")
SPIN_COMPONENTS = {2: 1, 3: 3}


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


class World(NamedTuple):
    """The bodies, material, box and forces of an episode's world; data."""

    radius: Array  # [N], m
    mass: Array  # [N], kg
    inertia: Array  # [N], kg m²
    material: Material
    box: Array  # sides, [D], m
    gravity: Array  # acceleration, [D], m/s²
    drag: Array  # force per velocity, kg/s
    angular_drag: Array  # torque per angular velocity, kg m²/s
    time_step: Array  # s
    skin: Array  # by how much lists of neighbours reach beyond contact, m; unused without a cell list
    # Overlap of two particles, in radii of the smaller one, beyond which their force is NaN; twice that with a wall.
    deepest: Array | float = math.inf


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
        position = jnp.where(holds_one_image(world.box, world.radius, rules.boundaries), position, jnp.nan)
    still = jnp.zeros((SPIN_COMPONENTS[dimensions], *position.shape[1:]), position.dtype)
    position = into_box(position, _columns(world.box, position), rules.boundaries)
    neighbours: NeighbourList | tuple[()] = ()
    if rules.layout is not None:
        neighbours = cell_lists.find_neighbours(
            rules.layout, position, world.radius, world.box, rules.boundaries, world.skin
        )
    rows = pairs.num_shifts(number) if rules.layout is None else rules.layout.max_neighbours
    walls = len(walled_axes(rules.boundaries))
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
    step = _euler_step if rules.integrator == "euler" else _verlet_step
    return step(rules, world, state, force, torque)


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
    velocity, spin = state.velocity + dt * acceleration, state.spin + dt * angular
    position = into_box(state.position + dt * velocity, _columns(world.box, state.position), rules.boundaries)
    moved = state._replace(position=position, velocity=velocity, spin=spin)
    return _with_contacts(rules, world, moved, Movement(velocity, spin), jnp.zeros_like(dt))


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
    position = into_box(
        state.position + dt * middle.velocity, _columns(world.box, state.position), rules.boundaries
    )
    moved = state._replace(position=position, velocity=end.velocity, spin=end.spin)
    moved = _with_contacts(rules, world, moved, middle, dt / 2)
    acceleration, angular = _accelerations(world, moved, end, force, torque)
    return moved._replace(
        velocity=middle.velocity + dt / 2 * acceleration, spin=middle.spin + dt / 2 * angular
    )


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
    if rules.layout is not None and isinstance(state.neighbours, NeighbourList):
        neighbours, springs = cell_lists.update_neighbours(
            rules.layout,
            state.neighbours,
            state.springs,
            state.position,
            world.radius,
            world.box,
            rules.boundaries,
            world.skin,
        )
        state = state._replace(neighbours=neighbours, springs=springs)
    inertia = _shared_inertia(rules, world, state)
    bodies = Bodies(state.position, state.velocity, state.spin, world.radius, world.mass, inertia)
    by_walls = _stage(world, lambda: _wall_forces(rules, world, state, bodies, movement))
    of_particles = _pair_forces if rules.layout is None else _neighbour_forces
    by_particles = of_particles(rules, world, state, bodies, movement, since)
    force, torque = by_walls.force + by_particles.force, by_walls.torque + by_particles.torque
    if isinstance(state.neighbours, NeighbourList):
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
    for axis in walled_axes(rules.boundaries):
        far = [box[axis] - position[axis]] if rules.boundaries[axis] == "walls" else []
        distances.append(jnp.stack([position[axis], *far]))
    walls = jnp.concatenate(distances) < radius
    of_partners, counts = _partners(state)
    offset = nearest_image(of_partners(position) - position[:, None], box[:, None], rules.boundaries)
    reach = radius + of_partners(radius[None])[0]
    return Touches(counts & (dot(offset, offset) < reach**2), walls)


def count_of_each(rules: Rules, touches: Touches) -> Array:
    """Return how many contacts each particle has, [N]."""
    of_pairs, of_walls = (x.astype(jnp.float32)[None] for x in touches)
    each = pairs.sum_over_pairs(of_pairs, of_pairs) if rules.layout is None else sum_rows(of_pairs)
    return (each + sum_rows(of_walls))[0]


def _stage(world: World, function: Callable[[], object]) -> Any:
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
    if not walled_axes(rules.boundaries):
        return nothing
    direction, distance = wall_directions(
        bodies.position, _columns(world.box, bodies.position), rules.boundaries
    )
    of_bodies = (bodies.radius, bodies.mass, bodies.inertia)
    contact = wall_contacts(direction, distance, bodies.velocity, bodies.spin, *of_bodies)
    contact = contact._replace(deepest=2 * world.deepest * bodies.radius)
    stiffness = world.material.wall_stiffness
    if not rules.rough:
        force = smooth_response(rules.law, stiffness, world.material, contact)
        return nothing._replace(force=sum_rows(force))
    sliding = wall_contacts(direction, distance, movement.velocity, movement.spin, *of_bodies).velocity
    slip = Slip(tangential(sliding, direction), world.time_step)
    response = rough_response(rules.law, stiffness, world.material, contact, slip, state.wall_springs)
    torque = torque_of(bodies.radius * direction, response.force) + response.torque
    return Response(sum_rows(response.force), sum_rows(torque), response.spring)


def _respond(
    rules: Rules,
    world: World,
    contact: Contact,
    particles: tuple[Bodies, Bodies],
    movements: tuple[Movement, Movement],
    since: Array,
    springs: Array,
) -> Response:
    """Return the effect of contacts on the first particles, without the torque of the tangential force."""
    stiffness = world.material.stiffness
    first, second = particles
    contact = contact._replace(deepest=world.deepest * jnp.minimum(first.radius, second.radius))
    if not rules.rough:
        force = smooth_response(rules.law, stiffness, world.material, contact)
        return Response(force, jnp.zeros_like(contact.spin), springs)
    box = _columns(world.box, contact.normal)
    slip = _stage(
        world,
        lambda: slip_between(*particles, *movements, since, world.time_step, box, rules.boundaries),
    )
    return rough_response(rules.law, stiffness, world.material, contact, slip, springs)


def _pair_forces(
    rules: Rules, world: World, state: ParticleState, bodies: Bodies, movement: Movement, since: Array
) -> Response:
    """Return the force [D, N] and torque [S, N] by all other particles, and the springs of all pairs."""
    number = state.position.shape[1]
    if number == 1:
        return Response(jnp.zeros_like(state.force), jnp.zeros_like(state.torque), state.springs)
    first, second, contact, response = _contacts_with(rules, world, state, bodies, movement, since)
    force = pairs.sum_over_pairs(response.force, -response.force)
    if not rules.rough:
        return Response(force, jnp.zeros_like(state.torque), state.springs)
    arm, other_arm, moment = _stage(world, lambda: _moments(first, second, contact, response))
    torque = pairs.sum_over_pairs(arm * moment + response.torque, other_arm * moment - response.torque)
    return Response(force, torque, response.spring)


def _neighbour_forces(
    rules: Rules, world: World, state: ParticleState, bodies: Bodies, movement: Movement, since: Array
) -> Response:
    """Return the force [D, N] and torque [S, N] by the particles in the lists, and the springs [D, K, N]."""
    first, second, contact, response = _contacts_with(rules, world, state, bodies, movement, since)
    force = sum_rows(response.force)
    if not rules.rough:
        return Response(force, jnp.zeros_like(state.torque), state.springs)
    arm, _, moment = _moments(first, second, contact, response)
    return Response(force, sum_rows(arm * moment + response.torque), response.spring)


def _partners(state: ParticleState) -> tuple[Callable[[Array], Array], Array]:
    """Return the function that maps what belongs to particles, [C, N, ...], to what belongs to their partners,
    [C, rows, N, ...], and which of these are contacts that count, [rows, N, ...].
    """
    number = state.position.shape[1]
    if isinstance(state.neighbours, NeighbourList):
        is_there = state.neighbours.partner < number
        index = jnp.where(is_there, state.neighbours.partner, 0)
        return lambda x: x[:, index], is_there
    counts = jnp.asarray(pairs.counted_pairs(number))
    return pairs.of_partners, counts.reshape(counts.shape + (1,) * (state.position.ndim - 2))


def _contacts_with(
    rules: Rules,
    world: World,
    state: ParticleState,
    bodies: Bodies,
    movement: Movement,
    since: Array,
) -> tuple[Bodies, Bodies, Contact, Response]:
    """Return the bodies of all contacts, the contacts, and their effect on the first bodies; see `_with_contacts`."""
    of_partners, counts = _partners(state)
    first, of_first = map_bodies(bodies, lambda x: x[:, None]), Movement(*(x[:, None] for x in movement))
    second, of_second = _stage(
        world, lambda: (map_bodies(bodies, of_partners), Movement(*map(of_partners, movement)))
    )

    def find() -> Contact:
        contact = contact_between(first, second, _columns(world.box, second.position), rules.boundaries)
        return contact._replace(overlap=jnp.where(counts, contact.overlap, -1.0))

    contact = _stage(world, find)
    movements = of_first, of_second
    response = _stage(
        world, lambda: _respond(rules, world, contact, (first, second), movements, since, state.springs)
    )
    return first, second, contact, response


def _moments(
    first: Bodies, second: Bodies, contact: Contact, response: Response
) -> tuple[Array, Array, Array]:
    """Return the lever arms of both bodies, from the distance of their centres, and the moment of the force on them."""
    arms = lever_arms(first, second, first.radius + second.radius - contact.overlap)
    return *arms, torque_of(contact.normal, response.force)
