"""Listeners of a node: turns, windows, who asks for a pause; and what is remembered of addresses."""

import secrets

import pytest

from broker.identity import Credentials, Role
from broker.oslo.frames import Kind, Malformed, decode, encode, new_id
from broker.oslo.node import NodeConfig, Rule
from broker.oslo.proxy import direct
from broker.oslo.proxy import listeners as pausing
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.direct import RouteCache, stamped_for
from broker.oslo.proxy.listeners import (
    LOOK_S,
    PAUSE_MAX_S,
    ROOM,
    STILL_S,
    Listener,
    Listeners,
    WaitingMessage,
)
from broker.oslo.proxy.pipeline import TopicStats
from broker.oslo.records import Opening, Record
from tests.tables import for_each

WHO = Credentials(1000, int(Role.USER))


LIMITS = (10, 1000)
GROUP = ("x", "t", "", None)


def opening(topic="t", server="s", exchange="x", listener=None, **credit):
    listener = listener or secrets.token_hex(12)
    return Opening(listener, (Record(exchange, topic, server, listener),), **credit)


def table(send=lambda _listener, _message: 0):
    return Listeners(LIMITS, send)


def some(count: int) -> tuple[Listeners, list[Record]]:
    listeners = table()
    records = [listeners.open(opening(server=f"s{number}"), number).records[0] for number in range(count)]
    return listeners, records


def turns(listeners, count, server=""):
    return [listeners.turn(("x", "t", server, None)).owner for _ in range(count)]


def test_turns_are_strict():
    listeners, _records = some(3)
    assert turns(listeners, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_whoever_leaves_does_not_cost_another_one_its_turn():
    listeners, records = some(3)
    assert turns(listeners, 2) == [0, 1]
    listeners.close(records[0].listener)
    assert turns(listeners, 4) == [2, 1, 2, 1]
    listeners.close(records[2].listener)
    assert turns(listeners, 2) == [1, 1]


def test_newcomers_take_their_turn():
    listeners, _records = some(2)
    assert turns(listeners, 1) == [0]
    listeners.open(opening(server="s2"), 2)
    assert turns(listeners, 3) == [1, 2, 0]


def test_a_server_is_addressed_by_its_whole_name():
    listeners = table()
    listeners.open(opening(server="host@backend"), 1)
    assert listeners.turn(("x", "t", "host", None)) is None
    assert listeners.turn(("x", "t", "host@backend", None)).owner == 1
    assert listeners.turn(("y", "t", "", None)) is None
    assert listeners.turn(("x", "t2", "", None)) is None


def test_a_chosen_listener_has_to_fit():
    listeners, records = some(2)
    one = records[1]
    assert listeners.fitting("x", "t", "", one.listener).owner == 1
    assert listeners.fitting("x", "t", "s1", one.listener).owner == 1
    assert listeners.fitting("x", "t", "s0", one.listener) is None
    assert listeners.fitting("x", "other", "", one.listener) is None
    assert listeners.fitting("y", "t", "", one.listener) is None
    assert listeners.fitting("x", "t", "", "unknown") is None


def test_nothing_is_left_of_those_who_left():
    listeners, records = some(3)
    ends = [listeners.close(each.listener) for each in records]
    assert not any(each.alive for each in ends)
    assert listeners.close(records[0].listener) is None
    assert (len(listeners), list(listeners), listeners._rings, listeners._keys) == (0, [], {}, {})


def test_each_has_one_turn():
    listeners, _records = some(3)
    assert [listener.owner for listener in listeners.turns(GROUP, 8)] == [0, 1, 2]
    assert [listener.owner for listener in listeners.turns(GROUP, 2)] == [0, 1]
    assert [listener.owner for listener in listeners.turns(GROUP)] == [2, 0, 1]
    assert list(listeners.turns(("x", "none", "", None))) == []


def test_a_queue_resumes_with_what_its_listener_has():
    queue = Listener(opening(credit=10, credit_bytes=100, held=3, held_bytes=50), None, LIMITS)
    assert (queue.credit, list(queue.flying), queue.flying_bytes) == (7, [16, 17, 17], 50)
    queue.confirm(3)
    assert (queue.credit, queue.flying_bytes) == (10, 0)


def test_who_has_more_than_its_window_gets_no_more_credit_for_that_by_a_restart():
    """Calls that came again needed none: it has them beside what fills the window."""
    queue = Listener(opening(credit=10, credit_bytes=100, held=13, held_bytes=130), None, LIMITS)
    assert (queue.has_credit, len(queue.flying), queue.flying_bytes) == (False, 13, 130)
    queue.confirm(3)
    assert not queue.has_credit
    queue.confirm(10)
    assert (queue.credit, queue.flying_bytes) == (10, 0)


def test_what_is_dropped_on_its_way_takes_no_credit_and_is_no_credit_twice():
    queue = Listener(opening(credit=3), None, LIMITS)
    for size in (5, 6, 7):
        queue.fly(size)
    queue.forget(6)
    assert (queue.credit, list(queue.flying), queue.flying_bytes) == (1, [5, 7], 12)
    queue.confirm(2)
    queue.forget(7)
    assert (queue.credit, queue.flying_bytes) == (3, 0)


# ---------------------------------------------------------------- pauses


class Crowd:
    """Two listeners whose processes take nothing, with queues of ten messages."""

    def __init__(self):
        self.listeners = table()
        self.one, self.two = (self.listeners.open(opening(credit=0), name) for name in "ab")

    def fill(self, listener, messages=9):
        while len(listener.queue) < messages:
            assert self.listeners.offer(listener, WaitingMessage(b"", b"", 1))

    def empty(self, listener, messages):
        while len(listener.queue) > messages:
            listener.next_waiting()
        self.listeners.confirm(listener, 0)

    def look(self, seconds):
        """Looks for so long; what ended meanwhile."""
        return [name for _ in range(round(seconds / LOOK_S)) for name in self.listeners.look()]

    @property
    def asking(self):
        return self.listeners.asking


def test_what_finds_a_queue_full_of_what_is_out_of_date_is_sent_at_once():
    sent, over = [], set()

    def send(_listener, message):
        sent.append(message.id)
        return 1

    listeners = Listeners(LIMITS, send, lambda message: message.id in over)
    listener = listeners.open(opening(credit=5, credit_bytes=100), "owner")
    assert listeners.offer(listener, WaitingMessage(b"", b"", 60, id=b"first"))
    assert listeners.offer(listener, WaitingMessage(b"", b"", 1000, id=b"large"))
    over.add(b"large")
    assert listeners.offer(listener, WaitingMessage(b"", b"", 1, id=b"small"))
    assert sent == [b"first", b"small"]
    assert not listener.queue
    assert not listeners.asking


def test_a_queue_that_moves_asks_for_a_pause_until_it_has_room():
    crowd = Crowd()
    crowd.fill(crowd.one, 8)
    assert not crowd.asking
    crowd.fill(crowd.one)
    assert crowd.asking == {crowd.one}
    crowd.empty(crowd.one, 9)
    assert crowd.asking, "that is not room yet"
    crowd.empty(crowd.one, int(ROOM * LIMITS[0]))
    assert not crowd.asking
    assert crowd.look(1) == []


def test_room_that_nobody_tells_of_is_found():
    crowd = Crowd()
    crowd.fill(crowd.one)
    crowd.one.queue.clear()
    assert crowd.look(LOOK_S) == []
    assert not crowd.asking


def test_a_pause_ends_soon_after_its_queue_stands_still():
    crowd = Crowd()
    crowd.fill(crowd.one)
    assert crowd.look(STILL_S) == []
    assert crowd.asking
    assert crowd.look(2 * LOOK_S) == ["pauses_still"]
    assert not crowd.asking
    crowd.fill(crowd.one, 10)
    assert not crowd.asking
    crowd.listeners.confirm(crowd.one, 1)
    crowd.empty(crowd.one, 9)
    crowd.fill(crowd.one, 10)
    assert crowd.asking, "it moves again"


def test_one_that_is_too_slow_asks_for_a_while_and_not_again_before_it_had_room():
    crowd = Crowd()
    crowd.fill(crowd.one)
    for _ in range(int(PAUSE_MAX_S / 0.2)):
        assert crowd.look(0.2) == []
        crowd.listeners.confirm(crowd.one, 1)
        assert crowd.asking
    assert crowd.look(0.2) == ["pauses_slow"]
    crowd.listeners.confirm(crowd.one, 1)
    crowd.fill(crowd.one, 10)
    assert not crowd.asking
    crowd.empty(crowd.one, 5)
    crowd.fill(crowd.one)
    assert crowd.asking


def test_all_that_ask_for_it_have_to_be_content():
    crowd = Crowd()
    crowd.fill(crowd.one)
    crowd.fill(crowd.two)
    crowd.empty(crowd.one, 0)
    assert crowd.asking == {crowd.two}
    crowd.listeners.close(crowd.two.id)
    assert not crowd.asking


def test_how_long_somebody_is_waited_for_is_read_when_it_is_needed(monkeypatch):
    crowd = Crowd()
    monkeypatch.setattr(pausing, "STILL_S", 600.0)
    crowd.fill(crowd.one)
    assert crowd.look(1) == []
    monkeypatch.setattr(pausing, "STILL_S", 0.1)
    assert crowd.look(LOOK_S) == ["pauses_still"]


# ---------------------------------------------------------------- addresses


def ways_of(listeners, **settings):
    return RouteCache(AccessControl(NodeConfig("/run/x", **settings), 1), listeners, TopicStats(lambda: 1.0))


def test_the_clients_choice_is_kept_as_it_is():
    listeners, records = some(2)
    ways = ways_of(listeners)
    head = encode(Kind.CALL, "x", "t", "", (records[1].listener,), userid=5, rolemask=1, id=new_id())
    route_to = ways.meet(WHO, head)
    local = ways.choose(route_to)
    assert (local.owner, route_to.local) == (1, local)
    expected = decode(head)._replace(userid=1000, rolemask=2)
    assert decode(stamped_for(head, route_to, local)) == expected


def test_another_choice_is_written_into_the_address():
    listeners, records = some(1)
    ways = ways_of(listeners)
    for server in ("", "s0"):
        head = encode(Kind.CALL, "x", "t", server, ("f" * 24,), ttl_ms=5, word=6, id=new_id())
        route_to = ways.meet(WHO, head)
        local = ways.choose(route_to)
        assert route_to.local is None
        expected = decode(head)._replace(userid=1000, rolemask=2, listeners=(records[0].listener,))
        assert decode(stamped_for(head, route_to, local)) == expected


def test_several_chosen_listeners_are_no_choice():
    listeners, records = some(2)
    ways = ways_of(listeners)
    head = encode(Kind.CALL, "x", "t", "", [each.listener for each in records], id=new_id())
    route_to = ways.meet(WHO, head)
    assert decode(stamped_for(head, route_to, ways.choose(route_to))).listeners == (records[0].listener,)


def test_decisions_are_remembered_for_each_sender():
    ways = ways_of(table(), rules=(Rule(users=(1000,), allow=False),))
    head = encode(Kind.CALL, "x", "t", id=new_id())
    assert not ways.meet(WHO, head).allowed
    assert ways.meet(Credentials(1001, 2), head).allowed
    assert len(ways.known) == 2


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(direct, "ROUTES_MAX", 10)
    ways = ways_of(table())
    for number in range(25):
        ways.meet(WHO, encode(Kind.CALL, "x", f"t{number}", id=new_id()))
        assert len(ways.known) <= 10
    ways.known.clear()
    ways.meet(WHO, encode(Kind.CALL, "x", "t", "s" * 255, ["l" * 255] * 4, id=new_id()))
    assert not ways.known


@for_each("head", [b"", b"HGO", encode(Kind.CALL, id=bytes(16)), encode(Kind.CALL, "x", "", "s")])
def test_an_envelope_has_to_say_where(head):
    with pytest.raises(Malformed):
        ways_of(table()).meet(WHO, head)
