"""Names of networks and of their parts: Shoal's own torsos and heads, and those that users register.

This module imports no JAX, so that registering is fast.
"""

from shoal.base import registers

KINDS = ("flatten", "one_hot", "mlp", "mlp_each", "cnn", "resnet", "set")  # `nets.torsos` has their classes
VALUE_HEADS = ("scalar", "categorical")


def register_network(name: str, network: registers.Target, *, replace: bool = False) -> None:
    """Register a name for a network, an actor or a critic, which may then be given by it.

    Args:
      network: a class that is built as `Class(spec, key=key)`, a struct of settings with a method `build`, or
        `"module:Name"` of either, which is imported when it is used.
      replace: whether another network of the name is replaced.
    Raises:
      ShoalError: the name is not valid, or taken; or the network is neither.
    """
    right = "a network's class or its settings"
    registers.add("network", name, network, replace=replace, right=right)


def register_torso(name: str, torso: registers.Target, *, replace: bool = False) -> None:
    """Register a name for a torso, which may then be given by it as an encoder, also within a row of several.

    Args:
      torso: as `register_network`, but built for a space.
      replace: whether another torso of the name is replaced.
    Raises:
      ShoalError: the name is not valid, taken, or one of Shoal's own; or the torso is neither.
    """
    right = "a torso's class or its settings"
    registers.add("torso", name, torso, replace=replace, own=KINDS, right=right)


def register_head(name: str, head: registers.Target, *, replace: bool = False) -> None:
    """Register a name for a head, of a policy, of a critic or of action values, which may then be given by it.

    Args:
      head: as `register_network`, but built for a space.
      replace: whether another head of the name is replaced.
    Raises:
      ShoalError: the name is not valid, taken, or one of Shoal's own; or the head is neither.
    """
    right = "a head's class or its settings"
    registers.add("head", name, head, replace=replace, own=VALUE_HEADS, right=right)
