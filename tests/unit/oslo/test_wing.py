"""What requirements ask of the wing as it lies there: tests of every room, a gate, rooms that stay apart, charts."""

import configparser
import importlib
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import broker.oslo
from broker.oslo.client import listeners, resend
from broker.oslo.names import DIRECTORY_PORT, PORTS
from tests.bench.targets import TARGETS, Row
from tests.live.oslo import OLDER
from tests.tables import for_each

ROOT = Path(__file__).resolve().parents[3]
WING = ROOT / "broker" / "oslo"
GUIDE = ROOT / "deploy" / "oslo" / "README.md"
SENT_AGAIN = f"the latest {resend.SENT_MSGS:_} messages"
SENT_MIB = f"{resend.SENT_BYTES >> 20} MiB"
BOUNDS = {
    "broker/oslo/README.md": (
        f"a window of {resend.WINDOW:_} before it",
        f"{SENT_AGAIN} of a pipeline, {SENT_MIB}, {resend.SENT_S:.0f} s",
        f"the latest {listeners.ANSWERS_MAX:_} answers of a server process, {listeners.ANSWERS_BYTES >> 20} MiB",
    ),
    "docs/guides/oslo.md": (f"{SENT_AGAIN} and {SENT_MIB}",),
    "deploy/oslo/README.md": (f"{SENT_AGAIN} and {SENT_MIB}",),
    "deploy/oslo/MIGRATING.md": (f"{SENT_AGAIN} and {SENT_MIB}",),
}
"""What a page says of messages that are sent again and of ids that are known again, from the constants themselves."""
PATTERNS = ("oslo_calls_1", "oslo_calls_16", "oslo_cast", "oslo_fanout", "oslo_notify")
"""Rows of the benchmark whose figure is how many times RabbitMQ's."""


def rooms() -> list[str]:
    return sorted(path.parent.name for path in WING.glob("*/__init__.py"))


@for_each("key", PATTERNS)
def test_the_benchmark_holds_every_pattern_to_more_than_rabbit(key: str) -> None:
    """Z23: what is not faster than RabbitMQ in the same run has missed its floor."""
    as_fast = Row(key)
    as_fast.settle([1.0])
    assert "vs rabbit://" in TARGETS[key].work
    assert as_fast.verdict == "MISSED", "Z23: no loss of speed"


@for_each("room", rooms())
def test_every_room_has_unit_tests(room: str) -> None:
    found = list((ROOT / "tests" / "unit" / "oslo" / room).glob("test_*.py"))
    assert found, "Z24: unit tests; functional tests unchanged; trickier cases"


def test_the_gate_runs_the_suite() -> None:
    """Z25: the job of its own and the whole of CI run targets that have the suite."""
    steps = re.findall(r"^step \S+ (.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE))
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "oslo.yml").read_text())["jobs"]["zmq"]
    assert "make oslo" in [step.get("run") for step in job["steps"]], "Z25: a gate in CI"
    assert "make interop" in steps, "Z25: a gate in CI"
    assert "interop or spark" in recipes["interop"], "Z25: a gate in CI"
    assert "tests/interop/test_oslo_*.py" in recipes["oslo"], "Z25: a gate in CI"


def test_the_oldest_version_that_is_tried_is_the_oldest_that_may_be_installed() -> None:
    makefile = (ROOT / "Makefile").read_text()
    older = re.search(r"^OSLO_OLDER := (.*)$", makefile, re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert older
    assert tuple(version.rpartition(".")[0] for version in older[1].split()) == OLDER
    assert f"oslo.messaging>={OLDER[0]}" in extras["oslo"]


def test_serialization_client_proxy_and_directory_are_rooms_that_do_not_know_each_other() -> None:
    """Z27: the contracts that `make lint` checks."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    forbidden = {
        (source, target)
        for contract in contracts.values()
        if contract.get("type") == "forbidden"
        for source in contract["source_modules"].split()
        for target in contract["forbidden_modules"].split()
    }
    apart = {
        ("broker.oslo.client", "broker.oslo.proxy"),
        ("broker.oslo.driver", "broker.oslo.proxy"),
        ("broker.oslo.proxy", "broker.oslo.client"),
        ("broker.oslo.proxy", "oslo_messaging"),
        ("broker.oslo.client", "oslo_serialization"),
    }
    assert apart <= forbidden, "Z27: serialization, topics, client, proxy, server, replies apart"


def test_every_pipeline_has_a_chart_and_every_port_stands_in_the_guide() -> None:
    """Z30."""
    page = (WING / "README.md").read_text()
    for pipeline in PORTS:
        chart = re.search(rf"^\*\*{pipeline.upper()}\*\*.*?```mermaid\nsequenceDiagram", page, re.M | re.S)
        assert chart, "Z30: documentation with charts, deployment guide"
    missing = [port for port in (DIRECTORY_PORT, *PORTS.values()) if str(port) not in GUIDE.read_text()]
    assert missing == [], "Z30: documentation with charts, deployment guide"


@pytest.mark.filterwarnings("ignore")  # of eventlet, which oslo.messaging loads
def test_the_journey_of_a_call_names_what_is_there():
    """``broker.oslo`` tells a newcomer which function has a call next; each of them says what it does."""
    steps = re.findall(r"^    ((?:driver|client|proxy)\.\S+) {2,}\S", broker.oslo.__doc__, re.MULTILINE)
    assert len(steps) >= 15
    assert len({step.rsplit(".", step.count(".") - 1)[0] for step in steps}) <= 10, "files"
    for step in steps:
        room, file, *names = step.split(".")
        found = importlib.import_module(f"broker.oslo.{room}.{file}")
        for name in names:
            found = getattr(found, name)
        assert found.__doc__, step


@for_each("page", sorted(BOUNDS))
def test_pages_give_the_bounds_that_are_in_force(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for bound in BOUNDS[page]:
        assert bound.replace("_", " ") in text, bound
