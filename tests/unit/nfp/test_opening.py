"""Bodies of OPEN: what is written is read, what is odd counts as not said."""

import json

import pytest

from broker.nfp import opening
from broker.nfp.opening import (
    BrokerOpen,
    HeldJob,
    WorkerOpen,
    broker_of,
    read_client,
    read_object,
    read_worker,
    write,
)
from tests.tables import for_each

WORKER = WorkerOpen(
    frozenset({"jobs", "recorded"}),
    4,
    ("r1", "r2"),
    {"ping": True, "pay": False, "odd": None},
    {"u1": HeldJob(1, "running"), "u2": HeldJob(0, "done")},
)


SAID = {
    "name": "w1",
    "dialect": "headgate/1",
    "features": ["jobs", "recorded"],
    "credits": 4,
    "resources": ["r1", "r2"],
    "tasks": {"ping": {"idempotent": True}, "pay": {"idempotent": False}, "odd": {}},
    "jobs": {"u1": [1, "running"], "u2": [0, "done"]},
}


def test_worker() -> None:
    assert read_worker(json.dumps(SAID).encode()) == WORKER


def test_client() -> None:
    body = b'{"name":"c","dialect":"headgate/1","features":["push"]}'
    assert read_client(body) == {"push"}


def test_broker() -> None:
    said = BrokerOpen("headgate", "0.1", 500, 3, frozenset({"push"}), "e")
    assert broker_of(read_object(write(said))) == said


@for_each(
    "body",
    [b"", b"\x00\xff", b"[]", b"7", b"{", b"[" * 3000, b'{"name":7,"features":"push","credits":"x"}', b"{}"],
)
def test_odd_bodies_say_nothing(body: bytes) -> None:
    assert read_worker(body) == WorkerOpen()
    assert read_client(body) is None
    assert broker_of(read_object(body)) == BrokerOpen()


@for_each("said", ["0", "-1", "true", "1.5", "1e99", "null", "2147483648"])
def test_numbers_that_are_none(said: str) -> None:
    assert broker_of(read_object(f'{{"keepalive_ms":{said},"multiplier":{said}}}'.encode())) == BrokerOpen()
    assert read_worker(f'{{"credits":{said}}}'.encode()).credits == 0


def test_bad_entries_are_left_out() -> None:
    body = json.dumps(
        {
            "features": ["jobs", 7, "x" * 300],
            "resources": ["a", None, {}],
            "tasks": {"a": {"idempotent": False}, "b": 1, "": {}, "c": {"idempotent": "no"}, "d" * 256: {}},
            "jobs": {
                "a": [1, "running"],
                "b": [1],
                "c": [-1, "done"],
                "d": [1, "gone"],
                "e": ["1", "done"],
                "f": [True, "done"],
                "g": [1, ["done"]],
            },
        }
    ).encode()
    seen = read_worker(body)
    assert (seen.features, seen.resources) == ({"jobs"}, ("a",))
    assert seen.tasks == {"a": False, "b": None, "c": None}
    assert seen.jobs == {"a": HeldJob(1, "running")}


def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "TASKS_MAX", 2)
    monkeypatch.setattr(opening, "RESOURCES_MAX", 2)
    monkeypatch.setattr(opening, "JOBS_MAX", 2)
    names = ["a", "b", "c"]
    body = json.dumps(
        {
            "resources": names,
            "tasks": {name: {} for name in names},
            "jobs": {name: [1, "done"] for name in names},
        }
    ).encode()
    seen = read_worker(body)
    assert (len(seen.resources), len(seen.tasks), len(seen.jobs)) == (2, 2, 2)


@for_each("body", [b"", b"{", b"plain", b"\xff", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_json_counts_as_unread(body: bytes) -> None:
    assert opening.read_any(body) is None
    assert opening.read_any(body, "unread") == "unread"
    assert opening.read_object(body) == {}


def test_what_is_json_is_read() -> None:
    assert opening.read_any(b"null", "unread") is None
    assert opening.read_any(memoryview(b'{"a":[1]}')) == {"a": [1]}
    assert (opening.read_object(b'{"a":1}'), opening.read_object(b"[1]")) == ({"a": 1}, {})
