"""JaxMARL's own script of IPPO, unmodified: its `make_train` with its own settings, of which only sizes are replaced.

The script is not in JaxMARL's package; `JAXMARL_SCRIPT` says where it is. Each call trains from new parameters, for as
many updates as a call makes; to draw them takes less than a hundredth of it. Weights & Biases is set up as the script's
settings have it, disabled, so that the call back to Python after each update does nothing.
"""

import os
import runpy
from argparse import Namespace
from pathlib import Path

import jax
import wandb
from omegaconf import OmegaConf
from protocol import Program, compiler_options, serve, updates_per_call


def build(sizes: Namespace) -> Program:
    """The script's whole training, with so many updates."""
    script = Path(os.environ["JAXMARL_SCRIPT"])
    settings = OmegaConf.to_container(OmegaConf.load(script.parent / "config" / f"{script.stem}.yaml"))
    steps = updates_per_call(sizes) * sizes.num_envs * sizes.num_steps
    settings |= {"NUM_ENVS": sizes.num_envs, "NUM_STEPS": sizes.num_steps, "TOTAL_TIMESTEPS": steps}
    wandb.init(mode=settings["WANDB_MODE"])
    train = runpy.run_path(str(script))["make_train"](settings)
    trained = jax.jit(train, compiler_options=compiler_options(sizes))
    return Program(lambda key: (key, trained(key)), jax.random.PRNGKey(0), steps)


if __name__ == "__main__":
    serve(build, ("jaxmarl", "flax", "distrax", "optax"))
