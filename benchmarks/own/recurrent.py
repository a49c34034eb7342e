"""Shoal's recurrent PPO on a grid world: rollouts and updates, without evaluation."""

from argparse import Namespace

from protocol import Program, serve
from shoal_ppo import training

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings


def ppo() -> PPOConfig:
    """The settings of xminigrid's single-task baseline, with a GRU of 256."""
    return with_settings(
        PPOConfig(),
        encoder="cnn",
        hidden_sizes=(),
        shared_torso=True,
        core="gru",
        core_size=256,
        head_sizes=(256,),
        previous_action=True,
        action_embedding=16,
        previous_reward=True,
        update_epochs=1,
        num_minibatches=16,
        learning_rate=1e-3,
        lr_schedule="linear",
        optimizer_args=("eps=1e-8",),
        clip_coef=0.2,
        clip_vloss=True,
        ent_coef=0.01,
        vf_coef=0.5,
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
    )


def build(sizes: Namespace) -> Program:
    """One update a call."""
    return training(lambda: envs.make(sizes.environment, observe_direction=True), ppo(), sizes, updates=1)


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
