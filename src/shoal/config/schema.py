"""What the class of a config declares of each of its fields."""

import ast
import dataclasses
import functools
import inspect
import itertools
import textwrap
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shoal.config import fields
from shoal.config.requirements import Conditions
from shoal.config.values import KINDS, options_of


@dataclasses.dataclass(frozen=True)
class StructChoice:
    """The choice of a nested field's struct by a name.

    Attributes:
      choose: returns the struct of a name, or a struct that is given itself.
      name_of: returns the name of a struct.
    """

    choose: Callable[[Any], Any]
    name_of: Callable[[Any], Any]


class FieldSchema(NamedTuple):
    """What the class of a config declares of one field: a setting, or a struct or dictionary of settings.

    Attributes:
      choice: how a name chooses its struct (see `chosen`).
      keyed: the prefix of the names of its settings, where it holds several (see `keyed`).
      may_nest: whether its value may be a dataclass, with settings of its own.
      is_data: whether its value is a leaf of the config's tree.
      Others are those of `fields.parameter`.
    """

    name: str
    type: Any
    may_nest: bool
    is_data: bool
    choice: StructChoice | None = None
    keyed: str | None = None
    initial: bool = False
    bounds: fields.Bounds | None = None
    functions: tuple[str, ...] | None = None
    group: str = ""
    needs: Conditions = ()
    needs_to_change: Conditions = ()
    use: fields.Use = fields.Use()


@fields.once_per_class
def schema_of(cls: object) -> tuple[FieldSchema, ...]:
    """Return the declarations of a dataclass's fields but hidden ones, in their order."""
    data = fields.data_fields(cls) if fields.is_struct(cls) else ()
    groups = _groups_of_class(cls)
    schema = []
    for name, declared in types_of(cls).items():
        own = fields.metadata_of(cls)[name]
        if own.get("hidden"):
            continue
        may_nest, is_data = "keyed" not in own and _may_nest(declared), name in data and "choice" not in own
        given: dict[str, Any] = {"group": groups.get(name, "")}
        for key in own.keys() & FieldSchema._fields:  # others are of environments and of structs
            given[key] = own[key]
        schema.append(FieldSchema(name, declared, may_nest, is_data, **given))
    return tuple(schema)


def _groups_of_class(cls: Any) -> dict[str, str]:
    """Return the `group` of the class that first declares each field."""
    groups: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        for name in vars(part).get("__annotations__", ()):
            groups.setdefault(name, vars(part).get("group", ""))
    return groups


@functools.cache
def _may_nest(declared: object) -> bool:
    options = [x for x in options_of(declared) if typing.get_origin(x) not in (typing.Literal, tuple)]
    return any(x not in KINDS for x in options)


@fields.once_per_class
def types_of(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; `Any` where they cannot be found, as in a class in a function."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}


@fields.once_per_class
def field_texts(cls: type) -> Mapping[str, str]:
    """Return the string below each field of a class and of its base classes, as one line."""
    texts: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(part)))
        except (OSError, TypeError):  # made while the program runs: it has no source
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Constant):
                texts[ast.unparse(field.target)] = " ".join(str(text.value).split())
    return texts
