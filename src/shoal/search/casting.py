"""The values of a search space as the types that their settings declare."""

import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from shoal.base.errors import ShoalError, nearest
from shoal.config import arguments
from shoal.config.schema import options_of
from shoal.config.settings import Setting
from shoal.config.values import cast_to_declared
from shoal.records.members import ENVIRONMENT
from shoal.search.distributions import Choice, Int
from shoal.search.space import Space

SIZES = re.compile(r"\d+(x\d+)*")  # 64x64, which a command line takes without quotes


def cast_space(space: Space, known: Mapping[str, Setting]) -> Space:
    """Make the values of a space those that its settings declare: texts of the command line, and whole numbers.

    Args:
      known: the settings of the run and of the algorithm, by name. Names with a dot, those of the environment's
        parameters and of arguments of a setting, are read as literals.
    Raises:
      ShoalError: there is no such setting, or its distribution draws values of another type.
    """
    for name in space.names:
        require_known(name, known)
        _check_distribution(space, name, known)
    return space.with_values(lambda name, value: cast_value(value, known.get(name)))


def require_known(name: str, known: Mapping[str, Setting]) -> None:
    """Require that a name of a space is one of a setting, or `env.NAME`, or `SETTING.NAME`.

    Raises:
      ShoalError: it is none; the sentence has the nearest.
    """
    owner, dot, part = name.partition(".")
    if name in known or (dot and part and (name.startswith(ENVIRONMENT) or owner in known)):
        return
    if dot:
        raise ShoalError(
            f"there is no setting {name!r}; a name with a dot is env.NAME or SETTING.NAME, such as "
            f"optimizer_args.eps{nearest(owner, ['env', *known])}."
        )
    raise ShoalError(
        f"there is no setting {name!r}; a parameter of the environment would be env.{name}{nearest(name, known)}."
    )


def cast_value(value: Any, setting: Setting | None) -> Any:
    """Read a text of the command line, and make a number that of Python that a setting declares.

    Args:
      setting: that it is of; None for a name with a dot.
    """
    if setting is None:
        return arguments.literal(value) if isinstance(value, str) else value
    members = options_of(setting.declared)
    if isinstance(value, str) and not (str in members and value.lower() != "none"):
        value = _read_text(value, members)
    value = cast_to_declared(value, setting.declared)
    return float(value) if float in members and type(value) is int else value


def _read_text(text: str, members: tuple[Any, ...]) -> Any:
    """Read a text as one of several types: one of the words of a `Literal` stays a text."""
    words = [word for member in members for word in typing.get_args(member) if isinstance(word, str)]
    if text in words:
        return text
    is_tuple = any(typing.get_origin(member) is tuple for member in members)
    if is_tuple and SIZES.fullmatch(text):
        return tuple(map(int, text.split("x")))
    value = arguments.literal(text)
    return text if value is None and types.NoneType not in members else value


def _check_distribution(space: Space, name: str, known: Mapping[str, Setting]) -> None:
    """Require that a range of numbers is for a setting that is a number, and one of whole numbers where it must be."""
    kind = space.distribution(name)
    if isinstance(kind, Choice) or name not in known:
        return
    members = options_of(known[name].declared)
    if not {int, float} & set(members) or known[name].field.choice:
        raise ShoalError(
            f"{name}={kind.to_json()} draws numbers, and {name} is not a number; give a list, such as "
            f"--grid {name}=A,B or choice:A:B."
        )
    if float not in members and not isinstance(kind, Int):
        raise ShoalError(f"{name}={kind.to_json()} draws numbers that are not whole; give int:LOW:HIGH.")
