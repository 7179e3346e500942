"""``events.service.broker`` as peers ask it."""

import pytest

from broker.nfp.management import EventBus
from broker.nfp.management.events import READ_MAX
from broker.nfp.names import EVENTS, Dialect
from tests.tables import for_each
from tests.unit.nfp.management.fakes import BERT, OWNER, FakeBroker, FakePeer, ask, event


@pytest.fixture
def broker():
    broker = FakeBroker()
    broker.event_bus = EventBus("e1", held_max=50)
    return broker


def reply(broker, task, peer=None, ident="u1", /, **kwargs):
    return ask(broker, EVENTS, task, peer, ident, **kwargs)


def test_subscribe_answers_where_it_begins_and_delivers(broker):
    peer = FakePeer()
    broker.event_bus.publish(event())
    status, told = reply(broker, "subscribe", peer, "s9", kinds="progress, finished")
    assert (status, told) == (
        200,
        {"subscription": "s9", "since": 1, "epoch": "e1", "sequence": 1, "gap": None},
    )
    broker.event_bus.publish(event())
    assert [number for number, _ in peer.take()] == [2]
    assert reply(broker, "unsubscribe", peer, subscription="s9") == (200, {"ended": 1})
    broker.event_bus.publish(event())
    assert peer.sent == []


def test_a_subscription_brings_what_comes_and_the_rest_is_read(broker):
    for _ in range(60):
        broker.event_bus.publish(event())
    peer, gone = FakePeer(), {"reason": "no longer held", "first": 2, "last": 10}
    _, told = reply(broker, "subscribe", peer, since=1, epoch="e1")
    assert (told["since"], told["gap"]) == (60, gone)
    _, told = reply(broker, "subscribe", peer, since=58, epoch="e1")
    assert (told["since"], told["gap"]["first"], told["gap"]["last"]) == (60, 59, 60)
    assert reply(broker, "subscribe", peer, since=60)[1]["gap"] is None
    assert peer.sent == []
    _, told = reply(broker, "read", since=1, epoch="e1", limit=1)
    assert (told["events"][0]["sequence"], told["next"], told["gap"]) == (11, 11, gone)
    _, told = reply(broker, "read", since=500, epoch="e0", limit=READ_MAX)
    assert (len(told["events"]), told["gap"]["first"], told["gap"]["last"]) == (50, 0, 0)


def test_a_peer_that_gets_one_answer_for_each_command_may_only_read(broker):
    peer = FakePeer(dialect=Dialect.SEED)
    status, told = reply(broker, "subscribe", peer)
    assert status == 400
    assert "read" in told["error"]
    broker.event_bus.publish(event())
    status, told = reply(broker, "read", peer)
    assert status == 200
    assert [one["uuid"] for one in told["events"]] == ["j1"]


def test_read_goes_on_where_it_ended_and_shows_only_ones_own(broker):
    for number in range(30):
        broker.event_bus.publish(
            event(uuid=f"j{number}", holder=BERT.holder if number % 3 == 0 else "uid:1000")
        )
    seen, at = [], 0
    while True:
        _, told = reply(broker, "read", since=at, limit=7)
        seen += [one["uuid"] for one in told["events"]]
        if told["next"] == told["sequence"]:
            break
        assert told["next"] > at
        at = told["next"]
    assert seen == [f"j{number}" for number in range(30) if number % 3]
    _, told = reply(broker, "read", FakePeer(principal=OWNER), limit=READ_MAX)
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
        {"uuid": "x" * 256},
    ],
)
def test_wrong_arguments_are_told(broker, wrong):
    for task in ("subscribe", "read"):
        status, told = reply(broker, task, **wrong)
        assert status == 400
        assert next(iter(wrong)).rstrip("s") in told["error"]


def test_show_tells_ones_own_and_an_owner_everybodys(broker):
    mine, other = FakePeer("mine"), FakePeer("other", principal=BERT)
    reply(broker, "subscribe", mine, "s1", service="dummy")
    reply(broker, "subscribe", other, "s2")
    _, told = reply(broker, "show", mine)
    assert [(one["subscription"], one["service"]) for one in told] == [("s1", "dummy")]
    _, told = reply(broker, "show", FakePeer(principal=OWNER))
    assert {one["peer"] for one in told} == {"mine", "other"}
