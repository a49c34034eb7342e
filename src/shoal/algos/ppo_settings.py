"""PPO's settings by subject, for the help of a command, and what each needs in order to have an effect."""

from shoal.needs import Needs, Table

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
    "core_size": (_CORE,),
    "core_layers": (_CORE,),
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
