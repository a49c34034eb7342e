"""Texts of users on a terminal: names, tags and paths whose control characters do nothing there."""

import shutil
import sys

# C0 without tab and newline, DEL, C1, and what reverses the direction of writing.
CONTROLS = {
    x: f"\\x{x:02x}" if x < 256 else f"\\u{x:04x}"
    for x in (*range(9), *range(11, 32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def harmless(text: str) -> str:
    """Write control characters as their escapes, such as `\\x1b`."""
    return text.translate(CONTROLS)


def fit(text: str) -> str:
    """Cut the lines of a table to the width of the terminal that it is printed to; nothing elsewhere."""
    if sys.stdout is None or not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (harmless(line) for line in text.split("\n"))
    return "\n".join(line if len(line) <= width else f"{line[: max(0, width - 3)]}..." for line in lines)
