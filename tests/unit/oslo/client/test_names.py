"""A node whose name is not resolved costs only what is for it: servers on our own node are called all the while."""

import threading
import time

import pytest
import zmq

from broker.oslo.contract import Address, CallTimeout
from broker.oslo.frames import Kind, decode, fanout_filter
from broker.oslo.reactor import naming
from broker.oslo.records import Record
from tests.live.oslo_raw import PATIENCE_S, until
from tests.unit.oslo.client.nodes import Played, door_of, server

LEASE_S = 1.0


@pytest.fixture
def name_server(monkeypatch):
    """Says nothing until it is set; then that every name is 127.0.0.1."""
    answers = threading.Event()
    asked = []

    def look_up(host):
        asked.append(host)
        assert answers.wait(6 * PATIENCE_S)
        return ("127.0.0.1",)

    monkeypatch.setattr(naming, "look_up", look_up)
    answers.asked = asked
    yield answers
    answers.set()


@pytest.fixture
def local(run_node, open_session):
    """A node, a port on it, and a server there that answers."""
    node = run_node(lease_s=LEASE_S)
    port = open_session(fanout_wait_s=6 * PATIENCE_S, linger_s=0.2)
    inbox = port.listen(Address("x", "local", "s"))

    def serve():
        while (item := inbox.get(None)) is not None:
            item.reply(item.body)

    thread = threading.Thread(target=serve)
    thread.start()
    yield node, port
    inbox.stop()
    thread.join(PATIENCE_S)
    inbox.close()


def named(endpoint):
    return endpoint.replace("127.0.0.1", "compute7.example")


def goes_on(node, port, renew, seconds=1.2 * LEASE_S):
    """Calls are answered, and the server is not taken for dead, for longer than its lease."""
    over = time.monotonic() + seconds
    while time.monotonic() < over:
        assert port.call(Address("x", "local"), b"body", timeout_s=PATIENCE_S) == b"body"
        renew()
        time.sleep(0.01)
    assert node.status("call")["listeners"] == 1


def listed(port, address):
    port._use()
    until(lambda: port._client.routes.replica.servers(*address), "the other node")


def test_a_call_waits_for_its_name_and_keeps_nobody_else(name_server, local, stack):
    node, port = local
    far = stack.enter_context(Played(door_of(node), "compute7"))
    far.announce(server("l1", "far"), endpoint=named(far.endpoint))
    listed(port, ("x", "far"))
    outcome = []
    caller = threading.Thread(
        target=lambda: outcome.append(port.call(Address("x", "far"), b"", timeout_s=6 * PATIENCE_S))
    )
    caller.start()
    until(lambda: name_server.asked, "the question")
    goes_on(node, port, far.renew)
    assert port.status()["links"]["call"]["compute7"]["at"] == ""
    name_server.set()
    far.answer(far.get(), Kind.REPLY, b"from afar")
    caller.join(PATIENCE_S)
    assert outcome == [b"from afar"]
    assert set(name_server.asked) == {"compute7.example"}
    assert port.status()["links"]["call"]["compute7"]["at"] == far.endpoint


@pytest.mark.patient
def test_a_fanout_waits_for_its_name_and_keeps_nobody_else(name_server, local, stack):
    node, port = local
    context = stack.enter_context(zmq.Context())
    sock = stack.enter_context(context.socket(zmq.SUB))
    sock.set(zmq.SUBSCRIBE, fanout_filter("x", "far"))
    sock.set(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
    endpoint = f"tcp://127.0.0.1:{sock.bind_to_random_port('tcp://127.0.0.1')}"
    far = stack.enter_context(Played(door_of(node), "compute7"))
    far.announce(Record("x", "far"), pipeline="fanout", endpoint=named(endpoint))
    until(lambda: port._client.routes.replica.fanout_nodes("x", "far"), "the other node")
    port.fanout(Address("x", "far"), b"to all")
    until(lambda: name_server.asked, "the question")
    goes_on(node, port, lambda: far.renew("fanout"))
    assert not sock.poll(0)
    name_server.set()
    _filter, head, body = sock.recv_multipart()
    assert (decode(head).kind, body) == (Kind.FANOUT, b"to all")


def test_a_directory_without_a_number_keeps_nobody(name_server, run_node, open_session, rundir):
    nowhere = rundir / "nowhere"
    nowhere.mkdir()
    node = run_node()
    port = open_session(folder=nowhere, directories=(named(door_of(node)),))
    begin = time.monotonic()
    with pytest.raises(CallTimeout):
        port.call(Address("x", "t"), b"", timeout_s=0.3)
    assert time.monotonic() - begin < PATIENCE_S / 2
    until(lambda: name_server.asked == ["compute7.example"], "the question")
    assert not port._client.routes.synced
    name_server.set()
    until(lambda: port._client.routes.synced, "the directory")


@pytest.mark.patient
def test_a_port_with_a_name_that_nobody_resolves_is_closed_in_time(name_server, local, stack):
    node, port = local
    far = stack.enter_context(Played(door_of(node), "compute7"))
    far.announce(server("l1", "far"), endpoint=named(far.endpoint))
    listed(port, ("x", "far"))
    port.cast(Address("x", "far"), b"")
    until(lambda: name_server.asked, "the question")
    other = threading.Thread(target=port.close)
    other.start()
    other.join(PATIENCE_S)
    assert not other.is_alive()
