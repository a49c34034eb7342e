"""What a config must satisfy, checked once on concrete values before anything compiles.

Each failure is one sentence: the field, its value, what would be right, the nearest that works.
"""

import dataclasses
import numbers
import types
import typing
from typing import Any

from shoal import trees
from shoal.algos.acting import networks
from shoal.algos.learning import optimisers
from shoal.arguments import LARGEST_INDEX
from shoal.errors import ShoalError, nearest
from shoal.nets.activations import activation
from shoal.nets.memory.cores import check_latches
from shoal.spaces import Box, Discrete, MultiDiscrete
from shoal.types import EnvSpec

# Settings declared as text that name a class or a function by module:Name, in whose place it may be given itself.
IMPORTABLE = ("network", "score", "eval_metrics")


def check_fields(config: Any) -> None:
    """Require that every field holds a value of its declared type, within its declared bounds.

    Raises:
      ShoalError: the first field that does not.
    """
    hints, bounds = typing.get_type_hints(type(config)), trees.bounds_of(type(config))
    for field in dataclasses.fields(config):
        name, value, declared = field.name, getattr(config, field.name), hints[field.name]
        if typing.get_origin(declared) is types.UnionType:  # X | None
            if value is None:
                continue
            (declared,) = (option for option in typing.get_args(declared) if option is not types.NoneType)
        if not (name in IMPORTABLE and callable(value)):
            _check_type(name, value, declared)
        if isinstance(value, numbers.Real | tuple) and not isinstance(value, bool) and declared is not Any:
            if name in bounds:
                trees.check_bounds(name, value, bounds[name])
            elif declared is float:
                trees.check_bounds(name, value, trees.Bounds())


def _check_type(name: str, value: Any, declared: Any) -> None:
    """Raises ShoalError unless a value is of its declared type; types that are not known here pass."""
    if typing.get_origin(declared) is typing.Literal:
        choices = typing.get_args(declared)
        if value not in choices:
            hint = nearest(str(value), choices)
            raise ShoalError(f"{name}={value!r} is none of {', '.join(choices)}{hint}.")
    elif typing.get_origin(declared) is tuple:
        element = typing.get_args(declared)[0]
        if not isinstance(value, tuple) or not all(_has_type(x, element) for x in value):
            wanted, example = _TUPLES.get(element, ("values", "()"))
            raise ShoalError(f"{name}={value!r} is not a tuple of {wanted}; give one such as {example}.")
    elif not _has_type(value, declared):
        raise ShoalError(f"{name}={value!r} is not {_KINDS[declared][1]}.")


def _has_type(value: Any, declared: Any) -> bool:
    if declared not in _KINDS:
        return True
    return isinstance(value, _KINDS[declared][0]) and (declared is bool or not isinstance(value, bool))


_KINDS: dict[Any, tuple[Any, str]] = {
    float: (numbers.Real, "a number"),
    int: (numbers.Integral, "a whole number"),
    bool: (bool, "True or False"),
    str: (str, "a text"),
}
_TUPLES = {int: ("whole numbers", "(64, 64)"), str: ("texts", "('eps=1e-5',)")}


def check_divides(name: str, number: int, what: str, total: int) -> None:
    """Require that `number` divides `total`.

    Raises:
      ShoalError: it does not; names the nearest numbers that do.
    """
    if number > 0 and total % number == 0:
        return
    below = next((k for k in range(min(number, total), 0, -1) if total % k == 0), None)
    above = next((k for k in range(max(number, 1), total + 1) if total % k == 0), None)
    nearest_divisors = sorted({k for k in (below, above) if k})
    hint = (
        f"the nearest that do are {nearest_divisors[0]} and {nearest_divisors[1]}"
        if len(nearest_divisors) > 1
        else f"{nearest_divisors[0]} does"
    )
    raise ShoalError(f"{name}={number} does not divide {what}={total}; {hint}.")


# Fixed limits of what takes tracing and compiling time, not memory: deeper networks have been of no use here.
MAX_LAYERS = 64
# Passes over a rollout and gradient steps of a pass: the orders of all passes are drawn ahead, and one update should
# end while somebody waits.
MAX_EPOCHS = 10_000


def check_limits(config: Any) -> None:
    """Requires that a network has no more layers, and an update no more passes, than can be compiled in time.

    Raises:
      ShoalError: one of them has.
    """
    for name in ("update_epochs", "critic_update_epochs"):
        if (getattr(config, name) or 0) > MAX_EPOCHS:
            raise ShoalError(f"{name}={getattr(config, name)} is too large: it must be at most {MAX_EPOCHS}.")
    if config.core_layers > MAX_LAYERS:
        raise ShoalError(f"core_layers={config.core_layers} is too large: it must be at most {MAX_LAYERS}.")
    for name in ("hidden_sizes", "critic_hidden_sizes", "head_sizes"):
        sizes = getattr(config, name)
        if len(sizes) > MAX_LAYERS:
            raise ShoalError(
                f"{name} has {len(sizes)} layers, which are too many: it may have at most {MAX_LAYERS}."
            )
        if any(size > LARGEST_INDEX for size in sizes):
            raise ShoalError(f"{name}={sizes} is too large: a width may be at most {LARGEST_INDEX}.")
    for name in ("core_size", "latches", "queries", "action_embedding", "gradient_chunk"):
        if getattr(config, name) > LARGEST_INDEX:
            raise ShoalError(
                f"{name}={getattr(config, name)} is too large: it must be at most {LARGEST_INDEX}."
            )


def check_ppo(config: Any, spec: EnvSpec, num_envs: int, num_steps: int) -> None:
    """Everything that PPO's config must satisfy for an environment and a rollout's size.

    Raises:
      ShoalError: the first setting that cannot work.
    """
    check_fields(config)
    check_limits(config)
    check_memory(config, num_steps)
    if config.core == "none":
        check_divides("num_minibatches", config.num_minibatches, "num_envs*num_steps", num_envs * num_steps)
    else:
        chunks = num_envs * (num_steps // (config.chunk_length or num_steps))
        check_divides(
            "num_minibatches",
            config.num_minibatches,
            "the number of chunks, num_envs*num_steps/chunk_length",
            chunks,
        )
    if config.shared_torso and config.separate_updates:
        raise ShoalError(
            "shared_torso=True leaves nothing for the critic_ settings to apply to; use separate torsos."
        )
    if spec.critic_only and config.shared_torso:
        raise ShoalError(
            f"shared_torso=True shows the critic what the actor sees, and critic_only={spec.critic_only} is for the "
            "critic only; use separate torsos."
        )
    if spec.num_agents != 1:
        raise ShoalError(f"num_agents={spec.num_agents} is more than ppo takes; it trains one agent.")
    if config.norm_obs and (config.encoder == "one_hot" or (config.core != "none" and config.queries)):
        reason = (
            "encoder='one_hot' takes" if config.encoder == "one_hot" else f"queries={config.queries} ask for"
        )
        raise ShoalError(
            f"norm_obs=True makes numbers of the integers that {reason}; leave it off with that."
        )
    check_distribution(config, spec)
    optimisers.optimizer_named(config.optimizer, config.optimizer_args, 0.1)
    optimisers.optimizer_named(config.critic_optimizer, config.critic_optimizer_args, 0.1)
    activation(config.activation)
    networks.check(config, spec)


def check_memory(config: Any, num_steps: int) -> None:
    """The settings of a recurrent network fit each other and the rollout; without one they have no effect.

    Raises:
      ShoalError: the first that does not.
    """
    if config.core == "none":
        return
    if networks.class_of(config) is not networks.ActorCritic:
        raise ShoalError(
            f"core={config.core!r} gives a memory to Shoal's own network, and network={config.network!r} is another; "
            "leave core at 'none' with it."
        )
    length = config.chunk_length or num_steps
    check_divides("chunk_length", length, "num_steps", num_steps)
    if config.burn_in > length:
        raise ShoalError(
            f"burn_in={config.burn_in} is longer than a chunk of {length} steps; it must be at most that."
        )
    if config.burn_in and length == num_steps:
        raise ShoalError(
            f"burn_in={config.burn_in} has no steps to run over where a chunk is the whole rollout of {num_steps}; "
            f"choose a shorter chunk_length, or leave it 0."
        )
    check_latches(config.core, config.core_size, config.latches)
    if config.latches and not config.previous_reward:
        raise ShoalError(
            f"latches={config.latches} are opened by rewards: previous_reward must be True with them."
        )
    if config.previous_observation and not config.hidden_sizes:
        raise ShoalError(
            "previous_observation=True shows the features of the last layer before the core, and hidden_sizes=() has "
            "none; give it a layer, such as (64,)."
        )
    if config.action_embedding and not config.previous_action:
        raise ShoalError(
            f"action_embedding={config.action_embedding} needs previous_action=True, or leave it 0."
        )


def check_distribution(config: Any, spec: EnvSpec) -> None:
    """The policy's distribution fits the action space.

    Raises:
      ShoalError: it does not; names one that does.
    """
    space, kind = spec.action_space, config.distribution
    if not isinstance(space, Discrete | MultiDiscrete | Box):
        raise ShoalError(f"action_space={space} is none that ppo acts in: Discrete, MultiDiscrete or Box.")
    compatible = ["normal", "tanh_normal", "beta"] if isinstance(space, Box) else ["categorical"]
    if kind not in ("auto", *compatible):
        raise ShoalError(
            f"distribution={kind!r} does not fit action_space={space}; {' or '.join(compatible)} does."
        )
    if isinstance(space, Box):
        kind = "normal" if kind == "auto" else kind
        needs_bounds = kind != "normal" or config.action_scaling == "rescale"
        if needs_bounds and not space.bounded:
            raise ShoalError(
                f"distribution={kind!r} with action_scaling={config.action_scaling!r} needs finite bounds, and "
                f"action_space={space} has infinite ones; distribution='normal' with action_scaling='clip' works."
            )
    if config.correlated_noise and kind not in ("normal", "tanh_normal"):
        raise ShoalError(
            f"correlated_noise=True needs a normal or tanh_normal policy, and this one is {kind!r}."
        )
