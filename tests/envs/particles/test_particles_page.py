"""The page on discs and spheres in contact: its code runs, from top to bottom."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "particles.md"


@pytest.mark.full
def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    namespace = {"__name__": __name__}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
