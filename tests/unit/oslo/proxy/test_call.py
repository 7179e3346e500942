"""The pipeline of calls over real sockets: clients and servers are raw."""

import time

import msgspec
import pytest
import zmq

from broker.identity import USERID_UNKNOWN, Role
from broker.oslo.frames import Flag, Kind, due_of, encode, new_id
from broker.oslo.names import Reason
from broker.oslo.node import Rule
from broker.oslo.proxy import call
from broker.oslo.records import to_json
from tests.live.oslo_raw import Answer, child_of, node_at, until
from tests.live.oslo_wire import hear
from tests.tables import for_each

BIG = bytes(64 << 10)
NARROW = {"queue_msgs": 5, "send_msgs": 4, "lease_s": 60.0}
"""A node that soon keeps itself what a server does not read."""
BELOW_MSGS = 100
"""More messages of 64 KiB than libzmq and the kernel hold there for one peer that does not read."""
STEADY = 5
"""Refusals in a row after which a queue is taken for full."""


@pytest.mark.parametrize("tcp", [False, True])
def test_a_call_goes_there_and_back(node, tcp):
    server, client = node.server(), node.client(tcp=tcp)
    listener = server.open("t")
    number = client.call("t", b"ping", listeners=(listener,), ttl_ms=5000, word=7, flags=Flag.MANDATORY)
    got = server.get()
    assert (got.body, got.envelope.id, got.envelope.word) == (b"ping", number, 7)
    assert got.envelope.flags == Flag.MANDATORY | Flag.DUE
    assert 0 < due_of(got.envelope, time.monotonic()) - time.monotonic() <= 5.0
    assert (got.envelope.exchange, got.envelope.topic, got.listener) == ("x", "t", listener)
    server.reply(got, b"", Kind.BEAT)
    server.reply(got, b"pong")
    beat, answer = client.get(), client.get()
    assert (beat.kind, beat.envelope.id) == (Kind.BEAT, number)
    assert (answer.kind, answer.envelope.id, answer.rest) == (Kind.REPLY, number, [b"pong"])
    assert node.status("call")["pending"] == 0


@pytest.mark.parametrize("tcp", [False, True])
def test_senders_are_stamped_whatever_they_say(node, tcp):
    server, client = node.server(), node.client(tcp=tcp)
    server.open("t")
    client.call("t", userid=0, rolemask=0xFFFFFFFF)
    envelope = server.get().envelope
    if tcp:
        assert (envelope.userid, envelope.rolemask) == (USERID_UNKNOWN, Role.USER)
    else:
        assert envelope.rolemask == Role.OWNER | Role.USER | Role.LOCAL


def test_servers_take_turns(node):
    servers = [node.server() for _ in range(3)]
    listeners = [server.open("t", server=f"s{number}") for number, server in enumerate(servers)]
    client = node.client()
    for number in range(6):
        client.call("t", b"%d" % number)
    for number in range(6):
        got = servers[number % 3].get()
        assert (got.body, got.listener) == (b"%d" % number, listeners[number % 3])


def test_a_server_is_called_by_its_name(node):
    servers = [node.server() for _ in range(3)]
    names = ["host", "host@backend", "host@backend2"]
    for server, name in zip(servers, names, strict=True):
        server.open("t", server=name)
    client = node.client()
    for _ in range(2):
        client.call("t", server="host@backend")
        assert servers[1].get().envelope.server == "host@backend"
    client.call("t", server="hos")
    assert client.get().reason == Reason.NO_ROUTE
    assert servers[0].silent()
    assert servers[2].silent()


def test_exchanges_and_topics_are_exact(node):
    server = node.server()
    server.open("topic", exchange="one")
    client = node.client()
    for exchange, topic in (("two", "topic"), ("one", "top"), ("one", "topic.x"), ("", "topic")):
        number = client.call(topic, exchange=exchange)
        answer = client.get()
        assert (answer.kind, answer.reason, answer.envelope.id) == (Kind.REFUSED, Reason.NO_ROUTE, number)
    assert server.silent()


def test_a_choice_that_does_not_hold_is_made_again(node):
    server, other, client = node.server(), node.server(), node.client()
    gone = server.open("t", server="a")
    other_listener = other.open("t", server="b")
    client.call("t", b"1", listeners=(gone,))
    assert server.get().body == b"1"
    server.close(gone)
    client.call("t", b"2", listeners=(gone,))
    got = other.get()
    assert (got.body, got.listener) == (b"2", other_listener)
    client.call("t", b"3", server="a", listeners=(gone,))
    assert client.get().reason == Reason.NO_ROUTE


def test_after_closed_nothing_comes(node):
    server, client = node.server(), node.client()
    listener = server.open("t")
    for _ in range(50):
        client.call("t", listeners=(listener,))
    assert server.close(listener).kind == Kind.CLOSED
    client.call("t", listeners=(listener,))
    assert client.get().reason == Reason.NO_ROUTE
    assert server.silent()


def test_only_the_server_that_was_asked_may_answer(node):
    server, thief, client = node.server(), node.server(), node.client()
    server.open("t")
    thief.open("u")
    client.call("t")
    got = server.get()
    thief.reply(got, b"stolen")
    thief.reply(got, b"", Kind.BEAT)
    node.counted("call", "foreign_replies", 2)
    assert client.silent(50)
    server.reply(got, b"mine")
    assert client.get().rest == [b"mine"]
    server.reply(got, b"again")
    node.counted("call", "late_replies")
    assert client.silent(50)


def test_an_answer_says_who_gave_it(node):
    server, client = node.server(), node.client(tcp=True)
    server.open("t")
    client.call("t")
    got = server.get()
    forged = encode(Kind.REPLY, id=got.envelope.id, userid=4711, rolemask=0xFFFFFFFF)
    server.ctl.send_multipart([forged, got.route, b"r"])
    answer = client.get().envelope
    assert (answer.userid, answer.rolemask) != (4711, 0xFFFFFFFF)
    assert answer.rolemask == Role.OWNER | Role.USER | Role.LOCAL


def test_clients_are_kept_apart(node):
    """Two clients with one and the same id of a message, and an identity that looks like another's route."""
    server = node.server()
    server.open("t")
    one, two = node.client(routing_id=b"a"), node.client(routing_id=b"ab")
    number = new_id()
    one.call("t", b"1", id=number)
    two.call("t", b"2", id=number)
    for _ in range(2):
        got = server.get()
        server.reply(got, got.body)
    assert one.get().rest == [b"1"]
    assert two.get().rest == [b"2"]


def test_an_id_is_used_once_at_a_time(node):
    server, client = node.server(), node.client()
    server.open("t")
    number = client.call("t", b"1")
    got = server.get()
    client.call("t", b"2", id=number)
    answer = client.get()
    assert (answer.kind, answer.reason, answer.envelope.id) == (Kind.REFUSED, Reason.MALFORMED, number)
    assert server.silent(50)
    server.reply(got)
    assert client.get().kind == Kind.REPLY
    client.call("t", b"3", id=number)
    assert server.get().body == b"3"


def test_rules_apply_to_who_sends(run_node):
    node = run_node(rules=(Rule(topics=("closed",), action="send", allow=False),))
    server, client = node.server(), node.client()
    server.open("closed")
    for _ in range(2):
        client.call("closed")
        answer = client.get()
        assert (answer.kind, answer.reason, answer.rest) == (Kind.REFUSED, Reason.DENIED, [b"not allowed"])
    assert server.silent(50)
    assert node.count("call", "refused_denied") == 2


def test_nobody_unlisted_comes_in_by_tcp(run_node):
    node = run_node(unlisted=0)
    server = node.server()
    server.open("t")
    client = node.client(tcp=True)
    client.sock.poll(50, zmq.POLLOUT)
    assert client.unheard("t")
    until(lambda: node.status("call")["connections_denied"], "the stranger to be counted")
    assert server.silent(50)
    node.client().call("t")
    server.get()


def test_calls_without_limit_are_limited_in_number_and_leave_room_for_others(run_node):
    node = run_node(pending_max=8)
    server, client, other = node.server(), node.client(), node.client()
    server.open("t")
    for _ in range(5):
        client.call("t")
    answer = client.get()
    assert answer.reason == Reason.BUSY
    assert answer.rest == [b"4 calls of this client and 4 of all wait for replies here, of 8 at most"]
    assert node.count("call", "pending_full") == 1
    got = [server.get() for _ in range(4)]
    other.call("t")
    server.reply(server.get(), b"to the other")
    assert other.get().rest == [b"to the other"]
    server.reply(got[0])
    assert client.get().kind == Kind.REPLY
    client.call("t")
    server.get()


@pytest.mark.parametrize("tcp", [False, True])
def test_calls_of_clients_that_are_gone_are_forgotten(run_node, monkeypatch, tcp):
    monkeypatch.setattr(call, "PROBE_S", 0.1)
    monkeypatch.setattr(call, "SWEEP_S", 0.05)
    node = run_node(pending_max=8)
    server, client, stays = node.server(), node.client(tcp=tcp), node.client(tcp=tcp)
    server.open("t")
    for each, body in ((client, b"1"), (client, b"2"), (stays, b"3")):
        each.call("t", body)
    got = sorted((server.get() for _ in range(3)), key=lambda each: each.body)
    client.sock.close(0)
    node.counted("call", "abandoned", 2)
    assert node.status("call")["pending"] == 1
    server.reply(got[0])
    node.counted("call", "late_replies")
    server.reply(got[2])
    assert stays.get().kind == Kind.REPLY


def test_calls_that_end_soon_are_not_asked_about(run_node, monkeypatch):
    monkeypatch.setattr(call, "PROBE_S", 0.0)
    monkeypatch.setattr(call, "SWEEP_S", 0.02)
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t", ttl_ms=60_000)
    got = server.get()
    assert client.silent()
    server.reply(got)
    assert client.get().kind == Kind.REPLY


@pytest.mark.patient
def test_calls_nobody_waits_for_are_forgotten(run_node, monkeypatch):
    monkeypatch.setattr(call, "SWEEP_S", 0.05)
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t", ttl_ms=1)
    got = server.get()
    node.counted("call", "expired")
    assert node.status("call")["pending"] == 0
    server.reply(got)
    node.counted("call", "late_replies")


def jam(node, client, **more):
    """Call a server that does not read until its queue of 5 is full and stays so; returns how many were accepted."""
    came = node.status("call")["entries"][1]["in"]
    refused = steady = 0
    for sent in range(1, BELOW_MSGS):
        client.call("t", BIG, **more)
        until(lambda sent=sent: node.status("call")["entries"][1]["in"] == came + sent, "the call to come in")
        count = node.count("call", "refused_busy")
        steady = steady + 1 if count > refused else 0
        refused = count
        if steady:
            time.sleep(0.02)  # for libzmq to hand on what it can
        if steady == STEADY:
            break
    answers = [client.get() for _ in range(refused)]
    assert {(answer.kind, answer.reason) for answer in answers} == {(Kind.REFUSED, Reason.BUSY)}
    assert node.status("call")["control"]["waiting"] == 5
    return sent - refused


def test_a_server_that_does_not_read_costs_only_its_own_queue(run_node):
    node = run_node(**NARROW)
    frozen, server, client = node.server(rcvhwm=1), node.server(), node.client()
    frozen.open("t", server="frozen")
    server.open("t", server="fine")
    assert jam(node, client, server="frozen") > 5
    other = node.client(tcp=True)
    other.call("t", b"hello", server="fine")
    got = server.get()
    server.reply(got, b"world")
    assert other.get().rest == [b"world"]


def test_any_server_means_one_that_has_room(run_node):
    node = run_node(**NARROW)
    frozen, server, client = node.server(rcvhwm=1), node.server(), node.client()
    chosen = frozen.open("t", server="frozen")
    jam(node, client, server="frozen")
    listener = server.open("t", server="fine")
    client.call("t", b"now", listeners=(chosen,))
    got = server.get()
    assert (got.body, got.listener) == (b"now", listener)
    node.counted("call", "chosen_again")


def test_what_waits_goes_elsewhere_when_its_listener_ends(run_node, monkeypatch):
    monkeypatch.setattr(call, "ORPHAN_S", 0.1)
    node = run_node(**NARROW)
    client = node.client()
    with child_of(node, "call", "t", "frozen") as child:
        child.freeze()
        given = jam(node, client)  # for whoever is there: only the frozen one
        server = node.server()
        server.open("t", server="fine")
        child.kill()
        # of the five that waited libzmq may still take some while the connection ends, or all: those are not sent again
        fates = ("chosen_again", "orphaned")
        until(lambda: sum(node.count("call", fate) for fate in fates) == given, "the fate of all of them")
        again = node.count("call", "chosen_again")
        assert again <= 5
        assert [server.get().body for _ in range(again)] == [BIG] * again
        assert server.silent(50)


def test_what_waits_for_a_dead_server_is_refused_by_name(run_node, monkeypatch):
    monkeypatch.setattr(call, "ORPHAN_S", 0.1)
    node = run_node(**NARROW)
    client = node.client()
    with child_of(node, "call", "t", "frozen") as child:
        child.freeze()
        given = jam(node, client, server="frozen")
        child.kill()
        until(lambda: node.status("call")["pending"] == 0, "the end of all of them")
        # of the five that waited libzmq may still take some while the connection ends, or all: those are not sent again
        refused = node.count("call", "refused_no_route")
        assert refused + node.count("call", "orphaned") == given
        answers = [client.get() for _ in range(refused)]
        assert {(answer.kind, answer.reason) for answer in answers} <= {(Kind.REFUSED, Reason.NO_ROUTE)}
        assert client.silent()


def test_what_waits_too_long_is_not_sent(run_node):
    node = run_node(send_msgs=4)
    frozen, client = node.server(rcvhwm=1), node.client()
    frozen.open("t")
    sent = []

    def refused():
        sent.append(client.call("t", BIG, ttl_ms=200))
        return node.count("call", "refused_expired") >= 5

    until(refused, "some to expire")
    until(lambda: not node.status("call")["control"]["waiting"], "the others to do so")
    expired = node.count("call", "refused_expired")
    answers = [client.get() for _ in range(expired)]
    assert {(answer.kind, answer.reason) for answer in answers} == {(Kind.REFUSED, Reason.EXPIRED)}
    assert [frozen.get(give=False).envelope.id for _ in range(len(sent) - expired)] == sent[
        : len(sent) - expired
    ]
    assert frozen.silent()
    member = node.status("call")["members"][0]
    assert (member["credit"], member["unconfirmed"]) == (1000 - len(sent) + expired, len(sent) - expired)


@pytest.mark.patient
def test_credit_of_a_process_that_did_not_read_counts_when_what_waited_is_too_old(run_node, monkeypatch):
    """It is given while the queue is full of calls to another listener, none of which is ever sent."""
    monkeypatch.setattr(call, "SWEEP_S", 0.1)
    node = run_node(**NARROW)
    server, client = node.server(rcvhwm=1), node.client()
    opening = msgspec.structs.replace(server.opening("u"), credit=1)
    assert server.ask(Kind.OPEN, to_json(opening)).kind == Kind.OPENED
    server.open("t")
    client.call("u")
    server.get(give=False)
    jam(node, client, ttl_ms=700)
    server.give(opening.listener)
    node.counted("call", "credits")
    until(lambda: not node.status("call")["control"]["waiting"], "what waits to be too old")
    until(lambda: node.status("call")["members"][0]["credit"] == 1, "the credit")
    assert node.count("call", "refused_expired") == 5


@pytest.mark.parametrize("confirm", [False, True])
def test_casts_may_come_this_way(node, confirm):
    server, client = node.server(), node.client()
    server.open("t")
    flags = Flag.CONFIRM if confirm else 0
    number = client.cast("t", b"do", flags=flags)
    assert server.get().body == b"do"
    if confirm:
        answer = client.get()
        assert (answer.kind, answer.envelope.id) == (Kind.TAKEN, number)
    client.cast("nobody", flags=flags | Flag.MANDATORY)
    if confirm:
        assert client.get().reason == Reason.NO_ROUTE
    node.counted("call", "refused_no_route")
    assert client.silent(50)
    assert node.status("call")["pending"] == 0


def test_a_cast_that_waits_is_confirmed_when_it_is_taken(run_node):
    node = run_node(send_msgs=4)
    frozen, client, waiting = node.server(rcvhwm=1), node.client(), node.client()
    frozen.open("t")
    for sent in range(1, BELOW_MSGS):
        client.call("t", BIG)
        until(lambda sent=sent: node.status("call")["entries"][1]["in"] == sent, "the call to come in")
        if node.status("call")["control"]["waiting"]:
            break
    number = waiting.cast("t", b"do", flags=Flag.CONFIRM)
    until(lambda: node.status("call")["pending"] == sent + 1, "the cast to wait")
    assert waiting.silent(50)
    bodies = [frozen.get().body for _ in range(sent + 1)]
    assert bodies[-1] == b"do"
    answer = waiting.get()
    assert (answer.kind, answer.envelope.id) == (Kind.TAKEN, number)
    assert node.status("call")["pending"] == sent


def test_a_killed_server_costs_its_calls_and_no_others(node):
    server = node.server()
    server.open("t", server="fine")
    client = node.client()
    with child_of(node, "call", "t", "child") as child:
        child.kill()
        until(lambda: node.status("call")["listeners"] == 1, "the child to be forgotten")
    for _ in range(4):
        client.call("t")
        server.reply(server.get())
        assert client.get().kind == Kind.REPLY


def test_a_client_that_is_gone_is_counted(node):
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t")
    got = server.get()
    client.sock.close(0)
    until(lambda: server.reply(got, b"", Kind.BEAT) or node.count("call", "client_gone"), "it to be noticed")


@pytest.mark.parametrize("gone", [False, True])
def test_a_server_learns_that_its_reply_found_nobody(run_node, monkeypatch, gone):
    monkeypatch.setattr(call, "FRESH_S", 0.0)
    monkeypatch.setattr(call, "SWEEP_S", 0.02)
    node = run_node()
    server, client = node.server(), node.client()
    server.open("t")
    number = client.call("t", ttl_ms=0 if gone else 30)
    got = server.get()
    if gone:
        client.sock.close(0)
        until(lambda: server.reply(got, b"", Kind.BEAT) or node.count("call", "client_gone"), "its end")
    else:
        node.counted("call", "expired")
    server.reply(got, b"done")
    told = Answer(hear(server.ctl))
    assert (told.kind, told.reason, told.envelope.id) == (Kind.REFUSED, Reason.NO_CALLER, number)
    assert told.rest[0].startswith(b"its caller is gone")


def test_a_proxy_that_has_just_begun_tells_no_server_so(node):
    """Who waits for a call of before asks again; this server would be told what is not true."""
    server = node.server()
    server.open("t")
    server.ctl.send_multipart([encode(Kind.REPLY, id=new_id()), b"\x00abcde", b""])
    node.counted("call", "late_replies")
    assert server.silent()


@for_each("tcp", [False, True])
@for_each(
    ("frames", "name"),
    [
        ([b""], "malformed"),
        ([b"", b"", b""], "malformed"),
        ([b"x"], "malformed"),
        ([b"x", b"y"], "malformed"),
        ([encode(Kind.CALL, "x", "t", id=new_id())], "malformed"),
        ([encode(Kind.CALL, "x", "t", id=new_id()), b"", b""], "malformed"),
        ([encode(Kind.CALL, id=new_id()), b""], "malformed"),
        ([encode(Kind.CALL, "x", "", "s", id=new_id()), b""], "malformed"),
        ([encode(Kind.CALL, "x", "t")[:30], b""], "malformed"),
        ([encode(Kind.CALL, "x", "t", id=new_id()) + b"\xff", b""], "malformed"),
        ([encode(Kind.CALL, id=new_id()) + b"only", b""], "malformed"),
        ([encode(Kind.CALL, "x", "t" * 256, id=new_id()), b""], "malformed"),
        ([b"HGO\x02" + encode(Kind.CALL, "x", "t", id=new_id())[4:], b""], "unknown_version"),
        ([encode(Kind.REPLY, "x", "t", id=new_id()), b""], "unexpected"),
        ([encode(Kind.OPEN, "x", "t", id=new_id()), b"{}"], "unexpected"),
        ([encode(255, "x", "t", id=new_id()), b""], "unexpected"),
        ([encode(Kind.CALL, "x", "t", id=new_id())] * 60, "malformed"),
    ],
)
def test_nonsense_is_counted_and_survived(folder, tcp, frames, name):
    with node_at(folder) as node:
        server, client = node.server(), node.client(tcp=tcp)
        server.open("t")
        client.call("t")  # its address is known now
        server.reply(server.get())
        assert client.get().kind == Kind.REPLY
        client.sock.send_multipart(frames)
        node.counted("call", name)
        number = client.call("t")
        server.reply(server.get())
        while (answer := client.get()).envelope.id != number:
            assert answer.kind == Kind.REFUSED
        assert answer.kind == Kind.REPLY


def test_leaving_is_told_to_servers_and_clients(node):
    server, client = node.server(), node.client()
    server.open("t")
    client.call("t", b"in flight")
    got = server.get()
    node.within(lambda: node.proxy.pipelines["call"].stop("going", returns=False))
    frames = hear(server.ctl)
    assert frames == [encode(Kind.REFUSED, reason=Reason.LEAVING), b"going"]
    for head in (b"", b"HGO\x01", b"rubbish" * 10):
        client.sock.send_multipart([head, b""])
    client.call("t")
    assert client.get().reason == Reason.LEAVING
    assert node.count("call", "malformed") == 3
    server.reply(got, b"still")
    assert client.get().rest == [b"still"]
    answer = server.ask(Kind.OPEN, b"{}")
    assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.LEAVING)
