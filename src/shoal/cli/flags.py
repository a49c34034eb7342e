"""Parsing of command lines: the fields of dataclasses are the flags, their docstrings the help."""

import contextlib
import dataclasses
import io
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from shoal.base.errors import ShoalError, nearest
from shoal.base.user_errors import reports_user_code
from shoal.cli import help as pages
from shoal.config import settings
from shoal.config.arguments import literal
from shoal.config.requirements import check_needs

T = TypeVar("T")

HELP_FLAGS = ("-h", "--help", "--help-all")

_registry = ConstructorRegistry()


@_registry.primitive_rule
def _whole_number(declared: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Whole numbers may be written as people write large ones: 1e6, 500_000."""
    if declared.type is not int:
        return None

    def read(words: list[str]) -> int:
        with contextlib.suppress(ValueError):
            return int(words[0])
        with contextlib.suppress(ValueError):
            if float(words[0]).is_integer():
                return int(float(words[0]))
        raise ValueError(f"{words[0]!r} is not a whole number")

    return _number_spec("INT", int, read)


@_registry.primitive_rule
def _real_number(declared: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[float] | None:
    if declared.type is not float:
        return None

    def read(words: list[str]) -> float:
        try:
            return float(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not a number") from None

    return _number_spec("FLOAT", (int, float), read)


def _number_spec(metavar: str, kinds: Any, read: Any) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, kinds),
        str_from_instance=lambda value: [repr(value)],
    )


@reports_user_code
def parse(command: str, description: str, default: T, arguments: Sequence[str]) -> tuple[T, list[str]]:
    """Reads the flags of a command; prints its help and ends the process if that is asked for.

    Args:
      command: as it is called, such as "shoal eval RUN".
      description: what it does, for its help.
      default: a dataclass, whose fields (and those of dataclasses within it, flat) are the flags.
      arguments: the words after the command's name.

    Returns:
      the dataclass as it was asked for, and the words that are no flags.

    Raises:
      ShoalError: a flag is unknown or given twice, its value is not of its type, or it has no effect without another.
    """
    if any(word in HELP_FLAGS for word in arguments):
        print(pages.help_page(command, description, default, full="--help-all" in arguments), end="")
        raise SystemExit(0)
    given_names = given_fields(default, arguments)
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            parsed, rest = tyro.cli(
                _flat_class(default),
                prog=command,
                description=description,
                args=list(arguments),
                return_unknown_args=True,
                registry=_registry,
            )
    except SystemExit as exit_error:
        if exit_error.code:
            raise ShoalError(_error_sentence(stderr.getvalue())) from None
        raise
    for word in rest:
        if word.startswith("-"):
            flag = word.partition("=")[0]
            program = " ".join(command.split()[:2])
            hint = _replaced_choice(flag, default) or settings.logging_hint(flag)
            hint = hint or nearest(flag, flag_names(default))
            hint = hint or f"; `{program} --help` lists them"
            raise ShoalError(f"{program} has no flag {flag!r}{hint}.")
    given = {name: getattr(parsed, name) for name in given_names}
    own_names = {field.name for field in dataclasses.fields(default)}  # type: ignore[arg-type]
    check_needs(given_names & own_names, vars(parsed), getattr(default, "needs", {}))
    return settings.with_settings(default, **given), rest


def _flat_class(default: Any) -> Any:
    """A dataclass with every setting of a dataclass, and of those within it, as a field of its own."""
    fields = []
    for name, setting in settings.settings_of(default).items():
        declared = setting.declared
        if not setting.choice:  # with what Annotated says of the flag's name
            declared = typing.get_type_hints(setting.owner, include_extras=True).get(name, declared)
        fields.append((name, declared, dataclasses.field(default=setting.value)))
    return dataclasses.make_dataclass(type(default).__name__, fields, frozen=True)


def given_fields(config: Any, arguments: Sequence[str]) -> set[str]:
    """The names of the fields whose flags stand among the words, with their default values too.

    Raises:
      ShoalError: a flag is given twice.
    """
    fields = dict(_flags_with_fields(config))
    flag_of_field: dict[str, str] = {}
    given_names: set[str] = set()
    for word in arguments:
        flag = _flag_of_word(word)
        if flag in fields:
            name = fields[flag]
            if flag_of_field.setdefault(name, flag) != flag:
                raise ShoalError(f"{flag_of_field[name]} and {flag} exclude each other; give one of them.")
            if name in given_names:
                raise ShoalError(f"the flag {flag} is given twice; give it once.")
            given_names.add(name)
    return given_names


def _flag_of_word(word: str) -> str:
    """The flag that a word begins with, as it is listed: `--num-envs` for `--num_envs=3`; "" if it is none."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def _replaced_choice(flag: str, default: Any) -> str:
    """Say that a flag is a setting of what another flag replaced, such as a network's; "" if it is not."""
    for field in dataclasses.fields(default):
        config = getattr(default, field.name)
        if settings.is_nested(config) and flag in flag_names(type(config)()):
            return "; it is a setting of the default network, which --network replaces"
    return ""


def flag_names(config: Any) -> Iterator[str]:
    """The flags that a dataclass makes."""
    return (flag for flag, _ in _flags_with_fields(config))


def _flags_with_fields(config: Any) -> Iterator[tuple[str, str]]:
    """The flags that a dataclass makes, each with the name of its field."""
    for name, setting in settings.settings_of(config).items():
        flag = name.rstrip("_").replace("_", "-")
        yield f"--{flag}", name
        if isinstance(setting.value, bool):
            yield f"--no-{flag}", name


def value_of(flag: str, arguments: Sequence[str]) -> str:
    """The value of a flag that must be known before the others can be read; "" if it is not given."""
    value = ""
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if _flag_of_word(word) == flag:
            _, separator, value = word.partition("=")
            value = value if separator else following
    return value


def leading_words(arguments: Sequence[str]) -> list[str]:
    """The words before the first flag."""
    first_flag = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    return list(arguments[:first_flag])


def parse_environment(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """An environment's name ("" if there is none) and its parameters, from `CartPole-v1 gravity=3.7`.

    Raises:
      ShoalError: there are two names, or a parameter is given twice.
    """
    positional = [word for word in words if "=" not in word]
    if len(positional) > 1:
        raise ShoalError(
            f"{positional[1]!r} is one word too many after {positional[0]!r}; parameters are name=value, "
            "such as gravity=9.8."
        )
    parameters: dict[str, str] = {}
    for word in words:
        name, separator, _ = word.partition("=")
        if separator and parameters.setdefault(name.replace("-", "_"), word) is not word:
            first = parameters[name.replace("-", "_")]
            raise ShoalError(f"the parameter {name} is given twice, {first} and {word}; give it once.")
    return "".join(positional), {name: literal(word.partition("=")[2]) for name, word in parameters.items()}


def join_repeated(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """Join the values of flags that may be given several times: `--grid A --grid B` becomes `--grid A B`."""
    values: dict[str, list[str]] = {}
    rest: list[str] = []
    current: list[str] = rest
    for word in arguments:
        flag, separator, value = word.partition("=")
        if flag.replace("_", "-") in names:
            current = values.setdefault(flag.replace("_", "-"), [])
            current += [value] if separator else []
        else:
            current = rest if word.startswith("-") else current
            current.append(word)
    return [*rest, *(word for flag, found in values.items() for word in (flag, *found))]


def require(what: str, example: str, value: str) -> str:
    """The word that a command cannot do without.

    Raises:
      ShoalError: it is missing.
    """
    if not value:
        raise ShoalError(f"no {what} was named; give one, such as {example}.")
    return value


def _error_sentence(panel: str) -> str:
    """Return the text of the first part of tyro's error panel, without its frame."""
    lines = [line.strip(" │") for line in re.sub(r"\x1b\[[0-9;]*m", "", panel).splitlines()]
    lines = [line for line in lines if not line.startswith(("╭", "╰"))]
    end = next((i for i, line in enumerate(lines) if line.startswith("──")), len(lines))
    text = " ".join(line for line in lines[:end] if line)
    return text.removeprefix("Error parsing ") or panel.strip()
