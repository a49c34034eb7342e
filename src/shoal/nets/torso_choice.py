"""Torsos by name: one of Shoal's own kinds, a class of your own, or several in a row.

A torso of your own is a class, built as `Class(space, key=key)`, or a struct whose fields are settings and whose
`build(space, key)` makes one. What is built is a pytree of arrays, such as an `nnx.Module`, with

    num_features                  the length of its features
    torso(observation)            observations with leading axes [...] -> floats [..., num_features]
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

from shoal.base.errors import ShoalError, nearest
from shoal.base.imports import import_name, import_object
from shoal.config import settings, struct
from shoal.types import Array, PyTree
from shoal.types.spaces import Space

# `shoal.nets.torsos` has their classes.
KINDS = ("flatten", "one_hot", "mlp", "mlp_each", "cnn", "resnet", "set")


class TorsoSettings(Protocol):
    """A struct whose fields are the settings of a torso."""

    def build(self, space: Space, key: Array) -> object:
        """Build a new torso for observations of a space."""
        ...


@struct.struct
class Kind:
    """One of Shoal's own torsos, whose settings are the network's; "" is the actor's torso."""

    name: str = settings.hidden()


@struct.struct
class TorsoClass:
    """A class of torsos without settings, built as `Class(space, key=key)`."""

    torso_class: str | Callable[..., PyTree] = settings.hidden()  # or its module:Name

    def build(self, space: Space, key: Array) -> object:
        """Build a new torso of the class."""
        return imported(self.torso_class)(space, key=key)


@struct.struct
class TorsoSequence:
    """A torso of the observation, and one (or a row) of its features."""

    first: TorsoSettings
    rest: TorsoSettings


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
    if not struct.is_struct(kind) or not hasattr(kind, "build"):
        is_linen = any(x.__module__.startswith("flax.linen.") for x in kind.__mro__)
        raise ShoalError(
            f"{setting}={import_name(kind)!r} is "
            + (
                f"a module of flax.linen, which keeps its parameters apart: make it a flax.nnx.Module, built as "
                f"Class({arguments.replace('key', 'key=key')})."
                if is_linen
                else f"a dataclass, but not a {noun}'s settings: decorate it with shoal.config.struct.struct, and give "
                f"it a method build({arguments})."
            )
        )
    return value() if isinstance(value, type) else value


def choose(encoder: object, setting: str = "encoder") -> Any:
    """Return the settings of torsos, given by names or classes, or themselves; several with commas, or as a list.

    Raises:
      ShoalError: a name is unknown, or cannot be imported.
    """
    if isinstance(encoder, Kind | TorsoClass | TorsoSequence):
        return encoder
    if encoder is None:
        return Kind("")
    given = encoder.split(",") if isinstance(encoder, str) else encoder
    listed = given if isinstance(given, list | tuple) else [given]
    torsos = [_one(x.strip() if isinstance(x, str) else x, setting) for x in listed]
    if not torsos:
        raise ShoalError(f"{setting}={encoder!r} has no torso; give one, such as 'flatten'.")
    return functools.reduce(lambda rest, first: TorsoSequence(first, rest), reversed(torsos))


def _one(given: object, setting: str) -> Any:
    if isinstance(given, str) and ":" not in given:
        if given not in KINDS:
            kinds = f"{', '.join(KINDS)}, nor module:Name of your own"
            raise ShoalError(f"{setting}={given!r} is none of {kinds}{nearest(given, KINDS)}.")
        return Kind(given)
    return struct_or_class(setting, given, TorsoClass, "torso", "space, key")


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
        names = [name_of(torso) for torso in torsos_of(encoder)]
        return ",".join(x if isinstance(x, str) else import_name(x) for x in names)
    if isinstance(encoder, TorsoClass):
        return encoder.torso_class
    return encoder.name or None if isinstance(encoder, Kind) else import_name(type(encoder))
