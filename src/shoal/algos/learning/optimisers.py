"""Optimisers of Optax by name, or a user's own: one for all parameters, or one each for actor and critic."""

import ast
import dataclasses
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import chosen_function
from shoal.base.user_errors import user_frames
from shoal.config import settings, struct
from shoal.config.requirements import Needs
from shoal.config.struct import parameter
from shoal.nets.stateful import statistics_of
from shoal.types import Array, PyTree, contract
from shoal.xla.packing import pack, pack_plain

DEFAULT_ARGUMENTS = ("eps=1e-5",)
# Of the algorithms' configs: PPO's, DQN's and PQN's, and C51's.
DEFAULTS = (DEFAULT_ARGUMENTS, ("eps=1e-8",), ("eps=7.8125e-5",))


@struct.struct
class OptimizerConfig:
    """Settings of the gradient steps, with one optimiser for all parameters."""

    group: ClassVar[str] = "optimisation"

    learning_rate: float = parameter(3e-4, above=0.0, group="most used")
    """Sets the step size of the optimiser."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Keeps the step size constant, or decreases it to 0 linearly or by a cosine."""
    max_grad_norm: float = parameter(0.5, above=0.0, high=math.inf)
    """Scales the gradient down to this global norm, of actor and critic together unless each has its own; inf
    disables this."""
    optimizer: str = parameter("adam", functions=())
    """Uses this optimiser, by its name in Optax, or a function that makes one from the step size."""
    optimizer_args: tuple[str, ...] = DEFAULT_ARGUMENTS
    """Passes further arguments to the optimiser, each as name=value; the default is left out where it takes no eps."""
    optimizer_numbers: Any = settings.keyed("optimizer_args")
    """Passes these arguments to the optimiser instead of those of optimizer_args; they are data, so that they may
    differ between the members of a population."""

    def validate(self) -> None:
        """Require that the optimiser exists, takes its arguments and can make a step.

        Raises:
          ShoalError: it does not.
        """
        check_optimizer(self.optimizer, self.optimizer_args, self.optimizer_numbers)


@struct.struct
class ActorCriticOptimizerConfig(OptimizerConfig):
    """Settings of the gradient steps of actor and critic, each with an optimiser of its own."""

    group: ClassVar[str] = "the critic's own optimisation"

    learning_rate: float = parameter(3e-4, above=0.0)
    """Sets the step size of the optimiser (of the actor's, where the critic has its own)."""
    critic_learning_rate: float | None = parameter(None, above=0.0)
    """Sets the step size of the critic's optimiser; None uses learning_rate."""
    critic_max_grad_norm: float | None = parameter(None, above=0.0, high=math.inf)
    """Scales the critic's gradient down to this norm; None uses max_grad_norm."""
    critic_optimizer: str | None = parameter(None, functions=())
    """Uses this optimiser for the critic; None uses the actor's, arguments included."""
    critic_optimizer_args: tuple[str, ...] | None = parameter(
        None, needs=Needs("critic_optimizer", other_than=("", None), such_as="adam")
    )
    """Passes further arguments to critic_optimizer, each as name=value; None passes none."""
    critic_optimizer_numbers: Any = settings.keyed("critic_optimizer_args")
    """As optimizer_numbers, for the critic's optimiser; () takes the actor's where that is the critic's too."""

    def with_critic_defaults(self) -> Self:
        """Replace each setting of the critic that is None by the actor's."""
        is_own = self.critic_optimizer is not None
        own_arguments: tuple[str, ...] = () if is_own else self.optimizer_args
        numbers = self.critic_optimizer_numbers or (() if is_own else self.optimizer_numbers)
        actor_values: dict[str, Any] = {
            "critic_learning_rate": self.learning_rate,
            "critic_max_grad_norm": self.max_grad_norm,
            "critic_optimizer": self.optimizer,
            "critic_optimizer_args": own_arguments,
        }
        changes = {k: x for k, x in actor_values.items() if getattr(self, k) is None}
        return dataclasses.replace(self, **changes, critic_optimizer_numbers=numbers)

    def pairs(self) -> list[tuple[Any, Any]]:
        """Return the critic's value of each setting, which may be None, and the actor's."""
        names = ("learning_rate", "max_grad_norm", "optimizer", "optimizer_args")
        return [(getattr(self, f"critic_{name}"), getattr(self, name)) for name in names]

    def validate(self) -> None:
        """Require that both optimisers exist, take their arguments and can make a step; the critic's defaults must be
        filled in.

        Raises:
          ShoalError: an optimiser does not exist, does not take its arguments, or cannot be used.
        """
        OptimizerConfig.validate(self)
        critic = self.critic_optimizer or "", self.critic_optimizer_args or (), self.critic_optimizer_numbers
        if critic != (self.optimizer, self.optimizer_args, self.optimizer_numbers):
            check_optimizer(*critic)


@struct.struct
class JointOptimizerConfig(ActorCriticOptimizerConfig):
    """Settings of the gradient steps, with one optimiser for all parameters or one each for actor and critic."""

    group: ClassVar[str] = "the critic's own optimisation"

    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = "constant"  # type: ignore[assignment]
    """Keeps the step size constant, decreases it to 0 linearly or by a cosine, or adapts it to keep the KL at
    desired_kl."""
    separate_updates: bool = False
    """Gives the critic an optimiser and a gradient clip of its own; any critic_ setting switches it on."""


def schedule_factor(schedule: str, progress: Array) -> Array:
    """Return the factor of the learning rate at `progress` in [0, 1] of the run."""
    if schedule == "linear":
        return 1.0 - progress
    if schedule == "cosine":
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return jnp.ones(())


def adapt_scale(scale: Array, kl: Array, desired_kl: Array | float) -> Array:
    """Adapt the learning rate's factor after an update that changed the policy by the KL divergence `kl`.

    The factor is divided by 1.5 above twice the desired KL, multiplied by 1.5 below half of it (Rudin et al. 2022,
    "Learning to Walk in Minutes Using Massively Parallel Deep Reinforcement Learning"), and kept within [0.01, 10].
    """
    scale = jnp.where(kl > 2.0 * desired_kl, scale / 1.5, scale)
    scale = jnp.where(kl < 0.5 * desired_kl, scale * 1.5, scale)
    return jnp.clip(scale, 0.01, 10.0)


def parse_arguments(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse `("eps=1e-5", "nesterov=True")` to a dictionary.

    Raises:
      ShoalError: an entry is not name=value with a Python number, string, boolean or None, or a name stands twice.
    """
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name.strip() in result:
            raise ShoalError(f"optimizer_args names {name.strip()!r} twice; give it once.")
        try:
            result[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            equals = ""
        if not equals or not name.strip().isidentifier():
            raise ShoalError(f"optimizer_args={text!r} is not name=value with a number, such as 'eps=1e-5'.")
    return result


def optimizer_named(
    name: Any, texts: tuple[str, ...], learning_rate: Array | float, numbers: Any = ()
) -> optax.GradientTransformation:
    """Make an optimiser of Optax by its name, or by a user's own function.

    Args:
      name: of the optimiser, or `module:function`, or the function itself.
      texts: its further arguments, each as name=value.
      learning_rate: the first argument, perhaps traced.
      numbers: arguments by their names that replace those of `texts`, perhaps traced.
    Raises:
      ShoalError: there is no optimiser of that name, or it does not take these arguments.
    """
    constructor = _constructor(name)
    if texts in DEFAULTS and not _takes(constructor, "eps"):
        texts = ()
    try:
        optimizer = constructor(learning_rate, **parse_arguments(texts) | dict(numbers))
    except (TypeError, AttributeError) as error:
        if user_frames(error):  # within the user's function, which takes them
            raise
        arguments = (*texts, *(f"{argument}={x}" for argument, x in dict(numbers).items()))
        raise ShoalError(f"optimizer={name!r} does not take optimizer_args={arguments}: {error}.") from error
    if not isinstance(optimizer, optax.GradientTransformation):
        who = contract.named(constructor, f"optimizer={name!r}")
        contract.refuse(who, contract.described(optimizer), "an optax.GradientTransformation, as 'adam' does")
    return optimizer


def _constructor(name: Any) -> Callable[..., Any]:
    if not isinstance(name, str) or ":" in name:
        return chosen_function("optimizer", name, {})
    constructor = getattr(optax, name, None)
    if name.startswith("_") or not callable(constructor):
        hint = nearest(name, optax.__all__)
        raise ShoalError(f"optimizer={name!r} is not an optimiser of optax, nor module:function{hint}.")
    return constructor


def check_optimizer(name: Any, texts: tuple[str, ...], numbers: Any) -> None:
    """Require that an optimiser takes its arguments, and that it can make steps from gradients.

    Raises:
      ShoalError: it cannot, its updates or its states change their shapes or dtypes, or the first state of a user's own
        depends on the step size.
    """
    optimizer_named(name, texts, 0.1, numbers)
    parameters = (np.zeros((2, 3), np.float32), np.zeros(3, np.float32))

    def step(rate: Array) -> tuple[PyTree, PyTree]:
        optimizer = optimizer_named(name, texts, rate, numbers)
        state = optimizer.init(parameters)
        return (parameters, state), optimizer.update(parameters, state, parameters)

    is_own = not isinstance(name, str) or ":" in name
    try:
        before, after = jax.eval_shape(step, jnp.ones(()))
    except (TypeError, AttributeError) as error:
        if is_own:
            raise
        raise ShoalError(f"optimizer={name!r} cannot make a step from a gradient alone: {error}.") from error
    for what, old, new in zip(("tree of updates", "state"), before, after, strict=True):
        contract.require_same(contract.named(_constructor(name), f"optimizer={name!r}"), what, new, old)
    if not is_own:
        return
    states = [optimizer_named(name, texts, rate, numbers).init(parameters) for rate in (0.1, 0.2)]
    if not all(map(jnp.array_equal, *map(jax.tree.leaves, states))):
        raise ShoalError(
            f"optimizer={name!r} keeps the step size in its state, so that no schedule would change it; use the step "
            "size that each call is given, as 'adam' does."
        )


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Report whether a function has a parameter of this name, or takes any."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(x.kind is x.VAR_KEYWORD for x in parameters.values())


Parts = dict[str, Any]  # "actor" and "critic": each a vector, or a tuple of a vector and large arrays

# Elementwise optimisers, for which all parameters may be packed into one vector (`shoal.xla.packing.pack`).
ELEMENTWISE = frozenset(
    {"adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "amsgrad", "lion"}
    | {"nadam", "nadamw", "radam", "rmsprop", "sgd"}
)


def build_part(
    config: OptimizerConfig, rate: Array | float, prefix: str = ""
) -> optax.GradientTransformation:
    """Make the optimiser of one part, and the clip of its gradient, of the settings whose names begin with a prefix."""
    clip = optax.clip_by_global_norm(getattr(config, f"{prefix}max_grad_norm"))
    return optax.chain(clip, _optimizer(config, rate, prefix))


def _optimizer(
    config: OptimizerConfig, rate: Array | float, prefix: str = ""
) -> optax.GradientTransformation:
    """Make the optimiser of the settings whose names begin with a prefix, without clipping."""
    names = ("optimizer", "optimizer_args", "learning_rate", "optimizer_numbers")
    name, texts, learning_rate, numbers = (getattr(config, prefix + setting) for setting in names)
    return optimizer_named(name, texts, learning_rate * rate, numbers)


def build(config: JointOptimizerConfig, parts: Parts, rate: Array | float) -> optax.GradientTransformation:
    """Make the optimiser of a network's parts, with its learning rates multiplied by `rate`.

    It is made again inside each update from the traced learning rate, so that a schedule is data. Its state does not
    depend on `rate`. With `separate_updates` the gradients of actor and critic are clipped separately.

    Args:
      config: with the critic's defaults filled in.
      parts: of `split_parameters`, with or without a part of the critic.
      rate: the factor of the schedule.
    """
    make = build_part if config.separate_updates else _optimizer
    optimizer = make(config, rate)
    if "critic" in parts:
        each = {"actor": optimizer, "critic": make(config, rate, "critic_")}
        optimizer = optax.partition(each, {name: name for name in parts})
    if config.separate_updates and "critic" in parts:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def owner_of(path: tuple) -> str:
    """Return "critic" for a leaf whose path has a field named `critic`, and "actor" for all others."""
    return "critic" if "critic" in struct.path_name(path).split("/") else "actor"


def split_parameters(
    config: OptimizerConfig, network: PyTree, *, is_split: bool = False
) -> tuple[Parts, Callable[[Parts], PyTree]]:
    """Split a network's parameters into those of actor and critic; return also the function that merges them.

    If the optimiser of a part is elementwise, the part is one vector, or a tuple of a vector and the large arrays.
    Otherwise it is a tuple of the leaves.

    Args:
      config: with the critic's defaults filled in.
      network: all its leaves are parameters, but for statistics, which the merged network has as they are here.
      is_split: whether the critic's parameters are a part of their own; otherwise they belong to the actor's part.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(network)
    statistics = statistics_of(network)
    owners = [
        "" if statistics and struct.path_name(path) in statistics else owner_of(path) if is_split else "actor"
        for path, _ in paths
    ]
    if is_split and "critic" not in owners:
        raise ShoalError(
            f"the network {type(network).__name__} has no attribute 'critic', by which separate_updates and target_kl "
            "find the critic's parameters; name it so, or set neither."
        )
    optimizer_names = {"actor": config.optimizer, "critic": getattr(config, "critic_optimizer", None)}
    parts: Parts = {}
    restore: dict[str, Callable[[Any], Any]] = {}
    for name in filter(None, dict.fromkeys(owners)):
        leaves = tuple(leaf for owner, (_, leaf) in zip(owners, paths, strict=True) if owner == name)
        if optimizer_names[name] in ELEMENTWISE:
            parts[name], restore[name] = pack(leaves)
        else:
            parts[name], restore[name] = pack_plain(leaves)

    def merge(parts: Parts) -> PyTree:
        leaves = {name: iter(restore[name](part)) for name, part in parts.items()}
        return jax.tree.unflatten(
            structure,
            [next(leaves[owner]) if owner else leaf for owner, (_, leaf) in zip(owners, paths, strict=True)],
        )

    return parts, merge


def select_active(active: dict[str, Array], new: PyTree, old: PyTree) -> PyTree:
    """Select the new leaves of the active parts, and the old leaves of the other parts.

    The part of a leaf is found by the names in its path, both in parameters and in the state of an optimiser.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x, y: jnp.where(active[owner_of(path)], x, y), new, old
    )
