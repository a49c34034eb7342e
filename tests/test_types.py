"""What algorithms are told: transitions, the clock and the two keys of an update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_bandit import BanditConfig, bandit
from tiny_worlds import Halves

import shoal
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.engine.loop import update_once
from shoal.engine.run import ENV_AXIS, ProgramSettings, clock_of, policy_of, start
from shoal.envs import Flatten, FrameStack, TimeLimit, make
from shoal.envs.trials import Trial
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.types import Mean, TimeStep, Trajectory, spec_of, transitions


def trajectory_of(discount, last):
    discount, last = jnp.asarray(discount, jnp.float32), jnp.asarray(last)
    first = jnp.roll(last, 1, axis=0).at[0].set(True)
    zeros = jnp.zeros_like(discount)
    return Trajectory(TimeStep(zeros, zeros * jnp.nan, discount, first, last), zeros[1:], (), ())


def test_transitions_end_where_the_time_steps_say():
    trajectory = trajectory_of(
        discount=[[1, 1], [0, 1], [1, 1], [1, 1]],
        last=[[False, False], [True, True], [False, False], [False, True]],
    )
    found = transitions(trajectory)
    np.testing.assert_array_equal(found.weight, [[1, 1], [0, 0], [1, 1]])  # none from a last to a first step
    np.testing.assert_array_equal(found.discount, [[0, 1], [1, 1], [1, 1]])
    np.testing.assert_array_equal(found.terminated, [[True, False], [False, False], [False, False]])
    np.testing.assert_array_equal(found.truncated, [[False, True], [False, False], [False, True]])


def test_what_is_no_transition_ends_nothing():
    """The step after a last one is ignored, even if an environment ends on its reset."""
    found = transitions(trajectory_of(discount=[[1], [0], [0]], last=[[False], [True], [True]]))
    assert found.weight.tolist() == [[1], [0]]
    assert found.terminated.tolist() == [[True], [False]]


@struct.struct
class Timed(BanditConfig):
    """The bandit, which shows the clock and the keys that it is given."""

    def algorithm(self, spec, axis=()):
        inner = bandit(self, spec, axis)

        def policy(learner, clock):
            return {"preferences": inner.policy(learner, clock), "clock": clock}

        def act(policy, *arguments, **named):
            memory, action, _ = inner.act(policy["preferences"], *arguments, **named)
            clock = jax.tree.map(lambda x: jnp.broadcast_to(x, action.shape), policy["clock"])
            return memory, action, clock

        def update(learner, trajectory, keys, clock):
            learner, metrics, *_ = inner.update(learner, trajectory, keys, clock)
            acted_with = jax.tree.map(lambda x: x.astype(jnp.float32).mean(), trajectory.extras)
            local = jax.random.uniform(keys.local)
            shown = {
                **{f"acted_{name}": x for name, x in acted_with._asdict().items()},
                **{f"clock_{name}": x.astype(jnp.float32) for name, x in clock._asdict().items()},
                "shared_key": jax.random.uniform(keys.shared),
                "local_key": local,
                "local_keys": jax.lax.pmean(local, axis) if axis else local,
            }
            return learner, metrics | {name: Mean(x, jnp.ones(())) for name, x in shown.items()}

        return inner._replace(policy=policy, act=act, update=update)


def two_updates(groups):
    settings = ProgramSettings(num_envs=4, num_steps=3, groups=groups)

    def train(_):
        run = start(jax.random.key(0), struct.as_arrays(Halves()), struct.as_arrays(Timed()), 8, settings)
        run, *_ = update_once(run)
        run, metrics, *_ = update_once(run)
        return run, metrics

    return jax.jit(jax.vmap(train, axis_name=ENV_AXIS))(jnp.arange(groups))


def test_policy_and_update_are_given_the_clock_from_before_the_rollout():
    run, metrics = two_updates(groups=1)
    assert {name: metrics[f"clock_{name}"].total.item() for name in ("updates", "steps", "progress")} == {
        "updates": 1.0,
        "steps": 12.0,
        "progress": 0.125,
    }
    for name in ("updates", "steps", "progress"):
        assert metrics[f"acted_{name}"].total == metrics[f"clock_{name}"].total
    after = jax.vmap(clock_of)(run)
    assert (after.updates.dtype, after.steps.dtype) == (jnp.int32, jnp.float32)
    assert (after.updates.item(), after.steps.item(), after.progress.item()) == (2, 24.0, 0.25)
    assert jax.vmap(policy_of)(run)["clock"].updates.item() == 2


@pytest.mark.full
def test_groups_have_one_key_in_common_and_one_of_their_own():
    _, metrics = two_updates(groups=2)
    assert metrics["clock_steps"].total.tolist() == [12.0, 12.0]  # of the member, and not of a group
    shared, local = metrics["shared_key"].total, metrics["local_key"].total
    assert shared[0] == shared[1]
    assert local[0] != local[1]
    _, alone = two_updates(groups=1)
    assert alone["shared_key"].total == alone["local_key"].total == shared[0]


PARTIAL = dict(environment="CartPole-NoVelocity-v1", environment_parameters={"critic_state": True})
TINY = dict(num_envs=4, num_steps=8, total_steps=64, num_evals=1, eval_episodes=2, eval_max_steps=20, seeds=1)


@struct.struct
class Watching(BanditConfig):
    """The bandit, which fails where `act` is shown what is for the critic, and where `update` is not."""

    def algorithm(self, spec, axis=()):
        inner = bandit(self, spec, axis)

        def act(policy, memory, timestep, key, *, greedy=False):
            assert set(timestep.observation) == {"observation"}
            return inner.act(policy, memory, timestep, key, greedy=greedy)

        def update(learner, trajectory, keys, clock):
            assert set(trajectory.timesteps.observation) == {"observation", "state"}
            return inner.update(learner, trajectory, keys, clock)

        return inner._replace(act=act, update=update)


@pytest.mark.full
def test_whoever_acts_is_not_shown_what_is_for_the_critic_anywhere(tmp_path):
    run = shoal.train(**PARTIAL, algorithm=Watching(), progress=False, run_dir=tmp_path / "run", **TINY)
    policy = run.policy()
    assert np.isfinite(shoal.evaluate(policy, episodes=2)["return_mean"])
    made = shoal.rollout("CartPole-NoVelocity-v1", critic_state=True, policy=policy, num_envs=2, num_steps=4)
    assert made.steps == 8
    memory = policy.initial_memory()
    everything = {"observation": np.zeros(2), "state": np.zeros(4)}
    assert policy(memory, everything)[1] == policy(memory, {"observation": np.zeros(2)})[1]


@pytest.mark.parametrize("core", ["none", pytest.param("gru", marks=pytest.mark.slow)])
@pytest.mark.full
@pytest.mark.rare("none")
def test_the_critic_reads_the_state_and_the_actor_does_not(core, tmp_path):
    settings = dict(
        core=core, norm_obs=True, num_minibatches=2, hidden_sizes=(8,), progress=False, preset=False
    )
    run = shoal.train(**PARTIAL, **settings, run_dir=tmp_path / "run", **TINY)
    shared = jax.tree.map(lambda x: x[0], run.learner.shared)
    assert set(shared.observation.mean) == {"observation", "state"}  # the learner's normaliser has both
    policy = run.policy()
    assert set(policy.parameters.observation.mean) == {"observation"}
    network, first = shared.network, jnp.ones((1, 1), bool)

    @jax.jit
    def outputs(state):
        observation = {"observation": jnp.full((1, 1, 2), 0.1), "state": jnp.full((1, 1, 4), state)}
        if core == "none":
            return network.policy(observation).logits, network.value(observation)
        inputs = NetworkInputs(observation, first=first)
        unrolled = sequences.unroll(network, sequences.initial(network, (1,)), inputs)
        return unrolled.distribution.logits, unrolled.value

    (logits, value), (same_logits, other_value) = outputs(0.0), outputs(0.5)
    np.testing.assert_array_equal(logits, same_logits)
    assert (value != other_value).all()


def test_a_shared_torso_is_refused(tmp_path):
    with pytest.raises(ShoalError, match=r"shared_torso=True .* critic_only=\('state',\)"):
        shoal.train(
            **PARTIAL, shared_torso=True, preset=False, progress=False, run_dir=tmp_path / "run", **TINY
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrapper", [TimeLimit, FrameStack, Trial])
def test_wrappers_pass_the_names_on(wrapper):
    spec = spec_of(wrapper(make("CartPole-NoVelocity-v1", critic_state=True), 2))
    assert spec.critic_only == ("state",)
    assert "state" in spec.observation_space
    assert "state" not in spec.of_actor.observation_space


def test_flatten_leaves_no_entries_to_keep_from_the_actor():
    with pytest.raises(ShoalError, match=r"critic_only=\('state',\)"):
        _ = Flatten(make("CartPole-NoVelocity-v1", critic_state=True)).observation_space
