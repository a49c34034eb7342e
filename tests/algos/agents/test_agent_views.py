"""What agents and critics are shown; the parts that train are held by `test_independent.py`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.agents.agent_views import EVERYBODY, IDENTITY, View
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.envs.base import restart
from shoal.nets.actor_critic import policy_and_value
from shoal.ops import statistics
from shoal.types import GLOBAL_STATE, EnvSpec, TimeStep
from shoal.types.agent_axis import PRESENT
from shoal.types.spaces import Box, Dict, Discrete


@pytest.mark.full
def test_flags_stay_what_they_are_where_observations_are_normalised():
    view = View(EnvSpec(Box(-1.0, 1.0, (2,)), Discrete(2), 3), True, "own", says_who_is_present=True)
    timestep = restart(jnp.full((3, 2), 5.0), num_agents=3)
    shown = view.of_actors(timestep).observation
    entries = view.spec_of_agent.observation_space
    for name, x in shown.items():
        assert entries[name].dtype == x.dtype and entries[name].shape == x.shape[1:]
    example = {name: x[0] for name, x in shown.items()}
    moments = statistics.update_moments(statistics.init_moments(example), shown, jnp.ones(3))
    normalised = statistics.normalise(moments, shown)
    np.testing.assert_array_equal(normalised[PRESENT], 1)
    np.testing.assert_array_equal(normalised[IDENTITY], np.eye(3))
    np.testing.assert_allclose(normalised["observation"], 0.0)


def test_a_policy_acts_in_worlds_of_other_numbers_if_all_agents_share_it_and_are_shown_the_same():
    spec = EnvSpec(Box(-1.0, 1.0, (2,)), Discrete(2), 3)
    more, wider, alone = (
        spec._replace(num_agents=5),
        spec._replace(action_space=Discrete(3)),
        spec._replace(num_agents=1),
    )
    assert AgentsConfig().acts_alike(spec, more) and AgentsConfig(critic_input="everybody").acts_alike(
        spec, more
    )
    assert not AgentsConfig(agent_id=True).acts_alike(spec, more)
    assert not AgentsConfig(parameters="agent").acts_alike(spec, more)
    assert not AgentsConfig().acts_alike(spec, wider) and not AgentsConfig().acts_alike(spec, alone)


@pytest.mark.quick("own")
@pytest.mark.parametrize("critic_input", ["own", "everybody"])
def test_a_critic_is_not_shown_what_is_for_the_actor_alone(critic_input):
    space = Dict({"eye": Box(-1.0, 1.0, (2,)), "hint": Box(-1.0, 1.0, (3,))})
    view = View(EnvSpec(space, Discrete(2), 2, actor_only=("hint",)), False, critic_input)
    spec, of_critic = view.spec_of_agent, view.spec_of_agent.of_critic.observation_space
    assert set(spec.of_actor.observation_space) == {"eye", "hint"} and "hint" not in of_critic
    if critic_input == "everybody":
        assert set(of_critic) == {"everybody"} and of_critic["everybody"].shape == (2 * (1 + 2),)
    eye, hint = jnp.ones((4, 2, 2)), jnp.full((4, 2, 3), 7.0)
    zeros = jnp.zeros((4, 2))
    timestep = TimeStep({"eye": eye, "hint": hint}, zeros, zeros, zeros[:, 0] > 0, zeros[:, 0] > 0)
    shown = view.of_critics(timestep).observation
    assert {name: x.shape[2:] for name, x in shown.items()} == {
        name: part.shape for name, part in spec.observation_space.items()
    }
    assert all(not np.any(x == 7.0) for name, x in shown.items() if name != "hint")


@pytest.mark.quick("own")
@pytest.mark.parametrize("critic_input", ["own", "state", "everybody", "state_and_own"])
def test_agents_are_shown_the_observations_of_all_and_critics_what_is_chosen_beside(critic_input):
    space = Dict(
        {"eye": Box(-1.0, 1.0, (2,)), "hint": Box(-1.0, 1.0, (1,)), GLOBAL_STATE: Box(-1.0, 1.0, (5,))}
    )
    world = EnvSpec(space, Discrete(2), 3, critic_only=(GLOBAL_STATE,), actor_only=("hint",))
    view = View(world, critic_input == "everybody", critic_input, agent_input="everybody")
    spec = view.spec_of_agent
    of_actor, of_critic = (set(x.observation_space) for x in (spec.of_actor, spec.of_critic))
    numbers = {IDENTITY} & of_actor
    assert of_actor == {EVERYBODY, "hint"} | numbers and bool(numbers) is (critic_input == "everybody")
    expected = {
        "own": {EVERYBODY},
        "state": {GLOBAL_STATE},
        "everybody": {EVERYBODY},
        "state_and_own": {GLOBAL_STATE, EVERYBODY, IDENTITY},
    }
    assert of_critic == expected[critic_input]
    eye = jnp.arange(12.0).reshape(2, 3, 2)
    observation = {"eye": eye, "hint": jnp.ones((2, 3, 1)), GLOBAL_STATE: jnp.zeros((2, 5))}
    ends = jnp.zeros(2, bool)
    alive = jnp.asarray([[True, False, True]] * 2)
    timestep = TimeStep(observation, jnp.zeros((2, 3)), jnp.ones((2, 3)), ends, ends, alive=alive)
    for shown, entries in (
        (view.of_actors(timestep).observation, spec.of_actor.observation_space),
        (view.of_critics(timestep).observation, spec.observation_space),
    ):
        assert {name: x.shape for name, x in shown.items()} == {
            name: (2, 3, *part.shape) for name, part in entries.items()
        }
        np.testing.assert_array_equal(shown[EVERYBODY][1, 2], [1, 6, 7, 0, 0, 0, 1, 10, 11])
        np.testing.assert_array_equal(shown[EVERYBODY][1, 0], shown[EVERYBODY][1, 2])


def test_one_policy_of_the_observations_of_all_tells_agents_apart_and_fits_their_number_alone():
    world = EnvSpec(Box(-1.0, 1.0, (2,)), Discrete(3), 4)
    config = with_settings(
        PPOConfig(), network="shoal.nets.joint:JointActorCritic", agents_as="flat", hidden_sizes=(8,)
    )
    spec = config.agents.view(world, True).spec_of_agent
    network = config.network.build(spec, jax.random.key(0))
    eye, present = jax.random.normal(jax.random.key(1), (5, 4, 2)), jnp.ones((5, 4, 1), jnp.int8)
    distribution, value = policy_and_value(network, {"observation": eye, PRESENT: present})
    assert distribution.logits.shape == (5, 4, 3) and value.shape == (5, 4)
    moved = eye.at[:, 3].add(1.0)
    other = network.value({"observation": moved, PRESENT: present})
    assert np.all(np.abs(other - value) > 0)  # what one agent sees changes the values of all
    mirrored = network.policy({"observation": eye[:, ::-1], PRESENT: present}).logits[:, ::-1]
    assert not np.allclose(mirrored, distribution.logits)
    absent = present.at[:, 3].set(0)
    nobody = [network.value({"observation": x, PRESENT: absent}) for x in (eye, moved)]
    np.testing.assert_array_equal(*nobody)
    assert not config.acts_alike(world, world._replace(num_agents=5)) and config.acts_alike(world, world)
    attending = with_settings(PPOConfig(), network="shoal.nets.joint:JointActorCritic")
    assert attending.acts_alike(world, world._replace(num_agents=5))
