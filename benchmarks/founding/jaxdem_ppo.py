"""JaxDEM's PPO trainer with its defaults on `single_navigator`: an epoch a call."""

from argparse import Namespace

import jax
import jax.numpy as jnp
from driver import Training, checkout, run
from flax import nnx

EPOCHS = 1000  # of its own budget, over which its schedules run; fewer are made here
EPISODES, LENGTH = 32, 20_000  # of an evaluation: whole episodes


def build(sizes: Namespace) -> Training:
    """The trainer as its example makes it."""
    checkout()
    from jaxdem import rl

    key = jax.random.key(sizes.seed)
    env = rl.Environment.create("single_navigator")
    model = rl.Model.create(
        "SharedActorCritic",
        key=nnx.Rngs(sizes.seed),
        observation_space_size=env.observation_space_size,
        action_space_size=env.action_space_size,
        action_space=rl.ActionSpace.create("max_norm", max_norm=6.0),
    )
    trainer = rl.Trainer.create("PPO", env=env, model=model, key=key, num_epochs=EPOCHS)

    def update(state):
        trainer, epoch = state
        return trainer.epoch(trainer, epoch)[0], epoch + 1

    state = trainer, jnp.asarray(0, dtype=int)
    compiled = lambda: jax.jit(update).lower(state).compile()  # noqa: E731
    steps = trainer.env.num_envs * trainer.num_steps_epoch
    return Training(compiled, state, steps, lambda state: score(state[0], env, rl))


def score(trainer, env, rl) -> float:
    """The mean return of whole episodes with sampled actions; JaxDEM has no evaluation of its own."""
    worlds = rl.envWrappers.vectorise_env(env, EPISODES)
    worlds = worlds.reset(worlds, jax.random.split(jax.random.key(18), EPISODES))

    @jax.jit
    def play(worlds, graphstate):
        model, *_ = nnx.merge(trainer.graphdef, graphstate)
        model.eval()
        split = nnx.split(model)

        def step(carry, key):
            worlds, returned = carry
            policy, _ = nnx.merge(*split)(worlds.observation(worlds), sequence=False)
            worlds = worlds.step(worlds, policy.sample(seed=key))
            return (worlds, returned + worlds.reward(worlds).reshape(EPISODES)), None

        keys = jax.random.split(jax.random.key(0), LENGTH)
        (_, returned), _ = jax.lax.scan(step, (worlds, jnp.zeros(EPISODES)), keys)
        return returned.mean()

    return float(play(worlds, trainer.graphstate))


if __name__ == "__main__":
    run(build, ("flax", "optax", "distrax"))
