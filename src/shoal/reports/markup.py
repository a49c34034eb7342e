"""HTML elements whose text is escaped, for pages and notebooks."""

import html
import re
from collections.abc import Collection, Iterable, Sequence

SEPARATORS = re.compile(r"(?<=\w)([-_/:=,]+)(?=[^\W\d])")  # and no minus of an exponent


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def element(tag: str, /, *children: str, **attributes: str | bool) -> Markup:
    """Make an element; children that are not `Markup` are escaped.

    Args:
      attributes: a trailing underscore of a name is removed, another one becomes a hyphen; True is an attribute without
        a value, and False none.
    """
    words = [tag]
    for key, value in attributes.items():
        word = key.rstrip("_").replace("_", "-")
        if value is not False:
            words.append(word if value is True else f'{word}="{html.escape(value)}"')
    return Markup(f"<{' '.join(words)}>{join(children)}</{tag}>")


def void(tag: str, /, **attributes: str | bool) -> Markup:
    """Make an element that has no content and no end, such as `img`."""
    return Markup(element(tag, **attributes).removesuffix(f"</{tag}>"))


def join(parts: Iterable[str]) -> Markup:
    """Put parts one after the other; those that are not `Markup` are escaped."""
    return Markup("".join(x if isinstance(x, Markup) else html.escape(x) for x in parts))


def breakable(text: str) -> Markup:
    """Let a name break after its separators: `-`, `_`, `/`, `:`, `=` and `,` within it."""
    return text if isinstance(text, Markup) else Markup(SEPARATORS.sub(r"\1<wbr>", html.escape(text)))


def scroll(content: Markup) -> Markup:
    """Let a wide table scroll by itself, also by the keyboard."""
    return element("div", content, class_="scroll", tabindex="0")


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[str] = ()
) -> Markup:
    """Make a table with a caption, whose first column names the rows.

    Args:
      numbers: the names of the columns that are aligned to the right.
    """
    classes = [{"class_": "n"} if name in numbers else {} for name in head]

    def line(name: str, cells: Sequence[str]) -> Markup:
        first, *others = cells
        header = element("th", breakable(first), scope="row", **classes[0])
        return element(
            name,
            header,
            *(element("td", breakable(x), **c) for x, c in zip(others, classes[1:], strict=True)),
        )

    titles = [element("th", x, scope="col", **c) for x, c in zip(head, classes, strict=True)]
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *titles)),
        element("tbody", *(line("tr", row) for row in rows)),
    )
