"""rejax's PPO on CartPole as a script of its users: 100,000 steps of one seed, with ten evaluations of 128 episodes."""

import jax
from rejax import PPO

STEPS = 4 * 128  # of an update

if __name__ == "__main__":
    algorithm = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=4,
        num_steps=128,
        num_epochs=4,
        num_minibatches=4,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        ent_coef=0.0,
        total_timesteps=190 * STEPS,
        eval_freq=19 * STEPS,
    )
    _, (_, returns) = jax.jit(algorithm.train)(jax.random.key(0))
    print(returns.mean(axis=1))
