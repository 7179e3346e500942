"""Names twice, and a glossary that names what is not there, are found."""

import pytest

from tests.deploy import names


@pytest.fixture
def glossary(monkeypatch, tmp_path):
    page = tmp_path / "glossary.md"
    monkeypatch.setattr(names, "GLOSSARY", page)
    return page


def test_nothing_is_wrong():
    assert names.twice() == []
    assert names.glossary() == []


def test_a_name_that_nobody_allows(glossary):
    glossary.write_text("| name | where | why |\n")
    assert "Handle is defined in broker/client/blocking.py, broker/client/handle.py" in names.twice()


def test_a_word_for_what_is_not_there(glossary):
    glossary.write_text(
        "| link | x | y | `broker.transport.link.Chain` |\n| end | x | y | `broker.errors` |\n"
    )
    assert names.glossary() == ["broker.transport.link.Chain (link) is not there"]


def test_too_many_words(glossary):
    glossary.write_text("| link | x | y | `broker.errors` |\n" * (names.WORDS_MAX + 1))
    assert names.glossary() == ["61 words, expected 60 at most"]
