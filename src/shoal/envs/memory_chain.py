"""MemoryChain: at the end of an episode, repeat a bit that was shown at its start."""

from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import TimeStep, environment, parameter, restart, transition
from shoal.types.spaces import Box, Discrete

TIME, QUERY, CONTEXT = 0, 1, 2  # indices of the observation's entries; the context takes all that follow
MAX_LENGTH = 10**9  # steps of an episode, which are counted in 32 bits
MAX_BITS = 10_000


class MemoryChainState(NamedTuple):
    """The bits to be remembered and the number of steps made."""

    context: jax.Array  # [num_bits], bool
    query: jax.Array  # index of the bit that will be asked for
    steps: jax.Array  # made so far


@environment
class MemoryChain:
    """Show random bits at the start; at the end the action must equal the one that is asked for.

    An observation is `[time left, query, context]`. The time left falls from 1 to 0. The context, -1 or 1 for
    each bit, is shown until the first action has been made. The query, the index of a bit, is shown only
    before the last action. Where they are not shown, they are 0. An episode has `length` + 1 steps and
    terminates: the reward of the last step is 1 if its action is the bit, else -1; all other actions have no
    effect.

    The same as bsuite's `memory_chain`, of which its experiment `memory_len` has one bit and the lengths 1 to
    100, and `memory_size` the length 2 and more bits. (As in bsuite, the first action does not make time
    pass, so that the start is shown twice and the last action is the one at time left `1 / length`.)

    `info["success"]` is 1 on a step whose answer is right.

    Source: Osband et al. 2020, "Behaviour Suite for Reinforcement Learning".
    """

    length: int = parameter(default=32, low=1, high=MAX_LENGTH)
    num_bits: int = parameter(default=1, low=1, high=MAX_BITS)

    action_space = Discrete(2)  # the bit
    info_summaries = MappingProxyType({"success": "max"})

    @property
    def observation_space(self) -> Box:
        """[time left, query, context], [2 + num_bits]."""
        bits = np.ones(self.num_bits)
        return Box(np.r_[0.0, 0.0, -bits], np.r_[1.0, max(self.num_bits - 1, 0), bits])

    def reset(self, key: jax.Array) -> tuple[MemoryChainState, TimeStep]:
        """Draw the bits and the index of the bit that will be asked for."""
        context_key, query_key = jax.random.split(key)
        state = MemoryChainState(
            context=jax.random.bernoulli(context_key, shape=(self.num_bits,)),
            query=jax.random.randint(query_key, (), 0, self.num_bits),
            steps=jnp.zeros((), jnp.int32),
        )
        return state, restart(self._observe(state), info={"success": jnp.zeros((), jnp.float32)})

    def step(
        self, state: MemoryChainState, action: jax.Array, key: jax.Array
    ) -> tuple[MemoryChainState, TimeStep]:
        """Make one step towards the answer, or check the answer; deterministic, the key is not used."""
        is_answer = state.steps == self.length
        is_correct = is_answer & (action == state.context[state.query])
        state = state._replace(steps=state.steps + 1)
        return state, transition(
            self._observe(state),
            reward=jnp.where(is_answer, jnp.where(is_correct, 1.0, -1.0), 0.0),
            terminated=is_answer,
            info={"success": is_correct.astype(jnp.float32)},
        )

    def _observe(self, state: MemoryChainState) -> jax.Array:
        elapsed = jnp.maximum(state.steps - 1, 0)  # the first action is made before time begins to pass
        bits = jnp.where(elapsed == 0, jnp.where(state.context, 1.0, -1.0), 0.0)
        query = jnp.where(elapsed == self.length - 1, state.query.astype(jnp.float32), 0.0)
        return jnp.concatenate([jnp.stack([1.0 - elapsed / self.length, query]), bits])
