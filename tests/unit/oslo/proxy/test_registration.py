"""Registration, leases, and the ends of server processes, over real sockets."""

import os
import secrets

import msgspec
import pytest
import zmq

from broker.oslo.frames import Kind, encode, new_id
from broker.oslo.names import Reason
from broker.oslo.node import Rule
from broker.oslo.proxy import registration as module
from broker.oslo.records import Opened, Opening, Record, to_json
from tests.live.oslo_raw import child_of, node_at, until
from tests.live.oslo_wire import hear
from tests.tables import for_each


def records(node, room="call"):
    return node.status(room)["topics"]


def test_open_is_confirmed_and_close_ends_it(node):
    server = node.server()
    opening = server.opening("t")
    answer = server.ask(Kind.OPEN, to_json(opening))
    opened = msgspec.json.decode(answer.rest[0], type=Opened)
    assert (answer.kind, opened.node) == (Kind.OPENED, "127.0.0.1")
    assert opened.incarnation == node.status("call")["incarnation"]
    assert records(node) == {"x/t": 1}
    assert server.close(opening.listener).kind == Kind.CLOSED
    assert records(node) == {}
    assert server.close(opening.listener).kind == Kind.CLOSED


def test_the_same_open_again_is_confirmed_again(node):
    server = node.server()
    opening = server.opening("t")
    answers = [server.ask(Kind.OPEN, to_json(opening)) for _ in range(2)]
    assert [answer.kind for answer in answers] == [Kind.OPENED, Kind.OPENED]
    assert records(node) == {"x/t": 1}
    other = server.ask(Kind.OPEN, to_json(server.opening("u", listener=opening.listener)))
    assert (other.kind, other.reason) == (Kind.REFUSED, Reason.MALFORMED)


def test_pulses_are_answered_once_something_is_open(node):
    server = node.server()
    server.ctl.send_multipart([encode(Kind.PULSE), b""])
    answer = hear(server.ctl)
    assert answer == [encode(Kind.REFUSED, reason=Reason.NO_ROUTE), b"register again"]
    server.open("t")
    server.ctl.send_multipart([encode(Kind.PULSE), b""])
    assert hear(server.ctl) == [encode(Kind.PULSE), b""]


def test_status_is_told(node):
    server = node.server()
    server.open("t")
    told = msgspec.json.decode(server.ask(Kind.STATUS).rest[0])
    assert told["listeners"] == told["links"] == 1
    assert told["control"]["type"] == "ROUTER"
    assert [each["type"] for each in told["entries"]] == ["ROUTER", "ROUTER"]
    assert told["entries"][0]["endpoint"].startswith("tcp://127.0.0.1:")


LISTENER = "0123456789abcdef01234567"


@for_each(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        to_json(Opening(LISTENER, (Record("x", "?", "s", LISTENER),))).replace(b"?", b"\\ud800"),
        to_json({"listener": 5, "records": []}),
        to_json(Opening("short", (Record("x", "t", "s", "short"),))),
        to_json(Opening("\u00e9" * 24, (Record("x", "t", "s", "\u00e9" * 24),))),
        to_json(Opening(LISTENER, ())),
        to_json(Opening(LISTENER, (Record("x", "t", "s", "another"),))),
        to_json(Opening(LISTENER, (Record("x", "t", "s", LISTENER), Record("x", "u", "s", LISTENER)))),
        to_json(Opening(LISTENER, (Record("x", "t" * 256, "s", LISTENER),))),
        to_json(Opening(LISTENER, (Record("x\0y", "t", "s", LISTENER),))),
        to_json(Opening(LISTENER, (Record("x", "t", "", LISTENER),))),
        to_json(Opening(LISTENER, (Record("x", "", "s", LISTENER),))),
        to_json(Opening(LISTENER, (Record("x", "t", "s", LISTENER),), credit=-1)),
    ],
)
def test_openings_that_make_no_sense_are_refused(folder, body):
    with node_at(folder) as node:
        server = node.server()
        answer = server.ask(Kind.OPEN, body)
        assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.MALFORMED)
        assert node.status("call")["listeners"] == 0
        assert node.count("call", "open_malformed") == 1
        server.open("t")


def test_who_may_not_listen_is_told_so(run_node):
    node = run_node(rules=(Rule(topics=("closed",), action="listen", allow=False),))
    server = node.server()
    answer = server.ask(Kind.OPEN, to_json(server.opening("closed")))
    assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.DENIED)
    server.open("t")


def test_the_listener_of_another_process_is_not_to_be_had(node):
    with child_of(node, "call", "t"):
        listener = node.within(lambda: next(iter(node.proxy.pipelines["call"]._holders)))
        server = node.server()
        answer = server.ask(Kind.OPEN, to_json(server.opening("t", listener=listener)))
        assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.DENIED)


def test_a_new_connection_of_the_same_process_takes_its_listener_along(node):
    one, two = node.server(), node.server()
    listener = one.open("t")
    two.open("t", listener=listener)
    client = node.client()
    client.call("t", b"hello")
    assert two.get().body == b"hello"
    assert one.silent()
    assert records(node) == {"x/t": 1}


def test_there_is_a_limit_to_links_and_records(run_node, monkeypatch):
    monkeypatch.setattr(module, "LINKS_MAX", 2)
    monkeypatch.setattr(module, "RECORDS_MAX", 3)
    node = run_node()
    one, two, three = (node.server() for _ in range(3))
    listener = one.open("t")
    two.open("t")
    answer = three.ask(Kind.OPEN, to_json(three.opening("t")))
    assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.BUSY)
    one.close(listener)
    three.open("t")
    three.open("u")
    answer = three.ask(Kind.OPEN, to_json(three.opening("v")))
    assert (answer.kind, answer.reason) == (Kind.REFUSED, Reason.BUSY)
    assert records(node) == {"x/t": 2, "x/u": 1}


def test_a_killed_process_is_noticed_before_its_lease_ends(run_node):
    node = run_node(lease_s=3600.0)
    with child_of(node, "call", "t") as child:
        assert records(node) == {"x/t": 1}
        child.kill()
        until(lambda: not records(node), "the listener to be dropped")
        assert node.count("call", "died") == 1
        assert node.status("call")["links"] == 0


def test_a_frozen_process_is_dropped_after_its_lease_and_comes_back(run_node):
    node = run_node(lease_s=0.4)
    with child_of(node, "call", "t") as child:
        child.freeze()
        until(lambda: not records(node), "the lease to end")
        assert node.count("call", "lapsed") == 1
        child.thaw()
        until(lambda: records(node) == {"x/t": 1}, "it to register again")
        client = node.client()
        client.call("t")
        assert client.get().rest == [b"child"]


def test_a_link_with_many_listeners_ends_in_portions_and_may_open_them_again_meanwhile(run_node, monkeypatch):
    monkeypatch.setattr(module, "DROPS_MAX", 1)
    node = run_node(lease_s=3600.0)
    one, two = node.server(), node.server()
    openings = [one.opening(f"t{number}") for number in range(60)]
    for opening in openings:
        one.ask(Kind.OPEN, to_json(opening))
    client = node.client()
    one.ctl.close(0)

    def noticed():  # by who sends to it, once libzmq knows
        client.call("t59")
        return len(records(node)) < 60

    until(noticed, "its end to be noticed")
    for opening in openings[-20:]:
        assert two.ask(Kind.OPEN, to_json(opening)).kind == Kind.OPENED
    until(lambda: len(records(node)) == 20, "the others to be dropped")
    assert records(node) == {f"x/t{number}": 1 for number in range(40, 60)}


@pytest.mark.patient
def test_whoever_pulses_is_kept(run_node):
    node = run_node(lease_s=1.5)
    with child_of(node, "call", "t"):
        came = node.status("call")["control"]["in"]
        until(lambda: node.status("call")["control"]["in"] > came + 50, "50 pulses")
        assert node.count("call", "lapsed") == 0


def test_a_link_whose_connection_is_gone_is_forgotten(run_node):
    node = run_node(lease_s=0.2)
    server = node.server()
    listener = server.open("t")
    server.close(listener)
    server.ctl.close(0)
    until(lambda: node.status("call")["links"] == 0, "the link to be forgotten")


def test_a_restarted_proxy_has_everything_registered_again(run_node, folder):
    first = run_node()
    with child_of(first, "call", "t") as child:
        first.proxy.stop()
        first.join()
        child.lines.clear()
        second = run_node()
        until(lambda: records(second) == {"x/t": 1}, "the child to register again")
        assert second.status("call")["incarnation"] > 0


@for_each(
    ("frames", "name"),
    [
        ([b""], "malformed"),
        ([b"x" * 100], "malformed"),
        ([b"HGO\x07" + bytes(36), b""], "unknown_version"),
        ([encode(Kind.OPEN, id=new_id())], "open_malformed"),
        ([encode(Kind.OPEN, id=new_id()), b"{}", b"{}"], "open_malformed"),
        ([encode(Kind.CREDIT, id=new_id()), b""], "credit_unknown"),
        ([encode(Kind.REQUEUE, id=new_id()), b""], "unexpected"),
        ([encode(99), b""], "unexpected"),
        ([encode(Kind.REPLY, id=new_id()), b""], "malformed"),
        ([encode(Kind.REPLY, id=new_id()), b"", b""], "malformed"),
        ([encode(Kind.REPLY, "x", "t", id=new_id()), b"r", b""], "malformed"),
        ([encode(Kind.REPLY, id=new_id()), b"\x09abc", b""], "late_replies"),
        ([b"HGO\x01\x05", b"r", b""], "malformed"),
        ([encode(Kind.BEAT, id=new_id()), *[b""] * 30], "malformed"),
    ],
)
def test_nonsense_is_counted_and_survived(folder, frames, name):
    with node_at(folder) as node:
        server = node.server()
        server.open("t")
        server.ctl.send_multipart(frames)
        node.counted("call", name)
        client = node.client()
        client.call("t")
        server.early = [each for each in server.early if len(each) == 3]
        while True:
            got = hear(server.ctl)
            if len(got) == 3:
                break
        assert got[2] == b""


def test_the_socket_is_ours_alone(node):
    for name in ("call.ctl", "call.in", "cast.ctl", "cast.in"):
        assert os.stat(os.path.join(node.config.ipc_dir, name)).st_mode & 0o777 == 0o600


def test_one_identity_is_one_connection(node):
    """A second connection with the same identity is not heard while the first one is there."""
    identity = secrets.token_bytes(8)
    one = node.server(routing_id=identity)
    one.open("t")
    two = node.socket(zmq.DEALER, node.config.path("call.ctl"), routing_id=identity)
    two.send_multipart([encode(Kind.PULSE), b""])
    client = node.client()
    client.call("t", b"for the first")
    assert one.get().body == b"for the first"
    assert not two.poll(100)
