"""Recurrent PPO: its replay is what acting gave, for every core, chunk length and pattern of resets."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recomputed_rollouts import gradient_of_sum
from tiny_worlds import Halves

from shoal.algos import ppo
from shoal.algos.acting import actions, memories
from shoal.algos.acting.normalisation import normalise
from shoal.algos.learning import minibatches, optimisers
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.nets.memory import sequences
from shoal.nets.memory.cores import CELLS
from shoal.nets.memory.sequences import Memories, NetworkInputs
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import EPISODE_ENDED, Clock, EnvSpec, TimeStep, Trajectory, spec_of
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

T = 6
CHUNKS = ((0, 0), (1, 0), (2, 0), (3, 2))  # lengths with burn-ins; 0 is the whole rollout
DISCRETE = EnvSpec(Box(-3.0, 3.0, (2,)), Discrete(3))
SPECS = {
    "discrete": DISCRETE,
    "box": EnvSpec(Box(-3.0, 3.0, (2,)), Box(-2.0, 2.0, (2,))),
    "parts": EnvSpec(Box(-3.0, 3.0, (2,)), MultiDiscrete((2, 3))),
    "trials": EnvSpec(Dict({"observation": Box(-3.0, 3.0, (2,)), EPISODE_ENDED: Discrete(2)}), Discrete(3)),
    "grid": EnvSpec(Box(0, 2, (4, 4, 1), np.uint8), Discrete(3)),
}
ALL_INPUTS = {"previous_action": True, "previous_reward": True, "first_flag": True}

VARIANTS = {kind: ("discrete", {"core": kind}) for kind in CELLS} | {
    "gru, shared, all inputs, heads": (
        "discrete",
        {"core": "gru", "shared_torso": True, "head_sizes": (4,), **ALL_INPUTS},
    ),
    "gru, shared, a grid of which much is seen again": (
        "grid",
        {"core": "gru", "shared_torso": True, "encoder": "cnn", "hidden_sizes": (), **ALL_INPUTS},
    ),
    "mgu, a grid whose cells are searched": (
        "grid",
        {"core": "mgu", "encoder": "one_hot", "queries": 2, "head_sizes": (4,), **ALL_INPUTS},
    ),
    "mgu, shared, a grid whose cells are searched": (
        "grid",
        {
            "core": "mgu",
            "shared_torso": True,
            "encoder": "one_hot",
            "queries": 2,
            "head_sizes": (4,),
            **ALL_INPUTS,
        },
    ),
    "gru, two layers, shown the observation before, latches": (
        "discrete",
        {
            "core": "gru",
            "core_layers": 2,
            "previous_observation": True,
            "critic_hidden_sizes": (3,),
            "latches": 2,
            **ALL_INPUTS,
        },
    ),
    "mgu, shared, a grid, shown the observation before": (
        "grid",
        {
            "core": "mgu",
            "shared_torso": True,
            "encoder": "one_hot",
            "previous_observation": True,
            **ALL_INPUTS,
        },
    ),
    "lstm, two layers summed, embedding": (
        "parts",
        {"core": "lstm", "core_layers": 2, "core_outputs": "sum", "action_embedding": 2, **ALL_INPUTS},
    ),
    "gru, cleared with every episode of a trial": (
        "trials",
        {"core": "gru", "memory_lasts": "episode", **ALL_INPUTS},
    ),
    "gru, kept over the ends of episodes": ("discrete", {"core": "gru", "memory_lasts": "run", **ALL_INPUTS}),
    "lstm, shared, kept over the ends of episodes": (
        "box",
        {"core": "lstm", "shared_torso": True, "memory_lasts": "run", **ALL_INPUTS},
    ),
    "gru, shared, gsde, both forms of the action": (
        "box",
        {
            **{"core": "gru", "shared_torso": True, "head_sizes": (4,), "distribution": "gsde"},
            **{"action_embedding": 2, "action_beside_embedding": True, **ALL_INPUTS},
        },
    ),
    "lstm, an action at the start": (
        "parts",
        {"core": "lstm", "action_embedding": 2, "start_action": "first", **ALL_INPUTS},
    ),
    "mingru, noise, normalised, no layer before": (
        "box",
        {
            "core": "mingru",
            "correlated_noise": True,
            "norm_obs": True,
            "norm_reward": True,
            "hidden_sizes": (),
            **ALL_INPUTS,
        },
    ),
}


def made(**settings):
    return with_settings(
        PPOConfig(), **{"hidden_sizes": (5,), "core_size": 4, "num_minibatches": 1} | settings
    ).resolved()


def patterns(steps):
    """Every way in which episodes can begin and end within `steps + 1` time-steps: first and last, [T+1, N].

    No time-step is the last of one episode and the first of the next; the first one may or may not begin one.
    """
    rows = [
        (begins, bits)
        for bits in itertools.product([False, True], repeat=steps + 1)
        for begins in (False, True)
        if not any(a and b for a, b in itertools.pairwise(bits)) and not (begins and bits[0])
    ]
    last = np.array([bits for _, bits in rows]).T
    first = np.concatenate([np.array([[begins for begins, _ in rows]]), last[:-1]])
    return first, last


def stream(spec, key):
    """T+1 time-steps of one environment for each pattern, whatever the actions."""
    first, last = patterns(T)
    n = first.shape[1]
    observation_key, reward_key = jax.random.split(key)
    mask = None
    if isinstance(spec.action_space, MultiDiscrete):  # the first option of each part is always legal
        mask = jax.random.bernoulli(jax.random.fold_in(key, 1), 0.5, (T + 1, n, 5)).at[..., [0, 2]].set(True)
    discount = np.where(last & (np.arange(n) % 2 == 0), 0.0, 1.0).astype(np.float32)
    space = spec.observation_space
    shape = space["observation"].shape if isinstance(space, Dict) else space.shape
    observation = jax.random.normal(observation_key, (T + 1, n, *shape))
    if isinstance(space, Dict):
        ended = jax.random.bernoulli(jax.random.fold_in(key, 2), 0.3, (T + 1, n))
        observation = {"observation": observation, EPISODE_ENDED: ended.astype(jnp.int32)}
    elif np.issubdtype(space.dtype, np.integer):  # of a few kinds
        kinds = jax.random.randint(observation_key, (30, *shape), 0, 3).astype(space.dtype)
        observation = kinds[jax.random.randint(reward_key, (T + 1, n), 0, 30)]
    return TimeStep(
        observation=observation,
        reward=jnp.where(first, 0.0, jax.random.normal(reward_key, (T + 1, n))),
        discount=jnp.asarray(discount),
        first=jnp.asarray(first),
        last=jnp.asarray(last),
        action_mask=mask,
    )


def noisy(tree, key):
    """Noise on every leaf: parameters that are not fresh, memories from the midst of an episode."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def acted(config, spec, key):
    """A learner in the midst of training, T acted steps, and the values that the network gave on the way."""
    algorithm = config.algorithm(spec)
    init_key, net_key, memory_key, local_key, stream_key, act_key = jax.random.split(key, 6)
    timesteps = stream(spec, stream_key)
    n = timesteps.first.shape[1]
    learner = algorithm.init(init_key, n)
    learner = learner._replace(
        shared=learner.shared._replace(network=noisy(learner.shared.network, net_key)),
        local=noisy(learner.local, local_key),
    )
    memory = noisy(algorithm.memory((n,)), memory_key)
    policy = algorithm.policy(learner, Clock.zero())
    network, critic = learner.shared.network, learner.local.critic

    def step(carry, timestep_and_key):
        memory, critic = carry
        timestep, key = timestep_and_key
        observation = normalise(config, policy.observation, timestep.observation)
        inputs = memories.network_inputs(config, timestep, observation, memory.action)
        one = sequences.unroll(
            network, Memories(memory.carry, critic), jax.tree.map(lambda x: x[None], inputs)
        )
        memory, action, extras = algorithm.act(policy, memory, timestep, key)
        return (memory, one.after.critic), (action, extras, one.value[0])

    keys = jax.random.split(act_key, T + 1)
    _, (taken, extras, values) = jax.lax.scan(step, (memory, critic), (timesteps, keys))
    taken, extras = jax.tree.map(lambda x: x[:-1], (taken, extras))
    return learner, Trajectory(timesteps, taken, extras, memory), values


@functools.partial(jax.jit, static_argnums=(1, 3))
def everything(config, spec, key, chunks):
    """What acting gave, and what the update's own functions make of it at each chunk length."""
    learner, trajectory, values = acted(config, spec, key)
    network, found = learner.shared.network, {}
    replayed_values = ppo.replay_rollout(config, spec, learner, trajectory)[1].value
    for length, burn_in in chunks:
        chosen = dataclasses.replace(config, chunk_length=length, burn_in=burn_in)
        rows, prepared, *_ = ppo.prepare(chosen, spec, (), learner, trajectory)
        batch, distribution, value = minibatches.evaluate(network, rows)
        ratio = actions.log_prob(distribution, batch.raw_action) - batch.log_prob
        _, parts = ppo.loss(chosen, (), learner.shared, jnp.asarray(True), network, rows)
        sums = jax.tree.map(jnp.sum, parts)
        found[length, burn_in] = rows, batch, ratio, value, sums, prepared.local
    return trajectory, values, replayed_values, found


FULL = "mingru, noise, normalised, no layer before"


@pytest.fixture(
    params=[pytest.param(x, marks=pytest.mark.full) if x == FULL else x for x in VARIANTS], scope="module"
)
def variant(request):
    """Everything of a variant at two of the chunk lengths, which go round from each variant to the next."""
    name, settings = VARIANTS[request.param]
    k = list(VARIANTS).index(request.param)
    chunks = tuple(CHUNKS[i % len(CHUNKS)] for i in (k + 1, k + 2))
    return everything(struct.as_arrays(made(**settings)), SPECS[name], jax.random.key(0), chunks)


def test_every_pattern_of_resets_is_there():
    first, last = patterns(T)
    assert first.shape == (T + 1, 55)  # 34 without two ends in a row, 21 of which may begin with a first
    assert len({tuple(column) for column in np.concatenate([first[:1], last]).T}) == 55
    assert not (first & last).any()


@pytest.mark.full
@pytest.mark.quick("mingru, noise, normalised, no layer before", "gru, kept over the ends of episodes")
@pytest.mark.rare()
def test_replaying_a_rollout_gives_the_values_that_acting_gave(variant):
    _, values, replayed_values, _ = variant
    np.testing.assert_allclose(replayed_values, values, rtol=1e-5, atol=1e-5)


@pytest.mark.quick("mingru, noise, normalised, no layer before", "gru, kept over the ends of episodes")
@pytest.mark.rare()
def test_the_first_minibatch_has_ratio_one_at_each_chunk_length(variant):
    trajectory, _, _, found = variant
    for (length, burn_in), (rows, batch, ratio, value, sums, _) in found.items():
        steps, size = length or T, 55 * T // (length or T)
        assert rows.weight.shape == (size, steps)
        assert batch.weight.shape == ratio.shape == value.shape == (steps, size)
        counts = np.asarray(batch.weight) > 0
        assert counts.sum() == (~np.asarray(trajectory.timesteps.last[:-1])).sum()
        np.testing.assert_allclose(np.asarray(ratio)[counts], 0.0, atol=2e-5, err_msg=f"{length}, {burn_in}")
        np.testing.assert_allclose(np.asarray(value)[counts], np.asarray(batch.value)[counts], atol=2e-5)
        assert abs(sums.approx_kl / counts.sum()) < 1e-6
        assert sums.clip_fraction == 0.0


@pytest.mark.full
@pytest.mark.parametrize("lasts", ["trial", "episode"])
def test_the_memory_lasts_a_trial_or_an_episode_of_it(lasts):
    """What is done after an episode's end depends on what was before it, or not."""
    spec = SPECS["trials"]
    config = struct.as_arrays(made(core="gru", memory_lasts=lasts, previous_action=True))
    algorithm = config.algorithm(spec)

    @jax.jit
    def played(observations, ended):
        policy = algorithm.policy(algorithm.init(jax.random.key(0), 2), Clock.zero())

        def step(memory, inputs):
            x, flag, reward = inputs
            timestep = TimeStep(
                observation={"observation": x, EPISODE_ENDED: jnp.broadcast_to(flag, (2,))},
                reward=jnp.broadcast_to(reward, (2,)),
                discount=jnp.ones(2),
                first=jnp.zeros(2, bool),
                last=jnp.zeros(2, bool),
            )
            memory, _, extras = algorithm.act(policy, memory, timestep, jax.random.key(1), greedy=True)
            return memory, (jax.tree.leaves(memory)[0], extras.log_prob)

        return jax.lax.scan(step, algorithm.memory((2,)), (observations, ended, jnp.ones(4)))[1]

    # Two sequences that differ before the episode ends, with step 2, and are equal from there.
    observations = np.random.default_rng(2).normal(size=(4, 2, 2)).astype(np.float32)
    observations[2:] = 0.5
    carry, log_prob = map(np.asarray, played(observations, np.array([0, 0, 1, 0])))
    before, after = np.abs(carry[1, 0] - carry[1, 1]).max(), np.abs(carry[3, 0] - carry[3, 1]).max()
    assert before > 1e-3
    assert (after == 0) == (lasts == "episode")
    assert (log_prob[3, 0] == log_prob[3, 1]) == (lasts == "episode")


def test_of_stacked_frames_the_newest_says_whether_an_episode_begins():
    flags, first = jnp.array([[0, 1], [1, 0], [0, 0], [0, 0]]), jnp.arange(4) == 3  # flags are [N, frames]
    timestep = TimeStep({EPISODE_ENDED: flags}, jnp.zeros(4), jnp.ones(4), first, first)
    starts = memories.memory_starts(made(core="gru", memory_lasts="episode"), timestep)
    np.testing.assert_array_equal(starts, [True, False, False, True])


@pytest.mark.full
@pytest.mark.parametrize("lasts", ["trial", "run"])
def test_the_memory_lasts_over_the_ends_of_episodes_or_not(lasts):
    """What was seen before an end, and the reward with which it came, count after it; the last action does not."""
    config = struct.as_arrays(made(core="gru", memory_lasts=lasts, **ALL_INPUTS))
    algorithm = config.algorithm(DISCRETE)

    @jax.jit
    def played(observations, rewards):
        policy = algorithm.policy(algorithm.init(jax.random.key(0), 3), Clock.zero())

        def step(memory, inputs):
            x, reward, first, last = inputs
            flags = {"first": jnp.broadcast_to(first, (3,)), "last": jnp.broadcast_to(last, (3,))}
            timestep = TimeStep(x, reward, jnp.ones(3), **flags)
            memory, *_ = algorithm.act(policy, memory, timestep, jax.random.key(1), greedy=True)
            return memory, jax.tree.leaves(memory)[0]

        ends = jnp.array([[1, 0, 0, 1], [0, 0, 1, 0]], bool)
        return jax.lax.scan(step, algorithm.memory((3,)), (observations, rewards, *ends))[1]

    # The second differs from the first in a step of the first episode, the third in the reward with which it ended.
    observations = np.full((4, 3, 2), 0.5, np.float32)
    observations[1, 1] = -2.0
    rewards = np.zeros((4, 3), np.float32)
    rewards[2, 2] = 3.0
    carry = np.asarray(played(observations, rewards))
    assert (carry[2, 1:] != carry[2, 0]).any(axis=-1).all()
    assert (carry[3, 1:] != carry[3, 0]).any(axis=-1).tolist() == [lasts == "run"] * 2


@pytest.mark.full
def test_whole_streams_have_ratio_one_where_the_memory_lasts_over_ends():
    config = struct.as_arrays(made(core="gru", memory_lasts="run", recompute="minibatch", **ALL_INPUTS))

    @jax.jit
    def ratios(key):
        learner, trajectory, _ = acted(config, DISCRETE, key)
        rows, *_ = ppo.prepare(config, DISCRETE, (), learner, trajectory)
        batch, distribution, _ = minibatches.evaluate(learner.shared.network, rows)
        return actions.log_prob(distribution, batch.raw_action) - batch.log_prob, batch.weight

    ratio, weight = map(np.asarray, ratios(jax.random.key(0)))
    np.testing.assert_allclose(ratio[weight > 0], 0.0, atol=2e-5)


@pytest.mark.full
def test_the_critics_memory_goes_on_with_the_next_rollout():
    """Two rollouts in a row give the values that one of them all gives."""
    config = struct.as_arrays(made(core="gru"))

    @jax.jit
    def both(key):
        learner, trajectory, values = acted(config, DISCRETE, key)

        def part(a, b, memory):
            cut = jax.tree.map(lambda x: x[a:b], (trajectory.actions, trajectory.extras))
            steps = jax.tree.map(lambda x: x[a : b + 1], trajectory.timesteps)
            return Trajectory(steps, *cut, memory)

        each_step = dataclasses.replace(config, chunk_length=1)
        before = ppo.replay_rollout(each_step, DISCRETE, learner, trajectory)[1].starts
        _, second, *_ = ppo.prepare(config, DISCRETE, (), learner, part(0, 4, trajectory.memory))
        carry = jax.tree.map(lambda x: x[4], before.actor)
        rest = part(4, 6, memories.Memory(carry, (), ()))
        return values[4:], ppo.replay_rollout(config, DISCRETE, second, rest)[1].value

    np.testing.assert_allclose(*both(jax.random.key(3)), atol=1e-5)


def test_chunks_are_contiguous_in_time():
    x = np.arange(T)[:, None] * 100 + np.arange(5)
    rows = np.asarray(minibatches.to_rows(made(core="gru", chunk_length=2), x))
    assert rows.shape == (15, 2)
    assert {tuple(row) for row in rows} == {
        (t * 100 + n, (t + 1) * 100 + n) for t in range(0, T, 2) for n in range(5)
    }
    np.testing.assert_array_equal(minibatches.to_rows(made(core="gru"), x), x.T)
    np.testing.assert_array_equal(minibatches.to_rows(made(), x), x.reshape(-1))


@pytest.mark.slow
def test_the_gradient_is_that_of_stepping_through_each_chunk():
    """Against a loop over single steps, whose memory is cut at the chunks' starts; parameters have moved."""
    config = struct.as_arrays(made(core="lstm", norm_adv="none", **ALL_INPUTS))

    length = 2

    @jax.jit
    def gradients(key):
        chosen = dataclasses.replace(config, chunk_length=length)
        learner, trajectory, _ = acted(config, DISCRETE, key)
        rows, *_ = ppo.prepare(chosen, DISCRETE, (), learner, trajectory)
        moved = noisy(learner.shared.network, jax.random.key(9))
        parts, merge = optimisers.split_parameters(chosen.optimization, moved, is_split=chosen.is_split)
        gradient, _ = gradient_of_sum(chosen, learner.shared, merge, rows, parts)

        inputs, replayed = ppo.replay_rollout(chosen, DISCRETE, learner, trajectory)
        before = replayed.starts
        whole, *_ = ppo.prepare(
            dataclasses.replace(config, chunk_length=0), DISCRETE, (), learner, trajectory
        )

        def loss(network):
            total, memory = 0.0, None
            for t in range(T):
                if t % length == 0:
                    memory = jax.tree.map(lambda x, t=t: x[t // length], before)
                one = sequences.unroll(network, memory, jax.tree.map(lambda x, t=t: x[t : t + 1], inputs))
                memory, weight = one.after, whole.weight[:, t]
                ratio = jnp.exp(one.distribution.log_prob(whole.raw_action[:, t])[0] - whole.log_prob[:, t])
                advantage = whole.advantage[:, t]
                clipped = jnp.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
                policy_loss = -jnp.minimum(ratio * advantage, clipped * advantage)
                value_loss = 0.5 * (one.value[0] - whole.target[:, t]) ** 2
                total += jnp.sum(jnp.where(weight > 0, policy_loss + config.vf_coef * value_loss, 0.0))
            return total

        return merge(gradient), jax.grad(loss)(moved)

    actual, expected = gradients(jax.random.key(4))
    for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-3, atol=2e-3)


@pytest.mark.full
def test_burning_in_is_running_over_the_steps_before():
    """With parameters that have moved: the memory of each chunk but a rollout's first is made anew."""
    config = struct.as_arrays(made(core="gru", chunk_length=3, burn_in=2))

    @jax.jit
    def compare(key):
        learner, trajectory, _ = acted(config, DISCRETE, key)
        network = noisy(learner.shared.network, jax.random.key(9))
        rows, *_ = ppo.prepare(config, DISCRETE, (), learner, trajectory)
        inputs, replayed = ppo.replay_rollout(config, DISCRETE, learner, trajectory)
        before = replayed.starts
        fresh = sequences.unroll(
            network, jax.tree.map(lambda x: x[1], before), jax.tree.map(lambda x: x[1:6], inputs)
        ).value[2:]
        first = sequences.unroll(
            network, jax.tree.map(lambda x: x[0], before), jax.tree.map(lambda x: x[:3], inputs)
        ).value
        plain = dataclasses.replace(config, burn_in=0)
        stale, *_ = ppo.prepare(plain, DISCRETE, (), learner, trajectory)
        return (
            minibatches.evaluate(network, rows)[2],
            minibatches.evaluate(network, stale)[2],
            jnp.concatenate([first, fresh], axis=1),
            rows.weight,
        )

    value, stale, expected, weight = compare(jax.random.key(5))
    counts = np.asarray(weight).T > 0
    np.testing.assert_allclose(np.asarray(value)[counts], np.asarray(expected)[counts], atol=1e-5)
    assert np.abs(np.asarray(stale - expected))[counts].max() > 1e-2  # it does make a difference


@pytest.mark.full
def test_a_trained_policy_remembers():
    """Called step by step it acts as one unroll does; one observation or a batch; `first` forgets."""
    config = struct.as_arrays(made(core="lstm", norm_obs=True, **ALL_INPUTS))
    env = Halves()
    algorithm = config.algorithm(spec_of(env))
    learner = jax.jit(lambda key: algorithm.init(key, 1))(jax.random.key(0))
    learner = learner._replace(
        shared=learner.shared._replace(network=noisy(learner.shared.network, jax.random.key(1)))
    )
    policy = TrainedPolicy(config, algorithm.policy(learner, Clock.zero()), env)
    observations = np.random.default_rng(0).normal(size=(8, 3, 1)).astype(np.float32) * 3
    rewards = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    first = np.zeros((8, 3), bool)
    first[0] = first[4, 1] = True
    memory, taken = policy.initial_memory((3,)), []
    for t in range(8):
        memory, action = policy(memory, observations[t], rewards[t], first[t])
        taken.append(action)
    taken = np.array(taken)
    one_hot = np.eye(2, dtype=np.float32)[taken]
    previous = np.concatenate([np.zeros((1, 3, 2), np.float32), one_hot[:-1]])
    inputs = NetworkInputs(
        normalise(config, policy.parameters.observation, jnp.asarray(observations)),
        first=jnp.asarray(first),
        action=jnp.where(first[..., None], 0.0, previous),  # none and 0 where an episode begins
        reward=jnp.where(first, 0.0, rewards),
    )
    carry = algorithm.memory((3,)).carry
    after, distribution = policy.parameters.actor.apply(carry, inputs, inputs.first)
    np.testing.assert_array_equal(taken, distribution.mode())
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-5), memory.state.carry, after)
    memory, alone = policy.initial_memory(), []
    for t in range(8):
        memory, action = policy(memory, observations[t, 1], rewards[t, 1], first[t, 1])
        alone.append(int(action))
    assert alone == taken[:, 1].tolist()
    policy(policy.initial_memory(), observations[0, 1])  # nothing was paid before the first step
    policy(memory, observations[0, 1], first=True)
    with pytest.raises(ShoalError, match="reward=None: this policy is shown the previous reward"):
        policy(memory, observations[0, 1])
    with pytest.raises(ShoalError, match=r"begin with initial_memory\(\(2,\)\)"):
        policy(memory, observations[0, :2])


@pytest.mark.quick(
    "settings8-previous_observation=True shows the features of the last layer before the core, and hidden_sizes=()"
)
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"core": "gru", "chunk_length": 5}, "chunk_length=5 does not divide num_steps=16; the nearest that do"),
        ({"core": "gru", "num_minibatches": 3}, "num_minibatches=3 does not divide the number of chunks"),
        ({"core": "gru", "burn_in": 4}, "burn_in=4 needs steps before a chunk"),
        ({"core": "gru", "burn_in": 5, "chunk_length": 4}, "burn_in=5 is longer than a chunk of 4 steps"),
        ({"core": "gru", "action_embedding": 4}, "action_embedding=4 needs previous_action=True"),
        ({"core": "gru", "latches": 4}, "latches=4 open their gates at rewards: previous_reward must be True"),
        ({"core": "rnn", "latches": 4, "previous_reward": True}, "latches=4 need gates, and core='rnn' has none"),
        ({"core": "gru", "latches": 129, "previous_reward": True}, "latches=129 of a core must be between 0 and"),
        (
            {"core": "gru", "previous_observation": True, "hidden_sizes": ()},
            "previous_observation=True shows the features of the last layer before the core, and hidden_sizes=()",
        ),
        ({"core": "gru", "queries": 4, "norm_obs": True}, "norm_obs=True replaces the integers that queries=4"),
        ({"core": "gru", "network": "shoal.nets.q_heads:ContinuousQ"}, "core='gru' has no effect with network='shoal"),
    ],
)  # fmt: skip
def test_bad_settings_are_one_sentence(settings, message):
    with pytest.raises(ShoalError) as error:
        with_settings(PPOConfig(), **settings).resolved().validate(DISCRETE, 8, 16)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    with_settings(PPOConfig(), core="gru", chunk_length=4, burn_in=4, num_minibatches=4).resolved().validate(
        DISCRETE, 8, 16
    )
