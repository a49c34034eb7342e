"""Hints for the names that other trainers give to settings, from `other_trainers.toml`."""

import functools
import importlib.resources
import tomllib
from collections.abc import Collection

from shoal.base.installation import install_command


def hint_of_other_trainer(name: str, options: Collection[str], value: str = "") -> str:
    """Suggest the settings that another trainer calls by a name, and those of this name itself; "" if there are none.

    Args:
      name, value: of a flag if the options are flags.
    """
    plain = name.strip("-+").rpartition(".")[2].replace("-", "_").lower()
    dashes = "--" * name.startswith("--")
    as_option = (lambda x: f"--{x.replace('_', '-')}") if dashes else str
    meanings, off, sentences = other_trainers()
    if plain.removeprefix("no_") in off and (plain.startswith("no_") or switches_off(value)):
        meanings, value, plain = off, "", plain.removeprefix("no_")
    elif as_option(plain) in options:
        meanings = {plain: plain}
    elif plain in sentences:
        return f"; {sentences[plain]}"
    words = []
    for meaning in meanings.get(plain, "").split():
        setting, _, own_value = meaning.partition("=")
        if (option := as_option(setting)) not in options:
            return ""
        shown_value = own_value if dashes or not own_value else f"={own_value!r}"
        words.append(f"{option} {shown_value}".rstrip() if dashes else setting + shown_value)
    if not words:
        return ""
    negation = f"--no{words[-1][1:]}"
    if negation in options:
        words[-1] = negation if value.lower() == "false" else words[-1]
    elif value and " " not in words[-1]:
        words[-1] = f"{words[-1]} {value}"
    return f"; did you mean {(' ' if dashes else ', ').join(words)!r}?"


def switches_off(value: str) -> bool:
    """Report whether the value of a flag says no."""
    return value.lower() in ("false", "no", "0")


@functools.cache
def other_trainers() -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return by the names of other trainers' settings those of Shoal, with values; those that switch them off; and
    sentences about the others.
    """
    file = importlib.resources.files(__package__).joinpath("other_trainers.toml")
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    meanings = {name: meaning for meaning, names in table["settings"].items() for name in names.split()}
    texts = [(x["names"].split(), x["text"].format(cuda=install_command("cuda"))) for x in table["sentences"]]
    return meanings, table["off"], {name: text for names, text in texts for name in names}
