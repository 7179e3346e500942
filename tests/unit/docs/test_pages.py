"""Every page leads where it says, and every command that it shows is one: verbs and options, all of them."""

import doctest
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.cli.completion import candidates
from broker.cli.verbs import BUILT_IN
from deploy import pages
from tests.live.pages import READ, ROOT, blocks

README_BYTES = 8192
LINKING = [*READ, *(ROOT / path for path in pages.PAGES)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= README_BYTES


@pytest.mark.parametrize("path", LINKING, ids=name)
def test_links_lead_to_files(path):
    made = {f"docs/reference/settings-{kind}.md" for kind in pages.SETTINGS}
    text = pages.FENCED.sub("", path.read_text())
    missing = []
    for target in re.findall(r"\]\((?![a-z]+:)([^)#\s]+)", text):
        there = (path.parent / target).resolve()
        if not there.exists() and name(there) not in made:
            missing.append(target)
    assert missing == []


def commands() -> Iterator[tuple[str, str]]:
    """Page, and each line of its blocks that calls ``headgate``."""
    for path in READ:
        for language, text in blocks(path):
            if language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    if found := re.search(r"(?:^|\s)(headgate .*)$", line):
                        yield name(path), found[1]


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_verbs_and_options_are_there(page, line):
    words = shlex.split(line, comments=True)[1:]
    end = next((at for at, word in enumerate(words) if word in ("&", "|", "||", "&&", ">", "--")), len(words))
    words = words[:end]
    assert words[0] in BUILT_IN or words[0].startswith("--"), line
    for at, word in enumerate(words[1:], 1):
        if word.startswith("--"):
            offered = {option for option, _what in candidates([*words[:at], "--"])}
            assert word.partition("=")[0] in offered, line


def test_the_example_of_the_hook():
    assert doctest.testmod(pages).failed == 0
