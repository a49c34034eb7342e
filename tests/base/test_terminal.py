"""Names that users give reach a terminal without their control characters."""

import sys

from shoal import cli
from shoal.base.terminal import fit, harmless

EVIL = "a\x1b]0;title\x07\x9b31m\x7f\u202eb\tc\n"


def test_controls_are_written_as_escapes():
    assert harmless(EVIL) == "a\\x1b]0;title\\x07\\x9b31m\\x7f\\u202eb\tc\n"
    assert harmless("naïve 鱼 $x_1$") == "naïve 鱼 $x_1$"


def test_tables_are_cut_to_a_terminal_alone(monkeypatch):
    table = f"{'x' * 100}\nshort \x1b"
    assert fit(table) == table
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert fit(table).split("\n") == [f"{'x' * 37}...", "short \\x1b"]


def test_an_error_shows_no_escapes_of_a_name(capsys):
    for command in ("runs", "compare", "report", "eval", "resume", "checkpoints"):
        assert cli.main([command, "/no/\x1b[31m", "/no/\x1b[32m"][: 2 + (command == "compare")]) == 2
        error = capsys.readouterr().err
        assert "\x1b" not in error and "x1b[31m" in error
