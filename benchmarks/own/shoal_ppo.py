"""Shoal's PPO with the workload's sizes; what its rollouts and its trainings need alike."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from protocol import Program

from shoal.algos.ppo_config import PPOConfig
from shoal.config.settings import with_settings
from shoal.engine.loop import train
from shoal.engine.population import member_layout as populations
from shoal.engine.run import ProgramSettings, Run
from shoal.records.run_config import RunConfig
from shoal.runs.plan.experiment import resolve
from shoal.runs.train import compiled_trainer
from shoal.runs.train.placement import hidden_weights
from shoal.types import Environment
from shoal.xla import machine


def ppo(**settings: Any) -> PPOConfig:
    """Four epochs of four minibatches, two 64x64 tanh networks, clip 0.2, unless other settings are given."""
    workload = with_settings(
        PPOConfig(),
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
    return with_settings(workload, **settings)


def population(
    make: Callable[[], Environment], config: PPOConfig, sizes: Namespace
) -> tuple[Run, ProgramSettings, populations.Layout]:
    """A population before its first update, whose members have learning rates of their own.

    The environments of a single member are spread over the devices, else the members are.
    """
    members, groups = sizes.members, sizes.devices if sizes.members == 1 else 1
    rows = sizes.num_envs * sizes.num_steps
    one_thread = machine.is_worth_one_thread(sizes.devices, members, rows, hidden_weights(config))
    machine.prepare(sizes.devices, one_thread=one_thread)  # as `shoal train` does, before the backend starts
    environment, config = make(), resolve(config)
    updates = 1_000_000  # what a schedule divides by: it hardly moves while it is measured
    run = RunConfig(
        seeds=members,
        total_steps=updates * sizes.num_envs * sizes.num_steps,
        num_envs=sizes.num_envs,
        num_steps=sizes.num_steps,
        devices=sizes.devices,
        env_groups=groups,
    )
    settings = compiled_trainer.program_settings(run, run.env_groups, run.score, None)
    layout = populations.lay_out(jax.devices()[: run.devices], members, groups)
    keys = jax.vmap(jax.random.key)(jnp.arange(members, dtype=jnp.uint32))
    rates = [config] if members == 1 else [with_rate(config, k / (members - 1)) for k in range(members)]
    environments, configs = (
        compiled_trainer.stack_members(environment, members),
        compiled_trainer.stack_variants(rates, members),
    )
    start = compiled_trainer.compile_run(keys, environments, configs, updates, settings, layout).population
    return start, settings, layout


def training(make: Callable[[], Environment], config: PPOConfig, sizes: Namespace, updates: int) -> Program:
    """A loop of so many updates a call, as `shoal.train` makes between two log points."""
    run, settings, layout = population(make, config, sizes)
    arguments = jnp.int32(updates), jnp.bool_(True)
    advance = compiled(populations.run_program(train, settings, layout), layout, run, *arguments)
    jax.block_until_ready(run)
    steps = updates * sizes.num_envs * sizes.num_steps * sizes.members
    return Program(lambda run: advance(run, *arguments), run, steps)


def with_rate(config: PPOConfig, share: float) -> PPOConfig:
    """The config with a learning rate between 1e-4 and 1e-2."""
    return with_settings(config, learning_rate=10 ** (2 * share - 4))


def compiled(program, layout: populations.Layout, *arguments):
    """The program as `shoal.train` compiles it."""
    return program.lower(*arguments).compile(layout.compiler_options)
