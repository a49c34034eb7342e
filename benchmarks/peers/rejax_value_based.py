"""rejax's DQN or PQN training on CartPole, SAC or TD3 on Pendulum: rollouts and updates, without evaluation."""

from argparse import Namespace
from typing import Any

import jax
from protocol import DQN, PQN, SAC, TD3, Program, compiler_options, serve, value_updates_per_call
from rejax import get_algo

STEPS = 10**9  # what a schedule divides by: it hardly moves while it is measured


def continuous_settings(sizes: Namespace) -> dict[str, Any]:
    """The settings of SAC or TD3, of whose actor and critics each has two layers of 64."""
    ours = SAC if sizes.environment == "sac" else TD3
    swish = {"activation": "swish"}
    common = dict(
        env="Pendulum-v1",
        num_envs=sizes.num_envs,
        total_timesteps=STEPS,
        gamma=0.99,
        buffer_size=ours["buffer_size"],
        fill_buffer=ours["learning_starts"],
        batch_size=ours["batch_size"],
        learning_rate=ours["learning_rate"],
        polyak=1.0 - ours["tau"],
        normalize_observations=ours["norm_obs"],
    )
    if sizes.environment == "sac":
        return common | dict(agent_kwargs=swish, target_entropy_ratio=None)
    return common | dict(
        actor_kwargs=swish,
        critic_kwargs=dict(swish),
        max_grad_norm=ours["max_grad_norm"],
        policy_delay=ours["policy_frequency"],
        exploration_noise=ours["exploration_noise"],
        target_noise=ours["policy_noise"],
        target_noise_clip=ours["noise_clip"],
    )


def settings(sizes: Namespace) -> dict[str, Any]:
    """The workload's settings by the names of rejax."""
    if sizes.environment in ("sac", "td3"):
        return continuous_settings(sizes)
    common = dict(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh"},  # of two layers of 64
        num_envs=sizes.num_envs,
        total_timesteps=STEPS,
        gamma=0.99,
    )
    if sizes.environment == "pqn":
        own = dict(
            num_steps=sizes.num_steps,
            num_epochs=PQN["update_epochs"],
            num_minibatches=PQN["num_minibatches"],
            td_lambda=PQN["q_lambda"],
            learning_rate=PQN["learning_rate"],
            max_grad_norm=PQN["max_grad_norm"],
        )
    else:
        own = dict(
            buffer_size=DQN["buffer_size"],
            fill_buffer=DQN["learning_starts"],
            batch_size=DQN["batch_size"],
            num_epochs=DQN["gradient_steps"],
            target_update_freq=DQN["target_network_frequency"],
            learning_rate=DQN["learning_rate"],
            max_grad_norm=DQN["max_grad_norm"],
            polyak=0.0,  # a copy
            ddqn=DQN["double"],
        )
    return common | own


def build(sizes: Namespace) -> Program:
    """A loop of so many updates a call, as in rejax's own `train`."""
    algorithm = get_algo(sizes.environment).create(**settings(sizes))
    updates = value_updates_per_call(sizes)

    def train(state: Any) -> tuple[Any, None]:
        return jax.lax.fori_loop(0, updates, lambda _, s: algorithm.train_iteration(s), state), None

    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    advance = jax.jit(train, compiler_options=compiler_options(sizes))
    return Program(advance, state, updates * sizes.num_envs * sizes.num_steps)


if __name__ == "__main__":
    serve(build, ("rejax", "gymnax"))
