"""What a change costs does not depend on what else is offered: bytecodes and hashes are counted, not seconds."""

import pytest

from broker.oslo.directory import wire
from broker.oslo.directory.connection import StateAnnouncer
from broker.oslo.directory.link import Announcer
from broker.oslo.directory.registry import LOCAL_OWNER, StateRegistry
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.server import DirectoryServer
from broker.oslo.directory.wire import DirectoryKind, DirectoryMessage
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.local_listeners import LocalListeners
from broker.oslo.records import Offer, Record
from tests.unit.oslo.directory.clouds import changed, state, states, welcome
from tests.unit.routing.operations import bytecodes

FEW, MANY = 10, 10_000


class Name(str):
    """Counts how often it is hashed or compared: what C code does with records is no bytecode."""

    __slots__ = ()
    looks = 0

    def __hash__(self):
        Name.looks += 1
        return super().__hash__()

    def __eq__(self, other):
        Name.looks += 1
        return super().__eq__(other)


def record(number):
    return Record("nova", Name(f"t{number}"), "s", f"l{number}")


def records(count):
    return [record(number) for number in range(count)]


def news_of(count):
    """One comes and one goes."""
    return changed(1, 2, added=[record(count)], removed=[record(count // 2)])


class Heard:
    """Stands for a line to a directory that takes whatever it is told."""

    alive = True

    def send(self, _kind, _body):
        return True


def announcer(count, reactor, tmp_path):
    one = Announcer(reactor, NodeConfig(str(tmp_path), node="n1"), "call", "", "", incarnation=1)
    one.add(records(count))
    one._flush()
    one._speaker.line = Heard()
    one._speaker.put(one._offer)
    gone, new = record(count // 2), record(count)

    def work():
        one.add([new])
        one.remove([gone])
        one._flush()

    return work


def announcer_that_is_full(count, reactor, tmp_path):
    one = Announcer(reactor, NodeConfig(str(tmp_path), node="n1"), "call", "", "", incarnation=1)
    long = [
        Record("x" * 250, f"{number:0250}", "s" * 250, "l" * 250, None) for number in range(4_000 + count)
    ]
    one.add([*long, *records(count)])
    one._flush()

    def work():
        one.add([record(count)])
        one.remove([long[0]])
        one._flush()

    return work


def speaker(count, _reactor, _tmp_path):
    one = StateAnnouncer()
    one.line = Heard()
    offer = Offer(state(records=records(count)))
    one.put(offer)
    news = news_of(count).body

    def work():
        offer.apply(news)
        one.put(offer, news)

    return work


def registry(count, _reactor, _tmp_path):
    one = StateRegistry(5.0)
    one.announce(LOCAL_OWNER, state(records=records(count)), 0.0)
    news = news_of(count).body
    return lambda: one.change(LOCAL_OWNER, news, 1.0)


def replica_of_two_sources(count, _reactor, _tmp_path):
    one = Replica()
    for source in ("a", "b"):
        one.feed(source, welcome(), 0.0)
        one.feed(source, states(state(records=records(count)), complete=True), 0.0)
    news = news_of(count)
    return lambda: [one.feed("a", news, 1.0), one.feed("b", news, 1.0)]


def directory_of_a_node(count, reactor, tmp_path):
    one = DirectoryServer(reactor, NodeConfig(str(tmp_path), node="n1"))
    one.replica.feed("here", welcome(), 0.0)
    for news in one.registry.announce(LOCAL_OWNER, state(records=records(count)), 0.0).news:
        one._publish(news)
    news = news_of(count).body

    def work():
        (told,) = one.registry.change(LOCAL_OWNER, news, 1.0).news
        one._publish(DirectoryMessage(DirectoryKind.CHANGED, told.body))

    return work


def listeners_of_one_topic(count, _reactor, _tmp_path):
    one = LocalListeners()
    mine = [Record("nova", "t", "s", Name(number)) for number in range(count)]
    for each in mine:
        one.add(each, None)
    return lambda: [one.remove(each.listener) for each in mine[-3:]]


KINDS = [
    announcer,
    announcer_that_is_full,
    speaker,
    registry,
    replica_of_two_sources,
    directory_of_a_node,
    listeners_of_one_topic,
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_cost_is_flat(kind, reactor, tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "encode", lambda _kind, _body: (b"", b""))  # it knows no names of ours
    costs = []
    for count in (FEW, MANY):
        work = kind(count, reactor, tmp_path)
        Name.looks = 0
        costs.append(bytecodes(work) + Name.looks)
        assert Name.looks, "records have been looked at"
    few, many = costs
    assert many <= 1.5 * few + 100
