"""jaxagents' IPPO, hunting for two, with its script's own settings: its update, and its evaluation of the mode."""

import sys
from argparse import Namespace

import jax
import jax.numpy as jnp
import optax
from driver import Training, checkout, import_corrected, run

LENGTH, WORLDS = 200, 128


def build(sizes: Namespace) -> Training:
    """The agent as its script makes it; what its `train` prepares before it scans over updates."""
    folder = checkout()
    # A return annotation that is a list: jaxtyping and Python 3.11 refuse it.
    import_corrected(folder / "jaxagents/ippo.py", "jaxagents.ippo", {"[int]]] = None": "int]] = None"})
    sys.path.insert(0, str(folder / "benchmarks/marl/hunting_2_players"))
    from agents import PGActorContinuous, PGCritic
    from hunting_env import EnvParams, HuntingContinuous
    from hunting_ippo import HuntingIPPO
    from jaxagents.ippo import AgentConfig, HyperParameters, OptimizerParams

    config = AgentConfig(
        n_steps=sizes.updates,
        batch_size=WORLDS,
        minibatch_size=16,
        rollout_length=LENGTH,
        actor_epochs=10,
        critic_epochs=10,
        actor_network=PGActorContinuous,
        critic_network=PGCritic,
        optimizer=optax.adam,
        eval_frequency=100,
        eval_rng=jax.random.PRNGKey(18),
        n_evals=100,
    )
    hyperparams = HyperParameters(
        gamma=0.99,
        eps_clip=0.20,
        kl_threshold=1e-5,
        gae_lambda=0.97,
        ent_coeff=0.005,
        vf_coeff=1.0,
        actor_optimizer_params=OptimizerParams(learning_rate=3e-4, eps=1e-5, grad_clip=1),
        critic_optimizer_params=OptimizerParams(learning_rate=5e-4, eps=1e-5, grad_clip=1),
    )
    parameters = EnvParams(prey_velocity=3.0, predator_velocity=1.0, max_time=2.0, caught_reward=100.0)
    ippo = HuntingIPPO(HuntingContinuous(), parameters, config)
    actor_grad = jax.grad(ippo._actor_loss, has_aux=True, allow_int=True)
    critic_grad = jax.grad(ippo._critic_loss, allow_int=True)
    ippo._actor_minibatch_fn = lambda i, runner: ippo._actor_minibatch_update(i, runner, actor_grad)
    ippo._critic_minibatch_fn = lambda i, runner: ippo._critic_minibatch_update(i, runner, critic_grad)
    keys = jax.random.split(jax.random.PRNGKey(sizes.seed), 3)
    actor, critic = (
        ippo._create_training(key, network, settings)
        for key, network, settings in (
            (keys[0], config.actor_network, hyperparams.actor_optimizer_params),
            (keys[1], config.critic_network, hyperparams.critic_optimizer_params),
        )
    )
    state = ippo._create_update_runner(keys[2], actor, critic, hyperparams)

    def score(state) -> float:
        """The prey's mean return; the predator's is the opposite."""
        played = ippo._eval_agent(
            config.eval_rng, state.actor_training, state.critic_training, config.n_evals
        )
        return float(jnp.mean(played["returns"][:, 0]))

    def further(state) -> dict:
        """Epochs that the actor made in an update: the KL stop ends them."""
        minibatches = config.batch_size // config.minibatch_size
        return {"actor_epochs": float(state.actor_training.step) / (minibatches * sizes.updates)}

    return Training(
        lambda: jax.jit(lambda runner: ippo._update_step(0, runner)).lower(state).compile(),
        state,
        WORLDS * LENGTH,
        score,
        further=further,
    )


if __name__ == "__main__":
    run(build, ("flax", "optax", "gymnax"))
