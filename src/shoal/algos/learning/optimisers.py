"""Optimisers by name, with one set of settings for all parameters or one each for actor and critic."""

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

from shoal import hardware, trees
from shoal.errors import ShoalError, nearest
from shoal.needs import Needs, Table
from shoal.trees import parameter
from shoal.types import Array, PyTree
from shoal.xla import backend
from shoal.xla.packing import pack, pack_plain


@trees.struct
class OptimizerConfig:
    """The settings of gradient steps, with one optimiser for all parameters or one each for actor and critic."""

    needs: ClassVar[Table] = {
        "critic_optimizer_args": (Needs("critic_optimizer", other_than=("", None), such_as="adam"),),
    }
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "most used": ("learning_rate",),
        "optimisation": ("lr_schedule", "max_grad_norm", "optimizer", "optimizer_args"),
        "the critic's own optimisation": (
            *("separate_updates", "critic_learning_rate", "critic_max_grad_norm"),
            *("critic_optimizer", "critic_optimizer_args"),
        ),
    }

    learning_rate: float = parameter(3e-4, above=0.0)
    """Sets the step size of the optimiser (of the actor's, where the critic has its own)."""
    lr_schedule: Literal["constant", "linear", "cosine", "adaptive"] = "constant"
    """Keeps the step size, lets it fall to 0 linearly or by a cosine, or adapts it to hold the KL at desired_kl."""
    max_grad_norm: float = parameter(0.5, above=0.0, high=math.inf)
    """Scales the gradient down to this global norm, of actor and critic together unless each has its own; inf never
    does."""
    optimizer: str = "adam"
    """Takes this optimiser of Optax, by its name there."""
    optimizer_args: tuple[str, ...] = ("eps=1e-5",)
    """Gives the optimiser further arguments, each as name=value."""
    separate_updates: bool = False
    """Gives the critic an optimiser and a gradient clip of its own; any critic_ setting switches it on."""
    critic_learning_rate: float | None = parameter(None, above=0.0)
    """Sets the step size of the critic's optimiser; None takes learning_rate."""
    critic_max_grad_norm: float | None = parameter(None, above=0.0, high=math.inf)
    """Scales the critic's gradient down to this norm; None takes max_grad_norm."""
    critic_optimizer: str | None = None
    """Takes this optimiser for the critic; None takes the actor's, arguments included."""
    critic_optimizer_args: tuple[str, ...] | None = None
    """Gives critic_optimizer further arguments, each as name=value; None gives it none."""

    def with_critic_defaults(self) -> "OptimizerConfig":
        """Give each setting of the critic that is None the value of the actor's."""
        own_arguments: tuple[str, ...] = () if self.critic_optimizer is not None else self.optimizer_args
        actor_values: dict[str, Any] = {
            "critic_learning_rate": self.learning_rate,
            "critic_max_grad_norm": self.max_grad_norm,
            "critic_optimizer": self.optimizer,
            "critic_optimizer_args": own_arguments,
        }
        return dataclasses.replace(
            self, **{k: x for k, x in actor_values.items() if getattr(self, k) is None}
        )

    def pairs(self) -> list[tuple[Any, Any]]:
        """The critic's value of each setting, which may be None, and the actor's."""
        names = ("learning_rate", "max_grad_norm", "optimizer", "optimizer_args")
        return [(getattr(self, f"critic_{name}"), getattr(self, name)) for name in names]

    def validate(self) -> None:
        """Require that both optimisers are there and take their arguments; of a config with the critic's defaults.

        Raises:
          ShoalError: one of them is not, or does not.
        """
        optimizer_named(self.optimizer, self.optimizer_args, 0.1)
        optimizer_named(self.critic_optimizer or "", self.critic_optimizer_args or (), 0.1)


def schedule_factor(schedule: str, progress: Array) -> Array:
    """The factor of the learning rate at `progress` in [0, 1] of the run."""
    if schedule == "linear":
        return 1.0 - progress
    if schedule == "cosine":
        return 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return jnp.ones(())


def adapt_scale(scale: Array, kl: Array, desired_kl: Array | float) -> Array:
    """The learning rate's factor after an update that moved the policy by `kl`.

    Divided by 1.5 beyond twice the desired KL, multiplied by 1.5 below half of it (Rudin et al. 2022, "Learning
    to Walk in Minutes Using Massively Parallel Deep Reinforcement Learning"), within [0.01, 10].
    """
    scale = jnp.where(kl > 2.0 * desired_kl, scale / 1.5, scale)
    scale = jnp.where(kl < 0.5 * desired_kl, scale * 1.5, scale)
    return jnp.clip(scale, 0.01, 10.0)


def parse_arguments(texts: tuple[str, ...]) -> dict[str, Any]:
    """`("eps=1e-5", "nesterov=True")` as a dictionary.

    Raises:
      ShoalError: an entry is not name=value with a Python number, string, boolean or None.
    """
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            result[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            equals = ""
        if not equals or not name.strip().isidentifier():
            raise ShoalError(f"optimizer_args={text!r} is not name=value with a number, such as 'eps=1e-5'.")
    return result


def optimizer_named(
    name: str, texts: tuple[str, ...], learning_rate: Array | float
) -> optax.GradientTransformation:
    """An optimiser of Optax by its name.

    Raises:
      ShoalError: Optax has no optimiser of that name, or it does not take these arguments.
    """
    constructor = getattr(optax, name, None)
    if name.startswith("_") or not callable(constructor):
        raise ShoalError(f"optimizer={name!r} is not an optimiser of optax{nearest(name, optax.__all__)}.")
    try:
        optimizer = constructor(learning_rate, **parse_arguments(texts))
    except TypeError as error:
        raise ShoalError(f"optimizer={name!r} does not take optimizer_args={texts}: {error}.") from error
    if not isinstance(optimizer, optax.GradientTransformation):
        raise ShoalError(f"optimizer={name!r} is not an optimiser of optax; 'adam' is one.")
    return optimizer


def gradient_chunk_size(width: int) -> int:
    """How many rows of a minibatch a gradient is best taken of at once; 0 for all of them.

    On the CPU as many as leave the activations of the layers in the second-level cache: 512 for a device that runs on
    one thread, whatever its layers' width (a tenth of a whole training step at 64, against 2,048), and 1,024 a thread
    for one of several, since with fewer they spend their time on handing over to each other; half as many for layers
    wider than 128 (7% less time at 256). An accelerator wants all at once.

    Args:
      width: of the widest hidden layer.
    """
    if not backend.is_cpu():
        return 0
    threads = hardware.threads() // jax.local_device_count()
    if threads == 1:
        return 512
    return (1024 if width <= 128 else 512) * threads


Parts = dict[str, Any]  # "actor" and "critic": each one vector, or a tuple of a vector and leaves

# Optimisers that treat each number by itself, so that parameters may be one vector (`shoal.xla.packing.pack`).
ELEMENTWISE = frozenset(
    {"adabelief", "adadelta", "adagrad", "adam", "adamax", "adamaxw", "adamw", "amsgrad", "lion"}
    | {"nadam", "nadamw", "radam", "rmsprop", "sgd"}
)


def build(config: OptimizerConfig, parts: Parts, rate: Array | float) -> optax.GradientTransformation:
    """The optimiser of a network's parts, its learning rates multiplied by `rate`.

    Built anew inside each update from the traced learning rate, so that a schedule is data. Its state
    does not depend on `rate`. With `separate_updates` actor and critic are clipped each for itself.

    Args:
      config: with the critic's defaults.
      parts: of `split_parameters`, those of the critic apart or not.
      rate: the factor of a schedule.
    """

    def build_one(name: Any, texts: Any, learning_rate: Any, max_norm: Any) -> optax.GradientTransformation:
        optimizer = optimizer_named(name, texts, learning_rate * rate)
        if not config.separate_updates:
            return optimizer
        return optax.chain(optax.clip_by_global_norm(max_norm), optimizer)

    actor = build_one(config.optimizer, config.optimizer_args, config.learning_rate, config.max_grad_norm)
    if "critic" not in parts:
        return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), actor)
    critic = build_one(
        config.critic_optimizer,
        config.critic_optimizer_args,
        config.critic_learning_rate,
        config.critic_max_grad_norm,
    )
    optimizer = optax.partition({"actor": actor, "critic": critic}, {name: name for name in parts})
    if config.separate_updates:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optimizer)


def owner_of(path: tuple) -> str:
    """Whose a leaf is: the critic's if its path passes through a field named `critic`, else the actor's."""
    return "critic" if "critic" in trees.path_name(path).split("/") else "actor"


def split_parameters(
    config: OptimizerConfig, network: PyTree, *, is_split: bool
) -> tuple[Parts, Callable[[Parts], PyTree]]:
    """A network's parameters by whose they are, and the function that makes a network of them again.

    Each part is one vector where its optimiser is elementwise, beside the leaves that are large, if there are any;
    else it is a tuple of the leaves as they are.

    Args:
      config: with the critic's defaults.
      network: whose leaves are its parameters.
      is_split: whether the critic's are a part of their own, and not the actor's.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(network)
    owners = [owner_of(path) if is_split else "actor" for path, _ in paths]
    if is_split and "critic" not in owners:
        raise ShoalError(
            f"the network {type(network).__name__} has no attribute named 'critic', by which separate_updates and "
            "target_kl tell the critic's parameters from the actor's; name it so, or leave both off."
        )
    optimizer_names = {"actor": config.optimizer, "critic": config.critic_optimizer}
    parts: Parts = {}
    restore: dict[str, Callable[[Any], Any]] = {}
    for name in dict.fromkeys(owners):
        leaves = tuple(leaf for owner, (_, leaf) in zip(owners, paths, strict=True) if owner == name)
        if optimizer_names[name] in ELEMENTWISE:
            parts[name], restore[name] = pack(leaves)
        else:
            parts[name], restore[name] = pack_plain(leaves)

    def merge(parts: Parts) -> PyTree:
        leaves = {name: iter(restore[name](part)) for name, part in parts.items()}
        return jax.tree.unflatten(structure, [next(leaves[owner]) for owner in owners])

    return parts, merge


def select_active(active: dict[str, Array], new: PyTree, old: PyTree) -> PyTree:
    """Takes the new leaves of the parts that are active, and keeps the old ones of those that are not.

    The parts are found by name along each leaf's path, in parameters and in an optimiser's state alike.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, x, y: jnp.where(active[owner_of(path)], x, y), new, old
    )
