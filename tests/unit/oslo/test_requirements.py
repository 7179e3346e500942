"""The table of requirements in the wing's README names tests and files that exist, all of Z1 to Z30."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "broker" / "oslo" / "README.md"
ROWS = re.findall(r"^\| (Z\d+) \| .*? \| (.*) \|$", README.read_text(), re.MULTILINE)


def test_every_requirement_has_a_row() -> None:
    assert [name for name, _ in ROWS] == [f"Z{number}" for number in range(1, 31)]


@pytest.mark.parametrize(("name", "shown"), ROWS, ids=[name for name, _ in ROWS])
def test_what_a_row_names_exists(name: str, shown: str) -> None:
    for place in re.findall(r"`(tests/[^`]+)`", shown):
        file, _, function = place.partition("::")
        assert (ROOT / file).exists(), f"{name}: {file}"
        if function:
            tree = ast.parse((ROOT / file).read_text())
            assert any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body), (
                place
            )
    for link in re.findall(r"\]\(([^)]+)\)", shown):
        assert (README.parent / link).resolve().exists(), link


def test_links_of_the_page_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", README.read_text()):
        assert (README.parent / link).resolve().exists(), link
