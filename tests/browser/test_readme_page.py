"""The examples in JavaScript run in a page, as they stand there: the guide's, and those of client.js."""

import re
from pathlib import Path

import pytest

from tests.live.brokers import eventually
from tests.live.pages import Page

pytestmark = pytest.mark.patient
MANUAL = Path(__file__).parents[2] / "gateway" / "dashboard" / "README.md"
PLACE = "127.0.0.1:8280"


def example(url: str) -> str:
    """The block in JavaScript for a gateway at ``url``: a module in the guide, inside a function here."""
    block = Page("guides/web.md").block("js", "connect")
    assert block.count(PLACE) == 2
    there = block.replace(PLACE, url.partition("://")[2])
    imported, count = re.subn(r"^import (\{.*\}) from (.*);", r"const \1 = await import(\2);", there)
    assert count == 1
    return (
        f"(token) => {{ (async () => {{ {imported} }})().catch((error) => console.error(String(error))); }}"
    )


def test_the_example_calls_and_is_told_of_events(look):
    page = look.bench()
    page.evaluate("() => { window.said = []; console.log = (...words) => window.said.push(words); }")
    page.evaluate(example(look.url), look.gateway.tokens["ada"])
    eventually(lambda: page.evaluate("window.said"), [[{"value": "4", "flags": 1}]])
    numbers = set()
    eventually(
        lambda: numbers.add(look.publish("demo.ring", {"n": 1})) or len(page.evaluate("window.said")) > 1
    )
    number, topic, payload = page.evaluate("window.said")[1]
    assert number in numbers
    assert (topic, payload) == ("demo.ring", {"n": 1})


BESIDES = """
const signal = new AbortController().signal;
const line = '<14>1 2026-01-01T00:00:00.000000Z 0 user - - - that is enough';
const beside = setInterval(() => {
  flux.rpc('log.append', line);
  flux.publish('kvs.set', { last: true });
}, 200);
"""
"""What the examples take for granted: somebody logs, and publishes events."""


def manual() -> str:
    """All blocks of the manual in their order, as one function of a page; returns what they were told."""
    first, *rest = re.findall(r"```js\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    first, count = re.subn(r"^import (\{.*\}) from '(.*)';", r"const \1 = await import('/client.js');", first)
    assert count == 1
    *others, services = rest
    services = services.replace(
        "await leave();", "const sum = await flux.rpc('sums.add', { a: 1, b: 2 });\nawait leave();"
    )
    body = "\n".join([first, BESIDES, *others, services])
    return (
        f"async () => {{ {body}; clearInterval(beside); return [value, answer.rank, number > 0, sum.sum]; }}"
    )


def test_the_manual_of_the_client_does_what_it_says(look):
    page = look.dashboard("events")
    assert page.evaluate(manual()) == ["4", 3, True, 3]
