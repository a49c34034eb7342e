"""Brax's PPO on MuJoCo Playground's CartpoleBalance, an epoch a call.

Brax 0.14.2 does not start on jax 0.10, which has no `device_put_replicated` any more: it is given one here.
"""

import functools
import queue
import threading
from argparse import Namespace

import jax
from brax.training.agents.ppo import networks, train
from mujoco_playground import registry, wrapper
from protocol import BALANCE, Program, serve, updates_per_call

EPOCHS = 1_000_000  # more than are ever asked for


def build(sizes: Namespace) -> Program:
    """A thread in which Brax trains; it waits after each epoch until another one is asked for."""
    settings = BALANCE[sizes.environment]
    jax.device_put_replicated = lambda x, devices: jax.tree.map(lambda y: jax.numpy.stack([y]), x)
    asked, done = queue.Queue(), queue.Queue()
    steps = updates_per_call(sizes) * sizes.num_envs * sizes.num_steps

    def report(*_) -> None:
        done.put(None)
        asked.get()  # the next epoch begins when it is asked for

    thread = threading.Thread(
        target=train.train,
        daemon=True,
        kwargs=dict(
            environment=registry.load("CartpoleBalance", config_overrides={"impl": "jax"}),
            wrap_env_fn=wrapper.wrap_for_brax_training,
            num_timesteps=EPOCHS * steps,
            num_evals=EPOCHS + 1,
            run_evals=False,
            num_eval_envs=1,
            num_resets_per_eval=0,
            episode_length=1000,
            num_envs=sizes.num_envs,
            unroll_length=sizes.num_steps,
            batch_size=sizes.num_envs // settings["num_minibatches"],
            num_minibatches=settings["num_minibatches"],
            num_updates_per_batch=settings["update_epochs"],
            learning_rate=settings["learning_rate"],
            entropy_cost=settings["ent_coef"],
            discounting=settings["gamma"],
            reward_scaling=settings["reward_scale"],
            normalize_observations=True,
            network_factory=functools.partial(
                networks.make_ppo_networks,
                policy_hidden_layer_sizes=settings["hidden_sizes"],
                value_hidden_layer_sizes=settings["critic_hidden_sizes"],
            ),
            progress_fn=report,
        ),
    )

    def advance(state: None) -> tuple[None, None]:
        asked.put(None) if thread.is_alive() else thread.start()
        done.get()
        return None, None

    return Program(advance, None, steps)


if __name__ == "__main__":
    serve(build, ("brax", "playground"))
