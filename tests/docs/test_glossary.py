"""What the glossary names is there."""

import re
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools
GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"


def exists(place: str) -> bool:
    names = place.split(".")
    for at in range(len(names), 0, -1):
        try:
            found: object = import_module(".".join(names[:at]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, name, None)) is not None for name in names[at:])
    return False


def test_what_the_glossary_names_is_there():
    words = re.findall(r"^\| (?!word |---)([^|]+) \|.*\| `([\w.]+)` \|$", GLOSSARY.read_text(), re.MULTILINE)
    assert len(words) > 50
    assert [f"{place} ({word})" for word, place in words if not exists(place)] == []


def test_a_name_that_is_not_there_is_found():
    assert exists("broker.transport.link.Link")
    assert not exists("broker.transport.link.Chain")
    assert not exists("nowhere")
