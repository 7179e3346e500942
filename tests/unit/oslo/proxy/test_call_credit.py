"""Calls come within the credit of their listener, like casts; what finds none goes elsewhere, or its client is told."""

import msgspec
import pytest

from broker.oslo.frames import Flag, Kind, encode
from broker.oslo.names import Reason
from broker.oslo.proxy.listeners import CREDIT_MAX
from broker.oslo.records import to_json
from tests.live.oslo_raw import node_at
from tests.tables import for_each


def credit_of(node, listener, room="call"):
    """(credit, messages that it has not confirmed)"""
    for member in node.status(room)["members"]:
        if member["listener"] == listener:
            return member["credit"], member["unconfirmed"]
    raise AssertionError(f"{listener} is not here")


def opened(server, **changes):
    """Open a listener at t with other words about its credit; returns the answer and its id."""
    opening = msgspec.structs.replace(server.opening("t"), **changes)
    return server.ask(Kind.OPEN, to_json(opening)), opening.listener


def test_a_listener_has_no_more_than_its_credit_and_the_others_are_told(node):
    server, client = node.server(credit=3), node.client()
    listener = server.open("t")
    numbers = [client.call("t", b"%d" % number) for number in range(5)]
    answers = [client.get() for _ in range(2)]
    assert [(each.kind, each.reason, each.envelope.id) for each in answers] == [
        (Kind.REFUSED, Reason.BUSY, number) for number in numbers[3:]
    ]
    assert [server.get(give=False).body for _ in range(3)] == [b"0", b"1", b"2"]
    assert server.silent(50)
    assert credit_of(node, listener) == (0, 3)
    assert node.count("call", "refused_busy") == 2
    server.give(listener, 2)
    node.counted("call", "credits")
    for body in (b"5", b"6", b"7"):
        client.call("t", body)
    assert client.get().reason == Reason.BUSY
    assert [server.get(give=False).body for _ in range(2)] == [b"5", b"6"]


def test_an_answer_gives_no_credit(node):
    """The application has it, but says itself how much more it has room for."""
    server, client = node.server(credit=1), node.client()
    listener = server.open("t")
    client.call("t")
    server.reply(server.get(give=False))
    assert client.get().kind == Kind.REPLY
    assert credit_of(node, listener) == (0, 1)


def test_another_listener_of_the_address_is_chosen(node):
    one, other, client = node.server(credit=1), node.server(credit=2), node.client()
    chosen, second = one.open("t", server="a"), other.open("t", server="b")
    for body in (b"0", b"1", b"2"):
        client.call("t", body, listeners=(chosen,))
    assert (one.get(give=False).body, other.get(give=False).body) == (b"0", b"1")
    got = other.get(give=False)
    assert (got.body, got.listener) == (b"2", second)
    assert node.count("call", "chosen_again") == 2
    client.call("t", listeners=(chosen,))
    assert client.get().reason == Reason.BUSY


def test_who_names_a_server_has_that_one_or_none(node):
    one, other, client = node.server(credit=1), node.server(), node.client()
    one.open("t", server="a")
    other.open("t", server="b")
    for _ in range(2):
        client.call("t", server="a")
    assert client.get().reason == Reason.BUSY
    assert other.silent(50)


def test_casts_that_come_this_way_take_credit_too(node):
    server, client = node.server(credit=2), node.client()
    listener = server.open("t")
    client.call("t", b"call")
    client.cast("t", b"cast", flags=Flag.CONFIRM)
    client.cast("t", b"more", flags=Flag.CONFIRM)
    assert [(each.kind, each.reason) for each in (client.get(), client.get())] == [
        (Kind.TAKEN, 0),
        (Kind.REFUSED, Reason.BUSY),
    ]
    assert [server.get(give=False).body for _ in range(2)] == [b"call", b"cast"]
    assert credit_of(node, listener) == (0, 2)


def test_credit_is_of_bytes_too_and_what_makes_it_full_fits(node):
    server, client = node.server(), node.client()
    answer, listener = opened(server, credit=10, credit_bytes=1000)
    assert answer.kind == Kind.OPENED
    for size in (600, 3000, 1):
        client.call("t", bytes(size))
    assert client.get().reason == Reason.BUSY
    assert [len(server.get(give=False).body) for _ in range(2)] == [600, 3000]
    server.give(listener, 2)
    node.counted("call", "credits")
    client.call("t", b"again")
    assert server.get(give=False).body == b"again"


@pytest.mark.parametrize("room", ["call", "cast"])
def test_what_a_listener_has_of_a_proxy_before_takes_its_credit(node, room):
    server, client = node.server(room), node.client(room)
    _answer, listener = opened(server, credit=5, held=4, held_bytes=77)
    assert credit_of(node, listener, room) == (1, 4)
    send = client.call if room == "call" else client.cast
    for _ in range(2):
        send("t")
    server.get(give=False)
    assert server.silent(50)
    server.give(listener, 4)
    node.counted(room, "credits")
    waiting = 0 if room == "call" else 1
    assert credit_of(node, listener, room) == (4 - waiting, 1 + waiting)


def test_an_open_that_comes_again_changes_nothing(node):
    server, client = node.server(), node.client()
    _answer, listener = opened(server, credit=5)
    client.call("t")
    server.get(give=False)
    opening = msgspec.structs.replace(server.opening("t", listener=listener), credit=5, held=1, held_bytes=9)
    assert server.ask(Kind.OPEN, to_json(opening)).kind == Kind.OPENED
    assert credit_of(node, listener) == (4, 1)
    other = server.ask(Kind.OPEN, to_json(msgspec.structs.replace(opening, credit=6)))
    assert (other.kind, other.reason) == (Kind.REFUSED, Reason.MALFORMED)


@for_each(
    ("words", "expected"),
    [
        ({"credit": 0}, (0, 0)),
        ({"credit": 1 << 31}, (CREDIT_MAX, 0)),
        ({"credit": 9, "held": 1 << 40, "held_bytes": 1 << 62}, (-CREDIT_MAX, CREDIT_MAX + 9)),
        ({"credit": 9, "held": 0, "held_bytes": 1 << 62}, (9, 0)),
        ({"credit": 1 << 32}, None),
        ({"credit": -1}, None),
        ({"credit": 1, "credit_bytes": -1}, None),
        ({"credit": 1, "held": -1}, None),
        ({"credit": 1, "held_bytes": -1}, None),
        ({"credit": 1, "held": 1 << 80}, (-CREDIT_MAX, CREDIT_MAX + 1)),
    ],
)
def test_what_a_listener_says_of_itself_is_bounded(folder, words, expected):
    with node_at(folder) as node:
        server = node.server()
        answer, listener = opened(server, **words)
        if expected is None:
            assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.MALFORMED)
        else:
            assert (answer.kind, credit_of(node, listener)) == (Kind.OPENED, expected)


def test_nobody_gives_more_than_the_most_or_for_others(node):
    server, thief, client = node.server(credit=1), node.server(), node.client()
    listener = server.open("t")
    thief.open("u")
    thief.give(listener, 100)
    node.counted("call", "credit_unknown")
    assert credit_of(node, listener) == (1, 0)
    for _ in range(3):
        server.give(listener, 0xFFFFFFFF)
    node.counted("call", "credits", 3)
    assert credit_of(node, listener) == (CREDIT_MAX, 0)
    client.call("t")
    server.get(give=False)


def test_a_call_that_comes_again_needs_no_credit_and_a_cast_does(node):
    """Its listener may have had it already, and answers it all the same when it has no room for more."""
    server, client = node.server(credit=1), node.client()
    listener = server.open("t")
    client.call("t", b"first", listeners=(listener,))
    client.call("t", b"again", listeners=(listener,), flags=Flag.REPEATED)
    client.cast("t", b"cast", listeners=(listener,), flags=Flag.REPEATED | Flag.CONFIRM)
    assert client.get().reason == Reason.BUSY
    assert [server.get(give=False).body for _ in range(2)] == [b"first", b"again"]
    assert credit_of(node, listener) == (-1, 2)
    server.give(listener, 2)
    node.counted("call", "credits")
    assert credit_of(node, listener) == (1, 0)


def test_calls_that_come_again_are_bounded(node):
    server, client = node.server(credit=1), node.client()
    listener = server.open("t")

    def overdraw():
        node.proxy.pipelines["call"].listeners.get(listener).credit = -CREDIT_MAX

    node.within(overdraw)
    client.call("t", listeners=(listener,), flags=Flag.REPEATED)
    assert client.get().reason == Reason.BUSY


@pytest.mark.parametrize("reason", [Reason.NO_ROUTE, Reason.BUSY, Reason.ANSWERED])
def test_what_a_server_refuses_its_client_is_told_for_that_reason(node, reason):
    server, thief, client = node.server(), node.server(), node.client()
    server.open("t")
    thief.open("u")
    number = client.call("t")
    got = server.get()
    refusal = [encode(Kind.REFUSED, reason=reason, id=number), got.route, b""]
    thief.ctl.send_multipart(refusal)
    node.counted("call", "foreign_replies")
    server.ctl.send_multipart(refusal)
    answer = client.get()
    assert (answer.kind, answer.reason, answer.envelope.id) == (Kind.REFUSED, reason, number)
    assert client.silent(50)
    assert node.status("call")["pending"] == 0
    assert node.count("call", "refused_by_server") == 1
