"""Every page leads where it says, and every command that it shows is one: verbs and options, all of them."""

import doctest
import operator
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker.settings
import gateway.settings
from broker.cli.completion import candidates
from broker.cli.verbs import BUILT_IN
from broker.identity import Role
from deploy import pages
from tests.live.pages import READ, ROOT, blocks
from tests.unit.services.test_registry import MASKS

pytestmark = pytest.mark.tools

LINKING = [*READ, *(ROOT / path for path in pages.PAGES)]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_links_lead_to_files():
    made = {f"docs/reference/settings-{kind}.md" for kind in pages.SETTINGS}
    missing = []
    for path in LINKING:
        for target in re.findall(r"\]\((?![a-z]+:)([^)#\s]+)", pages.FENCED.sub("", path.read_text())):
            there = (path.parent / target).resolve()
            if not there.exists() and name(there) not in made:
                missing.append(f"{name(path)}: {target}")
    assert missing == []


def commands() -> Iterator[tuple[str, str]]:
    """Page, and each line of its blocks that calls ``headgate``; what a sentence names as a command, too."""
    for path in dict.fromkeys(
        path for path in LINKING if path.name != "CHANGELOG.md"
    ):  # it tells of former ones
        for found in re.findall(r"`(headgate [^`]+)`", pages.FENCED.sub("", path.read_text())):
            yield name(path), " ".join(found.split())
        for language, text in blocks(path):
            if language == "sh":
                for line in text.replace("\\\n", " ").splitlines():
                    if found := re.search(r"(?:^|\s)(headgate .*)$", line):
                        yield name(path), found[1]


def test_the_curl_of_ubuntu_22_04_does_what_pages_ask_of_it():
    """That is 7.81."""
    newer = re.compile(r"--(json|rate|url-query|no-clobber|remove-on-error|variable|expand-\S+|ca-native)\b")
    lines = (line for path in LINKING for _, text in blocks(path) for line in text.splitlines())
    assert [line for line in lines if "curl " in line and newer.search(line)] == []


def unknown(line: str) -> list[str]:
    """The verb or the options of a line that there are not."""
    words = shlex.split(line, comments=True)[1:]
    end = next((at for at, word in enumerate(words) if word in ("&", "|", "||", "&&", ">", "--")), len(words))
    words = words[:end]
    if words[0] == "VERB":  # any
        return []
    if words[0] not in BUILT_IN and not words[0].startswith("--"):
        return words[:1]
    return [
        word
        for at, word in enumerate(words[1:], 1)
        if word.startswith("--")
        and word.partition("=")[0] not in {option for option, _what in candidates([*words[:at], "--"])}
    ]


def test_verbs_and_options_are_there():
    told = list(commands())
    assert len(told) > 50
    assert [(page, line, words) for page, line in told if (words := unknown(line))] == []


def test_the_page_of_the_built_in_services_has_every_method_and_who_may_call_it():
    rows = re.findall(r"^\| `([\w.-]+)` \| ([a-z, ]+) \| (yes|) +\| (.+) \|$", pages.services(), re.MULTILINE)
    callers = {0: "owner", Role.USER: "owner, user", Role.ADMIN: "owner, admin", Role.ALL: "everybody"}
    expected = {
        f"{name}.{word}": callers[mask] for name, words in MASKS.items() for word, mask in words.items()
    }
    assert {topic: who for topic, who, *_ in rows if not topic.startswith("SERVICE.")} == expected
    assert len(rows) == len(expected) + 7  # what every service answers
    assert [topic for topic, _, stream, _ in rows if stream] == [
        "log.dmesg", "module.trace", "overlay.monitor", "overlay.trace",
    ]  # fmt: skip
    assert all(len(says) > 10 for *_, says in rows)
    assert all(f"\n## {name}\n" in pages.services() for name in MASKS)


def test_the_example_of_the_hook():
    assert doctest.testmod(pages).failed == 0


def test_counters_that_the_page_of_lost_things_names_are_there():
    there = re.findall(r"^\| `(headgate_\w+)` \|", (ROOT / "deploy/OPERATIONS.md").read_text(), re.MULTILINE)
    named = set(re.findall(r"`(headgate_\w+)`", (ROOT / "docs/guides/why.md").read_text()))
    assert len(named) > 10
    assert named <= set(there)


def test_lines_of_the_log_that_the_page_of_lost_things_names_are_the_programs():
    sources = [path.read_text() for room in ("broker", "gateway") for path in (ROOT / room).rglob("*.py")]
    joined = re.sub(
        r'"\s*\n?\s*f?"', "", "\n".join(sources)
    )  # texts that stand in several pieces put together
    said = re.findall(r"\blog\b[^:;|`]*: ((?:`[^`]+`(?:, )?)+)", (ROOT / "docs/guides/why.md").read_text())
    lines = {line for each in said for line in re.findall(r"`([^`]+)`", each)}
    assert len(lines) > 12
    assert [line for line in sorted(lines) if line not in joined] == []


SIZES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "min": 60}


def number(text: str) -> float:
    """``16 MiB``, ``65 536``, ``10 min``."""
    digits, _, unit = text.strip().rpartition(" ") if text.strip()[-1].isalpha() else (text, "", "")
    return float(digits.replace("\N{NO-BREAK SPACE}", "").replace(" ", "")) * SIZES.get(unit, 1)


def test_limits_are_the_defaults_of_the_settings():
    page = (ROOT / "docs/limits.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ((?:`[a-z_.]+`(?:, )?)+)([^|]*)\|$", page, re.MULTILINE)
    assert len(rows) > 8
    for most, names, which in rows:
        settings = gateway.settings.GatewaySettings() if "gateway" in which else broker.settings.Settings()
        for text, name in zip(most.split(", "), re.findall(r"[a-z_.]+", names), strict=True):
            assert number(text) == operator.attrgetter(name)(settings), name


def test_extras_that_the_page_of_installation_names_are_there_and_no_others():
    page = (ROOT / "docs/installation.md").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {
        name for name in extras if not name.startswith(("test", "lint"))
    }


def test_the_comparison_has_the_figures_of_the_benchmarks():
    figures = dict(
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / "docs/benchmarks.md").read_text(), re.MULTILINE)
    )
    page = (ROOT / "docs/comparison.md").read_text()
    rows = re.findall(r"^\| (.+, vs .+) \| (.+ x) \|$", page, re.MULTILINE)
    assert len(rows) > 12
    assert [(work, figure, figures[work]) for work, figure in rows if figures[work] != figure] == []


def test_the_readme_is_read_in_a_minute():
    assert len((ROOT / "README.md").read_bytes()) <= 6 << 10
