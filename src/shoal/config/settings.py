"""The flat view of a config: every setting by one name, however the structs that hold it are nested.

A config is a dataclass, whose fields may be dataclasses in turn: `PPOConfig` has a `NetworkConfig` and an
`OptimizerConfig`. Whoever sets something (keywords, flags, presets, `config.json`, sweeps) sees one flat namespace,
in which each name exists once:

    with_settings(PPOConfig(), learning_rate=1e-3, hidden_sizes=(256, 256))

The type, the bounds and the text of a setting are those that its field declares. A nested field that is declared with
`chosen` is a setting itself: its value is the name of the struct that it holds, and another name puts another struct,
with other settings, in its place.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import numbers
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from shoal.base.errors import ShoalError, nearest
from shoal.config import struct
from shoal.config.other_trainers import hint_of_other_trainer
from shoal.config.requirements import Needs, Table

T = TypeVar("T")

# Settings declared as text that name a function by module:Name, in whose place it may be given itself.
IMPORTABLE = ("score", "eval_metrics")

# First words of settings by which other trainers send their metrics to a service or a viewer.
LOGGERS = ("wandb", "tensorboard", "tb", "mlflow", "comet", "neptune", "clearml", "aim", "track", "logger")
LOGGING = (
    "the numbers of a run are sent elsewhere by --logger (loggers in Python): wandb, tensorboard, mlflow, trackio, "
    "csv, or a class of your own"
)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice of a nested field's struct by a name.

    Attributes:
      choose: returns the struct of a name, or a struct that is given itself.
      name_of: returns the name of a struct.
    """

    choose: Callable[[Any], Any]
    name_of: Callable[[Any], Any]


class Setting(NamedTuple):
    """One setting of a config.

    Attributes:
      owner: the class of the struct that holds it.
      is_keyed: whether it is one number of a field that holds several by their names (see `keyed`).
      names: of the functions among which it chooses (see `function`); None for any other setting.
    """

    name: str
    value: Any
    declared: Any
    owner: type
    bounds: struct.Bounds | None = None
    choice: Choice | None = None
    is_keyed: bool = False
    names: tuple[str, ...] | None = None

    @property
    def is_data(self) -> bool:
        """Whether the value is a leaf of the config's tree, so that a stack of configs may hold many of them."""
        if self.is_keyed:
            return True
        is_field_of_struct = struct.is_struct(self.owner) and self.choice is None
        return is_field_of_struct and self.name in struct.data_fields(self.owner)

    @property
    def is_initial(self) -> bool:
        """Whether the value is read where a run starts and never again."""
        return bool(struct.metadata_of(self.owner).get(self.name, {}).get("initial"))

    @property
    def text(self) -> str:
        """The string below the setting's field, as one line; "" if there is none."""
        return field_texts(self.owner).get(self.name, "")


def chosen(default: Any, choose: Callable[[Any], Any], name_of: Callable[[Any], Any]) -> Any:
    """Declare a nested field whose struct is chosen by a setting of the field's name (see `Choice`)."""
    return dataclasses.field(default=default, metadata={"choice": Choice(choose, name_of)})


def keyed(setting: str) -> Any:
    """Declare a field of numbers by names, each of which is a setting `SETTING.NAME` of its own, and data.

    The field's value is a dictionary; the default () has no numbers. What the names may be, only the use of the numbers
    decides.
    """
    return dataclasses.field(default=(), metadata={"keyed": setting})


def function(default: str | None, names: Iterable[str] = ()) -> Any:
    """Declare a field that chooses a function: by one of `names`, as `module:function`, or given itself.

    Without `names`, the use of the value decides which there are.
    """
    return dataclasses.field(default=default, metadata={"names": tuple(names)})


def hidden() -> Any:
    """Declare a static field of a struct that is not a setting."""
    return dataclasses.field(metadata={"static": True, "hidden": True})


class Nested:
    """A base class of configs with nested structs, which names the right struct of a setting given to a wrong one."""

    def __new__(cls, *_: Any, **given: Any) -> Any:
        """Refuse a setting of a nested struct, which a dataclass would call an unexpected keyword."""
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in given:
            for field in fields.values() if name not in fields else ():
                if is_nested(field.default) and name in settings_of(field.default):
                    owner = type(field.default).__name__
                    raise ShoalError(
                        f"{name} is a setting of {owner}: {cls.__name__}({field.name}={owner}({name}=...)), or "
                        f"with_settings({cls.__name__}(), {name}=...)"
                    )
        return super().__new__(cls)


def is_nested(value: Any) -> bool:
    """Report whether a field's value is a dataclass, whose own fields are settings."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def settings_of(config: Any) -> dict[str, Setting]:
    """Return every setting of a config and of the structs within it, by its name.

    Raises:
      ShoalError: two structs have a setting of one name.
    """
    settings: dict[str, Setting] = {}
    _add_settings(settings, config)
    return settings


def _add_settings(settings: dict[str, Setting], config: Any) -> None:
    cls = type(config)
    for declared in schema_of(cls):
        name, value, choice = declared.name, getattr(config, declared.name), declared.choice
        holds_struct = declared.may_nest and is_nested(value)
        own = [Setting(name, value, declared.type, cls, declared.bounds, choice, names=declared.names)]
        if declared.keyed:
            own = [
                Setting(f"{declared.keyed}.{key}", number, float, cls, is_keyed=True)
                for key, number in dict(value or ()).items()
            ]
        elif holds_struct:
            own = [Setting(name, choice.name_of(value), str, cls, None, choice)] if choice else []
        for setting in own:
            if setting.name in settings:
                owners = settings[setting.name].owner.__name__, cls.__name__
                raise ShoalError(
                    f"{setting.name!r} is a setting of {owners[0]} and of {owners[1]}; rename one, since a name may "
                    "exist only once in a config"
                )
            settings[setting.name] = setting
        if holds_struct:
            _add_settings(settings, value)


def flat(config: Any) -> dict[str, Any]:
    """Return the value of every setting, by its name."""
    return {name: setting.value for name, setting in settings_of(config).items()}


def all_names(config: Any) -> set[str]:
    """Return the names of a config's settings, with those of the structs that its class would choose."""
    return set(settings_of(config)) | _default_names(type(config))


@struct.once_per_class
def _default_names(cls: Any) -> set[str]:
    defaults = (field.default for field in dataclasses.fields(cls) if is_nested(field.default))
    return set[str]().union(*map(settings_of, defaults))


def with_settings(config: T, /, **values: Any) -> T:
    """Replace settings of a config, in whichever of its structs they are.

    Args:
      **values: settings by name. One that chooses a struct is applied first, so that the struct's own settings may
        be given beside it.
    Raises:
      ShoalError: the config has no setting of a name, or a struct that is named cannot be had.
    """
    config = with_choices(config, values)
    known = settings_of(config)
    for name, value in values.items():
        if name not in known and find(config, name) is None:
            raise unknown_setting(name, value, config)
    values = {k: x for k, x in values.items() if not (k in known and known[k].choice)}
    return cast(T, _replaced(config, values))


def find(config: Any, name: str) -> Setting | None:
    """Return the setting of a name, also one that a field of numbers by names may get; None if there is none."""
    prefix, dot, key = name.partition(".")
    if not dot:
        return settings_of(config).get(name)
    classes = map(type, _structs(config))
    owner = next((cls for cls in classes if any(prefix == x.keyed for x in schema_of(cls))), None)
    if owner is None or not key.isidentifier():
        return None
    return Setting(name, flat(config).get(name), float, owner, is_keyed=True)


def with_choices(config: T, values: Mapping[str, Any]) -> T:
    """Replace the structs that settings choose by name; other settings, and a struct already chosen, are kept."""
    changes = {}
    for declared in schema_of(type(config)):
        name, present = declared.name, getattr(config, declared.name)
        choice = declared.choice if name in values else None
        if choice:
            named = choice.choose(values[name])
            is_same = is_nested(present) and choice.name_of(present) == choice.name_of(named)
            named = present if is_same and not is_nested(values[name]) else named
            if (replaced := with_choices(named, values)) is not present:
                changes[name] = replaced
        elif (
            declared.may_nest
            and is_nested(present)
            and (replaced := with_choices(present, values)) is not present
        ):
            changes[name] = replaced
    return dataclasses.replace(config, **changes) if changes else config  # type: ignore[type-var]


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    changes = {}
    for declared in schema_of(type(config)):
        name, value = declared.name, getattr(config, declared.name)
        if declared.may_nest and is_nested(value):
            if (replaced := _replaced(value, values)) is not value:
                changes[name] = replaced
        elif declared.keyed:
            prefix = f"{declared.keyed}."
            numbers_by_key = {k.removeprefix(prefix): x for k, x in values.items() if k.startswith(prefix)}
            changes |= {name: dict(value or ()) | numbers_by_key} if numbers_by_key else {}
        elif name in values:
            changes[name] = values[name]
    return dataclasses.replace(config, **changes) if changes else config


def unknown_setting(name: str, value: Any, config: Any, known: Iterable[str] = ()) -> ShoalError:
    """Make the error for a setting that a config lacks: of a struct that is not chosen, or with the nearest one.

    Args:
      known: settings among which the nearest is looked for; by default the config's.
    """
    own = settings_of(config)
    for field in dataclasses.fields(config):
        default, chosen = field.default, own.get(field.name)
        if chosen and chosen.choice and is_nested(default) and name in settings_of(default):
            needed = Needs(field.name, (chosen.choice.name_of(default),))
            return ShoalError(
                f"{name}={value!r} has no effect with {field.name}={chosen.value!r}; it needs {needed}."
            )
    return ShoalError(f"there is no setting {name!r}{hint_of(name, [x for x in known or own if x != name])}.")


def hint_of(name: str, options: Iterable[str]) -> str:
    """Suggest what an unknown setting or flag means: by its use in other trainers, or the nearest option."""
    named = list(options)
    if name.strip("-").replace("-", "_").partition("_")[0] in LOGGERS:
        return nearest(name, named) or f"; {LOGGING}"
    return hint_of_other_trainer(name, named) or nearest(name, named)


def needs_of(config: Any) -> Table:
    """Return what settings need in order to have an effect, as a config and the structs within it declare."""
    found: dict[str, Any] = {}
    for part in _structs(config):
        found |= getattr(part, "needs", {})
    return found


def groups_of(config: Any) -> dict[str, tuple[str, ...]]:
    """Return the settings by the titles of their groups: the `groups` of a config and the structs within it.

    A config may name settings of its structs too; the first group that names one has it. Settings of a nested struct
    that stand in no group have the name of the field that holds it for a title.
    """
    found: dict[str, tuple[str, ...]] = {}
    for part in _structs(config):
        for title, names in getattr(part, "groups", {}).items():
            grouped = {name for others in found.values() for name in others}
            found[title] = found.get(title, ()) + tuple(name for name in names if name not in grouped)
    grouped = {name for names in found.values() for name in names}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if is_nested(value) and (rest := tuple(x for x in settings_of(value) if x not in grouped)):
            found[field.name] = found.get(field.name, ()) + rest
    return found


def _structs(config: Any) -> Iterator[Any]:
    """Return a config and the dataclasses within it."""
    yield config
    for field in dataclasses.fields(config):
        if is_nested(value := getattr(config, field.name)):
            yield from _structs(value)


class FieldSchema(NamedTuple):
    """The declaration of one field of a config's class: a setting, or a struct or dictionary of settings.

    Attributes:
      keyed: the prefix of the names of its settings, where it holds several (see `keyed`).
      may_nest: whether its value may be a dataclass, with settings of its own.
      names: see `Setting`.
    """

    name: str
    type: Any
    bounds: struct.Bounds | None
    choice: Choice | None
    keyed: str | None
    may_nest: bool
    names: tuple[str, ...] | None


@struct.once_per_class
def schema_of(cls: Any) -> tuple[FieldSchema, ...]:
    """Return the declarations of a dataclass's fields but hidden ones, in their order."""
    schema = []
    for name, declared in types_of(cls).items():
        own = struct.metadata_of(cls)[name]
        if not own.get("hidden"):
            keyed, may_nest = own.get("keyed"), "keyed" not in own and _may_nest(declared)
            declarations = own.get("bounds"), own.get("choice"), keyed, may_nest, own.get("names")
            schema.append(FieldSchema(name, declared, *declarations))
    return tuple(schema)


@functools.cache
def _may_nest(declared: Any) -> bool:
    options = [x for x in options_of(declared) if typing.get_origin(x) not in (typing.Literal, tuple)]
    return any(x not in (*_KINDS, types.NoneType) for x in options)


@functools.cache
def options_of(declared: Any) -> tuple[Any, ...]:
    """Return the members of a declared type, such as int and None of `int | None`."""
    is_union = typing.get_origin(declared) in (typing.Union, types.UnionType)
    return typing.get_args(declared) if is_union else (declared,)


def words_of(declared: Any) -> tuple[Any, ...]:
    """Return the words of a declared type that has another member too, as in `int | Literal["never"]`."""
    options = options_of(declared)
    literals = [x for x in options if typing.get_origin(x) is typing.Literal]
    return tuple(word for x in literals for word in typing.get_args(x)) if len(options) > 1 else ()


def main_option(declared: Any) -> Any:
    """Return the member of a declared type that is neither None nor a word."""
    options = options_of(declared)
    others = [x for x in options if x is not types.NoneType and typing.get_origin(x) is not typing.Literal]
    return others[0] if others else options[0]


@struct.once_per_class
def types_of(cls: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields; `Any` where they cannot be found, as in a class in a function."""
    try:
        hints = typing.get_type_hints(cls)
    except NameError:
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(cls)}


@struct.once_per_class
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


def check_traced(config: Any) -> None:
    """Require that of a config's settings only data are traced."""
    for name, setting in settings_of(config).items():
        if not setting.is_data:
            struct.check_static(name, setting.value)


def check_fields(config: Any) -> None:
    """Require that every setting holds a value of its declared type, within its bounds; traced values are not read."""
    for name, setting in settings_of(config).items():
        value, declared = setting.value, setting.declared
        if struct.is_traced(value):
            continue
        if setting.choice:
            if declared is not str:  # not a struct: a name is text
                raise ShoalError(
                    f"{name}={value!r} is not a struct; with_settings({type(config).__name__}(), {name}={value!r}) "
                    "chooses one by its name"
                )
            continue
        if len(options_of(declared)) > 1:  # X | None, or X | Literal["word"]
            if value is None or value in words_of(declared):
                continue
            declared = main_option(declared)
        is_importable = name in IMPORTABLE or setting.names is not None
        if not is_importable or isinstance(value, str):  # its use reports what is not a function
            _check_type(name, value, declared)
        if isinstance(value, numbers.Real | tuple) and not isinstance(value, bool) and declared is not Any:
            if setting.bounds:
                struct.check_bounds(name, value, setting.bounds)
            elif declared is float:
                struct.check_bounds(name, value, struct.Bounds())


def _check_type(name: str, value: Any, declared: Any) -> None:
    """Require that a value is of its declared type; types that are not known here pass."""
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
