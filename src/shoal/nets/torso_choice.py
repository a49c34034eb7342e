"""Torsos and other parts of a network by name: one of Shoal's own kinds, a class of your own, or torsos in a row.

A part of your own is a class, built as `Class(space, key=key)`, or a struct whose fields are settings and whose
`build(space, key)` makes one. What is built is a pytree of arrays, such as an `nnx.Module`; of a module of `flax.linen`
`shoal.nets.linen` makes one. A torso has

    num_features                  the length of its features
    torso(observation)            observations with leading axes [...] -> floats [..., num_features]

and a head, which is built for the space of actions,

    num_inputs                    the number of its inputs, the outputs of the layer before it
    head(x, action_mask)          [..., num_inputs] -> a distribution over actions, of the policy's head
    head(x)                       [..., num_inputs] -> a number or a distribution over numbers [...], of the value's
                                  head; what `values` says of each action, of the head of action values

An actor and a critic are built for a spec, and have the method `policy` or `value` of a network (`actor_critic.py`).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax

from shoal.base import registers
from shoal.base.errors import ShoalError
from shoal.base.imports import import_name, import_object, is_found_by_name
from shoal.config import settings, struct
from shoal.nets import linen
from shoal.nets.headed import Head
from shoal.nets.part_names import KINDS
from shoal.types import Array, PyTree
from shoal.types.spaces import Space


class PartSettings(Protocol):
    """A struct whose fields are the settings of a torso, a head, an actor or a critic."""

    def build(self, space: Any, key: Array) -> Any:
        """Build a new torso for observations of a space, a head for one of actions, an actor or a critic for a spec."""
        ...


@struct.struct
class Kind:
    """One of Shoal's own torsos or heads, whose settings are the network's."""

    name: str = settings.hidden()


@struct.struct
class PartClass:
    """A class of parts without settings, built as `Class(space, key=key)`."""

    part_class: str | Callable[..., PyTree] = settings.hidden()  # or its module:Name

    def build(self, space: Any, key: Array) -> Any:
        """Build a new part of the class; a module of flax.linen is held with its parameters."""
        return linen.build(imported(self.part_class), space, key, is_part=True)


@struct.struct
class TorsoSequence:
    """A torso of the observation, and one (or a row) of its features."""

    first: PartSettings
    rest: PartSettings


def imported(value: str | Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Return the class of a `module:Name`; a class as it is."""
    return import_object(value) if isinstance(value, str) else value


def struct_or_class(
    setting: str, given: object, holder: Callable[..., object], noun: str, arguments: str
) -> Any:
    """Return a struct with a method `build`, of its `module:Name` or given itself, or the holder of another class.

    Args:
      setting: its name, for the sentence.
      holder: makes a struct of a class, or its `module:Name`, without settings.
      noun: what is built, and `arguments`, those of `build`, in words.
    Raises:
      ShoalError: it cannot be imported, or is neither.
    """
    # A class is imported here to see whether it is a struct, but its name is kept: it is what config.json holds.
    value = given
    if not settings.is_nested(given):
        if not (isinstance(given, str | type) or callable(given)):
            raise ShoalError(
                f"{setting}={given!r} is neither module:Name, nor a class, nor a {noun}'s settings."
            )
        value = imported(given)
        if not dataclasses.is_dataclass(value):
            return holder(given)
    kind = value if isinstance(value, type) else type(value)
    if linen.is_linen(kind):
        linen.require_class(f"{setting}={import_name(kind)!r}", value, arguments.partition(",")[0])
        return holder(given)
    if not struct.is_struct(kind) or not hasattr(kind, "build"):
        raise ShoalError(
            f"{setting}={import_name(kind)!r} is a dataclass, but not a {noun}'s settings: decorate it with "
            f"shoal.config.struct.struct, and give it a method build({arguments})."
        )
    return value() if isinstance(value, type) else value


def choose(encoder: object, setting: str = "encoder") -> Any:
    """Return the settings of torsos, given by names or classes, or themselves; several with commas, or as a list.

    None stays None.

    Raises:
      ShoalError: a name is unknown, or cannot be imported.
    """
    if encoder is None or isinstance(encoder, Kind | PartClass | TorsoSequence):
        return encoder
    given = encoder.split(",") if isinstance(encoder, str) else encoder
    listed = given if isinstance(given, list | tuple) else [given]
    torsos = [_one(x.strip() if isinstance(x, str) else x, setting, "torso", KINDS) for x in listed]
    if not torsos:
        raise ShoalError(f"{setting}={encoder!r} has no torso; give one, such as 'flatten'.")
    return functools.reduce(lambda rest, first: TorsoSequence(first, rest), reversed(torsos))


def _one(given: object, setting: str, noun: str, kinds: Sequence[str]) -> Any:
    given = registers.resolved(noun, given, setting, kinds)
    if isinstance(given, str) and given in kinds:
        return Kind(given)
    return struct_or_class(
        setting, given, PartClass, noun, "spec, key" if noun == "network" else "space, key"
    )


def part(setting: str, noun: str, default: str = "", kinds: Sequence[str] = (), **declared: Any) -> Any:
    """Declare the setting of a part: one of Shoal's own kinds, or one of the user's own; None, the default, is neither.

    Args:
      noun: what the part is, in the words of a sentence; a "network" is built for a spec, others for a space.
      default: the kind that it is by default.
      declared: `group` and `needs`, as those of `fields.parameter`.
    """

    def choose_part(given: object) -> Any:
        is_chosen = given is None or isinstance(given, Kind | PartClass)
        return given if is_chosen else _one(given, setting, noun, kinds)

    return settings.chosen(Kind(default) if default else None, choose_part, name_of, **declared)


def build_head(head: PartSettings, space: Space, key: Array) -> Head:
    """Build a user's own head for a space of actions, by a key that is none of those of a network's layers."""
    return head.build(space, jax.random.fold_in(key, 3))


def torsos_of(encoder: object) -> list[Any]:
    """Return the settings of each torso of a row."""
    encoder = choose(encoder)
    return [encoder.first, *torsos_of(encoder.rest)] if isinstance(encoder, TorsoSequence) else [encoder]


def kinds_of(encoder: object) -> set[str]:
    """Return the names of Shoal's own torsos among those of a row."""
    return {torso.name for torso in torsos_of(encoder) if isinstance(torso, Kind)}


def name_of(encoder: object) -> object:
    """Return the name by which `choose` finds torsos again; for one class given itself, the class."""
    encoder = choose(encoder) if isinstance(encoder, str | list | tuple) else encoder
    if isinstance(encoder, TorsoSequence):
        names = tuple(name_of(torso) for torso in torsos_of(encoder))
        if not all(isinstance(x, str) or is_found_by_name(x) for x in names):
            return names
        return ",".join(x if isinstance(x, str) else import_name(x) for x in names)
    if isinstance(encoder, PartClass):
        return encoder.part_class
    if encoder is None or isinstance(encoder, Kind):
        return encoder and encoder.name
    return import_name(type(encoder))
