"""The training loop: K updates of one run as one compiled loop."""

import dataclasses

import jax
import jax.numpy as jnp

from shoal.runtime.contract import checked_update
from shoal.runtime.metrics import checked_means
from shoal.runtime.rollout import RolloutState, episode_metrics, no_ended_episodes, rollout
from shoal.runtime.run import Run, Stream, batch_of, clock_of, group_key, stream_key
from shoal.types import Array, Keys, Metrics, spec_of


def train(run: Run, num_updates: Array | int) -> tuple[Run, Metrics]:
    """Makes `num_updates` updates; their number is data, so that any number is one program.

    Returns:
      the run, and the sums of its metrics over these updates.
    """
    shapes = jax.eval_shape(lambda: update_once(run)[1])
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def body(_: Array, carry: tuple[Run, Metrics]) -> tuple[Run, Metrics]:
        run, metrics = carry
        run, new_metrics = update_once(run)
        return run, jax.tree.map(jnp.add, metrics, new_metrics)

    return jax.lax.fori_loop(0, num_updates, body, (run, zeros))


def update_once(run: Run) -> tuple[Run, Metrics]:
    """One rollout and one update from it."""
    settings = run.settings
    algorithm = run.config.algorithm(spec_of(run.environment), settings.axis)
    clock = clock_of(run)
    rollout_key = group_key(stream_key(run.key, Stream.ROLLOUT, run.updates), settings)
    rollout_state, trajectory = rollout(
        batch_of(run.environment, settings),
        algorithm,
        algorithm.policy(run.learner, clock),
        RolloutState(run.state, run.timestep, run.memory, run.episodes, no_ended_episodes()),
        rollout_key,
        settings.num_steps,
    )
    update_key = stream_key(run.key, Stream.UPDATE, run.updates)
    keys = Keys(shared=update_key, local=group_key(update_key, settings))
    result = algorithm.update(run.learner, trajectory, keys, clock)
    learner, metrics = checked_update(algorithm, result, run.learner)
    run = dataclasses.replace(
        run,
        learner=learner,
        state=rollout_state.state,
        timestep=rollout_state.timestep,
        memory=rollout_state.memory,
        episodes=rollout_state.episodes,
        updates=run.updates + 1,
    )
    own_metrics = episode_metrics(rollout_state.ended, settings.axis)
    source = f"the update of {type(run.config).__name__}"
    return run, {**checked_means(source, metrics, own_metrics), **own_metrics}
