"""Networks with batch normalisation and dropout: whole updates against plain Flax, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import safetensors
import stateful_networks
from flax import nnx
from recomputed_rollouts import ENDS, SPEC, N, T, acted
from tiny_worlds import Halves, populate, values

import shoal
from shoal.algos import catalogue
from shoal.algos.learning import minibatches
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.nets import stateful
from shoal.nets.noisy import has_noise
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import resolve
from shoal.types import Clock, Keys, spec_of

FIRST, LAST, DISCOUNT = ENDS
COUNTS = ~LAST[:-1]  # the transitions
RATE, CLIP = {"learning_rate": 0.01, "optimizer_args": ("eps=1e-3",)}, 0.5
EPOCHS, PARTS = 2, 2
SMALL = {"update_epochs": EPOCHS, "num_minibatches": PARTS, **RATE, "max_grad_norm": CLIP}


def made(algorithm, network, **settings):
    config = with_settings(catalogue.config_class(algorithm)(), network=network)
    return resolve(with_settings(config, **SMALL | settings))


def plain_module(network, leaves):
    """The module that a user's own class makes, with the numbers of a learner."""
    module = network(SPEC, key=jax.random.key(9))
    state = nnx.state(module, (nnx.Param, nnx.BatchStat))
    for path, variable in nnx.to_flat_state(state):
        variable[...] = leaves["/".join(map(str, (*path, "value")))]
    nnx.update(module, state)
    return module


def orders_of(key):
    rows = minibatches.Rows(weight=jnp.zeros(T * N))
    return np.asarray(minibatches.shuffled_rows(rows, EPOCHS, PARTS, key)).reshape(EPOCHS * PARTS, -1)


def step_keys(key):
    """The key of each gradient step, from the update's."""
    key = jax.random.fold_in(key, 2**20)
    while True:
        yield jax.random.fold_in(key, 0)
        key = jax.random.fold_in(key, 1)


def descend(module, loss, columns, key):
    """Gradient steps on the minibatches by Flax and Optax alone; `loss` is of a module and rows, of each row."""
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adam(RATE["learning_rate"], eps=1e-3))
    opt_state = optimizer.init(nnx.state(module, nnx.Param))
    counts = COUNTS.reshape(-1)
    for order, step_key in zip(orders_of(key), step_keys(key), strict=False):
        index = order
        module.train()
        dropouts = [x for _, x in nnx.iter_modules(module) if isinstance(x, nnx.Dropout)]
        if dropouts:  # whole rows, of which some do not count: the shape of a draw is that of the minibatch
            parts = [module.actor.layers, module.critic]
            for number, layers in enumerate(parts):
                layers.dropout.rngs = nnx.Rngs(jax.random.fold_in(step_key, number))
        else:
            index = order[counts[order]]
        rows = {name: jnp.asarray(x[index]) for name, x in columns.items()}

        def mean(module, rows=rows, weight=counts[index]):
            return jnp.sum(jnp.where(weight, loss(module, **rows), 0.0)) / weight.sum()

        gradient = nnx.grad(mean, argnums=nnx.DiffState(0, nnx.Param))(module)
        updates, opt_state = optimizer.update(gradient, opt_state)
        nnx.update(module, optax.apply_updates(nnx.state(module, nnx.Param), updates))
    return module


def flat(x):
    """Rows of transitions, with zeros for what is none."""
    x = np.asarray(x)
    return np.where(COUNTS.reshape(T, N, *[1] * (x.ndim - 2)), x, 0).reshape(-1, *x.shape[2:])


def plain_ppo(config, module, trajectory, key):
    module.eval()
    observation, reward = trajectory.timesteps.observation, np.asarray(trajectory.timesteps.reward)
    value = np.asarray(module.value(observation), np.float64)
    advantage = np.zeros((T + 1, N))
    for t, n in [(t, n) for t in reversed(range(T)) for n in range(N) if not LAST[t, n]]:
        following = config.gamma * value[t + 1, n] if DISCOUNT[t + 1, n] else 0.0
        error = reward[t + 1, n] + following - value[t, n]
        carried = 0.0 if LAST[t + 1, n] else config.gamma * config.gae_lambda * advantage[t + 1, n]
        advantage[t, n] = error + carried

    def loss(module, observation, action, old, advantage, target):
        log_policy = jax.nn.log_softmax(module.actor.layers(observation))
        log_prob = jnp.take_along_axis(log_policy, action[:, None], -1)[:, 0]
        ratio = jnp.exp(log_prob - old)
        surrogate = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
        entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, -1)
        return -surrogate + 0.25 * (module.value(observation) - target) ** 2 - 0.01 * entropy

    columns = {
        "observation": flat(observation[:-1]),
        "action": flat(trajectory.actions),
        "old": flat(trajectory.extras.log_prob),
        "advantage": flat(advantage[:-1]),
        "target": flat(advantage[:-1] + value[:-1]),
    }
    return descend(module, loss, columns, key)


def plain_pqn(config, module, trajectory, key):
    module.eval()
    observation, reward = trajectory.timesteps.observation, np.asarray(trajectory.timesteps.reward)
    best = np.asarray(module.values(observation), np.float64).max(-1)
    target = np.zeros((T, N))
    for t, n in [(t, n) for t in reversed(range(T)) for n in range(N) if not LAST[t, n]]:
        following = best[t + 1, n] if DISCOUNT[t + 1, n] else 0.0
        if t + 1 < T and not LAST[t + 1, n]:
            following += config.q_lambda * (target[t + 1, n] - following)
        target[t, n] = reward[t + 1, n] + config.gamma * following

    def loss(module, observation, action, target):
        value = jnp.take_along_axis(module.values(observation), action[:, None], -1)[:, 0]
        return 0.5 * (value - target) ** 2

    columns = {
        "observation": flat(observation[:-1]),
        "action": flat(trajectory.actions),
        "target": flat(target),
    }
    return descend(module, loss, columns, key)


CASES = {
    "ppo": (plain_ppo, {"norm_adv": "none", "ent_coef": 0.01}),
    "pqn": (plain_pqn, {"optimizer": "adam"}),
}


@functools.cache
def updated(algorithm, network, **settings):
    """A learner and a rollout of it with ends of each kind, NaN where nothing may be read, and the update from them."""
    config = made(algorithm, network, **settings, **CASES[algorithm][1])
    learner, trajectory = jax.jit(lambda c, k: acted(c, k, jnp.nan))(
        struct.as_arrays(config), jax.random.key(3)
    )
    keys = Keys.of_one_group(jax.random.key(5))
    update = jax.jit(lambda c, *arguments: c.algorithm(SPEC).update(*arguments)[0])
    return (
        config,
        learner,
        trajectory,
        keys,
        update(struct.as_arrays(config), learner, trajectory, keys, Clock.zero()),
    )


@pytest.mark.parametrize("network", ["Normalised", "Dropped"])
@pytest.mark.parametrize("algorithm", CASES)
@pytest.mark.quick("ppo-Dropped", "pqn-Normalised")
def test_an_update_is_that_of_plain_flax(algorithm, network):
    network = getattr(stateful_networks, network)
    config, learner, trajectory, keys, after = updated(algorithm, network)
    module = plain_module(network, values(learner.shared.network))
    module = CASES[algorithm][0](config, module, trajectory, keys.local)
    found, before = values(after.shared.network), values(learner.shared.network)
    module.eval()
    expected = values(stateful.at_rest(module))
    assert found.keys() == expected.keys() == before.keys()
    for name, x in expected.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-5, atol=1e-5, err_msg=name)
        is_of_critic = algorithm == "pqn" and name.startswith("critic")
        assert is_of_critic or np.abs(x - before[name]).max() > 1e-3, name


@pytest.mark.full
def test_statistics_are_not_changed_by_learning_in_the_mode_eval():
    """And are no parameters: no gradient step moves them."""
    _, learner, *_, after = updated("ppo", stateful_networks.Both, network_mode="eval")
    assert values(learner.shared.network).keys() == values(after.shared.network).keys()
    statistics = [stateful.statistics_of(x.shared.network) for x in (learner, after)]
    assert len(statistics[0]) == 4
    assert all((statistics[0][name] == x).all() for name, x in statistics[1].items())


@pytest.mark.slow
def test_the_actors_statistics_stay_after_a_kl_stop():
    """What was stopped acts as before."""
    _, learner, *_, after = updated("ppo", stateful_networks.Normalised, target_kl=1e-12)
    before, stopped = (values(x.shared.network) for x in (learner, after))
    for name in before:
        assert (stopped[name] == before[name]).all() == name.startswith("actor"), name


@pytest.mark.full
@pytest.mark.rare("ppo")
@pytest.mark.parametrize("algorithm", CASES)
def test_two_devices_are_one(algorithm):
    """Two groups of environments: the statistics of a minibatch are of both, weighted by the steps that count."""
    runs = []
    for devices in (1, 2):
        config = made(algorithm, stateful_networks.Both)
        population, compiled = populate(Halves(bonus=1.0), config, (0, 1), groups=2, devices=devices)
        population, _ = compiled.train(population, jnp.int32(1))
        runs.append(values(population.learner.shared.network))
    for name, x in runs[0].items():
        np.testing.assert_allclose(runs[1][name], x, rtol=1e-4, atol=1e-5, err_msg=name)


def test_statistics_of_two_devices_are_those_of_all_rows():
    """Of groups with unequal numbers of rows that count, on one device and on two."""
    network = stateful.at_rest(stateful_networks.Normalised(SPEC, key=jax.random.key(0)))
    x, counts = jax.random.normal(jax.random.key(1), (2, 8, 2)), np.ones((2, 8), bool)
    counts[0, 3] = counts[1, 1:6] = False

    def forward(x, counts, axis):
        copy = stateful.training(network, stateful.statistics_of(network), jax.random.key(0), counts, axis)
        return copy.value(x), stateful.statistics_of(copy)

    value, whole = forward(x.reshape(16, 2), counts.reshape(16), ())
    both, of_groups = jax.vmap(functools.partial(forward, axis=("groups",)), axis_name="groups")(x, counts)
    np.testing.assert_allclose(both.reshape(16), value, atol=1e-6)
    hidden = network.critic.hidden(x)[counts]
    mean = of_groups["critic/norm/mean/value"]
    np.testing.assert_allclose(mean[0], 0.1 * hidden.mean(0), atol=1e-7)
    variance = of_groups["critic/norm/var/value"]
    np.testing.assert_allclose(variance[0], 0.9 + 0.1 * hidden.var(0), atol=1e-7)
    for name, x in whole.items():
        np.testing.assert_allclose(of_groups[name], np.stack([x, x]), atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            {"algorithm": "dqn", "network": "Normalised"},
            "has state .*which ppo, a2c, reinforce, mappo and pqn train",
        ),
        (
            {"encoder": "Torso", "core": "gru"},
            "^encoder='stateful_networks:Torso' .* with memory cannot have",
        ),
        ({"algorithm": "dqn", "encoder": "Torso"}, "^encoder='stateful_networks:Torso' has state"),
        (
            {"network": "Normalised", "gradient_chunk": 64},
            "gradient_chunk=64 cuts a minibatch, .*gradient_chunk=0",
        ),
        ({"network_mode": "eval"}, "network_mode='eval' has no effect, since the network has no state"),
        (
            {"network": "Both", "recompute": "minibatch"},
            "recompute='minibatch' takes the values of the loss's own",
        ),
        ({"network": "NoKeys"}, "`deterministic` is False, but no `rngs`"),
        ({"network": "DrawsAlways"}, "no random numbers are drawn in acting, evaluation and the mode eval"),
        ({"network": "BatchAlways"}, "changes its statistics 'critic/norm/mean/value' in the mode eval"),
    ],
)
def test_what_cannot_work_is_said_before_anything_compiles(settings, message):
    own = {
        name: f"stateful_networks:{x}" if name in ("network", "encoder") else x
        for name, x in settings.items()
    }
    algorithm = own.pop("algorithm", "ppo")

    def validate():
        experiment = decide("CartPole-v1", algorithm=algorithm, overrides=own, use_preset=False)
        resolve(experiment.config).validate(spec_of(experiment.environment), 8, 32)

    with pytest.raises(ShoalError if "`" not in message else ValueError, match=message):
        validate()


def test_a_network_may_hold_its_streams_of_keys():
    """`nnx.Rngs` has a stream of any name, `noisy` and `sample` too."""
    assert not has_noise(stateful_networks.HeldKeys(SPEC, key=jax.random.key(0)))


@pytest.mark.full
def test_a_policy_acts_by_its_running_statistics(tmp_path):
    """A loaded policy is what NumPy makes of its file: no unit is dropped, and no batch is looked at."""
    sizes = {"seeds": 2, "num_envs": 4, "num_steps": 32, "total_steps": 1024, "num_evals": 1, "devices": 1}
    more = {"eval_episodes": 2, "run_dir": tmp_path / "run", "progress": False}
    run = shoal.train("CartPole-v1", network="stateful_networks:HeldKeys", **sizes, **more)
    with safetensors.safe_open(run.path / "last.safetensors", "np") as file:
        names = list(file.keys())
        x = {name: file.get_tensor(name)[1] for name in names if name.startswith("policy/")}  # of seed 1
    assert not [name for name in names if "rngs" in name]
    layer = {
        name.split("layers/")[-1].removesuffix("/value"): array.astype(float) for name, array in x.items()
    }
    assert np.abs(layer["norm/mean"]).max() > 0.01
    policy = shoal.load(run.path, "last", seed=1)
    observations = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    hidden = observations @ layer["hidden/kernel"]
    hidden = (hidden - layer["norm/mean"]) / np.sqrt(layer["norm/var"] + 1e-5)
    hidden = np.tanh(hidden * layer["norm/scale"] + layer["norm/bias"])
    logits = hidden @ layer["out/kernel"] + layer["out/bias"]
    actions = [int(policy(policy.initial_memory(), observation)[1]) for observation in observations]
    assert actions == logits.argmax(-1).tolist()
