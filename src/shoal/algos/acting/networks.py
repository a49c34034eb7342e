"""The network that a config names: Shoal's own actor-critic, or a user's class."""

from typing import Any

from shoal.algos.acting import actions
from shoal.imports import import_object
from shoal.nets.actor_critic import ActorCritic
from shoal.nets.memory.recurrent import CoreOptions, RecurrentActorCritic
from shoal.nets.network_check import check_network
from shoal.types import Array, EnvSpec, PyTree


def build(config: Any, spec: EnvSpec, key: Array) -> PyTree:
    """A new network with `policy`, `value` and `policy_and_value` (see `shoal.nets.actor_critic`).

    A user's class is called as `Class(spec, key=key)`.

    Raises:
      ShoalError: the class cannot be imported.
    """
    network = class_of(config)
    if network is not ActorCritic:
        return network(spec, key=key)
    common: dict[str, Any] = dict(
        actor_sizes=config.hidden_sizes,
        critic_sizes=config.critic_hidden_sizes,
        activation=config.activation,
        layer_norm=config.layer_norm,
        shared=config.shared_torso,
        distribution=config.distribution,
        state_dependent_std=config.state_dependent_std,
        initial_std=config.initial_std,
        encoder=config.encoder,
        key=key,
    )
    if config.core == "none":
        return ActorCritic(spec, **common)
    return RecurrentActorCritic(spec, core_options(config, spec), head_sizes=config.head_sizes, **common)


def core_options(config: Any, spec: EnvSpec) -> CoreOptions:
    """What a config's network remembers by and is shown."""
    return CoreOptions(
        config.core,
        config.core_size,
        config.core_layers,
        config.core_outputs,
        config.latches,
        action_size=actions.num_action_features(spec.action_space) if config.previous_action else 0,
        action_embedding=config.action_embedding,
        reward=config.previous_reward,
        first=config.first_flag,
        previous=config.previous_observation,
        queries=config.queries,
    )


def class_of(config: Any) -> Any:
    """The class of a config's network, imported if it is given by name.

    Raises:
      ShoalError: it cannot be imported.
    """
    return import_object(config.network) if isinstance(config.network, str) else config.network


def check(config: Any, spec: EnvSpec) -> None:
    """A user's class can be the network of an algorithm; Shoal's own is known to.

    Raises:
      ShoalError: what is wrong with it.
    """
    network = class_of(config)
    if network is not ActorCritic:
        check_network(network, spec)
