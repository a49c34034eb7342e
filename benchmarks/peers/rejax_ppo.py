"""rejax's PPO on CartPole with the workload's sizes; what its rollout and its training need alike."""

from argparse import Namespace
from typing import Any

from rejax import PPO


def ppo(sizes: Namespace, **settings: Any) -> PPO:
    """Four epochs of four minibatches, two 64x64 tanh networks, clip 0.2, unless other settings are given."""
    defaults = dict(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=sizes.num_envs,
        num_steps=sizes.num_steps,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=2.5e-4,
        clip_eps=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
    )
    return PPO.create(**defaults | settings)
