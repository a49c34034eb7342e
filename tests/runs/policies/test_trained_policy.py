"""A trained policy as a callable: one observation or a batch, greedy or sampled, with memory and masks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig
from tiny_worlds import Halves

from shoal import envs
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.runs.policies.trained_policy import TrainedPolicy, as_arrays, as_mask
from shoal.types import Clock, restart, spec_of, transition
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete


@envs.environment
class Shop:
    """A dictionary to see, and three things of which not all are to be had."""

    observation_space = Dict({"purse": Box(0.0, 1.0, (2,)), "day": Discrete(7)})
    action_space = Discrete(3)

    def observe(self, key):
        return {"purse": jax.random.uniform(key, (2,)), "day": jnp.zeros((), jnp.int32)}

    def reset(self, key):
        return (), restart(self.observe(key), action_mask=jnp.ones(3, bool))

    def step(self, state, action, key):
        return (), transition(self.observe(key), 0.0, terminated=True, action_mask=jnp.ones(3, bool))


def policy_of(env, config):
    """An untrained policy."""

    @jax.jit
    def parameters(config, key):
        algorithm = config.algorithm(spec_of(env))
        return algorithm.policy(algorithm.init(key, 1), Clock.zero())

    config = struct.as_arrays(config)
    return TrainedPolicy(config, parameters(config, jax.random.key(0)), env)


@pytest.fixture(scope="module")
def cartpole():
    return policy_of(
        envs.make("CartPole-v1"), with_settings(PPOConfig(), hidden_sizes=(8,), norm_obs=True).resolved()
    )


@pytest.fixture(scope="module")
def shop():
    return policy_of(Shop(), with_settings(PPOConfig(), hidden_sizes=(8,)).resolved())


OBSERVATIONS = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)


def test_one_observation_and_a_batch_agree(cartpole):
    assert cartpole.initial_memory() == ()
    memory, actions = cartpole((), OBSERVATIONS)
    assert memory == ()
    assert isinstance(actions, np.ndarray)
    assert actions.shape == (64,)
    assert set(actions.tolist()) == {0, 1}
    for observation, action in zip(OBSERVATIONS[:4], actions[:4], strict=True):
        _, alone = cartpole((), observation)
        assert alone.shape == ()
        assert alone == action
        assert cartpole((), observation.tolist())[1] == action  # a list is as good


def test_a_policy_without_memory_acts_without_one(cartpole):
    observation = np.array([0.01, -0.02, 0.03, 0.04], np.float32)
    assert cartpole.act(observation) == cartpole((), observation)[1]
    key = jax.random.key(3)
    assert cartpole.act(observation, key=key) == cartpole((), observation, key=key)[1]


def test_a_key_samples_and_none_is_greedy(cartpole):
    one = np.broadcast_to(OBSERVATIONS[0], (64, 4))
    assert len(set(cartpole((), one)[1].tolist())) == 1
    first, again, other = (cartpole((), one, key=jax.random.key(k))[1] for k in (0, 0, 1))
    assert set(first.tolist()) == {0, 1}
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_it_acts_as_the_algorithm_does(cartpole):
    """The normaliser is applied: the mode is that of the network's logits for normalised observations."""
    policy = cartpole.parameters
    moments = policy.observation._replace(count=jnp.ones(()), mean=jnp.full(4, 2.0))  # of a sample
    shifted = policy._replace(observation=moments)
    moved = TrainedPolicy(cartpole.config, shifted, cartpole.environment)
    _, there = moved((), OBSERVATIONS + 2.0)
    _, here = cartpole((), OBSERVATIONS)
    np.testing.assert_array_equal(there, here)
    assert (moved((), OBSERVATIONS)[1] != here).any()


@pytest.mark.parametrize(
    "observation,sentence",
    [
        (np.zeros(3), "observation has shape (3,); one must be of shape (4,), a batch has one axis before."),
        (np.zeros((2, 2, 4)), "observation has shape (2, 2, 4); one must be of shape (4,)"),
    ],
)
def test_a_wrong_shape_is_one_sentence(cartpole, observation, sentence):
    with pytest.raises(ShoalError) as error:
        cartpole((), observation)
    assert sentence in str(error.value)


def test_a_dictionary_of_observations(shop):
    one = {"purse": np.zeros(2), "day": 3}
    _, action = shop((), one, action_mask=np.ones(3))
    assert action.shape == ()
    batch = {"purse": np.zeros((5, 2)), "day": np.full(5, 3)}
    _, actions = shop((), batch, action_mask=np.ones((5, 3)))
    assert actions.tolist() == [int(action)] * 5
    for wrong, sentence in (
        ({"purse": np.zeros(2)}, "must be a dictionary with the entries day, purse"),
        (np.zeros(2), "must be a dictionary with the entries day, purse"),
        ({"purse": np.zeros((5, 2)), "day": 3}, "disagree on whether they are one or a batch"),
        ({"purse": np.zeros(2), "day": np.zeros((2, 2))}, "one must be an integer"),
    ):
        with pytest.raises(ShoalError, match=sentence):
            shop((), wrong)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("observation", "sentence"),
    [
        ([0.0, NAN, 0.0, 0.0], "observation[1] is nan; a policy needs numbers that are finite"),
        (jnp.asarray([0.0, 0.0, 0.0, NAN]), "observation[3] is nan"),
        (np.where(np.arange(12).reshape(3, 4) == 6, NAN, 0.0), "observation[1, 2] is nan"),
        ([0.0, NAN, INF, 0.0], "observation[1] is nan"),
        (
            [INF, 0.0, 0.0, 0.0],
            "observation[0] is inf; a policy needs numbers that are finite, or infinite where",
        ),
        ([0.0, 0.0, -INF, 0.0], "observation[2] is -inf"),
        (["a", "b", "c", "d"], "observation=['a', 'b', 'c', 'd'] is not an array of numbers."),
        ([[0.0], [0.0, 1.0]], "observation=[[0.0], [0.0, 1.0]] is not an array of numbers."),
        (None, "observation=None is not an array of numbers."),
    ],
)
def test_an_observation_that_is_no_number_is_refused(cartpole, observation, sentence):
    """NaN used to be answered with action 0. CartPole's velocities have no bounds, its positions have."""
    with pytest.raises(ShoalError) as error:
        cartpole((), observation)
    assert sentence in str(error.value)
    assert cartpole((), [0.0, INF, 0.0, -INF])[1].shape == ()
    assert cartpole((), [100.0, 0.0, 0.0, 0.0])[1].shape == ()  # outside the bounds


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("purse", [0.0, NAN], "observation['purse'][1] is nan"),
        (
            "day",
            7,
            "observation['day'] is 7; it must be one of the values of Discrete(n=7), which begin with 0.",
        ),
        ("day", 1.5, "observation['day'] is 1.5"),
    ],
)
def test_an_entry_of_a_dictionary_that_is_no_element_is_refused(shop, name, value, sentence):
    one = {"purse": np.zeros(2), "day": 3}
    assert shop((), one | {"day": 6.0}, action_mask=[1, 1, 1])[1].shape == ()
    with pytest.raises(ShoalError) as error:
        shop((), one | {name: value})
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("space", "value", "sentence"),
    [
        (Box(0, 255, (2,), np.uint8), [0, 256], "observation[1] is 256; it must be a value of uint8."),
        (Box(0, 255, (2,), np.uint8), [0.5, 0], "observation[0] is 0.5"),
        (MultiDiscrete((2, 3)), [1, 3], "observation[1] is 3"),
    ],
)
def test_integers_that_the_space_does_not_have_are_refused(space, value, sentence):
    as_arrays(np.zeros((4, 2)), space)
    with pytest.raises(ShoalError) as error:
        as_arrays(np.asarray(value), space)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("reward", "sentence"),
    [
        (NAN, "reward[0] is nan; it must be finite."),
        ([0.0, INF, 0.0], "reward[1] is inf; it must be finite."),
        ([0.0, 1.0], "reward=[0.0, 1.0] must be one number, or 3, one for each observation."),
        ("much", "reward='much' must be one number, or 3"),
    ],
)
def test_a_reward_is_a_finite_number(cartpole, reward, sentence):
    with pytest.raises(ShoalError) as error:
        cartpole((), np.zeros((3, 4)), reward)
    assert sentence in str(error.value)


def test_a_mask_without_a_legal_action_is_refused(shop):
    one, batch = {"purse": np.zeros(2), "day": 3}, {"purse": np.zeros((3, 2)), "day": np.zeros(3)}
    with pytest.raises(ShoalError, match=r"^action_mask allows no action; at least one must be legal.$"):
        shop((), one, action_mask=[False] * 3)
    with pytest.raises(ShoalError, match=r"^action_mask\[1\] allows no action"):
        shop((), batch, action_mask=[[1, 0, 0], [0, 0, 0], [1, 1, 1]])
    parts = MultiDiscrete((2, 3))
    assert as_mask([1, 0, 0, 0, 1], parts, ()).shape == (5,)
    for mask, sentence in (
        ([1, 1, 0, 0, 0], "action_mask allows no value of part 1 of MultiDiscrete"),
        ([0, 0, 1, 0, 0], "action_mask allows no value of part 0 of MultiDiscrete"),
    ):
        with pytest.raises(ShoalError, match=sentence):
            as_mask(mask, parts, ())
    with pytest.raises(ShoalError, match=r"action_mask\['set'\]\[1\] allows no value of part 0"):
        as_mask({"set": [[1, 0, 0, 0, 1], [0, 0, 1, 1, 1]]}, Dict({"set": parts}), (2,))


def test_a_policy_of_a_world_with_masks_needs_one(shop):
    """A file that recorded whether there are masks is believed, and else the environment is asked."""
    one = {"purse": np.zeros(2), "day": 3}
    batch = {"purse": np.zeros((3, 2)), "day": np.zeros(3)}
    of_record = TrainedPolicy(shop.config, shop.parameters, shop.environment, has_masks=True)
    sentence = r"^action_mask=None: the world of this policy has masks, .*action_mask=timestep.action_mask\.$"
    for policy in (shop, of_record):
        for call in (policy.act, lambda x, **more: policy((), x, **more)):  # noqa: B023
            for arguments in ((one, {}), (batch, {}), (one, {"key": jax.random.key(0)})):
                with pytest.raises(ShoalError, match=sentence):
                    call(arguments[0], **arguments[1])
    without = TrainedPolicy(shop.config, shop.parameters, shop.environment, has_masks=False)
    assert without.act(one).shape == ()


def test_a_mask_is_obeyed(shop):
    one = {"purse": np.zeros(2), "day": 3}
    for legal in range(3):
        mask = np.arange(3) == legal
        assert shop((), one, action_mask=mask)[1] == legal
        assert shop((), one, action_mask=mask.tolist(), key=jax.random.key(0))[1] == legal
    batch = {"purse": np.zeros((3, 2)), "day": np.zeros(3)}
    assert shop((), batch, action_mask=np.eye(3, dtype=bool))[1].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "mask,batch,sentence",
    [
        (
            [True, False],
            (),
            "action_mask has shape (2,); for Discrete(n=3) it must be of shape (3,), one entry an action.",
        ),
        (
            np.ones(3),
            (5,),
            "action_mask has shape (3,); for Discrete(n=3) it must be of shape (5, 3), one entry an action and "
            "one row an observation.",
        ),
    ],
)
def test_a_mask_of_another_shape_is_one_sentence(shop, mask, batch, sentence):
    observation = {"purse": np.zeros((*batch, 2)), "day": np.zeros(batch)}
    with pytest.raises(ShoalError) as error:
        shop((), observation, action_mask=mask)
    assert sentence in str(error.value)


def test_masks_of_other_spaces():
    spaces = Dict({"pick": Discrete(2), "set": MultiDiscrete((2, 3))})
    mask = as_mask({"pick": [1, 0], "set": np.ones(5)}, spaces, ())
    assert mask["pick"].tolist() == [True, False]
    assert mask["set"].shape == (5,)
    with pytest.raises(
        ShoalError, match=r"action_mask\['set'\] has shape \(2,\); for MultiDiscrete.* shape \(5,\)"
    ):
        as_mask({"set": np.ones(2)}, spaces, ())
    for wrong in (np.ones(2), {"take": np.ones(2)}):
        with pytest.raises(ShoalError, match="action_mask must be a dictionary with entries among pick, set"):
            as_mask(wrong, spaces, ())
    with pytest.raises(ShoalError, match=r"action_mask was given, but Box.* leave it out"):
        as_mask(np.ones(2), Box(-1.0, 1.0, (2,)), ())


NOISE = {
    "correlated": {"correlated_noise": True, "noise_correlation": 0.99, "distribution": "tanh_normal"},
    "gsde": {"distribution": "gsde"},
    "gsde of an episode": {"distribution": "gsde", "gsde_steps": 0},
}


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.quick("correlated")
def test_noise_is_no_memory_of_a_policy(name):
    """No greedy action reads it; a sample is drawn by itself, as widely as the policy says."""
    config = with_settings(PPOConfig(), hidden_sizes=(8,), action_scaling="clip", **NOISE[name]).resolved()
    policy, observations = policy_of(envs.make("Pendulum-v1"), config), np.ones((2000, 3))
    assert (policy.initial_memory(), policy.memory_lasts) == ((), "none")
    mode = policy.act(observations[0])
    held = policy.algorithm.memory((1,))
    assert jax.tree.leaves(held.noise)
    timestep = restart(jnp.ones((1, 3)))._replace(first=jnp.ones(1, bool), last=jnp.zeros(1, bool))
    held = held._replace(noise=jax.tree.map(lambda x: x + 3, held.noise))
    _, action, _ = policy.algorithm.act(policy.parameters, held, timestep, jax.random.key(0), greedy=True)
    np.testing.assert_array_equal(action[0], mode)

    samples = [policy.act(observations, key=jax.random.key(k)) for k in range(2)]
    assert abs(np.corrcoef(*(x[:, 0] for x in samples))[0, 1]) < 0.1
    distribution = policy.parameters.actor.policy(jnp.ones(3))
    expected = jax.vmap(distribution.sample)(jax.random.split(jax.random.key(5), 2000))
    bounds = (-2, 2)
    scale = 2.0 if name == "correlated" else 1.0  # tanh is rescaled to the bounds
    np.testing.assert_allclose(samples[0].std(), np.clip(scale * expected, *bounds).std(), rtol=0.1)


def test_a_memory_is_without_the_noise():
    settings = {"core": "gru", "hidden_sizes": (4,), "correlated_noise": True, "previous_action": True}
    policy = policy_of(envs.make("Pendulum-v1"), with_settings(PPOConfig(), **settings).resolved())
    memory = policy.initial_memory((2,))
    for key in (None, jax.random.key(0)):
        memory, action = policy(memory, np.zeros((2, 3)), key=key)
        assert (memory.state.noise, action.shape) == ((), (2, 1))
        assert np.all(memory.state.action == action / 2) or key is not None
    assert policy.memory_lasts == "trial"


def test_noise_is_no_memory_of_several_agents():
    settings = {"hidden_sizes": (4,), "correlated_noise": True, "parameters": "agent"}
    policy = policy_of(envs.make("particles/Navigator-v0"), with_settings(PPOConfig(), **settings).resolved())
    assert policy.initial_memory() == ()
    observation = np.zeros((policy.spec.num_agents, *policy.spec.observation_space.shape))
    assert policy.act(observation).shape == policy.act(observation, key=jax.random.key(0)).shape


def test_memory_of_another_batch_is_one_sentence():
    policy = policy_of(Halves(), BanditConfig())
    with pytest.raises(ShoalError) as error:
        policy(policy.initial_memory(), np.zeros((4, 1)))
    assert str(error.value) == (
        "memory has shape (1,) and the observations are 4; begin with initial_memory((4,))."
    )
    with pytest.raises(
        ShoalError, match=r"^act\(observation\) is for policies without memory, .*policy\(memory, "
    ):
        policy.act(np.zeros(1))


def test_a_memory_is_cleared_where_it_is_new_and_where_first_says_so():
    policy = policy_of(Halves(), BanditConfig())
    memory = policy.initial_memory()
    counts = []
    for arguments in ({}, {}, {}, {"first": True}, {}, {"first": False}):
        memory, action = policy(memory, np.zeros(1), **arguments)
        counts.append(int(memory.state[0]))
        assert action.shape == ()
    assert counts == [0, 1, 2, 0, 1, 2]
    memory, _ = policy(policy.initial_memory((3,)), np.zeros((3, 1)), first=[True, False, False])
    assert memory.state.tolist() == [0, 0, 0]  # all are new
    memory, _ = policy(memory, np.zeros((3, 1)), first=[True, False, False])
    assert memory.state.tolist() == [0, 1, 1]
    one = policy.initial_memory()
    memory = jax.tree.map(lambda x, y: x.at[2].set(y[0]), memory, one)  # begins the third row again
    memory, actions = policy(memory, np.zeros((3, 1)))
    assert memory.state.tolist() == [1, 2, 0]
    assert actions.shape == (3,)
