"""The flat view of a config: every setting by one name, however the structs that hold it are nested.

A config is a dataclass, whose fields may be dataclasses in turn: `PPOConfig` has a `NetworkConfig` and an
`OptimizerConfig`. Whoever sets something (keywords, flags, presets, `config.json`, sweeps) sees one flat namespace,
in which each name exists once:

    with_settings(PPOConfig(), learning_rate=1e-3, hidden_sizes=(256, 256))

The type, the bounds and the text of a setting are those that its field declares. A nested field that is declared with
`chosen` is a setting itself: its value is the name of the struct that it holds, and another name puts another struct,
with other settings, in its place.
"""

import dataclasses
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from shoal.base.errors import ShoalError, nearest
from shoal.config import fields
from shoal.config.other_trainers import hint_of_other_trainer, switches_off
from shoal.config.requirements import Needs, Table
from shoal.config.schema import FieldSchema, StructChoice, field_texts, schema_of
from shoal.config.values import has_type, options_of, refusal, words_of

T = TypeVar("T")

# First words of settings by which other trainers send their metrics to a service or a viewer.
LOGGERS = ("wandb", "tensorboard", "tb", "mlflow", "comet", "neptune", "clearml", "aim", "track", "logger")
LOGGING = (
    "the numbers of a run are sent elsewhere by --logger (loggers in Python): wandb, tensorboard, mlflow, trackio, "
    "csv, or a class of your own"
)


class Setting(NamedTuple):
    """One setting of a config.

    Attributes:
      owner: the class of the struct that holds it.
      field: what the field that holds it declares.
      is_keyed: whether it is one number of a field that holds several by their names (see `keyed`).
    """

    name: str
    value: Any
    declared: Any
    owner: type
    field: FieldSchema
    is_keyed: bool = False

    @property
    def is_data(self) -> bool:
        """Whether the value is a leaf of the config's tree, so that a stack of configs may hold many of them."""
        return self.is_keyed or self.field.is_data

    @property
    def may_name_function(self) -> bool:
        """Whether its value may be a function, or name one by module:Name."""
        return self.field.functions is not None or self.field.use.imports

    @property
    def on_resume(self) -> str:
        """Whether a resumed run "may change" it, keeps it "fixed", or is the same whatever it says, "ignored"."""
        is_changeable = self.is_data and not self.field.initial
        return self.field.use.on_resume or ("may change" if is_changeable else "fixed")

    @property
    def text(self) -> str:
        """The string below the setting's field, as one line; "" if there is none."""
        return field_texts(self.owner).get(self.name, "")


def chosen(default: Any, choose: Callable[[Any], Any], name_of: Callable[[Any], Any], **declared: Any) -> Any:
    """Declare a nested field whose struct is chosen by a setting of the field's name (see `StructChoice`).

    Args:
      **declared: `group` and `needs`, as those of `fields.parameter`.
    """
    metadata = fields.parameter(default, **declared).metadata
    return dataclasses.field(default=default, metadata={**metadata, "choice": StructChoice(choose, name_of)})


def keyed(setting: str) -> Any:
    """Declare a field of numbers by names, each of which is a setting `SETTING.NAME` of its own, and data.

    The field's value is a dictionary; the default () has no numbers. What the names may be, only the use of the numbers
    decides.
    """
    return dataclasses.field(default=(), metadata={"keyed": setting})


def hidden() -> Any:
    """Declare a static field of a struct that is not a setting."""
    return dataclasses.field(metadata={"static": True, "hidden": True})


class Nested:
    """A base class of configs with nested structs, which names the right struct of a setting given to a wrong one."""

    def __new__(cls, *_: object, **given: object) -> Any:
        """Refuse a setting of a nested struct, which a dataclass would call an unexpected keyword."""
        own = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        for name in given:
            for field in own.values() if name not in own else ():
                if is_nested(field.default) and name in settings_of(field.default):
                    owner = type(field.default).__name__
                    raise ShoalError(
                        f"{name} is a setting of {owner}: {cls.__name__}({field.name}={owner}({name}=...)), or "
                        f"with_settings({cls.__name__}(), {name}=...)"
                    )
        return super().__new__(cls)


def is_nested(value: object) -> bool:
    """Report whether a field's value is a dataclass, whose own fields are settings."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def settings_of(config: object) -> dict[str, Setting]:
    """Return every setting of a config and of the structs within it, by its name.

    Raises:
      ShoalError: two structs have a setting of one name.
    """
    settings: dict[str, Setting] = {}
    _add_settings(settings, config)
    return settings


def _add_settings(settings: dict[str, Setting], config: object) -> None:
    cls = type(config)
    for field in schema_of(cls):
        name, value, choice = field.name, getattr(config, field.name), field.choice
        holds_struct = field.may_nest and value is not None and is_nested(value)
        # A part that is None is chosen by a name like any other.
        own = [Setting(name, value, str if choice and value is None else field.type, cls, field)]
        if field.keyed:
            own = [
                Setting(f"{field.keyed}.{key}", number, float, cls, field, is_keyed=True)
                for key, number in dict(value or ()).items()
            ]
        elif holds_struct:
            own = [Setting(name, choice.name_of(value), str, cls, field)] if choice else []
        for setting in own:
            if setting.name in settings:
                owners = settings[setting.name].owner.__name__, cls.__name__
                raise ShoalError(
                    f"{setting.name!r} is a setting of {owners[0]} and of {owners[1]}; rename one, since a name may "
                    "exist only once in a config"
                )
            settings[setting.name] = setting
        if holds_struct and schema_of(type(value)):  # not one that is a name alone
            _add_settings(settings, value)


def names_where(config: object, holds: Callable[[Setting], bool]) -> tuple[str, ...]:
    """Return the names of the settings of which something holds."""
    return tuple(name for name, setting in settings_of(config).items() if holds(setting))


def flat(config: object) -> dict[str, Any]:
    """Return the value of every setting, by its name."""
    return {name: setting.value for name, setting in settings_of(config).items()}


def all_names(config: object) -> set[str]:
    """Return the names of a config's settings, with those of the structs that its class would choose."""
    return set(settings_of(config)) | _default_names(type(config))


@fields.once_per_class
def _default_names(cls: Any) -> set[str]:
    # So that a setting of a struct which is not chosen has no effect, and is no unknown name.
    nested = {field.name for field in schema_of(cls) if field.may_nest}
    defaults = [x.default for x in dataclasses.fields(cls) if x.name in nested and is_nested(x.default)]
    return set[str]().union(*map(settings_of, defaults))


def with_settings(config: T, /, **values: object) -> T:
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
    # Their structs are chosen, and only the structs' own settings are left to be replaced.
    values = {k: x for k, x in values.items() if not (k in known and known[k].field.choice)}
    return cast(T, _replaced(config, values))


def find(config: object, name: str) -> Setting | None:
    """Return the setting of a name, also one that a field of numbers by names may get; None if there is none."""
    prefix, dot, key = name.partition(".")
    if not dot:
        return settings_of(config).get(name)
    for cls in map(type, _structs(config)):
        field = next((x for x in schema_of(cls) if x.keyed == prefix), None)
        if field is not None and key.isidentifier():
            return Setting(name, flat(config).get(name), float, cls, field, is_keyed=True)
    return None


def with_choices(config: T, values: Mapping[str, object]) -> T:
    """Replace the structs that settings choose by name; other settings, and a struct already chosen, are kept."""
    changes: dict[str, Any] = {}
    for declared in schema_of(type(config)):
        name, choice = declared.name, declared.choice
        chosen = present = getattr(config, name)
        if choice and name in values:
            chosen = choice.choose(values[name])
            is_same = is_nested(present) and choice.name_of(present) == choice.name_of(chosen)
            # The struct that is there has the settings of the preset or file, which a new one would lose.
            chosen = present if is_same and not is_nested(values[name]) else chosen
        if declared.may_nest and chosen is not None and is_nested(chosen):
            replaced = with_choices(chosen, values)
            changes |= {name: replaced} if replaced is not present else {}
    return dataclasses.replace(config, **changes) if changes else config  # type: ignore[type-var]


def _replaced(config: Any, values: Mapping[str, Any]) -> Any:
    changes = {}
    for declared in schema_of(type(config)):
        name, value = declared.name, getattr(config, declared.name)
        # What does not change stays the same object, by which callers see that nothing was replaced.
        if declared.may_nest and value is not None and is_nested(value):
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
    # The struct that would have it says more than a name that only looks like it.
    for field in dataclasses.fields(config):
        default, chosen = field.default, own.get(field.name)
        if chosen and chosen.field.choice and is_nested(default) and name in settings_of(default):
            needed = Needs(field.name, (chosen.field.choice.name_of(default),))
            return ShoalError(
                f"{name}={value!r} has no effect with {field.name}={chosen.value!r}; it needs {needed}."
            )
    return ShoalError(f"there is no setting {name!r}{hint_of(name, [x for x in known or own if x != name])}.")


def hint_of(name: str, options: Iterable[str], value: str = "") -> str:
    """Suggest what an unknown setting or flag (with a "False" after it) means elsewhere, or the nearest option."""
    named = list(options)
    # `wandb` and `--wandb-project` are how other trainers ask for a logger.
    if name.strip("-").replace("-", "_").partition("_")[0] in LOGGERS:
        return nearest(name, named) or f"; {LOGGING}"
    return hint_of_other_trainer(name, named, value if switches_off(value) else "") or nearest(name, named)


def needs_of(config: object) -> Table:
    """Return what settings need in order to have an effect: what their fields say, or else their holder's `needs`."""
    found = {name: x.field.needs for name, x in settings_of(config).items() if x.field.needs}
    for part in _structs(config):
        found |= getattr(part, "needs", {})
    return found


def groups_of(config: Any) -> dict[str, tuple[str, ...]]:
    """Return the settings by the titles of their groups.

    The `groups` of a config and of the structs within it come first; a config may name settings of its structs too. All
    others have the group that their field says, or else the name of the field that holds their struct.
    """
    found: dict[str, tuple[str, ...]] = {}
    titles: dict[str, str] = {}
    for part in _structs(config):
        for title, names in getattr(part, "groups", {}).items():
            titles |= {name: title for name in names if name not in titles}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        # Those of a nested struct that names no group are found under the struct's field.
        for name in settings_of(value) if is_nested(value) else ():
            titles.setdefault(name, settings_of(value)[name].field.group or field.name)
    for name, setting in settings_of(config).items():
        if title := titles.get(name, setting.field.group):
            found[title] = (*found.get(title, ()), name)
    return found


def _structs(config: object) -> list[Any]:
    """Return a config and the dataclasses within it."""
    found = [config]
    for field in schema_of(type(config)):
        if field.may_nest and is_nested(value := getattr(config, field.name)):
            found += _structs(value)
    return found


def check_fields(config: object) -> None:
    """Require that every setting holds a value of its declared type, within its bounds; traced values are not read."""
    found = settings_of(config)
    has_traced = fields.is_traced(*[setting.value for setting in found.values()])
    for name, setting in found.items():
        value, declared = setting.value, setting.declared
        if has_traced and fields.is_traced(value):
            continue
        if setting.field.choice:
            if declared is not str:  # not a struct: a name is text
                raise ShoalError(
                    f"{name}={value!r} is not a struct; with_settings({type(config).__name__}(), {name}={value!r}) "
                    "chooses one by its name"
                )
            continue
        # Words are looked up first, since that calls nothing, and a run checks its settings several times.
        is_plain = type(value) is declared or value in words_of(declared)
        # Its use reports what is not a function.
        is_function = not is_plain and not isinstance(value, str) and setting.may_name_function
        if not (is_plain or is_function or has_type(value, declared)):
            raise ShoalError(f"{name}={value!r} {refusal(value, declared)}")
        if isinstance(value, numbers.Real | tuple) and not isinstance(value, bool) and declared is not Any:
            bounds = setting.field.bounds or (_FINITE if float in options_of(declared) else None)
            if bounds and (bounds.longest or not bounds.contains(value)):
                fields.check_bounds(name, value, bounds)


_FINITE = fields.Bounds()
