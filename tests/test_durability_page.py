"""The page about durability names tests that exist, and its job files can be read."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "durability.md").read_text()
PROMISES = PAGE.split("## What is promised", 1)[1].split("\n## ", 1)[0]
# Without the heading and the line below.
ROWS = re.findall(r"^\| (.+?) \| (.+?) \|$", PROMISES, re.MULTILINE)[2:]
NAMED = sorted({name for _, right in ROWS for name in re.findall(r"`(.+?)`", right)})


def test_each_promise_has_a_test():
    assert len(ROWS) >= 15
    assert [left for left, right in ROWS if "`tests/" not in right] == []


@pytest.mark.parametrize("name", NAMED)
def test_the_tests_of_the_page_exist(name):
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert function in functions if function else any(name.startswith("test_") for name in functions)


def test_the_exit_codes_are_those_of_the_code():
    from shoal.base import signals

    table = PAGE.split("## Interruption", 1)[1].split("\n## ", 1)[0]
    assert f"| ends the piece, saves | {signals.RESUMABLE} |" in table
    assert f"the last checkpoint stands | {signals.INTERRUPTED} |" in table
    assert f"saving takes longer than {signals.SAVING_SECONDS:g} seconds" in table


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("script", re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
def test_the_scripts_can_be_read(script):
    result = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
