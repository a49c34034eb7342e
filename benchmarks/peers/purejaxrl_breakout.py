"""PureJaxRL's PPO on Breakout-MinAtar; the folder `purejaxrl` of its repository is named by PUREJAXRL."""

import os
import sys
import types
from argparse import Namespace

import jax
from protocol import BREAKOUT, Program, compiler_options, serve, updates_per_call

# Its wrappers import navix's and Brax's, which this task does not use.
for name in ("navix", "brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["brax"].envs = sys.modules["brax.envs"]
sys.modules["brax.envs.wrappers.training"].EpisodeWrapper = None
sys.modules["brax.envs.wrappers.training"].AutoResetWrapper = None
sys.path.insert(0, os.environ.get("PUREJAXRL", "purejaxrl"))


def build(sizes: Namespace) -> Program:
    """A training of so many updates a call, from new parameters each time; making these costs next to nothing."""
    from ppo import make_train

    steps = updates_per_call(sizes) * sizes.num_envs * sizes.num_steps
    config = {
        "LR": BREAKOUT["learning_rate"],
        "NUM_ENVS": sizes.num_envs,
        "NUM_STEPS": sizes.num_steps,
        "TOTAL_TIMESTEPS": steps,
        "UPDATE_EPOCHS": BREAKOUT["update_epochs"],
        "NUM_MINIBATCHES": BREAKOUT["num_minibatches"],
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
        "ENT_COEF": 0.01,
        "VF_COEF": 0.5,
        "MAX_GRAD_NORM": 0.5,
        "ACTIVATION": BREAKOUT["activation"],
        "ENV_NAME": "Breakout-MinAtar",
        "ANNEAL_LR": True,
    }
    train = jax.jit(make_train(config), compiler_options=compiler_options(sizes))

    def advance(key):
        trained = train(key)
        return jax.random.fold_in(key, 1), trained

    return Program(advance, jax.random.PRNGKey(0), steps)


if __name__ == "__main__":
    serve(build, ("gymnax", "flax"))
