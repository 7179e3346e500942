"""The pipeline of casts over real sockets."""

import os
import threading
import time

import pytest
import zmq

from broker.identity import USERID_UNKNOWN, Role
from broker.oslo.frames import Flag, Kind, due_of, encode, new_id
from broker.oslo.names import Reason
from broker.oslo.node import Rule
from broker.oslo.proxy import back_pressure
from broker.oslo.records import to_json
from tests.live.oslo_raw import PATIENCE_S, child_of, until

BIG = bytes(64 << 10)
NARROW = {"queue_msgs": 5, "send_msgs": 4, "lease_s": 60.0}
"""A node that soon keeps itself what a server does not read."""
BELOW_MSGS = 100
"""More messages of 64 KiB than libzmq and the kernel hold there for one peer that does not read."""
STEADY = 5
"""Looks in a row after which a queue is taken for full."""


def targets(node):
    return node.status("cast")["exits"]


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


def test_one_exit_for_all_listeners_of_a_process(node):
    server, client = node.server("cast"), node.client("cast")
    one, two = server.open("t"), server.open("u")
    assert len(targets(node)) == 1
    client.cast("t", b"1")
    client.cast("u", b"2")
    assert [server.get().listener for _ in range(2)] == [one, two]


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


def jam(node, client, **more):
    """Cast to a server that does not read until its queue of 5 is full and stays so."""
    came = node.status("cast")["entries"][1]["in"]
    dropped = steady = 0
    for sent in range(1, BELOW_MSGS):
        client.cast("t", BIG, **more)
        until(lambda sent=sent: node.status("cast")["entries"][1]["in"] == came + sent, "the cast to come in")
        count = node.count("cast", "full")
        steady = steady + 1 if count > dropped else 0
        dropped = count
        if steady:
            time.sleep(0.02)  # for libzmq to hand on what it can
        if steady == STEADY:
            break
    assert [each["waiting"] for each in targets(node) if each["waiting"]] == [5]


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


def test_senders_wait_for_a_server_that_moves_and_nothing_is_lost(run_node):
    node = run_node(queue_msgs=10, send_msgs=4)
    server, client = node.server("cast", rcvhwm=1), node.client("cast", sndhwm=1)
    server.open("t")
    thread = sending(client, [b"%d " % number + BIG for number in range(BELOW_MSGS)])
    until(lambda: pressed(node), "its queue to be nearly full")
    for number in range(BELOW_MSGS):
        assert server.get().body.split()[0] == b"%d" % number
    thread.join(PATIENCE_S)
    assert node.count("cast", "pauses") >= 1
    assert node.count("cast", "full") == 0
    until(lambda: not pressed(node), "the entry to be read again")


def test_what_is_too_large_for_the_rest_of_a_queue_that_moves_waits_for_room(run_node):
    node = run_node(queue_bytes=15 * len(BIG) // 10, send_msgs=4)
    server, client = node.server("cast", rcvhwm=1), node.client("cast", sndhwm=1)
    server.open("t")
    thread = sending(client, [b"%d " % number + BIG for number in range(BELOW_MSGS)])
    until(lambda: pressed(node), "one that does not fit")
    for number in range(BELOW_MSGS):
        assert server.get().body.split()[0] == b"%d" % number
    thread.join(PATIENCE_S)
    assert node.count("cast", "full") == 0


def fill(node, client):
    """Cast to a server that does not read until nothing is read any more here, and libzmq has taken what it can."""
    steady = sent = 0
    end = time.monotonic() + PATIENCE_S
    while steady < STEADY:
        assert time.monotonic() < end, "its queue does not stay nearly full"
        steady = steady + 1 if pressed(node) else 0
        if not steady and sent < BELOW_MSGS:  # what was sent may still be on its way
            client.cast("t", BIG)
            sent += 1
        else:
            time.sleep(0.02)


def ended(node, client, name):
    """Wait until a pause has ended that way, sending more where one ends with room; returns how many there were."""

    def counts():
        if not pressed(node):
            client.cast("t", BIG)
        counts = node.status("cast")["counts"]
        return counts if counts.get(name) else None

    return until(counts, name)["pauses"]


def test_a_server_that_only_says_that_it_moves_is_waited_for_and_not_for_ever(run_node, monkeypatch):
    monkeypatch.setattr(back_pressure, "STILL_S", 600.0)  # however long it takes until the queue is full
    monkeypatch.setattr(back_pressure, "PAUSE_MAX_S", 600.0)
    node = run_node(**NARROW)
    server, other, client = node.server("cast", rcvhwm=1), node.server("cast"), node.client("cast")
    listener = server.open("t")
    fill(node, client)
    server.ctl.send_multipart([encode(Kind.CREDIT, listeners=(listener,), word=1), b""])
    monkeypatch.setattr(back_pressure, "PAUSE_MAX_S", 0.3)
    pauses = ended(node, client, "pauses_slow")
    assert node.count("cast", "pauses_still") == 0
    until(lambda: not pressed(node), "the entry to be read again")
    other.open("u")
    client.cast("u", b"for another one")
    assert other.get().body == b"for another one"
    assert node.count("cast", "pauses") == pauses, "it was not waited for again"


def test_a_server_that_stands_still_is_not_waited_for(run_node, monkeypatch):
    monkeypatch.setattr(back_pressure, "STILL_S", 600.0)  # however long it takes until the queue is full
    monkeypatch.setattr(back_pressure, "PAUSE_MAX_S", 600.0)
    node = run_node(**NARROW)
    server, other, client = node.server("cast", rcvhwm=1), node.server("cast"), node.client("cast")
    server.open("t")
    other.open("u")
    fill(node, client)
    monkeypatch.setattr(back_pressure, "STILL_S", 0.1)
    client.cast("u", b"for another one")
    assert other.get().body == b"for another one"
    ended(node, client, "pauses_still")


def test_credit_of_a_stranger_is_unexpected(node):
    server = node.server("cast")
    server.ctl.send_multipart([encode(Kind.CREDIT, listeners=("f" * 24,), word=1), b""])
    node.counted("cast", "unexpected")


def test_what_waits_goes_elsewhere_when_its_process_is_killed(run_node):
    node = run_node(**NARROW)
    client, server = node.client("cast"), node.server("cast")
    with child_of(node, "cast", "t", "frozen") as child:
        child.freeze()
        jam(node, client)
        server.open("t", server="fine")
        path = next(each["endpoint"] for each in targets(node) if each["waiting"]).removeprefix("ipc://")
        child.kill()
        got = [server.get() for _ in range(5)]
        assert [each.body for each in got] == [BIG] * 5
        assert server.silent(50)
        assert not os.path.exists(path)
        assert len(targets(node)) == 1


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
    node = run_node(send_msgs=4)
    client, server = node.client("cast"), node.server("cast")
    with child_of(node, "cast", "t", "frozen") as child:
        child.freeze()
        until(
            lambda: client.cast("t", BIG, ttl_ms=200) and node.count("cast", "expired") >= 5, "some to expire"
        )
        until(lambda: not any(each["waiting"] for each in targets(node)), "the others to do so")
        server.open("t", server="fine")
        child.kill()
        assert server.silent(50)


def test_a_frozen_process_gets_what_it_was_given_when_it_goes_on(run_node):
    node = run_node(lease_s=0.4)
    client = node.client("cast")
    with child_of(node, "cast", "t") as child:
        client.cast("t", b"first")  # it is connected, or all would wait here, and go when its lease ends
        until(lambda: "first" in child.lines, "its connection")
        child.freeze()
        for number in range(20):
            client.cast("t", b"%d" % number)
        node.counted("cast", "lapsed")
        assert len(targets(node)) == 1
        child.thaw()
        until(lambda: child.lines.count("19") == 1, "the last one")
        assert [line for line in child.lines if line != "open"] == ["first", *map(str, range(20))]
        until(lambda: node.status("cast")["topics"] == {"x/t": 1}, "it to register again")
        client.cast("t", b"more")
        until(lambda: "more" in child.lines, "another one")
        assert len(targets(node)) == 1


def test_an_exit_is_for_its_own_process_alone(node):
    with child_of(node, "cast", "t") as child:
        endpoint = targets(node)[0]["endpoint"]
        thief = node.socket(zmq.PULL, endpoint)
        client = node.client("cast")
        for number in range(10):
            client.cast("t", b"%d" % number)
        until(lambda: child.lines.count("9") == 1, "all to arrive")
        assert child.lines == ["open", *map(str, range(10))]
        assert not thief.poll(50)
    assert os.path.basename(endpoint).startswith("cast-")


def test_a_process_that_cannot_be_reached_is_told_so(node):
    room = node.proxy.rooms["cast"]
    number = node.within(lambda: room._numbers) + 1
    with open(os.path.join(node.config.ipc_dir, f"cast-{number}.out"), "w") as file:
        file.write("no socket")
    server = node.server("cast")
    answer = server.ask(Kind.OPEN, to_json(server.opening("t")))
    assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.BUSY)
    server.open("t")
    node.client("cast").cast("t", b"1")
    assert server.get().body == b"1"


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize(
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
def test_nonsense_is_counted_and_survived(node, tcp, frames, name):
    server, client = node.server("cast"), node.client("cast", tcp=tcp)
    server.open("t")
    client.cast("t", b"1")
    assert server.get().body == b"1"
    client.sock.send_multipart(frames)
    node.counted("cast", name)
    client.cast("t", b"2")
    assert server.get().body == b"2"
