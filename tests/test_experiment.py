import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal import envs, experiment
from shoal.envs.classic.cartpole import CartPole
from shoal.errors import ShoalError


def remade(described):
    name, parameters = described
    return shoal.make(name, **json.loads(json.dumps(parameters)))


@pytest.mark.parametrize(
    ("environment", "name", "parameters"),
    [
        (shoal.make("CartPole-v1"), "CartPole-v1", {}),
        (shoal.make("CartPole-v1", gravity=5.0), "CartPole-v1", {"gravity": 5.0}),
        (shoal.make("Pendulum-v1", max_episode_steps=50), "Pendulum-v1", {"max_episode_steps": 50}),
        (CartPole(force=jnp.float32(3)), "CartPole-v1", {"force": 3.0, "max_episode_steps": None}),
        (shoal.make("probe/endless"), "probe/endless", {}),
    ],
)
def test_an_environment_is_described_so_that_it_can_be_made_again(environment, name, parameters):
    assert experiment.described(environment) == (name, parameters)
    again = remade((name, parameters))
    assert jax.tree.structure(again) == jax.tree.structure(environment)
    assert all(map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(environment)))


def test_a_wrapper_without_a_name_is_not_described_as_something_else():
    stacked = envs.FrameStack(shoal.make("CartPole-v1"), 2)
    assert experiment.described(stacked) == ("shoal.envs.wrappers:FrameStack", {})


def test_an_environment_given_itself_has_the_preset_of_its_name():
    by_name = experiment.decide("CartPole-v1", overrides={})
    itself = experiment.decide(shoal.make("CartPole-v1"), overrides={})
    assert dataclasses.replace(itself, environment=by_name.environment) == by_name


def test_a_run_in_a_wrapper_is_loaded_beside_it(tmp_path):
    stacked = envs.FrameStack(shoal.make("CartPole-v1"), 2)
    run = shoal.train(
        stacked, seeds=1, total_steps=512, num_envs=4, num_steps=64, num_evals=0, eval_episodes=4,
        eval_max_steps=20, run_dir=str(tmp_path / "run"), progress=False,
    )  # fmt: skip
    _, action = run.policy()((), np.zeros((2, 4)))
    assert action in (0, 1)
    loaded = shoal.load(run.path, environment=stacked)
    assert jax.tree.structure(loaded.parameters) == jax.tree.structure(run.policy().parameters)
    with pytest.raises(ShoalError, match="FrameStack needs the parameter 'env'"):
        shoal.load(run.path)
