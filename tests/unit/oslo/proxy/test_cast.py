"""The pipeline of casts over real sockets."""

import os
import threading
import time

import pytest

from broker.identity import USERID_UNKNOWN, Role
from broker.oslo.frames import Flag, Kind, due_of, encode, new_id
from broker.oslo.node import Rule
from broker.oslo.proxy import listeners
from tests.live.oslo_raw import PATIENCE_S, child_of, node_at, until
from tests.tables import for_each

BIG = bytes(64 << 10)
NARROW = {"queue_msgs": 5, "lease_s": 60.0}
"""A node that keeps few casts for a server that gives no credit."""
MANY = 100


def members(node):
    return node.status("cast")["members"]


@pytest.mark.parametrize("tcp", [False, True])
def test_a_cast_arrives_stamped(node, tcp):
    server, client = node.server("cast"), node.client("cast", tcp=tcp)
    listener = server.open("t")
    number = client.cast("t", b"do", listeners=(listener,), userid=0, rolemask=0xFFFFFFFF)
    got = server.get()
    assert (got.body, got.envelope.id, got.listener) == (b"do", number, listener)
    expected = (USERID_UNKNOWN, Role.USER) if tcp else (os.geteuid(), Role.OWNER | Role.USER | Role.LOCAL)
    assert (got.envelope.userid, got.envelope.rolemask) == expected


def test_a_deadline_comes_with_it(node):
    server, client = node.server("cast"), node.client("cast")
    server.open("t")
    client.cast("t", ttl_ms=5000)
    now_s = time.monotonic()
    assert 0 < due_of(server.get().envelope, now_s) - now_s <= 5.1
    client.cast("t", flags=Flag.DUE)
    assert due_of(server.get().envelope, now_s) is None


def test_listeners_of_a_process_have_queues_of_their_own(run_node, monkeypatch):
    monkeypatch.setattr(listeners, "STILL_S", 0.1)
    node = run_node(**NARROW)
    server, client = node.server("cast", credit=2), node.client("cast")
    one, two = server.open("t"), server.open("u")
    for number in range(9):
        client.cast("t", b"%d" % number)
    node.counted("cast", "full", 2)
    client.cast("u", b"behind them")
    got = [(each.listener, each.body) for each in (server.get(give=False) for _ in range(3))]
    assert got == [(one, b"0"), (one, b"1"), (two, b"behind them")]
    assert [(each["waiting"], each["unconfirmed"]) for each in members(node)] == [(5, 2), (0, 1)]
    server.give(one, 7)
    assert [server.get(give=False).body for _ in range(5)] == [b"%d" % number for number in range(2, 7)]


def test_order_is_kept(node):
    server, client = node.server("cast"), node.client("cast")
    server.open("t")
    for number in range(500):
        client.cast("t", b"%d" % number)
    assert [server.get().body for _ in range(500)] == [b"%d" % number for number in range(500)]


def test_servers_take_turns_and_are_known_by_name(node):
    servers = [node.server("cast") for _ in range(3)]
    for number, server in enumerate(servers):
        server.open("t", server=f"s@{number}")
    client = node.client("cast")
    for number in range(6):
        client.cast("t", b"%d" % number)
    for number in range(6):
        assert servers[number % 3].get().body == b"%d" % number
    client.cast("t", b"you", server="s@2")
    assert servers[2].get().body == b"you"


def test_nobody_there_is_counted(node):
    client = node.client("cast")
    client.cast("t")
    node.counted("cast", "no_route")
    server = node.server("cast")
    listener = server.open("t")
    server.close(listener)
    client.cast("t", listeners=(listener,))
    node.counted("cast", "no_route", 2)


def test_rules_apply(run_node):
    node = run_node(rules=(Rule(topics=("closed",), action="send", allow=False),))
    server, client = node.server("cast"), node.client("cast")
    server.open("closed")
    client.cast("closed")
    node.counted("cast", "denied")
    assert server.silent(50)


def came(node):
    return sum(each["in"] for each in node.status("cast")["entries"])


def jam(node, client, **more):
    """Cast to a server that gives no credit until its queue of 5 is full."""

    sent = came(node)

    def full():
        nonlocal sent
        for _ in range(20):
            client.cast("t", b"jam", **more)
        sent += 20
        return node.count("cast", "full")

    until(full, "a full queue")
    until(lambda: came(node) == sent, "what is sent behind that")
    assert [each["waiting"] for each in members(node) if each["waiting"]] == [5]


def test_a_full_queue_costs_only_its_own_server(run_node):
    node = run_node(**NARROW)
    client, server = node.client("cast"), node.server("cast")
    with child_of(node, "cast", "t", "frozen") as child:
        child.freeze()
        jam(node, client, server="frozen")
        server.open("t", server="fine")
        client.cast("t", b"named", server="fine")
        assert server.get().body == b"named"
        for _ in range(2):
            client.cast("t", b"any")
            assert server.get().body == b"any"
        node.counted("cast", "chosen_again")


def sending(client, bodies):
    """A thread that casts; its socket waits when nothing is taken."""

    def send():
        for body in bodies:
            client.cast("t", body)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def pressed(node):
    return node.status("cast")["back_pressure"]["paused"]


@pytest.mark.parametrize("limits", [{"queue_msgs": 10}, {"queue_bytes": 15 * len(BIG) // 10}])
def test_senders_wait_for_a_server_that_moves_and_nothing_is_lost(run_node, limits):
    """Also for room for what is too large for the rest of its queue."""
    node = run_node(**limits)
    server, client = node.server("cast", credit=4), node.client("cast", sndhwm=1)
    server.open("t")
    thread = sending(client, [b"%d " % number + BIG for number in range(MANY)])
    until(lambda: pressed(node), "its queue to be nearly full")
    for number in range(MANY):
        assert server.get().body.split()[0] == b"%d" % number
    thread.join(PATIENCE_S)
    assert node.count("cast", "pauses") >= 1
    assert node.count("cast", "full") == 0
    until(lambda: not pressed(node), "the entry to be read again")


def fill(node, client):
    """Cast to a server that gives no credit until nothing is read any more."""
    until(lambda: pressed(node) or (client.cast("t", b"fill") and False), "a queue that is nearly full")


def ended(node, client, name):
    """Wait until a pause has ended that way, sending more where one ends with room; returns how many there were."""

    def counts():
        if not pressed(node):
            client.cast("t", b"more")
        counts = node.status("cast")["counts"]
        return counts if counts.get(name) else None

    return until(counts, name)["pauses"]


def test_a_server_that_only_says_that_it_moves_is_waited_for_and_not_for_ever(run_node, monkeypatch):
    monkeypatch.setattr(listeners, "STILL_S", 600.0)  # however long it takes until the queue is full
    monkeypatch.setattr(listeners, "PAUSE_MAX_S", 600.0)
    node = run_node(**NARROW)
    server, other, client = node.server("cast", credit=1), node.server("cast"), node.client("cast")
    listener = server.open("t")
    fill(node, client)
    server.give(listener, 0)
    monkeypatch.setattr(listeners, "PAUSE_MAX_S", 0.3)
    pauses = ended(node, client, "pauses_slow")
    assert node.count("cast", "pauses_still") == 0
    until(lambda: not pressed(node), "the entry to be read again")
    other.open("u")
    client.cast("u", b"for another one")
    assert other.get().body == b"for another one"
    assert node.count("cast", "pauses") == pauses, "it was not waited for again"


def test_a_server_that_stands_still_is_not_waited_for(run_node, monkeypatch):
    monkeypatch.setattr(listeners, "STILL_S", 600.0)  # however long it takes until the queue is full
    monkeypatch.setattr(listeners, "PAUSE_MAX_S", 600.0)
    node = run_node(**NARROW)
    server, other, client = node.server("cast", credit=1), node.server("cast"), node.client("cast")
    server.open("t")
    other.open("u")
    fill(node, client)
    monkeypatch.setattr(listeners, "STILL_S", 0.1)
    client.cast("u", b"for another one")
    assert other.get().body == b"for another one"
    ended(node, client, "pauses_still")


def test_credit_of_a_stranger_counts_for_nothing(node):
    server, client = node.server("cast", credit=0), node.client("cast")
    listener = server.open("t")
    node.server("cast").give(listener)
    node.counted("cast", "credit_unknown")
    client.cast("t")
    until(lambda: members(node)[0]["waiting"] == 1, "the cast")
    server.give(listener)
    assert server.get().listener == listener


def test_credit_of_a_process_that_reads_nothing_fills_no_memory(run_node, monkeypatch):
    """It is given what its outbox holds, and all else waits, in order, until it reads."""
    monkeypatch.setattr(listeners, "STILL_S", 600.0)
    monkeypatch.setattr(listeners, "PAUSE_MAX_S", 600.0)
    node = run_node(queue_msgs=5, send_msgs=2, lease_s=60.0)
    server, client = node.server("cast", credit=MANY, rcvhwm=1), node.client("cast", sndhwm=1)
    listener = server.open("t")
    thread = sending(client, [b"%d " % number + BIG for number in range(MANY)])
    until(lambda: pressed(node), "its queue to be nearly full")
    server.give(listener, MANY)
    node.counted("cast", "credits")
    assert node.status("cast")["control"]["waiting"] <= 6
    assert members(node)[0]["waiting"] == 5
    for number in range(MANY):
        assert server.get(give=False).body.split()[0] == b"%d" % number
    thread.join(PATIENCE_S)
    assert node.count("cast", "full") == 0


def test_the_end_of_a_listener_makes_room_for_others_of_its_process(run_node):
    """What fills the outbox of a process may all be for one that ends: then nothing is flushed."""
    node = run_node(**NARROW, send_msgs=2)
    server, client = node.server("cast", credit=MANY, rcvhwm=1), node.client("cast")
    listener = server.open("t")
    server.open("u")
    until(lambda: client.cast("t", BIG) and node.status("cast")["control"]["waiting"] >= 5, "a full outbox")
    client.cast("u", b"other")
    until(lambda: [each["waiting"] for each in members(node) if each["attached"] is False], "it to wait")
    server.ctl.send_multipart([encode(Kind.CLOSE, id=new_id(), listeners=(listener,)), b""])
    until(lambda: server.get(give=False).body == b"other", "the cast")


def test_what_waits_goes_elsewhere_when_its_process_is_killed(run_node):
    node = run_node(**NARROW)
    client, server = node.client("cast"), node.server("cast")
    with child_of(node, "cast", "t", "frozen") as child:
        child.freeze()
        jam(node, client)
        server.open("t", server="fine")
        child.kill()
        assert [server.get().body for _ in range(5)] == [b"jam"] * 5
        assert server.silent(50)
        assert len(members(node)) == 1


@pytest.mark.patient
def test_what_waits_for_a_name_is_counted_when_its_process_is_killed(run_node):
    node = run_node(**NARROW)
    client, server = node.client("cast"), node.server("cast")
    server.open("t", server="fine")
    with child_of(node, "cast", "t", "frozen") as child:
        child.freeze()
        jam(node, client, server="frozen")
        child.kill()
        node.counted("cast", "no_route", 5)
        assert server.silent(50)


def test_what_waits_too_long_is_not_sent(run_node):
    node = run_node(**NARROW)
    client, server = node.client("cast"), node.server("cast", credit=1)
    listener = server.open("t")
    for number in range(6):
        client.cast("t", b"%d" % number, ttl_ms=100)
    until(lambda: members(node)[0]["waiting"] == 5, "them to wait")
    time.sleep(0.15)
    client.cast("t", b"late")
    node.counted("cast", "expired", 5)
    server.give(listener)
    assert [server.get().body for _ in range(2)] == [b"0", b"late"]
    assert node.count("cast", "full") == 0


def test_a_frozen_process_gets_what_it_was_given_when_it_goes_on(run_node):
    node = run_node(lease_s=0.4)
    client = node.client("cast")
    with child_of(node, "cast", "t") as child:
        child.freeze()
        for number in range(20):
            client.cast("t", b"%d" % number)
        node.counted("cast", "lapsed")
        assert members(node) == []
        child.thaw()
        until(lambda: child.lines.count("19") == 1, "the last one")
        assert [line for line in child.lines if line != "open"] == [*map(str, range(20))]
        until(lambda: node.status("cast")["topics"] == {"x/t": 1}, "it to register again")
        client.cast("t", b"more")
        until(lambda: "more" in child.lines, "another one")


@for_each("tcp", [False, True])
@for_each(
    ("frames", "name"),
    [
        ([b""], "malformed"),
        ([b"x", b"y"], "malformed"),
        ([encode(Kind.CAST, "x", "t", id=new_id())], "malformed"),
        ([encode(Kind.CAST, "x", "t", id=new_id()), b"", b""], "malformed"),
        ([encode(Kind.CAST, id=new_id()), b""], "malformed"),
        ([encode(Kind.CAST, "x", "t", id=new_id()) + b"\xff", b""], "malformed"),
        ([b"HGO\x02" + encode(Kind.CAST, "x", "t", id=new_id())[4:], b""], "unknown_version"),
        ([encode(Kind.CALL, "x", "t", id=new_id()), b""], "unexpected"),
        ([encode(Kind.CAST, "x", "t", id=new_id())] * 70, "malformed"),
    ],
)
def test_nonsense_is_counted_and_survived(folder, tcp, frames, name):
    with node_at(folder) as node:
        server, client = node.server("cast"), node.client("cast", tcp=tcp)
        server.open("t")
        client.cast("t", b"1")
        assert server.get().body == b"1"
        client.sock.send_multipart(frames)
        node.counted("cast", name)
        client.cast("t", b"2")
        assert server.get().body == b"2"
