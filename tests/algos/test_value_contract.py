"""What every algorithm that learns the values of actions promises: DQN and its variants, C51, Rainbow, QR-DQN, PQN; and
SAC, TD3 and DDPG, but for how they act."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quadratic import Quadratic
from tiny_worlds import SMALL, Halves, assert_equal, values
from value_rollouts import (
    BOX,
    NUM_ACTIONS,
    SPEC,
    clock_at,
    config_of,
    history_of,
    rollout_for,
    rollout_of,
)

from shoal.algos.acting import exploration
from shoal.algos.acting.exploration import ExplorationConfig, epsilon
from shoal.config.settings import flat, with_settings
from shoal.config.struct import named_leaves, with_named_leaves
from shoal.engine.reduction_check import check_reduced
from shoal.engine.run import ProgramSettings
from shoal.nets.q_networks import expected_values
from shoal.types import Clock, Keys, TimeStep, agent_axis
from shoal.types.spaces import Box, Dict

NUM_ENVS, NUM_STEPS = 4, 6
STEPS = {"n_step": 3}
CASES = {
    "dqn": ("dqn", {}),
    "double": ("dqn", {"double": True, "norm_obs": True}),
    "dueling": ("dqn", {"dueling": True, "double": True, **STEPS}),
    "noisy": ("dqn", {"noisy": True, "double": True}),
    "munchausen": ("dqn", {"munchausen": True, "huber": True}),
    "retrace": ("dqn", {"multistep": "retrace", **STEPS}),
    "tree backup": ("dqn", {"multistep": "tree_backup", **STEPS, "double": True}),
    "watkins": ("dqn", {"multistep": "q_lambda_watkins", **STEPS}),
    "uncorrected": ("dqn", {"multistep": "uncorrected", **STEPS, "noisy": True}),
    "prioritized": ("dqn", {"prioritized_replay": True, "huber": True, **STEPS}),
    "c51": ("c51", STEPS),
    "c51, noisy and dueling": ("c51", {"noisy": True, "dueling": True, "double": True}),
    "rainbow": ("rainbow", {"noisy": True}),
    "qr_dqn": ("qr_dqn", {"double": True, **STEPS}),
    "qr_dqn, noisy": ("qr_dqn", {"noisy": True, "huber": False}),
    "pqn": ("pqn", {"norm_obs": True}),
    "pqn, noisy and dueling": ("pqn", {"noisy": True, "dueling": True}),
    "pqn with a core": ("pqn", {"core": "gru", "core_size": 4, "chunk_length": 3, "burn_in": 2}),
}
BOTH, RETRACE = {"learning_rate": 0.01, "critic_learning_rate": 0.01}, {"multistep": "retrace", **STEPS}
ATOMS = {"values": "categorical", "num_atoms": 7, "v_min": -3.0, "v_max": 3.0}
QUANTILES = {"values": "quantile", "num_quantiles": 5}
ACTOR_CRITICS = {
    "sac": ("sac", BOX, {"norm_obs": True}),
    "sac of a Discrete": ("sac", SPEC, STEPS),
    "sac at a fixed temperature": ("sac", BOX, {"autotune": False, "alpha": 0.1, "correlated_noise": True}),
    "sac by two of four": ("sac", BOX, {"num_critics": 4, "target_critics": 2, "critic_layer_norm": True}),
    "sac with retrace": ("sac", BOX, RETRACE),
    "sac with retrace of a Discrete": ("sac", SPEC, RETRACE),
    "sac, uncorrected": ("sac", BOX, {"multistep": "uncorrected", **STEPS, "q_lambda": 0.7}),
    "sac of atoms": ("sac", BOX, ATOMS),
    "sac of quantiles": ("sac", BOX, QUANTILES | {"drop_quantiles": 2}),
    "sac of quantiles of a Discrete": ("sac", SPEC, QUANTILES | {"target_critics": 1}),
    "td3": ("td3", BOX, {}),
    "td3 of atoms": ("td3", BOX, ATOMS | STEPS),
    "td3 of quantiles": ("td3", BOX, QUANTILES | {"num_critics": 3, "norm_obs": True}),
    "ddpg": ("ddpg", BOX, {"correlated_noise": True}),
}
QUICK_ACTORS = ("sac", "sac with retrace of a Discrete", "td3 of atoms")
QUICK = ("noisy", "retrace", "c51", "prioritized", "rainbow", "pqn with a core")
each = pytest.mark.parametrize("case", CASES)


@functools.cache
def made(case):
    """The config of a case, its algorithm, a new learner and its compiled update."""
    if case in ACTOR_CRITICS:
        name, spec, settings = ACTOR_CRITICS[case]
        config = config_of(name, **BOTH | settings)
    else:
        (name, settings), spec = CASES[case], SPEC
        config = config_of(name, **{"learning_rate": 0.01} | settings)
    algorithm = config.algorithm(spec)
    return config, algorithm, algorithm.init(jax.random.key(1), NUM_ENVS), jax.jit(algorithm.update)


def updated(case, history, learner=None, keys=None, rollouts=2):
    """The learner and the metrics after the rollouts of a history."""
    config, algorithm, first, update = made(case)
    learner = first if learner is None else learner
    for u in range(rollouts):
        spec, memory = ACTOR_CRITICS.get(case, (None, SPEC))[1], algorithm.memory((NUM_ENVS,))
        trajectory = rollout_for(config, spec, history, u * NUM_STEPS, NUM_STEPS, memory)
        own_keys = keys or Keys(jax.random.key(u), jax.random.key(100 + u))
        learner, metrics, _ = update(learner, trajectory, own_keys, clock_at(u, 8))
    return learner, metrics


def history(seed=0, **more):
    return history_of(seed, 2 * NUM_STEPS, NUM_ENVS, **more)


def differ(first, second):
    first, second = values(first), values(second)
    return any((first[name] != second[name]).any() for name in first)


@pytest.mark.parametrize("case", [*CASES, *ACTOR_CRITICS])
@pytest.mark.quick(*QUICK, *QUICK_ACTORS)
def test_an_update_is_pure_and_what_may_not_be_read_changes_nothing(case):
    """The same numbers twice, from inputs that stay; and with others, or NaN, in every entry without a meaning."""
    before = values(made(case)[2])
    learner, metrics = updated(case, history(unread=7.5))
    assert_equal((learner, metrics), updated(case, history(unread=7.5)))
    assert_equal(before, values(made(case)[2]))
    unread = history()
    terminated = (unread.last & (unread.discount == 0))[..., None]
    with_nan, nan_metrics = updated(case, unread._replace(mask=unread.mask | terminated))
    assert_equal((learner.shared, metrics), (with_nan.shared, nan_metrics))
    assert differ(learner.shared.network, made(case)[2].shared.network)
    assert all(np.isfinite(x).all() for x in values(learner.shared).values())


@pytest.mark.parametrize("case", [*CASES, *ACTOR_CRITICS])
@pytest.mark.quick(*QUICK, *QUICK_ACTORS)
def test_a_truncated_episode_is_bootstrapped_from_its_final_observation(case):
    """And a terminated one is not: the same episodes with the other end, or another end to see, teach other values."""
    cut = history(unread=0.5)
    cut = cut._replace(discount=np.ones_like(cut.discount), mask=cut.mask | cut.last[..., None])
    learner, _ = updated(case, cut)
    done = cut._replace(discount=np.where(cut.last, 0.0, 1.0))
    assert differ(learner.shared.network, updated(case, done)[0].shared.network)
    moved = cut.observation + 3.0 * cut.last[..., None]
    assert differ(learner.shared.network, updated(case, cut._replace(observation=moved))[0].shared.network)
    moved = done._replace(observation=moved)
    assert_equal(updated(case, done)[0].shared, updated(case, moved)[0].shared)


@each
@pytest.mark.quick(*QUICK)
def test_an_illegal_action_is_never_the_best_of_a_target(case):
    """Whether an illegal action's value is huge or hugely negative, others are taught the same."""
    config, _, learner, _ = made(case)
    legal = history()._replace(mask=np.broadcast_to([True, True, False], (*history().mask.shape[:-1], 3)))
    legal = legal._replace(action=legal.action % 2)
    if config.network.dueling:
        pytest.skip("the value of one action moves all others")

    def with_value(sign):
        def shifted(network):
            leaves = named_leaves(network)
            name = max(
                name for name in leaves if name.endswith("projection/0/bias") and "deviations" not in name
            )
            bias = leaves[name].reshape(NUM_ACTIONS, -1)
            bias = bias.at[2, -1 if sign > 0 else 0].add(sign * 50.0 if bias.shape[1] == 1 else 50.0)
            if config.network.values == "quantile":
                bias = bias.at[2].add(sign * 50.0 - bias[2])
            return with_named_leaves(network, leaves | {name: bias.ravel()}), name

        network, name = shifted(learner.shared.network)
        shared = learner.shared._replace(network=network)
        if hasattr(shared, "target"):
            shared = shared._replace(target=jax.tree.map(jnp.copy, network))
        after = named_leaves(updated(case, legal, learner._replace(shared=shared))[0].shared.network)
        bias = after.pop(name).reshape(NUM_ACTIONS, -1)
        return after, bias[:2]

    assert_equal(with_value(1.0), with_value(-1.0))


IN_UNITS_OF_REWARDS = ("munchausen_temperature", "munchausen_lowest", "huber_delta", "v_min", "v_max")
DEGREE = {"dqn": 2, "c51": 0, "qr_dqn": 1, "pqn": 2}  # of the loss in these units


@pytest.mark.full
@pytest.mark.parametrize(
    # The first priorities are 1 at any scale.
    "case",
    [
        case
        for case, (_, more) in CASES.items()
        if not {"noisy", "core", "dueling", "prioritized_replay"} & {*more}
    ],
)
@pytest.mark.rare("dqn")
def test_targets_are_right_at_any_scale_of_rewards_and_where_no_action_is_legal(case):
    """Losses scale as rewards do, whose numbers of scale 1 `test_value_updates` compares with NumPy's; a mask that
    allows nothing is as one that allows all."""
    name, settings = CASES[case]
    still = {"learning_rate": 1e-37, "max_grad_norm": 1e30, "optimizer": "sgd", "optimizer_args": ()}
    base = config_of(name, **settings, **still)
    played = history()
    none_legal = (np.random.default_rng(3).uniform(size=played.last.shape) < 0.6)[..., None]

    def metrics_of(scale, mask):
        own = {x: scale * y for x, y in flat(base).items() if x in IN_UNITS_OF_REWARDS}
        algorithm = with_settings(base, **own).algorithm(SPEC)
        learner = algorithm.init(jax.random.key(1), NUM_ENVS)
        leaves = named_leaves(learner.shared.network)
        outputs = {x: y * (1.0 if name == "c51" else scale) for x, y in leaves.items() if "projection/0" in x}
        network = with_named_leaves(learner.shared.network, leaves | outputs)
        shared = learner.shared._replace(network=network)
        if hasattr(shared, "target"):
            shared = shared._replace(target=jax.tree.map(jnp.copy, network))
        update = jax.jit(algorithm.update)

        def metrics(mask):
            scaled, learned = (
                played._replace(reward=scale * played.reward, mask=mask),
                learner._replace(shared=shared),
            )
            for u in range(2):
                extras, memory = settings.get("multistep") == "retrace", algorithm.memory((NUM_ENVS,))
                trajectory = rollout_of(scaled, u * NUM_STEPS, NUM_STEPS, memory, extras=extras)
                keys = Keys(jax.random.key(u), jax.random.key(100 + u))
                learned, found, _ = update(learned, trajectory, keys, clock_at(u, 8))
            return float(found["q_loss"].value) / scale ** DEGREE[name], float(found["q_mean"].value) / scale

        return [metrics(x) for x in mask]

    masks = [played.mask & ~none_legal, played.mask | none_legal, played.mask]
    expected = metrics_of(1.0, masks)
    assert np.isfinite(expected).all() and expected[1] != expected[2]
    np.testing.assert_array_equal(expected[0], expected[1])
    for scale in (2.0**40, 2.0**-40):  # by which float32 scales exactly
        np.testing.assert_allclose(metrics_of(scale, masks), expected, rtol=2e-6)


@each
@pytest.mark.quick("noisy", "retrace", "pqn with a core")
def test_what_collects_explores_by_the_schedule_and_what_is_kept_by_eval_epsilon_where_it_samples(case):
    """At the start all legal actions alike, each environment by itself; a greedy policy takes the best for any key."""
    config, algorithm, learner, _ = made(case)
    num, keys = 512, jax.random.split(jax.random.key(0), 8)
    mask = jnp.broadcast_to(jnp.array([True, False, True]), (num, 3))
    same = jnp.broadcast_to(jnp.array([0.3, -0.2, 0.5]), (num, 3))
    flags = jnp.zeros(num, bool)
    timestep = TimeStep(same, jnp.zeros(num), jnp.ones(num), ~flags, flags, mask)
    memory = algorithm.memory((num,))

    @functools.partial(jax.jit, static_argnames="greedy")
    def act(policy, config=config, greedy=False):
        play = config.algorithm(SPEC).act
        return jax.lax.map(lambda key: play(policy, memory, timestep, key, greedy=greedy)[1], keys)

    kept = algorithm.policy(learner, Clock.zero())
    best = act(kept, greedy=True)
    assert (best == best[0, 0]).all()
    assert best[0, 0] != 1
    assert_equal(best, act(exploration.without_exploration({"past": kept})["past"]))
    first = algorithm.behaviour(learner, Clock.zero())
    assert_equal(best, act(first, greedy=True))
    actions = np.asarray(act(first))
    assert (actions != 1).all()
    if config.network.noisy:
        assert_equal(actions, act(kept))
        assert first.epsilon == 0
        assert (actions == actions[:, :1]).all()  # of one draw of the weights for a step
        outputs = {float(x) for x in first_values(config, first, timestep, keys)}
        assert len(outputs) == len(keys)
        return
    assert abs((actions == 0).mean() - 0.5) < 0.05
    for share, own in ((0.05, config), (0.4, with_settings(config, eval_epsilon=0.4))):
        sampled = np.asarray(act(kept, own))
        assert (sampled != 1).all()
        assert abs((sampled != best).mean() - share / 2) < 0.02  # half of the random actions are the best one
        assert_equal(best, act(kept, own, greedy=True))
    half = algorithm.behaviour(learner, Clock.zero()._replace(progress=jnp.float32(0.5 * 0.5)))
    assert half.epsilon == pytest.approx(0.525)
    others = np.asarray(act(half)) != best[0, 0]
    assert abs(others.mean(1) - 0.525 / 2).max() < 0.1  # not all environments of a step explore together
    assert (others[0] != others[1]).any()


def first_values(config, policy, timestep, keys):
    for key in keys:
        network = exploration.network_of(policy, key, greedy=False)
        yield expected_values(config.network, network.values(timestep.observation))[0, 0]


@each
@pytest.mark.quick()
@pytest.mark.rare("dqn", "dueling", "munchausen")
def test_noise_of_a_network_enters_the_loss_and_not_the_kept_policy(case):
    config = made(case)[0]
    drawn = [Keys(jax.random.key(k), jax.random.key(9)) for k in (0, 1)]
    first, second = (updated(case, history(), keys=keys, rollouts=1)[0].shared.network for keys in drawn)
    assert differ(first, second) == config.network.noisy


@pytest.mark.parametrize("case", [case for case, (name, _) in CASES.items() if name != "pqn"])
@pytest.mark.quick("prioritized")
def test_without_its_replay_a_learner_has_empty_rings_and_no_priorities(case):
    _, algorithm, first, _ = made(case)
    learner, _ = updated(case, history(unread=0.5))
    assert differ(learner.local, first.local)
    emptied = algorithm.without_replay(learner)
    assert_equal(emptied.local, first.local)
    assert emptied.shared.written == 0
    assert_equal(emptied.shared.network, learner.shared.network)


@pytest.mark.parametrize("fraction", [0.0, 0.2, 1.0])
def test_the_probability_of_random_actions_decreases_over_a_fraction_of_the_run(fraction):
    config = ExplorationConfig(start_e=0.9, end_e=0.1, exploration_fraction=fraction)
    at = lambda progress: float(epsilon(config, jnp.float32(progress)))  # noqa: E731
    assert at(0.0) == pytest.approx(0.9 if fraction else 0.1)
    assert at(fraction / 2) == pytest.approx(0.5 if fraction else 0.1)
    assert at(fraction) == pytest.approx(0.1)
    assert at(1.0) == pytest.approx(0.1)


# num_envs, num_steps, train_frequency, gradient_steps, target_network_frequency, learning_starts, tau
COUNTS = (
    (1, 1, 10, 1, 500, 20, 1.0),
    (3, 5, 4, 2, 7, 11, 0.3),
    (4, 8, 1, 1, 3, 0, 0.2),
    (2, 3, 13, 3, 5, 20, 0.25),
    (5, 7, 36, 1, 35, 1, 0.5),
    (8, 1, 7, 5, 100, 30, 1.0),
)


@pytest.mark.parametrize("sizes", COUNTS)
@pytest.mark.quick("sizes1", "sizes3")
def test_gradient_steps_and_moves_of_the_target_are_those_of_a_loop_over_single_steps(sizes):
    """CleanRL's loop over environment steps; the target's moves are counted from the first gradient step on."""
    num_envs, num_steps, every, repeats, period, starts, tau = sizes
    config = config_of(
        "dqn",
        **{
            "hidden_sizes": (),
            "train_frequency": every,
            "gradient_steps": repeats,
            "learning_starts": starts,
        },
        **{"target_network_frequency": period, "tau": tau, "optimizer": "sgd", "optimizer_args": ()},
        **{"learning_rate": 1e-30, "batch_size": 4, "buffer_size": 64},
    )
    algorithm = config.algorithm(SPEC)
    learner, update = algorithm.init(jax.random.key(0), num_envs), jax.jit(algorithm.update)
    made_steps = moves = learned = 0
    step = 0
    one = jax.tree.map(jnp.ones_like, learner.shared.network)
    updates = max(6, 100 // (num_envs * num_steps))
    whole = history_of(0, updates * num_steps, num_envs)
    for u in range(updates):
        shared = learner.shared._replace(network=one, target=jax.tree.map(jnp.zeros_like, one))
        keys = Keys.of_one_group(jax.random.key(u))
        clock = Clock(jnp.int32(u), jnp.float32(0), jnp.float32(0))
        learner, metrics, _ = update(
            learner._replace(shared=shared),
            rollout_of(whole, u * num_steps, num_steps, extras=False),
            keys,
            clock,
        )
        due = 0
        for _ in range(num_envs * num_steps):
            due += repeats * (step > starts and step % every == 0)
            step += 1
        made_steps += due
        assert metrics["gradient_steps"].value == due
        moved = made_steps * every // (period * repeats) - moves
        moves += moved
        target = float(jax.tree.leaves(learner.shared.target)[0].ravel()[0])
        assert target == pytest.approx(1 - (1 - tau) ** moved, abs=1e-5)
        learned += due > 0
    by_loop = sum(s > starts and s % period == 0 for s in range(step))
    assert learned
    assert abs(moves - by_loop) <= 1 + every / period


@pytest.mark.quick("pqn")
@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_gradients_are_clipped_by_their_global_norm(name):
    """The step of plain gradient descent keeps its direction, and its length is the bound."""
    once = {"update_epochs": 1, "num_minibatches": 1, "lr_schedule": "constant"} if name == "pqn" else {}
    once |= {"train_frequency": 23} if name == "dqn" else {}
    steps = []
    for bound in (1e6, 0.01):
        config = config_of(
            name,
            **{"optimizer": "sgd", "optimizer_args": (), "learning_rate": 1.0, "max_grad_norm": bound} | once,
        )
        algorithm = config.algorithm(SPEC)
        learner = algorithm.init(jax.random.key(1), NUM_ENVS)
        trajectory = rollout_of(history(), 0, NUM_STEPS, algorithm.memory((NUM_ENVS,)), extras=False)
        keys = Keys.of_one_group(jax.random.key(3))
        new, metrics, _ = jax.jit(algorithm.update)(learner, trajectory, keys, Clock.zero())
        change = jax.tree.map(jnp.subtract, new.shared.network, learner.shared.network)
        steps.append(np.concatenate([x.ravel() for x in jax.tree.leaves(change)]))
        assert metrics["grad_norm"].value > 0.05  # as it was before the clip
    whole, clipped = steps
    np.testing.assert_allclose(np.linalg.norm(clipped), 0.01, rtol=1e-3)
    np.testing.assert_allclose(clipped, whole * 0.01 / np.linalg.norm(whole), atol=1e-6)


AGENTS = [
    ("dqn", SPEC, {"n_step": 2}),
    ("c51", SPEC, {}),
    ("pqn", SPEC, {}),
    ("sac", BOX, RETRACE),
    ("sac", SPEC, {}),
    ("td3", BOX, {"n_step": 2}),
    ("dqn", SPEC, {"prioritized_replay": True, "n_step": 2}),
]


@pytest.mark.parametrize("name, spec, settings", AGENTS)
@pytest.mark.quick("dqn-spec0-settings0", "pqn-spec2-settings2", "sac-spec3-settings3", "dqn-spec6-settings6")
def test_two_agents_learn_as_two_environments_and_absent_ones_teach_nothing(name, spec, settings):
    """The same parameters as of one agent in twice the environments, with NaN in all entries of absent agents."""
    sizes = {"buffer_size": 64, "train_frequency": 4} if name != "pqn" else {}
    alone = (
        {"buffer_size": 128, "train_frequency": 8, "target_network_frequency": 32} if name != "pqn" else {}
    )
    config = config_of(name, **settings | sizes)
    h = history_of(2, NUM_STEPS, NUM_ENVS)
    h = h._replace(discount=np.where(h.last & (h.discount == 1), 0.0, h.discount))
    h = h._replace(observation=np.where(h.last[..., None], np.nan, h.observation))
    one, keys = config_of(name, **settings | alone).algorithm(spec), Keys.of_one_group(jax.random.key(0))
    trajectory = rollout_for(config, spec, h, 0, NUM_STEPS, one.memory((NUM_ENVS,)))
    expected, _, _ = jax.jit(one.update)(
        one.init(jax.random.key(1), NUM_ENVS), trajectory, keys, Clock.zero()
    )
    several = config.algorithm(spec._replace(num_agents=2))
    timesteps = trajectory.timesteps
    fields = ("observation", "reward", "discount", "action_mask")
    of_agents = agent_axis.unfold({name: getattr(timesteps, name) for name in fields}, 2, 1)
    alive = agent_axis.unfold(~timesteps.last, 2, 1)
    nobody = jnp.zeros(alive.shape[:2], bool)
    timesteps = timesteps._replace(**of_agents, alive=alive, last=nobody, first=nobody)
    actions, extras = agent_axis.unfold((trajectory.actions, trajectory.extras), 2, 1)
    trajectory = trajectory._replace(
        timesteps=timesteps, actions=actions, extras=(extras,), memory=several.memory((2,))
    )
    learner = several.init(jax.random.key(1), NUM_ENVS // 2)
    new, _, _ = jax.jit(several.update)(learner, trajectory, keys, Clock.zero())
    assert_equal(expected.shared.network, new.shared.network)
    assert differ(learner.shared.network, new.shared.network)


OF_GROUPS = ("sac of a Discrete", "sac with retrace of a Discrete", "sac of quantiles of a Discrete")


@pytest.mark.parametrize(
    "case", ["double", "noisy", "prioritized", "c51", "qr_dqn", "pqn", "pqn with a core", *OF_GROUPS]
)
@pytest.mark.slow
def test_what_groups_of_environments_share_is_reduced(case):
    name, *_, settings = (CASES | ACTOR_CRITICS)[case]
    config = config_of(name, **settings | {"learning_rate": 0.01})
    if name == "pqn" and "core" in settings:
        config = with_settings(config, chunk_length=4, num_minibatches=2)
    check_reduced(Halves(bonus=1.0), config, ProgramSettings(**SMALL | {"groups": 2}))


@pytest.mark.parametrize("case", ["sac at a fixed temperature", "sac by two of four", "td3 of atoms", "ddpg"])
@pytest.mark.slow
def test_what_groups_share_is_reduced_where_actions_are_numbers(case):
    name, _, settings = ACTOR_CRITICS[case]
    check_reduced(
        Quadratic(),
        config_of(name, **settings | {"norm_obs": True}),
        ProgramSettings(**SMALL | {"groups": 2}),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", ["dqn", "pqn"])
def test_entries_for_a_critic_only_are_neither_learned_from_nor_kept(name):
    """Nor are they in the normaliser, its warm-up included."""
    space = Dict({"seen": Box(-5.0, 5.0, (3,)), "hidden": Box(-5.0, 5.0, (2,))})
    spec = SPEC._replace(observation_space=space, critic_only=("hidden",))
    config = config_of(name, norm_obs=True, obs_norm_warmup_steps=8)
    algorithm = config.algorithm(spec)
    learner = algorithm.init(jax.random.key(0), NUM_ENVS)
    trajectory = rollout_of(history(), 0, NUM_STEPS, algorithm.memory((NUM_ENVS,)), extras=False)
    seen = trajectory.timesteps.observation
    shown = {"seen": seen, "hidden": jnp.full((*seen.shape[:2], 2), jnp.nan)}
    trajectory = trajectory._replace(timesteps=trajectory.timesteps._replace(observation=shown))
    learner = algorithm.warm_up(learner, trajectory)
    assert set(learner.shared.observation.mean) == {"seen"}
    new, *_ = jax.jit(algorithm.update)(
        learner, trajectory, Keys.of_one_group(jax.random.key(1)), clock_at(0, 8)
    )
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(new.shared.network))
