"""The tasks: starts, rewards, collisions, ends, refusals, randomisation, pictures; and the checker."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import envs
from shoal.base.errors import ShoalError
from shoal.envs.base import can_explain_faults, explain_fault, geometry, unwrapped
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.checking.checker import check
from shoal.envs.particles.physics import dynamics
from shoal.envs.particles.tasks import particle_scene
from shoal.envs.particles.tasks.particle_task import observe
from shoal.envs.particles.tasks.swarm import holders
from shoal.nets.actor_critic import Critic
from shoal.nets.actor_critic_config import ActorCriticConfig
from shoal.runs.plan.decide import decide
from shoal.runs.policies.evaluate import evaluate_run
from shoal.types import EnvSpec

NAMES = tuple(f"particles/{x}-v0" for x in ("Navigator", "MultiNavigator", "Roller", "MultiRoller", "Swarm"))


def env_has_one_agent(name):
    return name.split("/")[1] in ("Navigator-v0", "Roller-v0")


def three(**parameters):
    """A world of three agents, with few rays and steps."""
    return unwrapped(envs.make("particles/MultiNavigator-v0", num_agents=3, num_rays=4, **parameters))


START, STEP = {}, {}


def begun(env):
    """A start, compiled once for each environment of a structure, without what is observed."""
    function = jax.jit(lambda env: env.reset(jax.random.key(0))[0])
    return START.setdefault(jax.tree.structure(env), function)(env)


def step(env, state, action):
    """One step, compiled likewise."""
    function = jax.jit(lambda env, *rest: env.step(*rest, jax.random.key(0)))
    return STEP.setdefault(jax.tree.structure(env), function)(env, state, jnp.asarray(action, jnp.float32))


def placed(env, places, velocity=None, target=None):
    """A state with the agents at these places [A, 2]."""
    state = begun(env)
    position = jnp.asarray(np.transpose(places), jnp.float32)
    speed = jnp.zeros_like(position) if velocity is None else jnp.asarray(np.transpose(velocity), jnp.float32)
    particles = state.particles._replace(position=position, velocity=speed)
    target = state.target if target is None else jnp.asarray(np.transpose(target), jnp.float32)
    return state._replace(particles=particles, target=target)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_the_checker_finds_nothing(name):
    small = {} if env_has_one_agent(name) else {"num_agents": 2, "num_rays": 2}
    if "Swarm" in name:
        small["num_targets"] = 1
    assert check(envs.make(name, physics_steps=2, max_episode_steps=40, **small)) == []


@pytest.mark.full
def test_the_reward_has_a_potential_work_collisions_and_a_bonus():
    env = three(gamma=0.9, work_weight=0.5, collision_penalty=2.0, bonus=10.0, drive=1.0)
    places = [(3.0, 3.0), (6.0, 6.0), (8.0, 6.0)]
    velocity = [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0)]  # the last two touch and meet
    target = [(3.0, 3.5), (6.0, 9.0), (2.0, 6.0)]
    before = placed(env, np.add(places, [(0, 0), (-0.05, 0), (0.05, 0)]), velocity, target)
    after, timestep = step(env, before, np.zeros((3, 2)))
    old, new = (np.hypot(*(np.transpose(target) - np.asarray(x.particles.position))) for x in (before, after))
    bonus = 10.0 * 0.1 * (new <= 1)
    expected = old - 0.9 * new + bonus - 2.0 * np.array([0, 1, 1])
    np.testing.assert_allclose(timestep.reward, expected, atol=1e-5)
    assert float(timestep.info["collisions"]) == pytest.approx(2 / 3)
    assert float(timestep.info["success"]) == pytest.approx(1 / 3)
    assert float(timestep.info["distance"]) == pytest.approx(new.mean(), rel=1e-5)
    _, again = step(env, after, np.zeros((3, 2)))
    assert float(again.info["collisions"]) == 0  # the contact goes on
    # A force works along the way that it moves its agent: F v Δt, with the mean of the velocities.
    pushed, paid = step(env, placed(env, places, None, target), [(1.0, 0.0), (0.0, 0.0), (0.0, 0.0)])
    shift = np.hypot(*(np.asarray(pushed.particles.position)[:, 0] - np.array(target[0]))) - 0.5
    work = float(pushed.particles.velocity[0, 0]) / 2 * 0.1
    assert float(paid.reward[0]) == pytest.approx(0.5 - 0.9 * (0.5 + shift) + 1.0 - 0.5 * work, abs=1e-4)


@pytest.mark.full
def test_a_world_terminates_when_all_have_held_their_targets():
    env = three(bonus=10.0, gamma=0.9)
    places = [(2.0, 2.0), (6.0, 6.0), (9.0, 2.0)]
    state, held = placed(env, places, target=places), []
    for _ in range(5):
        state, timestep = step(env, state, np.zeros((3, 2)))
        held.append((bool(timestep.last), float(timestep.discount[0])))
    assert held == [(False, 1.0)] * 4 + [(True, 0.0)]
    np.testing.assert_allclose(timestep.reward, 10.0, atol=1e-5)  # the potential is 0 after termination
    state = placed(env, places, target=[places[0], places[1], (2.0, 9.0)])
    for _ in range(6):
        state, timestep = step(env, state, np.zeros((3, 2)))
    assert not timestep.last and float(timestep.info["success"]) == pytest.approx(2 / 3)


@pytest.mark.full
def test_a_cell_list_computes_what_all_pairs_do_or_says_what_it_lacks():
    lists, pairs = three(neighbours="cells", cell_capacity=2, max_neighbours=2), three()
    places, velocity = [(3.0, 3.0), (5.05, 3.0), (8.0, 6.0)], [(1.0, 0.0), (-1.0, 0.1), (0.0, 1.0)]
    ends = [step(env, placed(env, places, velocity), np.ones((3, 2))) for env in (lists, pairs)]
    (listed, listed_timestep), (paired, timestep) = ends
    assert np.abs(paired.particles.force).max() > 1
    np.testing.assert_allclose(listed.particles.velocity, paired.particles.velocity, atol=1e-5)
    np.testing.assert_allclose(listed_timestep.reward, timestep.reward, atol=1e-5)
    assert explain_fault(lists, listed) is None and explain_fault(pairs, paired) is None
    assert can_explain_faults(envs.TimeLimit(lists, 10)) and can_explain_faults(envs.TimeLimit(pairs, 10))
    crowd, timestep = step(lists, placed(lists, [(3.0, 3.0), (3.5, 3.5), (4.0, 4.0)]), np.zeros((3, 2)))
    assert np.isnan(timestep.reward).all()
    wrapped = envs.TimeLimit(lists, 10)
    state = begun(wrapped)._replace(env=crowd)
    assert explain_fault(wrapped, state).startswith("cell_capacity=2 is too few: a cell held 3 particles")
    many = unwrapped(envs.make("particles/MultiNavigator-v0", num_agents=1025))
    assert many.layout.cells == (84, 84) and three().layout is None


def test_an_agent_whose_place_is_no_number_is_at_no_target():
    env = three()
    places = [(2.0, 2.0), (6.0, 6.0), (9.0, 2.0)]
    state = placed(env, places, target=places)
    state = state._replace(particles=state.particles._replace(position=state.particles.position * jnp.nan))
    for _ in range(5):
        state, timestep = step(env, state, np.zeros((3, 2)))
    assert not timestep.last and timestep.info["success"] == 0
    assert np.isnan(timestep.reward).all() and np.isnan(timestep.info["distance"])


@pytest.mark.parametrize("place, speed", [((4.25, 4.99), 5.0), ((4.5, 4.95), 10.0), ((4.3, 4.0), 5.0)])
def test_a_contact_that_begins_and_ends_within_a_decision_is_counted(place, speed):
    env = three(drag=0.0)
    state = placed(env, [(2.0, 3.0), place, (9.0, 9.0)], [(speed, 0.0), (0.0, 0.0), (0.0, 0.0)])
    collisions = 0.0
    for _ in range(int(35 / speed)):
        state, timestep = step(env, state, np.zeros((3, 2)))
        collisions += 3 * float(timestep.info["collisions"])
    assert collisions == pytest.approx(2)


@pytest.mark.full
@pytest.mark.parametrize("boundary", ["walls", "periodic"])
@pytest.mark.parametrize("neighbours", ["all", "cells"])
def test_contacts_that_begin_are_those_of_single_steps_counted_in_numpy(neighbours, boundary):
    """Dense worlds of fast discs, with walls left and met in one decision, and lists that are made anew."""
    dense = dict(area_per_agent=9.0, boundary=boundary, drag=0.0)
    env = unwrapped(envs.make("particles/MultiNavigator-v0", num_agents=16, **dense))
    env = dataclasses.replace(env, neighbours=neighbours, sensing=None, stiffness=1e4, time_step=1e-3)
    rules, nothing = env.rules, (jnp.zeros((2, 16)), jnp.zeros((1, 16)))
    once = jax.jit(lambda world, state: dynamics.advance(rules, world, state, *nothing))
    state = begun(env)
    velocity = 30 * jax.random.normal(jax.random.key(1), (2, 16))
    state = state._replace(particles=state.particles._replace(velocity=velocity))
    total = 0.0
    for _ in range(12):
        expected, single = np.zeros(16), state.particles
        touched = touching(single.position, state.world.box, boundary)
        for _ in range(env.physics_steps):
            single, before = once(state.world, single), touched
            touched = touching(single.position, state.world.box, boundary)
            expected += (touched & ~before).sum(1)
        state, timestep = step(env, state, np.zeros((16, 2)))
        np.testing.assert_allclose(state.particles.position, single.position, atol=1e-4)
        assert float(timestep.info["collisions"]) == pytest.approx(expected.mean())
        total += expected.sum()
    assert total > 20 and explain_fault(env, state) is None


def test_a_wall_is_met_also_where_the_opposite_one_is_left_in_one_step():
    env = unwrapped(envs.make("particles/Navigator-v0", area_per_agent=4.1, drag=0.0))
    _, timestep = step(env, placed(env, [(0.999, 1.0)], [(4.0, 0.0)]), np.zeros(2))
    assert timestep.info["collisions"] == 1


def touching(position, box, boundary):
    """What each disc of radius 1 touches: the other discs, and the four walls, [A, A + 4]."""
    place, box = np.asarray(position).T, np.asarray(box)
    offset = place[:, None] - place
    if boundary == "periodic":
        offset -= box * np.round(offset / box)
    discs = (np.hypot(*offset.T) < 2) & ~np.eye(len(place), dtype=bool)
    walls = np.concatenate([place, box - place], axis=1) < 1
    return np.concatenate([discs, walls & (boundary == "walls")], axis=1)


@pytest.mark.full
def test_agents_that_pass_through_each_other_are_named():
    """Without drag no speed is too great in a periodic box, and two that meet at 40 overlap by more than a radius."""
    env = three(boundary="periodic", drag=0.0)
    state = placed(env, [(2.0, 3.0), (6.0, 3.0), (8.0, 8.0)], [(20.0, 0.0), (-20.0, 0.0), (0.0, 0.0)])
    slow = placed(env, [(2.0, 3.0), (6.0, 3.0), (8.0, 8.0)], [(5.0, 0.0), (-5.0, 0.0), (0.0, 0.0)])
    for _ in range(4):
        state, timestep = step(env, state, np.zeros((3, 2)))
        slow, sound = step(env, slow, np.zeros((3, 2)))
    assert np.isnan(timestep.reward[:2]).all() and np.isfinite(sound.observation).all()
    assert explain_fault(env, slow) is None
    assert explain_fault(env, state).startswith(
        "two agents overlapped by more than 1 of the smaller one's radius"
    )
    for _ in range(2):
        slow, _ = step(env, slow, np.full((3, 2), np.nan))
    assert explain_fault(env, slow) == "an action was not finite"


def test_an_action_is_a_force_of_limited_length():
    env = three(drag=0.0, mass=2.0, drive=3.0)
    after, _ = step(env, placed(env, [(2, 2), (6, 6), (9, 2)]), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.0)])
    speed = 3.0 * np.array([np.sqrt(0.5), 0.5, 0]) / 2.0 * 0.1  # force / mass, for ten steps of 0.01
    np.testing.assert_allclose(after.particles.velocity, [speed, speed], rtol=1e-5)


@pytest.mark.full
def test_jaxdem_reward_and_team_reward():
    env = three(reward="jaxdem")
    before = placed(env, [(3, 3), (6, 6), (9, 2)], target=[(3, 4), (6, 9), (2, 9)])
    after, timestep = step(env, before, [(0, 1.0), (0, 1.0), (0, 0)])
    distance = [np.hypot(*np.asarray(x.target - x.particles.position)) for x in (before, after)]
    close = [np.exp(-2 * np.maximum(0, d - 0.5)) for d in distance]
    energy = 0.5 * (np.asarray(after.particles.velocity) ** 2).sum(0)
    gained = close[1] - close[0]
    expected = gained - 0.1 * energy + 0.2 * gained.mean() + 0.1 * (distance[1] <= 2.5)
    np.testing.assert_allclose(timestep.reward, expected, atol=1e-5)
    _, timestep = step(three(reward="jaxdem_single"), before, [(0, 1.0), (0, 1.0), (0, 0)])
    expected = np.exp(-2 * distance[1]) - np.exp(-2 * distance[0]) - 0.1 * energy
    np.testing.assert_allclose(timestep.reward, expected, atol=1e-5)


@pytest.mark.parametrize(
    "name, parameters, message",
    [
        ("Navigator", {"radius": [1, np.inf]}, "radius.high=inf is out of bounds: it must be finite"),
        ("MultiNavigator", {"radius": 0.0}, "radius=0 is out of bounds: it must be greater than 0"),
        ("MultiNavigator", {"restitution": 1.5},
            "restitution=1.5 is out of bounds: .* greater than 0 and at most 1"),
        ("MultiNavigator", {"num_agents": 2, "area_per_agent": 20.0, "boundary": "periodic", "neighbours": "cells"},
            r"periodic box of 6.32 radii, too small for three cells of 2.4 radii .* area_per_agent of 26 or more"),
        ("Navigator", {"area_per_agent": 3.0}, "distances of 2.5 radii: 0 fit into a box of 1.73 radii"),
        ("Navigator", {"stiffness": [50, 1e4]}, r"time_step=0.01 is too long: .* \(stiffness=10000, mass=1\)"),
        ("MultiNavigator", {"area_per_agent": 5.0},
            "num_agents=8 with area_per_agent=5 .* 4 fit into a box of 6.32"),
        ("Roller", {"law": "hertz", "stiffness": 400.0, "radius": [0.1, 1.0]},
            r"time_step=0.01 is too long: it must be at most 0.00824, .* radius=1,"),
        ("Navigator", {"mass": [1.0, 2.0, 3.0]}, r"^mass=\[1.0, 2.0, 3.0\] is neither a number nor a range"),
        ("Navigator", {"radius": [1.0, "b"]}, r"^radius=\[1.0, 'b'\] is neither a number nor a range"),
        ("Navigator", {"stiffness": [[1, 2], [3, 4]]}, "^stiffness=.* is neither a number nor a range"),
        ("MultiNavigator", {"boundary": "periodic", "reach": 100.0}, "^reach=100 is too long .* give 71.5 or"),
        ("MultiNavigator", {"mass": [2.0, 1.0]}, r"mass=\[2, 1\] is not a range"),
        ("MultiNavigator", {"sensing": "ray"}, "sensing='ray' is not one of None, rays, bins"),
        ("Roller", {"law": "hertz", "top_speed": 1e9}, "time_step=0.01 is too long: .* top_speed=1e[+]09"),
    ],
)  # fmt: skip
def test_impossible_parameters_are_refused(name, parameters, message):
    with pytest.raises(ShoalError, match=message):
        envs.make(f"particles/{name}-v0", **parameters)


@pytest.mark.full
def test_ranges_are_drawn_at_every_start():
    env = three(mass=[0.8, 2.0], radius=[0.5, 1.0], stiffness=[50, 70], friction=0.3)
    states = jax.jit(jax.vmap(lambda key: env.reset(key)[0]))(jax.random.split(jax.random.key(0), 50))
    assert states.world.mass.shape == (50, 3)
    for drawn, low, high in (
        (states.world.mass, 0.8, 2.0),
        (states.world.radius, 0.5, 1.0),
        (states.world.material.stiffness, 50, 70),
    ):
        assert (
            low <= drawn.min() < low + 0.1 * (high - low) and high - 0.1 * (high - low) < drawn.max() <= high
        )
    np.testing.assert_allclose(states.world.material.friction, 0.3)
    np.testing.assert_allclose(states.world.box, np.sqrt(120), rtol=1e-6)


@pytest.mark.full
def test_a_batch_computes_what_one_world_does():
    env = three(boundary="periodic")
    states, _ = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 4))
    action = jax.random.uniform(jax.random.key(1), (4, 3, 2), minval=-1.0)
    together, timestep = jax.jit(jax.vmap(lambda s, a: env.step(s, a, jax.random.key(0))))(states, action)
    for i in range(2):
        alone, single = step(env, jax.tree.map(lambda x, i=i: x[i], states), action[i])
        np.testing.assert_allclose(together.particles.position[i], alone.particles.position, atol=1e-5)
        np.testing.assert_allclose(timestep.observation[i], single.observation, atol=1e-4)
        np.testing.assert_allclose(timestep.reward[i], single.reward, atol=1e-5)


@pytest.mark.slow
def test_a_decision_of_one_step_is_one_step_of_the_physics():
    env = three(physics_steps=1)
    before = placed(env, [(3.0, 3.0), (4.9, 3.0), (8.0, 6.0)], [(1.0, 0.0), (-1.0, 0.1), (0.0, 1.0)])
    action = jnp.asarray([(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
    after, _ = step(env, before, action)
    expected = dynamics.advance(
        env.rules, before.world, before.particles, env.drive * action.T, jnp.zeros((1, 3))
    )
    np.testing.assert_allclose(after.particles.velocity, expected.velocity, rtol=1e-5, atol=1e-6)
    batch = jax.tree.map(lambda x: jnp.stack([x, x]), before)
    together, _ = jax.jit(jax.vmap(lambda s: env.step(s, action, jax.random.key(0))))(batch)
    np.testing.assert_allclose(together.particles.velocity[1], expected.velocity, rtol=1e-5, atol=1e-6)


@pytest.mark.full
def test_a_torque_rolls_a_sphere():
    env = unwrapped(envs.make("particles/Roller-v0", drag=0.0, drive=0.7))
    state = placed_sphere(env)
    for _ in range(10):
        state, timestep = step(env, state, (0.0, 1.0))
    # Torque T about y: without sliding v = ω r and v' = T / (r m (1 + 2/5)) along x.
    particles = state.particles
    assert float(particles.velocity[0, 0]) == pytest.approx(0.7 / 1.4 * 1.0, rel=1e-2)
    assert float(particles.spin[1, 0]) == pytest.approx(float(particles.velocity[0, 0]), rel=2e-2)
    assert abs(float(particles.velocity[1, 0])) < 1e-5
    assert timestep.observation.shape == (9,)


def placed_sphere(env):
    state = begun(env)
    place = state.particles.position.at[:2, 0].set(jnp.asarray([8.0, 10.0]))
    return state._replace(particles=state.particles._replace(position=place))


@pytest.mark.full
def test_pictures_and_the_state_of_the_world():
    env = three(global_state=True)
    state, timestep = jax.jit(env.reset)(jax.random.key(0))
    assert timestep.observation["global_state"].shape == (3, 8) and env.critic_only == ("global_state",)
    np.testing.assert_allclose(timestep.observation["observation"], jax.jit(observe)(env, state), rtol=1e-6)
    picture = envs.render(env, state)
    assert picture.shape == (480, 480, 3) and len(np.unique(picture.reshape(-1, 3), axis=0)) > 20


def ink(picture, place, side):
    """How dark the darkest pixel beside a place of the box is, and how colourful."""
    scale = (particle_scene.SIZE - 2 * particle_scene.MARGIN) / side
    column, row = (round(particle_scene.MARGIN + scale * x) for x in (place[0], side - place[1]))
    near = picture[row - 1 : row + 2, column - 1 : column + 2].reshape(-1, 3).astype(int)
    darkest = near[near.sum(1).argmin()]
    return 765 - darkest.sum(), np.ptp(darkest)


@pytest.mark.full
def test_a_picture_has_rays_walls_and_the_way_of_the_last_seconds():
    env = three(area_per_agent=300.0)  # a side of 30, of which the rays reach 6
    side, target = 30.0, [(25, 25)] * 3
    before, state = (placed(env, [(4, 20), (8, 20), (21, y)], target=target) for y in (16, 20))
    wrapped = envs.TimeLimit(env, 9)
    start = begun(wrapped)
    picture = envs.render(wrapped, start._replace(env=state))
    disc, wall, nothing, floor = (ink(picture, (x, 20), side)[0] for x in (6, 1.5, 17, 28.5))
    assert disc > 1.5 * wall and wall > 1.5 * nothing > 0 and floor == 0
    assert ink(picture, (30, 5), side)[0] > 400  # the wall
    with_trail = envs.render(wrapped, start._replace(env=state), [start._replace(env=before)] * 2)
    assert ink(with_trail, (21, 18.5), side)[1] > 40 > ink(picture, (21, 18.5), side)[1]
    image, mask = particle_scene.shaded_sphere(20, particle_scene.COLOURS[0])
    bright = image.astype(int).sum(2)
    assert mask[0, 0] == 0 and bright[12, 12] > bright[20, 20] > bright[31, 31]


@pytest.mark.full
def test_agents_are_points_and_their_contacts_lines():
    env = three(boundary="periodic", mass=[1.0, 2.0])
    side = float(np.sqrt(120))
    state = placed(env, [(0.5, 3.0), (side - 1.0, 3.0), (6.0, 8.0)], [(1.0, 0.5), (0.0, 0.0), (0.0, 0.0)])
    wrapped = envs.TimeLimit(env, 9)
    found = geometry(wrapped, begun(wrapped)._replace(env=state))
    np.testing.assert_allclose(found.points[:2], [(0.5, 3.0, 0.0), (side - 1.0, 3.0, 0.0)], rtol=1e-6)
    np.testing.assert_array_equal(found.fields["velocity"][0], (1.0, 0.5, 0.0))
    np.testing.assert_array_equal(found.fields["mass"], state.world.mass)
    # The two touch across the border.
    np.testing.assert_allclose(found.lines, [[(0.5, 3.0, 0.0), (-1.0, 3.0, 0.0)]], atol=1e-5)
    np.testing.assert_allclose(found.line_fields["overlap"], 0.5, atol=1e-5)
    roller = unwrapped(envs.make("particles/Roller-v0"))
    sphere = geometry(roller, placed_sphere(roller))
    assert sphere.points[0, 2] == pytest.approx(1 - 9.81 / 100, rel=1e-3) and sphere.lines.shape == (0, 2, 3)


@pytest.mark.slow
def test_the_state_of_a_swarm_is_two_sets_which_a_critic_reads_in_any_order():
    env = envs.make(
        "particles/Swarm-v0", num_agents=3, num_targets=2, num_rays=2, physics_steps=2, global_state=True
    )
    observation = env.reset(jax.random.key(0))[1].observation["global_state"]
    assert {name: x.shape for name, x in observation.items()} == {"agents": (3, 6), "targets": (2, 3)}
    spec = EnvSpec(env.observation_space["global_state"], env.action_space)
    critic = Critic(spec, ActorCriticConfig(encoder="set"), key=jax.random.key(1))
    mirrored = jax.tree.map(lambda x: x[::-1], observation)
    np.testing.assert_allclose(critic.value(mirrored), critic.value(observation), rtol=1e-5)
    require_contract(env)


@pytest.mark.full
def test_a_swarm_is_shown_free_and_held_targets_and_its_holders_are_paid():
    env = unwrapped(
        envs.make("particles/Swarm-v0", num_agents=3, num_targets=2, num_rays=4, gamma=0.9, bonus=7.0)
    )
    target = [(3.0, 5.0), (6.0, 5.0)]
    start = placed(env, [(3.0, 4.5), (6.0, 1.5), (9.0, 5.0)], target=target)
    _, timestep = step(env, start, np.zeros((3, 2)))
    assert timestep.observation.shape == (3, 4 + 2 * 4 + 1 + 2 + 3 * 4)
    nearest, shown = np.split(np.asarray(timestep.observation)[:, :13], [4], axis=1)
    np.testing.assert_allclose(nearest, [[0, 1, 0, 0.5 / 3], [0, 1, 0, 1], [-1, 0, -1, 0]], atol=1e-5)
    reach = float(env.target_reach)
    # East, north, west, south of each agent: the nearest free target, the nearest held one, and whether it holds one.
    np.testing.assert_allclose(
        shown[1], [1, 3.5 / reach, 1, 1, 1, np.hypot(3, 3.5) / reach, 1, 1, 0], atol=1e-5
    )
    np.testing.assert_allclose(shown[2], [1, 1, 3 / reach, 1, 1, 1, 6 / reach, 1, 0], atol=1e-5)
    np.testing.assert_allclose(
        shown[0], [np.hypot(3, 0.5) / reach, 1, 1, 1, 1, 0.5 / reach, 1, 1, 1], atol=1e-5
    )
    np.testing.assert_allclose(timestep.reward, [0.5 * 0.1 + 0.7, 3.5 * 0.1, 3 * 0.1], atol=1e-5)
    assert float(timestep.info["success"]) == 0.5 and float(timestep.info["decisions_below_90"]) == 1
    both = placed(env, [(3.0, 4.5), (3.0, 8.0), (6.0, 5.0)], target=target)
    for _ in range(5):
        both, ended = step(env, both, np.zeros((3, 2)))
    # A target pays its holder alone.
    np.testing.assert_allclose(ended.reward, [0.5 + 7.0, reach, 7.0], atol=1e-5)
    assert (
        ended.last
        and (np.asarray(ended.discount) == 0).all()
        and float(ended.info["decisions_below_90"]) == 0
    )


def test_a_target_is_held_by_the_nearest_agent_within_its_own_radius():
    env = unwrapped(envs.make("particles/Swarm-v0", num_agents=3, num_targets=1, num_rays=2))
    state = placed(env, [(3.0, 3.8), (3.0, 1.8), (4.4, 3.0)], target=[(3.0, 3.0)])  # at 0.8, 1.2 and 1.4
    tie = placed(env, [(3.5, 3.0), (2.5, 3.0), (9.0, 9.0)], target=[(3.0, 3.0)])
    radii = jnp.asarray([[0.5, 1.5, 1.5], [0.9, 1.5, 1.5], [0.5, 1, 1]])
    cases = [*(state._replace(world=state.world._replace(radius=radius)) for radius in radii), tie]
    held = jax.jit(jax.vmap(holders, (None, 0)))(env, jax.tree.map(lambda *x: jnp.stack(x), *cases))
    np.testing.assert_array_equal(held[:, :, 0], [[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]])


def test_agents_that_touch_across_a_border_have_an_edge():
    places, radius = np.array([(0.5, 3.0), (10.5, 3.0), (5.0, 5.0)]), np.ones(3)
    assert particle_scene._touched(places, radius, 11.0).tolist() == [True, True, False]
    assert not particle_scene._touched(places, radius, 0.0).any()


@pytest.mark.full
def test_a_run_with_another_discount_than_the_potentials_is_refused():
    name = "particles/Navigator-v0"
    with pytest.raises(
        ShoalError, match=r"^gamma=0.9 differs from 0.99, the `gamma` of the environment, by which it"
    ):
        decide(name, overrides={"gamma": 0.9}).validate()
    decide(name, environment_parameters={"gamma": 0.9}, overrides={"gamma": 0.9}).validate()
    decide(name, environment_parameters={"reward": "jaxdem"}, overrides={"gamma": 0.9}).validate()


@pytest.mark.slow
def test_a_policy_acts_in_a_world_of_more_agents(tmp_path):
    sizes = dict(num_envs=2, num_steps=4, total_steps=8, seeds=1, num_evals=1, eval_episodes=2)
    world = dict(num_agents=2, num_rays=2, physics_steps=2, max_episode_steps=5)
    name = "particles/MultiNavigator-v0"
    run = shoal.train(name, run_dir=tmp_path / "run", environment_parameters=world, **sizes)
    of_four = shoal.evaluate(run.policy(), name, episodes=2, **world | {"num_agents": 4})
    assert len([name for name in of_four if name.startswith("return_agent") and name.endswith("mean")]) == 4
    [of_seed] = evaluate_run(tmp_path / "run", num_agents=4, episodes=2)["metrics"].values()
    assert {name: of_seed[name] for name in of_four} == of_four
