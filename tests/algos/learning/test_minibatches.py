"""Rows that are no transition: nothing of them is read, in any surrogate, space of actions, and memory."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import ENDS, acted, made

from shoal.algos.learning.surrogates import SURROGATES
from shoal.config import struct
from shoal.types import Clock, EnvSpec, Keys
from shoal.types.spaces import Box, Discrete, MultiDiscrete

BOX = Box(-2.0, 2.0, (2,))
ACTIONS = {
    "discrete": (Discrete(3), {}),
    "several": (MultiDiscrete((2, 3)), {}),
    "normal": (BOX, {"distribution": "normal", "correlated_noise": True}),
    "normal of the state": (BOX, {"state_dependent_std": True, "action_scaling": "clip"}),
    "tanh_normal": (BOX, {"distribution": "tanh_normal"}),
    "beta": (BOX, {"distribution": "beta"}),
}
INPUTS = {"previous_action": True, "previous_reward": True, "previous_observation": True, "first_flag": True}
MEMORIES = {
    "none": {"norm_value": "running", "clip_vloss": True},
    "gru": {"core": "gru", "chunk_length": 4, "burn_in": 2, **INPUTS},
    "lstm": {"core": "lstm", "shared_torso": True, "chunk_length": 2, **INPUTS},
    "mingru": {"core": "mingru", "chunk_length": 4, "burn_in": 4, **INPUTS},
}
ESTIMATES = {
    "once": {"advantage": "gae"},
    "epoch": {"recompute": "epoch", "norm_adv": "batch"},
    "minibatch": {"recompute": "minibatch", "chunk_length": 0, "burn_in": 0, "advantage": "gae"},
}
QUICK = ("penalty-normal-none",)
FULL = ("clip-several-gru", "dpo-normal-mingru")


def poisoned(trajectory, value, is_poisoned):
    """Put a value into every entry that has weight 0, and into what leads from the last step to a first one."""
    first, last, discount = (jnp.asarray(x) for x in ENDS)
    weightless, terminal = last[:-1], last & (discount == 0)

    def fill(tree, where):
        floats = jax.tree.map(lambda x: value if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)
        return struct.where(where & is_poisoned, jax.tree.map(jnp.full_like, tree, floats), tree)

    timesteps, extras = trajectory.timesteps, fill(trajectory.extras, weightless)
    # A value is bootstrapped from the memory after an observation at which an episode was cut.
    extras = extras._replace(memory=fill(trajectory.extras.memory, terminal[:-1]))
    return trajectory._replace(
        timesteps=timesteps._replace(
            observation=fill(timesteps.observation, terminal),
            reward=fill(timesteps.reward, first),
            discount=fill(timesteps.discount, first),
        ),
        actions=fill(trajectory.actions, weightless),
        extras=extras,
    )


@jax.jit
def updated(config, space, key, value, is_poisoned):
    """An update of a rollout whose unread entries hold a value."""
    spec = EnvSpec(Box(-3.0, 3.0, (2,)), ACTIONS[space.name][0])
    learner, trajectory = acted(config, key, spec=spec)
    result = config.algorithm(spec).update(
        learner, poisoned(trajectory, value, is_poisoned), Keys.of_one_group(key), Clock.zero()
    )
    return result[0].shared, result[1]


@jax.tree_util.register_static
class Named(str):
    """A static argument."""

    @property
    def name(self):
        return str(self)


CASES = {"-".join(case): case for case in itertools.product(SURROGATES, ACTIONS, MEMORIES)}
RARE = [case for case in CASES if case not in (*QUICK, *FULL)]


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
@pytest.mark.rare(*RARE)
@pytest.mark.rare("clip-several-gru", "penalty-normal-none")
def test_nothing_is_read_where_there_is_no_transition(case):
    """NaN and infinity in every entry of weight 0 give the same update, bit for bit."""
    surrogate, space, memory = CASES[case]
    kinds = list(ESTIMATES)[:1] if surrogate == "policy_gradient" else list(ESTIMATES)
    estimate = kinds[list(CASES).index(case) % len(kinds)]
    settings = MEMORIES[memory] | ACTIONS[space][1] | ESTIMATES[estimate]
    if memory == "none":
        settings = {x: y for x, y in settings.items() if x not in ("chunk_length", "burn_in")}
    config = made(**{"advantage": "vtrace", **settings}, surrogate=surrogate, norm_obs=True, norm_reward=True)
    expected, broken, infinite = (
        struct.named_leaves(
            updated(struct.as_arrays(config), Named(space), jax.random.key(0), value, value != 0)
        )
        for value in (0.0, np.nan, np.inf)
    )
    assert all(np.isfinite(x).all() for x in expected.values())
    for name, x in expected.items():
        np.testing.assert_array_equal(broken[name], x, err_msg=name)
        np.testing.assert_array_equal(infinite[name], x, err_msg=name)
