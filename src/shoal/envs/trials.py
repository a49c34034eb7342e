"""Trials: several episodes of one task, one after the other, as one long episode (for meta-learning)."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.config.arguments import LARGEST_INDEX
from shoal.envs import summaries
from shoal.envs.base import TimeStep, Wrapper, again, counted_reward, environment, parameter
from shoal.types import EPISODE_ENDED, Array, Environment, PyTree, State
from shoal.types.spaces import Dict, Discrete, Space
from shoal.xla import sparse_updates

OWN_ENTRIES = ("episode_index", "episode_return", "episode_length")  # of `info`, for the episode of this step
OF_EPISODE_SUFFIX = "_of_episode"  # suffix of the entries of `info` for each episode of the trial


class TrialState(NamedTuple):
    """State of a trial."""

    env: State
    episode: Array  # the index of the current episode, from 0
    returned: Array  # its return so far
    length: Array  # its steps so far
    alive: Array | None  # which agents take part in the next step; None for all
    info: Mapping[str, Array]  # the reductions of `info` over its steps
    log: Mapping[str, Array]  # of every episode by its index, [episodes, ...]; 0 for later episodes


@environment
class Trial(Wrapper):
    """Join `episodes` episodes of one task into one, so that an agent with a memory can learn within it.

    `first` and `last` mark the trial. Where an episode other than the last one ends, the next episode starts
    in the same step: the reward is the ended episode's, the observation and the action mask are the new
    one's, and the discount is 1, so that values and memory continue. The last episode ends the trial in its
    own way, by termination or by truncation, and its final observation is shown.

    The task stays the same: see `shoal.envs.base.again`.

    Observation: a dictionary with the inner observation under "observation" (or all entries of an inner
    dictionary) and "episode_ended", which is 1 if the step that led here ended an episode, else 0.

    `info` has, in addition to the inner environment's entries,
      `episode_index`, `episode_return`, `episode_length`: of the episode that the step belongs to, up to this step;
      `return_of_episode`, `length_of_episode`: of every episode by its index, [episodes], up to this step for the
        current one, 0 for later ones;
      `NAME_of_episode`: the same for each entry of the inner `info`, reduced over each episode as it declares.
    Attributes:
      episodes: the number of episodes of a trial.
    Source: Duan et al. 2016, "RL²: Fast Reinforcement Learning via Slow Reinforcement Learning", section 2.2
    (there too the agent is shown when an episode has ended, and its memory lasts until the trial ends).
    """

    episodes: int = parameter(low=1, high=LARGEST_INDEX)

    @property
    def observation_space(self) -> Dict:
        """The inner observation, and whether an episode has just ended."""
        inner = self.env.observation_space
        parts = dict(inner.items()) if isinstance(inner, Dict) else {"observation": inner}
        if EPISODE_ENDED in parts:
            raise ShoalError(
                f"a Trial adds {EPISODE_ENDED!r} to an observation that has it already; rename that entry"
            )
        return Dict({**parts, EPISODE_ENDED: Discrete(2)})

    @property
    def info_summaries(self) -> Mapping[str, str]:
        """The inner reductions, over the whole trial; for the trial's own entries the value at its end."""
        return MappingProxyType({**self.env.info_summaries, **dict.fromkeys(OWN_ENTRIES, "last")})

    def reset(self, key: Array) -> tuple[TrialState, TimeStep]:
        """Start a new trial with the first episode of a new task.

        Raises:
          ShoalError: the inner observation or `info` has an entry with a name that the trial uses.
        """
        inner, timestep = self.env.reset(key)
        self._check_names(timestep.info)
        zeros = summaries.initial(timestep.info, self.env.info_summaries)
        initial = TrialState(
            env=inner,
            episode=jnp.zeros((), jnp.int32),
            returned=jnp.zeros_like(timestep.reward),
            length=jnp.zeros((), jnp.int32),
            alive=timestep.alive,
            info=zeros,
            log={},
        )
        log = jax.tree.map(
            lambda x: jnp.zeros((self.episodes, *x.shape), x.dtype), _episode_results(initial, zeros)
        )
        state = initial._replace(log=log)
        return state, self._with_trial_entries(timestep, state, jnp.asarray(False))

    def step(self, state: TrialState, action: PyTree, key: Array) -> tuple[TrialState, TimeStep]:
        """Make one step, and start the next episode where this step ended an episode that is not the trial's last."""
        step_key, next_key = jax.random.split(key)
        inner, timestep = self.env.step(state.env, action, step_key)
        state = self._log_step(state._replace(env=inner), timestep)
        has_ended, is_last = timestep.last, state.episode == self.episodes - 1
        has_next = has_ended & ~is_last
        within_trial = timestep._replace(
            last=has_ended & is_last, discount=jnp.where(has_next, 1.0, timestep.discount)
        )
        outcome = self._with_trial_entries(within_trial, state, has_ended)
        return self._start_next_episode(has_next, state, outcome, next_key)

    def _start_next_episode(
        self, has_next: Array, state: TrialState, timestep: TimeStep, key: Array
    ) -> tuple[TrialState, TimeStep]:
        """Start the next episode of the task where there is one; the time-step has its first observation."""
        # Traced leaves of the environment may differ between members of a batch, so they are passed as
        # arguments.
        leaves, structure = jax.tree.flatten(self.env)
        traced = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)}

        def start_next(
            current: tuple[TrialState, TimeStep], key: Array, traced: dict[int, Array]
        ) -> tuple[TrialState, TimeStep]:
            state, timestep = current
            env = jax.tree.unflatten(structure, [traced.get(i, leaf) for i, leaf in enumerate(leaves)])
            inner, next_timestep = again(env, state.env, key)
            next_state = state._replace(
                env=inner,
                episode=state.episode + 1,
                returned=jnp.zeros_like(state.returned),
                length=jnp.zeros_like(state.length),
                alive=next_timestep.alive,
                info=jax.tree.map(jnp.zeros_like, state.info),
            )
            next_timestep = timestep._replace(
                observation=self._with_flag(next_timestep.observation, jnp.asarray(True)),
                action_mask=next_timestep.action_mask,
                alive=next_timestep.alive,
            )
            return next_state, next_timestep

        return sparse_updates.change_where(has_next, start_next, (state, timestep), key, traced)

    def inner_state(self, state: TrialState) -> State:
        """Return the inner environment's state."""
        return state.env

    def _log_step(self, state: TrialState, timestep: TimeStep) -> TrialState:
        """Add one step to the records of the current episode."""
        reductions = self.env.info_summaries
        updated = state._replace(
            returned=state.returned + counted_reward(self.env, timestep.reward, state.alive),
            length=state.length + 1,
            alive=timestep.alive,
            info=summaries.accumulate(state.info, timestep.info, reductions, state.length == 0),
        )
        results = _episode_results(updated, summaries.finalise(updated.info, reductions, updated.length))
        is_current = jnp.arange(self.episodes) == state.episode
        log = {
            name: jnp.where(is_current.reshape(-1, *[1] * x.ndim), x, state.log[name])
            for name, x in results.items()
        }
        return updated._replace(log=log)

    def _with_trial_entries(self, timestep: TimeStep, state: TrialState, has_ended: Array) -> TimeStep:
        """Add the flag to a time-step's observation, and the trial's own entries to its info."""
        observation = self._with_flag(timestep.observation, has_ended)
        own = dict(zip(OWN_ENTRIES, (state.episode, state.returned, state.length), strict=True))
        return timestep._replace(observation=observation, info={**timestep.info, **own, **state.log})

    def _with_flag(self, observation: PyTree, has_ended: Array) -> PyTree:
        """Add to an inner observation whether an episode has just ended."""
        is_dictionary = isinstance(self.env.observation_space, Dict)
        entries = observation if is_dictionary else {"observation": observation}
        agents = () if self.num_agents == 1 else (self.num_agents,)
        flag = jnp.broadcast_to(has_ended.astype(jnp.int32), agents)
        return {**entries, EPISODE_ENDED: flag}

    def _check_names(self, info: Mapping[str, Array]) -> None:
        of_episodes = (f"{name}{OF_EPISODE_SUFFIX}" for name in ("return", "length", *info))
        reserved = {*OWN_ENTRIES, "return", "length", *of_episodes}
        for name in info:
            if name in reserved:
                raise ShoalError(f"a Trial uses the name {name!r} in `info` itself; rename that entry")


@environment
class Consecutive(Trial):
    """Join `episodes` episodes of one task into one, as a Trial does, for a policy that was not trained in trials.

    The observation is the inner one, so that any policy of the inner environment can act.
    """

    @property
    def observation_space(self) -> Space:  # type: ignore[override]
        """The inner observation."""
        return self.env.observation_space

    def _with_flag(self, observation: PyTree, has_ended: Array) -> PyTree:
        return observation


def consecutive(env: Environment, episodes: int) -> Environment:
    """Return an environment whose episode is `episodes` episodes of the given one in a row; with 1 the given one.

    Raises:
      ShoalError: the episodes of the given one are trials.
    """
    if episodes == 1:
        return env
    space = env.observation_space
    if isinstance(space, Dict) and EPISODE_ENDED in space:
        raise ShoalError(
            f"{episodes} consecutive episodes cannot be played of trials, which are several episodes already; make "
            "them longer by trial_episodes."
        )
    return Consecutive(env, episodes=episodes)  # type: ignore[call-arg]


def _episode_results(state: TrialState, info: Mapping[str, Array]) -> dict[str, Array]:
    """Return the results of the current episode by their names in the log."""
    results = {"return": state.returned, "length": state.length, **info}
    return {f"{name}{OF_EPISODE_SUFFIX}": x for name, x in results.items()}
