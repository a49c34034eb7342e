"""Players that are no policies, and two players of one world."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.engine.players import RandomPlayer, ScriptedPlayer, pair
from shoal.envs.team_probe import LEGAL, ROLES, TeamProbe
from shoal.types import EnvSpec, TimeStep, spec_of
from shoal.types.spaces import Box, Dict, Discrete

N = 64


def timestep(mask=None):
    zeros = jnp.zeros((N, 3))
    ends = jnp.zeros(N, bool)
    return TimeStep(jnp.arange(N * 3.0).reshape(N, 3), zeros, zeros + 1, ends, ends, mask)


@pytest.mark.full
def test_random_actions_are_legal_and_all_of_them_are_drawn():
    mask = jnp.broadcast_to(jnp.asarray(LEGAL)[jnp.asarray(ROLES)], (N, 3, 3))
    algorithm = RandomPlayer().algorithm(spec_of(TeamProbe()))
    _, actions, _ = algorithm.act((), algorithm.memory((N,)), timestep(mask), jax.random.key(0))
    for agent, role in enumerate(ROLES):
        assert set(np.unique(actions[:, agent])) == set(np.flatnonzero(LEGAL[role]))
    _, actions, _ = algorithm.act((), (), timestep(), jax.random.key(0))
    assert all(set(np.unique(actions[:, agent])) == {0, 1, 2} for agent in range(3))


def test_a_function_is_given_one_world_at_a_time_and_two_players_share_it():
    space = Dict({"move": Box(-500.0, 500.0, (1,)), "word": Discrete(200)})
    spec = EnvSpec(Box(0.0, 1.0, ()), space, num_agents=3)

    def act(observation, key):
        assert observation.shape == (3,)
        return {"move": observation[:, None], "word": observation}

    def opposite(observation, key):
        return {"move": -observation[:, None], "word": jnp.zeros(3)}

    players = [ScriptedPlayer(x).algorithm(spec) for x in (act, opposite)]
    both = pair(*players, jnp.array([True, False, True]))
    assert both.memory((N,)) == ((), ())
    _, actions, _ = both.act(((), ()), ((), ()), timestep(), jax.random.key(0), greedy=True)
    expected = np.arange(N * 3.0).reshape(N, 3)
    np.testing.assert_array_equal(actions["word"], expected * [1, 0, 1])
    np.testing.assert_array_equal(actions["move"][..., 0], expected * [1, -1, 1])
    assert actions["word"].dtype == jnp.int32
