"""What changes of a node cost the others: each is told at once where it is small, together where there is much."""

import itertools
from types import SimpleNamespace

import pytest

from broker.oslo.directory.server import FREE_RECORDS, LAST_S, RECORD_S, DirectoryServer
from broker.oslo.directory.state import LOCAL_OWNER
from broker.oslo.directory.wire import DirectoryKind, Hello
from broker.oslo.node import NodeConfig
from tests.unit.oslo.directory.clouds import Raw, announcer_of, config, open_room, rpc, state, turn_until


class Clock:
    """What a directory asks of a reactor; time goes on as the test says."""

    def __init__(self):
        self.now_s = 100.0
        self.due = []

    def now(self):
        return self.now_s

    def call_later(self, delay_s, call):
        self.due.append((self.now_s + delay_s, call))
        return SimpleNamespace(cancel=lambda: None)

    def go_on(self, seconds):
        end_s = self.now_s + seconds
        while self.due and min(self.due)[0] <= end_s:
            self.due.sort()
            self.now_s, call = self.due.pop(0)
            call()
        self.now_s = end_s


class Directory:
    """One that nobody connects to; ``tell`` takes the states that other nodes would be told."""

    def __init__(self, clock, tell):
        self.clock = clock
        self._room = DirectoryServer(clock, NodeConfig("", node="n1"))
        self._tell = tell
        self._room.sockets = [SimpleNamespace(publish=lambda *_: None, completed=lambda: None), self]

    def publish(self, kind, body):
        if kind is DirectoryKind.STATES:
            self._tell(body.states)

    def put(self, state):
        self._room.replica.announce(LOCAL_OWNER, state, self.clock.now())

    def drop(self, state):
        self._room.replica.leave(LOCAL_OWNER, state.beat, self.clock.now())


def opened(clock, changes, count, every_s):
    """Listeners that open one after another, each at two pipelines."""
    records = [rpc(f"l{number}") for number in range(count)]
    for number in range(1, count + 1):
        for pipeline in ("call", "cast"):
            changes.put(state(records=records[:number], pipeline=pipeline, version=number))
            clock.go_on(0)
        clock.go_on(every_s)
    clock.go_on(LAST_S)


def test_a_thousand_listeners_that_open_one_after_another_cost_other_nodes_a_few_messages():
    """No change is kept back for longer than it takes to read, the first ones not at all."""
    clock, told = Clock(), []
    changes = Directory(clock, lambda states: told.append((clock.now_s, states)))
    opened(clock, changes, 1000, 0.005)
    assert told[0][0] == 100.0
    assert {each.version for each in told[-1][1]} == {1000}
    assert len(told) <= 2 * FREE_RECORDS + 10 + 5.0 / LAST_S
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(told)]
    assert max(gaps) <= LAST_S + 0.005
    clock.go_on(LAST_S)
    asked_s = clock.now_s
    changes.put(state(version=1001))
    clock.go_on(0)
    assert told[-1] == (asked_s, (state(version=1001),)), "after a quiet time the first leaves at once"


def test_of_fifty_that_open_slowly_other_nodes_are_told_far_fewer_than_a_hundred_states():
    clock, told = Clock(), []
    changes = Directory(clock, told.extend)
    opened(clock, changes, 50, 0.1)
    assert {each.version for each in told[-2:]} == {50}
    assert len(told) <= 50


def test_a_node_with_few_listeners_tells_each_at_once():
    clock, told = Clock(), []
    changes = Directory(clock, told.append)
    opened(clock, changes, FREE_RECORDS, 0.005)
    assert len(told) == 2 * FREE_RECORDS
    assert clock.due == []


def test_what_has_ended_is_not_announced_any_more():
    clock, told = Clock(), []
    changes = Directory(clock, told.append)
    first = state(records=[rpc(f"l{number}") for number in range(100)], version=1)
    changes.put(first)
    clock.go_on(0)
    changes.put(state(version=2))
    changes.put(state(pipeline="cast"))
    changes.drop(state(version=2))
    clock.go_on(1.0)
    assert told == [(first,), (state(pipeline="cast"),)]


@pytest.mark.patient
def test_listeners_that_open_one_after_another_are_told_to_other_nodes_together(reactor, tmp_path, closing):
    """Each once its own node knows the one before, as ``listen`` does."""
    room = open_room(reactor, config(tmp_path, host="127.0.0.1", directory_port=0), closing)
    one = announcer_of(reactor, config(tmp_path), closing)
    raw = Raw(reactor, room.endpoint, closing)
    raw.tell(DirectoryKind.HELLO, Hello(want=True))
    raw.until(DirectoryKind.WELCOME)
    began_s = reactor.now()
    for number in range(100):
        one.add([rpc(f"l{number}")])
        turn_until(reactor, lambda number=number: room.replica.here.records == number + 1)
    took_s = reactor.now() - began_s
    turn_until(reactor, lambda: any(len(each.records) == 100 for said in heard(raw) for each in said))
    assert room.replica.leases["announced"] >= 100
    assert len(heard(raw)) <= FREE_RECORDS + 10 + took_s / (20 * RECORD_S)


def heard(raw):
    """What it was told of states, but for the snapshot of the others."""
    return [
        said.body.states
        for said in raw.read()
        if said.kind is DirectoryKind.STATES and any(each.pipeline == "call" for each in said.body.states)
    ]
