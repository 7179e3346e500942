"""``broker/PROTOCOL.md``: every line of its tables names tests that there are, and no test of the texts is left out."""

import ast
import functools
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "broker" / "PROTOCOL.md"
HEAD = "| the texts say | default | strict | test |"


def tables() -> list[list[str]]:
    """The cells of each line that has a test."""
    lines = PAGE.read_text().split(HEAD)[1:]
    rows = [line for part in lines for line in part.split("\n\n")[0].splitlines() if line.startswith("| ")]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in rows
        if not line.startswith("| ---")
    ]


def named() -> set[tuple[str, str]]:
    return {found for row in tables() for found in re.findall(r"`([\w/]+\.py)::(\w+)`", row[3])}


@functools.cache
def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")}


def test_each_line_says_what_is_done_and_names_a_test():
    rows = tables()
    assert len(rows) > 20
    assert [row for row in rows if len(row) != 4 or not all(row) or "::" not in row[3]] == []


def test_the_tests_are_there():
    assert {(file, name) for file, name in named() if name not in functions(TESTS / file)} == set()


def test_no_test_of_the_texts_is_left_out():
    file = "story/test_texts.py"
    assert functions(TESTS / file) == {name for where, name in named() if where == file}
