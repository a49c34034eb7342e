"""The example that is made for reading computes what Shoal computes."""

import importlib.util
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algos.ppo import Extras, init
from shoal.algos.ppo_config import PPOConfig
from shoal.config import struct
from shoal.config.settings import with_settings
from shoal.reports import figures
from shoal.types import Clock, Keys, Trajectory, spec_of


def import_example(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example():
    return import_example("ppo")


def test_curves_are_labelled_by_what_differs(tmp_path, monkeypatch, capsys):
    """Two runs of three seeds, one of which has not finished; of the three no band is drawn."""
    curves, drawn = import_example("learning_curves"), []
    for name, rate, steps in (("a", 0.1, (0, 100, 200, 300)), ("b", 0.2, (0, 100, 200))):
        (tmp_path / name).mkdir()
        config = {
            **{"schema": 3, "environment": {"name": "x", "parameters": {}}, "algorithm": {"name": "ppo"}},
            **{"settings": {"learning_rate": rate, "num_envs": 8}, "run": {"seed": 0, "seeds": 3}},
        }
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        rows = [
            {
                "kind": "evaluation",
                "step": step,
                "updates": step,
                "time": 0,
                "seed": seed,
                "return_mean": seed,
            }
            for step in steps
            for seed in range(3)
        ]
        text = "".join(f"{json.dumps(x)}\n" for x in rows)
        (tmp_path / name / "metrics.jsonl").write_text(text)
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    monkeypatch.setattr("sys.argv", ["x", "x.png", str(tmp_path / "a"), str(tmp_path / "b"), "--log-steps"])
    curves.main()
    assert "b has not finished: its curve ends at 200 steps" in capsys.readouterr().out
    (legend,), (axes,) = drawn[0].legends, drawn[0].axes
    assert [x.get_text() for x in legend.get_texts()] == ["learning_rate 0.1", "learning_rate 0.2"]
    assert not axes.collections and min(axes.lines[0].get_xdata()) == 100
    low, high = axes.get_xlim()
    assert sum(low <= x <= high for x in axes.get_xticks()) >= 2 and len(axes.get_xticklabels()) >= 2


def as_params(network):
    """The parameters of Shoal's network in the form of the example's; kernels are [outputs, inputs] there."""
    leaves = struct.named_leaves(network)

    def layers(part):
        names = [f"{part}/mlp/layers/0", f"{part}/mlp/layers/1", f"{part}/mlp/projection/0"]
        return [{"kernel": leaves[f"{x}/kernel"].T, "bias": leaves[f"{x}/bias"]} for x in names]

    return {part: layers(part) for part in ("actor", "critic")}


@pytest.mark.full
def test_one_update_is_that_of_shoals_ppo(example, monkeypatch):
    """Of whole batches, whose order does not matter; some episodes terminate within the rollout, others are cut."""
    env = shoal.make("CartPole-v1", max_episode_steps=20)
    spec, key = spec_of(env), jax.random.key(3)
    config = with_settings(
        PPOConfig(),
        num_minibatches=1,
        update_epochs=4,
        learning_rate=1e-3,
        lr_schedule="linear",
        gradient_chunk=0,
    ).resolved()
    monkeypatch.setattr(example, "NUM_MINIBATCHES", 1)
    learner = init(config, spec, key, example.NUM_ENVS)
    params = as_params(learner.shared.network)
    state, timestep = jax.vmap(env.reset)(jax.random.split(key, example.NUM_ENVS))
    _, _, rollout = example.collect(env, params, state, timestep, key)
    assert rollout.timesteps.last.any() and rollout.timesteps.discount[rollout.timesteps.last].min() == 0
    assert rollout.timesteps.discount[rollout.timesteps.last].max() == 1

    algorithm = config.algorithm(spec)
    trajectory = Trajectory(
        rollout.timesteps,
        rollout.actions,
        Extras(raw_action=(), log_prob=rollout.log_probs, distribution=(), memory=()),
        algorithm.memory((example.NUM_ENVS,)),
    )
    clock = Clock(updates=jnp.int32(3), steps=jnp.float32(0), progress=jnp.float32(0.25))
    updated = algorithm.update(learner, trajectory, Keys(key, key), clock)[0].shared.network

    batch = example.make_batch(params, rollout)
    found, _ = example.update(params, example.optimizer.init(params), batch, 0.25, key)
    expected = as_params(updated)
    assert (
        max(
            float(jnp.abs(x - y).max())
            for x, y in zip(*map(jax.tree.leaves, (params, expected)), strict=True)
        )
        > 1e-3
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=2e-6), found, expected)


@pytest.mark.slow
def test_it_learns_as_the_preset_does(example):
    env = shoal.make("CartPole-v1")
    keys = jax.vmap(jax.random.key)(jnp.arange(100, 110))
    params = jax.jit(jax.vmap(example.make_train(env)))(keys)
    returns = jax.jit(jax.vmap(lambda p, k: example.evaluate(env, p, k)))(params, keys)
    assert float(jnp.sort(returns)[2:].min()) > 475


@pytest.mark.full
def test_an_exported_policy_plays_in_gymnasium_as_it_does_here(tmp_path, monkeypatch):
    """The same numbers by both runtimes; the description says all that they need."""
    pytest.importorskip("jax2onnx")
    monkeypatch.setenv("HOME", str(tmp_path))  # onnxruntime writes into the user's cache
    example = import_example("onnx_policy")
    monkeypatch.setattr(example, "EPISODES", 2)
    sizes = {"num_envs": 4, "num_steps": 8, "total_steps": 64, "num_minibatches": 1, "eval_episodes": 4}
    run = shoal.train("CartPole-v1", run_dir=tmp_path / "run", core="gru", core_size=8, **sizes)
    path = str(shoal.export(run, tmp_path / "policy.onnx").path)
    assert example.main(path, "CartPole-v1") == example.main(path, "CartPole-v1", "--reference") >= 8
