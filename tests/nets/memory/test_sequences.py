"""Networks with memory, of one's own and of Shoal's, by the protocol of sequence modules."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_modules import drawn_module
from flax import nnx

import shoal
from shoal.algos import ppo
from shoal.algos.learning import minibatches
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config.settings import with_settings
from shoal.config.struct import parameter, struct
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import Episodes
from shoal.envs.batch import Batch
from shoal.nets import network_check
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.mlp import MLP
from shoal.nets.network_check import check_network
from shoal.nets.networks import NetworkConfig
from shoal.ops.distributions import Categorical
from shoal.types import Clock, EnvSpec, spec_of
from shoal.types.spaces import Box, Discrete

SPEC = EnvSpec(Box(-1.0, 1.0, (3,)), Discrete(2))


class Sum(nnx.Module):
    """The sum of a layer's features over the episode, with the step's previous action and reward beside it."""

    def __init__(self, outputs, width, key):
        keys = jax.random.split(key)
        self.width = width
        self.before = MLP(3 + 2 + 1, (width,), key=keys[0])
        self.after = MLP(width, (), outputs, key=keys[1])

    def initial(self, batch_shape):
        return {"sum": jnp.zeros((*batch_shape, self.width)), "steps": jnp.zeros(batch_shape, jnp.int32)}

    def apply(self, memory, inputs, first):
        x = jnp.concatenate([inputs.observation, inputs.action, inputs.reward[..., None]], axis=-1)

        def step(memory, at_step):
            x, first = at_step
            total = jnp.where(first[:, None], 0.0, memory["sum"]) + x
            steps = jnp.where(first, 0, memory["steps"]) + 1
            return {"sum": total, "steps": steps}, total / steps[:, None]

        memory, means = jax.lax.scan(step, memory, (self.before(x), first))
        return memory, self.after(means)


class SumActor(Sum):
    def apply(self, memory, inputs, first):
        memory, x = super().apply(memory, inputs, first)
        return memory, Categorical(x)


class SumCritic(Sum):
    def apply(self, memory, inputs, first):
        memory, x = super().apply(memory, inputs, first)
        return memory, x[..., 0]


class SumActorCritic(nnx.Module):
    """A class without settings."""

    has_memory = True

    def __init__(self, spec, *, key, width=4):
        keys = jax.random.split(key)
        self.actor = SumActor(spec.action_space.n, width, keys[0])
        self.critic = SumCritic(1, width, keys[1])


class Joint(Sum):
    """One module for both."""

    has_memory = True

    def __init__(self, spec, *, key, width=4):
        super().__init__(3, width, key)

    def apply(self, memory, inputs, first):
        memory, x = super().apply(memory, inputs, first)
        return memory, (Categorical(x[..., :2]), x[..., 2])


@struct
class JointConfig:
    """A struct of settings."""

    has_memory: ClassVar[bool] = True

    width: int = parameter(4, low=1)
    """Gives the features this width."""

    def build(self, spec, key):
        return Joint(spec, key=key, width=self.width)


TRAINING = dict(
    num_envs=4, num_steps=8, total_steps=64, num_evals=1, eval_episodes=4, seeds=2, num_minibatches=2
)
KINDS = {"class": SumActorCritic, "joint": Joint, "settings": JointConfig(width=3)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_a_network_of_ones_own_trains_and_acts(kind, tmp_path):
    run = shoal.train(
        shoal.make("MemoryChain-v0", length=5),
        network=KINDS[kind],
        **TRAINING,
        **{"chunk_length": 4, "burn_in": 2},
        preset=False,
        progress=False,
        run_dir=tmp_path / "run",
    )
    policy = run.policy()
    memory = policy.initial_memory((3,))
    observation = np.ones((3, 3), np.float32)
    memory, action = policy(memory, observation)
    again, _ = policy(memory, observation, reward=0.0)
    assert action.shape == (3,)
    assert memory.state.carry["steps"].tolist() == [1, 1, 1]
    assert again.state.carry["steps"].tolist() == [2, 2, 2]


RECURRENT = dict(core="gru", core_size=5, hidden_sizes=(4,), previous_action=True, previous_reward=True)


def random_inputs(key, steps, batch):
    keys = jax.random.split(key, 4)
    shape = steps, batch
    return NetworkInputs(
        jax.random.normal(keys[0], (*shape, 3)),
        None,
        jax.random.bernoulli(keys[1], 0.2, shape),
        jax.nn.one_hot(jax.random.randint(keys[2], shape, 0, 2), 2),
        jax.random.normal(keys[3], shape),
    )


class Plain:
    """A module without its optional members."""

    def __init__(self, module):
        self.module = module

    def apply(self, memory, inputs, first):
        return self.module.apply(memory, inputs, first)


STEPS = (7,), (0, 7), (0, 0, 1, 3, 5, 7), (0, 2, 4, 6, 7), (3, 5)


@pytest.mark.full
def test_parts_are_the_whole():
    """Outputs and memories of parts of a sequence, against one pass that gives the memory of each step."""
    module = drawn_module(lambda key: NetworkConfig(**RECURRENT).build(SPEC, key).critic)
    inputs = random_inputs(jax.random.key(1), 8, 3)
    memory = jax.tree.map(lambda x: x + 0.5, module.initial((3,)))

    @jax.jit
    def all_of(module):
        both = Plain(module), module
        return [[sequences.apply_in_parts(m, memory, inputs, steps) for m in both] for steps in STEPS]

    for steps, (actual, expected) in zip(STEPS, all_of(module), strict=True):
        assert expected[0].shape == (8, 3)
        for x, y in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6, err_msg=str(steps))


@pytest.mark.full
@pytest.mark.parametrize("shared", [False, True])
def test_memories_that_were_not_kept_are_computed_again(shared):
    network = drawn_module(lambda key: NetworkConfig(**RECURRENT, shared_torso=shared).build(SPEC, key))
    inputs = random_inputs(jax.random.key(1), 7, 3)
    start = jax.tree.map(lambda x: x + 0.5, sequences.initial(network, (3,)))
    assert bool(start.critic) != shared

    @jax.jit
    def both(network):
        def step(memory, at_step):
            memory, _ = sequences.policy_step(network.actor, memory, at_step)
            return memory, memory

        acting = jax.tree.map(lambda x: x[:-1], inputs)
        _, after = jax.lax.scan(step, start.actor, acting)
        return [sequences.replay(network, start, kept, inputs, (0, 2, 6)) for kept in (after, ())]

    kept, computed = both(network)
    for x, y in zip(jax.tree.leaves(kept), jax.tree.leaves(computed), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "length", "burn_in"), [("settings", 0, 0), ("joint", 4, 0), ("class", 2, 3)]
)
def test_the_first_minibatch_has_ratio_one(kind, length, burn_in):
    """What acting gave, step by step, is what the update makes of its chunks."""
    config = with_settings(PPOConfig(), network=KINDS[kind], chunk_length=length, burn_in=burn_in)
    env = shoal.make("MemoryChain-v0", length=3)

    @jax.jit
    def ratios(key):
        batch, algorithm = Batch(env, num_envs=3), config.resolved().algorithm(spec_of(env))
        learner = algorithm.init(key, 3)
        state, timestep = batch.reset(key)
        zeros = jnp.zeros(3)
        before = RolloutState(
            state, timestep, algorithm.memory((3,)), Episodes(zeros, zeros), no_ended_episodes()
        )
        policy = algorithm.policy(learner, Clock.zero())
        _, trajectory, *_ = rollout(batch, algorithm, policy, before, key, 8)
        rows, *_ = ppo.prepare(config.with_critic_defaults(), spec_of(env), (), learner, trajectory)
        replayed, distribution, value = minibatches.evaluate(learner.shared.network, rows)
        difference = distribution.log_prob(replayed.raw_action) - replayed.log_prob
        return jnp.where(replayed.weight > 0, difference, 0.0), (value - replayed.value) * replayed.weight

    for x in ratios(jax.random.key(0)):
        assert x.shape == (length or 8, 24 // (length or 8))
        np.testing.assert_allclose(x, 0.0, atol=1e-5)


class KeepsEpisodes(Joint):
    def apply(self, memory, inputs, first):
        return super().apply(memory, inputs, jnp.zeros_like(first))


class Grows(Joint):
    def apply(self, memory, inputs, first):
        memory, output = super().apply(memory, inputs, first)
        return memory | {"sum": jnp.concatenate([memory["sum"], memory["sum"]], axis=1)}, output


class ChangesDtype(Joint):
    def apply(self, memory, inputs, first):
        memory, output = super().apply(memory, inputs, first)
        return memory | {"steps": memory["steps"].astype(jnp.float32)}, output


class LooksAhead(Joint):
    def apply(self, memory, inputs, first):
        memory, (distribution, value) = super().apply(memory, inputs, first)
        return memory, (distribution, value + inputs.reward[-1])


class NoBatch(Joint):
    def initial(self, batch_shape):
        return super().initial(batch_shape) | {"sum": jnp.zeros((self.width, *batch_shape))}


class NoMemoryDeclared(Joint):
    has_memory = False


class NothingThere(nnx.Module):
    has_memory = True

    def __init__(self, spec, *, key):
        self.mlp = MLP(3, (), 2, key=key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.mlp(observation))

    def value(self, observation):
        return self.mlp(observation)[..., 0]


class NoInitial(SumActorCritic):
    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.critic = MLP(3, (), 1, key=key)


class NoTuple(Joint):
    def apply(self, memory, inputs, first):
        return super().apply(memory, inputs, first)[1][0]


class OnlyPolicy(Joint):
    def apply(self, memory, inputs, first):
        memory, (distribution, _) = super().apply(memory, inputs, first)
        return memory, distribution


class ValueWithAxis(Joint):
    def apply(self, memory, inputs, first):
        memory, (distribution, value) = super().apply(memory, inputs, first)
        return memory, (distribution, value[..., None])


BROKEN = {
    KeepsEpisodes: "returns other results after other steps; .* its memory is cleared where an episode begins",
    Grows: r"returns a memory whose 'sum' is float32\[2, 8\], and was given float32\[2, 4\]",
    ChangesDtype: r"returns a memory whose 'steps' is float32\[2\], and was given int32\[2\]",
    LooksAhead: "returns other results over 6 steps at once than step by step",
    NoBatch: r"returns a memory whose 'sum' is float32\[4, 2\]; it must return arrays \[2, ...\], for",
    NoMemoryDeclared: r"does not declare a memory: write has_memory = True",
    NothingThere: "declares has_memory = True, and has no method 'apply'",
    NoInitial: "lacks the method critic.initial",
    NoTuple: r"returns a Categorical; it must return \(memory, output\)",
    OnlyPolicy: r"returns a Categorical as the output of its memory; it must return \(distribution, value\)",
    ValueWithAxis: r"returns values of float32\[6, 2, 1\]; it must return float32\[6, 2\], one for",
}


@pytest.mark.parametrize("network", [SumActorCritic, Joint])
@pytest.mark.quick("Joint")
def test_sound_networks_pass(network):
    check_network(network, SPEC)


@pytest.mark.quick("NothingThere")
@pytest.mark.parametrize("network", BROKEN, ids=lambda network: network.__name__)
def test_a_broken_network_is_one_sentence(network):
    with pytest.raises(ShoalError, match=f"{network.__name__}.*{BROKEN[network]}"):
        check_network(network, SPEC)


@pytest.mark.parametrize(("core", "shared"), [("gru", False), ("mingru", True)])
@pytest.mark.full
def test_shoals_own_networks_pass(core, shared):
    config = NetworkConfig(
        core=core,
        core_size=4,
        shared_torso=shared,
        previous_observation=True,
        previous_action=True,
        first_flag=True,
    )
    check_network(network_check.Builder(config), SPEC)


def test_chunks_need_a_memory(tmp_path):
    """Of a network of one's own too; what a preset says of chunks is left without effect."""

    class Forgets(nnx.Module):
        def __init__(self, spec, *, key):
            self.mlp = MLP(2, (), 2, key=key)

        def policy(self, observation, action_mask=None):
            return Categorical(self.mlp(observation))

        def value(self, observation):
            return self.mlp(observation)[..., 0]

    with pytest.raises(
        ShoalError, match="chunk_length=4 has no effect with has_memory=False; it needs has_memory=True"
    ):
        shoal.train("CartPole-NoVelocity-v1", network=Forgets, chunk_length=4, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
