"""Turns among local listeners, and what is remembered of addresses."""

import secrets

import pytest

from broker.identity import Credentials, Role
from broker.oslo.frames import Kind, Malformed, decode, encode, new_id
from broker.oslo.node import NodeConfig, Rule
from broker.oslo.proxy import route_cache as module
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.local_listeners import LocalListeners
from broker.oslo.proxy.route_cache import RouteCache, stamped_for
from broker.oslo.proxy.topic_stats import TopicStats
from broker.oslo.records import Record
from tests.tables import for_each

WHO = Credentials(1000, int(Role.USER))


def record(topic="t", server="s", exchange="x"):
    return Record(exchange, topic, server, secrets.token_hex(12))


def some(count: int) -> tuple[LocalListeners[int], list[Record]]:
    locals_: LocalListeners[int] = LocalListeners()
    records = [record(server=f"s{number}") for number in range(count)]
    for number, each in enumerate(records):
        locals_.add(each, number)
    return locals_, records


def turns(locals_, count, server=""):
    return [locals_.turn("x", "t", server).target for _ in range(count)]


def test_turns_are_strict():
    locals_, _records = some(3)
    assert turns(locals_, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_whoever_leaves_does_not_cost_another_one_its_turn():
    locals_, records = some(3)
    assert turns(locals_, 2) == [0, 1]
    locals_.remove(records[0].listener)
    assert turns(locals_, 4) == [2, 1, 2, 1]
    locals_.remove(records[2].listener)
    assert turns(locals_, 2) == [1, 1]


def test_newcomers_take_their_turn():
    locals_, _records = some(2)
    assert turns(locals_, 1) == [0]
    locals_.add(record(server="s2"), 2)
    assert turns(locals_, 3) == [1, 2, 0]


def test_a_server_is_addressed_by_its_whole_name():
    locals_: LocalListeners[int] = LocalListeners()
    locals_.add(record(server="host@backend"), 1)
    assert locals_.turn("x", "t", "host") is None
    assert locals_.turn("x", "t", "host@backend").target == 1
    assert locals_.turn("y", "t", "") is None
    assert locals_.turn("x", "t2", "") is None


def test_a_chosen_listener_has_to_fit():
    locals_, records = some(2)
    one = records[1]
    assert locals_.fitting("x", "t", "", one.listener).target == 1
    assert locals_.fitting("x", "t", "s1", one.listener).target == 1
    assert locals_.fitting("x", "t", "s0", one.listener) is None
    assert locals_.fitting("x", "other", "", one.listener) is None
    assert locals_.fitting("y", "t", "", one.listener) is None
    assert locals_.fitting("x", "t", "", "unknown") is None


def test_nothing_is_left_of_those_who_left():
    locals_, records = some(3)
    ends = [locals_.remove(each.listener) for each in records]
    assert not any(each.alive for each in ends)
    assert locals_.remove(records[0].listener) is None
    assert (len(locals_), locals_.records(), locals_._rings) == (0, [], {})


def test_others_are_each_asked_once():
    locals_, _records = some(3)
    assert [local.target for local in locals_.others("x", "t", "", 8)] == [0, 1, 2]
    assert [local.target for local in locals_.others("x", "t", "", 2)] == [0, 1]
    assert list(locals_.others("x", "none", "", 8)) == []


def ways_of(locals_, **settings):
    return RouteCache(AccessControl(NodeConfig("/run/x", **settings), 1), locals_, TopicStats(lambda: 1.0))


def test_the_clients_choice_is_kept_as_it_is():
    locals_, records = some(2)
    ways = ways_of(locals_)
    head = encode(Kind.CALL, "x", "t", "", (records[1].listener,), userid=5, rolemask=1, id=new_id())
    route_to = ways.meet(WHO, head)
    local = ways.choose(route_to)
    assert (local.target, route_to.local) == (1, local)
    expected = decode(head)._replace(userid=1000, rolemask=2)
    assert decode(stamped_for(head, route_to, local)) == expected


def test_another_choice_is_written_into_the_address():
    locals_, records = some(1)
    ways = ways_of(locals_)
    for server in ("", "s0"):
        head = encode(Kind.CALL, "x", "t", server, ("f" * 24,), ttl_ms=5, word=6, id=new_id())
        route_to = ways.meet(WHO, head)
        local = ways.choose(route_to)
        assert route_to.local is None
        expected = decode(head)._replace(userid=1000, rolemask=2, listeners=(records[0].listener,))
        assert decode(stamped_for(head, route_to, local)) == expected


def test_several_chosen_listeners_are_no_choice():
    locals_, records = some(2)
    ways = ways_of(locals_)
    head = encode(Kind.CALL, "x", "t", "", [each.listener for each in records], id=new_id())
    route_to = ways.meet(WHO, head)
    assert decode(stamped_for(head, route_to, ways.choose(route_to))).listeners == (records[0].listener,)


def test_decisions_are_remembered_for_each_sender():
    ways = ways_of(LocalListeners(), rules=(Rule(users=(1000,), allow=False),))
    head = encode(Kind.CALL, "x", "t", id=new_id())
    assert not ways.meet(WHO, head).allowed
    assert ways.meet(Credentials(1001, 2), head).allowed
    assert len(ways.known) == 2


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "ROUTES_MAX", 10)
    ways = ways_of(LocalListeners())
    for number in range(25):
        ways.meet(WHO, encode(Kind.CALL, "x", f"t{number}", id=new_id()))
        assert len(ways.known) <= 10
    ways.known.clear()
    ways.meet(WHO, encode(Kind.CALL, "x", "t", "s" * 255, ["l" * 255] * 4, id=new_id()))
    assert not ways.known


@for_each("head", [b"", b"HGO", encode(Kind.CALL, id=bytes(16)), encode(Kind.CALL, "x", "", "s")])
def test_an_envelope_has_to_say_where(head):
    with pytest.raises(Malformed):
        ways_of(LocalListeners()).meet(WHO, head)
