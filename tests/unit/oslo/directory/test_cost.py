"""What a change costs: so much for each record of the state that changes, and nothing for what others offer.

Bytecodes and hashes are counted, not seconds.
"""

import itertools

import pytest

from broker.oslo.directory import peer, wire
from broker.oslo.directory.peer import Announcer
from broker.oslo.directory.server import DirectoryServer
from broker.oslo.directory.state import LOCAL_OWNER, Replica
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.listeners import NO_QUEUE, Listeners
from broker.oslo.records import Opening, Record
from tests.unit.oslo.directory.clouds import state, states, turn_until, welcome
from tests.unit.routing.operations import bytecodes

FEW, MANY = 100, 10_000
STEPS_MAX = 100
"""Bytecodes, hashes and comparisons of names, for each record of the state that changes."""


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


def before_and_after(count):
    """One goes and one comes."""
    before = records(count)
    return state(records=before), state(version=2, records=[*before[1:], record(count)])


def others(count):
    return states(*(state(f"n{at + 2}", records=records(count)) for at in range(3)), complete=True)


def an_announcer(count, _others, reactor, tmp_path):
    one = Announcer(reactor, NodeConfig(str(tmp_path), node="n1"), "call", "", "", incarnation=1)
    one.add(records(count))
    one._announce()
    gone, new = record(count // 2), record(count)

    def work():
        one.add([new])
        one.remove([gone])
        one._announce()

    return work


def an_announcer_that_is_full(count, _others, reactor, tmp_path):
    one = Announcer(reactor, NodeConfig(str(tmp_path), node="n1"), "call", "", "", incarnation=1)
    long = [Record("x" * 250, f"{number:0250}", "s" * 250, "l" * 250) for number in range(4_000 + count)]
    one.add([*records(count), *long])
    one._announce()
    assert count < len(one.state.records) < count + 5_000

    def work():
        one.remove([record(0)])
        one._announce()

    return work


def a_replica_that_is_announced_to(count, other, _reactor, _tmp_path):
    one = Replica("", 5.0)
    before, after = before_and_after(count)
    for each in (before, *others(other).body.states):
        one.announce(LOCAL_OWNER, each, 0.0)
    return lambda: one.announce(LOCAL_OWNER, after, 1.0)


def a_replica_of_two_sources(count, other, _reactor, _tmp_path):
    one = Replica()
    before, after = before_and_after(count)
    for source in ("a", "b"):
        one.feed(source, welcome(), 0.0)
        one.feed(source, states(before), 0.0)
        one.feed(source, others(other), 0.0)
    return lambda: [one.feed(source, states(after), 1.0) for source in ("a", "b")]


def the_directory_of_a_node(count, other, reactor, tmp_path):
    one = DirectoryServer(reactor, NodeConfig(str(tmp_path), node="n1"))
    one.replica.feed("elsewhere", welcome(), 0.0)
    one.replica.feed("elsewhere", others(other), 0.0)
    before, after = before_and_after(count)

    def announce(each):
        one.replica.announce(LOCAL_OWNER, each, 0.0)
        one._pace.flush()

    announce(before)
    return lambda: announce(after)


KINDS = [
    an_announcer,
    an_announcer_that_is_full,
    a_replica_that_is_announced_to,
    a_replica_of_two_sources,
    the_directory_of_a_node,
]


def cost_of(work):
    Name.looks = 0
    return bytecodes(work) + Name.looks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_change_costs_so_much_for_each_record_of_its_state(kind, reactor, tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "encode", lambda _kind, _body: (b"", b""))  # it knows no names of ours
    few, many = (cost_of(kind(count, FEW, reactor, tmp_path)) for count in (FEW, MANY))
    assert many - few <= STEPS_MAX * (MANY - FEW)


@pytest.mark.parametrize("kind", KINDS[2:], ids=lambda kind: kind.__name__)
def test_a_change_costs_nothing_for_what_others_offer(kind, reactor, tmp_path, monkeypatch):
    monkeypatch.setattr(wire, "encode", lambda _kind, _body: (b"", b""))
    few, many = (cost_of(kind(FEW, count, reactor, tmp_path)) for count in (FEW, 4_000))
    assert many <= 1.5 * few + 100


def test_the_end_of_a_listener_costs_nothing_for_others_of_its_topic():
    def listeners_of_one_topic(count):
        one = Listeners(NO_QUEUE, lambda _listener, _message: 0)
        mine = [Record("nova", "t", "s", Name(number)) for number in range(count)]
        for each in mine:
            one.open(Opening(each.listener, (each,)), None)
        return lambda: [one.close(each.listener) for each in mine[-3:]]

    few, many = (cost_of(listeners_of_one_topic(count)) for count in (FEW, MANY))
    assert many <= 1.5 * few + 100


@pytest.mark.parametrize("count", [1, 1000])
def test_listeners_that_open_one_after_another_cost_a_bounded_number_of_announcements(
    reactor, tmp_path, count
):
    """Each in a turn of its own; the first of a quiet pipeline is told at once."""
    one = Announcer(reactor, NodeConfig(str(tmp_path), node="n1"), "call", "", "")
    announced = []
    one.peer.announce = lambda said: announced.append(
        (reactor.now(), one._pace._not_before, len(said.records))
    )
    began = reactor.now()
    for number in range(count):
        one.add([record(number)])
        reactor.call_soon(lambda: None)
        reactor.turn()
        assert announced[0][-1] == 1
    turn_until(reactor, lambda: len(one.state.records) == count)
    took_s = reactor.now() - began
    assert len(announced) <= 1 + took_s / peer.GATHER_S
    for (told_at, not_before, size), (next_at, *_) in itertools.pairwise(announced):
        # what it goes by, for this test may stand still before it looks at the time itself
        assert not_before <= told_at + peer.GATHER_S + size * peer.GATHER_RECORD_S
        assert next_at >= not_before - 1e-6
    one.close()
