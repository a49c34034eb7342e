"""Modules of flax.linen through training: seeds, a mapped training, files, evaluation, export, several agents."""

import json

import jax
import jax.numpy as jnp
import linen_networks
import numpy as np
import pytest

import shoal
from shoal.algos.catalogue import config_class
from shoal.config.struct import named_leaves

TINY = {
    **{"num_envs": 4, "num_steps": 8, "num_minibatches": 1, "update_epochs": 2, "total_steps": 64},
    **{"eval_episodes": 4, "num_evals": 1, "preset": False},
}
REPLAYED = {
    **{x: TINY[x] for x in ("num_envs", "total_steps", "eval_episodes", "num_evals", "preset")},
    **{"learning_starts": 16, "buffer_size": 64, "batch_size": 8},
}
NAMED = "linen_networks:"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    return shoal.train("CartPole-v1", network=f"{NAMED}network", seeds=2, run_dir=path, **TINY)


def test_a_network_is_saved_loaded_and_evaluated_as_any_other(run):
    assert json.loads((run.path / "config.json").read_text())["settings"]["network"] == f"{NAMED}network"
    policy = shoal.load(run.path, seed=1)
    assert sum("/Dense_" in name for name in named_leaves(policy.parameters)) == 6
    assert shoal.evaluate(run.path, episodes=4, seed=1)["return_mean"] >= 8.0


@pytest.mark.full
def test_a_policy_is_exported_as_any_other(run, tmp_path):
    pytest.importorskip("jax2onnx")
    shoal.export(run.path, tmp_path / "policy.onnx", check=200)


def test_the_first_parameters_of_a_run_are_linens_own():
    """The key is that of a class of one's own: `fold_in(fold_in(key, 0), 0)` of the seed's."""
    trainer = shoal.make_train("CartPole-v1", network=linen_networks.network, **TINY)
    built = trainer.init(jax.random.key(3)).shared.network
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), 0), 0)
    expected = linen_networks.ActorCritic(2).init(key, jnp.zeros((1, 4)))["params"]
    for first, own in zip(jax.tree.leaves(built), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(first, own)


@pytest.mark.full
@pytest.mark.parametrize(
    "environment, settings",
    [
        ("mpe/Spread-v0", {**TINY, "network": linen_networks.network}),
        ("mpe/Spread-v0", {**TINY, "encoder": linen_networks.OfAll, "algorithm": "mappo"}),
        ("Pendulum-v1", {**TINY, "network": linen_networks.gaussian}),
        (
            "CartPole-v1",
            {**TINY, "actor_network": linen_networks.Actor, "critic_network": linen_networks.Critic},
        ),
        ("CartPole-v1", {**TINY, "encoder": linen_networks.Torso, "core": "gru", "core_size": 4}),
        ("CartPole-v1", {**TINY, "network": linen_networks.Actor, "algorithm": "pqn"}),
        ("CartPole-v1", {**REPLAYED, "network": linen_networks.Actor, "algorithm": "dqn"}),
        ("CartPole-v1", {**REPLAYED, "encoder": linen_networks.listed, "algorithm": "dqn"}),
        ("Pendulum-v1", {**REPLAYED, "encoder": linen_networks.Torso, "algorithm": "sac"}),
        ("Pendulum-v1", {**REPLAYED, "encoder": linen_networks.Torso, "algorithm": "td3"}),
        ("Pendulum-v1", {**REPLAYED, "encoder": linen_networks.Torso, "algorithm": "ddpg"}),
    ],
)
@pytest.mark.rare(
    "Pendulum-v1-settings10",
    "Pendulum-v1-settings8",
    "Pendulum-v1-settings9",
    "CartPole-v1-settings4",
    "CartPole-v1-settings7",
    "CartPole-v1-settings3",
    "CartPole-v1-settings6",
)
def test_it_trains_in_every_algorithm(environment, settings):
    """Its parameters move, and stay finite."""
    algorithm = config_class(settings.get("algorithm", "ppo"))()
    others = {name: x for name, x in settings.items() if name != "algorithm"}
    trainer = shoal.make_train(environment, algorithm, **others)
    first = named_leaves(trainer.init(jax.random.key(0)).shared)
    last = named_leaves(jax.jit(trainer)(jax.random.key(0))[0].shared)
    kernels = [
        x for x in first if "/params/" in x and "kernel" in x and not x.startswith(("optimizer", "target"))
    ]
    assert kernels
    for name in kernels:
        assert np.all(np.isfinite(last[name])) and np.any(last[name] != first[name]), name


@pytest.mark.slow
def test_a_mapped_training_is_each_of_them():
    trainer = shoal.make_train("CartPole-v1", encoder=f"{NAMED}listed", **TINY)
    keys = jax.random.split(jax.random.key(0), 2)
    mapped = jax.jit(jax.vmap(trainer))(keys)
    alone = jax.jit(trainer)(keys[1])
    for many, one in zip(jax.tree.leaves(mapped), jax.tree.leaves(alone), strict=True):
        if jnp.issubdtype(one.dtype, jnp.floating):
            np.testing.assert_allclose(many[1], one, rtol=1e-4, atol=1e-5)
