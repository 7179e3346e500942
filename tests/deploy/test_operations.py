"""The guide for operators says what is there: metrics, log lines, close codes, settings, commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from broker.cli import verbs
from gateway.closes import MEANINGS
from tests.deploy.figures import served, table
from tests.live.verbs import headgate

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "deploy" / "OPERATIONS.md").read_text()
SECURITY = (ROOT / "deploy" / "SECURITY.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", GUIDE, re.S | re.M)
    assert found, f"no section {title!r}"
    return found[1]


def first_cells(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [row.split(" | ")[0].removeprefix("| ").strip() for row in rows[1:]]


def test_every_metric_stands_there_and_no_other(tmp_path: Path) -> None:
    expected = table(served(tmp_path))
    assert f"<!-- metrics: begin -->\n{expected}\n<!-- metrics: end -->" in GUIDE, expected


def test_what_proxies_are_told_leads_to_the_listener_below_its_prefix() -> None:
    """nginx is run with its block in the browser's tests; what the others send is tried at the door."""
    listener = re.search(r'url = "http://(.+?)"\ntrusted_proxies', GUIDE)
    assert listener
    said = {
        kind: re.search(rf"```{kind}\n(.*?)```", GUIDE, re.S)
        for kind in ("nginx", "yaml", "caddyfile", "haproxy")
    }
    blocks = {kind: found[1] for kind, found in said.items() if found}
    assert blocks.keys() == said.keys()
    for kind, block in blocks.items():
        assert listener[1] in block, kind
        assert "/headgate" in block, kind
    assert "X-Forwarded-Proto https" in blocks["haproxy"]
    assert "timeout tunnel" in blocks["haproxy"]


def test_log_lines_are_those_of_the_program() -> None:
    sources = "\n".join(
        path.read_text()
        for package in ("broker", "gateway")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    joined = re.sub(r'"\s*\n?\s*f?"', "", sources)  # texts that stand in several pieces put together
    lines = [cell.strip("`") for cell in first_cells(section("Log lines to act on"))]
    assert len(lines) > 20
    assert [line for line in lines if line not in joined] == []


def test_close_codes_are_the_gateways() -> None:
    rows = re.findall(r"^\| (\d{4}) \| ([a-z-]+) \|", section("Close codes to act on"), re.M)
    assert len(rows) >= 6
    assert {int(code): name for code, name in rows} == {
        int(code): MEANINGS[int(code)].name for code, _ in rows
    }


def test_named_settings_exist() -> None:
    known = (ROOT / "deploy" / "broker.toml").read_text() + (ROOT / "deploy" / "gateway.toml").read_text()
    sections = "broker|tree|access|limits|gateway|journal|nfp|oslo|history|jwt|tokens"
    named = set(re.findall(rf"`(?:{sections})\.([a-z_]+)", GUIDE + SECURITY))
    no_settings = {"reload", "drain", "end", "start", "db", "json"}  # methods and files
    missing = {name for name in named - no_settings if not re.search(rf"^#?{name} =", known, re.M)}
    assert len(named) > 20
    assert not missing


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE + SECURITY, re.S)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("headgate ")})


def test_commands_know_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option of a command stands in the help of its verb."""
    monkeypatch.setenv("COLUMNS", "200")
    assert len(commands()) >= 8
    wrong = {}
    for command in commands():
        _, verb, *words = shlex.split(command)
        inner = (
            words[:1]
            if words and not words[0].startswith("-") and verb in ("token", "cluster", "nfp")
            else []
        )
        told = headgate(verb, *inner, "--help")
        unknown = [
            word for word in words if word.startswith("--") and not re.search(rf"{word}\b", told.stdout)
        ]
        if verb not in verbs.BUILT_IN or told.returncode or unknown:
            wrong[command] = unknown or told.stderr
    assert wrong == {}


def test_links_lead_somewhere() -> None:
    for name, text in (("OPERATIONS.md", GUIDE), ("SECURITY.md", SECURITY)):
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if "://" not in target:
                assert (ROOT / "deploy" / target).exists(), f"{name}: {target}"


def test_links_inside_lead_to_headings() -> None:
    titles = re.findall(r"^## (.*)$", GUIDE, re.M)
    headings = {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([^)]+)\)", GUIDE)) <= headings


def test_each_threat_names_a_test_that_exists() -> None:
    named = set(re.findall(r"`(tests/[A-Za-z0-9_/.]+)`", SECURITY))
    assert len(named) > 15
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing
