"""JaxDEM's environments under the loop of its own trainer: step, then `reset_if_done`, all worlds by `vectorise_env`.

The package is read from the checkout that `JAXDEM_CHECKOUT` names. Its `jaxdem.rl` imports the trainer and with it
distrax, which does not import beside this version of JAX; so an empty package stands in for `jaxdem.rl` itself, whose
environments are imported from their own files.
"""

import os
import sys
import types
from argparse import Namespace
from pathlib import Path

import jax
from protocol import Program, compiler_options, serve

sys.path.insert(0, os.environ["JAXDEM_CHECKOUT"])
package = types.ModuleType("jaxdem.rl")
package.__path__ = [str(Path(os.environ["JAXDEM_CHECKOUT"], "jaxdem", "rl"))]
sys.modules["jaxdem.rl"] = package

from jaxdem.rl.environments import Environment  # noqa: E402
from jaxdem.rl.envWrappers import vectorise_env  # noqa: E402

TASKS = {
    "one navigator": ("singleNavigator", {}),
    "one roller": ("singleRoller3D", {}),
    "16 navigators": ("multiNavigator", {"N": 16}),
}


def build(sizes: Namespace) -> Program:
    """A rollout with given actions, which returns its observations, rewards and ends."""
    name, parameters = TASKS[sizes.environment]
    one = Environment.create(name, max_steps=1000, **parameters)
    key = jax.random.key(0)
    shape = (sizes.num_steps, sizes.num_envs, one.max_num_agents, one.action_space_size)
    actions = jax.random.uniform(key, shape, minval=-1.0)
    env = vectorise_env(one, sizes.num_envs)

    def advance(carry):
        def step(carry, action):
            key, env = carry
            key, step_key = jax.random.split(key)
            env = env.step(env, action)
            outputs = env.observation(env), env.reward(env), env.done(env)
            env = env.reset_if_done(env, outputs[2], jax.random.split(step_key, sizes.num_envs))
            return (key, env), outputs

        return jax.lax.scan(step, carry, actions)

    env = jax.jit(lambda key: env.reset(env, jax.random.split(key, sizes.num_envs)))(key)
    compiled = jax.jit(advance, compiler_options=compiler_options(sizes))
    return Program(compiled, (key, env), sizes.num_steps * sizes.num_envs)


if __name__ == "__main__":
    serve(build, ())
