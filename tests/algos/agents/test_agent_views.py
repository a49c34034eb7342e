"""What agents and critics are shown; the parts that train are held by `test_independent.py`."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algos.agents.agent_views import IDENTITY, View
from shoal.algos.agents.agents_config import AgentsConfig
from shoal.envs.base import restart
from shoal.ops import statistics
from shoal.types import EnvSpec, TimeStep
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
