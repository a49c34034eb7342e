"""Stoix's `ff_ppo` (Anakin, `mlp`) with its own configuration, environment, learner and evaluator: an update a call."""

import os
from argparse import Namespace

os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"  # a logger's files are of an older protoc

import jax
import jax.numpy as jnp
from driver import Training, checkout, run

ENVIRONMENTS = ("gymnax/cartpole", "xland_minigrid/empty_6x6")


def configuration(sizes: Namespace):
    """Stoix's own, composed by Hydra, with one update between two evaluations."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    folder = checkout()
    os.chdir(folder)  # its search path is relative
    changes = [f"env={ENVIRONMENTS[sizes.sizes.get('environment', 0)]}", f"arch.seed={sizes.seed}"]
    changes += [f"arch.num_updates={sizes.updates}", "arch.total_timesteps=null"]
    changes += [f"arch.num_evaluation={sizes.updates}"]
    with initialize_config_dir(str(folder / "stoix/configs/default/anakin"), version_base="1.2"):
        config = compose("default_ff_ppo.yaml", overrides=changes)
    OmegaConf.set_struct(config, False)
    config.num_devices = len(jax.devices())
    return config


def build(sizes: Namespace) -> Training:
    """Its learner as `run_experiment` sets it up."""
    config = configuration(sizes)
    from stoix.evaluator import evaluator_setup, get_distribution_act_fn
    from stoix.systems.ppo.anakin.ff_ppo import learner_setup
    from stoix.utils import make_env
    from stoix.utils.jax_utils import unreplicate_batch_dim
    from stoix.utils.total_timestep_checker import check_total_timesteps

    config = check_total_timesteps(config)
    env, eval_env = make_env.make(config=config)
    keys = jax.random.split(jax.random.PRNGKey(config.arch.seed), num=4)
    key, key_e, *network_keys = keys
    learn, actor, state = learner_setup(env, (key, *network_keys), config)
    act = get_distribution_act_fn(config, actor.apply)

    def score(state) -> float:
        evaluator, _, (params, eval_keys) = evaluator_setup(
            eval_env, key_e, act, state.params.actor_params, config
        )
        params = unreplicate_batch_dim(state.params.actor_params)
        return float(jnp.mean(evaluator(params, eval_keys, None).episode_metrics["episode_return"]))

    def compiled():
        update = learn.lower(state).compile()
        return lambda state: update(state).learner_state

    return Training(compiled, state, config.arch.total_num_envs * config.system.rollout_length, score)


if __name__ == "__main__":
    run(build, ("flax", "optax", "gymnax", "stoa-env"))
