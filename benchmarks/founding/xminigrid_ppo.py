"""XLand-MiniGrid's `training/train_single_task.py` as it is: all of its training in one call, without evaluations."""

import sys
from argparse import Namespace

import jax
import jax.numpy as jnp
from driver import Training, checkout, import_corrected, run

EPISODES = 80


def build(sizes: Namespace) -> Training:
    """Its states and its `train`, with no episodes of evaluation after each update: these are played at the end."""
    folder = checkout()
    sys.path[:0] = [str(folder / "src"), str(folder / "training")]
    # Arrays as the defaults of fields: Python 3.11 refuses them.
    fields = {
        f"jax.Array = jnp.asarray({zero})": f"jax.Array = struct.field(default_factory=lambda: jnp.asarray({zero}))"
        for zero in ("0.0", "0")
    }
    utils = import_corrected(folder / "training/utils.py", "utils", fields)
    import train_single_task
    from flax.jax_utils import replicate, unreplicate

    overrides = {"num_envs": 256, "rnn_hidden_dim": 256} | sizes.sizes
    steps = overrides["num_envs"] * overrides.get("num_steps", 16)
    config = train_single_task.TrainConfig(
        seed=sizes.seed, total_timesteps=steps * sizes.updates, eval_episodes=0, **overrides
    )
    key, env, parameters, hidden, learner = train_single_task.make_states(config)
    devices = jax.local_devices()
    keys = jax.random.split(key, num=len(devices))
    state = keys, replicate(learner, devices), replicate(hidden, devices)

    def compiled():
        train = train_single_task.make_train(env, parameters, config).lower(*state).compile()
        return lambda state: train(*state)["runner_state"]

    def score(state) -> float:
        learner = unreplicate(state[1])
        hidden = jnp.zeros((1, config.rnn_num_layers, config.rnn_hidden_dim))
        play = jax.vmap(lambda key: utils.rollout(key, env, parameters, learner, hidden, 1))
        return float(jax.jit(play)(jax.random.split(jax.random.key(18), EPISODES)).reward.mean())

    return Training(compiled, state, steps, score, updates_per_call=sizes.updates)


if __name__ == "__main__":
    run(build, ("flax", "optax", "distrax"))
