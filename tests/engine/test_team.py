import functools

import jax
import jax.numpy as jnp
import pytest

from shoal.algos.ppo import ppo
from shoal.algos.ppo_config import PPOConfig
from shoal.engine import rollout, team
from shoal.engine.loop import update_once
from shoal.runs import compiled_trainer, plan


def costs(environment):
    """FLOPs and bytes of one update and its rollout, as traced: what a compiler makes of it depends on its version."""
    decided = plan.decide(environment, overrides={"num_envs": 8, "num_steps": 4, "env_groups": 1})
    settings = compiled_trainer.settings_of(decided.run, 1, "return_mean", None)
    member = compiled_trainer.member_shapes(decided.environment, plan.resolve(decided.config), settings)
    cost = jax.jit(functools.partial(update_once)).lower(member).cost_analysis()
    return cost["flops"], cost["bytes accessed"]


@pytest.fixture
def without_agents(monkeypatch):
    """The runtime and PPO as they would be if there were no worlds of several agents."""

    def apply():
        monkeypatch.setattr(team, "of_team", lambda environment, x: x)
        monkeypatch.setattr(rollout, "counted_reward", lambda environment, reward, alive: reward)
        monkeypatch.setattr(team, "zeros", lambda environment, count: jnp.zeros(count))
        monkeypatch.setattr(
            PPOConfig, "algorithm", lambda self, spec, axis=(): ppo(self.with_critic_defaults(), spec, axis)
        )

    return apply


@pytest.mark.parametrize("environment", ["CartPole-v1", "Pendulum-v1"])
def test_the_axis_of_agents_costs_one_agent_nothing(environment, without_agents):
    with_agents = costs(environment)
    without_agents()
    assert with_agents == costs(environment)


@pytest.mark.full
def test_several_agents_cost_more_than_one():
    assert costs("mpe/Spread-v0")[0] > costs("CartPole-v1")[0]


def test_team_of_one_is_its_agent():
    environment = plan.decide("CartPole-v1", overrides={}).environment
    x = jnp.arange(3.0)
    assert team.of_team(environment, x) is x
