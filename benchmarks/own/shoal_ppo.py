"""Shoal's PPO on CartPole with the workload's sizes; what its rollout and its training need alike."""

from argparse import Namespace

import jax
import jax.numpy as jnp

from shoal import envs
from shoal.algos.ppo import PPOConfig
from shoal.runtime import machine, trainer
from shoal.runtime import population as populations
from shoal.runtime.config import RunConfig
from shoal.runtime.run import Run, Settings


def ppo() -> PPOConfig:
    """Four epochs of four minibatches, two 64x64 tanh networks, clip 0.2."""
    config = PPOConfig(
        hidden_sizes=(64, 64),
        activation="tanh",
        update_epochs=4,
        num_minibatches=4,
        learning_rate=2.5e-4,
        clip_coef=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        clip_vloss=True,
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
    )
    return config.resolved()


def population(sizes: Namespace) -> tuple[Run, Settings, populations.Layout]:
    """One run of one seed before its first update, its environments spread over the devices."""
    if machine.worth_one_thread(sizes.devices, 1, sizes.num_envs, sizes.num_steps):
        machine.prepare(one_thread=True)  # as `shoal train` does
    updates = 1_000_000  # what a schedule would divide by; nothing here is scheduled
    run = RunConfig(
        seeds=1,
        total_steps=updates * sizes.num_envs * sizes.num_steps,
        num_envs=sizes.num_envs,
        num_steps=sizes.num_steps,
        devices=sizes.devices,
        env_groups=sizes.devices,
    )
    settings = trainer.settings_of(run, run.env_groups, run.score, None)
    layout = populations.layout(jax.devices()[: run.devices], run.seeds, run.env_groups)
    environment = trainer.stacked(envs.make("CartPole-v1"), run.seeds)
    keys = jnp.stack([jax.random.key(run.seed)])
    start, *_ = trainer.Programs(settings, layout).start(keys, environment, trainer.stacked(ppo(), run.seeds))
    return start, settings, layout


def compiled(program, layout: populations.Layout, *arguments):
    """The program as `shoal.train` compiles it."""
    return program.lower(*arguments).compile(trainer.options(layout))
