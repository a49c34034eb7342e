"""PPO's settings: what each needs in order to have an effect, their subjects, and values that follow others."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from shoal.needs import Needs, Table

T = TypeVar("T")

_ADAPTIVE_KL_COEF = Needs("adaptive_kl_coef", (True,))
_OWN_NETWORK = Needs("network", ("shoal.nets.actor_critic:ActorCritic",))
_CONTINUOUS = Needs("action_space", kinds=("Box",))
_CORE = Needs("core", other_than=("none",), such_as="gru")
_PENALTY = Needs("surrogate", ("penalty",))

NEEDS: Table = {
    "desired_kl": ((Needs("lr_schedule", ("adaptive",)), _ADAPTIVE_KL_COEF),),
    "clip_coef": (Needs("surrogate", ("clip",)),),
    "kl_coef": (_PENALTY,),
    "adaptive_kl_coef": (_PENALTY,),
    "dpo_alpha": (Needs("surrogate", ("dpo",)),),
    "dpo_beta": (Needs("surrogate", ("dpo",)),),
    "vf_clip_coef": (Needs("clip_vloss", (True,)),),
    "critic_optimizer_args": (Needs("critic_optimizer", other_than=("", None), such_as="adam"),),
    "hidden_sizes": (_OWN_NETWORK,),
    "critic_hidden_sizes": (_OWN_NETWORK, Needs("shared_torso", (False,))),
    "activation": (_OWN_NETWORK,),
    "layer_norm": (_OWN_NETWORK,),
    "encoder": (_OWN_NETWORK,),
    **dict.fromkeys(
        (
            *("core_size", "core_layers", "core_outputs", "head_sizes", "latches", "queries"),
            *("previous_action", "action_embedding", "previous_reward", "previous_observation", "first_flag"),
            *("chunk_length", "burn_in", "memory_lasts"),
        ),
        (_CORE,),
    ),
    "state_dependent_std": (
        _OWN_NETWORK,
        _CONTINUOUS,
        Needs("distribution", ("auto", "normal", "tanh_normal")),
    ),
    "initial_std": (
        _OWN_NETWORK,
        _CONTINUOUS,
        Needs("distribution", ("auto", "normal", "tanh_normal")),
    ),
    "action_scaling": (_CONTINUOUS, Needs("distribution", ("auto", "normal"))),
    "noise_correlation": (Needs("correlated_noise", (True,)),),
}

GROUPS = {
    "most used": (
        "learning_rate",
        "gamma",
        "update_epochs",
        "num_minibatches",
        "ent_coef",
        "norm_obs",
        "hidden_sizes",
        "core",
    ),
    "optimisation": (
        "lr_schedule",
        "desired_kl",
        "max_grad_norm",
        "optimizer",
        "optimizer_args",
        "gradient_chunk",
    ),
    "the critic's own optimisation": (
        "separate_updates",
        "critic_learning_rate",
        "critic_max_grad_norm",
        "critic_update_epochs",
        "critic_optimizer",
        "critic_optimizer_args",
    ),
    "policy loss": (
        "surrogate",
        "clip_coef",
        "kl_coef",
        "adaptive_kl_coef",
        "dpo_alpha",
        "dpo_beta",
        "target_kl",
        "kl_stop",
    ),
    "value loss and returns": ("gae_lambda", "vf_coef", "clip_vloss", "vf_clip_coef"),
    "normalisation": ("norm_adv", "norm_reward"),
    "network": (
        "network",
        "critic_hidden_sizes",
        "activation",
        "layer_norm",
        "shared_torso",
        "encoder",
    ),
    "memory": (
        "core_size",
        "core_layers",
        "core_outputs",
        "head_sizes",
        "latches",
        "queries",
        "previous_action",
        "action_embedding",
        "previous_reward",
        "previous_observation",
        "first_flag",
        "chunk_length",
        "burn_in",
        "memory_lasts",
    ),
    "actions": (
        "distribution",
        "state_dependent_std",
        "initial_std",
        "action_scaling",
        "correlated_noise",
        "noise_correlation",
    ),
}


def with_critic_defaults(config: T) -> T:
    """Give each setting of the critic that is None the value of the actor's."""
    settings: Any = config
    own_optimizer = settings.critic_optimizer is not None
    actor_values: dict[str, Any] = {
        "critic_learning_rate": settings.learning_rate,
        "critic_max_grad_norm": settings.max_grad_norm,
        "critic_update_epochs": settings.update_epochs,
        "critic_optimizer": settings.optimizer,
        "critic_optimizer_args": () if own_optimizer else settings.optimizer_args,
        "critic_hidden_sizes": settings.hidden_sizes,
    }
    return dataclasses.replace(
        settings, **{k: x for k, x in actor_values.items() if getattr(settings, k) is None}
    )


def critic_differs(config: Any) -> bool:
    """Whether a setting of the critic's updates was given; where all are, whether one is not the actor's."""
    names = ("learning_rate", "max_grad_norm", "update_epochs", "optimizer", "optimizer_args")
    pairs = [(getattr(config, f"critic_{name}"), getattr(config, name)) for name in names]
    if all(
        critic is not None for critic, _ in pairs
    ):  # as after `with_critic_defaults`, whose result may be resolved again
        return any(critic != actor for critic, actor in pairs)
    return any(critic is not None for critic, _ in pairs)


def upgraded(settings: Mapping[str, Any], schema: int) -> dict[str, Any]:
    """Translate settings written by an earlier version, where 0 and empty stood for "off" and "the actor's"."""
    if schema >= 2:
        return dict(settings)
    disabled = {"target_kl": math.inf} if settings.get("target_kl") == 0 else {}
    inherited = [
        name for name, value in settings.items() if name.startswith("critic_") and value in (0, "", [], ())
    ]
    return dict(settings) | disabled | dict.fromkeys(inherited)
