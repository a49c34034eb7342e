"""Every test file names what it tests, and every module has tests: by its name, or by CONTRIBUTING.md's table."""

import re
from pathlib import Path

import pytest

import shoal

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCE = Path(shoal.__file__).parent
TEST_FILES = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
MODULES = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.MULTILINE)
# A row that speaks of a whole folder alike, such as of all imports, is no test of what one module does.
OF_ALL = "*.py"


def table() -> dict[str, list[str]]:
    """What each test file in the table is said to hold: paths and patterns, as they stand there."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.split("### Which tests hold which modules", 1)[1].split("\n## ", 1)[0]
    rows = ROW.findall(section)[2:]  # without the heading and the line below it
    held = [re.findall(r"`(.+?)`", right) for _, right in rows]
    return dict(zip([left.strip("`") for left, _ in rows], held, strict=True))


def modules_named_by(pattern: str) -> set[str]:
    """The modules that a path or pattern of the table stands for; none if it stands for a whole folder."""
    if Path(pattern).name == OF_ALL:
        return set()
    return {str(path.relative_to(SOURCE)) for path in SOURCE.glob(pattern)}


def subject_by_name(test_file: str) -> str | None:
    """The module or package that a test file is named for."""
    path = Path(test_file)
    name = path.stem.removeprefix("test_")
    folder = SOURCE / path.parent
    subjects = (folder / f"{name}.py", folder / f"_{name}.py", folder / name / "__init__.py")
    return next((str(subject.relative_to(SOURCE)) for subject in subjects if subject.exists()), None)


def test_the_table_has_no_test_file_twice_and_is_in_order():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"^\| `((?:\w+/)*test_\w+\.py)` \|", page, re.MULTILINE)
    assert names == sorted(table(), key=lambda name: (str(Path(name).parent), Path(name).name))


@pytest.mark.parametrize("test_file", sorted(TEST_FILES))
def test_every_test_file_names_what_it_tests(test_file):
    assert test_file in table() or subject_by_name(test_file) is not None, (
        f"tests/{test_file} is named for no module of src/shoal/{Path(test_file).parent}; rename it, or say in the "
        "table of CONTRIBUTING.md what it tests"
    )


@pytest.mark.parametrize("module", sorted(MODULES))
def test_every_module_is_held_by_a_test_file(module):
    by_name = {subject_by_name(test_file) for test_file in TEST_FILES}
    by_table = {
        name for patterns in table().values() for pattern in patterns for name in modules_named_by(pattern)
    }
    assert module in by_name | by_table, (
        f"src/shoal/{module} has no test file of its name; write one, or name in the table of CONTRIBUTING.md the "
        "test file that holds it"
    )


@pytest.mark.parametrize("test_file", sorted(table()))
def test_every_row_names_what_exists(test_file):
    assert test_file in TEST_FILES
    patterns = table()[test_file]
    assert patterns
    assert [
        pattern for pattern in patterns if not (any(SOURCE.glob(pattern)) or any(ROOT.glob(pattern)))
    ] == []


def test_a_row_is_needed():
    """No row repeats what the test file's name says already."""
    assert [name for name, held in table().items() if held == [subject_by_name(name)]] == []
