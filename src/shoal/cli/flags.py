"""Parsing of command lines: the fields of dataclasses are the flags, their docstrings the help."""

import argparse
import dataclasses
import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.cli import help as pages
from shoal.config import settings
from shoal.config.other_trainers import hint_of_other_trainer
from shoal.config.requirements import check_needs
from shoal.config.values import element_of, from_text, has_type, refusal
from shoal.envs.registry import parameters_of

T = TypeVar("T")

HELP_FLAGS = ("-h", "--help", "--help-all")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are those of Shoal."""

    def error(self, message: str) -> NoReturn:
        raise ShoalError(f"{message.removeprefix('argument ')}.")


def parse(command: str, description: str, default: T, arguments: Sequence[str]) -> tuple[T, list[str]]:
    """Read the flags of a command into a dataclass, and return it with the other words; see `parse_values`."""
    values, words = parse_values(command, description, default, arguments)
    return settings.with_settings(default, **values), words


@reports_user_code
def parse_values(
    command: str, description: str, default: Any, arguments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Read the flags of a command; print its help and end the process if asked to.

    Args:
      default: a dataclass, whose fields (and those of dataclasses within it, flat) are the flags.
    Returns:
      the values of the flags among the words, by the names of their fields, and the words that are not flags.
    Raises:
      ShoalError: a flag is unknown or given twice, its value is not of its type, or it has no effect without another.
    """
    if any(word in HELP_FLAGS for word in arguments):
        print(pages.help_page(command, description, default, full="--help-all" in arguments), end="")
        raise SystemExit(0)
    # No abbreviations: one would mean another flag, or none, once a further flag begins like it.
    # What is not given has no entry, so that a setting that is given is known even where it is the default.
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    fields = settings.settings_of(default)
    repeated = getattr(default, "repeated", ())  # tuples of which each flag gives one value
    for flag, name in flags_with_fields(fields):
        # Each value is appended, and may be missing, so that `_value` can say what is wrong in one sentence.
        if fields[name].declared is bool:
            parser.add_argument(flag, dest=name, action="append_const", const=flag)
        else:
            is_tuple = element_of(fields[name].declared) is not None and name not in repeated
            parser.add_argument(flag, dest=name, action="append", nargs="*" if is_tuple else "?")
    namespace, words = parser.parse_known_args(_as_listed(arguments))
    words = [word.lstrip() for word in words]
    values = {
        name: tuple(_value(name, str, [word]) for word in found)
        if name in repeated
        else _value(name, fields[name].declared, found)
        for name, found in vars(namespace).items()
    }
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word.startswith("-"):
            flag, _, value = (word if "=" in word else f"{word}={following}").partition("=")
            program = " ".join(command.split()[:2])
            hint = _replaced_choice(flag, default) or settings.hint_of(flag, flag_names(default), value)
            algorithm = fields["algorithm"].value if "algorithm" in fields else "ppo"
            chosen = "" if algorithm == "ppo" else f" --algorithm {algorithm}"
            hint = hint or f"; `{program}{chosen} --help` lists them"
            raise ShoalError(f"{program} has no flag {flag!r}{hint}.")
    own_names = {field.name for field in dataclasses.fields(default)}
    everything = {name: setting.value for name, setting in fields.items()} | values
    check_needs(values.keys() & own_names, everything, getattr(default, "needs", {}))
    return values, words


def _as_listed(arguments: Sequence[str]) -> list[str]:
    """Return flags as listed, `--num-envs=3` for `--num_envs=3`, and a space before numbers that begin with a dash.

    The parser takes a word that begins with a dash for a flag, unless it is as simple as -1 or -0.5.
    """
    words = []
    for word in arguments:
        flag = _flag_of_word(word)
        words.append(f" {word}" if word.startswith("-") and _is_number(word) else flag + word[len(flag) :])
    return words


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _value(name: str, declared: Any, found: list[Any]) -> Any:
    """Return a field's value from the parser's: the flag for a bool, a list for a tuple, else a word or None."""
    flag = pages.flag_of(name)
    if len(found) > 1:
        if found[0] != found[1] and declared is bool:
            raise ShoalError(f"{found[0]} and {found[1]} exclude each other; give one of them.")
        raise ShoalError(f"the flag {found[0] if declared is bool else flag} is given twice; give it once.")
    (value,) = found
    if declared is bool:
        return value == flag
    if value is None:
        raise ShoalError(f"{flag} has no value; give it one.")
    if value == ["None"] and has_type(None, declared):
        return None
    if isinstance(value, list):
        return tuple(_read(flag, word, element_of(declared)) for word in value)
    return _read(flag, value, declared)


def _read(flag: str, word: str, declared: Any) -> Any:
    """Read a word as a value of a type."""
    word = word.lstrip() if _is_number(word) else word
    value = from_text(word, declared)
    if not has_type(value, declared):
        raise ShoalError(f"{flag}: {word!r} {refusal(word, declared)}")
    return value


def _flag_of_word(word: str) -> str:
    """Return the flag that a word begins with, as listed: `--num-envs` for `--num_envs=3`; "" if there is none."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else ""


def _replaced_choice(flag: str, default: Any) -> str:
    """Say that a flag is a setting of what another flag replaced, such as a network's; "" if it is not."""
    for field in dataclasses.fields(default):
        config = getattr(default, field.name)
        if settings.is_nested(config) and flag in flag_names(type(config)()):
            return "; it is a setting of the default network, which --network replaces"
    return ""


def flag_names(config: object) -> list[str]:
    """Return the flags that a dataclass makes."""
    return [flag for flag, _ in flags_with_fields(settings.settings_of(config))]


def flags_with_fields(fields: Mapping[str, settings.Setting]) -> list[tuple[str, str]]:
    """Return the flags of settings by name, each with the name of its setting."""
    found, flags = [], pages.flags_of(fields)
    for name, setting in fields.items():
        found.append((flags[name], name))
        if setting.declared is bool:
            found.append((f"--no{flags[name][1:]}", name))
    return found


def command_line(command: str, arguments: Sequence[str]) -> str:
    """Return a command with its words, quoted for a shell, such as `shoal train CartPole-v1 --note 'a note'`.

    Args:
      command: as the help shows it, such as `shoal train ENV`.
    """
    return shlex.join([*command.split()[:2], *arguments])


def given(arguments: Sequence[str]) -> dict[str, str]:
    """Return the values of flags that must be known before the others can be read, by setting."""
    return dict(_given(arguments))


def _given(arguments: Sequence[str]) -> list[tuple[str, str]]:
    values = []
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if flag := _flag_of_word(word):
            _, separator, value = word.partition("=")
            value = value if separator else following
            if value and not value.startswith("--"):
                values.append((flag[2:].replace("-", "_"), value))
    return values


def value_of(flag: str, arguments: Sequence[str]) -> str:
    """Return the value of such a flag; "" if it is not given."""
    return "".join(values_of(flag, arguments)[-1:])


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """Return the values of such a flag, which may be given several times."""
    return [value for name, value in _given(arguments) if name == flag[2:].replace("-", "_")]


def leading_words(arguments: Sequence[str]) -> list[str]:
    """Return the words before the first flag."""
    return list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))


def parse_environment(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Parse an environment's name ("" if there is none) and its parameters, such as `CartPole-v1 gravity=3.7`.

    Raises:
      ShoalError: there are two names, a parameter is given twice, or one lacks its name or its value.
    """
    form = "parameters are name=value, such as gravity=9.8."
    positional = [word for word in words if "=" not in word]
    if len(positional) > 1:
        raise ShoalError(f"{positional[1]!r} is one word too many after {positional[0]!r}; {form}")
    parameters: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if separator and not (name and value):
            raise ShoalError(f"{word!r} has no {'value' if name else 'name'}; {form}")
        if separator and parameters.setdefault(name.replace("-", "_"), word) is not word:
            first = parameters[name.replace("-", "_")]
            raise ShoalError(f"the parameter {name} is given twice, {first} and {word}; give it once.")
    return "".join(positional), {name: from_text(word.partition("=")[2]) for name, word in parameters.items()}


def check_parameters(words: Sequence[str], config: object) -> None:
    """Require that no name=value after an environment is a setting, by Shoal's name for it or another trainer's.

    Args:
      config: a dataclass whose fields are the flags.
    Raises:
      ShoalError: one is, and no parameter of the environment.
    """
    if not any("=" in word for word in words):
        return
    environment, _ = parse_environment(words)
    pairs = [word.partition("=") for word in words if "=" in word and environment]
    options = flag_names(config)
    hints = {name: hint_of_other_trainer(f"--{name}", options, value) for name, _, value in pairs}
    parameters = parameters_of(environment) if any(hints.values()) else {}
    for name, hint in hints.items():
        if hint and name.replace("-", "_") not in parameters:
            raise ShoalError(f"{environment} has no parameter {name!r}, and settings are flags{hint}")


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
    """Return the word that a command requires.

    Raises:
      ShoalError: it is missing.
    """
    if not value:
        raise ShoalError(f"no {what} was named; give one, such as {example}.")
    return value
