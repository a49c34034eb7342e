import functools

import jax
import jax.numpy as jnp
import pytest

from shoal.engine import team
from shoal.engine.loop import update_once
from shoal.runs import compiled_trainer, plan


def flops(environment):
    """Of one update and its rollout, as traced."""
    decided = plan.decide(environment, overrides={"num_envs": 8, "num_steps": 4, "env_groups": 1})
    settings = compiled_trainer.settings_of(decided.run, 1, "return_mean", None)
    member = compiled_trainer.member_shapes(decided.environment, plan.resolve(decided.config), settings)
    return jax.jit(functools.partial(update_once)).lower(member).cost_analysis()["flops"]


@pytest.mark.full
def test_several_agents_cost_more_than_one():
    assert flops("mpe/Spread-v0") > flops("CartPole-v1")


def test_team_of_one_is_its_agent():
    environment = plan.decide("CartPole-v1", overrides={}).environment
    x = jnp.arange(3.0)
    assert team.of_team(environment, x) is x
