"""The docstring of each package is the map of its files: every file stands in it, and nothing that is not there."""

import ast
import re
from pathlib import Path

import pytest

import broker
import gateway

pytestmark = pytest.mark.tools

PACKAGES = sorted(
    path.parent for root in (broker, gateway) for path in Path(root.__file__).parent.rglob("__init__.py")
)
_ENTRY = re.compile(r"^(?:``|    )([a-z_]+)/?(?:``)? {2,}", re.MULTILINE)
"""A line of a map: a name, in backquotes or indented, and behind it in a column what it is."""


def map_of(package: Path) -> str:
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text()), clean=False) or ""


def parts_of(package: Path) -> set[str]:
    folders = {path.parent.name for path in package.glob("*/__init__.py")}
    return folders | {path.stem for path in package.glob("*.py")} - {"__init__", "__main__"}


def test_every_part_stands_in_the_map_and_nothing_that_is_not_there():
    wrong = {}
    for package in PACKAGES:
        told, parts = map_of(package), parts_of(package)
        missing = parts - set(re.findall(r"[a-z0-9_]+", told))
        gone = set(_ENTRY.findall(told)) - parts
        if missing or gone:
            wrong[package.name] = {"missing": missing, "not there": gone}
    assert wrong == {}
