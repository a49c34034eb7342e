"""Runs of SAC and TD3: sweeps of what is data, populations that exchange, groups, and agents of several roles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import envs
from shoal.config.struct import named_leaves
from shoal.envs.team_probe import TeamProbe
from shoal.types import restart, transition
from shoal.types.spaces import Box, Dict

pytestmark = [pytest.mark.usefixtures("undrawn"), pytest.mark.full]

TINY = {
    **{
        "hidden_sizes": (8,),
        "learning_starts": 64,
        "batch_size": 16,
        "buffer_size": 512,
        "train_frequency": 8,
    },
    **{
        "num_envs": 4,
        "num_steps": 8,
        "total_steps": 32 * 12,
        "devices": 1,
        "progress": False,
        "preset": False,
    },
}
EVALUATED = {"eval_every": 192, "eval_episodes": 4, "eval_max_steps": 20}
GRIDS = {
    "sac": {"alpha": [0.1, 0.5], "tau": [0.01, 0.5], "learning_rate": [1e-3, 1e-2]},
    "td3": {"exploration_noise": [0.1, 0.6], "tau": [0.01, 0.5], "critic_learning_rate": [1e-3, 1e-2]},
}


@envs.environment
class Pair:
    """Two roles, of which the second has one number of two; the reward is the number that each has first."""

    observation_space = Dict({"seen": Box(-1.0, 1.0, (2,)), "hidden": Box(-1.0, 1.0, (1,))})
    action_space = Box(-2.0, 2.0, (2,))
    num_agents, roles = 2, ("wide", "narrow")
    critic_only = ("hidden",)
    team_return = "sum"

    def show(self):
        return {"seen": jnp.zeros((2, 2)), "hidden": jnp.zeros((2, 1))}

    def reset(self, key):
        return jnp.int32(0), restart(self.show(), num_agents=2, action_mask=MASK)

    def step(self, state, action, key):
        reward = jnp.where(action[1, 1] == 0, action[:, 0], jnp.nan)  # in the middle, where there is none
        return state + 1, transition(self.show(), reward, truncated=state >= 3, action_mask=MASK)


MASK = jnp.asarray([[True, True], [True, False]])


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.slow
def test_members_that_differ_in_numbers_are_one_program(tmp_path, name, capfd):
    fixed = {"autotune": False} if name == "sac" else {}
    kept = {"confirm_seeds": 0, "seeds": 1} | EVALUATED
    settings = TINY | kept | fixed | {"progress": True}
    shoal.sweep("Pendulum-v1", algorithm=name, run_dir=tmp_path, grid=GRIDS[name], **settings)
    assert "1 new compiled group" in capfd.readouterr().err


@pytest.mark.parametrize("name, tune", [("sac", "critic_learning_rate"), ("td3", "exploration_noise")])
@pytest.mark.rare("sac-critic_learning_rate")
def test_a_population_exchanges_what_it_has_learned(tmp_path, name, tune):
    sizes = {"members": 5, "ready_every": 96, "eval_episodes": 32, "eval_max_steps": 20}
    space = {tune: "log:1e-3:1e-1", "tau": "log:1e-3:1"}
    shoal.pbt("Pendulum-v1", algorithm=name, run_dir=tmp_path, tune=space, **sizes, **TINY)
    assert (tmp_path / "best.safetensors").exists()


@pytest.mark.parametrize("name", ["sac", "td3"])
@pytest.mark.slow
def test_groups_on_two_devices_learn_one_policy(tmp_path, name):
    """What one device learns of two groups, two devices learn within rounding."""
    both = []
    for devices in (1, 2):
        settings = TINY | {"devices": devices, "seeds": 1, "env_groups": 2, "norm_obs": True}
        run = shoal.train("Pendulum-v1", algorithm=name, run_dir=tmp_path / str(devices), **settings)
        both.append(named_leaves(jax.device_get(run.learner.shared.network)))
    for leaf, x in both[0].items():
        np.testing.assert_allclose(x, both[1][leaf], rtol=1e-3, atol=1e-5, err_msg=leaf)


@pytest.mark.parametrize(
    "parameters", ["role", *(pytest.param(x, marks=pytest.mark.slow) for x in ("shared", "agent"))]
)
@pytest.mark.parametrize(
    "name, environment",
    [
        ("td3", Pair()),
        *(pytest.param("sac", x, marks=pytest.mark.slow) for x in (Pair(), TeamProbe(fill=7.5))),
    ],
)
@pytest.mark.full
def test_agents_of_several_roles_learn(tmp_path, name, environment, parameters):
    """With parameters of their own or shared, though some have fewer numbers, or are absent now and then."""
    settings = TINY | {"seeds": 1, "parameters": parameters, "norm_obs": True}
    run = shoal.train(environment, algorithm=name, run_dir=tmp_path, **settings)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(run.learner.shared)))
