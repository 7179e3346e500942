"""Each row of the table of requirements in the wing's README names tests, and in each an assertion says the row.

An assertion shows a row when its message begins with the row's id and sentence, so that whoever changes the sentence
looks at what is asserted, and a test that fails says which requirement does not hold::

    assert entered[2] == 0, "Z10: subscriptions by topic"
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.tables import for_each

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "broker" / "oslo" / "README.md"
SAID = re.compile(r"Z\d+\b")


class Requirement(NamedTuple):
    """A row of the table: ``tests`` are the places that it names, ``tests/FILE::FUNCTION``."""

    id: str
    sentence: str
    shown: str

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`(tests/[^`]+)`", self.shown)

    @property
    def says(self) -> str:
        return f"{self.id}: {self.sentence}"


ROWS = [
    Requirement(*found)
    for found in re.findall(r"^\| (Z\d+) \| (.*?) \| (.*) \|$", README.read_text(), re.MULTILINE)
]
CLAIMS = [(row, test) for row in ROWS for test in row.tests]


@cache
def functions(file: Path) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The tests of a file by their names."""
    return {
        node.name: node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def shown(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """What assertions say they show. One that looks at nothing that the test made or asked for shows nothing."""
    for node in ast.walk(test):
        if (
            isinstance(node, ast.Assert)
            and isinstance(node.msg, ast.Constant)
            and isinstance(node.msg.value, str)
            and SAID.match(node.msg.value)
            and any(isinstance(each, ast.Name) for each in ast.walk(node.test))
        ):
            yield node.msg.value


def find(place: str) -> ast.FunctionDef | ast.AsyncFunctionDef:
    file, _, name = place.partition("::")
    return functions(ROOT / file)[name]


def test_every_requirement_has_a_row_that_names_a_test() -> None:
    assert [row.id for row in ROWS] == [f"Z{number}" for number in range(1, 31)]
    assert [row.id for row in ROWS if not row.tests] == []


@for_each(("row", "place"), CLAIMS, ids=[f"{row.id}-{place}" for row, place in CLAIMS])
def test_what_a_row_names_asserts_what_the_row_says(row: Requirement, place: str) -> None:
    said = [each for each in shown(find(place)) if SAID.match(each)[0] == row.id]  # type: ignore[index]
    assert said, f"no assertion of {place} says that it shows {row.id}"
    assert [each for each in said if not each.startswith(row.says)] == []


def test_what_shows_a_requirement_is_named_by_its_row() -> None:
    named = {(row.id, place) for row, place in CLAIMS}
    found = {
        (SAID.match(said)[0], f"{file.relative_to(ROOT)}::{name}")  # type: ignore[index]
        for file in sorted(ROOT.glob("tests/**/test_*.py"))
        if '"Z' in file.read_text()
        for name, test in functions(file).items()
        for said in shown(test)
    }
    assert found == named


def test_docstrings_speak_of_what_is_asserted() -> None:
    for file in sorted({ROOT / place.partition("::")[0] for _, place in CLAIMS}):
        for name, test in functions(file).items():
            spoken = set(SAID.findall(ast.get_docstring(test) or ""))
            asserted = {SAID.match(said)[0] for said in shown(test)}  # type: ignore[index]
            assert spoken <= asserted, f"{file.name}::{name}"


def test_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / link).resolve().exists(), link
