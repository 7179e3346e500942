"""``events.service.broker`` as peers ask it."""

import pytest

from broker.nfp.management import EventBus
from broker.nfp.management.events import READ_MAX, EventService
from broker.nfp.names import Dialect
from tests.tables import for_each
from tests.unit.nfp.management.fakes import BERT, OWNER, FakePeer, event, reply


@pytest.fixture
def bus():
    return EventBus("e1", held_max=50)


def test_subscribe_answers_where_it_begins_and_delivers(bus):
    peer = FakePeer()
    bus.publish(event())
    status, told = reply(EventService(bus), "subscribe", peer, "s9", kinds="progress, finished")
    assert (status, told) == (
        200,
        {"subscription": "s9", "since": 1, "epoch": "e1", "sequence": 1, "gap": None},
    )
    bus.publish(event())
    assert [number for number, _ in peer.take()] == [2]
    assert reply(EventService(bus), "unsubscribe", peer, subscription="s9") == (200, {"ended": 1})
    bus.publish(event())
    assert peer.sent == []


def test_a_gap_is_in_the_answer(bus):
    for _ in range(60):
        bus.publish(event())
    _, told = reply(EventService(bus), "subscribe", since=1, epoch="e1")
    assert told["gap"] == {"reason": "no longer held", "first": 2, "last": 10}


def test_a_peer_that_gets_one_answer_for_each_command_may_only_read(bus):
    peer = FakePeer(dialect=Dialect.SEED)
    status, told = reply(EventService(bus), "subscribe", peer)
    assert status == 400
    assert "read" in told["error"]
    bus.publish(event())
    status, told = reply(EventService(bus), "read", peer)
    assert status == 200
    assert [one["uuid"] for one in told["events"]] == ["j1"]


def test_read_goes_on_where_it_ended_and_shows_only_ones_own(bus):
    for number in range(30):
        bus.publish(event(uuid=f"j{number}", holder=BERT.holder if number % 3 == 0 else "uid:1000"))
    service, seen, at = EventService(bus), [], 0
    while True:
        _, told = reply(service, "read", since=at, limit=7)
        seen += [one["uuid"] for one in told["events"]]
        if told["next"] == told["sequence"]:
            break
        assert told["next"] > at
        at = told["next"]
    assert seen == [f"j{number}" for number in range(30) if number % 3]
    _, told = reply(service, "read", FakePeer(principal=OWNER), limit=READ_MAX)
    assert len(told["events"]) == 30
    assert told["gap"] is None


@for_each(
    "wrong",
    [
        {"since": "1"},
        {"since": 2},
        {"since": -1},
        {"since": True},
        {"since": 2**70},
        {"kinds": 5},
        {"kinds": ["nonsense"]},
        {"service": ["x"]},
        {"epoch": 1},
        {"uuid": {}},
    ],
)
def test_wrong_arguments_are_told(bus, wrong):
    for task in ("subscribe", "read"):
        status, told = reply(EventService(bus), task, **wrong)
        assert status == 400
        assert next(iter(wrong)).rstrip("s") in told["error"]


def test_show_tells_ones_own_and_an_owner_everybodys(bus):
    service = EventService(bus)
    mine, other = FakePeer("mine"), FakePeer("other", principal=BERT)
    reply(service, "subscribe", mine, "s1", service="dummy")
    reply(service, "subscribe", other, "s2")
    _, told = reply(service, "show", mine)
    assert [(one["subscription"], one["service"]) for one in told] == [("s1", "dummy")]
    _, told = reply(service, "show", FakePeer(principal=OWNER))
    assert {one["peer"] for one in told} == {"mine", "other"}
