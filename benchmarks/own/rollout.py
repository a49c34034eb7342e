"""Shoal's rollout: acting and stepping, whole trajectories returned."""

import dataclasses
from argparse import Namespace

import jax
from protocol import Program, serve
from shoal_ppo import compiled, population, ppo

from shoal import envs
from shoal.engine.population import member_layout as populations
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Run, Stream, batch_of, group_key, stream_key
from shoal.types import Clock, Trajectory, spec_of


def act(run: Run) -> tuple[Run, Trajectory]:
    """One rollout of a run's policy, which does not change; counted as an update, so that keys differ."""
    algorithm = run.config.algorithm(spec_of(run.environment), run.settings.axis)
    rollout_state, trajectory = rollout(
        batch_of(run.environment, run.settings),
        algorithm,
        algorithm.policy(run.learner, Clock.zero()),
        RolloutState(run.state, run.timestep, run.memory, run.episodes, no_ended_episodes()),
        group_key(stream_key(run.key, Stream.ROLLOUT, run.updates), run.settings),
        run.settings.num_steps,
    )
    run = dataclasses.replace(
        run,
        state=rollout_state.state,
        timestep=rollout_state.timestep,
        memory=rollout_state.memory,
        episodes=rollout_state.episodes,
        updates=run.updates + 1,
    )
    return run, trajectory


def build(sizes: Namespace) -> Program:
    """One rollout a call."""
    run, settings, layout = population(lambda: envs.make("CartPole-v1"), ppo(), sizes)
    advance = compiled(populations.run_program(act, settings, layout), layout, run)
    jax.block_until_ready(run)
    return Program(advance, run, sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("shoal", "flax"))
