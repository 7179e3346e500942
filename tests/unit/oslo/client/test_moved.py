"""A node that is reached elsewhere after its connection has ended: what may be lost is sent again there."""

import threading

import pytest
import zmq

from broker.oslo.contract import Address
from broker.oslo.frames import Flag, Kind, decode, encode
from tests.live.oslo_raw import PATIENCE_S, until
from tests.live.oslo_wire import tell
from tests.unit.oslo.client.nodes import DIRECTORY_ONLY, Played, door_of, server

WHERE = Address("x", "t")


@pytest.fixture
def play(run_node, stack):
    directory = run_node(run=DIRECTORY_ONLY)
    return lambda name: stack.enter_context(Played(door_of(directory), name))


@pytest.fixture
def new_socket(stack):
    def make(kind):
        sock = stack.enter_context(stack.enter_context(zmq.Context()).socket(kind))
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        return sock, f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}"

    return make


@pytest.mark.parametrize("moved_first", [True, False])
def test_a_call_is_asked_for_again_where_its_node_is_now(play, open_session, new_socket, moved_first):
    node = play("n1")
    node.announce(server("l1"))
    port = open_session()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(port.call(WHERE, b"body", timeout_s=PATIENCE_S)))
    asking.start()
    first = node.get()[1]
    sock, endpoint = new_socket(zmq.ROUTER)
    if not moved_first:
        node.sock.close(0)
        until(lambda: port.status()["counts"].get("repeated"), "the end of the connection")
    node.announce(server("l1"), endpoint=endpoint)
    if moved_first:
        until(lambda: (port.cast(WHERE, b""), sock.poll(50))[1], "a cast at the new place")
        node.sock.close(0)
    while (again := decode((came := sock.recv_multipart())[1])).kind != Kind.CALL:
        pass
    rid, _head, body = came
    assert (again.id, again.flags, again.listener, body) == (first.id, Flag.REPEATED, "l1", b"body")
    tell(sock, rid, encode(Kind.REPLY, id=again.id), b"answer")
    asking.join(PATIENCE_S)
    assert answers == [b"answer"]


@pytest.mark.parametrize("moved_first", [True, False])
def test_casts_are_sent_again_where_their_node_is_now(play, open_session, new_socket, moved_first):
    node = play("n1")
    old, endpoint = new_socket(zmq.PULL)
    node.announce(server("l1"))
    node.announce(server("l1"), pipeline="cast", endpoint=endpoint)
    port = open_session()
    port._use()
    until(lambda: port.status() and port._client.routes.find(WHERE).casts, "the server")
    for number in range(3):
        port.cast(WHERE, b"%d" % number)
    for _ in range(3):
        old.recv_multipart()
    new, endpoint = new_socket(zmq.PULL)
    if not moved_first:
        old.close(0)
        until(lambda: port.status()["counts"].get("repeated"), "the end of the connection")
    node.announce(server("l1"), pipeline="cast", endpoint=endpoint)
    if moved_first:
        until(lambda: (port.cast(WHERE, b""), new.poll(50))[1], "casts at the new place")
        old.close(0)
    repeated = []
    while len(repeated) < 3:
        head, body = new.recv_multipart()
        if decode(head).flags & Flag.REPEATED and body:
            repeated.append(body)
    assert repeated == [b"0", b"1", b"2"]
    assert "lost" not in port.status()["counts"]
    assert not port.status()["links"]["cast"]["n1"]["down"]
    assert not port._client.casts.bad
